//! The Rust core and the C program must behave alike: the same packets give the same verdicts,
//! bytes, sessions and counts. The C program runs as XDP and as TC.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod budget;
mod every_host;
mod fast_path;
mod frames;
mod full;
mod handoff;
mod limits;
mod payloads;
mod resize;
mod server;
mod stories;
mod told;
mod verifier;
mod walk;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evener_core::path::cookie::Schedule;
use evener_core::path::decide::{Decision, HELD_FRAME_MAX, Memory, Reason, Verdict};
use evener_core::path::fragments::Track;
use evener_core::path::guesses::VIP_WORDS;
use evener_core::path::mark::PASSED;
use evener_core::path::sessions::Session;
use evener_core::path::tables::Tables;
use evener_core::path::tables::VIP_IDS;
use evener_core::path::unmatched;
use evener_dataplane::events::EventSource;
use evener_dataplane::xdp::{Hook, Options, XdpEngine, pins};
use evener_dataplane::{Engine, EngineError, ServerCounters};
use nix::sched::{CloneFlags, unshare};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use every_host::{EVERY_HOST, SOURCES};
use frames::{Plan, plan};
use handoff::SynOffer;
use world::{Core, NOW, RING_SEED, SEED, SESSIONS, limits, scores_at};

/// Random cases per round: of up to 199 packets each, and of up to 79 segments each to services
/// with handoff.
const STORIES: u32 = 80;
const HANDOFF_STORIES: u32 = 100;
/// Limit of rounds. Each reason must occur in one of them.
const ROUNDS_MAX: u64 = 10;

const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tc];

/// The C program. Its maps contain only the data of the current round.
struct Kernel {
    engine: XdpEngine,
    hook: Hook,
    events: RefCell<Box<dyn EventSource>>,
    traced_count: RefCell<usize>,
    reasons: BTreeMap<Reason, u64>,
    servers: BTreeMap<u16, ServerCounters>,
}

