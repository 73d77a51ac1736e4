//! `evener check`: the exact output for each file under `check/`.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use evener::config::{self, AgentListen, Config, EngineKind, Problems, XdpMode};
use evener_core::farm::group::LoadReading;
use evener_core::farm::{Announce, Discover, METHOD_NAMES, Method};
use evener_core::net::Encapsulation;
use evener_core::net::http::RedirectStatus;
use evener_core::path::tables::RehandoffMode;
use evener_core::pool::HealthKind;

use super::tree::root;

/// A valid file that an `[agent]` table can follow.
const AGENT_FILE: &str = "[[service]]\naddress = '192.0.2.100:80'\ndiscover = 'arp'\n";

#[test]
fn check_reports_problem_and_fix() {
    trycmd::TestCases::new().case("tests/check/*.trycmd");
}

#[test]
fn every_file_has_an_expectation() {
    for entry in fs::read_dir("tests/check").unwrap() {
        let path = entry.unwrap().path();
        let expected = path.with_extension("trycmd");
        assert!(expected.exists(), "{} has no expectation: add {}", path.display(), expected.display());
    }
}

#[test]
fn the_example_shows_the_defaults() {
    let example = config::load(&root().join("evener.example.toml"));
    // Sets keys without a default, and keys for which the example shows a value other than the
    // default.
    let same = config::parse(
        r#"
        engine.threads = 2
        admin.token_file = "/etc/evener/admin.token"
        admin.hosts = ["lb1.example.com"]
        admin.tls.certificate = "/etc/evener/admin.pem"
        admin.tls.key = "/etc/evener/admin.key"
        admin.tls.client_ca = "/etc/evener/operators-ca.pem"
        admin.tls.certificates_file = "/etc/evener/operators"
        log.access = "/var/log/evener/access.log"
        farm.secret_file = "/etc/evener/farm.key"
        agent.status_url = "http://127.0.0.1/nginx_status"
        agent.cgroup = "/sys/fs/cgroup/system.slice/nginx.service"
        agent.member.group = "http://192.0.2.120:8080"
        agent.member.url = "http://192.0.2.31:8080"
        agent.member.path = "/img/*"
        agent.member.host = "img.example.com"
        agent.member.control = "http://192.0.2.31:9183/"
        agent.member.token_file = "/etc/evener/member.token"
        agent.member.ca = "/etc/evener/ca.pem"
        agent.member.tls = { certificate = "/etc/evener/member.pem", key = "/etc/evener/member.key" }
        farm.directors = ["192.0.2.2", "2001:db8::2"]
        farm.dispatcher = "192.0.2.3"
        [[service]]
        name = "web"
        address = "192.0.2.100:80"
        affinity = "10m"
        health = { kind = "http", path = "/healthz", host = "www.example.com", body = "ok", port = 8080, fast_interval = "200ms" }
        report = {}
        server = [
            { name = "web1", address = "192.0.2.11", mac = "02:00:5e:10:00:01" },
            { name = "web2", address = "192.0.2.12", weight = 2 },
        ]
        [[service]]
        name = "shop"
        address = "192.0.2.110:80"
        method = "nat"
        server = [{ address = "10.0.0.5", port = 8080 }, { address = "10.0.0.6:8080", health_address = "10.9.0.6" }]
        health = { kind = "https", name = "shop.example.com", ca = "/etc/evener/ca.pem" }
        [[service]]
        name = "far"
        address = "[2001:db8::111]:443"
        method = "tunnel"
        mtu = 1400
        server = [{ address = "198.51.100.5" }]
        [[service]]
        name = "everywhere"
        addresses = ["192.0.2.121:80", "192.0.2.122:80", "[2001:db8::122]:80"]
        placement = "every-host"
        policy = "hash"
        server = [
            { name = "host1", address = "192.0.2.31", publish = ["192.0.2.121"] },
            { name = "host2", address = "192.0.2.32", publish = ["192.0.2.122", "2001:db8::122"], weight = 0 },
        ]
        [[service]]
        name = "pages"
        address = "192.0.2.130:80"
        method = "handoff"
        proxy_protocol_port = 8081
        mtu = 1400
        server = [{ name = "page1", address = "192.0.2.41" }, { name = "image1", address = "198.51.100.42" }]
        route = [
            { host = "img.example.com", servers = ["image1"] },
            { host = "*.example.com", path = "/img/*", methods = ["GET", "HEAD"], servers = ["image1"] },
        ]
        [[service]]
        name = "group"
        address = "192.0.2.120:8080"
        method = "redirect"
        group.token_file = "/etc/evener/shop.tokens"
        tls = { certificate = "/etc/evener/shop.pem", key = "/etc/evener/shop.key" }
        server = [{ name = "m1", url = "http://192.0.2.31:8080", control = "http://192.0.2.31:8081", health_address = "192.0.2.131" }]
        [[service]]
        name = "found"
        addresses = ["192.0.2.101:80", "192.0.2.101:443"]
        discover = "arp"
        allow = ["02:00:5e:10:00:01", "192.0.2.12"]
        [dns]
        listen = "192.0.2.53:53"
        nsid = "lb1"
        cookie_secret_file = "/etc/evener/cookie.secrets"
        zone = [{ name = "example.com", file = "/etc/evener/example.com.zone" }]
        [[dns.name]]
        name = "www.example.com"
        services = "web"
        alpn = ["h2", "http/1.1"]
        rank_file = "/run/evener/www.ranks"
        gdnsd_file = "/run/evener/www.states"
        [[dns.name]]
        name = "far.example.com"
        servers = "198.51.100.61:8080"
        policy = "expected-delay"
        report = {}
        server = [{ name = "london", address = "203.0.113.62", weight = 2, health_address = "198.51.100.62" }]
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
    assert_eq!((service.discover, service.announce), (Some(Discover::Arp), Announce::Never));
    assert_eq!((service.policy, service.health.kind), ("power-of-two", HealthKind::Tcp));
}

#[test]
fn the_kind_of_probe_follows_the_protocol() {
    let text = "[[service]]\naddress = '192.0.2.100:53'\nprotocol = 'udp'\ndiscover = 'arp'";
    let config = config::parse(text, "udp.toml").unwrap();
    assert_eq!(config.services[0].health.kind, HealthKind::Arp);
}

#[test]
fn an_agent_listens_at_one_address_or_at_all() {
    let read = |keys: &str| {
        config::parse(&format!("{AGENT_FILE}[agent]\n{keys}"), "file").map(|config| config.agent)
    };
    let everywhere = AgentListen::Everywhere { port: 9183 };
    let agent = read("listen = ':9183'\nallow = ['192.0.2.0/24']").unwrap();
    assert_eq!((agent.listen, agent.allow.len()), (Some(everywhere), 1));
    let default = read("").unwrap();
    let listen = default.listen.unwrap();
    assert_eq!(listen, AgentListen::At(([127, 0, 0, 1], 9183).into()));
    assert!(!default.is_restricted(listen) && agent.is_restricted(listen));
    assert!(read("listen = ':9183'").unwrap().is_restricted(everywhere));
    for wrong in ["':0'", "':'", "':x'", "'192.0.2.1'"] {
        let problems = read(&format!("listen = {wrong}")).unwrap_err().to_string();
        assert!(problems.contains("\":9183\" for every address"), "{problems}");
    }
}

#[test]
fn hints_name_every_method() {
    let message = |method: &str| {
        let file =
            format!("[[service]]\naddress = '192.0.2.100:80'\ndiscover = 'arp'\nmethod = '{method}'\n");
        config::parse(&file, "file").unwrap_err().to_string()
    };
    assert!(message("redirectt").contains("did you mean `redirect`?"), "{}", message("redirectt"));
    let all = format!("possible here: {}", METHOD_NAMES.join(", "));
    assert!(message("teleport").contains(&all), "{}", message("teleport"));
}

#[test]
fn every_method_is_read() {
    let config = config::load(Path::new("tests/check/methods.toml")).unwrap();
    assert_eq!((config.engine.xdp_mode, config.engine.sessions6_max), (XdpMode::Tc, 500_000));
    assert_eq!(
        config.farm.directors,
        ["192.0.2.2".parse::<IpAddr>().unwrap(), "2001:db8::2".parse().unwrap()]
    );
    let [nat, dns, tunnel, found] = config.services.try_into().unwrap();
    assert_eq!((nat.method, nat.source_nat, nat.announce), (Method::Nat, true, Announce::Director));
    let servers: Vec<_> = nat.servers.iter().map(|server| (server.name.as_str(), server.port)).collect();
    let expected = [("10.0.0.5:8080", Some(8080)), ("10.0.0.5:8081", Some(8081)), ("web3", Some(8080))];
    assert_eq!(servers, expected);
    assert_eq!((dns.method, dns.source_nat, &dns.health.kind), (Method::Nat, false, &HealthKind::None));
    let names: Vec<_> = dns.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["2001:db8:5::5", "[2001:db8:5::6]:5353"]);
    assert_eq!((tunnel.method, tunnel.encapsulation), (Method::Tunnel, Encapsulation::Gue));
    assert_eq!((tunnel.tunnel_mtu, tunnel.clamp_mss), (Some(1400), false));
    assert_eq!(
        (found.method, found.announce, found.discover),
        (Method::L2, Announce::Never, Some(Discover::Arp))
    );
}

