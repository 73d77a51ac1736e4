//! Access over TCP: requests must name this host and need a token on addresses other than loopback.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use evener::admin::AdminSockets;
use evener::config::AdminConfig;

use super::{Daemon, admin, say};

const TOKEN: &str = "0123456789abcdef-first";
const OTHER: &str = "0123456789abcdef-second";

/// Returns the status of a request with these header fields.
fn status(daemon: &Daemon, target: &str, fields: &[&str]) -> u16 {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let head = say(TcpStream::connect(daemon.tcp).unwrap(), &format!("GET {target} HTTP/1.1\r\n{fields}")).0;
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_foreign_host_is_misdirected() {
    let daemon = Daemon::open(&AdminConfig { hosts: vec!["lb1.example.com".into()], ..admin("127.0.0.1:0") });
    let port = daemon.tcp.port();
    for good in [
        "localhost".to_owned(),
        format!("localhost:{port}"),
        "LocalHost.:80".into(),
        "127.0.0.1".into(),
        format!("127.0.0.1:{port}"),
        "LB1.example.com:9180".into(),
    ] {
        for path in ["/metrics", "/v1/sessions", "/healthz"] {
            assert_eq!(status(&daemon, path, &[&format!("Host: {good}")]), 200, "{good} {path}");
        }
    }
    // DNS rebinding: a page's host name resolves to 127.0.0.1.
    for foreign in [
        "evil.example",
        "evil.example:9180",
        "127.0.0.1.evil.example",
        "192.0.2.1",
        "[::1]",
        "lb2.example.com",
    ] {
        for path in ["/metrics", "/v1/sessions", "/healthz", "/nothing"] {
            assert_eq!(status(&daemon, path, &[&format!("Host: {foreign}")]), 421, "{foreign} {path}");
        }
    }
    assert_eq!(status(&daemon, "http://evil.example/v1/sessions", &["Host: localhost"]), 421);
    assert_eq!(status(&daemon, "http://localhost/v1/sessions", &["Host: evil.example"]), 421);
    assert_eq!(status(&daemon, "http://localhost/v1/sessions", &["Host: localhost"]), 200);
    for malformed in [&[][..], &["Host: localhost", "Host: localhost"], &["Host: a b"], &["Host: \u{e9}"]] {
        assert_eq!(status(&daemon, "/metrics", malformed), 400, "{malformed:?}");
    }
    // HTTP/1.0 probes have no Host field.
    let old = say(TcpStream::connect(daemon.tcp).unwrap(), "GET /healthz HTTP/1.0\r\n").0;
    assert!(old.contains(" 200 "), "{old}");
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn beyond_loopback_a_token_is_needed_for_all_but_health() {
    let daemon = Daemon::open(&admin("0.0.0.0:0"));
    let host = "Host: 127.0.0.1";
    assert_eq!(status(&daemon, "/healthz", &[host]), 200);
    for path in ["/metrics", "/v1/status", "/v1/sessions", "/nothing"] {
        assert_eq!(status(&daemon, path, &[host]), 401, "{path}: without a file of tokens nobody has one");
        assert_eq!(status(&daemon, path, &[host, &format!("Authorization: Bearer {TOKEN}")]), 401, "{path}");
    }
    drop(daemon);

    let file = std::env::temp_dir().join(format!("evener-access-{}", std::process::id()));
    write(&file, &format!("# for Prometheus\n{TOKEN}\n"), 0o600);
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let daemon = Daemon::open(&AdminConfig { token_file: Some(file.clone()), ..admin(listen) });
        let with = |field: &str| status(&daemon, "/metrics", &[host, field]);
        assert_eq!(status(&daemon, "/healthz", &[host]), 200);
        let head =
            say(TcpStream::connect(daemon.tcp).unwrap(), &format!("GET /metrics HTTP/1.1\r\n{host}\r\n")).0;
        assert!(head.contains(" 401 ") && head.to_lowercase().contains("www-authenticate: bearer"), "{head}");
        assert_eq!(with(&format!("Authorization: Bearer {TOKEN}")), 200);
        assert_eq!(with(&format!("authorization: bearer   {TOKEN}")), 200);
        for wrong in
            ["Bearer", "Bearer ", &format!("Basic {TOKEN}"), &format!("Bearer {TOKEN}x"), &TOKEN[1..]]
        {
            assert_eq!(with(&format!("Authorization: {wrong}")), 401, "{wrong}");
        }
        let twice = format!("Authorization: Bearer {TOKEN}");
        assert_eq!(status(&daemon, "/metrics", &[host, &twice, &twice]), 401);
        assert_eq!(status(&daemon, "/metrics", &["Host: evil.example", &twice]), 421, "a token is no host");
        // The socket's file mode restricts access, so no token is needed.
        assert_eq!(daemon.unix("GET", "/metrics").0, 200);
    }
    fs::remove_file(file).unwrap();
}

#[test]
fn tokens_change_while_the_daemon_runs() {
    let file = std::env::temp_dir().join(format!("evener-rotated-{}", std::process::id()));
    write(&file, TOKEN, 0o600);
    let admin = AdminConfig { token_file: Some(file.clone()), ..admin("127.0.0.1:0") };
    let daemon = Daemon::open(&admin);
    let with = |token: &str| {
        status(&daemon, "/metrics", &["Host: localhost", &format!("Authorization: Bearer {token}")])
    };
    assert_eq!([with(TOKEN), with(OTHER)], [200, 401]);
    write(&file, &format!("{TOKEN}\n{OTHER}\n"), 0o600);
    assert_eq!([with(TOKEN), with(OTHER)], [200, 200]);
    write(&file, OTHER, 0o600);
    assert_eq!([with(TOKEN), with(OTHER)], [401, 200]);
    // A token in a file that others can read is refused.
    write(&file, OTHER, 0o644);
    assert_eq!(with(OTHER), 503);
    let guard = daemon.runtime.as_ref().unwrap().enter();
    let message = AdminSockets::bind(&daemon.folder.join("other.sock"), &admin).unwrap_err().to_string();
    drop(guard);
    assert!(message.contains("mode 644") && message.contains("chmod 600"), "{message}");
    fs::remove_file(&file).unwrap();
    assert_eq!(with(OTHER), 503);
}

#[test]
fn holder_of_role_operate_makes_60_changes_a_minute() {
    let file = std::env::temp_dir().join(format!("evener-changes-{}", std::process::id()));
    let tokens = "operator-operator-1 operate oscar\noperator-operator-2 operate olga\nadmin-admin-admin-1 admin alice\n";
    write(&file, tokens, 0o600);
    let daemon = Daemon::open(&AdminConfig { token_file: Some(file.clone()), ..admin("127.0.0.1:0") });
    let ask = |line: &str, token: &str| {
        let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n");
        say(TcpStream::connect(daemon.tcp).unwrap(), &head).0.to_lowercase()
    };
    let undo = "POST /v1/undo";
    for number in 0..60 {
        assert!(ask(undo, "operator-operator-1").contains(" 200 "), "{number}");
    }
    let refused = ask(undo, "operator-operator-1");
    assert!(refused.contains(" 429 ") && refused.contains("\r\nretry-after: "), "{refused}");
    assert!(ask("GET /v1/servers", "operator-operator-1").contains(" 200 "), "it may look");
    for other in ["operator-operator-2", "admin-admin-admin-1"] {
        assert!(ask(undo, other).contains(" 200 "), "{other}");
    }
    fs::remove_file(file).unwrap();
}
