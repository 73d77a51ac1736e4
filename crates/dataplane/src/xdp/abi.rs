//! Types of `bpf/abi.h`, generated from the compiler's BTF, and conversions between core's values
//! and their bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use evener_core::net::wire::Mac;
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::affinity;
use evener_core::path::decide::{HELD_FRAME_MAX, Reason};
use evener_core::path::fragments::{FragmentKey, Track};
use evener_core::path::mark::ForwardCount;
use evener_core::path::select::{EXPLORING, GAIN_UNIT, SCORE_UNIT};
use evener_core::path::sessions::{
    AFFINITY_KEY, AFFINITY_WORDS, BUCKET_SESSIONS, Bucket4, Bucket6, LIFE_MAX, State, Value,
};
use evener_core::path::tables::{
    self, Affinity, Forwarding, IdleTicks, Pick, RehandoffMode, Ring, ServerEntry, Vip, VipKey,
};
use evener_core::path::{fragments, ports};

/// Generated from the C code, with the names of the C code.
#[allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    non_camel_case_types,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::undocumented_unsafe_blocks
)]
mod director {
    include!(concat!(env!("OUT_DIR"), "/director.skel.rs"));
}

use director::types as c;

use crate::numbers::abi as h;

mod endpoints;
mod events;
mod handoff;
mod settings;
#[cfg(test)]
mod tests;

pub(super) use endpoints::{
    RETURN_WORDS, address, address_key, endpoint, endpoint_key, endpoint_key_of, endpoint_of, hints,
};
pub(super) use events::{LOST_WORD, WATCH_CLIENTS, WATCH_WORDS, event_of, watch};
pub(super) use handoff::{
    HANDOFF_WORDS, HandoffState, generation_of, handoff, handoff_of, route_entry, route_key,
};
pub(super) use settings::{ABI_VERSION, ABI_WITHOUT_AFFINITY, SETTINGS_LEN, Settings, jiffy_ns};

/// Number of words of `struct affinity`.
pub(crate) const AFFINITY_ENTRY_WORDS: usize = size_of::<c::affinity>() / 8;
/// Number of a VIP's idle times. The next two are indexes of them.
const STATES: usize = h::STATES as usize;
const IDLE_LEAST: usize = h::IDLE_LEAST as usize;
const IDLE_STEP: usize = h::IDLE_STEP as usize;
/// Maximum number of rings.
pub(super) const SERVICES_MAX: usize = h::SERVICES_MAX as usize;
pub(super) const RING_WORDS: usize = size_of::<c::ring>() / 8;
pub(super) const PREVIOUS_WORDS: usize = size_of::<c::previous>() / 8;
pub(crate) const SERVER_WORDS: usize = size_of::<c::server>() / 8;
/// Number of entries in each half of the VIP table.
pub(super) const VIP_PLACES: usize = h::VIP_PLACES as usize;
/// Number of entries in each half of the table of peers.
pub(super) const PEER_PLACES: usize = h::PEER_PLACES as usize;
/// Number of different VIP ids.
pub(super) const VIP_IDS: usize = tables::VIP_IDS;
/// Maximum number of first fragments in the map.
pub(crate) const FRAGMENTS_MAX: usize = h::FRAGMENTS_MAX as usize;
pub(super) const ROUTE_ENTRIES: usize = h::ROUTE_ENTRIES as usize;
pub(super) const INTERFACE_PLACES: usize = h::INTERFACE_PLACES as usize;
pub(crate) const VIP_WORDS: usize = size_of::<c::vip>() / 8;
pub(super) const INTERFACE_WORDS: usize = size_of::<c::interface>() / 8;

