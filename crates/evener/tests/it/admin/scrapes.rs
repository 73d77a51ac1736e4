//! Metrics as a scraper reads them.

use super::*;

/// Returns the samples by name with labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let bare = name.split('{').next().unwrap();
        assert!(bare.starts_with("evener_") || bare.starts_with("process_"), "{line}");
        assert!(bare.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{line}");
        assert!(name == bare || name.ends_with("\"}"), "{line}");
        let before = found.insert(name.to_owned(), value.parse().unwrap());
        assert!(before.is_none(), "{line} is there twice");
    }
    found
}

#[test]
fn metrics_are_the_views() {
    let text = metrics::text(scraped(), Format::OpenMetrics);
    assert!(text.ends_with("# EOF\n"));
    let expected = [
        ("evener_build_info{version=\"0.1.0\"}", 1.0),
        ("evener_engine_info{engine=\"xdp\"}", 1.0),
        ("evener_uptime_seconds", 93_784.0),
        ("evener_engine_adopted", 1.0),
        ("evener_sessions", 12_345.0),
        ("evener_sessions_assured", 12_300.0),
        ("evener_sessions_embryonic", 45.0),
        ("evener_sessions_max", 1_000_000.0),
        ("evener_session_slots", 2_097_152.0),
        ("evener_session_slots_max", 2_097_152.0),
        ("evener_sessions_resizing", 0.0),
        ("evener_peer_datagrams_total{outcome=\"accepted\"}", 77.0),
        ("evener_peer_datagrams_total{outcome=\"forged\"}", 3.0),
        ("evener_host_up{host=\"web2\"}", 1.0),
        ("evener_host_load{host=\"web2\"}", 17.0),
        ("evener_host_addresses{host=\"web2\"}", 1.0),
        ("evener_host_refused{host=\"web2\",reason=\"version\"}", 1.0),
        ("evener_node_up{node=\"192.0.2.11\"}", 1.0),
        ("evener_node_up{node=\"192.0.2.12\"}", 0.0),
        ("evener_node_refused{node=\"192.0.2.12\",reason=\"key\"}", 1.0),
        ("evener_reloads_total", 3.0),
        ("evener_events_total{event=\"server_down\"}", 4.0),
        ("evener_events_lost_total", 5.0),
        ("evener_generation", 17.0),
        ("evener_generation_wanted", 18.0),
        ("evener_config_loaded_timestamp_seconds", 1_700_000_060.5),
        ("process_open_fds", 12.0),
        ("process_start_time_seconds", 1_700_000_000.25),
        ("process_cpu_seconds_total", 0.0),
        ("evener_server_probe_failures_total{service=\"web\",server=\"web2\"}", 9.0),
        ("evener_server_state_changes_total{service=\"web\",server=\"web2\"}", 3.0),
        ("evener_access_log_written_total", 12.0),
        ("evener_access_log_lost_total", 1.0),
        ("evener_handoff_decision_seconds_count{mechanism=\"kernel\"}", 5.0),
        ("evener_handoff_decision_seconds_sum{mechanism=\"kernel\"}", 0.25),
        ("evener_handoff_decision_seconds_bucket{le=\"0.000001\",mechanism=\"kernel\"}", 3.0),
        ("evener_handoff_decision_seconds_bucket{le=\"0.1\",mechanism=\"kernel\"}", 4.0),
        ("evener_handoff_decision_seconds_bucket{le=\"+Inf\",mechanism=\"kernel\"}", 5.0),
        ("evener_reloads_refused_total", 2.0),
        ("evener_config_last_reload_failed", 1.0),
        ("evener_up_servers", 1.0),
        ("evener_packets_total{reason=\"forwarded\"}", 1_234_567.0),
        ("evener_packets_total{reason=\"fragment\"}", 0.0),
        ("evener_tunnel_packets_total{reason=\"forged_mark\"}", 4.0),
        ("evener_arp_refused_total{reason=\"own_mac\"}", 2.0),
        ("evener_service_servers{service=\"web\"}", 3.0),
        ("evener_service_servers_up{service=\"web\"}", 1.0),
        ("evener_service_degraded{service=\"web\"}", 0.0),
        ("evener_service_bytes_total{service=\"web\"}", 987_654_321.0),
        ("evener_service_cookies_bad_total{service=\"web\"}", 7.0),
        ("evener_service_cookies_unchecked_total{service=\"web\"}", 5.0),
        ("evener_server_up{service=\"web\",server=\"web2\"}", 0.0),
        ("evener_server_up{service=\"web\",server=\"02:00:00:00:00:0a\"}", 1.0),
        ("evener_server_draining{service=\"web\",server=\"caf\u{e9} \\\"1\\\"\"}", 1.0),
        ("evener_server_connections_total{service=\"web\",server=\"web2\"}", 100.0),
        ("evener_server_packets_total{service=\"web\",server=\"web2\"}", 1_000.0),
        ("evener_server_weight{service=\"web\",server=\"web2\"}", 1.0),
        ("evener_server_probe_seconds{service=\"web\",server=\"02:00:00:00:00:0a\"}", 0.000_42),
    ];
    let samples = samples(&text);
    for (name, value) in expected {
        assert_eq!(samples.get(name), Some(&value), "{name} in\n{text}");
    }
    assert_eq!(samples.keys().filter(|name| name.starts_with("evener_server_probe_seconds")).count(), 1);
}