#[test]
fn later_requests_stay_by_default() {
    let later = |line: &str| {
        let text = format!(
            "farm = {{ secret_file = '/s', directors = ['192.0.2.2'] }}\n[[service]]\naddress = '192.0.2.100:80'\nmethod = 'handoff'\n{line}\n\
             [[service.server]]\naddress = '192.0.2.11'"
        );
        config::parse(&text, "later.toml").unwrap().services[0].later_requests
    };
    assert_eq!(later(""), RehandoffMode::Stay);
    assert_eq!(later("later_requests = 'stay'"), RehandoffMode::Stay);
    assert_eq!(later("later_requests = 'close'"), RehandoffMode::Close);
    assert_eq!(later("later_requests = 'rehandoff'"), RehandoffMode::Rehandoff);
}

#[test]
fn a_group_takes_no_engine() {
    let config = config::load(Path::new("tests/check/redirect.toml")).unwrap();
    assert!(!config.takes_packets() && config.services.is_empty());
    let [shop, open] = config.groups.try_into().unwrap();
    let (group, joining) = (&shop.group, shop.group.joining);
    assert_eq!(
        (group.status, group.load, group.slow_start_ms),
        (RedirectStatus::SeeOther, LoadReading::Paper, 30_000)
    );
    assert_eq!((joining.report_ms, joining.query_after_ms, joining.remove_after_ms), (5_000, 15_000, 20_000));
    let members: Vec<_> = group.members.iter().map(|member| (&*member.name, member.url.as_str())).collect();
    let expected = [("m1", "http://192.0.2.31:8080/shop"), ("[2001:db8::31]", "http://[2001:db8::31]")];
    assert_eq!(members, expected);
    assert_eq!((group.addresses.len(), group.routes.len()), (2, 1));
    assert!(open.group.members.is_empty() && open.group.joining.insecure);
    assert_eq!((open.group.name.as_str(), open.group.policy.name), ("127.0.0.1:8081", "hash"));
}

