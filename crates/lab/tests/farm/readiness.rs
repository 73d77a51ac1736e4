//! Readiness: a director is ready exactly while it could serve clients. Also, the state that
//! directors know of each other.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::host::Host;
use serde_json::Value;

use crate::file;

on_both_engines! {
    readiness_follows_servers_and_services,
    readiness_follows_daemon_and_interface,
    drained_director_serves_and_is_not_ready,
}

on_one_engine! {
    watch_runs_a_command_at_each_change,
    directors_know_each_other_and_their_differences,
}

/// Fast probes. A busy machine can delay one of them.
const HEALTH: &str =
    "[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"300ms\"\nfall = 3\nrise = 1\n";

fn ready(evener: &Evener, subject: &[&str]) -> Result<String> {
    let (code, text) = evener.ready(subject)?;
    ensure!(text.lines().count() == 1, "{text}");
    let text = text.trim().to_owned();
    ensure!(code == if text == "ready" { 0 } else { 1 }, "exit code {code}: {text}");
    ensure!(code == 0 || text.starts_with("not ready: "), "{text}");
    Ok(text)
}

fn wait_until_ready(evener: &Evener, subject: &[&str]) -> Result<()> {
    wait::until(&format!("ready {subject:?}"), || Ok(ready(evener, subject)? == "ready"))
}

fn wait_until_not_ready(evener: &Evener, why: &str) -> Result<()> {
    wait::until(why, || Ok(ready(evener, &[])?.contains(why)))
}

/// Returns the HTTP status of a path at the admin address.
fn asked(host: &Host, path: &str) -> Result<String> {
    let url = format!("http://127.0.0.1:9180{path}");
    host.run(&["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", &url])
}

fn readiness_follows_servers_and_services(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).vips(2).build()?;
    let second = SocketAddr::new(farm.vip(1).into(), 80);
    let servers = file::servers(farm.servers());
    let text = file::engine(engine)
        + &file::service("web", farm.service(), "panic_threshold = \"90%\"\n")
        + HEALTH
        + &servers
        + &file::service("never", second, "")
        + file::ALWAYS_UP
        + "[[service.server]]\nname = \"nobody\"\naddress = \"192.0.2.250\"\n";
    let evener = Evener::start(farm.director(), &text)?;
    wait_until_ready(&evener, &["web"])?;
    let address = farm.vip(0).to_string();
    ensure!(ready(&evener, &[&address])? == "ready");
    let all = ready(&evener, &[])?;
    ensure!(all.starts_with("not ready: never: no server works: nobody"), "{all}");
    let unknown = ready(&evener, &["wbe"])?;
    ensure!(unknown.contains("no service is called wbe"), "{unknown}");
    let host = farm.director();
    let codes = [asked(host, "/ready")?, asked(host, "/ready/web")?, asked(host, "/ready/never")?];
    ensure!(codes == ["503", "200", "503"], "{codes:?}");
    ensure!(asked(host, "/ready/wbe")? == "404");

    for server in 0..2 {
        farm.set_healthy(server, false)?;
    }
    wait::until(
        "failed servers count as such",
        || Ok(ready(&evener, &["web"])?.contains("no server works")),
    )?;
    HttpConnection::open(farm.client(0), farm.service())?;
    ensure!(asked(host, "/ready/web")? == "503" && asked(host, "/healthz")? == "200");
    farm.set_healthy(1, true)?;
    wait_until_ready(&evener, &["web"])?;
    evener.command(&["drain", "web/web2"])?;
    wait::until("the last one is drained", || Ok(ready(&evener, &["web"])?.contains("web2 is draining")))?;
    evener.command(&["undrain", "web/web2"])?;
    wait_until_ready(&evener, &["web"])
}