/// Returns head and text of a scrape with this `Accept` field.
fn scrape(daemon: &Daemon, accept: &str) -> (String, String) {
    let accept = if accept.is_empty() { String::new() } else { format!("Accept: {accept}\r\n") };
    say(
        TcpStream::connect(daemon.tcp).unwrap(),
        &format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}"),
    )
}

#[test]
fn metrics_format_follows_accept_header() {
    let daemon = Daemon::start();
    let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                      application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for (accept, open) in [
        ("", false),
        ("*/*", false),
        ("text/plain", false),
        ("text/html, */*;q=0.1", false),
        (prometheus, true),
        ("application/openmetrics-text", true),
        ("Application/OpenMetrics-Text; version=1.0.0", true),
        ("application/openmetrics-text;q=0", false),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", false),
        ("application/openmetrics-text;q=much", false),
    ] {
        let (head, text) = scrape(&daemon, accept);
        let kind =
            if open { "application/openmetrics-text; version=1.0.0" } else { "text/plain; version=0.0.4" };
        assert!(head.contains(&format!("Content-Type: {kind}; charset=utf-8")), "{accept}: {head}");
        assert!(head.contains("Vary: accept"), "{accept}: {head}");
        assert_eq!(text.ends_with("# EOF\n"), open, "{accept}");
    }
}

/// Both formats have the same samples with the same types, and each sample follows the type line of
/// its family.
#[test]
fn both_metric_formats_have_the_same_values() {
    let [open, plain] = [Format::OpenMetrics, Format::Text].map(|format| metrics::text(scraped(), format));
    assert_eq!(samples(&open), samples(&plain));
    let (mut family, mut kind, mut told) = ("", "", Vec::new());
    for line in plain.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, about] => {
                assert!(!about.is_empty(), "{line}");
                family = name;
            }
            ["#", "TYPE", name, of] => {
                assert_eq!(name, family, "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&of), "{line}");
                assert!(!told.contains(&name), "{line} comes twice");
                kind = of;
                told.push(name);
            }
            ["#", ..] => panic!("{line} is nothing that this format has"),
            _ => {
                let name = line.split(['{', ' ']).next().unwrap();
                let suffixes: &[&str] =
                    if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(
                    suffixes.iter().any(|suffix| name == format!("{family}{suffix}")),
                    "{line} in {family}"
                );
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line} is a {kind}");
            }
        }
    }
}