#[test]
fn routes_keep_their_order() {
    let config = config::load(Path::new("tests/check/lccp.toml")).unwrap();
    let [service] = config.services.try_into().unwrap();
    assert_eq!(
        (service.method, service.announce, service.clamp_mss),
        (Method::Handoff, Announce::Director, true)
    );
    assert_eq!((service.encapsulation, service.tunnel_mtu), (Encapsulation::Gue, Some(1400)));
    assert_eq!(service.later_requests, RehandoffMode::Close);
    assert_eq!(service.health.kind, HealthKind::Tcp);
    let text = |part: Option<String>| part.unwrap_or_default();
    let routes: Vec<_> = service
        .routes
        .iter()
        .map(|route| {
            let host = text(route.host.as_ref().map(ToString::to_string));
            let path = text(route.path.as_ref().map(ToString::to_string));
            (host, path, route.methods.join(" "), route.servers.join(" "))
        })
        .collect();
    let expected = [
        ("*.img.example.com", "", "", "img1"),
        ("img.example.com", "/img/*", "GET HEAD", "img1 web2"),
        ("", "/img/*.php", "POST", "web1"),
        ("", "/img/*", "", "web2"),
        ("", "/report-??.pdf", "", "web1"),
        ("", "", "", "web1 web2"),
    ];
    let expected = expected.map(|(host, path, methods, servers)| {
        (host.to_owned(), path.to_owned(), methods.to_owned(), servers.to_owned())
    });
    assert_eq!(routes, expected);
}

