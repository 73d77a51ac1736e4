//! Packets at the limits of the fast path: packets of established sessions with every header byte
//! changed in turn, also while the tables change.

use std::sync::Arc;

use evener_core::net::wire::Mac;
use evener_core::path::decide::{Reason, Verdict};
use evener_core::path::tables::Tables;

use crate::every_host;
use crate::frames::{answer_to, datagram, segment};
use crate::world::{self, Core, L2, NAT, SOURCE_NAT, TUNNELS};
use crate::{HOOKS, Kernel, meet, sessions};
use evener_dataplane::Engine;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const SYN_ACK: u8 = 0x12;
/// Ticks after which a second datagram makes a UDP flow established.
const LASTING: u32 = 2_200;
const PORT: u16 = 1000;
/// The trace filter matches some of these clients and not others; see `told::watch`.
const CLIENTS: [u8; 3] = [1, 2, 3];

fn services() -> impl Iterator<Item = (bool, u8)> {
    let services = L2.into_iter().chain(TUNNELS).chain([NAT, SOURCE_NAT, every_host::EVERY_HOST[0]]);
    services.flat_map(|service| [(false, service), (true, service)])
}

fn flows() -> impl Iterator<Item = (bool, u8, u8)> {
    services().flat_map(|(v6, service)| CLIENTS.map(|client| (v6, service, client)))
}

/// Opens a session of each protocol with each service from each client, if the service accepts it.
fn open(core: &mut Core, c: &Kernel) {
    for (v6, service, client) in flows() {
        for flags in [SYN, ACK] {
            let (_, forwarded) = both(core, c, &segment(v6, service, client, PORT, flags));
            if flags == SYN
                && let Some(answer) = answer_to(&forwarded, SYN_ACK)
            {
                both(core, c, &answer);
            }
        }
    }
    for turn in 0..3 {
        for (v6, service, client) in flows() {
            let (_, forwarded) = both(core, c, &datagram(v6, service, client, PORT, 24));
            if turn == 0
                && let Some(answer) = answer_to(&forwarded, 0)
            {
                both(core, c, &answer);
            }
        }
        c.pass(core, LASTING);
    }
}

fn both(core: &mut Core, c: &Kernel, frame: &[u8]) -> (Option<Verdict>, Vec<u8>) {
    match meet(core, c, frame).unwrap() {
        Some((decision, after)) => (Some(decision.verdict), after),
        None => (None, Vec::new()),
    }
}

/// Sends a packet of each session, and a reply where replies pass through this director.
fn of_all(core: &mut Core, c: &Kernel) {
    for (v6, service, client) in flows() {
        for frame in [segment(v6, service, client, PORT, ACK), datagram(v6, service, client, PORT, 24)] {
            let (_, forwarded) = both(core, c, &frame);
            if let Some(answer) = answer_to(&forwarded, ACK) {
                both(core, c, &answer);
            }
        }
    }
}

fn agree(core: &Core, c: &Kernel) {
    let (reasons, servers) = c.counted();
    assert_eq!((&core.reasons, &core.servers), (&reasons, &servers));
    assert_eq!(sessions(&core.memory(), core.now), sessions(&c.engine.memory(), c.engine.now()));
}

#[test]
fn header_byte_changes_decide_the_same_on_fast_path() {
    if !crate::in_a_network() {
        return;
    }
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        open(&mut core, &c);
        let at_work = core.memory().sessions.shares().all_assured();
        assert!(at_work > 40, "{at_work} sessions are at work");
        for (v6, service) in services() {
            for whole in [segment(v6, service, 2, PORT, ACK), datagram(v6, service, 2, PORT, 24)] {
                let (_, forwarded) = both(&mut core, &c, &whole);
                let answer = answer_to(&forwarded, ACK);
                for whole in [Some(whole), answer].into_iter().flatten() {
                    let lengths = [0, 14, 34, 41, 42, 53, 54, 60, 73, 74].into_iter().map(|len| {
                        let mut frame = whole.clone();
                        frame.resize(len.max(14), 0);
                        frame
                    });
                    let changes = (0..whole.len().min(74)).flat_map(|at| {
                        [1, 0x10, 0x80, 0xff].map(|by| {
                            let mut frame = whole.clone();
                            frame[at] ^= by;
                            frame
                        })
                    });
                    for frame in lengths.chain(changes) {
                        both(&mut core, &c, &frame);
                        // The changed byte may have changed the session. The original packet
                        // restores it.
                        both(&mut core, &c, &whole);
                    }
                }
            }
        }
        agree(&core, &c);
    }
}

#[test]
fn tables_that_change_between_two_short_packets_count_at_once_alike() {
    let change = |of: fn(&mut Tables)| {
        let mut tables = world::tables();
        of(&mut tables);
        tables
    };
    let changes: [fn(&mut Tables); 7] = [
        |tables| tables.servers.values_mut().for_each(|server| server.up = false),
        |tables| tables.servers.values_mut().for_each(|server| server.weight = 0),
        |tables| tables.servers.values_mut().for_each(|server| server.mac = Mac([2, 0, 0, 0, 7, 7])),
        |tables| tables.servers.values_mut().for_each(|server| server.local = true),
        |tables| tables.vips.clear(),
        |tables| _ = tables.interfaces.insert(1, Mac([2, 0, 0, 0, 7, 1])),
        |tables| _ = tables.interfaces.remove(&1),
    ];
    if !crate::in_a_network() {
        return;
    }
    for hook in HOOKS {
        let Some(mut c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        open(&mut core, &c);
        for tables in changes.map(change) {
            c.engine.load_tables(&Arc::new(tables.clone())).unwrap();
            core.change(tables);
            of_all(&mut core, &c);
            let tables = world::tables();
            c.engine.load_tables(&Arc::new(tables.clone())).unwrap();
            core.change(tables);
            of_all(&mut core, &c);
        }
        let forwarded = core.reasons[&Reason::Forwarded];
        assert!(forwarded > 500, "{forwarded} packets went to servers");
        agree(&core, &c);
    }
}
