//! Records of single connections: the access log, and traces of a client.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{AccessLog, Evener, Handoff, Offer, route, web_service};
use evener_lab::farm::Farm;
use evener_lab::harness::process::Proc;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::talk::{Talk, get};
use crate::{farm, tls, unbroken};

on_both_engines! {
    what_was_asked_is_in_the_log,
    hellos_are_in_the_log,
    a_director_that_was_killed_notes_on,
    many_are_noted,
    a_client_is_followed,
    a_client_of_servers_on_the_link_is_followed,
}

on_one_engine! {
    a_log_that_is_moved_aside,
    a_log_that_has_no_place,
    traces_end,
}

/// Returns routes for images to `web2` and for other paths to `web1`.
fn images() -> Vec<String> {
    vec![route("path = \"/img/*\"", &["web2"]), route("path = \"/*\"", &["web1"])]
}

/// Returns the path of the director's access log.
fn log_of(handoff: &Handoff) -> PathBuf {
    handoff.farm.director().file("access.log")
}

/// Enables the access log.
fn noted(handoff: Handoff) -> Result<Handoff> {
    handoff.evener.reload(&file_with_log(&handoff))?;
    Ok(handoff)
}

fn file_with_log(handoff: &Handoff) -> String {
    format!("{}\n[log]\naccess = \"{}\"\n", handoff.file(), log_of(handoff).display())
}

/// Waits for `count` lines and returns them by client.
fn lines(handoff: &Handoff, count: usize) -> Result<BTreeMap<String, Value>> {
    let read = || Ok(fs::read_to_string(log_of(handoff))?);
    let text = wait::for_value(wait::LONG, read, |text: &String| text.lines().count() >= count)?;
    let text = text.map_err(|text| anyhow::anyhow!("no {count} lines: {text}"))?;
    assert_eq!(text.lines().count(), count, "{text}");
    let status = handoff.evener.status()?.access_log;
    assert_eq!((status.path, status.lost), (Some(log_of(handoff).display().to_string()), 0));
    let by_client = |line: &str| -> Result<(String, Value)> {
        let line: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        Ok((line["client"].as_str().context("no client")?.to_owned(), line))
    };
    text.lines().map(by_client).collect()
}

/// True if the event has occurred exactly `count` times.
fn happened(handoff: &Handoff, event: &str, count: u64) -> Result<bool> {
    Ok(handoff.evener.status()?.events.get(event) == Some(&count))
}

/// Removes the fields that vary, and checks that they are present.
fn steady(line: &Value) -> Result<Value> {
    let mut line = line.clone();
    let fields = line.as_object_mut().context("no object")?;
    let time = fields.remove("time").context("no time")?;
    ensure!(time.as_str().is_some_and(|time| time.len() == 24 && time.ends_with('Z')), "{time}");
    let latency = fields.remove("decide_us").context("no time to decide")?;
    ensure!(latency.as_f64().is_some_and(|latency| latency > 0.0), "{latency}");
    fields.remove("client");
    Ok(line)
}

/// Bytes of a client, size of the pieces, expected status, and expected line of the log.
struct Case {
    says: Vec<u8>,
    pieces: usize,
    status: u16,
    line: Value,
}

fn case(says: impl AsRef<[u8]>, pieces: usize, status: u16, line: Value) -> Case {
    Case { says: says.as_ref().to_vec(), pieces, status, line }
}

/// Returns the expected line of a request for an image, which `web2` serves.
fn image(host: &str, path: &str, mechanism: &str) -> Value {
    json!({"service": "web", "kind": "http", "method": "GET", "host": host, "path": path, "route": 1,
        "server": "web2", "mechanism": mechanism})
}

