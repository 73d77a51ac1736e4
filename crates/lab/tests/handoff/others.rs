//! Web servers are as they come: not only nginx takes what is handed over.

use anyhow::{Context, Result};
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::family::Family;
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::host::Host;
use evener_lab::load::Load;
use evener_lab::proc::Proc;
use evener_lab::skip;

use crate::talk::{Talk, get};
use crate::unbroken;

on_both_engines! { apache_serves }

const MODULES: &str = "/usr/lib/apache2/modules";

/// With one socket for both families, as it has by default.
fn apache_serves(engine: &str) -> Result<()> {
    if !std::path::Path::new(MODULES).is_dir() {
        skip::skipped("apache2 is not installed");
        return Ok(());
    }
    let mut farm = Farm::builder().bare().servers(2).build()?;
    farm.stop_web(1)?;
    let _apache = serve(farm.server(1), &farm)?;
    let routes = [route("path = \"/2k\"", &["web2"]), route("path = \"/*8k\"", &["web2"])];
    let handoff =
        Handoff::start(farm, Offer { health: HEALTH.to_owned(), ..Offer::new(engine, 2, &routes) })?;
    for family in Family::BOTH {
        for path in ["/2k", "/108k"] {
            let service = handoff.service(family);
            let load =
                Load { connections: 4, path: path.to_owned(), requests: Some(25), ..Load::to(service) };
            for keep_alive in [false, true] {
                let report = Load { keep_alive, ..load.clone() }.run_on(handoff.client())?;
                let report = unbroken(report).with_context(|| format!("{family}: {path}"))?;
                assert_eq!(report.servers.keys().collect::<Vec<_>>(), ["web2"]);
            }
        }
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        talk.say_slowly(get("x", "/2k"), 9)?;
        assert_eq!(talk.reply()?.server, "web2");
    }
    Ok(())
}

const HEALTH: &str = "[service.health]\nkind = \"tcp\"\ninterval = \"500ms\"\n";

fn serve(host: &Host, farm: &Farm) -> Result<Proc> {
    let modules = ["mpm_event", "authz_core", "headers"]
        .map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n"));
    let config = format!(
        "ServerName {name}\nListen {WEB_PORT}\nUser nobody\nGroup nogroup\nKeepAlive On\nMaxKeepAliveRequests 0\n\
         PidFile {pid}\nErrorLog /dev/stderr\nDocumentRoot {pages}\n<Directory />\nRequire all granted\n</Directory>\n\
         Header always set X-Server {name}\n",
        name = host.name(),
        pid = host.file("apache.pid").display(),
        pages = farm.page("").display(),
    );
    let config = host.write("apache.conf", &(modules.concat() + &config))?;
    let mut apache = host.spawn("apache", &["apache2", "-X", "-f", &config.to_string_lossy()])?;
    apache.wait_until_listening(host, (host.address(), WEB_PORT).into())?;
    Ok(apache)
}