/// True if the check reports that the second route never wins after the first.
fn never_wins(first: &str, second: &str) -> bool {
    let route = |keys: &str| format!("[[service.route]]\nservers = 'a'\n{keys}\n");
    let text = format!(
        "farm = {{ secret_file = 'key', directors = ['192.0.2.2'] }}\n[[service]]\naddress = '192.0.2.100:80'\nmethod = 'handoff'\n\
         server = [{{ name = 'a', address = '192.0.2.11' }}]\n{}{}",
        route(first),
        route(second)
    );
    match config::parse(&text, "two.toml") {
        Ok(_) => false,
        Err(problems) => {
            let problems = problems.to_string();
            assert!(problems.contains("is never used") && problems.ends_with("1 error"), "{problems}");
            true
        }
    }
}

#[test]
fn route_behind_a_covering_route_is_a_problem() {
    let same = [
        ("", "host = 'a.example'"),
        ("", ""),
        ("host = '*.example'", "host = 'a.b.EXAMPLE'"),
        ("host = '*.example'", "host = '*.b.example'"),
        ("host = 'a.example'", "host = 'a.example'\npath = '/x'\nmethods = 'GET'"),
        ("path = '/*'", "path = '/'"),
        ("path = '/a/*'", "path = '/a/b/*'"),
        ("path = '/a/*'", "path = '/a/*.png'"),
        ("path = '/a/?'", "host = 'a.example'\npath = '/a/?'"),
        ("methods = ['GET', 'HEAD']", "path = '/a'\nmethods = 'HEAD'"),
    ];
    for (first, second) in same {
        assert!(never_wins(first, second), "{first:?} before {second:?}");
    }
    let other = [
        ("host = 'a.example'", "host = 'b.example'"),
        ("host = '*.a.example'", "host = 'a.example'"),
        ("host = '*.a.example'", "host = '*.example'"),
        ("host = 'a.example'", ""),
        // The first route does not match ClientHellos, which have no path.
        ("path = '/*'", "host = 'a.example'"),
        ("methods = 'GET'", ""),
        ("methods = 'GET'", "methods = ['GET', 'HEAD']"),
        ("path = '/a/*'", "path = '/a'"),
        ("path = '/a/*'", "path = '/ab/*'"),
        ("path = '/a/*.png'", "path = '/a/*'"),
        ("path = '/a*/b/*'", "path = '/a*/c'"),
        ("path = '/a?/*'", "path = '/a'"),
    ];
    for (first, second) in other {
        assert!(!never_wins(first, second), "{first:?} before {second:?}");
    }
}