const SERVER_PRESENT: u16 = h::SERVER_PRESENT as u16;
const SERVER_UP: u16 = h::SERVER_UP as u16;
const SERVER_LOCAL: u16 = h::SERVER_LOCAL as u16;
const SERVER_NAT: u16 = h::SERVER_NAT as u16;
const SERVER_SOURCE_NAT: u16 = h::SERVER_SOURCE_NAT as u16;
const SERVER_TUNNEL: u16 = h::SERVER_TUNNEL as u16;
const SERVER_GUE: u16 = h::SERVER_GUE as u16;
const SERVER_V6: u16 = h::SERVER_V6 as u16;
const SERVER_LAST: u16 = h::SERVER_LAST as u16;
const SERVER_PUNTED: u16 = h::SERVER_PUNTED as u16;
const SERVER_BLACKHOLE: u16 = h::SERVER_BLACKHOLE as u16;
const SERVER_MARKED: u16 = h::SERVER_MARKED as u16;
/// Flags that select the forwarding method of a server.
const SERVER_FORWARDING: u16 =
    SERVER_NAT | SERVER_SOURCE_NAT | SERVER_TUNNEL | SERVER_GUE | SERVER_V6 | SERVER_LAST | SERVER_MARKED;
// Each flag must be a separate bit.
const _: () = assert!(
    (SERVER_PRESENT | SERVER_UP | SERVER_LOCAL | SERVER_PUNTED | SERVER_BLACKHOLE | SERVER_FORWARDING)
        .count_ones()
        == 12
);

const VIP_RING_HALF: u8 = h::VIP_RING_HALF as u8;
const VIP_ANNOUNCE: u8 = h::VIP_ANNOUNCE as u8;
const VIP_STATELESS: u8 = h::VIP_STATELESS as u8;
const VIP_HANDOFF: u8 = h::VIP_HANDOFF as u8;
const VIP_LATER: u8 = h::VIP_LATER as u8;
const VIP_AFFINITY: u8 = h::VIP_AFFINITY as u8;

const fn number_of_pick(pick: Pick) -> u8 {
    let number = match pick {
        Pick::Hash => h::PICK_HASH,
        Pick::Cursor => h::PICK_CURSOR,
        Pick::Least => h::PICK_LEAST,
        Pick::Two => h::PICK_TWO,
    };
    number as u8
}

const fn number_of_state(state: State) -> u64 {
    match state {
        State::Free => h::STATE_FREE,
        State::Claimed => h::STATE_CLAIMED,
        State::New => h::STATE_NEW,
        State::Established => h::STATE_ESTABLISHED,
        State::Closing => h::STATE_CLOSING,
        State::Udp => h::STATE_UDP,
        State::UdpNew => h::STATE_UDP_NEW,
        State::UdpAnswered => h::STATE_UDP_ANSWERED,
        State::HalfClosed => h::STATE_HALF_CLOSED,
        State::Answered => h::STATE_ANSWERED,
        State::ServerClosed => h::STATE_SERVER_CLOSED,
        State::Affinity => h::STATE_AFFINITY,
        State::Replicated => h::STATE_REPLICATED,
        State::UdpReplicated => h::STATE_UDP_REPLICATED,
    }
}

