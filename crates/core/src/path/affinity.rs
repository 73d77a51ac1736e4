//! Affinity of clients to servers: for a time after a client's last connection to a service ended,
//! the client's new connections go to the server of its former ones.
//!
//! A client is an address, or a network with a set prefix length. The hash that selects from hash
//! tables covers the client and not its port. So with [`Pick::Hash`] no memory is needed, and all
//! directors with the same key agree.
//!
//! With other policies, the session table has an *affinity entry* for each client of a service: a
//! slot in [`State::Affinity`] whose key has the service in place of the VIP. (IPVS has such
//! entries in its table of connections, too, and calls them templates.) An entry is written when a
//! client completes a handshake, so a forged first packet writes none. Entries never evict
//! sessions, and a new session evicts an entry before it evicts any session that is more than
//! embryonic.
//!
//! The server in an entry gets the client's new sessions while it accepts sessions. Otherwise the
//! policy selects a server, and the completed handshake replaces the server in the entry.

use core::net::IpAddr;

use crate::net::prefix::Prefix;
use crate::path::seed::Seed;
use crate::path::select::Counts;
use crate::path::sessions::{
    AFFINITY_KEY, FlowHash, FoundSession, REPLICATED_ENTRY, SessionKey, Sessions, State, Value, ticks,
};
use crate::path::tables::{Affinity, Pick, Tables, Vip};

/// Time by which entries outlast the set time, in milliseconds. The entries of clients with open
/// sessions are refreshed every ten seconds, and none may expire too early.
pub const SLACK_MS: u64 = 15_000;
/// Minimum extension of an entry's expiry that is stored, in ticks. So the many connections of one
/// client don't write its entry each time.
pub const STEP: u32 = ticks(1_000);

impl Affinity {
    /// Returns the affinity of the VIPs of a service, for `time_ms` after a client's last session.
    pub const fn new(tag: u16, prefix_len: u8, time_ms: u64) -> Affinity {
        Affinity { tag, prefix_len, lifetime: ticks(time_ms.saturating_add(SLACK_MS)) }
    }

    /// Returns the network that counts as the client.
    pub fn client(&self, client: IpAddr) -> Prefix {
        Prefix::of(client, self.prefix_len)
    }
}

impl Vip {
    /// Returns the affinity of the VIP's clients if it needs entries.
    fn entry_affinity(&self) -> Option<Affinity> {
        self.affinity.filter(|_| self.pick != Pick::Hash)
    }

    /// Returns `vip` and `port` of the keys of the service's affinity entries. `None` if the
    /// service has none.
    pub fn entry_numbers(&self) -> Option<(u16, u16)> {
        self.entry_affinity().map(|affinity| (AFFINITY_KEY | self.service, affinity.tag))
    }

    /// Returns the hash by which a flow selects from hash tables.
    pub fn ring_hash(&self, key: SessionKey, seed: Seed) -> FlowHash {
        let client = |affinity: Affinity| affinity.client(key.client).address();
        let of =
            self.affinity.map_or(key, |affinity| SessionKey { client: client(affinity), port: 0, ..key });
        of.ring_hash(seed)
    }
}

impl Tables {
    /// True if a server accepts new sessions: it is healthy, serves, and isn't drained.
    fn accepts(&self, server: u16) -> bool {
        self.servers.get(&server).is_some_and(|server| server.up && server.weight > 0)
    }
}

/// A client of a service that has affinity entries.
#[derive(Clone, Copy, Debug)]
pub struct AffinityClient<'a> {
    sessions: Sessions<'a>,
    key: SessionKey,
    hash: FlowHash,
    lifetime: u32,
    now: u32,
}

impl<'a> AffinityClient<'a> {
    /// Returns the client of a VIP with this address. `None` if the VIP's service has no affinity
    /// entries. `seed` is the key of the session table's hash.
    pub fn of(vip: &Vip, client: IpAddr, sessions: Sessions<'a>, seed: Seed, now: u32) -> Option<Self> {
        let affinity = vip.entry_affinity()?;
        let (number, tag) = vip.entry_numbers()?;
        let key = SessionKey { client: affinity.client(client).address(), port: tag, vip: number };
        Some(AffinityClient { sessions, key, hash: key.hash(seed), lifetime: affinity.lifetime, now })
    }

