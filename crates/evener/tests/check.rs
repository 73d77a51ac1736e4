//! `evener check`: what it says of each file under `check/`, word for word.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;

use evener::config::{self, EngineKind};
use evener_core::farm::{Discover, HealthKind};

#[test]
fn says_what_is_wrong_and_what_to_write_instead() {
    trycmd::TestCases::new().case("tests/check/*.trycmd");
}

#[test]
fn every_file_has_an_expectation() {
    for entry in fs::read_dir("tests/check").unwrap() {
        let path = entry.unwrap().path();
        let said = path.with_extension("trycmd");
        assert!(said.exists(), "{} has no expectation: add {}", path.display(), said.display());
    }
}

#[test]
fn the_example_shows_the_defaults() {
    let example = config::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evener.example.toml"));
    // what has no default, and what the example shows instead of leaving it out
    let same = config::parse(
        r#"
        engine.threads = 2
        farm.secret_file = "/etc/evener/farm.key"
        [[service]]
        name = "web"
        address = "192.0.2.100:80"
        health = { kind = "http", path = "/healthz", host = "www.example.com", body = "ok", port = 8080 }
        server = [
            { name = "web1", address = "192.0.2.11", mac = "02:00:5e:10:00:01" },
            { name = "web2", address = "192.0.2.12", weight = 2 },
        ]
        [[service]]
        name = "found"
        addresses = ["192.0.2.101:80", "192.0.2.101:443"]
        discover = "arp"
        allow = ["02:00:5e:10:00:01", "192.0.2.12"]
        "#,
        "same.toml",
    );
    assert_eq!(example.unwrap(), same.unwrap());
}

#[test]
fn three_lines_make_a_farm() {
    let config = config::load(Path::new("tests/check/lsmac.toml")).unwrap();
    assert_eq!(config.engine.kind, EngineKind::Auto);
    assert_eq!(config.admin.listen, Some("127.0.0.1:9180".parse().unwrap()));
    let [service] = config.services.try_into().unwrap();
    assert_eq!(service.name, "192.0.2.100:80");
    assert_eq!((service.discover, service.announce), (Some(Discover::Arp), false));
    assert_eq!((service.policy, service.health.kind), ("round-robin", HealthKind::Tcp));
}

#[test]
fn the_kind_of_probe_follows_the_protocol() {
    let text = "[[service]]\naddress = '192.0.2.100:53'\nprotocol = 'udp'\ndiscover = 'arp'";
    let config = config::parse(text, "udp.toml").unwrap();
    assert_eq!(config.services[0].health.kind, HealthKind::Arp);
}

#[test]
fn a_short_interval_shortens_the_timeout() {
    let text = "[[service]]\naddress = '192.0.2.100:80'\ndiscover = 'arp'\nhealth.interval = '500ms'";
    let config = config::parse(text, "short.toml").unwrap();
    assert_eq!(config.services[0].health.timeout_ms, 250);
}

#[test]
fn the_admin_address_can_be_left_out() {
    let text = "admin.listen = 'none'\n[[service]]\naddress = '192.0.2.100:80'\ndiscover = 'arp'";
    assert_eq!(config::parse(text, "quiet.toml").unwrap().admin.listen, None);
}

#[test]
fn there_is_a_limit_to_addresses() {
    let farm = |count: usize| {
        let addresses: Vec<_> = (1..=count).map(|i| format!("'192.0.2.{i}:80'")).collect();
        let text = format!("[[service]]\ndiscover = 'arp'\naddresses = [{}]", addresses.join(","));
        config::parse(&text, "many.toml")
    };
    assert_eq!(farm(64).unwrap().services[0].addresses.len(), 64);
    assert!(farm(65).unwrap_err().to_string().contains("65 addresses with port together"));
}

#[test]
fn there_is_a_limit_to_servers() {
    let farm = |count: usize| {
        let servers: String =
            (0..count).map(|i| format!("{{ address = '10.0.{}.{}' }},", i / 250, i % 250 + 1)).collect();
        let text = format!("[[service]]\naddress = '192.0.2.100:80'\nserver = [{servers}]");
        config::parse(&text, "many.toml")
    };
    assert_eq!(farm(256).unwrap().services[0].servers.len(), 256);
    assert!(farm(257).unwrap_err().to_string().contains("lists 257 servers"));
}
