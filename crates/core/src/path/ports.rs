//! Source-NAT ports: ports of the director's own addresses, for services with `source_nat`. Each
//! port stands for one client towards one server (RFC 2663, section 4.1.2).
//!
//! A port and its session share one slot of a table. The number of the slot is the number of the
//! port. The slot's key has the client, its value the server and the expiry. So a port is free
//! exactly when its slot is free. Two sessions can't have the same port, a reply finds its client
//! by the port number alone, and no port leaks. The keyed hash of a client selects sixteen ports
//! that its session may use, so ports are also hard to guess (RFC 6056).
//!
//! The slot of a port has the state of its session. So ports of embryonic sessions are reallocated
//! first, in the order in which sessions are evicted ([`crate::path::sessions`]). A spoofed SYN
//! holds its port until sixteen other sessions request ports in the same buckets.
//!
//! The server may still know the old connection of a reallocated port. If the old connection is
//! half open, the server answers the new SYN with an acknowledgment, and the new client resets the
//! old connection (RFC 9293, section 3.5.2). Then the server accepts the retransmitted SYN. If the
//! old connection is in TIME_WAIT, a new SYN may reopen it (section 3.6.1). Linux resets a
//! half-open connection if the SYN is in its window. So an RST doesn't change the state of an
//! embryonic session's port, which stays first to be reallocated.
//!
//! A port needs to be unique only towards one server, so each server has a pool, by its slot
//! number.
//!
//! No route leads to a client's link-local address, and clients of two links may have the same
//! address (RFC 4291, section 2.5.6). So the key of a link-local client's port also contains the
//! client's interface and MAC ([`LinkLocalPeer`]). It does so in bits that are zero for other
//! clients.

use core::net::IpAddr;

use crate::net::wire::Mac;
use crate::path::sessions::{Bucket6, Counted, FlowHash, FoundSession, SessionKey, Table, Value, Words};

/// Lowest port that is allocated. Linux uses ports above the range from this one for its own
/// connections.
pub const FIRST_PORT: u16 = 4_096;
/// Number of ports that can be allocated towards one server.
pub const PORTS: usize = 28_672;
/// Number of pools. Servers share them evenly.
pub const POOLS: usize = 16;
/// Number of buckets of one pool.
pub const POOL_BUCKETS: usize = PORTS / crate::path::sessions::BUCKET_SESSIONS;
/// Time for which a server may keep a closed connection (TIME_WAIT), in milliseconds. The port of
/// the connection is not reallocated earlier, while other ports are free.
pub const HOLD_MS: u64 = 60_000;

/// Interface and MAC of a neighbour with a link-local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLocalPeer {
    /// Number of the interface that leads to the client.
    pub link: u32,
    pub mac: Mac,
}

/// Session that holds a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub session: SessionKey,
    /// Interface and MAC of a client in `fe80::/64`. `None` for other clients.
    pub near: Option<LinkLocalPeer>,
}

impl Holder {
    /// Returns the key as stored in the slot of a port. MAC and interface of a link-local client
    /// are in bits that are zero in other keys. The MAC takes 48 bits after the first 16 bits of
    /// the address, and the interface the 32 bits before the ports in the third word.
    fn words(&self) -> Words<3> {
        let [high, low, rest] = self.session.words();
        let Some(LinkLocalPeer { link, mac: Mac([a, b, c, d, e, f]) }) = self.near else {
            return [high, low, rest];
        };
        let [first, last] = [[0, 0, a, b], [c, d, e, f]].map(u32::from_be_bytes).map(u64::from);
        [high | first << 32 | u64::from(link), low, last << 32 | rest]
    }

    fn of_words([high, low, rest]: Words<3>) -> Holder {
        if high >> 48 != LINK_LOCAL >> 48 {
            return Holder { session: SessionKey::of_words([high, low, rest]), near: None };
        }
        let ([_, _, a, b], [c, d, e, f]) =
            (((high >> 32) as u32).to_be_bytes(), ((rest >> 32) as u32).to_be_bytes());
        let near = LinkLocalPeer { link: high as u32, mac: Mac([a, b, c, d, e, f]) };
        Holder { session: SessionKey::of_words([LINK_LOCAL, low, rest]), near: Some(near) }
    }
}

