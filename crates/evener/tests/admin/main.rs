//! The admin interface over real sockets, with a control loop that answers fixed views.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(unreachable_pub)]

mod access;
mod events;
mod views;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evener::admin::metrics::{Format, Scrape};
use evener::admin::process::Process;
use evener::admin::views::{Explanation, Farm, Host, Server, Service, Session, Show, Status, Traced};
use evener::admin::{self, metrics};
use evener::config::Admin;
use evener::control::request::{Handle, Request, SessionFilter, Subject};
use evener::events::{Bus, Listener};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use views::{explanation, hosts, servers, services, sessions, status};

/// The farm that everybody sees in these tests; what was asked shows in the answers.
struct Shown {
    bus: Bus,
}

impl Show for Shown {
    fn farm(&self) -> Farm {
        farm()
    }

    fn status(&self) -> Status {
        status()
    }

    fn services(&self) -> Vec<Service> {
        services()
    }

    fn servers(&self) -> Vec<Server> {
        servers()
    }

    fn hosts(&self) -> Vec<Host> {
        hosts()
    }

    fn interfaces(&self) -> Vec<String> {
        status().interfaces
    }

    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<Session>, String> {
        let mut found = sessions();
        if filter.limit != Some(1) {
            found[0].service = format!("{filter:?}");
        }
        match (filter.limit, filter.service.as_deref()) {
            (_, Some("nope")) => Err("there is no service nope; there are: web".into()),
            (Some(0), _) => Ok(Vec::new()),
            _ => Ok(found),
        }
    }

    fn explain(&self, subject: &Subject) -> Explanation {
        explanation(subject)
    }

    fn listen(&self) -> Option<Listener> {
        self.bus.listen()
    }
}

/// Answers as the control loop would; what was asked shows in the answers.
async fn control(mut requests: mpsc::Receiver<Request>) {
    // Whoever hung up meanwhile needs no answer.
    while let Some(request) = requests.recv().await {
        match request {
            Request::Ping(answer) => drop(answer.send(())),
            Request::Drain { service, server, drain, answer } => drop(answer.send(match server.as_str() {
                "nobody" => Err(format!("Service {service} has no server {server}.")),
                _ => Ok(format!("{service:?} {server:?} drains: {drain}.")),
            })),
            // Three lines, and then no more for as long as somebody listens.
            Request::Trace(client, answer) if client.port.is_none() => {
                let (lines, receiver) = mpsc::channel(8);
                for count in 1..=3 {
                    lines.try_send(Traced::Lost { count }).unwrap();
                }
                tokio::spawn(async move { lines.closed().await });
                drop(answer.send(Ok(receiver)));
            }
            Request::Trace(_, answer) => drop(answer.send(Err("no \u{1b}[2Jmore".into()))),
            Request::Reload(answer) => {
                drop(answer.send(Err("evener.toml: 1 error\n  | here".into())));
            }
        }
    }
}

/// A daemon as far as its admin interface goes.
struct Daemon {
    runtime: Option<Runtime>,
    folder: PathBuf,
    tcp: SocketAddr,
    bus: Bus,
}

impl Daemon {
    fn start() -> Daemon {
        Daemon::open(&admin("127.0.0.1:0"))
    }

    /// Where, and to whom, it is open.
    fn open(admin: &Admin) -> Daemon {
        Daemon::with(admin, |requests| drop(tokio::spawn(control(requests))))
    }