// The build fails if C and core differ.
const _: () = {
    let mut state = 0;
    while state < State::ALL.len() {
        assert!(number_of_state(State::ALL[state]) == State::ALL[state] as u64);
        state += 1;
    }
    assert!(number_of_state(State::Affinity) == State::Affinity as u64);
    assert!(h::AFFINITY_KEY == AFFINITY_KEY as u64 && h::AFFINITY_STEP == affinity::STEP as u64);
    assert!(number_of_state(State::Free) == State::Free as u64);
    assert!(number_of_state(State::Claimed) == State::Claimed as u64);
    assert!(h::HASH_SLOTS == tables::HASH_SLOTS as u64 && h::ORDER_MAX == tables::ORDER_MAX as u64);
    assert!(h::SERVICE_SERVERS_MAX == tables::SERVICE_SERVERS_MAX as u64);
    assert!(h::SERVER_SLOTS == tables::SERVER_SLOTS as u64 && h::NO_SERVER == tables::NO_SERVER as u64);
    assert!(h::ALL_FULL == tables::ALL_FULL as u64);
    assert!(h::VIP_IDS == tables::VIP_IDS as u64 && h::BEHIND_MAX == tables::BEHIND_MAX as u64);
    assert!(h::BUCKET_SESSIONS == BUCKET_SESSIONS as u64 && h::LIFE_MAX == LIFE_MAX as u64);
    assert!(h::MARK_MASK == (1 << Value::MARK_BITS) - 1);
    assert!(h::FIRST_PORT == ports::FIRST_PORT as u64 && h::PORTS == ports::PORTS as u64);
    assert!(h::PORT_POOLS == ports::POOLS as u64 && h::POOL_BUCKETS == ports::POOL_BUCKETS as u64);
    assert!(h::FRAGMENT_LIFETIME_MS == fragments::LIFETIME_MS);
    assert!(h::HELD_FRAME_MAX == HELD_FRAME_MAX as u64);
    assert!(size_of::<c::held>() == HELD_HEADER_LEN + HELD_FRAME_MAX);
    assert!(size_of::<c::affinity_count>() * SERVICES_MAX == 8 * AFFINITY_WORDS);
    assert!(size_of::<c::bucket>() == size_of::<Bucket4>());
    assert!(size_of::<c::session>() * BUCKET_SESSIONS == size_of::<Bucket4>());
    assert!(size_of::<c::bucket6>() == size_of::<Bucket6>());
    assert!(size_of::<c::session6>() * BUCKET_SESSIONS == size_of::<Bucket6>());
    assert!(size_of::<c::vip>() == 64 && size_of::<c::interface>().is_multiple_of(8));
    assert!(PREVIOUS_WORDS * 8 == (2 * tables::HASH_SLOTS).next_multiple_of(8));
    assert!(size_of::<c::ring>().is_multiple_of(8) && size_of::<c::server>() == 64);
    assert!(size_of::<c::endpoint>() == 4 + tables::BEHIND_MAX * size_of::<c::behind>());
    assert!(size_of::<c::ring>() >= 8 + 2 * (tables::ORDER_MAX + 2 * tables::HASH_SLOTS));
    assert!(h::EXPLORING == EXPLORING);
    assert!(h::GAIN_UNIT == GAIN_UNIT);
    assert!(h::SCORE_UNIT == SCORE_UNIT);
};

/// Returns the bytes of a C struct for a map. The struct must have no padding.
fn bytes<T: Copy, const N: usize>(value: &T) -> [u8; N] {
    const { assert!(size_of::<T>() == N) };
    // SAFETY: the sizes are equal, and callers pass only structs of integers without padding.
    unsafe { std::mem::transmute_copy(value) }
}

/// Returns an address in network byte order.
fn ip(address: IpAddr) -> c::ip {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => octets = address.octets(),
    }
    // SAFETY: both types have sixteen bytes, and any bits are a valid `c::ip`.
    unsafe { std::mem::transmute(octets) }
}

/// Reverses [`ip`].
fn ip_of(ip: c::ip, v6: bool) -> IpAddr {
    let octets: [u8; 16] = bytes(&ip);
    if v6 {
        Ipv6Addr::from(octets).into()
    } else {
        Ipv4Addr::from([octets[0], octets[1], octets[2], octets[3]]).into()
    }
}

/// Digest of an IPv6 address in a VIP's key: `address_digest` of `bpf/director/maps.h`.
fn address_digest(address: Ipv6Addr) -> u32 {
    let [high, low] = [0, 8].map(|at| {
        let mut half = [0; 8];
        half.copy_from_slice(&address.octets()[at..at + 8]);
        u64::from_ne_bytes(half)
    });
    let digest = (high.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ low).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (digest ^ digest >> 32) as u32
}

fn vip_key(key: &VipKey) -> c::vip_key {
    c::vip_key {
        address: match key.address {
            IpAddr::V4(address) => address.to_bits().to_be(),
            IpAddr::V6(address) => address_digest(address),
        },
        port: key.port.to_be(),
        protocol: key.protocol.number(),
        v6: key.address.is_ipv6().into(),
    }
}

/// Returns the VIP's key as one word, as the kernel's programs compare it.
pub(super) fn vip_bits(key: &VipKey) -> u64 {
    u64::from_ne_bytes(bytes(&vip_key(key)))
}

/// Returns a key's index in one half of a table, hashed with that half's multiplier. `PLACES` is
/// the length of a half: [`VIP_PLACES`] or [`PEER_PLACES`].
pub(super) fn place_of<const PLACES: usize>(bits: u64, multiplier: u64) -> usize {
    (bits.wrapping_mul(multiplier) / (u64::MAX / PLACES as u64 + 1)) as usize
}

