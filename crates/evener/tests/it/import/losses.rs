//! Parts of a file that a careless importer would change or lose.

use std::fs;
use std::path::Path;

use evener::import::{ImportReport, import};
use evener_core::pool::HealthKind;

use super::choices::{imported, leaves, only, routes};

/// True if the report lists a part of a line that was not imported, for a reason with these words.
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

/// Returns a frontend with rules for these backends and a default backend.
fn content(backends: usize, rules: usize) -> String {
    let mut text = "frontend f\n  bind 192.0.2.1:80\n  mode http\n  default_backend all\n".to_owned();
    for rule in 0..rules {
        text.push_str(&format!("  use_backend b{} if {{ path /{rule} }}\n", rule % backends));
    }
    text.push_str("backend all\n  server all 192.0.2.250:80\n");
    for backend in 0..backends {
        text.push_str(&format!("backend b{backend}\n  server s{backend} 192.0.2.{}:80\n", backend + 2));
    }
    text
}

#[test]
fn routes_are_counted_by_their_sets_and_the_last_one_stays() {
    let (config, report) = imported(&content(2, 300));
    let all = routes(only(&config));
    assert_eq!((all.len(), all.last().unwrap().2.clone()), (301, vec!["all".to_owned()]));
    assert!(report.left.iter().all(|left| !left.text.contains("use_backend")), "{:#?}", report.left);

    let (config, report) = imported(&content(100, 100));
    let all = routes(only(&config));
    assert_eq!((all.len(), all.last().unwrap().2.clone()), (63, vec!["all".to_owned()]));
    let rules = report.left.iter().filter(|left| left.text.contains("use_backend"));
    assert_eq!(rules.filter(|left| left.why.contains("sets of servers")).count(), 38);
}

#[test]
fn without_room_for_sets_a_service_has_the_servers_of_its_default() {
    let mut text = content(2, 2);
    (1..64).for_each(|at| {
        text.push_str(&format!("listen l{at}\n  bind 192.0.2.2:{at}\n  server s 192.0.2.9:80\n"))
    });
    let (config, report) = imported(&text);
    assert_eq!(config.services.len(), 64);
    let servers: Vec<_> =
        config.services[0].servers.iter().map(|server| server.address.to_string()).collect();
    assert!(servers == ["192.0.2.250"] && config.services[0].routes.is_empty(), "{}", report.toml);
    for part in ["use_backend b0", "use_backend b1", "server s0"] {
        assert!(leaves_for(&report, part, "sets of servers"), "{part}: {:#?}", report.left);
    }
}

#[test]
fn parts_of_a_line_that_is_still_in_use_are_named() {
    let addresses = "virtual_server_group g {\n  192.0.2.1-100 80\n}\nvirtual_server group g {\n  lb_kind DR\n\
                     real_server 198.51.100.1 80 {\n  }\n}\n";
    let (config, report) = imported(addresses);
    assert_eq!(only(&config).addresses.len(), 64);
    assert!(
        leaves_for(&report, "36 parts of it: address 192.0.2.65:80", "64 addresses"),
        "{:#?}",
        report.left
    );

    let binds = "frontend f\n  bind 192.0.2.1:80,[2001:db8::1]:80\n  default_backend b\n\
                 backend b\n  server s 192.0.2.11:80\n";
    let (config, report) = imported(binds);
    assert_eq!(only(&config).addresses.len(), 1);
    assert!(leaves(&report, "address [2001:db8::1]:80"), "{:#?}", report.left);
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
fn haproxy_settings_that_differ_between_servers_and_backends_are_named() {
    let text = "frontend f\n  bind 192.0.2.1:80\n  mode http\n  use_backend b if { path /b }\n  default_backend a\n\
                backend a\n  server a1 192.0.2.11:80 check slowstart 30s agent-check agent-port 9000\n\
                server a2 192.0.2.12:80 check slowstart 60s agent-check agent-port 9001\n\
                backend b\n  server b1 192.0.2.13:80 check slowstart 90s\n";
    let (config, report) = imported(text);
    assert_eq!(only(&config).slow_start_ms, 30_000);
    for part in ["its own slow start", "its own agent-check", "the slow start of", "the reports of"] {
        assert!(leaves_for(&report, part, "one slow start"), "{part}: {:#?}", report.left);
    }
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
fn haproxy_rules_behind_an_unconditional_one_never_count() {
    let text = "frontend f\n  bind 192.0.2.1:80\n  mode http\n  use_backend a\n  use_backend b if { path /b }\n\
                default_backend b\nbackend a\n  server a 192.0.2.11:80\nbackend b\n  server b 192.0.2.12:80\n";
    let (config, report) = imported(text);
    assert_eq!(only(&config).servers[0].address.to_string(), "192.0.2.11");
    for line in ["use_backend b if", "default_backend b"] {
        assert!(leaves_for(&report, line, "matches all of its requests"), "{line}: {:#?}", report.left);
    }
}

#[test]
fn haproxy_check_by_http_is_undone_by_no() {
    let text = "defaults\n  option httpchk GET /up\nlisten a\n  bind 192.0.2.1:80\n  no option httpchk\n\
                server s 192.0.2.11:80 check\n";
    let (config, report) = imported(text);
    assert!(matches!(only(&config).health.kind, HealthKind::Tcp), "{}", report.toml);
    assert!(leaves(&report, "option httpchk GET /up"), "{:#?}", report.left);
}

#[test]
fn haproxy_paths_in_any_case_are_named() {
    let text = "frontend f\n  bind 192.0.2.1:80\n  mode http\n  use_backend b if { path_beg -i /b }\n\
                default_backend a\nbackend a\n  server a 192.0.2.11:80\nbackend b\n  server b 192.0.2.12:80\n";
    let (_, report) = imported(text);
    assert!(leaves_for(&report, "-i", "case of paths"), "{:#?}", report.left);
}

#[test]
fn keepalived_retries_of_any_number_are_read() {
    let text = "virtual_server 192.0.2.1 80 {\n  real_server 192.0.2.11 80 {\n    TCP_CHECK {\n\
                retry 18446744073709551615\n    }\n  }\n}\n";
    let (config, _) = imported(text);
    assert_eq!(only(&config).health.fall, 100);
}

#[test]
fn haproxy_server_of_two_backends_is_one_with_both_lines() {
    let text = "frontend web\n  bind 192.0.2.100:80\n  mode http\n\
                use_backend img if { hdr(host) -i img.example.com } { path_beg /img/ }\n  default_backend all\n\
                backend img\n  server img1 192.0.2.12:80 check inter 2s weight 5\n\
                backend all\n  server web1 192.0.2.11:80 check inter 2s\n  server img1 192.0.2.12:80 check inter 2s\n\
                server img2 192.0.2.12:80 check inter 2s\n";
    let (config, report) = imported(text);
    assert_eq!(only(&config).servers.len(), 2);
    assert!(report.carried.contains(&7) && leaves_for(&report, "weight 5", "one weight"));
    assert!(leaves_for(&report, "server img2", "already") && report.left.len() == 2, "{:#?}", report.left);
}
