//! If the kernel refuses a step of a change, or the daemon is killed at any step, the active tables
//! are either the old or the new ones. The reported tables are the active ones.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use evener_core::net::Protocol;
use evener_core::net::wire::{Mac, TCP_ACK, TCP_SYN};
use evener_core::path::tables::{
    Forwarding, HASH_SLOTS, ReplyOrigin, Ring, ServerEntry, Tables, Vip, VipKey,
};
use evener_dataplane::Engine;
use evener_dataplane::packet::PacketEngine;
use evener_dataplane::refusals::Refusals;
use evener_dataplane::xdp::pins;

use crate::frames::{Bench, SERVER, two_servers};
use crate::hosts::{Host, index_of, mac_of, run, up};
use crate::kernel::{kernel_engine, restart};
use crate::{key, options, server, session_file, skipped};

/// Limit against endless loops, above the number of calls of any change.
const CALLS_MAX: u64 = 500;

/// Returns tables that differ in all parts. The first server gets no sessions, the second is gone,
/// and a third is new. One service with NAT servers, one peer and one interface are added.
fn changed(bench: &Bench) -> Tables {
    let mut tables = two_servers(bench);
    tables.servers.remove(&2);
    tables.servers.insert(3, server(Mac([2, 0, 0, 0, 0, 3]), bench.outside.0));
    let only = |slot| {
        Arc::new(Ring {
            order: vec![slot],
            hash: vec![slot; HASH_SLOTS].into(),
            previous: [].into(),
            second: [].into(),
        })
    };
    tables.rings.insert(0, only(3));
    let (to, own) = (SocketAddr::from(([172, 16, 0, 2], 8080)), IpAddr::V4(Ipv4Addr::new(172, 16, 0, 1)));
    let way = Forwarding::Nat { to, own, source_nat: false, mtu: 1500 };
    tables
        .servers
        .insert(4, ServerEntry { forwarding: way, identity: 99, ..server(SERVER, bench.outside.0) });
    tables.rings.insert(1, only(4));
    let second = VipKey { port: 443, ..key() };
    let vip = Vip { id: 2, service: 1, ..tables.vips[&key()] };
    tables.vips.insert(second, vip);
    let endpoint = VipKey { address: to.ip(), port: to.port(), protocol: Protocol::Tcp };
    tables.endpoints.insert(endpoint, vec![ReplyOrigin { vip: 2, server: 4 }]);
    tables.peers.insert(Mac([2, 0, 0, 0, 0, 77]));
    tables.interfaces.insert(index_of("more0"), mac_of("more0"));
    tables
}

/// Creates the bench with one more interface.
fn farm() -> Bench {
    run("ip link add more0 type veth peer name more1");
    ["more0", "more1"].into_iter().for_each(up);
    Bench::set_up()
}

/// Client ports with sessions on both servers. The refused tables lack one of the servers.
const PORTS: std::ops::Range<u16> = 1000..1004;

fn servers(bench: &Bench, flags: u8) -> Vec<Mac> {
    PORTS.map(|port| bench.reaches(port, flags)).collect()
}

/// Refuses the first call of a change, then the second, and so on through all calls. `look` checks
/// the engine after each change.
fn refuse_each<E: Engine>(
    bench: &Bench,
    engine: &mut E,
    refusals: &Refusals,
    look: impl Fn(&E, &Tables, u64),
) {
    let (before, after) = (Arc::new(two_servers(bench)), Arc::new(changed(bench)));
    engine.apply(&before).unwrap();
    let description = engine.describe();
    let theirs = servers(bench, TCP_SYN);
    for number in 1..CALLS_MAX {
        refusals.refuse(number, libc::ENOMEM);
        let applied = engine.apply(&after);
        let came = refusals.relent();
        let in_force = if applied.is_ok() { &after } else { &before };
        assert!(came || applied.is_ok(), "{applied:?}");
        assert_eq!(engine.tables(), in_force, "{number}: {applied:?}");
        look(engine, in_force, number);
        if applied.is_err() {
            assert_eq!(engine.describe(), description, "{number}");
            // Sessions keep their servers, and new sessions follow the active tables.
            assert_eq!(servers(bench, TCP_ACK), theirs, "{number}: {applied:?}");
            let new = 2000 + 2 * number as u16;
            assert_ne!(bench.reaches(new, TCP_SYN), bench.reaches(new + 1, TCP_SYN), "{number}: in turn");
        }
        // The change succeeds when the calls are no longer refused, and so does a change back.
        engine.apply(&after).unwrap();
        assert_eq!(engine.tables(), &after);
        look(engine, &after, number);
        engine.apply(&before).unwrap();
        look(engine, &before, number);
        assert_eq!(engine.describe(), description);
        if !came {
            assert!(number > 3, "nothing was refused");
            return;
        }
    }
    panic!("a change takes more than {CALLS_MAX} calls");
}