/// Returns the half (0 or 1) that a multiplier belongs to: its bit of value `PLACES`.
pub(super) const fn half_of<const PLACES: usize>(multiplier: u64) -> usize {
    ((multiplier / PLACES as u64) & 1) as usize
}

/// Returns a multiplier for this half, made from `bits`.
pub(super) const fn multiplier_for<const PLACES: usize>(half: usize, bits: u64) -> u64 {
    bits & !(PLACES as u64) | (half * PLACES) as u64 | 1
}

/// Returns a peer's MAC as one word that is never 0: `mac_bits` of `bpf/net/mark.h`.
pub(super) fn mac_bits(Mac([a, b, c, d, e, f]): Mac) -> u64 {
    u64::from_ne_bytes(if cfg!(target_endian = "little") {
        [0, 0, a, b, c, d, e, f]
    } else {
        [a, b, c, d, e, f, 0, 0]
    }) | 1
}

/// Decodes the result of [`mac_bits`]; `None` for an empty entry.
pub(super) fn mac_of(bits: u64) -> Option<Mac> {
    let bytes = bits.to_ne_bytes();
    let from = if cfg!(target_endian = "little") { 2 } else { 0 };
    bytes[from..].first_chunk().filter(|_| bits != 0).copied().map(Mac)
}

pub(super) const VIP_PLACE_WORDS: usize = VIP_IDS / 4;

/// Returns one half of `vip_places` as words.
pub(super) fn vip_places(by_id: &[u16; VIP_IDS]) -> [u64; VIP_PLACE_WORDS] {
    // SAFETY: four sixteen-bit numbers per word, without padding; any bits are a value.
    unsafe { std::mem::transmute_copy(by_id) }
}

pub(crate) fn vip(key: &VipKey, vip: &Vip, half: u8) -> [u64; VIP_WORDS] {
    let mut idle = [0; STATES];
    for state in State::ALL {
        idle[state as usize % STATES] = state.idle(&vip.idle);
    }
    let at_work = State::at_work(key.protocol);
    let (life, step) = (at_work.idle(&vip.idle), at_work.step(&vip.idle));
    idle[IDLE_LEAST] = life.saturating_sub(step).max(1);
    idle[IDLE_STEP] = step;
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    words(&c::vip {
        key: vip_key(key),
        id: vip.id,
        service: vip.service,
        pick: number_of_pick(vip.pick),
        flags: half & VIP_RING_HALF
            | flag(vip.announce, VIP_ANNOUNCE)
            | flag(vip.stateless, VIP_STATELESS)
            | flag(vip.handoff.is_some(), VIP_HANDOFF)
            | flag(vip.handoff.is_some_and(|handoff| handoff.later != RehandoffMode::Stay), VIP_LATER)
            | flag(vip.affinity.is_some(), VIP_AFFINITY),
        own: vip.own,
        idle,
        address6: if key.address.is_ipv6() { ip(key.address) } else { c::ip { word: [0; 4] } },
    })
}

/// Returns the entry of a VIP in `clients`: zeros without affinity. The mask is that of addresses
/// in keys of IPv6 sessions, where an IPv4 address is mapped.
pub(crate) fn affinity(key: &VipKey, affinity: Option<Affinity>) -> [u64; AFFINITY_ENTRY_WORDS] {
    let Some(Affinity { tag, prefix_len, lifetime }) = affinity else { return [0; AFFINITY_ENTRY_WORDS] };
    let len = u32::from(prefix_len) + mapped_len(key);
    let mask = u128::MAX.checked_shl(128 - len).unwrap_or_default();
    words(&c::affinity { mask: [(mask >> 64) as u64, mask as u64], lifetime, tag, pad: 0 })
}

