//! The admin interface over real sockets. A test control loop returns fixed views.

mod access;
mod commands;
mod dashboard;
mod events;
mod scrapes;
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
use evener::admin::{self, API_PATHS, metrics};
use evener::board::request::{ControlRequest, ExplainSubject, GroupReply, Handle, SessionFilter};
use evener::config::AdminConfig;
use evener::events::{Bus, Subscriber};
use evener::record::Traced;
use evener::state::{FarmState, OrderError, Outcome};
use evener::views::{
    AffinityView, DirectorsView, EventView, Explanation, FarmView, HostView, NameView, ServerView,
    ServiceView, SessionView, StatusView, ViewSource,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use views::{directors, explanation, hosts, names, servers, services, sessions, status};

/// The farm of these tests. Responses contain the query.
struct Shown {
    bus: Bus,
}

impl ViewSource for Shown {
    fn farm(&self) -> FarmView {
        farm()
    }

    fn status(&self) -> StatusView {
        status()
    }

    fn services(&self) -> Vec<ServiceView> {
        services()
    }

    fn servers(&self) -> Vec<ServerView> {
        servers()
    }

    fn hosts(&self) -> Vec<HostView> {
        hosts()
    }

    fn directors(&self) -> DirectorsView {
        directors()
    }

    fn names(&self) -> Vec<NameView> {
        names()
    }

    fn takes_packets(&self) -> bool {
        true
    }

    fn interfaces(&self) -> Vec<String> {
        status().interfaces
    }

    fn affinity(&self, filter: &SessionFilter) -> Result<Vec<AffinityView>, String> {
        match filter.client {
            Some(_) => Ok(views::affinity()),
            None => Err("service web has no affinity".into()),
        }
    }

    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionView>, String> {
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

    fn explain(&self, subject: &ExplainSubject) -> Explanation {
        explanation(subject)
    }

    fn farm_state(&self) -> Arc<FarmState> {
        Arc::default()
    }

    fn last_event(&self) -> u64 {
        self.bus.last()
    }

    fn recent_events(&self) -> Vec<Arc<EventView>> {
        Vec::new()
    }

    fn listen(&self, before: Option<Duration>) -> (Vec<Arc<EventView>>, Subscriber) {
        before.map_or_else(|| (Vec::new(), self.bus.listen()), |time| self.bus.listen_since(time))
    }
}

/// Responds like the control loop. Responses contain the request.
async fn control(mut requests: mpsc::Receiver<ControlRequest>) {
    // A send error means that the client has closed its connection.
    while let Some(request) = requests.recv().await {
        match request {
            ControlRequest::Ping(answer) => drop(answer.send(())),
            // The response contains the order.
            ControlRequest::Change(request, answer) => {
                let text = format!("{:?} by {}", request.order, request.role.name());
                drop(answer.send(match text.contains("nobody") {
                    true => Err(OrderError::NotFound("Service web has no server nobody.".to_owned())),
                    false => Ok(Outcome {
                        message: text,
                        generation: 7,
                        tag: "7-abc".to_owned(),
                        differences: Vec::new(),
                    }),
                }))
            }
            ControlRequest::Group { group, sender, message, answer } => {
                let body = format!("{group} {sender:?} {message:?}");
                drop(answer.send(GroupReply { status: 409, body, is_json: false }));
            }
            // Three lines, then none until the reader closes.
            ControlRequest::Trace(client, answer) if client.port.is_none() => {
                let (lines, receiver) = mpsc::channel(8);
                for count in 1..=3 {
                    lines.try_send(Traced::Lost { count }).unwrap();
                }
                tokio::spawn(async move { lines.closed().await });
                drop(answer.send(Ok(receiver)));
            }
            ControlRequest::Trace(_, answer) => drop(answer.send(Err("no \u{1b}[2Jmore".into()))),
            ControlRequest::Reopen(answer) => drop(answer.send(Ok("open again".to_owned()))),
            ControlRequest::Reload { answer, .. } => {
                drop(answer.send(Err("evener.toml: 1 error\n  | here".into())));
            }
        }
    }
}

/// A daemon with only its admin interface.
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

    /// Starts a daemon with these access settings.
    fn open(admin: &AdminConfig) -> Daemon {
        Daemon::with(admin, |requests| drop(tokio::spawn(control(requests))))
    }

    fn with(admin: &AdminConfig, answer: impl FnOnce(mpsc::Receiver<ControlRequest>)) -> Daemon {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("evener-admin-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let runtime = Runtime::new().unwrap();
        let (handle, requests): (Handle, _) = mpsc::channel(8);
        let guard = runtime.enter();
        answer(requests);
        let server = admin::AdminSockets::bind(&folder.join("admin.sock"), admin).unwrap();
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

    /// Runs a command that must succeed and returns its output.
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

fn admin(listen: &str) -> AdminConfig {
    AdminConfig { listen: Some(listen.parse().unwrap()), token_file: None, hosts: Vec::new(), tls: None }
}

fn command(args: &[&str], socket: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evener")).args(args).arg("--socket").arg(socket).output().unwrap()
}

/// Sends a minimal request. Returns status and body.
fn exchange(stream: impl Read + Write, method: &str, path: &str) -> (u16, String) {
    let (head, body) =
        say(stream, &format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// Sends a request head and an empty line. Returns head and body of the response.
fn say(mut stream: impl Read + Write, head: &str) -> (String, String) {
    write!(stream, "{head}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
    (head.to_owned(), body.to_owned())
}

/// Returns all metrics except those of the process, which vary.
fn farm_metrics(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains("process_"));
    lines.map(|line| format!("{line}\n")).collect()
}

fn farm() -> FarmView {
    FarmView {
        status: status(),
        services: services(),
        servers: servers(),
        hosts: hosts(),
        directors: directors().directors,
        names: names(),
    }
}

pub fn scraped() -> Scrape {
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
        ("/v1/directors", json!(directors())),
        ("/v1/names", json!(names())),
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
    let service_of = |answer: Value| answer[0]["service"].as_str().unwrap().to_owned();
    let all = service_of(parsed(daemon.unix("GET", "/v1/sessions")));
    assert_eq!(all, "SessionFilter { service: None, client: None, client_port: None, limit: None }");
    let some = "/v1/sessions?service=192.0.2.100%3A80&client=198.51.100.7:40000&limit=5";
    let expected = "SessionFilter { service: Some(\"192.0.2.100:80\"), client: Some(198.51.100.7), \
                    client_port: Some(40000), limit: Some(5) }";
    assert_eq!(service_of(parsed(daemon.unix("GET", some))), expected);
    for (text, expected) in [("2001:db8::7", "None"), ("%5B2001:db8::7%5D:40000", "Some(40000)")] {
        let filter = service_of(parsed(daemon.unix("GET", &format!("/v1/sessions?client={text}"))));
        assert!(filter.contains(&format!("client: Some(2001:db8::7), client_port: {expected}")), "{filter}");
    }
    let bounded = service_of(parsed(daemon.tcp("GET", "/v1/sessions")));
    assert!(bounded.contains("limit: Some(10000)"), "{bounded}");

    let flow = "/v1/explain?client=198.51.100.7:40000&vip=192.0.2.100:80&protocol=udp";
    let because = &parsed(daemon.tcp("GET", flow))["reasons"][0];
    assert_eq!(because, "udp 198.51.100.7:40000 to 192.0.2.100:80");
    let flow = "/v1/explain?client=%5B2001:db8::7%5D:40000&vip=%5B2001:db8::100%5D:80";
    let because = &parsed(daemon.tcp("GET", flow))["reasons"][0];
    assert_eq!(because, "tcp [2001:db8::7]:40000 to [2001:db8::100]:80");
    let request = "/v1/explain?request=HEAD%20http://a.example/x?y%26z&service=web";
    let because = &parsed(daemon.tcp("GET", request))["reasons"][0];
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
    assert!(status == 405 && message.contains("openapi.json"), "{status} {message}");
    let (status, message) = error(daemon.unix("POST", "/v1/drain/web/%FF"));
    assert!(status == 400 && message.contains("UTF-8"), "{status} {message}");
}

#[test]
fn tcp_listener_accepts_no_changes() {
    let daemon = Daemon::start();
    for path in API_PATHS.iter().filter(|path| !path.path.starts_with("/v1/groups/")) {
        for method in path.methods.iter().filter(|method| method.method != "GET") {
            let (status, message) = error(daemon.tcp(method.method, path.path));
            assert!(status == 403 && message.contains("requires role"), "{method:?}: {status} {message}");
        }
    }
    assert_eq!(error(daemon.tcp("GET", "/v1/trace?client=198.51.100.7")).0, 403);
    assert_eq!(error(daemon.tcp("GET", "/v1/reload")).0, 405);
}

#[test]
fn commands_by_socket_accept_any_server_name() {
    let daemon = Daemon::start();
    let done = parsed(daemon.unix("POST", "/v1/drain/192.0.2.100%3A80/a%2Fb%20%C3%A9"));
    let said = |done: &Value, text: &str| done["message"].as_str().unwrap().contains(text);
    assert!(
        said(&done, "\"192.0.2.100:80\"") && said(&done, "\"a/b \u{e9}\"") && said(&done, "Drain"),
        "{done}"
    );
    let done = parsed(daemon.unix("POST", "/v1/undrain/web/02:00:00:00:00:0a"));
    assert!(said(&done, "\"02:00:00:00:00:0a\"") && said(&done, "Ready"), "{done}");
    let refused = error(daemon.unix("POST", "/v1/drain/web/nobody"));
    assert_eq!(refused, (404, "Service web has no server nobody.".into()));
    assert_eq!(error(daemon.unix("POST", "/v1/reload")), (409, "evener.toml: 1 error\n  | here".into()));
}

#[test]
fn the_socket_is_for_its_user_only() {
    let daemon = Daemon::start();
    let mode = fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The socket of a killed daemon is replaced. A file that is no socket stays untouched.
    let left = daemon.folder.join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let guard = daemon.runtime.as_ref().unwrap().enter();
    let nowhere = AdminConfig { listen: None, ..admin("127.0.0.1:0") };
    drop(admin::AdminSockets::bind(&left, &nowhere).unwrap());
    let file = daemon.folder.join("file");
    fs::write(&file, "mine").unwrap();
    let message = admin::AdminSockets::bind(&file, &nowhere).unwrap_err().to_string();
    assert!(
        message.contains("failed to create the admin socket") && message.contains("Address already in use"),
        "{message}"
    );
    let taken = admin(&daemon.tcp.to_string());
    let message = admin::AdminSockets::bind(&left, &taken).unwrap_err().to_string();
    assert!(message.contains(&format!("failed to listen on the admin address {}", daemon.tcp)), "{message}");
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
    // Views do not wait for the control loop.
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
    // Idle connections fill the TCP port but not the socket. After they are closed, the port
    // responds again.
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
    // The daemon may reset the connection while the client sends.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
}
