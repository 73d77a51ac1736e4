//! Web servers other than nginx, with their default settings.

use anyhow::Result;

use crate::farm::{Farm, WEB_PORT};
use crate::harness::engines;
use crate::harness::held_machine::HeldMachine;
use crate::harness::process::Proc;
use crate::network::host::Host;
use crate::servers::cgi;

const MODULES: &str = "/usr/lib/apache2/modules";

/// True if Apache is installed; otherwise the test is reported as skipped.
pub fn apache_is_there() -> bool {
    let found = std::path::Path::new(MODULES).is_dir();
    if !found {
        engines::skipped("apache2 is not installed");
    }
    found
}

/// Starts Apache on a host, with one socket for both families, as by default. It serves all pages
/// of the farm and names itself in `X-Server`.
pub fn apache(host: &Host, farm: &Farm) -> Result<Proc> {
    start_apache(host, farm, "mpm_event", "", &[])
}

/// Starts Apache with a number of processes that each serve one connection, inside a held machine.
/// It also has [dynamic pages](cgi).
pub fn apache_prefork(host: &Host, farm: &Farm, processes: u16, machine: &HeldMachine) -> Result<Proc> {
    let program = cgi::program()?;
    let keys = format!(
        "StartServers {processes}\nServerLimit {processes}\nMaxRequestWorkers {processes}\n\
         MinSpareServers {processes}\nMaxSpareServers {processes}\nMaxConnectionsPerChild 0\nListenBacklog 1024\n\
         LoadModule cgi_module {MODULES}/mod_cgi.so\nLoadModule alias_module {MODULES}/mod_alias.so\n\
         ScriptAlias /{} {}/\n",
        cgi::FOLDER,
        program.display(),
    );
    start_apache(host, farm, "mpm_prefork", &keys, &machine.before())
}

fn start_apache(host: &Host, farm: &Farm, model: &str, keys: &str, before: &[String]) -> Result<Proc> {
    let modules = [model, "authz_core", "headers", "status"]
        .map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n"));
    let config = format!(
        "ServerName {name}\nListen {WEB_PORT}\nUser nobody\nGroup nogroup\nKeepAlive On\nMaxKeepAliveRequests 0\n{keys}\
         PidFile {pid}\nErrorLog /dev/stderr\nDocumentRoot {pages}\n<Directory />\nRequire all granted\n</Directory>\n\
         Header always set X-Server {name}\n<Location /server-status>\nSetHandler server-status\n</Location>\n",
        name = host.name(),
        pid = host.file("apache.pid").display(),
        pages = farm.page("").display(),
    );
    let config = host.write("apache.conf", &(modules.concat() + &config))?.to_string_lossy().into_owned();
    // one process in the foreground suffices unless each connection needs its own
    let mode = if model == "mpm_prefork" { "-DFOREGROUND" } else { "-X" };
    // when it ends, Apache ends all of its process group
    let words = ["setsid", "apache2", mode, "-f", &config].map(str::to_owned);
    let mut apache = host.spawn("apache", &[before, &words].concat())?;
    apache.wait_until_listening(host, (host.address(), WEB_PORT).into())?;
    Ok(apache)
}

/// True if Caddy is installed; otherwise the test is reported as skipped.
pub fn caddy_is_there() -> bool {
    let found = std::process::Command::new("caddy").arg("version").output().is_ok();
    if !found {
        engines::skipped("caddy is not installed");
    }
    found
}

/// Returns a site with all pages of the farm.
pub fn site(farm: &Farm, more: &str) -> String {
    format!("root * {}\nfile_server\n{more}", farm.page("").display())
}

/// Starts Caddy with a socket for both families, as Go creates it. `site` is the content of its
/// only site.
pub fn caddy(host: &Host, port: u16, site: &str) -> Result<Proc> {
    let file =
        format!("{{\nadmin off\nauto_https off\n}}\n:{port} {{\nheader X-Server {}\n{site}}}\n", host.name());
    let file = host.write("Caddyfile", &file)?.display().to_string();
    let [data, config] =
        ["DATA", "CONFIG"].map(|name| format!("XDG_{name}_HOME={}", host.file("caddy").display()));
    let words = ["env", &data, &config, "caddy", "run", "--adapter", "caddyfile", "--config", &file];
    let mut caddy = host.spawn("caddy", &words)?;
    caddy.wait_until_listening(host, (host.address(), port).into())?;
    Ok(caddy)
}
