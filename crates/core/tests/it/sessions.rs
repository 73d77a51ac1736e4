//! The session table under any load: what goes, what stays, and that nothing is counted twice.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evener_core::path::seed::Seed;
use evener_core::path::sessions::{
    AFFINITY_KEY, AFFINITY_WORDS, AffinityCounts, Bucket4, Bucket6, Class, Counted, SHARE_WORDS, SessionKey,
    Sessions, Shares, State, Value, buckets_for,
};
use proptest::prelude::*;

const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);

struct World {
    four: Vec<Bucket4>,
    six: Vec<Bucket6>,
    active: Vec<AtomicU64>,
    shares: Vec<AtomicU64>,
    affinities: Vec<AtomicU64>,
}

impl World {
    fn new() -> World {
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        World {
            four: (0..buckets_for(64)).map(|_| Bucket4::default()).collect(),
            six: (0..buckets_for(64)).map(|_| Bucket6::default()).collect(),
            active: words(4),
            shares: words(SHARE_WORDS),
            affinities: words(AFFINITY_WORDS),
        }
    }

    fn sessions(&self) -> Sessions<'_> {
        let counted = Counted {
            active: &self.active,
            shares: Shares(&self.shares),
            affinity: AffinityCounts(&self.affinities),
        };
        Sessions::new(&self.four, &self.six, counted)
    }
}

#[derive(Clone, Debug)]
enum Act {
    Insert { client: u16, vip: u16, state: State },
    Change { client: u16, vip: u16, state: State },
    Pass { ticks: u32 },
}

fn act() -> impl Strategy<Value = Act> {
    let session = || (0u16..600, 1u16..4, prop::sample::select(State::ALL.to_vec()));
    let entry = || (0u16..600, Just(AFFINITY_KEY), Just(State::Affinity));
    let flow = || prop_oneof![3 => session(), 1 => entry()];
    prop_oneof![
        6 => flow().prop_map(|(client, vip, state)| Act::Insert { client, vip, state }),
        3 => flow().prop_map(|(client, vip, state)| Act::Change { client, vip, state }),
        1 => (0u32..40).prop_map(|ticks| Act::Pass { ticks }),
    ]
}

fn key(client: u16, vip: u16) -> SessionKey {
    let address: IpAddr = match client % 2 {
        0 => Ipv4Addr::from_bits(client.into()).into(),
        _ => Ipv6Addr::from_bits(client.into()).into(),
    };
    SessionKey { client: address, port: 1, vip }
}

/// Shares of three VIPs, the third of which has none.
const OWN: [u64; 4] = [0, 20, 10, 0];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn vip_within_share_loses_no_session(acts in prop::collection::vec(act(), 1..900)) {
        let world = World::new();
        let sessions = world.sessions();
        for (vip, own) in (0u16..).zip(OWN) {
            sessions.shares().0[2 * usize::from(vip)].store(own, Relaxed);
        }
        let mut now = u32::MAX - 200;
        let all = |now| sessions.list(now).map(|session| (session.key, session.value)).collect::<BTreeMap<_, _>>();
        for act in acts {
            let before = all(now);
            let shares = sessions.shares();
            match act {
                Act::Pass { ticks } => now = now.wrapping_add(ticks),
                Act::Change { client, vip, state } => {
                    let key = key(client, vip);
                    if let Some(found) = sessions.find(key, key.hash(SEED), now) {
                        prop_assert!(sessions.change(found, Value::new(1, state, now.wrapping_add(100))));
                    }
                }
                Act::Insert { client, vip, state } => {
                    let key = key(client, vip);
                    if before.contains_key(&key) {
                        continue;
                    }
                    let (takes, beyond) = (shares.assured(vip) < shares.own(vip), (0..4).map(|vip| shares.assured(vip) > shares.own(vip)).collect::<Vec<_>>());
                    let inserted = sessions.insert(key, key.hash(SEED), Value::new(1, state, now.wrapping_add(100)), now).is_ok();
                    let after = all(now);
                    prop_assert_eq!(after.contains_key(&key), inserted);
                    let gone: Vec<_> = before.iter().filter(|(key, _)| !after.contains_key(key)).collect();
                    prop_assert!(gone.len() <= usize::from(inserted), "one comes, {gone:?} went");
                    for (key, value) in gone {
                        prop_assert!(state != State::Affinity || value.state() == state, "{key:?} made room for a client");
                        let may = value.state().class() != Some(Class::Assured) || takes && beyond[usize::from(key.vip)];
                        prop_assert!(may, "{key:?} {value:?} was put out");
                    }
                }
            }
            // A session that has expired is counted until its place is taken or swept.
            sessions.sweep(0..sessions.buckets(), now, |_, _| true);
            let live = all(now);
            let assured = |vip| live.iter().filter(|(key, value)| key.vip == vip && value.state().is_assured()).count() as u64;
            for vip in 1..4 {
                prop_assert_eq!(sessions.shares().assured(vip), assured(vip));
            }
            let entries = live.values().filter(|value| value.state() == State::Affinity).count() as u64;
            prop_assert_eq!(sessions.affinity_counts().entries(0), entries);
            let active = live.values().filter(|value| value.state().is_active()).count() as u64;
            prop_assert_eq!(world.active[1].load(Relaxed), active);
        }
    }
}

