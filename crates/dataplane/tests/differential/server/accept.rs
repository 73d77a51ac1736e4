//! The core and the C program agree on which segments become connections. A test run is not an
//! ingress packet, so the kernel creates no connection. The agreed options are tested on a real
//! link in `tests/accept`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use evener_core::path::cookie::{FourTuple, Keys, REPLAYED, Schedule, SynOptions};
use evener_core::path::mark::PUNTED;
use evener_core::server::{Arrived, CLEARING_NS, ClearedConnection, Host, Outcome, Reason, Socket, Tables};
use evener_dataplane::now_ticks;
use evener_dataplane::server::Hook;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::network::{
    DEAD, ELSEWHERE, NOT_HANDED, PLAIN, Sockets, Tcp, WITH_PUNT, WRITTEN, client, keys_of, listen, service,
    tables,
};
use super::{Counts, Programs};
use crate::stories;

/// The sender: a new client, a client of a connection in [`Sockets`], or a look-alike.
#[derive(Clone, Copy, Debug)]
enum Who {
    New,
    Connected,
    Opening,
    Waiting,
    Announced,
    Mapped,
}

#[derive(Clone, Copy, Debug)]
enum Acknowledges {
    /// A cookie made from an MSS and a window scale, this many epochs ago.
    Cookie(u16, Option<u8>, u64),
    /// Offset from the first byte that the connection has written.
    Written(i64),
    Any(u32),
}

#[derive(Clone, Debug)]
struct Plan {
    v6: bool,
    who: Who,
    port: u16,
    punted: bool,
    flags: u8,
    /// Offset from the next sequence number of the client's connection, if there is a connection.
    sequence: i64,
    acknowledges: Acknowledges,
    options: Vec<u8>,
    /// Difference between the echoed timestamp and the timestamp of the SYN-ACK.
    late: u32,
    data: usize,
    damage: Option<Damage>,
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    SetByte(usize, u8),
    Truncate(usize),
    Extend(usize),
}

fn options() -> impl Strategy<Value = Vec<u8>> {
    let timestamps = |now: u32| [&[1, 1, 8, 10][..], &now.to_be_bytes(), &[0, 0, 0, 7]].concat();
    let odd = prop::sample::select(vec![
        vec![8u8, 10, 0, 0, 0, 9, 0, 0, 0, 7, 1, 0],
        vec![1, 8, 9, 0, 0, 0, 9, 0, 0, 0, 0, 0],
        vec![8, 9, 0, 0, 0, 9, 0, 0, 0, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6, 0],
        vec![8, 10, 0, 0, 0, 9, 0, 0, 0, 7, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6],
        vec![0, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7, 0],
        vec![99, 2, 99, 4, 0, 0, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7],
        vec![99, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7],
        vec![1, 1, 1, 99],
        vec![5, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 10, 0, 0],
    ]);
    let padded = odd.prop_map(|mut options| {
        options.resize(options.len().next_multiple_of(4), 0);
        options
    });
    prop_oneof![4 => Just(vec![]), 3 => any::<u32>().prop_map(timestamps), 2 => padded]
}

fn plan() -> impl Strategy<Value = Plan> {
    let who = prop_oneof![
        6 => Just(Who::New), 4 => Just(Who::Connected), 1 => Just(Who::Opening), 4 => Just(Who::Waiting),
        3 => Just(Who::Announced), 1 => Just(Who::Mapped),
    ];
    let ports = vec![PLAIN, PLAIN, PLAIN, PLAIN, ELSEWHERE, WITH_PUNT, DEAD, NOT_HANDED, 85];
    let flags = prop_oneof![
        8 => Just(0x18u8), 3 => Just(0x10), 1 => Just(0x38), 1 => Just(0x11), 1 => Just(0x12), 1 => Just(0x14),
        1 => any::<u8>(),
    ];
    let delta = || prop_oneof![4 => Just(0i64), 3 => -3i64..4, 1 => Just(1_000_000), 1 => Just(-1_000_000), 1 => Just(1 << 31)];
    let cookie = (500u16..1500, prop::option::of(0u8..15), prop_oneof![4 => Just(0u64), 1 => 0u64..4]);
    let written =
        prop_oneof![-3i64..4, i64::from(WRITTEN) - 3..i64::from(WRITTEN) + 4, 0..i64::from(WRITTEN),];
    let acknowledges = prop_oneof![
        6 => cookie.prop_map(|(mss, scale, age)| Acknowledges::Cookie(mss, scale, age)),
        4 => written.prop_map(Acknowledges::Written),
        1 => any::<u32>().prop_map(Acknowledges::Any),
    ];
    let data = prop_oneof![8 => 1usize..60, 1 => Just(0usize), 1 => 1000usize..1400];
    // The client's port is not damaged: a connection of another round could use the damaged port.
    let places: Vec<usize> = (6..74).filter(|at| ![34, 35, 54, 55].contains(at)).collect();
    let damage = prop_oneof![
        3 => (prop::sample::select(places), any::<u8>()).prop_map(|(at, to)| Damage::SetByte(at, to)),
        1 => (54usize..90).prop_map(Damage::Truncate),
        1 => (1usize..20).prop_map(Damage::Extend),
    ];
    let damage = prop_oneof![5 => Just(None), 2 => damage.prop_map(Some)];
    let late = prop_oneof![
        8 => Just(0u32), 2 => 1..REPLAYED, 1 => Just(REPLAYED - 1), 1 => Just(REPLAYED), 1 => Just(u32::MAX), 1 => any::<u32>(),
    ];
    let first = (any::<bool>(), who, prop::sample::select(ports), prop::bool::weighted(0.3), flags);
    (first, delta(), acknowledges, (options(), late), data, damage).prop_map(
        |((v6, who, port, punted, flags), sequence, acknowledges, (options, late), data, damage)| Plan {
            v6,
            who,
            port,
            punted,
            flags,
            sequence,
            acknowledges,
            options,
            late,
            data,
            damage,
        },
    )
}

