//! Ports of the director's own addresses, each standing for one client towards one server (RFC
//! 2663, section 4.1.2): what `source_nat` allocates.
//!
//! A port and the session it stands for are one slot of a table: the slot's number says the port,
//! its key the client, its value the server and how long the port is taken. So a port is free
//! exactly when its slot is, no two sessions can have it, an answer finds its client by its number
//! alone, and nothing can leak. A client's keyed hash says which sixteen ports its session may
//! have, which also makes ports hard to guess (RFC 6056).
//!
//! A port's slot has its session's state, so ports that only first packets have asked for are given
//! to others first, as sessions are ([`crate::path::sessions`]). A spoofed SYN holds its port for
//! no longer than it takes to ask for sixteen others in the same buckets. The server may still know
//! the port's old connection: where that was half open, it answers the new SYN with an
//! acknowledgment that the new client resets (RFC 9293, section 3.5.2), and the SYN that comes
//! again is taken; where it is in TIME_WAIT, a new SYN may open it again (section 3.6.1). Linux
//! resets a half-open one whose window the SYN is in, so an RST leaves an embryonic session's port
//! what it was: anybody's.
//!
//! A port need only be unique towards one server, so servers have pools of their own, by their
//! slot's number.
//!
//! No route leads to a client's link-local address, and two clients of two links may have the same
//! one (RFC 4291, section 2.5.6). So the key of such a client's port says, in bits that are zero in
//! others, where its packets come from: [`LinkLocalPeer`].

use core::net::IpAddr;

use crate::net::wire::Mac;
use crate::path::sessions::{Bucket6, Counted, FlowHash, FoundSession, SessionKey, Table, Value, Words};

/// The first port that is given out: below the range that Linux uses for its own connections.
pub const FIRST_PORT: u16 = 4_096;
/// Number of ports that stand for clients.
pub const PORTS: usize = 28_672;
/// Pools; servers share them evenly.
pub const POOLS: usize = 16;
/// Buckets of one pool.
pub const POOL_BUCKETS: usize = PORTS / crate::path::sessions::BUCKET_SESSIONS;
/// Servers may hold on to a closed connection for this long (TIME_WAIT), in milliseconds; no port
/// is given out again before, while there are others.
pub const HOLD_MS: u64 = 60_000;

/// Location of a client with a link-local address, a neighbour of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLocalPeer {
    /// Number of the interface that leads to it.
    pub link: u32,
    pub mac: Mac,
}

/// The holder of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub session: SessionKey,
    /// Of a client with a link-local address, which is in `fe80::/64` then.
    pub near: Option<LinkLocalPeer>,
}

impl Holder {
    /// As a port's slot holds it. An address in `fe80::/64` has 48 bits of zeros behind its first
    /// 16, a session's third word 32 before its ports.
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

/// The upper half of `fe80::/64`, the one network that link-local addresses are in (RFC 4291,
/// section 2.5.6).
const LINK_LOCAL: u64 = 0xfe80 << 48;

/// True if a [`LinkLocalPeer`] client may have this address.
pub(crate) fn is_near(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if (address.to_bits() >> 64) as u64 == LINK_LOCAL)
}

#[derive(Clone, Copy, Debug)]
pub struct Ports<'a> {
    table: Table<'a, 3>,
}

impl<'a> Ports<'a> {
    /// A view over [`POOLS`] times [`POOL_BUCKETS`] buckets.
    pub const fn new(buckets: &'a [Bucket6]) -> Self {
        // Sessions are counted where they are noted as such.
        Ports { table: Table::new(buckets, Counted::NOTHING) }
    }

    fn pool(&self, server: u16) -> Table<'a, 3> {
        let first = usize::from(server) % POOLS * POOL_BUCKETS;
        self.table.part(first..first + POOL_BUCKETS)
    }

    /// The port that a session, whose hash is `hash`, has towards a server, if it has one.
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

    /// A port for a session; `None` if all that it may have are taken by sessions that stay.
    pub fn allocate(&self, server: u16, key: Holder, hash: FlowHash, value: Value, now: u32) -> Option<u16> {
        let number = self.pool(server).insert(&key.words(), hash, value, now).ok()?;
        Some(FIRST_PORT + number as u16)
    }

    /// The holder of a port towards a server.
    pub fn holder(&self, server: u16, port: u16, now: u32) -> Option<(Holder, FoundSession<'a>)> {
        let number = usize::from(port.checked_sub(FIRST_PORT)?);
        let (words, found) = (number < PORTS).then(|| self.pool(server).at(number, now))??;
        (found.value.server() == server).then(|| (Holder::of_words(words), found))
    }

    /// Keeps a port for as long as its session.
    pub fn keep(&self, found: FoundSession<'a>, value: Value) -> bool {
        self.table.change(found, value)
    }

    /// Ports taken at the moment.
    pub fn taken(&self, now: u32) -> usize {
        self.table.list(now).count()
    }

    /// Gives the interfaces of [`LinkLocalPeer`] clients other numbers, while no packets come: test
    /// runs of the kernel's programs all come in by one interface, which stands for another each
    /// time.
    pub fn renumber(&self, now: u32, number: impl Fn(u32) -> u32) {
        self.table.rekey(now, |words| {
            let holder = Holder::of_words(words);
            let near = holder.near.map(|near| LinkLocalPeer { link: number(near.link), ..near });
            Holder { near, ..holder }.words()
        });
    }

    /// Frees the ports towards servers that `keep` doesn't want.
    pub fn sweep(&self, now: u32, mut keep: impl FnMut(SessionKey, Value) -> bool) -> usize {
        self.table.sweep(now, |words, value| keep(Holder::of_words(words).session, value))
    }

    /// Frees all ports. Returns how many slots it freed.
    pub fn clear(&self, now: u32) -> usize {
        self.sweep(now, |_, _| false)
    }
}

const _: () = assert!(
    PORTS.is_multiple_of(crate::path::sessions::BUCKET_SESSIONS) && FIRST_PORT as usize + PORTS <= 32_768
);