fn readiness_follows_daemon_and_interface(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(1).build()?;
    let text = format!("farm.orphan = \"10s\"\n{}", file::listed(engine, &farm, ""));
    let mut evener = Evener::start(farm.director(), &text)?;
    wait_until_ready(&evener, &[])?;
    let interface = farm.director().interfaces()[0].name.clone();
    farm.director().ip(&[format!("link set {interface} down")])?;
    wait_until_not_ready(&evener, "is down")?;
    farm.director().ip(&[format!("link set {interface} up")])?;
    wait_until_ready(&evener, &[])?;

    evener.daemon().kill9()?;
    if engine == "xdp" {
        ensure!(ready(&evener, &[])? == "ready", "the data plane forwards");
        HttpConnection::open(farm.client(0), farm.service())?;
        wait_until_not_ready(&evener, "is valid for 10 s")?;
    } else {
        wait_until_not_ready(&evener, "no data plane answers or forwards")?;
    }
    evener.start_again()?;
    wait_until_ready(&evener, &[])?;
    if engine == "xdp" {
        evener.daemon().kill9()?;
        detach_all(farm.director())?;
        let why = ready(&evener, &[])?;
        ensure!(why.contains("has lost Evener's program"), "{why}");
        evener.start_again()?;
        wait_until_ready(&evener, &[])?;
    }
    evener.stop()?;
    let why = ready(&evener, &[])?;
    ensure!(why.contains("no daemon has run here"), "{why}");
    Ok(())
}

/// Unpins the links of a host's programs, which detaches the programs.
fn detach_all(host: &Host) -> Result<()> {
    let script = "n=$(stat -Lc %i /proc/self/ns/net); find /sys/fs/bpf/evener/net-$n /proc/1/root/sys/fs/bpf/evener/net-$n \
                  -name 'link-*' -delete 2>/dev/null; true";
    host.run(&["sh", "-c", script]).map(drop)
}

fn drained_director_serves_and_is_not_ready(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(1).build()?;
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    wait_until_ready(&evener, &[])?;
    let open = HttpConnection::open(farm.client(0), farm.service())?;
    let (code, late) = evener.failure(&["drain", "--director", "--wait=1s"])?;
    ensure!(code == 1 && late.contains("still has"), "{code}: {late}");
    wait_until_not_ready(&evener, "this director is drained")?;
    ensure!(evener.json::<Value>(&["status"])?["drained"] == true);
    HttpConnection::open(farm.client(0), farm.service())?;
    drop(open);
    evener.stop()?;
    evener.start_again()?;
    wait_until_not_ready(&evener, "this director is drained")?;
    let done = evener.command(&["drain", "--director", "--wait"])?;
    ensure!(done.contains("this director has no sessions"), "{done}");
    evener.command(&["undrain", "--director"])?;
    wait_until_ready(&evener, &[])?;
    evener.command(&["drain", "--director"])?;
    evener.command(&["undo"])?;
    wait_until_ready(&evener, &[])
}

fn watch_runs_a_command_at_each_change(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(1).build()?;
    let text = file::engine(engine)
        + &file::service("web", farm.service(), "")
        + HEALTH
        + &file::servers(farm.servers());
    let mut evener = Evener::start(farm.director(), &text)?;
    wait_until_ready(&evener, &[])?;
    let seen = farm.director().file("changes");
    let told = |word: &str| format!("echo {word} $EVENER_REASON >> {}", seen.display());
    // The first run of the command fails and must be retried.
    let flag = farm.director().file("tried");
    let on = format!("if mkdir {} 2>/dev/null; then exit 3; fi; {}", flag.display(), told("on"));
    let words = ["ready", "--watch", "--on", &on, "--off", &told("off")];
    let mut watch = evener.begin("watch", &words)?;
    let lines = || fs::read_to_string(&seen).unwrap_or_default();
    wait::until("the state at the start is told", || Ok(lines() == "on\n"))?;
    evener.daemon().kill9()?;
    evener.start_again()?;
    evener.wait_for_servers(1, LONG)?;
    evener.command(&["drain", "--director"])?;
    wait::until("the drain is told", || Ok(lines().contains("\noff this director is drained")))?;
    evener.command(&["undrain", "--director"])?;
    wait::until("its end is told", || Ok(lines().ends_with("\non\n")))?;
    ensure!(lines().lines().count() == 3, "{}", lines());
    ensure!(watch.sigterm(Duration::from_secs(5))? == 0);
    evener.stop().map(drop)
}

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn with_secret(host: &Host, secret: &str) -> Result<String> {
    let path = host.write("farm.key", secret)?.display().to_string();
    host.run(&["chmod", "600", &path])?;
    Ok(path)
}