fn cases() -> [Case; 6] {
    let plain = get("www.example.com", "/img/a.png?x=%41");
    let refused = |status: u16, host: Option<&str>, path: &str| {
        let mut line = json!({"service": "web", "kind": "http", "method": "GET", "path": path, "route": null,
            "server": null, "mechanism": "refused", "status": status});
        if let Some(host) = host {
            line["host"] = host.into();
        }
        line
    };
    [
        case(&plain, 4_096, 404, image("www.example.com", "/img/a.png?x=%41", "kernel")),
        case(&plain, 30, 404, image("www.example.com", "/img/a.png?x=%41", "punted")),
        case(
            get("WWW.example.com:80", "/%69mg/a"),
            4_096,
            404,
            image("WWW.example.com:80", "/%69mg/a", "punted"),
        ),
        case(b"GET /b HTTP/1.1\r\nA: b\r\n\r\n", 4_096, 400, refused(400, None, "/b")),
        case(b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 4_096, 421, refused(421, Some("a"), "http://b/")),
        // A client that tries to inject lines into the log.
        case(
            b"GET /\",\r{}\xff\x1b[2J HTTP/1.1\r\nHost: \"a\r\n\r\n",
            4_096,
            400,
            refused(400, Some("\"a"), "/\",\r{}\\xff\u{1b}[2J"),
        ),
    ]
}

fn what_was_asked_is_in_the_log(engine: &str) -> Result<()> {
    let handoff = noted(farm(engine, 2, &images())?)?;
    let mut ports = 41_000..;
    let mut expected = BTreeMap::new();
    for family in Family::BOTH {
        for Case { says, pieces, status, line } in cases() {
            let port = ports.next().context("no port left")?;
            let mut talk = Talk::open_from(handoff.client(), port, handoff.service(family))?;
            talk.send_slowly(&says, pieces)?;
            let reply = talk.reply().with_context(|| says.escape_ascii().to_string())?;
            assert_eq!(reply.status, status, "{}", says.escape_ascii());
            expected.insert(SocketAddr::new(handoff.client().address_in(family), port).to_string(), line);
        }
    }
    let lines = lines(&handoff, expected.len())?;
    for (client, line) in &expected {
        let found = lines.get(client).with_context(|| format!("no line of {client}: {lines:?}"))?;
        assert_eq!(steady(found)?, *line, "{client}");
    }
    let metrics = handoff.farm.director().curl(&["http://127.0.0.1:9180/metrics"])?;
    for sample in [
        "evener_access_log_written_total 12",
        "evener_access_log_lost_total 0",
        "evener_handoff_decision_seconds_count{mechanism=\"kernel\"} 2",
        "evener_handoff_decision_seconds_count{mechanism=\"punted\"} 4",
    ] {
        assert!(metrics.contains(sample), "no {sample} in\n{metrics}");
    }
    Ok(())
}

fn hellos_are_in_the_log(engine: &str) -> Result<()> {
    let stage = tls::stage(engine)?;
    let handoff = &stage.handoff;
    handoff.evener.reload(&file_with_log(handoff))?;
    assert_eq!(tls::who(handoff.client(), "a.example", handoff.service(Family::V4))?, "web1");
    assert_eq!(tls::who(handoff.client(), "x.b.example", handoff.service(Family::V6))?, "web2");
    let mut half = Talk::open(handoff.client(), handoff.service(Family::V4))?;
    half.send([0x16, 3, 1, 2, 0, 1])?;
    wait::until("it is being read", || Ok(handoff.counted("punted")? >= 1))?;
    drop(half);
    let mut lines: Vec<Value> = lines(handoff, 3)?.values().map(steady).collect::<Result<_>>()?;
    lines.sort_by_key(|line| line["sni"].as_str().unwrap_or("~").to_owned());
    let hello = |name: &str, route: u64, server: &str| {
        json!({"service": "web", "kind": "tls", "sni": name, "route": route, "server": server,
            "mechanism": "kernel"})
    };
    let left = json!({"service": "web", "kind": "tls", "cut": true, "route": null, "server": null,
        "mechanism": "client_closed"});
    assert_eq!(lines, [hello("a.example", 1, "web1"), hello("x.b.example", 2, "web2"), left]);
    Ok(())
}