impl Kernel {
    fn start(hook: Hook) -> Option<Kernel> {
        let options = Options {
            sessions_max: SESSIONS,
            sessions6_max: SESSIONS,
            seed: SEED,
            ring_seed: Some(RING_SEED),
            mode: None,
            pins: None,
        };
        match XdpEngine::start_at(options, NOW) {
            Ok(mut engine) => {
                world::load(&mut engine);
                let (reasons, servers) = Default::default();
                engine.watch(&told::watch()).unwrap();
                let events = RefCell::new(engine.events().unwrap());
                Some(Kernel { engine, hook, events, traced_count: RefCell::default(), reasons, servers })
            }
            Err(EngineError::Privilege { what, capability }) => {
                println!("skipped: {what} needs {capability}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Advances the clocks of the core and of the C program.
    fn pass(&self, core: &mut Core, ticks: u32) {
        core.now = core.now.wrapping_add(ticks);
        self.engine.set_clock(core.now);
        core.memory().counts.score(&scores_at(core.now));
        self.engine.memory().counts.score(&scores_at(core.now));
    }

    /// Prepares the maps for the next round.
    fn clear(&mut self, core: &Core) {
        let (memory, now) = (self.engine.memory(), self.engine.now());
        memory.sessions.clear(now);
        memory.sessions.end_move();
        memory.sessions.begin_move([SESSIONS; 2]);
        memory.sessions.end_move();
        memory.ports.clear(now);
        let affinities = memory.sessions.affinity_counts().0;
        assert!(affinities.iter().step_by(2).all(|entries| entries.load(Relaxed) == 0));
        let words = memory.counts.cursors.iter().chain(memory.unmatched.0).chain(memory.guesses.0);
        words.chain(affinities).for_each(|word| word.store(0, Relaxed));
        assert!(memory.counts.active.iter().all(|count| count.load(Relaxed) == 0));
        assert_eq!(memory.sessions.shares().all_assured(), 0);
        self.engine.set_clock(NOW);
        self.engine.memory().counts.score(&scores_at(NOW));
        // Expired before the next round begins. Tracks that expire at the same time as the round's
        // clock would become valid again when the next clock approaches that time.
        for (key, track) in core.fragments.0.borrow().iter() {
            memory.fragments.note(key, Track { expires: NOW.wrapping_sub(1), ..*track });
        }
        let counters = self.engine.counters().unwrap();
        (self.reasons, self.servers) = (counters.reasons, counters.servers);
    }

    /// Returns the counts of this round.
    fn counted(&self) -> (BTreeMap<Reason, u64>, BTreeMap<u16, ServerCounters>) {
        let counters = self.engine.counters().unwrap();
        let reasons = counters.reasons.iter().map(|(reason, count)| {
            (*reason, count.wrapping_sub(self.reasons.get(reason).copied().unwrap_or_default()))
        });
        let servers = counters.servers.iter().map(|(slot, now)| {
            let then = self.servers.get(slot).copied().unwrap_or_default();
            let since = ServerCounters {
                packets: now.packets - then.packets,
                bytes: now.bytes - then.bytes,
                connections: now.connections - then.connections,
            };
            (*slot, since)
        });
        let reasons = reasons.filter(|(_, count)| *count != 0).collect();
        (reasons, servers.filter(|(_, since)| *since != ServerCounters::default()).collect())
    }
}

/// Ticks between packets. No round is longer than a session's idle timeout.
const PAUSES: [u32; 5] = [0, 3, 900, 0, 2_500];

fn same_verdict(hook: Hook, decision: &Decision, c: Verdict) -> bool {
    match (decision.verdict, c) {
        // TC hands a frame to the host's stack by a redirect to an unresolved neighbour.
        (Verdict::HostStack { .. }, Verdict::Forward { ifindex: 0 }) => hook == Hook::Tc,
        // Test runs use interface 1. The result shows no other interface of a redirect, and for TC
        // no interface at all.
        (Verdict::Forward { ifindex }, Verdict::Forward { ifindex: traced }) => {
            traced == if ifindex == 1 && hook == Hook::Xdp { 1 } else { 0 }
        }
        (Verdict::Pass | Verdict::HostStack { .. }, Verdict::Pass)
        | (Verdict::Drop | Verdict::Hold, Verdict::Drop) => true,
        _ => false,
    }
}

/// Returns all sessions with all their bits.
fn sessions(memory: &Memory<'_>, now: u32) -> Vec<String> {
    let of = |s: Session| format!("{:?} {:?} {:x}", s.key, s.value.state(), s.value.0);
    let mut sessions: Vec<_> = memory.sessions.list(now).map(of).collect();
    sessions.sort_unstable();
    sessions
}

/// Passes a frame to the core and to the C program, compares the results, and returns the core's
/// result.
fn meet(core: &mut Core, c: &Kernel, before: &[u8]) -> Result<Option<(Decision, Vec<u8>)>, TestCaseError> {
    let hook = c.hook;
    let (verdict, bytes) = match c.engine.test_run(hook, before) {
        // TC's test run rejects frames that end before the IP header of their EtherType.
        Err(EngineError::System { source, .. })
            if hook == Hook::Tc && before.len() < 54 && source.raw_os_error() == Some(22) =>
        {
            return Ok(None);
        }
        ran => ran.map_err(|error| TestCaseError::fail(error.to_string()))?,
    };
    let (decision, after) = core.decide(before);
    let events = c.events.borrow_mut().read(Duration::ZERO).unwrap();
    let traced: Vec<_> = events.into_iter().map(told::without_clock).collect();
    let expected = told::expected(before, &decision, &after);
    *c.traced_count.borrow_mut() += traced.len();
    prop_assert!(
        traced == expected,
        "{hook:?}: told {traced:02x?} instead of {expected:02x?} for {before:02x?}"
    );
    prop_assert!(
        same_verdict(hook, &decision, verdict),
        "{hook:?}: {decision:?} but {verdict:?} for {before:02x?}; the C counted {:?}",
        c.counted().0,
    );
    if !matches!(decision.verdict, Verdict::Drop | Verdict::Hold) {
        prop_assert!(after == bytes, "{hook:?}: {decision:?}\n{}", difference(before, &after, &bytes));
    }
    Ok(Some((decision, after)))
}

fn difference(before: &[u8], core: &[u8], c: &[u8]) -> String {
    let at = core.iter().zip(c).position(|(core, c)| core != c);
    format!("first differs at {at:?}\nbefore {before:02x?}\ncore   {core:02x?}\nC      {c:02x?}")
}

/// Grows and shrinks both tables, with some packets between two steps.
fn resize(turn: usize, memory: &Memory<'_>, now: u32) {
    let sessions = &memory.sessions;
    let all = sessions.buckets();
    match turn % 12 {
        1 if !sessions.is_resizing() => sessions.begin_move([[4, 200], [200, 16], [16, 4]][turn / 12 % 3]),
        4 => drop(sessions.move_some(0..all / 3, SEED, now)),
        // A table that is too small for all sessions keeps both extents in use.
        10 if sessions.move_some(0..all, SEED, now) == 0 => sessions.end_move(),
        _ => {}
    }
}

fn round(plans: &[Plan], c: &Kernel, core: &mut Core) -> TestCaseResult {
    let mut seen = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        c.pass(core, PAUSES[number % PAUSES.len()]);
        resize(number, &core.memory(), core.now);
        resize(number, &c.engine.memory(), c.engine.now());
        let Some(before) = plan.frame(&seen) else { continue };
        let Some((decision, after)) = meet(core, c, &before)? else { continue };
        if matches!(decision.reason, Reason::Forwarded | Reason::Answered | Reason::Local) {
            seen.push(after);
        }
    }
    let (reasons, servers) = c.counted();
    prop_assert_eq!(&core.reasons, &reasons);
    prop_assert_eq!(&core.servers, &servers);
    let memory = c.engine.memory();
    prop_assert_eq!(sessions(&core.memory(), core.now), sessions(&memory, c.engine.now()));
    prop_assert_eq!(core.memory().ports.taken(core.now), memory.ports.taken(c.engine.now()));
    let active = |m: &Memory<'_>| -> Vec<u64> { m.counts.active.iter().map(|n| n.load(Relaxed)).collect() };
    prop_assert_eq!(active(&core.memory()), active(&memory));
    let shares =
        |m: &Memory<'_>| -> Vec<u64> { m.sessions.shares().0.iter().map(|n| n.load(Relaxed)).collect() };
    prop_assert_eq!(shares(&core.memory()), shares(&memory));
    let affinities = |m: &Memory<'_>| -> Vec<u64> {
        m.sessions.affinity_counts().0.iter().map(|n| n.load(Relaxed)).collect()
    };
    prop_assert_eq!(affinities(&core.memory()), affinities(&memory));
    Ok(())
}

/// Counts of all rounds, which show that every path was taken.
#[derive(Default)]
struct Coverage(BTreeMap<Reason, u64>);

fn agree(hook: Hook, number: u64, coverage: &mut Coverage) {
    let Some(mut c) = Kernel::start(hook) else { return };
    let mut held = 0;
    let coverage = std::cell::RefCell::new(coverage);
    let state = std::cell::RefCell::new((&mut c, &mut held));
    // Remaining ticks of the address lease.
    let lease = prop_oneof![4 => Just(None), 2 => Just(Some(100_000u32)), 2 => Just(Some(0u32))];
    let limit = prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(3)];
    let story = (prop::collection::vec(plan(), 1..200), lease, limit);
    let outcome = stories::runner(STORIES, number).run(&story, |(plans, lease, limit)| {
        let mut core = Core::new();
        let mut state = state.borrow_mut();
        let (c, held) = &mut *state;
        core.memory().lease.set(lease.map(|left| NOW + left));
        c.engine.memory().lease.set(lease.map(|left| c.engine.now() + left));
        core.memory().counts.limit(&limits(limit));
        c.engine.memory().counts.limit(&limits(limit));
        let result = round(&plans, c, &mut core);
        **held += core.reasons.get(&Reason::FragmentHeld).copied().unwrap_or_default();
        for (reason, count) in &core.reasons {
            *coverage.borrow_mut().0.entry(*reason).or_default() += count;
        }
        // Nothing reads the held frames, and their buffer is limited.
        if **held > 250 {
            **c = Kernel::start(hook).expect("it started before");
            **held = 0;
        } else {
            c.clear(&core);
        }
        result
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Moves this thread to a new network namespace that matches the core's network. False without
/// root.
fn in_a_network() -> bool {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: a network namespace of its own needs root");
        return false;
    }
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    world::set_up();
    true
}

#[test]
fn core_and_c_agree_on_random_and_damaged_packets() {
    if !in_a_network() {
        return;
    }
    for hook in HOOKS {
        let mut coverage = Coverage::default();
        let mut missing = Vec::new();
        // Rare reasons may need more random cases.
        for number in 0..ROUNDS_MAX {
            agree(hook, number, &mut coverage);
            let met = |reason: &&Reason| world::RARE.contains(reason) || coverage.0.contains_key(reason);
            missing = Reason::ALL.iter().filter(|reason| !met(reason)).collect();
            if missing.is_empty() || coverage.0.is_empty() {
                break;
            }
        }
        assert!(missing.is_empty() || coverage.0.is_empty(), "{hook:?} never met {missing:?}");
    }
}

#[test]
fn a_session_that_was_passed_on_to_us_gives_way_to_the_hash_alike() {
    const SYN: u8 = 0x02;
    const FIN: u8 = 0x11;
    const ACK: u8 = 0x10;
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        for (v6, client) in [false, true].into_iter().flat_map(|v6| (0..40).map(move |client| (v6, client))) {
            for (source, flags) in [(PASSED, SYN), (PASSED, FIN), (SOURCES[0], SYN), (SOURCES[0], ACK)] {
                let mut frame = frames::segment(v6, EVERY_HOST[2], client, 1000, flags);
                frame[6..12].copy_from_slice(&source.0);
                meet(&mut core, &c, &frame).unwrap();
            }
        }
        assert_eq!(core.reasons, c.counted().0);
        let noted = sessions(&core.memory(), core.now);
        assert_eq!(noted, sessions(&c.engine.memory(), c.engine.now()));
        assert_eq!(noted.len(), 80, "what is noted already is noted anew");
    }
}

#[test]
fn later_fragment_hop_limit_is_the_same() {
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        for (v6, client) in [false, true].into_iter().flat_map(|v6| (0..40).map(move |client| (v6, client))) {
            for (source, first) in
                [(SOURCES[0], true), (SOURCES[0], false), (PASSED, false), (SOURCES[1], false)]
            {
                let mut frame = frames::fragment(v6, EVERY_HOST[0], client, first);
                frame[6..12].copy_from_slice(&source.0);
                meet(&mut core, &c, &frame).unwrap();
            }
        }
        assert_eq!(core.reasons, c.counted().0);
        assert!(core.reasons[&Reason::Local] > 2 * 80, "what was passed on stays here: {:?}", core.reasons);
    }
}

#[test]
fn a_later_fragment_too_long_to_wait_is_lost_alike() {
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        let lengths = [(HELD_FRAME_MAX, Reason::FragmentHeld), (HELD_FRAME_MAX + 1, Reason::FragmentLost)];
        for (v6, (len, reason)) in [false, true].into_iter().flat_map(|v6| lengths.map(|length| (v6, length)))
        {
            let (decision, _) = meet(&mut core, &c, &frames::later(v6, world::L2[0], len)).unwrap().unwrap();
            assert_eq!(decision.reason, reason, "{len} bytes");
        }
        assert_eq!(core.reasons, c.counted().0);
    }
}