    fn with(admin: &Admin, answer: impl FnOnce(mpsc::Receiver<Request>)) -> Daemon {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("evener-admin-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let runtime = Runtime::new().unwrap();
        let (handle, requests): (Handle, _) = mpsc::channel(8);
        let guard = runtime.enter();
        answer(requests);
        let server = admin::Server::bind(&folder.join("admin.sock"), admin).unwrap();
        let tcp = server.address().unwrap();
        let bus = Bus::default();
        runtime.spawn(server.run(Arc::new(Shown { bus: bus.clone() }), handle));
        drop(guard);
        Daemon { runtime: Some(runtime), folder, tcp, bus }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("admin.sock")
    }

    fn unix(&self, method: &str, path: &str) -> (u16, String) {
        exchange(UnixStream::connect(self.socket()).unwrap(), method, path)
    }

    fn tcp(&self, method: &str, path: &str) -> (u16, String) {
        exchange(TcpStream::connect(self.tcp).unwrap(), method, path)
    }

    fn command(&self, args: &[&str]) -> Output {
        command(args, &self.socket())
    }

    /// What a command that succeeds prints.
    fn shown(&self, args: &[&str]) -> String {
        let output = self.command(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.runtime.take());
        assert!(!self.socket().exists(), "the socket goes with the daemon");
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn admin(listen: &str) -> Admin {
    Admin { listen: Some(listen.parse().unwrap()), token_file: None, hosts: Vec::new() }
}

fn command(args: &[&str], socket: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evener")).args(args).arg("--socket").arg(socket).output().unwrap()
}

/// One request, as plainly as can be; status and body.
fn exchange(stream: impl Read + Write, method: &str, path: &str) -> (u16, String) {
    let (head, body) =
        say(stream, &format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// Head and body of the answer to this head, whose end is added.
fn say(mut stream: impl Read + Write, head: &str) -> (String, String) {
    write!(stream, "{head}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
    (head.to_owned(), body.to_owned())
}

/// All metrics but those of the process, which change.
fn farm_metrics(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains("process_"));
    lines.map(|line| format!("{line}\n")).collect()
}

fn farm() -> Farm {
    Farm { status: status(), services: services(), servers: servers(), hosts: hosts() }
}

fn scraped() -> Scrape {
    Scrape {
        farm: farm(),
        process: Process { open_fds: 12, start_seconds: 1_700_000_000.25, ..Process::default() },
    }
}

fn parsed((status, body): (u16, String)) -> Value {
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn error((status, body): (u16, String)) -> (u16, String) {
    let body: Value = serde_json::from_str(&body).expect(&body);
    (status, body["error"].as_str().unwrap().to_owned())
}

#[test]
fn views_are_the_same_on_both_sockets() {
    let daemon = Daemon::start();
    let views = [
        ("/v1/status", json!(status())),
        ("/v1/services", json!(services())),
        ("/v1/servers", json!(servers())),
        ("/v1/hosts", json!(hosts())),
    ];
    for (path, expected) in views {
        assert_eq!(parsed(daemon.unix("GET", path)), expected, "{path}");
        assert_eq!(parsed(daemon.tcp("GET", path)), expected, "{path}");
    }
    assert_eq!(daemon.tcp("GET", "/healthz"), (200, "ok\n".into()));
    let (status, text) = daemon.tcp("GET", "/metrics");
    let expected = metrics::text(scraped(), Format::Text);
    assert_eq!((status, farm_metrics(&text)), (200, farm_metrics(&expected)));
}

#[test]
fn queries_reach_the_control_loop() {
    let daemon = Daemon::start();
    let asked = |answer: Value| answer[0]["service"].as_str().unwrap().to_owned();
    let all = asked(parsed(daemon.unix("GET", "/v1/sessions")));
    assert_eq!(all, "SessionFilter { service: None, client: None, client_port: None, limit: None }");
    let some = "/v1/sessions?service=192.0.2.100%3A80&client=198.51.100.7:40000&limit=5";
    let expected = "SessionFilter { service: Some(\"192.0.2.100:80\"), client: Some(198.51.100.7), \
                    client_port: Some(40000), limit: Some(5) }";
    assert_eq!(asked(parsed(daemon.unix("GET", some))), expected);
    for (text, expected) in [("2001:db8::7", "None"), ("%5B2001:db8::7%5D:40000", "Some(40000)")] {
        let filter = asked(parsed(daemon.unix("GET", &format!("/v1/sessions?client={text}"))));
        assert!(filter.contains(&format!("client: Some(2001:db8::7), client_port: {expected}")), "{filter}");
    }
    let bounded = asked(parsed(daemon.tcp("GET", "/v1/sessions")));
    assert!(bounded.contains("limit: Some(10000)"), "{bounded}");

    let flow = "/v1/explain?client=198.51.100.7:40000&vip=192.0.2.100:80&protocol=udp";
    let because = &parsed(daemon.tcp("GET", flow))["because"][0];
    assert_eq!(because, "udp 198.51.100.7:40000 to 192.0.2.100:80");
    let flow = "/v1/explain?client=%5B2001:db8::7%5D:40000&vip=%5B2001:db8::100%5D:80";
    let because = &parsed(daemon.tcp("GET", flow))["because"][0];
    assert_eq!(because, "tcp [2001:db8::7]:40000 to [2001:db8::100]:80");
    let request = "/v1/explain?request=HEAD%20http://a.example/x?y%26z&service=web";
    let because = &parsed(daemon.tcp("GET", request))["because"][0];
    assert_eq!(because, "HEAD http://a.example/x?y&z Some(\"web\") None");
}

#[test]
fn bad_requests_are_answered_in_sentences() {
    let daemon = Daemon::start();
    let bad = [
        ("/v1/sessions?client=nobody", "client is \"nobody\": write an address"),
        ("/v1/sessions?limit=-1", "limit: invalid digit"),
        ("/v1/sessions?clinet=198.51.100.7", "unknown field `clinet`"),
        ("/v1/explain?client=198.51.100.7:1", "missing field `vip`"),
        ("/v1/explain", "missing field `client`"),
        ("/v1/explain?vip=192.0.2.100:80&request=http://a/", "missing field `client`"),
        ("/v1/explain?request=a.example", "request is \"a.example\": write it as in"),
        ("/v1/explain?client=198.51.100.7&vip=192.0.2.100:80", "client is \"198.51.100.7\""),
        ("/v1/explain?client=198.51.100.7:1&vip=192.0.2.100:80&protocol=sctp", "write tcp or udp"),
    ];
    for (path, expected) in bad {
        let (status, message) = error(daemon.unix("GET", path));
        assert!(status == 400 && message.contains(expected), "{path}: {status} {message}");
    }
    let (status, message) = error(daemon.unix("GET", "/v2"));
    assert!(status == 404 && message.contains("There is nothing at \"/v2\""), "{status} {message}");
    let (status, message) = error(daemon.unix("GET", "/v1/reload"));
    assert!(status == 405 && message.contains("POST"), "{status} {message}");
    let (status, message) = error(daemon.unix("POST", "/v1/drain/web/%FF"));
    assert!(status == 400 && message.contains("UTF-8"), "{status} {message}");
}

#[test]
fn the_tcp_port_changes_nothing() {
    let daemon = Daemon::start();
    for path in ["/v1/drain/web/web2", "/v1/undrain/web/web2", "/v1/reload", "/v1/status"] {
        for method in ["POST", "PUT", "DELETE"] {
            let (status, message) = error(daemon.tcp(method, path));
            assert!(status == 403 && message.contains("admin socket"), "{method} {path}: {status} {message}");
        }
    }
    assert_eq!(error(daemon.tcp("GET", "/v1/reload")).0, 404);
}

#[test]
fn orders_go_through_the_socket_whatever_the_names() {
    let daemon = Daemon::start();
    let done = parsed(daemon.unix("POST", "/v1/drain/192.0.2.100%3A80/a%2Fb%20%C3%A9"));
    assert_eq!(done, json!({"message": "\"192.0.2.100:80\" \"a/b \u{e9}\" drains: true."}));
    let done = parsed(daemon.unix("POST", "/v1/undrain/web/02:00:00:00:00:0a"));
    assert_eq!(done, json!({"message": "\"web\" \"02:00:00:00:00:0a\" drains: false."}));
    let refused = error(daemon.unix("POST", "/v1/drain/web/nobody"));
    assert_eq!(refused, (409, "Service web has no server nobody.".into()));
    assert_eq!(error(daemon.unix("POST", "/v1/reload")), (409, "evener.toml: 1 error\n  | here".into()));
}

#[test]
fn the_socket_is_for_its_user_only() {
    let daemon = Daemon::start();
    let mode = fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // What a killed daemon left is replaced; what is no socket is not touched.
    let left = daemon.folder.join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let guard = daemon.runtime.as_ref().unwrap().enter();
    let nowhere = Admin { listen: None, ..admin("127.0.0.1:0") };
    drop(admin::Server::bind(&left, &nowhere).unwrap());
    let file = daemon.folder.join("file");
    fs::write(&file, "mine").unwrap();
    let message = admin::Server::bind(&file, &nowhere).unwrap_err().to_string();
    assert!(message.contains("can't be made: Address already in use"), "{message}");
    let taken = admin(&daemon.tcp.to_string());
    let message = admin::Server::bind(&left, &taken).unwrap_err().to_string();
    assert!(message.contains(&format!("{} can't be listened on", daemon.tcp)), "{message}");
    drop(guard);
    assert!(!left.exists());
    assert_eq!(fs::read_to_string(file).unwrap(), "mine");
}

#[test]
fn a_stuck_control_loop_is_unhealthy() {
    let mut kept = None;
    let daemon = Daemon::with(&admin("127.0.0.1:0"), |requests| kept = Some(requests));
    let (status, message) = error(daemon.tcp("GET", "/healthz"));
    assert!(status == 503 && message.contains("not answered within 1 s"), "{status} {message}");
    // What there is to see doesn't wait for it.
    assert_eq!(parsed(daemon.tcp("GET", "/v1/servers")), json!(servers()));
    assert_eq!(daemon.tcp("GET", "/metrics").0, 200);
    drop(kept);
    let (status, message) = error(daemon.tcp("GET", "/healthz"));
    assert!(status == 503 && message.contains("the daemon is stopping"), "{status} {message}");
}

#[test]
fn idle_and_oversized_connections_do_not_stay() {
    let daemon = Daemon::start();
    let mut idle: Vec<_> = (0..80).map(|_| TcpStream::connect(daemon.tcp).unwrap()).collect();
    // The port is full, the socket is not; and once the idle ones are let go, the port answers again.
    assert_eq!(daemon.unix("GET", "/healthz").0, 200);
    let mut nothing = [0; 1];
    for stream in &mut idle {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(stream.read(&mut nothing).unwrap(), 0);
    }
    assert_eq!(daemon.tcp("GET", "/healthz").0, 200);
    let long = format!("/{}", "x".repeat(100_000));
    let mut stream = TcpStream::connect(daemon.tcp).unwrap();
    let _ = write!(stream, "GET {long} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = Vec::new();
    // It may be reset while it still sends.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
}

/// Samples by name with labels, as a scraper reads them.
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
        ("evener_adopted", 1.0),
        ("evener_sessions", 12_345.0),
        ("evener_sessions_assured", 12_300.0),
        ("evener_sessions_embryonic", 45.0),
        ("evener_sessions_max", 1_000_000.0),
        ("evener_session_slots", 2_097_152.0),
        ("evener_peer_datagrams_total{outcome=\"accepted\"}", 77.0),
        ("evener_peer_datagrams_total{outcome=\"forged\"}", 3.0),
        ("evener_host_up{host=\"web2\"}", 1.0),
        ("evener_host_load{host=\"web2\"}", 17.0),
        ("evener_host_addresses{host=\"web2\"}", 1.0),
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
        ("evener_decide_seconds_count{mechanism=\"kernel\"}", 5.0),
        ("evener_decide_seconds_sum{mechanism=\"kernel\"}", 0.25),
        ("evener_decide_seconds_bucket{le=\"0.000001\",mechanism=\"kernel\"}", 3.0),
        ("evener_decide_seconds_bucket{le=\"0.1\",mechanism=\"kernel\"}", 4.0),
        ("evener_decide_seconds_bucket{le=\"+Inf\",mechanism=\"kernel\"}", 5.0),
        ("evener_reloads_refused_total", 2.0),
        ("evener_reload_failed", 1.0),
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

/// Head fields and text of a scrape that accepts this.
fn scrape(daemon: &Daemon, accept: &str) -> (String, String) {
    let accept = if accept.is_empty() { String::new() } else { format!("Accept: {accept}\r\n") };
    say(
        TcpStream::connect(daemon.tcp).unwrap(),
        &format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}"),
    )
}

#[test]
fn metrics_are_what_was_asked_for() {
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
        assert!(head.contains(&format!("content-type: {kind}; charset=utf-8")), "{accept}: {head}");
        assert!(head.contains("vary: accept"), "{accept}: {head}");
        assert_eq!(text.ends_with("# EOF\n"), open, "{accept}");
    }
}

/// Samples and their types are the same in both formats, and every sample stands behind the type of its own family.
#[test]
fn both_formats_say_the_same() {
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

#[test]
fn views_fit_a_page() {
    let daemon = Daemon::start();
    for view in ["services", "servers", "hosts", "sessions", "status", "doctor"] {
        // Sessions of the test's daemon tell how they were asked for, but one.
        let args = if view == "sessions" { &[view, "--limit", "1"][..] } else { &[view] };
        let output = daemon.command(args);
        let text = String::from_utf8(output.stdout).unwrap();
        for line in text.lines() {
            // A word that is longer than a line stays whole.
            assert!(line.chars().count() <= 80 || !line.trim().contains(' '), "{view}: {line}");
        }
    }
}

#[test]
fn people_see_tables() {
    let daemon = Daemon::start();
    insta::assert_snapshot!(daemon.shown(&["services"]), @r#"
    SERVICE  ADDRESS         METHOD  POLICY        UP  SESSIONS  CONNS      BYTES
    web      192.0.2.100:80  l2      round-robin  1/3        42    400  941.9 MiB
    "#);
    insta::assert_snapshot!(daemon.shown(&["servers"]), @r#"
    SERVICE  SERVER             ADDRESS     STATE     WEIGHT  SESSIONS  CONNS  SHARE
    web      02:00:00:00:00:0a  -           up             1        21    300    75%
    web      web2               192.0.2.12  down           1        21    100    25%
        probes fail; no answer?[2J
    web      café "1"           -           draining       0        21      0     0%
    "#);
    insta::assert_snapshot!(daemon.shown(&["hosts"]), @r#"
    HOST  ADDRESS     STATE  LOAD     HEARD  UP   OWNS
    web2  192.0.2.12  alive    17  250.0 ms  web  192.0.2.102
    "#);
    insta::assert_snapshot!(daemon.shown(&["status"]), @r#"
    version:        0.1.0
    process:        4711, running for 1day 2h
    engine:         xdp: generic on eth0
    config:         /etc/evener/evener.toml
    reloads:        3
    sessions:       12345 of 1.0M (1%)
    assured:        12300; 45 embryonic
    adopted:        yes: it carries on with what an earlier daemon left running
    not in force:   generation 18: the engine refuses it, so 17 goes on; it is tried
                    again
    reload failed:  evener.toml: 2 errors
                    second line
    needs restart:  [engine] sessions_max
    punted:         5 given
    lccp:           5 given, 1 replayed
    nodes:          192.0.2.11 known, 192.0.2.12 silent
    dispatcher:     192.0.2.3 doesn't answer: this host decides by its own tables
    access log:     /var/log/evener/access.log: 12 lines written, 1 lost
    traces:         2
    packets:        1.2M forwarded, 7 no_server
    tunnels:        9 decapsulated, 4 forged_mark
    refused ARP:    2 own_mac
    datagrams:      77 accepted, 3 forged
    "#);
    insta::assert_snapshot!(daemon.shown(&["explain", "198.51.100.7:40000", "192.0.2.100:80"]), @r#"
    tcp 198.51.100.7:40000 to 192.0.2.100:80.
    so.
    => web/web2
    "#);
    insta::assert_snapshot!(daemon.shown(&["explain", "198.51.100.7:40000", "192.0.2.100:81"]), @r#"
    tcp 198.51.100.7:40000 to 192.0.2.100:81.
    => a server of web, by what is asked for
    "#);
    insta::assert_snapshot!(daemon.shown(&["explain", "--request", "http://a.example/?b&c", "--service", "w"]), @r#"
    http://a.example/?b&c Some("w") None.
    => one of web1, web2
    "#);
    let flow = ["explain", "--request", "https://a.example", "198.51.100.7:40000", "192.0.2.100:80"];
    insta::assert_snapshot!(daemon.shown(&flow), @r#"
    https://a.example None Some("tcp 198.51.100.7:40000 to 192.0.2.100:80").
    => web/web2
    "#);
    insta::assert_snapshot!(daemon.shown(&["sessions", "--limit", "1"]), @r#"
    SERVICE  CLIENT              ADDRESS         SERVER  STATE        IDLE  EXPIRES
    web      198.51.100.7:40000  192.0.2.100:80  web2    established    3s  14m 57s
    "#);
    let filtered = daemon.shown(&["sessions", "--service", "w/b", "--client", "198.51.100.7"]);
    assert!(filtered.contains("service: Some(\"w/b\"), client: Some(198.51.100.7)"), "{filtered}");
    let refused = daemon.command(&["sessions", "--service", "nope"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(refused.stderr, b"evener: there is no service nope; there are: web\n");
    assert_eq!(error(daemon.unix("GET", "/v1/sessions?service=nope")).0, 404);
    let filtered = daemon.shown(&["sessions", "--client", "[2001:db8::7]:40000"]);
    assert!(filtered.contains("client: Some(2001:db8::7), client_port: Some(40000)"), "{filtered}");
    let explained =
        daemon.shown(&["explain", "[2001:db8::7]:40000", "[2001:db8::100]:80", "--protocol", "udp"]);
    assert!(explained.starts_with("udp [2001:db8::7]:40000 to [2001:db8::100]:80.\n"), "{explained}");
    assert_eq!(daemon.shown(&["sessions", "--limit", "0"]), "There are no sessions.\n");
}

#[test]
fn programs_get_the_views() {
    let daemon = Daemon::start();
    let views = [("status", json!(status())), ("services", json!(services())), ("servers", json!(servers()))];
    for (name, expected) in views {
        let shown: Value = serde_json::from_str(&daemon.shown(&[name, "--json"])).unwrap();
        assert_eq!(shown, expected, "{name}");
    }
    let shown: Value = serde_json::from_str(&daemon.shown(&["sessions", "--json"])).unwrap();
    assert_eq!(shown[0]["idle_seconds"], 3);
}

#[test]
fn orders_say_what_was_done() {
    let daemon = Daemon::start();
    let drained = daemon.shown(&["drain", "192.0.2.100:80/02:00:00:00:00:0a"]);
    assert_eq!(drained, "\"192.0.2.100:80\" \"02:00:00:00:00:0a\" drains: true.\n");
    let undrained = daemon.shown(&["undrain", "web/web2", "--json"]);
    assert_eq!(undrained, "{\n  \"message\": \"\\\"web\\\" \\\"web2\\\" drains: false.\"\n}\n");
    let refused = daemon.command(&["drain", "web/nobody"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(refused.stderr, b"evener: Service web has no server nobody.\n");
    let refused = daemon.command(&["reload"]);
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(1), &b""[..]));
    assert_eq!(refused.stderr, b"evener: evener.toml: 1 error\n  | here\n");
    // Programs get that as the API says it.
    for (args, said) in [
        (&["reload", "--json"][..], "evener.toml: 1 error\n  | here"),
        (&["drain", "web/nobody", "--json"], "Service web has no server nobody."),
        (&["sessions", "--service", "nope", "--json"], "there is no service nope; there are: web"),
    ] {
        let refused = daemon.command(args);
        assert_eq!(refused.status.code(), Some(1), "{args:?}");
        let answer: Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_eq!(answer, json!({ "error": said }), "{args:?}");
    }
}

#[test]
fn no_daemon_is_said_so() {
    let nowhere = std::env::temp_dir().join(format!("evener-nowhere-{}", std::process::id()));
    for args in [&["status"][..], &["servers", "--json"], &["drain", "web/web1"], &["reload"]] {
        let output = command(args, &nowhere);
        assert_eq!(output.status.code(), Some(1));
        let expected = format!(
            "evener: no daemon answers on {}; is `evener run` running in this network namespace?\n",
            nowhere.display()
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    }
}

#[test]
fn the_doctor_looks_with_and_without_a_daemon() {
    let daemon = Daemon::start();
    let look = |socket: &Path| -> Vec<(String, String, String)> {
        let output = command(&["doctor", "--json"], socket);
        let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
        let found: Vec<_> = findings
            .iter()
            .map(|finding| (text(finding, "check"), text(finding, "state"), text(finding, "message")))
            .collect();
        let failed = found.iter().any(|(_, state, _)| state == "fail");
        assert_eq!(output.status.code(), Some(if failed { 4 } else { 0 }), "{found:?}");
        found
    };
    let found = look(&daemon.socket());
    let message = |check: &str| found.iter().find(|(name, ..)| name == check).map(|found| &*found.2);
    assert_eq!(message("daemon"), Some("Process 4711, engine xdp."));
    assert_eq!(message("web/web2"), Some("down (192.0.2.12): probes fail."));
    assert!(message("reload").unwrap().contains("2 errors"));
    assert!(message("kernel").unwrap().contains("Linux"));

    let found = look(&daemon.folder.join("nobody.sock"));
    let daemon = found.iter().find(|(check, ..)| check == "daemon").unwrap();
    assert_eq!((&*daemon.1, &*daemon.2), ("ok", "None runs in this network namespace."));
    assert!(found.iter().all(|(_, _, message)| message.contains('.')), "{found:?}");
}

#[test]
fn a_trace_goes_on_until_somebody_hangs_up() {
    let daemon = Daemon::start();
    let lines = daemon.shown(&["trace", "198.51.100.7", "--count", "2"]);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    let lines = daemon.shown(&["trace", "198.51.100.7", "--seconds", "1", "--json"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, [1, 2, 3].map(|count| json!({"what": "lost", "count": count})));

    let refused = daemon.command(&["trace", "198.51.100.7:40000"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("evener: no ?[2Jmore."), "{refused:?}");
    let (status, message) = error(daemon.unix("GET", "/v1/trace?client=198.51.100.7:40000"));
    assert!(status == 503 && message.ends_with("more."), "{status} {message}");
    let (status, message) = error(daemon.unix("GET", "/v1/trace?client=nobody"));
    assert!(status == 400 && message.contains("write an address"), "{status} {message}");
    // Who reaches the port is not to see what clients ask for.
    assert_eq!(error(daemon.tcp("GET", "/v1/trace?client=198.51.100.7")).0, 404);
}
