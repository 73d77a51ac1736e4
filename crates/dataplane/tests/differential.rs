//! The Rust core and the C must be one program: the same packets through both, the same verdicts, the same
//! bytes, the same sessions, the same counts.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use evener_core::decide::{Decision, Memory, Reason, Verdict, decide};
use evener_core::farm::Protocol;
use evener_core::select::Counts;
use evener_core::sessions::{Bucket, Seed, Session, Sessions, buckets_for, ticks};
use evener_core::tables::{
    Delta, HASH_SLOTS, IdleTicks, Pick, Ring, SERVER_SLOTS, ServerEntry, Tables, Vip, VipKey,
};
use evener_core::wire::Mac;
use evener_dataplane::xdp::{Options, XdpEngine};
use evener_dataplane::{Engine, EngineError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const SEED: Seed = Seed(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER_SIDE: Mac = Mac([2, 0, 0, 0, 0, 2]);
const SESSIONS: usize = 512;
const NOW: u32 = 5_000_000;
/// Long enough that both sides' clocks never disagree on who is alive.
const IDLE: IdleTicks =
    IdleTicks { syn: ticks(600_000), tcp: ticks(900_000), closing: ticks(700_000), udp: ticks(800_000) };

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, last)
}

/// Three services of one policy each, five servers, one of them here and one down; two interfaces.
fn tables() -> Tables {
    let mut tables = Tables::default();
    tables.interfaces.insert(1, OWN);
    tables.interfaces.insert(77, OTHER_SIDE);
    for slot in 1..=5u16 {
        tables.servers.insert(
            slot,
            ServerEntry {
                identity: slot.into(),
                mac: Mac([2, 0, 0, 0, 1, slot as u8]),
                ifindex: if slot == 2 { 77 } else { 1 },
                weight: slot,
                up: slot != 5,
                local: slot == 4,
            },
        );
    }
    let services = [
        (100, Protocol::Tcp, Pick::Hash),
        (101, Protocol::Tcp, Pick::Cursor),
        (102, Protocol::Tcp, Pick::Least),
        (100, Protocol::Udp, Pick::Cursor),
    ];
    for (service, (last, protocol, pick)) in services.into_iter().enumerate() {
        let service = service as u16;
        let vip = Vip { id: service + 1, service, announce: last != 102, pick, idle: IDLE };
        tables.vips.insert(VipKey { address: address(last), port: 80, protocol }, vip);
        let order = vec![1, 2, 3, 1, 4, 5];
        let hash = (0..HASH_SLOTS).map(|slot| 1 + (slot % 5) as u16).collect();
        tables.rings.insert(service, Arc::new(Ring { order, hash }));
    }
    // A service without a server.
    let empty = Vip { id: 9, service: 9, announce: false, pick: Pick::Hash, idle: IDLE };
    tables.vips.insert(VipKey { address: address(103), port: 80, protocol: Protocol::Tcp }, empty);
    tables.rings.insert(9, Arc::default());
    tables
}

/// The core with memory of its own.
struct Core {
    tables: Tables,
    buckets: Vec<Bucket>,
    active: Vec<AtomicU64>,
    cursors: Vec<AtomicU64>,
    reasons: BTreeMap<Reason, u64>,
}

impl Core {
    fn new() -> Self {
        Core {
            tables: tables(),
            buckets: (0..buckets_for(SESSIONS)).map(|_| Bucket::default()).collect(),
            active: (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            cursors: (0..64).map(|_| AtomicU64::new(0)).collect(),
            reasons: Reason::ALL.iter().map(|reason| (*reason, 0)).collect(),
        }
    }

    fn memory(&self) -> Memory<'_> {
        Memory {
            sessions: Sessions::new(&self.buckets, &self.active),
            counts: Counts { cursors: &self.cursors, active: &self.active },
            seed: SEED,
        }
    }

    fn decide(&mut self, frame: &mut [u8]) -> Decision {
        let decision = decide(&self.tables, &self.memory(), frame, 1, NOW);
        for reason in [Some(decision.reason), decision.beside].into_iter().flatten() {
            *self.reasons.entry(reason).or_default() += 1;
        }
        decision
    }
}