/// Log rotation as by logrotate(8), and removal of the log from the configuration.
fn a_log_that_is_moved_aside(engine: &str) -> Result<()> {
    let mut handoff = noted(farm(engine, 1, &[])?)?;
    let log = log_of(&handoff);
    let request = |handoff: &Handoff, path: &str| -> Result<()> {
        let mut talk = Talk::open(handoff.client(), handoff.service(Family::V4))?;
        assert_eq!(talk.request(&get("x", path))?.server, "web1");
        Ok(())
    };
    let paths = |handoff: &Handoff| -> Result<Vec<Value>> {
        Ok(lines(handoff, 1)?.into_values().map(|line| line["path"].clone()).collect())
    };
    request(&handoff, "/first")?;
    assert_eq!(paths(&handoff)?, ["/first"]);
    fs::rename(&log, log.with_extension("1"))?;
    handoff.evener.daemon().sighup()?;
    // The event follows the opening of the log; `reloads` is counted before.
    wait::until("it is opened again", || happened(&handoff, "reloaded", 2))?;
    request(&handoff, "/second")?;
    assert_eq!(paths(&handoff)?, ["/second"]);

    // Reopening by signal and by command must not load an incomplete configuration. The new file
    // exists before lines are written.
    let reloads = handoff.evener.status()?.reloads;
    handoff.evener.write("[engin]\n")?;
    for (number, path) in [("2", "/by-signal"), ("3", "/by-command")] {
        fs::rename(&log, log.with_extension(number))?;
        if number == "2" {
            handoff.evener.daemon().signal(Signal::SIGUSR1)?;
            handoff.evener.daemon().wait_for("reopened the access log", wait::LONG)?;
        } else {
            handoff.evener.command(&["reopen"])?;
        }
        request(&handoff, path)?;
        assert_eq!(paths(&handoff)?, [path]);
    }
    let status = handoff.evener.status()?;
    assert!(status.reload_error.is_none() && status.reloads == reloads);

    // A refused reload reopens the log, too.
    fs::rename(&log, log.with_extension("4"))?;
    handoff.evener.daemon().sighup()?;
    wait::until("it is opened again", || happened(&handoff, "reload_refused", 1))?;
    assert!(log.exists() && handoff.evener.status()?.reload_error.is_some());
    request(&handoff, "/third")?;
    assert_eq!(paths(&handoff)?, ["/third"]);
    for (number, path) in [("1", "/first"), ("2", "/second")] {
        let old = fs::read_to_string(log.with_extension(number))?;
        assert!(old.lines().count() == 1 && old.contains(path), "{old}");
    }

    handoff.reload()?;
    request(&handoff, "/unseen")?;
    let status = handoff.evener.status()?.access_log;
    assert_eq!((status.path, status.written), (None, 5));
    // Lines of the last moment are not lost.
    handoff.evener.reload(&file_with_log(&handoff))?;
    request(&handoff, "/last")?;
    assert_eq!(handoff.evener.stop()?, 0);
    let text = fs::read_to_string(&log)?;
    assert!(text.lines().count() == 2 && text.contains("/last") && !text.contains("/unseen"), "{text}");
    Ok(())
}

fn a_log_that_has_no_place(engine: &str) -> Result<()> {
    let handoff = farm(engine, 1, &[])?;
    let file = format!("{}\n[log]\naccess = \"{}/none/log\"\n", handoff.file(), log_of(&handoff).display());
    handoff.evener.write(&file)?;
    let (code, output) = handoff.evener.failure(&["reload"])?;
    assert!(code == 1 && output.contains("nothing was changed: the access log"), "{code}: {output}");
    let (code, output) = Evener::refused(handoff.farm.router(), &file, &[])?;
    assert!(code == 1 && output.contains("make its folder first"), "{code}: {output}");
    assert_eq!(
        Talk::open(handoff.client(), handoff.service(Family::V4))?.request(&get("x", "/"))?.server,
        "web1"
    );
    Ok(())
}