impl Plan {
    fn frame(&self, first_port: u16) -> Vec<u8> {
        let by = match self.who {
            Who::New => 9,
            Who::Connected | Who::Mapped => 0,
            Who::Opening => 1,
            Who::Waiting => 2,
            Who::Announced => 3,
        };
        let mut ends =
            FourTuple { client: client(self.v6, first_port + by), service: service(self.v6, self.port) };
        let local: [IpAddr; 2] = [[198, 51, 100, 7].into(), "2001:db8:7::7".parse().unwrap()];
        match self.who {
            Who::Waiting => ends.client.set_ip(local[usize::from(self.v6)]),
            Who::Mapped => {
                let mapped = |end: SocketAddr| match end.ip() {
                    IpAddr::V4(address) => SocketAddr::new(address.to_ipv6_mapped().into(), end.port()),
                    IpAddr::V6(_) => end,
                };
                ends = FourTuple { client: mapped(ends.client), service: mapped(ends.service) };
            }
            _ => {}
        }
        let sequence = 5_000u32.wrapping_add(self.sequence as u32);
        let mut options = self.options.clone();
        let acknowledgment = match self.acknowledges {
            Acknowledges::Cookie(mss, scale, age) => {
                let terms = SynOptions::new(self.v6, Some(mss), scale);
                let cookie = keys_of(64 * age).make(&ends, sequence.wrapping_sub(1), terms).unwrap();
                if let [1, 1, 8, 10, _, _, _, _, echo @ ..] = &mut options[..] {
                    echo.copy_from_slice(&cookie.clock.wrapping_add(self.late).to_be_bytes());
                }
                cookie.number.wrapping_add(1)
            }
            Acknowledges::Written(by) => 90_000u32.wrapping_add(by as u32),
            Acknowledges::Any(number) => number,
        };
        let data = vec![b'x'; self.data];
        let tcp = Tcp { sequence, acknowledgment, flags: self.flags, options: &options, data: &data };
        let mut frame = tcp.frame(&ends);
        if self.punted {
            frame[6..12].copy_from_slice(&PUNTED.0);
        }
        match self.damage {
            Some(Damage::SetByte(at, to)) => frame.iter_mut().skip(at).take(1).for_each(|byte| *byte = to),
            Some(Damage::Truncate(len)) => frame.truncate(len),
            Some(Damage::Extend(by)) => frame.resize(frame.len() + by, 0xaa),
            None => {}
        }
        frame
    }
}

/// Returns the name of an outcome, to check that each outcome occurred.
fn name(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Connection(_, port) => format!("connection at {port}"),
        Outcome::Clears(reason, _) => format!("{reason:?}"),
        other => format!("{other:?}"),
    }
}

struct Cleared(MapHandle);

impl Cleared {
    fn of(c: &Programs) -> Cleared {
        Cleared(MapHandle::from_pinned_path(c.dir.join("clearing")).unwrap())
    }

    /// Deletes all entries, so that the next frames find no socket removal in progress.
    fn forget(&self) {
        for key in self.0.keys().collect::<Vec<_>>() {
            self.0.delete(&key).unwrap();
        }
    }