fn engine() -> Option<XdpEngine> {
    let options = Options { sessions_max: SESSIONS, seed: SEED, mode: None, pins: None };
    match XdpEngine::start(options) {
        Ok(engine) => Some(engine),
        Err(EngineError::Privilege { what, capability }) => {
            println!("skipped: {what} needs {capability}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Loads tables without attaching: interface 77 doesn't exist.
fn load(engine: &mut XdpEngine, tables: &Tables) {
    engine.load_tables(&Delta::between(&Tables::default(), tables), &Arc::new(tables.clone())).unwrap();
}

#[derive(Clone, Debug)]
struct Plan {
    client: u8,
    port: u16,
    vip: u8,
    dport: u16,
    udp: bool,
    flags: u8,
    payload: usize,
    mutation: Mutation,
}

#[derive(Clone, Debug)]
enum Mutation {
    None,
    SetByte(usize, u8),
    SetHeaderByte(usize, u8),
    Truncate(usize),
    Extend(usize),
    Arp { operation: u16, target: u8, sender: u8, len: usize },
    Random(Vec<u8>),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        6 => Just(Mutation::None),
        2 => (0usize..80, any::<u8>()).prop_map(|(at, to)| Mutation::SetByte(at, to)),
        3 => (12usize..48, any::<u8>()).prop_map(|(at, to)| Mutation::SetHeaderByte(at, to)),
        1 => (14usize..80).prop_map(Mutation::Truncate),
        1 => (1usize..100).prop_map(Mutation::Extend),
        1 => (0u16..4, 98u8..106, 98u8..106, 14usize..70)
            .prop_map(|(operation, target, sender, len)| Mutation::Arp { operation, target, sender, len }),
        1 => prop::collection::vec(any::<u8>(), 14..128).prop_map(Mutation::Random),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let flags =
        prop_oneof![4 => Just(0x02), 4 => Just(0x10), 1 => Just(0x11), 1 => Just(0x04), 1 => any::<u8>()];
    (
        0u8..12,
        1000u16..1008,
        99u8..105,
        prop_oneof![9 => Just(80u16), 1 => Just(81)],
        prop::bool::weighted(0.25),
        flags,
        0usize..64,
        mutation(),
    )
        .prop_map(|(client, port, vip, dport, udp, flags, payload, mutation)| Plan {
            client,
            port,
            vip,
            dport,
            udp,
            flags,
            payload,
            mutation,
        })
}

fn frame(plan: &Plan) -> Vec<u8> {
    let transport = if plan.udp { 8 } else { 20 };
    let total = 20 + transport + plan.payload;
    let mut frame = vec![0u8; 14 + total];
    frame[0..6].copy_from_slice(&OWN.0);
    frame[6..12].copy_from_slice(&[2, 0, 0, 9, 9, 9]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(total as u16).to_be_bytes());
    frame[22] = 64;
    frame[23] = if plan.udp { 17 } else { 6 };
    frame[26..30].copy_from_slice(&[203, 0, 113, plan.client]);
    frame[30..34].copy_from_slice(&address(plan.vip).octets());
    frame[34..36].copy_from_slice(&plan.port.to_be_bytes());
    frame[36..38].copy_from_slice(&plan.dport.to_be_bytes());
    if plan.udp {
        frame[38..40].copy_from_slice(&((8 + plan.payload) as u16).to_be_bytes());
    } else {
        frame[46] = 0x50;
        frame[47] = plan.flags;
    }
    mutate(frame, &plan.mutation)
}

fn mutate(mut frame: Vec<u8>, mutation: &Mutation) -> Vec<u8> {
    match mutation {
        Mutation::None => {}
        Mutation::SetByte(at, to) | Mutation::SetHeaderByte(at, to) => {
            if let Some(byte) = frame.get_mut(*at) {
                *byte = *to;
            }
        }
        Mutation::Truncate(len) => frame.truncate(*len),
        Mutation::Extend(by) => frame.resize(frame.len() + by, 0xaa),
        Mutation::Arp { operation, target, sender, len } => {
            let mut arp = vec![0u8; 64];
            arp[0..6].copy_from_slice(&[0xff; 6]);
            arp[6..12].copy_from_slice(&[2, 0, 0, 9, 9, 9]);
            arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, *operation as u8]);
            arp[22..28].copy_from_slice(&[2, 0, 0, 9, 9, 9]);
            arp[28..32].copy_from_slice(&address(*sender).octets());
            arp[38..42].copy_from_slice(&address(*target).octets());
            arp.truncate(*len);
            frame = arp;
        }
        Mutation::Random(bytes) => frame = bytes.clone(),
    }
    frame
}

fn same_verdict(core: Verdict, c: Verdict) -> bool {
    match (core, c) {
        // A test run comes in by interface 1 and doesn't tell where else a frame was sent.
        (Verdict::Forward { ifindex: 1 }, Verdict::Forward { ifindex: 1 }) => true,
        (Verdict::Forward { ifindex: 77 }, Verdict::Forward { ifindex: 0 }) => true,
        (Verdict::Pass, Verdict::Pass) | (Verdict::Drop, Verdict::Drop) => true,
        _ => false,
    }
}

/// Sessions without their expiry: the core's clock stands still, the kernel's doesn't.
fn sessions(memory: &Memory<'_>, now: u32) -> Vec<(u64, u16, &'static str)> {
    let of = |s: Session| (s.key.0, s.value.server(), s.value.state().name());
    let mut sessions: Vec<_> = memory.sessions.list(now).map(of).collect();
    sessions.sort_unstable();
    sessions
}

#[test]
fn core_and_c_agree_on_random_and_mutated_packets() {
    if engine().is_none() {
        return;
    }
    let mut runner = TestRunner::new(Config { cases: 64, ..Config::default() });
    runner
        .run(&prop::collection::vec(plan(), 1..250), |plans| {
            let mut core = Core::new();
            let mut c = engine().expect("it started before");
            load(&mut c, &core.tables);
            for plan in &plans {
                let before = frame(plan);
                let mut after = before.clone();
                let decision = core.decide(&mut after);
                let (verdict, bytes) = c.test_run(&before).map_err(|e| TestCaseError::fail(e.to_string()))?;
                prop_assert!(
                    same_verdict(decision.verdict, verdict),
                    "{decision:?} but {verdict:?} for {before:02x?}"
                );
                prop_assert_eq!(&after, &bytes, "{:?}", decision);
            }
            prop_assert_eq!(sessions(&core.memory(), NOW), sessions(&c.memory(), c.now()));
            let counters = c.counters().map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(&core.reasons, &counters.reasons);
            let active = |m: &Memory<'_>| -> Vec<u64> {
                m.counts.active.iter().map(|n| n.load(std::sync::atomic::Ordering::Relaxed)).collect()
            };
            prop_assert_eq!(active(&core.memory()), active(&c.memory()));
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_full_table_goes_by_the_hash_alike() {
    let Some(mut c) = engine() else { return };
    let mut core = Core::new();
    load(&mut c, &core.tables);
    for flow in 0..4000u32 {
        let plan = Plan {
            client: (flow % 250) as u8,
            port: (1000 + flow / 250) as u16,
            vip: 101,
            dport: 80,
            udp: false,
            flags: 0x02,
            payload: 0,
            mutation: Mutation::None,
        };
        let before = frame(&plan);
        let mut after = before.clone();
        core.decide(&mut after);
        assert_eq!(c.test_run(&before).unwrap().1, after, "flow {flow}");
    }
    let counters = c.counters().unwrap();
    assert_eq!(core.reasons, counters.reasons);
    assert!(counters.reasons[&Reason::TableFull] > 1000, "{counters:?}");
    assert_eq!(sessions(&core.memory(), NOW), sessions(&c.memory(), c.now()));
}