/// Decodes the result of [`affinity()`].
pub(crate) fn affinity_of(key: &VipKey, place: &[u64]) -> Option<Affinity> {
    let c::affinity { mask: [high, low], lifetime, tag, .. } = from_words(place)?;
    let len = high.count_ones() + low.count_ones();
    let prefix_len = len.checked_sub(mapped_len(key)).filter(|_| lifetime != 0)?;
    Some(Affinity { tag, prefix_len: prefix_len as u8, lifetime })
}

/// Returns the length of the prefix by which addresses of the VIP's IP version are mapped to IPv6.
const fn mapped_len(key: &VipKey) -> u32 {
    if key.address.is_ipv6() { 0 } else { 96 }
}

/// Decodes the result of [`vip`], with its ring half; `None` for an empty entry. Settings of
/// handoff and affinity are separate: [`handoff_of`], [`affinity_of`].
pub(crate) fn vip_of(place: &[u64]) -> Option<(VipKey, Vip, u8)> {
    let place: c::vip = from_words(place)?;
    let protocol = protocol_of(place.key.protocol)?;
    let address = match place.key.v6 {
        0 => Ipv4Addr::from_bits(u32::from_be(place.key.address)).into(),
        _ => ip_of(place.address6, true),
    };
    let key = VipKey { address, port: u16::from_be(place.key.port), protocol };
    let idle = |state: State| place.idle[state as usize % STATES];
    let vip = Vip {
        id: place.id,
        service: place.service,
        announce: place.flags & VIP_ANNOUNCE != 0,
        pick: [Pick::Hash, Pick::Cursor, Pick::Least, Pick::Two]
            .into_iter()
            .find(|pick| number_of_pick(*pick) == place.pick)?,
        idle: IdleTicks {
            syn: idle(State::New),
            tcp: idle(State::Established),
            half_closed: idle(State::HalfClosed),
            closing: idle(State::Closing),
            udp: idle(State::Udp),
            udp_new: idle(State::UdpNew),
        },
        own: place.own,
        stateless: place.flags & VIP_STATELESS != 0,
        affinity: None,
        handoff: None,
    };
    Some((key, vip, place.flags & VIP_RING_HALF))
}

/// Decodes the result of [`interface`].
pub(super) fn interface_of(place: &[u64]) -> Option<(u32, Mac)> {
    let place: c::interface = from_words(place)?;
    (place.ifindex != 0).then_some((place.ifindex, Mac(place.mac)))
}

fn protocol_of(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp].into_iter().find(|protocol| protocol.number() == number)
}

/// Decodes the result of [`server`].
pub(crate) fn server_of(place: &[u64]) -> Option<ServerEntry> {
    let place: c::server = from_words(place)?;
    let has = |flag: u16| place.flags & flag != 0;
    let (to, own) = (ip_of(place.to, has(SERVER_V6)), ip_of(place.own, has(SERVER_V6)));
    let forwarding = if has(SERVER_NAT) {
        let to = SocketAddr::new(to, u16::from_be(place.port));
        Forwarding::Nat { to, own, source_nat: has(SERVER_SOURCE_NAT), mtu: place.mtu }
    } else if has(SERVER_TUNNEL) {
        let encapsulation = if has(SERVER_GUE) { Encapsulation::Gue } else { Encapsulation::Ipip };
        let passed = if has(SERVER_LAST) { ForwardCount::Twice } else { ForwardCount::Once };
        let mark = has(SERVER_MARKED).then_some(passed);
        Forwarding::Tunnel { encapsulation, from: own, to, mtu: place.mtu, mark }
    } else {
        Forwarding::Link
    };
    has(SERVER_PRESENT).then_some(ServerEntry {
        identity: place.identity,
        mac: Mac(place.dst),
        ifindex: place.ifindex,
        weight: place.weight,
        up: has(SERVER_UP),
        local: has(SERVER_LOCAL),
        forwarding,
    })
}

/// Reverses [`words`]; `None` if the length is wrong.
fn from_words<T: Copy>(words: &[u64]) -> Option<T> {
    // SAFETY: the slice has the size of a `T`, and the structs read here consist of integers, for
    // which any bits are a value.
    (size_of_val(words) == size_of::<T>()).then(|| unsafe { words.as_ptr().cast::<T>().read_unaligned() })
}

