//! Parts of a file that would change their meaning, or be gone, if they were read carelessly.

use std::fs;
use std::path::Path;

use evener::import::{ImportReport, import};
use evener_core::pool::HealthKind;

use super::choices::{imported, leaves, only, routes};

/// Whether a part of a line is left with a reason that has these words.
fn leaves_for(report: &ImportReport, text: &str, why: &str) -> bool {
    report.left.iter().any(|left| left.text.contains(text) && left.why.contains(why))
}

#[test]
fn servers_that_are_switched_off_stay_so_whatever_their_weight() {
    let text = "listen a\n  bind 192.0.2.1:80\n  default-server disabled\n\
                server s1 192.0.2.11:80 disabled weight 10\n  server s2 192.0.2.12:80 weight 10\n\
                server s3 192.0.2.13:80 weight 10 enabled\n";
    let (config, report) = imported(text);
    let weights: Vec<_> = only(&config).servers.iter().map(|server| server.weight).collect();
    assert_eq!(weights, [0, 0, 10], "{}", report.toml);
    let text = "stream {\n upstream u {\n  server 192.0.2.11:80 down weight=5;\n  server 192.0.2.12:80 weight=5;\n }\n\
                server {\n  listen 192.0.2.1:80;\n  proxy_pass u;\n }\n}\n";
    let (config, _) = imported(text);
    let weights: Vec<_> = only(&config).servers.iter().map(|server| server.weight).collect();
    assert_eq!(weights, [0, 5]);
}

#[test]
fn nginx_files_may_be_included_twice_but_not_in_themselves() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("included-twice");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("params"), "proxy_set_header Host $host;\n").unwrap();
    fs::write(folder.join("loop"), "include loop;\n").unwrap();
    let text = "server {\n  listen 192.0.2.1:80;\n\
                location /a {\n  include params;\n  proxy_pass http://192.0.2.11;\n }\n\
                location /b {\n  include params;\n  proxy_pass http://192.0.2.12;\n }\n}\n";
    let report = import(text.as_bytes(), "nginx.conf", Some(&folder), None).unwrap();
    super::check_account(&report);
    super::check_toml(&report);
    assert_eq!(report.left.iter().filter(|left| left.text.contains("proxy_set_header")).count(), 2);
    let error = import(b"events { }\ninclude loop;\n", "nginx.conf", Some(&folder), None).unwrap_err();
    assert!(error.line == 1 && error.why.contains("includes itself"), "{error:?}");
}

#[test]
fn haproxy_ports_are_read_as_haproxy_does() {
    let text = "listen a\n  bind 2001:db8::1:80\n  bind 192.0.2.1:81-90\n\
                server s1 2001:db8::10:8080\n  server s2 [2001:db8::11]:+1000\n";
    let (config, report) = imported(text);
    let service = only(&config);
    assert_eq!(service.addresses[0].to_string(), "[2001:db8::1]:80");
    assert_eq!((service.servers.len(), service.servers[0].port), (1, Some(8080)));
    assert!(leaves_for(&report, "server s2", "plus or minus"), "{:#?}", report.left);
    assert!(leaves_for(&report, "192.0.2.1:81-90", "ports of its own"), "{:#?}", report.left);
}

#[test]
fn haproxy_limit_of_a_server_stands_before_the_default() {
    let text = "listen a\n  bind 192.0.2.1:80\n  default-server maxconn 100\n\
                server s1 192.0.2.11:80 maxconn 200\n  server s2 192.0.2.12:80\n";
    let (config, report) = imported(text);
    let most: Vec<_> = only(&config).servers.iter().map(|server| server.max_connections).collect();
    assert_eq!(most, [200, 100], "{}", report.toml);
}

#[test]
fn keepalived_retries_of_any_number_are_read() {
    let text = "virtual_server 192.0.2.1 80 {\n  real_server 192.0.2.11 80 {\n    TCP_CHECK {\n\
                retry 18446744073709551615\n    }\n  }\n}\n";
    let (config, _) = imported(text);
    assert_eq!(only(&config).health.fall, 100);
}