/// An embryonic session goes before one that is ending, and that before an assured one, each the
/// soonest to expire.
#[test]
fn the_least_goes_first() {
    let world = World::new();
    let sessions = world.sessions();
    let hash = key(0, 1).hash(SEED);
    // All in the two buckets of one hash.
    let states =
        [State::Established, State::HalfClosed, State::New, State::UdpNew, State::Closing, State::Udp];
    let mut number = 0;
    while sessions
        .insert(
            key(2 * number, 1),
            hash,
            Value::new(1, states[usize::from(number) % 6], 1_000 - u32::from(number)),
            1,
        )
        .is_ok()
        && sessions.list(1).count() == usize::from(number) + 1
    {
        number += 1;
    }
    let count =
        |class| sessions.list(1).filter(|session| session.value.state().class() == Some(class)).count();
    let mut assured = count(Class::Assured);
    for _ in 0..40 {
        let (embryonic, ending) = (count(Class::Embryonic), count(Class::Ending));
        number += 1;
        let inserted =
            sessions.insert(key(2 * number, 1), hash, Value::new(1, State::Established, 900), 1).is_ok();
        match (embryonic, ending) {
            (1.., _) => assert_eq!((count(Class::Embryonic), count(Class::Ending)), (embryonic - 1, ending)),
            (0, 1..) => assert_eq!((count(Class::Embryonic), count(Class::Ending)), (0, ending - 1)),
            (0, 0) => assert!(!inserted),
        }
        assured += usize::from(inserted);
        assert_eq!(count(Class::Assured), assured);
    }
    assert_eq!((count(Class::Embryonic), count(Class::Ending)), (0, 0));
}

/// Sources of embryonic sessions in two full buckets, as their places are taken: a network that
/// sends first packets without end takes its own places, and another's only where that has more.
#[test]
fn a_source_holds_no_more_places_than_others() {
    let v4 = |source: u32, host: u16| IpAddr::from(Ipv4Addr::from_bits(source << 8 | u32::from(host % 256)));
    let v6 = |source: u32, host: u16| {
        IpAddr::from(Ipv6Addr::from_bits(u128::from(source) << 72 | u128::from(host) << 56))
    };
    for client in [&v4 as &dyn Fn(u32, u16) -> IpAddr, &v6] {
        let world = World::new();
        let sessions = world.sessions();
        let key = |source, number| SessionKey { client: client(source, number), port: number, vip: 1 };
        let hash = key(1, 0).hash(SEED);
        let note = |source, number: u16, state| {
            // a session that comes later expires later
            let value = Value::new(1, state, 1_000 + u32::from(number));
            sessions.insert(key(source, number), hash, value, 1).unwrap();
        };
        let places = || {
            let mut places = BTreeMap::new();
            for session in sessions.list(1) {
                let source = (1..=3).find(|source| key(*source, session.key.port) == session.key);
                *places.entry(source).or_insert(0) += 1;
            }
            places
        };
        (0..12).for_each(|number| note(1, number, State::UdpAnswered));
        (0..4).for_each(|number| note(2, number, State::UdpNew));
        assert_eq!(places(), BTreeMap::from([(Some(1), 12), (Some(2), 4)]));
        (100..300).for_each(|number| note(1, number, State::UdpNew));
        assert_eq!(places(), BTreeMap::from([(Some(1), 12), (Some(2), 4)]), "its own places go");
        (0..3).for_each(|number| note(3, number, State::UdpNew));
        assert_eq!(places(), BTreeMap::from([(Some(1), 9), (Some(2), 4), (Some(3), 3)]));
        (300..500).for_each(|number| note(2, number, State::New));
        (300..500).for_each(|number| note(1, number, State::New));
        // two that send without end have as many but for one; on a tie the session goes that
        // expires first
        assert_eq!(places(), BTreeMap::from([(Some(1), 6), (Some(2), 7), (Some(3), 3)]));
    }
}
