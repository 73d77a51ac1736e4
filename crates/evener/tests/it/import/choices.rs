//! Methods, policies and routes that result from small files.

use evener::config::{self, Config};
use evener::import::{ImportReport, import};
use evener_core::farm::{Method, Service};
use evener_core::net::Encapsulation;
use evener_core::pool::HealthKind;

pub(super) fn imported(text: &str) -> (Config, ImportReport) {
    let report = import(text.as_bytes(), "f", None, None).unwrap();
    super::check_account(&report);
    let config = config::parse(&report.toml, "evener.toml");
    (config.unwrap_or_else(|why| panic!("{why}\n{}\n{:#?}", report.toml, report.left)), report)
}

pub(super) fn only(config: &Config) -> &Service {
    assert_eq!(config.services.len(), 1);
    &config.services[0]
}

/// True if the report lists a part of a line that was not imported.
pub(super) fn leaves(report: &ImportReport, text: &str) -> bool {
    report.left.iter().any(|left| left.text.contains(text))
}

pub(super) fn routes(service: &Service) -> Vec<(String, String, Vec<String>)> {
    let shown = |text: &Option<String>| text.clone().unwrap_or_default();
    let routes = service.routes.iter().map(|route| {
        let host = route.host.as_ref().map(ToString::to_string);
        let path = route.path.as_ref().map(ToString::to_string);
        (shown(&host), shown(&path), route.servers.clone())
    });
    routes.collect()
}

#[test]
fn ipvs_forwarding_gives_the_method() {
    let ways = [("-g", Method::L2), ("-m", Method::Nat), ("-i", Method::Tunnel), ("", Method::L2)];
    for (way, method) in ways {
        let text = format!("-A -t 192.0.2.1:80 -s wlc\n-a -t 192.0.2.1:80 -r 192.0.2.11:80 {way} -w 3\n");
        let (config, _) = imported(&text);
        let service = only(&config);
        assert_eq!((service.method, service.policy), (method, "least-connections"), "{way}");
        assert_eq!(service.servers[0].weight, 3);
        assert!(!service.source_nat && service.encapsulation == Encapsulation::Ipip);
    }
}

#[test]
fn ipvs_features_without_counterpart_are_left() {
    let text = "-A -t 192.0.2.1:80 -s mh -p 360 -M 255.0.255.0 --pe sip\n\
                -a -t 192.0.2.1:80 -r 192.0.2.11:8080 -m -x 100\n\
                -a -t 192.0.2.1:80 -r 192.0.2.12:80 -g\n\
                -A -f 5 -s rr\n-a -f 5 -r 192.0.2.13:80 -m\n\
                --set 900 120 300\n--start-daemon master\n";
    let (config, report) = imported(text);
    let service = only(&config);
    assert_eq!((service.servers.len(), service.servers[0].port), (1, Some(8080)));
    assert_eq!((service.timeouts.tcp_ms, service.timeouts.udp_ms), (900_000, 300_000));
    for part in ["-M 255.0", "--pe sip", "192.0.2.12", "-A -f 5", "-a -f 5", "--start-daemon"] {
        assert!(leaves(&report, part), "{part}: {:#?}", report.left);
    }
}

#[test]
fn keepalived_checks_become_probes() {
    let text = "virtual_server 192.0.2.1 80 {\n  delay_loop 10\n  lb_algo wrr\n  lb_kind DR\n  virtualhost a.example\n\
                real_server 192.0.2.11 80 {\n    weight 2\n    HTTP_GET {\n      url { path /up status_code 200 }\n\
                connect_timeout 2\n      retry 2\n    }\n  }\n  sorry_server 192.0.2.12 80\n}\n";
    let (config, report) = imported(text);
    let service = only(&config);
    assert_eq!((service.method, service.policy), (Method::L2, "round-robin"));
    let health = &service.health;
    assert_eq!((health.interval_ms, health.timeout_ms, health.fall), (10_000, 2_000, 3));
    let HealthKind::Http { path, host, status, .. } = &health.kind else { panic!("{health:?}") };
    assert_eq!((path.as_str(), host.as_deref(), &status[..]), ("/up", Some("a.example"), &[(200, 200)][..]));
    let is_backup: Vec<bool> = service.servers.iter().map(|server| server.backup).collect();
    assert!(is_backup.contains(&true) && !leaves(&report, "sorry_server"), "{is_backup:?}");
}

