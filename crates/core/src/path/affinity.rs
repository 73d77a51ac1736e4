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
    AFFINITY_KEY, FlowHash, FoundSession, SessionKey, Sessions, State, Value, ticks,
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