/// Reverses [`bytes`]; `None` if the length is wrong.
fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the slice has the size of a `T`, and the structs read here consist of integers, for
    // which any bits are a value.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

pub(super) fn interface(ifindex: u32, mac: Mac) -> [u64; INTERFACE_WORDS] {
    words(&c::interface { mac: mac.0, pad: 0, ifindex, pad2: 0 })
}

/// Returns the words of a C struct for shared memory. The struct must have no padding.
fn words<T: Copy, const N: usize>(value: &T) -> [u64; N] {
    const { assert!(size_of::<T>() == N * 8) };
    // SAFETY: as for `bytes`; any bits are a word.
    unsafe { std::mem::transmute_copy(value) }
}

/// Returns the image of a ring for the mapped memory.
pub(super) fn ring(ring: &Ring) -> Vec<u64> {
    let mut image = vec![0u8; RING_WORDS * 8];
    let hash_at = 8 + 2 * tables::ORDER_MAX;
    image[..4].copy_from_slice(&(ring.order.len().min(tables::ORDER_MAX) as u32).to_ne_bytes());
    image[4..8].copy_from_slice(&(ring.hash.len() as u32).to_ne_bytes());
    for (place, slot) in image[8..hash_at].chunks_exact_mut(2).zip(&ring.order) {
        place.copy_from_slice(&slot.to_ne_bytes());
    }
    let second_at = hash_at + 2 * tables::HASH_SLOTS;
    for (at, table) in [(hash_at, &ring.hash), (second_at, &ring.second)] {
        for (place, slot) in image[at..].chunks_exact_mut(2).zip(table.iter().take(tables::HASH_SLOTS)) {
            place.copy_from_slice(&slot.to_ne_bytes());
        }
    }
    image.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// Returns the previous hash table for the mapped memory; zeros without one.
pub(super) fn previous(ring: &Ring) -> impl Iterator<Item = u64> {
    let mut hash = ring.previous.iter().take(tables::HASH_SLOTS);
    std::iter::repeat_with(move || {
        let slots = [(); 4].map(|()| hash.next().copied().unwrap_or_default());
        // SAFETY: both types have eight bytes, and any bits are a valid word.
        unsafe { std::mem::transmute::<[u16; 4], u64>(slots) }
    })
    .take(PREVIOUS_WORDS)
}

/// Returns a table cut to the length of a hash table; empty if it contains no server.
fn table_or_none(mut slots: Vec<u16>) -> Arc<[u16]> {
    slots.truncate(tables::HASH_SLOTS);
    if slots.iter().all(|slot| *slot == tables::NO_SERVER) {
        slots.clear();
    }
    slots.into()
}

/// Decodes the results of [`ring`] and [`previous`].
pub(super) fn ring_of(ring: &[u64], previous: &[u64]) -> Ring {
    let slots = |words: &[u64]| -> Vec<u16> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.as_chunks::<2>().0.iter().map(|slot| u16::from_ne_bytes(*slot)).collect()
    };
    let Some((lengths, rest)) = ring.split_first() else { return Ring::default() };
    let [order_len, hash_len] = [0, 4].map(|at| {
        let bytes = lengths.to_ne_bytes();
        let len = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        u32::from_ne_bytes(len) as usize
    });
    let mut order = slots(rest);
    let mut hash = order.split_off(tables::ORDER_MAX.min(order.len()));
    order.truncate(order_len);
    let second = table_or_none(hash.split_off(tables::HASH_SLOTS.min(hash.len())));
    hash.truncate(hash_len);
    let previous = table_or_none(slots(previous));
    Ring { order, hash: hash.into(), previous, second }
}