#[test]
fn rehandoff_request_is_held_unless_too_long_in_both() {
    let later =
        |v6, len| handoff::Segment::later(v6, 1, 2000, handoff::HANDOFF[1], len).frame(&handoff::KEYS);
    let [own, others] = [1, 0].map(|ring| Arc::new(SynOffer::all_to(ring).put(world::tables())));
    for hook in HOOKS {
        let Some(mut c) = Kernel::start(hook) else { return };
        c.engine.load_tables(&own).unwrap();
        let mut core = Core::with((*own).clone(), &Schedule::fixed(&handoff::KEYS, NOW));
        for v6 in [false, true] {
            let first = handoff::Segment::first(v6, 1, 2000, handoff::HANDOFF[1]).frame(&handoff::KEYS);
            for frame in [first, later(v6, HELD_FRAME_MAX)] {
                let (decision, _) = meet(&mut core, &c, &frame).unwrap().unwrap();
                assert_eq!(decision.reason, Reason::Forwarded);
            }
        }
        // From here on, other servers serve the same requests.
        c.engine.load_tables(&others).unwrap();
        core.change((*others).clone());
        for v6 in [false, true] {
            for (len, verdict) in [(HELD_FRAME_MAX + 1, Verdict::Drop), (HELD_FRAME_MAX, Verdict::Hold)] {
                let (decision, _) = meet(&mut core, &c, &later(v6, len)).unwrap().unwrap();
                assert_eq!((decision.verdict, decision.reason), (verdict, Reason::Rehandoff), "{len} bytes");
            }
        }
        // With IPv6, a slot for connections in handoff exists.
        for (v6, reason) in [(false, Reason::Rehandoff), (true, Reason::RehandoffBuffered)] {
            for (len, verdict) in [(HELD_FRAME_MAX + 1, Verdict::Drop), (HELD_FRAME_MAX, Verdict::Hold)] {
                let (decision, _) = meet(&mut core, &c, &later(v6, len)).unwrap().unwrap();
                assert_eq!((decision.verdict, decision.reason), (verdict, reason), "{len} bytes");
            }
        }
        assert_eq!(core.reasons, c.counted().0);
        assert_eq!(sessions(&core.memory(), core.now), sessions(&c.engine.memory(), c.engine.now()));
    }
}

