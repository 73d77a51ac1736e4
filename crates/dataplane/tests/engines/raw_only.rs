//! The packet engine with CAP_NET_RAW as its only capability, in a user namespace.

use std::env;
use std::process::Command;

use evener_core::net::wire::TCP_SYN;
use evener_dataplane::packet::PacketEngine;
use evener_dataplane::{Engine, EngineError};

use crate::frames::{Bench, SERVER};
use crate::hosts::VIP;
use crate::{options, server, session_file, tables};

const INSIDE: &str = "EVENER_TEST_RAW_ONLY";

/// Runs the test of this name again in a new user namespace: after `setup`, with CAP_NET_RAW only.
fn again(test: &str, setup: &str) {
    let cables = "ip link set lo up; ip link add in0 type veth peer name in1; \
                  ip link add out0 type veth peer name out1; \
                  for i in in0 in1 out0 out1; do ip link set $i up; echo 0 > /proc/sys/net/ipv4/conf/$i/forwarding; done";
    let drop = "exec setpriv --inh-caps=-all,+net_raw --bounding-set=-all,+net_raw";
    let script = format!("set -e; {cables}; {setup}; {drop} \"$@\"");
    let program = env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["-Urn", "sh", "-c", &script, "sh"])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unshare failed") {
        println!("skipped: this system allows no user namespaces");
        return;
    }
    assert!(output.status.success(), "{}\n{errors}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

fn inside() -> bool {
    env::var_os(INSIDE).is_some()
}

fn capabilities() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim().to_owned()
}

fn apply_to(engine: &mut PacketEngine, bench: &Bench) -> Result<(), EngineError> {
    let tables = tables(&bench.interfaces(), &[server(SERVER, bench.outside.0)], true);
    engine.apply(&tables.into())
}

#[test]
fn frames_are_forwarded() {
    if !inside() {
        return again("raw_only::frames_are_forwarded", "true");
    }
    assert_eq!(capabilities(), "0000000000002000");
    let bench = Bench::over_cables();
    let mut engine = PacketEngine::start(options(session_file())).unwrap();
    apply_to(&mut engine, &bench).unwrap();
    assert_eq!(bench.reaches(1000, TCP_SYN), SERVER);
    assert!(engine.describe().contains("no guard needed"), "{}", engine.describe());
    Box::new(engine).leave(false).unwrap();
}

#[test]
fn a_host_that_would_answer_itself_is_refused() {
    if !inside() {
        return again(
            "raw_only::a_host_that_would_answer_itself_is_refused",
            &format!("ip addr add {VIP}/32 dev lo"),
        );
    }
    let mut engine = PacketEngine::start(options(session_file())).unwrap();
    let error = apply_to(&mut engine, &Bench::over_cables()).unwrap_err();
    assert!(
        matches!(&error, EngineError::Host(why) if why.contains("has the service address 192.0.2.100")),
        "{error}"
    );
    Box::new(engine).leave(false).unwrap();
}

#[test]
fn hidden_clients_need_a_guard() {
    use evener_core::path::tables::Forwarding;
    if !inside() {
        return again("raw_only::hidden_clients_need_a_guard", "true");
    }
    let bench = Bench::over_cables();
    let mut engine = PacketEngine::start(options(session_file())).unwrap();
    let to = std::net::SocketAddr::from(([10, 0, 5, 2], 8080));
    let way = Forwarding::Nat { to, own: [10, 0, 5, 1].into(), source_nat: true, mtu: 1500 };
    let nat = evener_core::path::tables::ServerEntry { forwarding: way, ..server(SERVER, bench.outside.0) };
    let tables = tables(&bench.interfaces(), &[nat], true);
    let error = engine.apply(&tables.into()).unwrap_err();
    assert!(matches!(&error, EngineError::Host(why) if why.contains("switch source_nat off")), "{error}");
    Box::new(engine).leave(false).unwrap();
}

#[test]
fn a_host_that_forwards_is_refused() {
    if !inside() {
        let on = "echo 1 > /proc/sys/net/ipv4/conf/in0/forwarding";
        return again("raw_only::a_host_that_forwards_is_refused", on);
    }
    let mut engine = PacketEngine::start(options(session_file())).unwrap();
    let error = apply_to(&mut engine, &Bench::over_cables()).unwrap_err();
    assert!(
        matches!(&error, EngineError::Host(why) if why.contains("forwards what comes in on in0")),
        "{error}"
    );
    Box::new(engine).leave(false).unwrap();
}