/// Returns a server's words. `src` is the MAC of the server's egress interface.
pub(crate) fn server(server: &ServerEntry, src: Mac) -> [u64; SERVER_WORDS] {
    let mut flags = SERVER_PRESENT;
    if server.up {
        flags |= SERVER_UP;
    }
    if server.local {
        flags |= SERVER_LOCAL;
    }
    if server.is_punt() {
        flags |= SERVER_PUNTED;
    }
    if server.is_down() {
        flags |= SERVER_BLACKHOLE;
    }
    let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let (forwarding, to, own, port, mtu) = match server.forwarding {
        Forwarding::Link => (0, none, none, 0, 0),
        Forwarding::Nat { to, own, source_nat, mtu } => {
            let source_nat = if source_nat { SERVER_SOURCE_NAT } else { 0 };
            (SERVER_NAT | source_nat, to.ip(), own, to.port(), mtu)
        }
        Forwarding::Tunnel { encapsulation, from, to, mtu, mark } => {
            let gue = if encapsulation == Encapsulation::Gue { SERVER_GUE } else { 0 };
            let mark = match mark {
                None => 0,
                Some(ForwardCount::Once) => SERVER_MARKED,
                Some(ForwardCount::Twice) => SERVER_MARKED | SERVER_LAST,
            };
            (SERVER_TUNNEL | gue | mark, to, from, 0, mtu)
        }
    };
    let version = if to.is_ipv6() { SERVER_V6 } else { 0 };
    words(&c::server {
        dst: server.mac.0,
        src: src.0,
        flags: flags | forwarding | version,
        weight: server.weight,
        ifindex: server.ifindex,
        port: port.to_be(),
        mtu,
        identity: server.identity,
        to: ip(to),
        own: ip(own),
    })
}

/// Index of the word with the flags.
pub(crate) const SERVER_FLAGS_WORD: usize = 1;

/// True if two values of the flags word have the same forwarding method, or if one has no server.
pub(super) fn same_forwarding(a: u64, b: u64) -> bool {
    // In memory, bytes 4 and 5 of the word are the flags, and bytes 6 and 7 the weight.
    let flags = |word: u64| {
        let [.., first, second, _, _] = word.to_ne_bytes();
        u16::from_ne_bytes([first, second])
    };
    let (a, b) = (flags(a), flags(b));
    a & SERVER_PRESENT == 0 || b & SERVER_PRESENT == 0 || (a ^ b) & SERVER_FORWARDING == 0
}

/// Key of the map `fragments`.
pub(super) fn fragment_key(key: &FragmentKey) -> [u8; size_of::<c::fragment_key>()] {
    bytes(&c::fragment_key {
        src: ip(key.src),
        dst: ip(key.dst),
        id: key.id,
        protocol: key.protocol,
        v6: key.dst.is_ipv6().into(),
        pad: 0,
    })
}

/// Value of the map `fragments`.
pub(super) fn track(track: &Track) -> [u8; size_of::<c::track>()] {
    let Track { expires, server, vip, port, first_end, answer } = *track;
    bytes(&c::track { expires, server, vip, port, first_end, answer: answer.into() })
}

/// Decodes a value of the map `fragments`, written by [`track`] or by a kernel program.
pub(super) fn track_of(value: &[u8]) -> Option<Track> {
    let c::track { expires, server, vip, port, first_end, answer } = from_bytes(value)?;
    Some(Track { expires, server, vip, port, first_end, answer: answer != 0 })
}

/// Length of `struct held` before the frame, in bytes.
const HELD_HEADER_LEN: usize = 12;

/// Frame from the ring buffer `held`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PuntedFrame<'r> {
    /// Interface that the frame arrived on.
    pub(super) ifindex: u32,
    /// Reason why the frame is held.
    pub(super) reason: Reason,
    /// Slot of the server that has the connection, if it is being handed on.
    pub(super) server: u16,
    pub(super) frame: &'r [u8],
}

/// Decodes a record of `held`; `None` if it is truncated or has a reason that this version does
/// not know.
pub(super) fn held_of(record: &[u8]) -> Option<PuntedFrame<'_>> {
    let (header, frame) = record.split_at_checked(HELD_HEADER_LEN)?;
    let [ifindex, len, last] = *header.as_chunks::<4>().0 else { return None };
    let [ifindex, len] = [ifindex, len].map(u32::from_ne_bytes);
    let [a, b, c, d] = last;
    let [reason, server] = [[a, b], [c, d]].map(u16::from_ne_bytes);
    let reason = *Reason::ALL.get(usize::from(reason))?;
    Some(PuntedFrame { ifindex, reason, server, frame: frame.get(..len as usize)? })
}