fn a_director_that_was_killed_notes_on(engine: &str) -> Result<()> {
    let mut handoff = noted(farm(engine, 1, &[])?)?;
    let request = |handoff: &Handoff| {
        Talk::open(handoff.client(), handoff.service(Family::V6))?.request(&get("x", "/a"))
    };
    assert_eq!(request(&handoff)?.server, "web1");
    lines(&handoff, 1)?;
    handoff.evener.daemon().kill9()?;
    handoff.evener.start_again()?;
    handoff.evener.wait_for_servers(1, wait::LONG)?;
    assert_eq!(request(&handoff)?.server, "web1");
    let lines = lines(&handoff, 2)?;
    assert!(lines.values().all(|line| line["server"] == "web1" && line["service"] == "web"), "{lines:?}");
    Ok(())
}

/// Each connection is a line or is counted as lost.
fn many_are_noted(engine: &str) -> Result<()> {
    const USERS: usize = 8;
    const EACH: u64 = 50;
    let routes = [route("path = \"/2k\"", &["web1"]), route("path = \"/wh?\"", &["web2"])];
    let handoff = noted(farm(engine, 2, &routes)?)?;
    let to = |path: &str| {
        let service = handoff.service(Family::V4);
        let load =
            Load { connections: USERS, path: path.to_owned(), requests: Some(EACH), ..Load::to(service) };
        load.start_on(handoff.client())
    };
    for load in [to("/2k"), to("/who")] {
        unbroken(load.join()?)?;
    }
    let noted = || Ok(handoff.evener.status()?.access_log);
    let all = |log: &AccessLog| log.written + log.lost == 2 * USERS as u64 * EACH;
    let log = wait::for_value(wait::LONG, noted, all)?.map_err(|log| anyhow::anyhow!("{log:?}"))?;
    let text = fs::read_to_string(log_of(&handoff))?;
    assert_eq!(text.lines().count() as u64, log.written);
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for (path, mechanism) in [("/2k", "kernel"), ("/who", "punted")] {
        let of_it: Vec<&Value> = lines.iter().filter(|line| line["path"] == path).collect();
        assert!(
            !of_it.is_empty() && of_it.iter().all(|line| line["mechanism"] == mechanism),
            "{path}: {:?}",
            of_it.first()
        );
    }
    Ok(())
}