#[test]
fn haproxy_content_routing_is_by_handoff_and_the_rest_by_nat() {
    let backends = "backend img\n  server i1 192.0.2.12:80 check\nbackend all\n  balance leastconn\n\
                    server w1 192.0.2.11:80 check\n";
    let front = "frontend web\n  bind 192.0.2.1:80\n  mode http\n  acl h hdr(host) -i img.example\n\
                 use_backend img if h { path_beg /img/ }\n  default_backend all\n";
    let (config, _) = imported(&format!("{front}{backends}"));
    let service = only(&config);
    assert_eq!((service.method, service.policy), (Method::Handoff, "least-connections"));
    let image = ("img.example".to_owned(), "/img/*".to_owned(), vec!["i1".to_owned()]);
    assert_eq!(routes(service), [image, (String::new(), String::new(), vec!["w1".to_owned()])]);

    let tcp = "listen db\n  bind 192.0.2.1:5432\n  mode tcp\n  option tcp-check\n  timeout client 1h\n\
               server d1 192.0.2.11:5433 check inter 3s rise 4 fall 5 port 8008\n  server d2 192.0.2.12:5433 disabled\n";
    let (config, report) = imported(tcp);
    let service = only(&config);
    assert!(service.method == Method::Nat && service.source_nat);
    assert_eq!((service.health.port, service.health.rise, service.health.fall), (Some(8008), 4, 5));
    assert_eq!((service.servers[1].weight, service.timeouts.tcp_ms), (0, 3_600_000));
    assert!(report.left.is_empty(), "{:#?}", report.left);
}

#[test]
fn nginx_locations_become_routes_with_the_longest_first() {
    let text = "http {\n upstream p { server 192.0.2.11; }\n upstream i { least_conn; server 192.0.2.12 weight=2; }\n\
                server {\n  listen 192.0.2.1:80;\n  server_name www.example;\n\
                location / { proxy_pass http://p; }\n  location /img/ { proxy_pass http://i; }\n\
                location /img/big/ { proxy_pass http://p; }\n  location ~* \\.(png|jpg)$ { proxy_pass http://i; }\n\
                location = /one { proxy_pass http://i; }\n }\n}\n";
    let (config, report) = imported(text);
    let service = only(&config);
    assert_eq!(service.method, Method::Handoff);
    let paths: Vec<_> = routes(service).into_iter().map(|(_, path, _)| path).collect();
    assert_eq!(paths, ["/one", "/*.png", "/*.jpg", "/img/big/*", "/img/*", ""]);
    assert!(leaves(&report, "policy least-connections"), "{:#?}", report.left);
}

#[test]
fn nginx_streams_become_services_by_server_name() {
    let text = "stream {\n map $ssl_preread_server_name $name {\n  hostnames;\n  a.example a;\n  .b.example b;\n  default a;\n }\n\
                upstream a { server 192.0.2.11:443; }\n upstream b { server 192.0.2.12:443 down; }\n\
                server {\n  listen 192.0.2.1:443;\n  ssl_preread on;\n  proxy_pass $name;\n }\n\
                server {\n  listen 192.0.2.1:53 udp;\n  proxy_timeout 20s;\n  proxy_pass 192.0.2.13:5353;\n }\n}\n";
    let (config, report) = imported(text);
    let [tls, dns] = &config.services[..] else { panic!("{}", report.toml) };
    assert_eq!(tls.method, Method::Handoff);
    let hosts: Vec<_> = routes(tls).into_iter().map(|(host, ..)| host).collect();
    assert_eq!(hosts, ["a.example", "b.example", "*.b.example", ""]);
    assert!(dns.method == Method::Nat && dns.source_nat && dns.timeouts.udp_ms == 20_000);
    assert!(report.left.is_empty(), "{:#?}", report.left);
}

#[test]
pub(super) fn imported_text_has_no_variables() {
    let text = "listen a\n  bind 192.0.2.1:80\n  option httpchk\n  http-check expect string ${HOME}\n\
                server s 192.0.2.11:80 check\n";
    let (config, _) = imported(text);
    let HealthKind::Http { body, .. } = &only(&config).health.kind else { panic!("{config:?}") };
    assert_eq!(body.as_deref(), Some("${HOME}"));
}