fn directors_know_each_other_and_their_differences(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).directors(2).build()?;
    let hosts = farm.directors();
    let addresses: Vec<String> = hosts.iter().map(|host| host.address().to_string()).collect();
    let text = |secret: &str, keys: &str| {
        format!(
            "farm.secret_file = \"{secret}\"\nfarm.directors = {addresses:?}\n{}",
            file::listed(engine, &farm, &format!("announce = false\n{keys}"))
        )
    };
    let keys = hosts.iter().map(|host| with_secret(host, SECRET)).collect::<Result<Vec<_>>>()?;
    let first = Evener::start(&hosts[0], &text(&keys[0], ""))?;
    let mut second = Evener::start(&hosts[1], &text(&keys[1], ""))?;
    let other = |evener: &Evener| -> Result<Value> {
        let all: Value = evener.json(&["directors"])?;
        let others = all["directors"].as_array().cloned().unwrap_or_default();
        Ok(others.into_iter().find(|one| one["own"] == false).unwrap_or_default())
    };
    let differs = |what: &[&str]| {
        wait::until(&format!("differs in {what:?}"), || {
            let seen = [other(&first)?, other(&second)?];
            Ok(seen.iter().all(|one| one["differs"] == serde_json::json!(what)))
        })
    };
    wait::until("both know that the other is ready", || {
        Ok([&first, &second].into_iter().all(|one| other(one).is_ok_and(|other| other["state"] == "ready")))
    })?;
    differs(&[])?;
    ensure!(first.status()?.directors.is_empty());

    second.command(&["weight", "web/web1", "3"])?;
    differs(&["changes"])?;
    let seen = other(&first)?;
    ensure!(
        seen["differences"][0].as_str().is_some_and(|text| text.contains("web/web1: weight = 3")),
        "{seen}"
    );
    second.command(&["undo"])?;
    differs(&[])?;
    second.reload(&text(&keys[1], "policy = \"hash\"\n"))?;
    differs(&["file"])?;
    second.reload(&text(&keys[1], ""))?;
    differs(&[])?;
    second.command(&["drain", "--director"])?;
    wait::until("the other's drain is known", || Ok(other(&first)?["state"] == "unready"))?;
    second.command(&["undrain", "--director"])?;

    flood(&hosts[1], SocketAddr::from((hosts[0].address(), 9_181)))?;
    wait::until("a flood of datagrams keeps nobody from being heard", || {
        Ok(other(&first)?["state"] == "ready" && other(&second)?["state"] == "ready")
    })?;
    second.daemon().kill9()?;
    wait::until("a dead one is silent", || Ok(other(&first)?["state"] == "silent"))?;
    ensure!(first.status()?.directors == [format!("{} is silent", addresses[1])]);
    with_secret(&hosts[1], &SECRET.replace('1', "2"))?;
    second.start_again()?;
    wait::until("another secret is told", || Ok(other(&first)?["refused"]["reason"] == "forged"))
}

/// Sends datagrams of all lengths from a host of the farm.
fn flood(from: &Host, to: SocketAddr) -> Result<()> {
    let address: IpAddr = from.address().into();
    from.enter(|| -> Result<()> {
        let socket = UdpSocket::bind((address, 0))?;
        for number in 0..50_000_usize {
            let mut bytes = vec![number as u8; number % 1_200];
            if let Some(magic) = bytes.first_chunk_mut() {
                *magic = *b"EVNR";
            }
            // A full queue drops some datagrams.
            let _ = socket.send_to(&bytes, to);
        }
        Ok(())
    })?
}