#[test]
fn ipv6_sessions_have_a_quarter_of_the_room() {
    let text = "engine.sessions_max = 2048\n[[service]]\naddress = '[2001:db8::100]:80'\ndiscover = 'arp'";
    let engine = config::parse(text, "six.toml").unwrap().engine;
    assert_eq!((engine.sessions_max, engine.sessions6_max), (2048, 1024), "and never less than the least");
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

/// Returns services with `servers` servers each and the given routes.
fn routed(services: usize, servers: usize, routes: impl Fn(usize) -> String) -> Result<Config, Problems> {
    let listed: String =
        (0..servers).map(|i| format!("{{ name = 's{i}', address = '10.0.0.{}' }},", i + 1)).collect();
    let service = |number: usize| {
        format!(
            "[[service]]\naddress = '192.0.2.{}:80'\nmethod = 'handoff'\nserver = [{listed}]\n{}",
            number + 1,
            routes(number)
        )
    };
    let services: String = (0..services).map(service).collect();
    config::parse(
        &format!("farm = {{ secret_file = 'key', directors = ['192.0.2.2'] }}\n{services}"),
        "many.toml",
    )
}

#[test]
fn there_is_a_limit_to_routes() {
    let routes = |count: usize| {
        (0..count).map(|i| format!("[[service.route]]\npath = '/{i}'\nservers = 's0'\n")).collect::<String>()
    };
    assert_eq!(routed(1, 1, |_| routes(10_000)).unwrap().services[0].routes.len(), 10_000);
    let message = routed(1, 1, |_| routes(10_001)).unwrap_err().to_string();
    assert!(message.contains("10001 routes") && message.ends_with("1 error"), "{message}");
    let message =
        routed(4, 1, |number| routes(if number == 3 { 1 } else { 10_000 })).unwrap_err().to_string();
    assert!(message.contains("30001 routes together") && message.ends_with("1 error"), "{message}");
}

#[test]
fn there_is_a_limit_to_sets_of_servers() {
    let routes = |count: usize| {
        let route = |i| {
            // Each set of servers appears twice.
            let servers = if i % 2 == 0 {
                format!("['s{i}', 's{}']", i + 1)
            } else {
                format!("['s{i}', 's{}']", i - 1)
            };
            format!("[[service.route]]\npath = '/{i}'\nservers = {servers}\n")
        };
        (0..2 * count).map(route).collect::<String>()
    };
    assert!(routed(2, 62, |_| routes(31)).is_ok(), "2 services with 31 sets each");
    let message = routed(2, 64, |number| routes(31 + number)).unwrap_err().to_string();
    assert!(message.contains("2 services and 63 sets of servers that routes name, 65 together"), "{message}");
    assert!(message.ends_with("1 error"), "{message}");
}

#[test]
fn included_services_stand_behind_those_of_the_file() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("include");
    fs::create_dir_all(folder.join("conf.d")).unwrap();
    let service = |name: &str, last: u8, server: &str| {
        format!(
            "[[service]]\nname = '{name}'\naddress = '192.0.2.{last}:80'\nserver = [{{ address = '{server}' }}]\n"
        )
    };
    let main = folder.join("evener.toml");
    // Names need an address on which the daemon answers queries.
    let own = format!("{}[dns]\nlisten = '192.0.2.53:53'\n", service("main", 100, "192.0.2.11"));
    fs::write(&main, format!("include = 'conf.d/*.toml'\n{own}")).unwrap();
    fs::write(folder.join("conf.d/b.toml"), service("b", 102, "192.0.2.12")).unwrap();
    let name = "[[dns.zone]]\nname = 'example.com'\n[[dns.name]]\nname = 'www.example.com'\nservices = 'a'\n";
    let first = service("a", 101, "${EVENER_NO_SUCH:-192.0.2.13}");
    fs::write(folder.join("conf.d/a.toml"), format!("{first}{name}")).unwrap();
    let tables = config::load_tables(&main).unwrap().tables;
    let services = tables["service"].as_array().unwrap();
    let names: Vec<_> = services.iter().map(|service| service["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["main", "a", "b"]);
    assert_eq!(services[1]["server"][0]["address"].as_str(), Some("192.0.2.13"));
    assert_eq!(tables["dns"]["name"][0]["name"].as_str(), Some("www.example.com"));
    assert!(!tables.contains_key("include"));

    let config = config::load(&main).unwrap();
    assert_eq!(config.services.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), ["main", "a", "b"]);
    assert_eq!(config.dns.names.len(), 1);
    assert_eq!(config::load_tables(&folder.join("no.toml")).unwrap_err().reports().count(), 1);
}
