//! The kernel engine where it is attached.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use evener_core::decide::Reason;
use evener_core::farm::Encapsulation;
use evener_core::sessions::Seed;
use evener_core::tables::{Behind, Delta, Tables, VipKey, Way};
use evener_core::wire::{Mac, TCP_ACK, TCP_SYN};
use evener_dataplane::Engine;
use evener_dataplane::xdp::{Bench as Measure, Mode, Options, Subject, XdpEngine, pins};

use crate::frames::{Bench, two_servers};
use crate::hosts::{Host, VIP, run};
use crate::{server, skipped, tables};

pub fn kernel_engine(mode: Option<Mode>, pins: Option<PathBuf>, tables: Tables) -> XdpEngine {
    let seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
    let options = Options { sessions_max: 4096, sessions6_max: 1024, seed, ring_seed: None, mode, pins };
    let mut engine = XdpEngine::start(options).unwrap();
    let running = engine.running().cloned().unwrap_or_default();
    let mut delta = Delta::between(&running, &tables);
    // Rings are never left running.
    delta.rings = tables.rings.clone().into_iter().collect();
    engine.apply(&delta, &Arc::new(tables)).unwrap();
    engine
}

#[test]
fn veths_are_attached_by_tc_unless_told_otherwise() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        for (mode, name) in [(None, "tc"), (Some(Mode::Tc), "tc"), (Some(Mode::Generic), "generic")] {
            let engine = kernel_engine(mode, None, two_servers(&bench));
            assert_eq!(engine.describe(), format!("xdp ({name} on in0, {name} on out0)"));
            bench.reaches(1000, TCP_SYN);
            bench.reaches(1000, TCP_ACK);
            Box::new(engine).leave(false).unwrap();
        }
    });
}

#[test]
fn what_an_earlier_daemon_attached_otherwise_is_replaced_and_its_sessions_stay() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let dir = pins::directory().unwrap();
        let start = |mode| kernel_engine(mode, Some(dir.clone()), two_servers(&bench));
        let mut first = None;
        for (mode, name) in [
            (Some(Mode::Generic), "generic"),
            (None, "tc"),
            (None, "tc"),
            (Some(Mode::Generic), "generic"),
            (Some(Mode::Tc), "tc"),
        ] {
            let engine = start(mode);
            assert!(engine.describe().contains(&format!("{name} on in0")), "{}", engine.describe());
            let flags = if first.is_none() { TCP_SYN } else { TCP_ACK };
            let servers: Vec<Mac> = (0..10).map(|port| bench.reaches(1000 + port, flags)).collect();
            assert_eq!(first.get_or_insert_with(|| servers.clone()), &servers);
            // Dropped as by a kill: what is pinned stays at work.
            drop(engine);
            assert_eq!(first, Some((0..10).map(|port| bench.reaches(1000 + port, TCP_ACK)).collect()));
        }
        Box::new(start(None)).leave(false).unwrap();
        assert!(!dir.exists());
    });
}

/// A service whose one server is reached in this way, on the loopback interface.
fn farm(way: Way) -> Arc<Tables> {
    let own = Mac([2, 0, 0, 0, 0, 1]);
    let entry = evener_core::tables::ServerEntry { way, ..server(Mac([2, 0, 0, 0, 0, 9]), 1) };
    let mut tables = tables(&[(1, own)], &[entry], false);
    if let Way::Nat { to, .. } = way {
        let protocol = evener_core::farm::Protocol::Tcp;
        let endpoint = VipKey { address: to.ip(), port: to.port(), protocol };
        tables.endpoints.insert(endpoint, vec![Behind { vip: 1, server: 1 }]);
    }
    Arc::new(tables)
}

#[test]
fn every_subject_of_the_bench_does_what_is_measured() {
    if skipped() {
        return;
    }
    Host::new("bench").enter(|| {
        for setting in ["all", "lo"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{setting}/forwarding"), "1").unwrap();
        }
        run("ip link add out0 type veth peer name out1");
        run("ip link set out0 up");
        run("ip link set out1 up");
        run("ip addr add 172.16.0.1/24 dev out0");
        run("ip neigh add 172.16.0.9 lladdr 02:00:00:00:00:77 dev out0");
        run("ip route add 10.0.0.0/8 via 172.16.0.9");
        let (to, own) = (SocketAddr::from(([172, 16, 0, 2], 8080)), Ipv4Addr::new(172, 16, 0, 1).into());
        let nat = Way::Nat { to, own, source_nat: false, mtu: 1500 };
        let tunnel = Way::Tunnel {
            encapsulation: Encapsulation::Ipip,
            from: own,
            to: to.ip(),
            mtu: 1500,
            last: false,
        };
        let subjects = [
            (Subject::Wrapper, Way::Link),
            (Subject::L2, Way::Link),
            (Subject::NatIn, nat),
            (Subject::NatOut, nat),
            (Subject::Tunnel, tunnel),
            (Subject::Yardstick, Way::Link),
        ];
        for (subject, way) in subjects {
            let bench = Measure::new(4096, &farm(way), VIP).unwrap();
            bench.open(subject, 256).unwrap();
            bench.established(subject, 256, 10_000).unwrap();
            let opened = match subject {
                Subject::Wrapper | Subject::Yardstick => 0,
                _ => 256,
            };
            assert_eq!(bench.fill().0, opened, "{subject:?}");
            let reasons = bench.counters().unwrap().reasons;
            let expected = match subject {
                Subject::Wrapper | Subject::Yardstick => (0, 0),
                Subject::NatOut => (512, 10_000),
                _ => (10_512, 0),
            };
            assert_eq!((reasons[&Reason::Forwarded], reasons[&Reason::Answered]), expected, "{subject:?}");
        }
    });
}
