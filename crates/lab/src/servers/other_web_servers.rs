//! Web servers other than nginx, with their default settings.

use anyhow::Result;

use crate::farm::{Farm, WEB_PORT};
use crate::harness::engines;
use crate::harness::process::Proc;
use crate::network::host::Host;

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
    let modules = ["mpm_event", "authz_core", "headers", "status"]
        .map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n"));
    let config = format!(
        "ServerName {name}\nListen {WEB_PORT}\nUser nobody\nGroup nogroup\nKeepAlive On\nMaxKeepAliveRequests 0\n\
         PidFile {pid}\nErrorLog /dev/stderr\nDocumentRoot {pages}\n<Directory />\nRequire all granted\n</Directory>\n\
         Header always set X-Server {name}\n<Location /server-status>\nSetHandler server-status\n</Location>\n",
        name = host.name(),
        pid = host.file("apache.pid").display(),
        pages = farm.page("").display(),
    );
    let config = host.write("apache.conf", &(modules.concat() + &config))?;
    let mut apache = host.spawn("apache", &["apache2", "-X", "-f", &config.to_string_lossy()])?;
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
