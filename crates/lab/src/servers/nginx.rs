//! Real web servers: nginx, one on each server host.
//!
//! Every response names its server in `X-Server`, and so does the body of `/who`. `/0k`, `/2k`,
//! `/108k` and `/big` are files of that many bytes (1 KB = 1000 bytes, as in the papers). They
//! repeat [`PATTERN`], so that a client can check every byte. A file uploaded below `/upload/` to
//! one server is available on all. `/healthz` can be made to fail.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::farm::{Farm, WEB_PORT};
use crate::harness::cleanup;
use crate::harness::process::Proc;
use crate::network::host::{Host, write};

/// Second port of the web servers, for services with another port than their servers.
pub const OTHER_PORT: u16 = 8080;
pub const PATTERN: &[u8; 64] = include_bytes!("pattern.txt");

/// Length of the file `/big` in bytes.
pub const BIG_LEN: usize = 16_000_000;
/// Files, by name and length in bytes.
pub const PAGES: [(&str, usize); 4] = [("0k", 0), ("2k", 2_000), ("108k", 108_000), ("big", BIG_LEN)];

/// Prefix of files that are named by their length, see [`write_by_length`].
pub const BY_LENGTH: &str = "bytes/";

/// Writes the files that all servers of a farm serve.
pub(crate) fn write_pages(files: &Path) -> Result<()> {
    let pages = files.join("pages");
    fs::create_dir_all(&pages)?;
    PAGES.iter().try_for_each(|(name, len)| link_page(&pages.join(name), *len))
}

/// Links a farm's file to a file that all farms of this process share, since long files take a
/// while to write.
fn link_page(path: &Path, len: usize) -> Result<()> {
    let shared = cleanup::shared_file(&format!("page-{len}"), |file| write_page(file, len))?;
    fs::hard_link(&shared, path).with_context(|| format!("Linking {} failed", path.display()))
}

/// Adds files of these lengths to all servers of a farm, as `/bytes/` and the length.
pub fn write_by_length(farm: &Farm, lengths: &[usize]) -> Result<()> {
    lengths.iter().try_for_each(|len| write_page(&farm.page(&format!("{BY_LENGTH}{len}")), *len))
}

/// Writes a file that repeats [`PATTERN`], with the folders that it needs.
pub(crate) fn write_page(path: &Path, len: usize) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("Making {} failed", folder.display()))?;
    }
    let mut bytes = PATTERN.repeat(len.div_ceil(PATTERN.len()));
    bytes.truncate(len);
    write(path, bytes)
}

pub(crate) fn start(host: &Host) -> Result<Proc> {
    let config = host.write("nginx.conf", &config(host))?;
    let config = config.to_string_lossy();
    host.spawn("nginx", &["nginx", "-c", &config])
}

/// Waits until the host's web server accepts connections.
pub(crate) fn wait_until_listening(host: &Host, nginx: &mut Proc) -> Result<()> {
    nginx.wait_until_listening(host, (host.address(), WEB_PORT).into())
}

/// Makes `/healthz` of a host return 200 or 503.
pub(crate) fn set_healthy(host: &Host, healthy: bool) -> Result<()> {
    let sick = host.file("sick");
    if !healthy {
        return write(&sick, "");
    }
    if sick.exists() {
        fs::remove_file(&sick).with_context(|| format!("Removing {} failed", sick.display()))?;
    }
    Ok(())
}

/// Returns the configuration: one process, so that its end is the server's end, and no limit for
/// idle connections.
fn config(host: &Host) -> String {
    let name = host.name();
    let pages = host.files.join("pages");
    let pages = pages.display();
    let sick = host.file("sick");
    let sick = sick.display();
    let temporary = host.file("nginx");
    let temporary = temporary.display();
    format!(
        r#"daemon off;
master_process off;
worker_processes 1;
worker_rlimit_nofile 65536;
error_log stderr warn;
pid {temporary}.pid;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 600s;
    keepalive_requests 1000000000;
    client_body_temp_path {temporary}.body;
    proxy_temp_path {temporary}.proxy;
    fastcgi_temp_path {temporary}.fastcgi;
    uwsgi_temp_path {temporary}.uwsgi;
    scgi_temp_path {temporary}.scgi;
    default_type text/plain;
    server {{
        listen {WEB_PORT} backlog=4096;
        listen [::]:{WEB_PORT} backlog=4096 ipv6only=on;
        listen {OTHER_PORT} backlog=4096;
        listen [::]:{OTHER_PORT} backlog=4096 ipv6only=on;
        root {pages};
        add_header X-Server {name} always;
        location / {{ open_file_cache max=16; }}
        location /upload/ {{ dav_methods PUT; create_full_put_path on; client_max_body_size 100m; }}
        location = /who {{ return 200 "{name}\n"; }}
        location = /healthz {{
            if (-f {sick}) {{ return 503 "sick\n"; }}
            return 200 "ok\n";
        }}
    }}
}}
"#
    )
}