impl From<SessionKey> for Holder {
    fn from(session: SessionKey) -> Holder {
        Holder { session, near: None }
    }
}

/// Upper half of `fe80::/64`, the network of all link-local addresses (RFC 4291, section 2.5.6).
const LINK_LOCAL: u64 = 0xfe80 << 48;

/// True if the address is in `fe80::/64`, so that its client needs a [`LinkLocalPeer`].
pub(crate) fn is_near(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if (address.to_bits() >> 64) as u64 == LINK_LOCAL)
}

#[derive(Clone, Copy, Debug)]
pub struct Ports<'a> {
    table: Table<'a, 3>,
}

impl<'a> Ports<'a> {
    /// Makes a view of [`POOLS`] times [`POOL_BUCKETS`] buckets.
    pub const fn new(buckets: &'a [Bucket6]) -> Self {
        // The session table counts the sessions, so the ports aren't counted again.
        Ports { table: Table::new(buckets, Counted::NOTHING) }
    }

    fn pool(&self, server: u16) -> Table<'a, 3> {
        let first = usize::from(server) % POOLS * POOL_BUCKETS;
        self.table.part(first..first + POOL_BUCKETS)
    }

    /// Finds the port of a session towards a server. `hash` is the session's hash.
    pub fn find(
        &self,
        server: u16,
        key: Holder,
        hash: FlowHash,
        now: u32,
    ) -> Option<(u16, FoundSession<'a>)> {
        let (number, found) = self.pool(server).find(&key.words(), hash, now)?;
        Some((FIRST_PORT + number as u16, found))
    }

    /// Allocates a port for a session. `None` if all ports that the session may use are held by
    /// sessions that can't be evicted.
    pub fn allocate(&self, server: u16, key: Holder, hash: FlowHash, value: Value, now: u32) -> Option<u16> {
        let number = self.pool(server).insert(&key.words(), hash, value, now).ok()?;
        Some(FIRST_PORT + number as u16)
    }

    /// Returns the session that holds a port towards a server, and the port's slot.
    pub fn holder(&self, server: u16, port: u16, now: u32) -> Option<(Holder, FoundSession<'a>)> {
        let number = usize::from(port.checked_sub(FIRST_PORT)?);
        let (words, found) = (number < PORTS).then(|| self.pool(server).at(number, now))??;
        (found.value.server() == server).then(|| (Holder::of_words(words), found))
    }

    /// Extends the lifetime of a port as that of its session. Returns false if another CPU changed
    /// the port's slot first.
    pub fn keep(&self, found: FoundSession<'a>, value: Value) -> bool {
        self.table.change(found, value)
    }

    /// Number of ports in use.
    pub fn taken(&self, now: u32) -> usize {
        self.table.list(now).count()
    }

    /// Renumbers the interfaces of [`LinkLocalPeer`] clients, while no packets arrive. In test runs
    /// of the BPF programs all packets arrive on one interface, which has another number each time.
    pub fn renumber(&self, now: u32, number: impl Fn(u32) -> u32) {
        self.table.rekey(now, |words| {
            let holder = Holder::of_words(words);
            let near = holder.near.map(|near| LinkLocalPeer { link: number(near.link), ..near });
            Holder { near, ..holder }.words()
        });
    }

    /// Frees expired ports, and ports for which `keep` returns false. Returns the number of slots
    /// freed.
    pub fn sweep(&self, now: u32, mut keep: impl FnMut(SessionKey, Value) -> bool) -> usize {
        self.table.sweep(now, |words, value| keep(Holder::of_words(words).session, value))
    }

    /// Frees all ports. Returns the number of slots freed.
    pub fn clear(&self, now: u32) -> usize {
        self.sweep(now, |_, _| false)
    }
}

const _: () = assert!(
    PORTS.is_multiple_of(crate::path::sessions::BUCKET_SESSIONS) && FIRST_PORT as usize + PORTS <= 32_768
);
