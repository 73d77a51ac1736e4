//! Unmodified web servers of several kinds accept handed-off connections.

use anyhow::{Context, Result};
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::network::family::Family;
use evener_lab::servers::nginx::OTHER_PORT;
use evener_lab::servers::nginx_tls;
use evener_lab::servers::other_web_servers;
use evener_lab::workloads::load::Load;

use crate::talk::{Talk, get};
use crate::unbroken;

on_one_engine! {
    apache_serves,
    caddy_serves,
    caddy_serves_encrypted,
    servers_are_probed_at_another_port,
}

fn servers_are_probed_at_another_port(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let offer = Offer::new(engine, 2, &[route("path = \"/*\"", &["web1", "web2"])]);
    let health = offer.health.clone() + &format!("port = {OTHER_PORT}\n");
    // This call waits until all servers are up.
    let handoff = Handoff::start(farm, Offer { health, ..offer })?;
    let client = handoff.client();
    assert!(client.curl(&[&format!("http://{}/who", handoff.service(Family::V4))])?.starts_with("web"));
    Ok(())
}

/// Apache with its default of one socket for both IP versions.
fn apache_serves(engine: &str) -> Result<()> {
    if !other_web_servers::apache_is_there() {
        return Ok(());
    }
    let mut farm = Farm::builder().bare().servers(2).build()?;
    farm.stop_web(1)?;
    let _apache = other_web_servers::apache(farm.server(1), &farm)?;
    files_come_whole(engine, farm)
}

/// Caddy uses Go's network stack, with one socket for both IP versions.
fn caddy_serves(engine: &str) -> Result<()> {
    if !other_web_servers::caddy_is_there() {
        return Ok(());
    }
    let mut farm = Farm::builder().bare().servers(2).build()?;
    farm.stop_web(1)?;
    let _caddy = other_web_servers::caddy(farm.server(1), WEB_PORT, &other_web_servers::site(&farm, ""))?;
    files_come_whole(engine, farm)
}

/// HTTP/1 and HTTP/2 over TLS, routed by the server name in the ClientHello.
fn caddy_serves_encrypted(engine: &str) -> Result<()> {
    if !other_web_servers::caddy_is_there() {
        return Ok(());
    }
    let farm = Farm::builder().bare().servers(1).build()?;
    let host = farm.server(0);
    let [key, certificate] = nginx_tls::certificate(host)?;
    let _caddy = other_web_servers::caddy(
        host,
        nginx_tls::PORT,
        &other_web_servers::site(&farm, &format!("tls {certificate} {key}\n")),
    )?;
    let routes = [route("host = \"www.example.com\"", &["web1"])];
    let offer = Offer { health: HEALTH.to_owned(), port: nginx_tls::PORT, ..Offer::new(engine, 1, &routes) };
    let handoff = Handoff::start(farm, offer)?;
    let right = std::fs::read_to_string(handoff.farm.page("108k"))?;
    for family in Family::BOTH {
        let service = handoff.service(family);
        for version in ["--http1.1", "--http2"] {
            let (url, connect_to) = ("https://www.example.com/108k", format!("::{service}"));
            // Two requests on one connection.
            let words = ["--insecure", version, "--connect-to", &connect_to, url, url];
            let what = || format!("{family}, {version}");
            let body = handoff.client().curl(&words).with_context(what)?;
            assert!(body == right.repeat(2), "{}: other bytes came", what());
            let version_of = ["--write-out", "%{http_version}", "--output", "/dev/null"];
            let found = handoff.client().curl(&[&words[..5], &version_of].concat())?;
            assert_eq!(found.starts_with('2'), version == "--http2", "{}: HTTP/{found}", what());
        }
    }
    Ok(())
}

/// Downloads files from `web2`, by routes of the data plane and of user space, on new and on
/// persistent connections.
fn files_come_whole(engine: &str, farm: Farm) -> Result<()> {
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
        talk.send_slowly(get("x", "/2k"), 9)?;
        assert_eq!(talk.reply()?.server, "web2");
    }
    Ok(())
}

const HEALTH: &str = "[service.health]\nkind = \"tcp\"\ninterval = \"500ms\"\n";