/// Runs one set of routes with segments of clients.
fn handed_off(
    c: &mut Kernel,
    known: &mut Arc<Tables>,
    wishes: &SynOffer,
    (told, guessed): (&handoff::CookieClaim, bool),
    segments: &[handoff::Segment],
) -> Result<BTreeMap<Reason, u64>, TestCaseError> {
    let tables = Arc::new(wishes.put(world::tables()));
    c.engine.load_tables(&tables).unwrap();
    *known = Arc::clone(&tables);
    let (schedule, now) = (told.schedule(NOW), c.engine.now());
    let mut core = Core::with((*tables).clone(), &schedule);
    c.engine.memory().cookies.set(&told.schedule(now));
    let keys = &schedule.at(NOW);
    c.clear(&core);
    if guessed {
        core.memory().guesses.use_up(NOW);
        c.engine.memory().guesses.use_up(now);
    }
    for segment in segments {
        meet(&mut core, c, &segment.frame(keys))?;
    }
    let (reasons, servers) = c.counted();
    prop_assert_eq!(&core.reasons, &reasons);
    prop_assert_eq!(&core.servers, &servers);
    let memory = c.engine.memory();
    prop_assert_eq!(sessions(&core.memory(), core.now), sessions(&memory, c.engine.now()));
    let active = |m: &Memory<'_>| -> Vec<u64> { m.counts.active.iter().map(|n| n.load(Relaxed)).collect() };
    prop_assert_eq!(active(&core.memory()), active(&memory));
    prop_assert_eq!(guesses(&core.memory()), guesses(&memory));
    Ok(reasons)
}