    /// Checks that further segments of a connection wait alike in the core and in the C program
    /// while its old socket is being removed.
    fn holds_alike(
        &self,
        c: &Programs,
        frame: &[u8],
        socket: Socket,
        started: Instant,
        met: &mut BTreeMap<String, u64>,
    ) -> TestCaseResult {
        let keys: Vec<_> = self.0.keys().collect();
        prop_assert_eq!(keys.len(), 1);
        for is_in in [false, true] {
            let mut clearing = ClearedConnection { until_ns: u64::MAX, is_in };
            let value = [clearing.until_ns.to_ne_bytes(), u64::from(is_in).to_ne_bytes()].concat();
            self.0.update(&keys[0], &value, MapFlags::ANY).unwrap();
            let Some(ran) = c.run(Hook::Accept, frame)? else { return Ok(()) };
            if started.elapsed() >= Duration::from_nanos(CLEARING_NS) {
                return Ok(());
            }
            prop_assert_eq!(ran.goes_on, !clearing.holds(0, &socket), "{:?} {:?}", clearing, socket);
            let until = self
                .0
                .lookup(&keys[0], MapFlags::ANY)
                .unwrap()
                .and_then(|value| value.first_chunk().copied());
            // Removal has ended, or this segment started another one.
            let goes_on = until.map(u64::from_ne_bytes) == Some(u64::MAX);
            prop_assert_eq!(goes_on, clearing.until_ns == u64::MAX, "{:?} {:?}", clearing, socket);
            *met.entry(if ran.goes_on { "goes on" } else { "waits" }.to_owned()).or_default() += 1;
        }
        Ok(())
    }
}

fn meet(
    tables: &Tables,
    sockets: &Sockets,
    keys: &Keys,
    c: &Programs,
    before: &[u8],
    met: &mut BTreeMap<String, u64>,
) -> TestCaseResult {
    let (cleared, started) = (Cleared::of(c), Instant::now());
    cleared.forget();
    let Some(ran) = c.run(Hook::Accept, before)? else { return Ok(()) };
    let arrived = Arrived::read(tables, before);
    let outcome = arrived.map(|arrived| arrived.outcome(keys, sockets));
    let mut after = before.to_vec();
    let mut expected = before;
    let mut counts = Counts::new();
    match (arrived, outcome) {
        (Some(arrived), Some(Outcome::Clears(reason, old))) => {
            expected = arrived.reset(&mut after, old);
            counts.insert(reason, 1);
        }
        // The kernel refuses a connection for a packet that is not ingress.
        (_, Some(Outcome::Connection(..))) => drop(counts.insert(Reason::Refused, 1)),
        (_, Some(Outcome::Nothing(reason))) => drop(counts.insert(reason, 1)),
        _ => {}
    }
    prop_assert_eq!(&ran.counted, &counts, "{:?} {:?}: {:02x?}", outcome, arrived, before);
    prop_assert!(ran.goes_on, "{outcome:?}");
    prop_assert!(ran.frame == expected, "{outcome:?}\ncore {expected:02x?}\nC    {:02x?}", ran.frame);
    *met.entry(outcome.map_or_else(|| "none".to_owned(), |outcome| name(&outcome))).or_default() += 1;
    if let (Some(Arrived { ends, .. }), Some(Outcome::Clears(..))) = (arrived, outcome) {
        cleared.holds_alike(c, before, sockets.socket(ends.client, ends.service), started, met)?;
    }
    Ok(())
}

/// Segments per round, of eight rounds.
const SEGMENTS: u32 = 200;

#[test]
fn segments_become_connections_alike() {
    let tables = tables(None);
    let Some(c) = Programs::start_handing_over(&tables) else { return };
    let keys = keys_of(0);
    c.server.set_cookie_keys(&Schedule::fixed(&keys, now_ticks())).unwrap();
    let _listeners = listen();
    let met = RefCell::new(BTreeMap::new());
    for round in 0..8 {
        // A socket stays in TIME_WAIT for a minute, which is longer than all rounds.
        let first_port = 20_000 + 100 * round;
        let sockets = Sockets::open(first_port);
        let connections = c.server.connections().unwrap();
        sockets.announced().for_each(|saved| connections.expect(&saved).unwrap());
        let outcome = stories::runner(SEGMENTS, u64::from(round)).run(&plan(), |plan| {
            meet(&tables, &sockets, &keys, &c, &plan.frame(first_port), &mut met.borrow_mut())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
    }
    let met = met.into_inner();
    let wanted = [
        "none",
        "Known",
        "Straggler",
        "connection at 80",
        "connection at 8081",
        "connection at 82",
        "connection at 8082",
        "Nothing(NoListener)",
        "Nothing(BadCookie)",
        "TimeWaitEvicted",
        "StaleEvicted",
        "waits",
        "goes on",
    ];
    let missing: Vec<_> = wanted.iter().filter(|name| !met.contains_key(**name)).collect();
    assert!(missing.is_empty(), "never met {missing:?}: {met:?}");
}
