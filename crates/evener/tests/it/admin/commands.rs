//! Output of the commands, and their requests.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Stdio;

use super::*;
use crate::cli::completed;

#[test]
fn views_fit_a_page() {
    let daemon = Daemon::start();
    for view in ["services", "servers", "hosts", "names", "sessions", "status", "doctor"] {
        // Most sessions in the test's data contain the query text, so only one is shown.
        let args = if view == "sessions" { &[view, "--limit", "1"][..] } else { &[view] };
        let output = daemon.command(args);
        let text = String::from_utf8(output.stdout).unwrap();
        for line in text.lines() {
            // A word longer than a line is not broken.
            assert!(line.chars().count() <= 80 || !line.trim().contains(' '), "{view}: {line}");
        }
    }
}

#[test]
fn people_see_tables() {
    let daemon = Daemon::start();
    insta::assert_snapshot!(daemon.shown(&["services"]), @r#"
    SERVICE  ADDRESS         METHOD  STATE     UP  SESSIONS  CONNS      BYTES
    web      192.0.2.100:80  l2      partial  1/3        42    400  941.9 MiB
    "#);
    insta::assert_snapshot!(daemon.shown(&["servers"]), @r#"
    SERVICE  SERVER             ADDRESS     STATE     WEIGHT  SESSIONS  CONNS  SHARE
    web      02:00:00:00:00:0a  -           up         0.8/2        21    300    75%
        slow start 40 %
    web      web2               192.0.2.12  down           1        21    100    25%
        probes fail; no answer?[2J; 31 of 94 new connections never continued
    web      café "1"           -           draining       0        21      0     0%
    "#);
    insta::assert_snapshot!(daemon.shown(&["hosts"]), @r#"
    HOST  ADDRESS     STATE  LOAD     HEARD  UP   OWNS
    web2  192.0.2.12  alive    17  250.0 ms  web  192.0.2.102
        it speaks version 2
    "#);
    insta::assert_snapshot!(daemon.shown(&["directors"]), @r"
    DIRECTOR   STATE             RELEASE     HEARD  DIFFERS IN
    192.0.2.2  ready (this one)  0.2.0           -
    192.0.2.3  unready           0.3.0    250.0 ms  file
                                                    release
        web: no server works: web1 is down; its file is another one; it runs release
        0.3.0
    192.0.2.4  silent            -          90.0 s
        its messages have a wrong tag
    ");
    insta::assert_snapshot!(daemon.shown(&["names"]), @r"
    NAME             ADDRESS     SERVER  STATE  RANK  SHARE  ANSWERS     DELAY  TTL
    www.example.com  192.0.2.11  web1    up        1   100%       12  250.0 ms    5
        reported delay 0.25 s: 100 % of its weight
    www.example.com  192.0.2.12  web2    down      -     0%        0         -    5
        timed out
    ");
    insta::assert_snapshot!(daemon.shown(&["status"]), @r#"
    version:        0.1.0
    process:        4711, running for 1day 2h
    engine:         xdp: generic on eth0
    config:         /etc/evener/evener.toml
    reloads:        3
    sessions:       12345 of 1.0M (1%)
    assured:        12300; 45 embryonic
    session table:  2.1M places of 2.1M
    adopted:        yes: it carries on with what an earlier daemon left running
    drained:        this director: `evener undrain --director` ends that
    director:       192.0.2.4 is silent
    not in force:   generation 18: refused by the engine, so 17 stays in force;
                    retrying
    reload failed:  evener.toml: 2 errors
                    second line
    needs restart:  [engine] sessions_max
    punted:         5 handed_off
    lccp:           5 handoffs_acknowledged, 1 replayed
    nodes:          192.0.2.11 known, 192.0.2.12 silent
    refused nodes:  192.0.2.12: its clock? is wrong; set it
    missing:        guard table netdev evener: nft: Operation not permitted
    dispatcher:     192.0.2.3 doesn't answer: this host decides by its own tables
    access log:     /var/log/evener/access.log: 12 lines written, 1 lost
    traces:         2
    packets:        1.2M forwarded, 7 no_server
    tunnels:        9 decapsulated, 4 forged_mark
    refused ARP:    2 own_mac
    dns:            12 noerror, 13 queries_udp
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
fn lists_are_filtered_by_service_and_state() {
    let daemon = Daemon::start();
    // Shares still refer to all servers.
    insta::assert_snapshot!(daemon.shown(&["servers", "--service", "web", "--state", "down"]), @r#"
    SERVICE  SERVER  ADDRESS     STATE  WEIGHT  SESSIONS  CONNS  SHARE  PROBE
    web      web2    192.0.2.12  down        1        21    100    25%      -
        probes fail; no answer?[2J; 31 of 94 new connections never continued
    "#);
    assert_eq!(daemon.shown(&["servers", "--service", "web"]), daemon.shown(&["servers"]));
    assert_eq!(daemon.shown(&["servers", "--state", "maintenance"]), "No server matches.\n");
    assert_eq!(daemon.shown(&["services", "--state", "partial"]), daemon.shown(&["services"]));
    assert_eq!(daemon.shown(&["services", "--state", "ok"]), "No service matches.\n");
    assert_eq!(daemon.shown(&["servers", "--state", "maintenance", "--json"]), "[]\n");
    let drained: Value =
        serde_json::from_str(&daemon.shown(&["servers", "--state", "draining", "--json"])).unwrap();
    assert_eq!((&drained[0]["state"], drained.as_array().unwrap().len()), (&json!("draining"), 1));
    for list in ["services", "servers"] {
        let refused = daemon.command(&[list, "--service", "webb"]);
        assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(1), &b""[..]));
        assert_eq!(refused.stderr, b"evener: there is no service webb; did you mean web?\n");
    }
}

#[test]
fn watched_list_is_shown_again_until_the_reader_has_enough() {
    let daemon = Daemon::start();
    for (args, lines) in [(&["services", "--watch"][..], 3), (&["servers", "--watch", "--json"], 1)] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_evener"))
            .args(args)
            .arg("--socket")
            .arg(daemon.socket())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let output: Vec<String> = output.map(Result::unwrap).take(2 * lines).collect();
        match args.len() {
            2 => assert_eq!((&output[2], &output[3..5]), (&String::new(), &output[..2])),
            _ => assert!(
                output.iter().all(|line| serde_json::from_str::<Value>(line).unwrap() == json!(servers()))
            ),
        }
        assert!(child.wait().unwrap().success(), "a closed pipe is no error");
    }
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
fn commands_report_their_effect() {
    let daemon = Daemon::start();
    let drained = daemon.shown(&["drain", "192.0.2.100:80/02:00:00:00:00:0a"]);
    assert!(drained.contains("192.0.2.100:80") && drained.contains("02:00:00:00:00:0a"), "{drained}");
    assert!(drained.contains("Some(Drain)") && drained.contains("by admin"), "{drained}");
    let undrained = daemon.shown(&["undrain", "web/web2", "--json"]);
    let undrained: serde_json::Value = serde_json::from_str(&undrained).unwrap();
    assert!(undrained["message"].as_str().unwrap().contains("Some(Set(Ready))"), "{undrained}");
    assert_eq!((&undrained["tag"], &undrained["generation"]), (&"7-abc".into(), &7.into()));
    let refused = daemon.command(&["drain", "web/nobody"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(refused.stderr, b"evener: Service web has no server nobody.\n");
    let refused = daemon.command(&["reload"]);
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(1), &b""[..]));
    assert_eq!(refused.stderr, b"evener: evener.toml: 1 error\n  | here\n");
    // With `--json`, errors are printed as the API returns them.
    for (args, output) in [
        (&["reload", "--json"][..], "evener.toml: 1 error\n  | here"),
        (&["drain", "web/nobody", "--json"], "Service web has no server nobody."),
        (&["sessions", "--service", "nope", "--json"], "there is no service nope; there are: web"),
    ] {
        let refused = daemon.command(args);
        assert_eq!(refused.status.code(), Some(1), "{args:?}");
        let answer: Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_eq!(answer, json!({ "error": output }), "{args:?}");
    }
}

#[test]
fn servers_are_completed_by_the_daemon() {
    let daemon = Daemon::start();
    let namespace = fs::metadata("/proc/self/ns/net").unwrap().ino();
    let folder = daemon.folder.join("run").join(format!("net-{namespace}"));
    fs::create_dir_all(&folder).unwrap();
    symlink(daemon.socket(), folder.join("admin.sock")).unwrap();
    let run = daemon.folder.join("run");
    let words = completed(&["drain", "web/"], &[("EVENER_RUN_DIR", &run)]);
    let known: Vec<ServerView> =
        serde_json::from_slice(&daemon.command(&["servers", "--json"]).stdout).unwrap();
    let of_web = known.iter().filter(|server| server.service == "web");
    assert_eq!(words, of_web.map(|server| format!("web/{}", server.name)).collect::<Vec<_>>());
    assert!(words.len() > 1, "{words:?}");
    fs::remove_file(folder.join("admin.sock")).unwrap();
    assert!(completed(&["drain", "web/"], &[("EVENER_RUN_DIR", &run)]).is_empty());
}

#[test]
fn missing_daemon_is_reported() {
    let nowhere = std::env::temp_dir().join(format!("evener-nowhere-{}", std::process::id()));
    for args in [&["status"][..], &["servers", "--json"], &["drain", "web/web1"], &["reload"]] {
        let output = command(args, &nowhere);
        assert_eq!(output.status.code(), Some(6));
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
fn trace_runs_until_reader_disconnects() {
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
    // Access over TCP must not reveal clients' requests.
    assert_eq!(error(daemon.tcp("GET", "/v1/trace?client=198.51.100.7")).0, 403);
}

#[test]
fn order_under_way_is_answered_though_its_place_was_taken() {
    /// `CONNECTIONS` of the admin server.
    const PLACES: usize = 64;
    let (received, order) = std::sync::mpsc::channel();
    let daemon = Daemon::with(&admin("127.0.0.1:0"), |mut requests| {
        drop(tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                match request {
                    ControlRequest::Ping(answer) => drop(answer.send(())),
                    other => received.send(other).unwrap(),
                }
            }
        }));
    });
    let connect = || UnixStream::connect(daemon.folder.join("admin.sock")).unwrap();
    let mut operator = connect();
    let body = "{\"weight\": 7}";
    write!(
        operator,
        "PATCH /v1/services/web/servers/web1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let ControlRequest::Change(_, answer) = order.recv().unwrap() else { panic!("no order") };
    let silent: Vec<_> = (1..PLACES).map(|_| connect()).collect();
    // The daemon answers only after it has closed the oldest connection, which is the operator's.
    assert_eq!(daemon.unix("GET", "/healthz").0, 200);
    drop(answer.send(Err(OrderError::NotFound("There is none.".to_owned()))));
    let mut text = String::new();
    operator.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 404") && text.contains("There is none."), "{text}");
    drop(silent);
}