/// Returns the guess counters of each VIP, and whether guesses used up the budget. The amount is
/// left out: the kernel's clock refills the budget, and the core's clock is fixed.
fn guesses(memory: &Memory<'_>) -> Vec<(u64, u64, bool)> {
    let of = |vip: u16| {
        let used = memory.guesses.0[usize::from(vip) * VIP_WORDS].load(Relaxed) != 0;
        (memory.guesses.bad(vip), memory.guesses.unchecked(vip), used)
    };
    (0..VIP_IDS as u16).map(of).collect()
}

#[test]
fn connections_are_handed_off_alike() {
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let state = RefCell::new((c, Arc::new(world::tables()), Coverage::default(), 0));
        let story = (
            handoff::syn_offers(),
            (handoff::cookie_claims(), prop::bool::weighted(0.1)),
            prop::collection::vec(handoff::segment(), 1..80),
        );
        let play = |(wishes, (told, guessed), segments): (_, (_, _), Vec<_>)| {
            let mut state = state.borrow_mut();
            let (c, known, coverage, held) = &mut *state;
            let began = c.engine.now();
            let result = handed_off(c, known, &wishes, (&told, guessed), &segments);
            // The core's clock is fixed. A long real time in the kernel could end its waiting time.
            let elapsed = c.engine.now().wrapping_sub(began);
            let result = match elapsed < unmatched::PATIENCE_TICKS / 2 {
                true => result,
                false => Err(TestCaseError::reject("the machine is busy")),
            };
            let memory = c.engine.memory();
            memory.sessions.clear(c.engine.now());
            let Ok(reasons) = result else {
                // The shrunk case must start without the state of this case.
                (*c, *known, *held) = (Kernel::start(hook).unwrap(), Arc::new(world::tables()), 0);
                return result.map(drop);
            };
            let of = |reason| reasons.get(&reason).copied().unwrap_or_default();
            *held += of(Reason::FragmentHeld) + of(Reason::Rehandoff) + of(Reason::RehandoffBuffered);
            for (reason, count) in reasons {
                *coverage.0.entry(reason).or_default() += count;
            }
            // Nothing reads the held frames, and their buffer is limited.
            if *held > 250 {
                (*c, *known, *held) = (Kernel::start(hook).unwrap(), Arc::new(world::tables()), 0);
            }
            Ok(())
        };
        // Rare reasons may need more random cases.
        let missing = || -> Vec<_> {
            let coverage = &state.borrow().2;
            handoff::MET.iter().filter(|reason| !coverage.0.contains_key(reason)).collect()
        };
        for number in 0..ROUNDS_MAX {
            let outcome = stories::runner(HANDOFF_STORIES, number).run(&story, play);
            outcome.unwrap_or_else(|error| panic!("{error}"));
            if missing().is_empty() {
                break;
            }
        }
        assert!(missing().is_empty(), "{hook:?} never met {:?}", missing());
    }
}