/// Returns the complete lines of a trace so far.
fn lines_of(trace: &Proc) -> Result<Vec<Value>> {
    let log = trace.log();
    let whole = log.get(..=log.rfind('\n').unwrap_or_default()).unwrap_or_default();
    let lines = whole.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Starts a trace of a client and waits until the trace is active.
fn follow(evener: &Evener, name: &str, words: &[&str]) -> Result<Proc> {
    let mut trace = evener.begin(name, &[&["trace"], words].concat())?;
    trace.wait_for("evener: following", wait::LONG)?;
    Ok(trace)
}

/// Waits for a line with all of these fields.
fn wait_for(trace: &Proc, wanted: &Value) -> Result<Value> {
    let fields = wanted.as_object().context("no object")?;
    let has = |line: &Value| fields.iter().all(|(key, value)| line.get(key) == Some(value));
    let found = wait::for_value(wait::LONG, || Ok(lines_of(trace)?.into_iter().find(has)), Option::is_some)?;
    found.ok().flatten().with_context(|| format!("no {wanted} in\n{}", trace.log()))
}

fn a_client_is_followed(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    let handoff = Handoff::start(farm, Offer::new(engine, 2, &images()))?;
    let other = handoff.farm.client(1);
    for (at, family) in Family::BOTH.into_iter().enumerate() {
        let (client, service) = (handoff.client().address_in(family), handoff.service(family));
        let trace = follow(&handoff.evener, &format!("trace{at}"), &[&client.to_string(), "--json"])?;
        let port = 42_000 + at as u16;
        let mut talk = Talk::open_from(handoff.client(), port, service)?;
        assert_eq!(Talk::open(other, service)?.request(&get("other.example", "/other"))?.server, "web1");
        assert_eq!(talk.request(&get("www.example.com", "/img/a"))?.server, "web2");
        let mut odd = Talk::open(handoff.client(), service)?;
        assert_eq!(odd.request(&get("www.example.com", "//img/b"))?.server, "web2");

        let (src, dst) = (SocketAddr::new(client, port).to_string(), service.to_string());
        let packet = |flags: &str, verdict: &str, reason: &str, server: Option<&str>| {
            json!({"what": "packet", "protocol": "tcp", "flags": flags, "src": src, "dst": dst, "verdict": verdict,
                "reason": reason, "server": server})
        };
        let syn = packet("syn", "forward", "cookie_sent", None);
        let syn = wait_for(&trace, &syn)?;
        assert!(syn["bytes"].as_u64().is_some_and(|bytes| bytes >= 40), "{syn}");
        wait_for(&trace, &packet("ack", "drop", "cookie_acked", None))?;
        wait_for(&trace, &packet("psh,ack", "forward", "forwarded", Some("web2")))?;
        for (path, mechanism) in [("/img/a", "kernel"), ("//img/b", "punted")] {
            wait_for(
                &trace,
                &json!({"what": "decision", "host": "www.example.com", "path": path, "route": 1, "server": "web2",
                    "mechanism": mechanism}),
            )?;
        }
        for line in lines_of(&trace)? {
            let ends = ["src", "dst", "client"].map(|key| line[key].as_str().unwrap_or_default().to_owned());
            let is_its = |end: &String| end.parse::<SocketAddr>().is_ok_and(|end| end.ip() == client);
            assert!(ends.iter().any(is_its), "of another: {line}");
        }
    }
    // Plain output that ends after a number of events.
    let address = handoff.client().address().to_string();
    let mut trace = follow(&handoff.evener, "people", &[&address, "--count", "3"])?;
    Talk::open(handoff.client(), handoff.service(Family::V4))?.request(&get("www.example.com", "/img/a"))?;
    assert_eq!(trace.wait(wait::LONG)?.code(), Some(0));
    assert!(trace.log().contains(": forward, cookie_sent\n"), "{}", trace.log());
    Ok(())
}

fn traces_end(engine: &str) -> Result<()> {
    let handoff = farm(engine, 1, &[])?;
    let address = handoff.client().address().to_string();
    let running = |count| wait::until("so many traces run", || Ok(handoff.evener.status()?.traces == count));
    let names = ["a", "b", "c", "d"];
    let mut traces: Vec<Proc> =
        names.iter().map(|name| follow(&handoff.evener, name, &[&address])).collect::<Result<_>>()?;
    running(4)?;
    let (code, output) = handoff.evener.failure(&["trace", &address])?;
    assert!(code == 1 && output.contains("4 traces run already"), "{code}: {output}");
    // A kill leaves no time to report the end.
    traces.pop().context("no trace")?.kill9()?;
    running(3)?;
    let fifth = follow(&handoff.evener, "e", &[&address, "--seconds", "1"])?;
    running(3)?;
    drop((traces, fifth));
    running(0)?;
    assert_eq!(
        Talk::open(handoff.client(), handoff.service(Family::V4))?.request(&get("x", "/"))?.server,
        "web1"
    );
    Ok(())
}

fn a_client_of_servers_on_the_link_is_followed(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(1).silent().clients(2).build()?;
    let evener = Evener::start(farm.director(), &web_service(&farm, 0, engine))?;
    evener.wait_for_servers(1, wait::LONG)?;
    let client = farm.client(0).address();
    let trace = follow(&evener, "trace", &[&client.to_string(), "--json"])?;
    HttpConnection::open(farm.client(1), farm.service())?.who()?;
    assert_eq!(HttpConnection::open(farm.client(0), farm.service())?.who()?, "web1");
    let packet = |flags: &str| {
        json!({"what": "packet", "flags": flags, "dst": farm.service().to_string(), "verdict": "forward",
            "reason": "forwarded", "server": "web1"})
    };
    wait_for(&trace, &packet("syn"))?;
    wait_for(&trace, &packet("psh,ack"))?;
    for line in lines_of(&trace)? {
        assert!(line["src"].as_str().is_some_and(|src| src.starts_with(&format!("{client}:"))), "{line}");
    }
    Ok(())
}
