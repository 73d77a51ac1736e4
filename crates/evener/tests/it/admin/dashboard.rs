//! The dashboard page and its live stream.

use std::io::{BufRead, BufReader};

use super::*;

/// Opens a live stream. Returns the response head, the first message and the open stream.
fn listen(daemon: &Daemon, fields: &str) -> (String, String, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(daemon.tcp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET /v1/live HTTP/1.0\r\n{fields}\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut until_empty = || {
        let mut text = String::new();
        while reader.read_line(&mut text).unwrap() > 2 {}
        text
    };
    let (head, message) = (until_empty(), until_empty());
    (head, message, reader)
}

#[test]
fn page_needs_no_token_and_its_data_does() {
    let file = std::env::temp_dir().join(format!("evener-dashboard-{}", std::process::id()));
    fs::write(&file, "reader-reader-reader\noperator-operator-0 operate oscar\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let daemon = Daemon::open(&AdminConfig { token_file: Some(file.clone()), ..admin("127.0.0.1:0") });
    let get = |path: &str, fields: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}");
        say(TcpStream::connect(daemon.tcp).unwrap(), &head)
    };
    for path in ["/", "/dashboard/app.js", "/dashboard/style.css"] {
        let (head, body) = get(path, "");
        let head = head.to_lowercase();
        assert!(head.contains(" 200 ") && body.len() > 1_000, "{path}: {head}");
        for field in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-cache",
        ] {
            assert!(head.contains(field), "{path} lacks {field}: {head}");
        }
    }
    assert!(get("/", "").1.contains(env!("CARGO_PKG_VERSION")));
    let foreign = say(TcpStream::connect(daemon.tcp).unwrap(), "GET / HTTP/1.1\r\nHost: evil.example\r\n").0;
    assert!(foreign.contains(" 421 "), "{foreign}");
    for path in ["/v1/live", "/v1/whoami", "/v1/reasons", "/dashboardx"] {
        assert!(get(path, "").0.contains(" 401 "), "{path}");
    }
    assert!(get("/dashboard/../v1/servers", "").0.contains(" 404 "), "no path leads out of the files");
    let operator = "Authorization: Bearer operator-operator-0\r\n";
    assert_eq!(parsed((200, get("/v1/whoami", operator).1)), json!({"by": "oscar", "role": "operate"}));
    let reasons = parsed((200, get("/v1/reasons", operator).1));
    assert_eq!(reasons["packets"]["no_server"], "Dropped: the service has no server.");
    let (head, message, _) = listen(&daemon, operator);
    assert!(
        head.contains("text/event-stream") && message.starts_with("event: snapshot\n"),
        "{head} {message}"
    );
    fs::remove_file(file).unwrap();
}

#[test]
fn live_streams_leave_room_for_ordinary_requests() {
    let daemon = Daemon::start();
    let streams: Vec<_> = (0..100).map(|_| listen(&daemon, "")).collect();
    let data = streams[99].1.strip_prefix("event: snapshot\ndata: ").unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!((&data["servers"], &data["hosts"]), (&json!(servers()), &json!(hosts())));
    assert_eq!(daemon.tcp("GET", "/healthz").0, 200);
    drop(streams);
}