    fn entry(&self) -> Option<FoundSession<'a>> {
        self.sessions.find(self.key, self.hash, self.now)
    }

    /// Returns the value of the client's entry: the server of its former sessions, and the expiry.
    pub fn value(&self) -> Option<Value> {
        self.entry().map(|entry| entry.value)
    }

    /// Returns the server of the client's former sessions. `None` if it accepts no new session now.
    pub fn server(&self, tables: &Tables, counts: Counts<'_>) -> Option<u16> {
        let server = self.value()?.server();
        (tables.accepts(server) && !counts.is_full(server)).then_some(server)
    }

    /// Records that the client has opened a session on `server`. The server of an earlier session
    /// stays recorded while it accepts new sessions.
    pub(super) fn record(&self, tables: &Tables, server: u16) {
        match self.entry() {
            Some(entry) if tables.accepts(entry.value.server()) => self.extend(entry),
            Some(entry) => {
                self.sessions.change(entry, self.new_value(server));
            }
            None => {
                // Without room for an entry, the policy selects the client's next server.
                let _ = self.sessions.insert(self.key, self.hash, self.new_value(server), self.now);
            }
        }
    }

    /// Extends the lifetime of the client's entry, since the client has an open session.
    pub fn refresh(&self) {
        if let Some(entry) = self.entry() {
            self.extend(entry);
        }
    }

    /// Enters what another director has told of the client. An own entry stays.
    pub fn replicate(&self, server: u16) {
        let value = self.new_value(server).with_mark(REPLICATED_ENTRY);
        match self.entry() {
            Some(entry) if entry.value.mark() == REPLICATED_ENTRY => {
                self.sessions.change(entry, value);
            }
            Some(_) => {}
            None => drop(self.sessions.insert(self.key, self.hash, value, self.now)),
        }
    }

    fn extend(&self, entry: FoundSession<'a>) {
        let value = self.new_value(entry.value.server());
        let gained = value.expires().wrapping_sub(entry.value.expires()) as i32;
        if gained > STEP as i32 {
            self.sessions.change(entry, value);
        }
    }

    fn new_value(&self, server: u16) -> Value {
        Value::new(server, State::Affinity, self.now.wrapping_add(self.lifetime))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::net::Ipv4Addr;
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::net::wire::Mac;
    use crate::path::sessions::{
        AFFINITY_WORDS, AffinityCounts, Bucket4, Counted, SESSION_BYTES, buckets_for, sessions_for,
    };
    use crate::path::tables::{Forwarding, IdleTicks, ServerEntry};

    const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
    const LIFETIME: u32 = ticks(60_000 + SLACK_MS);

    fn vip(pick: Pick) -> Vip {
        let idle = IdleTicks { syn: 1, tcp: 1, half_closed: 1, closing: 1, udp: 1, udp_new: 1 };
        let affinity = Some(Affinity::new(0xabcd, 24, 60_000));
        Vip {
            id: 1,
            service: 3,
            announce: true,
            pick,
            idle,
            own: 0,
            stateless: false,
            affinity,
            handoff: None,
        }
    }

    /// Returns tables in which these servers accept sessions.
    fn tables(accepting: &[u16]) -> Tables {
        let entry = |slot: u16| ServerEntry {
            identity: slot.into(),
            mac: Mac::default(),
            ifindex: 1,
            weight: 1,
            up: true,
            local: false,
            forwarding: Forwarding::Link,
        };
        Tables { servers: accepting.iter().map(|slot| (*slot, entry(*slot))).collect(), ..Tables::default() }
    }

    struct World {
        buckets: Vec<Bucket4>,
        words: Vec<AtomicU64>,
    }

    impl World {
        fn sized_for(sessions: usize) -> World {
            World {
                buckets: (0..buckets_for(sessions)).map(|_| Bucket4::default()).collect(),
                words: (0..AFFINITY_WORDS).map(|_| AtomicU64::new(0)).collect(),
            }
        }

        fn sessions(&self) -> Sessions<'_> {
            let counted = Counted { affinity: AffinityCounts(&self.words), ..Counted::NOTHING };
            Sessions::new(&self.buckets, &[], counted)
        }

        fn client(&self, number: u32, now: u32) -> AffinityClient<'_> {
            let client = Ipv4Addr::from_bits(0x0a00_0000 + (number << 8)).into();
            AffinityClient::of(&vip(Pick::Two), client, self.sessions(), SEED, now).unwrap()
        }
    }

    #[test]
    fn entry_expires_after_its_lifetime_unless_refreshed() {
        let (world, start, tables) = (World::sized_for(100), u32::MAX - 1_000, tables(&[5]));
        let server = |ms| world.client(1, start.wrapping_add(ticks(ms))).value().map(|value| value.server());
        world.client(1, start).record(&tables, 5);
        assert_eq!((server(0), server(60_000)), (Some(5), Some(5)));
        assert_eq!(world.client(2, start).value(), None, "another client");
        world.client(1, start.wrapping_add(ticks(50_000))).refresh();
        assert_eq!((server(110_000), server(110_000 + SLACK_MS + 2)), (Some(5), None));
        world.client(1, start.wrapping_add(ticks(200_000))).refresh();
        assert_eq!(server(200_000), None, "a refresh writes no entry");
    }

    #[test]
    fn own_entry_stays_and_copy_follows_other_director() {
        let (world, tables) = (World::sized_for(100), tables(&[5, 6]));
        let server = |client, now| world.client(client, now).value().map(|value| value.server());
        world.client(1, 10).record(&tables, 5);
        world.client(1, 10).replicate(6);
        assert_eq!(server(1, 10), Some(5));
        world.client(2, 10).replicate(5);
        world.client(2, 20).replicate(6);
        assert_eq!((server(2, 20), server(2, 10 + LIFETIME)), (Some(6), Some(6)));
        // A connection of the client makes the entry the director's own.
        world.client(2, 20 + 2 * STEP).record(&tables, 6);
        world.client(2, 30 + 2 * STEP).replicate(5);
        assert_eq!(server(2, 30 + 2 * STEP), Some(6));
    }

    #[test]
    fn refresh_stores_only_what_differs_by_a_second() {
        let (world, tables) = (World::sized_for(100), tables(&[5]));
        let expires = || world.client(1, 10).value().map(|value| value.expires());
        world.client(1, 10).record(&tables, 5);
        world.client(1, 10 + STEP).record(&tables, 5);
        assert_eq!(expires(), Some(10 + LIFETIME));
        world.client(1, 11 + STEP).record(&tables, 5);
        assert_eq!(expires(), Some(11 + STEP + LIFETIME));
    }

    #[test]
    fn recorded_server_stays_while_it_accepts_sessions() {
        let world = World::sized_for(100);
        let record = |server, accepting: &[u16]| {
            world.client(1, 10).record(&tables(accepting), server);
            world.client(1, 10).value().map(|value| value.server())
        };
        assert_eq!(record(5, &[5, 6]), Some(5));
        assert_eq!(record(6, &[5, 6]), Some(5), "a session elsewhere, for instance since 5 was full");
        assert_eq!(record(6, &[6]), Some(6));
        assert_eq!(record(5, &[5, 6]), Some(6), "after the return of 5");
    }

    /// Sixteen times as many clients as the table is sized for, and sessions beside them.
    #[test]
    fn oldest_entries_make_room_for_new_ones_and_sessions_stay() {
        const SIZE: u32 = 4_000;
        let (world, tables) = (World::sized_for(SIZE as usize), tables(&[5]));
        let sessions = world.sessions();
        let key = |port| SessionKey { client: Ipv4Addr::LOCALHOST.into(), port, vip: 1 };
        for port in 0..1_000 {
            let value = Value::new(5, State::Established, u32::MAX / 4);
            sessions.insert(key(port), key(port).hash(SEED), value, 0).unwrap();
        }
        for number in 0..16 * SIZE {
            world.client(number, number).record(&tables, 5);
        }
        let now = 16 * SIZE;
        let are_kept = (0..1_000).all(|port| sessions.find(key(port), key(port).hash(SEED), now).is_some());
        assert!(are_kept, "no session gives way to a client");
        let known = |numbers: core::ops::Range<u32>| {
            numbers.filter(|number| world.client(*number, now).value().is_some()).count()
        };
        let (all, latest) = (known(0..now), known(now - SIZE / 2..now));
        assert!((2_500..=4_000).contains(&all), "{all} of {SIZE} beside 1,000 sessions");
        assert!(latest > 1_950, "{latest} of the latest 2,000 are known");
        let counts = sessions.affinity_counts();
        assert_eq!(counts.entries(3) as usize, all);
        assert!(counts.entries(3) + counts.evicted(3) <= u64::from(now));
        // A table for a million clients has at most 32 MB.
        let bytes = buckets_for(1_000_000) * size_of::<Bucket4>();
        assert!(bytes <= 32_000_000 && SESSION_BYTES <= 32 && sessions_for(buckets_for(1_000)) >= 1_000);
    }

    #[test]
    fn new_sessions_take_the_slots_of_entries() {
        let (world, tables) = (World::sized_for(40), tables(&[5]));
        let sessions = world.sessions();
        (0..200).for_each(|number| world.client(number, 0).record(&tables, 5));
        let entries = sessions.affinity_counts().entries(3);
        assert!(entries >= 30, "{entries} entries");
        let insert = |port: u16| {
            let key = SessionKey { client: Ipv4Addr::LOCALHOST.into(), port, vip: 1 };
            sessions.insert(key, key.hash(SEED), Value::new(5, State::Established, 1_000), 0).is_ok()
        };
        let inserted = (0..64).filter(|port| insert(*port)).count();
        assert!(inserted >= 50, "{inserted} of 64 sessions in 64 slots");
        assert_eq!(sessions.list(0).count() as u64, inserted as u64 + sessions.affinity_counts().entries(3));
    }

    #[test]
    fn hash_by_affinity_covers_the_client_without_its_port() {
        let hash = |pick, client: [u8; 4], port| {
            let key = SessionKey { client: client.into(), port, vip: 1 };
            let vip = vip(pick);
            [vip.ring_hash(key, SEED), Vip { affinity: None, ..vip }.ring_hash(key, SEED)]
        };
        for pick in [Pick::Hash, Pick::Two] {
            let [with, without] = hash(pick, [192, 0, 2, 1], 4_000);
            let [same_client, other_port] = hash(pick, [192, 0, 2, 77], 4_001);
            assert_eq!(with, same_client, "one /24 is one client");
            assert_ne!(without, other_port);
            assert_ne!(with, hash(pick, [192, 0, 3, 1], 4_000)[0]);
        }
        let seven = [192, 0, 2, 7].into();
        let world = World::sized_for(10);
        assert!(AffinityClient::of(&vip(Pick::Hash), seven, world.sessions(), SEED, 0).is_none());
    }
}