#[test]
fn kernel_engine_reports_every_refused_call() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = farm();
        let dir = pins::directory().unwrap();
        let mut engine = kernel_engine(None, Some(dir.clone()), two_servers(&bench));
        let refusals = Refusals::of(&[libc::SYS_bpf]).unwrap();
        // Reads the maps like a daemon that starts now.
        refuse_each(&bench, &mut engine, &refusals, |engine, in_force, number| {
            assert_eq!(&engine.read_again(), in_force, "{number}");
            let pinned = std::fs::read_dir(&dir).unwrap().flatten();
            let links = pinned.filter(|entry| entry.file_name().to_string_lossy().contains("link-")).count();
            assert_eq!(links, in_force.interfaces.len(), "{number}");
        });
        Box::new(engine).leave(false).unwrap();
        assert!(!dir.exists());
    });
}

#[test]
fn packet_engine_reports_every_refused_call() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = farm();
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        let calls = [
            libc::SYS_socket,
            libc::SYS_bind,
            libc::SYS_setsockopt,
            libc::SYS_pipe2,
            libc::SYS_clone3,
            libc::SYS_execve,
            libc::SYS_sendmsg,
        ];
        let refusals = Refusals::of(&calls).unwrap();
        refuse_each(&bench, &mut engine, &refusals, |_, in_force, number| {
            let rules = run("nft list table netdev evener");
            let second = rules.contains(". 443");
            assert_eq!(second, in_force.vips.len() == 2, "{number}: {rules}");
        });
        Box::new(engine).leave(false).unwrap();
        assert!(!run("nft list tables").contains("evener"));
    });
}

/// True if the changed tables are active: then all new sessions go to one server. Checks that the
/// active tables are not a mixture.
fn is_changed(bench: &Bench, new: u16) -> bool {
    let servers = [new, new + 1].map(|port| bench.reaches(port, TCP_SYN));
    assert_eq!(
        servers[0] == servers[1],
        servers[0] == Mac([2, 0, 0, 0, 0, 3]),
        "half of a change: {servers:?}"
    );
    servers[0] == servers[1]
}

/// Runs in a child process: adopts the data plane of a previous daemon and dies at call `number` of
/// a change.
fn die_at(number: u64) {
    let bench = Bench::over_cables();
    let dir = pins::directory().unwrap();
    let mut engine = kernel_engine(None, Some(dir), two_servers(&bench));
    let refusals = Refusals::of(&[libc::SYS_bpf]).unwrap();
    refusals.kill_at(number);
    engine.apply(&Arc::new(changed(&bench))).unwrap();
    // The change needed fewer calls.
    std::process::exit(0);
}

#[test]
fn daemon_killed_during_change_leaves_consistent_tables() {
    const NAME: &str = "refused::daemon_killed_during_change_leaves_consistent_tables";
    const AT: &str = "EVENER_TEST_DIES_AT";
    if let Ok(number) = std::env::var(AT) {
        return die_at(number.parse().unwrap());
    }
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = farm();
        let dir = pins::directory().unwrap();
        let (before, after) = (Arc::new(two_servers(&bench)), Arc::new(changed(&bench)));
        let start = || kernel_engine(None, Some(dir.clone()), two_servers(&bench));
        let (mut engine, mut seen) = (start(), [0, 0]);
        let theirs = servers(&bench, TCP_SYN);
        for number in 1..CALLS_MAX {
            drop(engine);
            let daemon = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME])
                .env(AT, number.to_string())
                .output()
                .unwrap();
            let killed = daemon.status.signal() == Some(libc::SIGKILL);
            assert!(killed || daemon.status.success(), "{number}: {daemon:?}");
            // Without a daemon, the tables are those before or after the change.
            let is_after = is_changed(&bench, 2000 + 4 * number as u16);
            seen[usize::from(is_after)] += 1;
            let in_force = if is_after { &after } else { &before };
            let mine: Vec<Mac> = servers(&bench, TCP_ACK);
            let alive = |mac: &Mac| !is_after || *mac == SERVER;
            assert!(theirs.iter().zip(&mine).all(|(was, is)| was == is || !alive(was)), "{number}: {mine:?}");
            // The next daemon reports these tables and repairs the rest.
            engine = restart(&dir);
            let running = engine.running().unwrap();
            assert_eq!((&running.vips, &running.rings), (&in_force.vips, &in_force.rings), "{number}");
            assert!(in_force.servers.iter().all(|(slot, server)| running.servers.get(slot) == Some(server)));
            for wanted in [&after, &before] {
                engine.apply(wanted).unwrap();
                assert_eq!((engine.tables(), &engine.read_again()), (wanted, &**wanted), "{number}");
            }
            assert!(!is_changed(&bench, 2002 + 4 * number as u16), "{number}");
            if !killed {
                break;
            }
        }
        assert!(seen[0] > 3 && seen[1] > 0, "it died before the change, and after it at last: {seen:?}");
        Box::new(engine).leave(false).unwrap();
    });
}