#[test]
fn handoff_in_full_table_is_reset_in_both() {
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        for flow in 0..4000u16 {
            for v6 in [false, true] {
                let segment =
                    handoff::Segment::first(v6, (flow % 10) as u8, 1000 + flow, handoff::HANDOFF[2]);
                meet(&mut core, &c, &segment.frame(&handoff::KEYS)).unwrap();
            }
        }
        let (reasons, _) = c.counted();
        assert_eq!(core.reasons, reasons);
        assert!(reasons[&Reason::TableFull] > 1000 && reasons[&Reason::Forwarded] > 500, "{reasons:?}");
        assert_eq!(reasons[&Reason::Reset], reasons[&Reason::TableFull]);
        assert!(*c.traced_count.borrow() > 8000, "each of these is told");
        assert_eq!(sessions(&core.memory(), core.now), sessions(&c.engine.memory(), c.engine.now()));
    }
}

#[test]
fn an_earlier_daemons_routes_are_in_force_until_new_ones_are() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: pinning needs root");
        return;
    }
    let dir = pins::directory().unwrap().with_file_name(format!("test-{}", std::process::id()));
    let start = || {
        let (sessions_max, pins) = (SESSIONS, Some(dir.clone()));
        let (seed, ring_seed) = (SEED, Some(RING_SEED));
        let options = Options { sessions_max, sessions6_max: SESSIONS, seed, ring_seed, mode: None, pins };
        XdpEngine::start(options).unwrap()
    };
    let server_of = |engine: &XdpEngine, port| {
        let first = handoff::Segment::first(false, 1, port, handoff::HANDOFF[1]);
        let (_, frame) = engine.test_run(Hook::Xdp, &first.frame(&handoff::KEYS)).unwrap();
        frame[..6].to_vec()
    };
    let [before, after] = [1, 0].map(|ring| Arc::new(SynOffer::all_to(ring).put(world::tables())));
    let mut engine = start();
    engine.load_tables(&before).unwrap();
    engine.memory().cookies.set(&Schedule::fixed(&handoff::KEYS, engine.now()));
    let server = server_of(&engine, 2000);
    drop(engine);
    let mut engine = start();
    let running = engine.running().cloned().unwrap();
    assert_eq!(running.vips, before.vips);
    assert_eq!(server_of(&engine, 2001), server, "as the earlier daemon has it");
    engine.load_tables(&before).unwrap();
    assert_eq!(server_of(&engine, 2002), server, "written anew");
    engine.load_tables(&after).unwrap();
    assert_ne!(server_of(&engine, 2003), server);
    assert_eq!(server_of(&engine, 2000), server, "a session stays");
    Box::new(engine).leave(false).unwrap();
}
