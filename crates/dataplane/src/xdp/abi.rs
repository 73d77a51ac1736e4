//! The types of `bpf/abi.h` as the compiler's BTF gives them, and how core's values become their bytes.

use evener_core::decide::Reason;
use evener_core::farm::Protocol;
use evener_core::sessions::{BUCKET_SESSIONS, Bucket, Seed, State};
use evener_core::tables::{self, IdleTicks, Pick, Ring, ServerEntry, Vip, VipKey};
use evener_core::wire::Mac;

/// Generated; its names are C's.
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

/// `ABI_VERSION` of `bpf/abi.h`, as the object was built with it (checked when it is loaded).
pub(super) const ABI_VERSION: u32 = 1;
/// `SERVICES_MAX`: rings there are room for.
pub(super) const SERVICES_MAX: usize = 64;
pub(super) const RING_WORDS: usize = size_of::<c::ring>() / 8;
pub(crate) const SERVER_WORDS: usize = size_of::<c::server>() / 8;
/// `VIP_PLACES`: places in each half of the VIP table.
pub(super) const VIP_PLACES: usize = 1024;
/// `INTERFACE_PLACES`.
pub(super) const INTERFACE_PLACES: usize = 256;
pub(crate) const VIP_WORDS: usize = size_of::<c::vip>() / 8;
pub(super) const INTERFACE_WORDS: usize = size_of::<c::interface>() / 8;
const REASONS: usize = c::reason::REASON_MAX.0 as usize;

const SERVER_PRESENT: u16 = 1;
const SERVER_UP: u16 = 2;
const SERVER_LOCAL: u16 = 4;

// Where C and core differ, the build ends here.
const _: () = {
    assert!(REASONS == Reason::ALL.len());
    assert!(c::reason::REASON_NO_SESSION.0 == Reason::NoSession as u32);
    assert!(c::reason::REASON_NO_SERVER.0 == Reason::NoServer as u32);
    assert!(c::reason::REASON_FRAGMENT.0 == Reason::Fragment as u32);
    assert!(c::pick::PICK_HASH.0 == Pick::Hash as u32);
    assert!(c::pick::PICK_CURSOR.0 == Pick::Cursor as u32);
    assert!(c::pick::PICK_LEAST.0 == Pick::Least as u32);
    assert!(c::session_state::STATE_CLAIMED.0 == State::Claimed as u32);
    assert!(c::session_state::STATE_NEW.0 == State::New as u32);
    assert!(c::session_state::STATE_ESTABLISHED.0 == State::Established as u32);
    assert!(c::session_state::STATE_CLOSING.0 == State::Closing as u32);
    assert!(c::session_state::STATE_UDP.0 == State::Udp as u32);
    assert!(size_of::<c::bucket>() == size_of::<Bucket>());
    assert!(size_of::<c::session>() * BUCKET_SESSIONS == size_of::<Bucket>());
    assert!(size_of::<c::vip>() == 64 && size_of::<c::interface>().is_multiple_of(8));
    assert!(size_of::<c::ring>().is_multiple_of(8) && size_of::<c::server>().is_multiple_of(8));
    assert!(size_of::<c::ring>() >= 8 + 2 * (tables::ORDER_MAX + tables::HASH_SLOTS));
};

/// A C struct without padding, as map bytes.
fn bytes<T: Copy, const N: usize>(value: &T) -> [u8; N] {
    const { assert!(size_of::<T>() == N) };
    // SAFETY: the sizes are equal, and the structs given here are integers that fill them wholly.
    unsafe { std::mem::transmute_copy(value) }
}

pub(super) const SETTINGS_LEN: usize = size_of::<c::settings>();

/// What a data plane was loaded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) abi_version: u32,
    pub(super) buckets: u32,
    pub(super) seed: Seed,
    pub(super) jiffy_ns: u64,
}

impl Settings {
    pub(super) fn to_bytes(self) -> [u8; SETTINGS_LEN] {
        let Settings { abi_version, buckets, seed, jiffy_ns } = self;
        bytes(&c::settings { abi_version, buckets, seed: [seed.0, seed.1], jiffy_ns })
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Settings> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let seed = Seed(u64_at(8)?, u64_at(16)?);
        Some(Settings { abi_version: u32_at(0)?, buckets: u32_at(4)?, seed, jiffy_ns: u64_at(24)? })
    }
}

/// The length of one tick of the kernel's timer, in nanoseconds: what coarse clocks resolve.
pub(super) fn jiffy_ns() -> u64 {
    use nix::time::{ClockId, clock_getres};
    clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_or(4_000_000, |resolution| resolution.tv_nsec() as u64)
}

fn vip_key(key: &VipKey) -> c::vip_key {
    c::vip_key {
        address: key.address.to_bits().to_be(),
        port: key.port.to_be(),
        protocol: key.protocol.number(),
        pad: 0,
    }
}

/// The VIP's key as one word, as the kernel's side compares it.
pub(super) fn vip_bits(key: &VipKey) -> u64 {
    u64::from_ne_bytes(bytes(&vip_key(key)))
}

/// Where a multiplier places a VIP in its half.
pub(super) fn vip_place(bits: u64, multiplier: u64) -> usize {
    (bits.wrapping_mul(multiplier | 1) / (u64::MAX / VIP_PLACES as u64 + 1)) as usize
}

pub(crate) fn vip(key: &VipKey, vip: &Vip, half: u8) -> [u64; VIP_WORDS] {
    let mut idle = [0; 8];
    for state in [State::New, State::Established, State::Closing, State::Udp] {
        idle[state as usize] = state.idle(&vip.idle);
    }
    words(&c::vip {
        key: vip_key(key),
        id: vip.id,
        service: vip.service,
        pick: vip.pick as u8,
        ring: half,
        announce: vip.announce.into(),
        pad: 0,
        idle,
        pad2: [0; 2],
    })
}

/// Reads back what [`vip`] wrote, and its ring half; `None` for an empty place.
pub(crate) fn vip_of(place: &[u64]) -> Option<(VipKey, Vip, u8)> {
    let place: c::vip = from_words(place)?;
    let protocol = [Protocol::Tcp, Protocol::Udp].into_iter().find(|p| p.number() == place.key.protocol)?;
    let address = u32::from_be(place.key.address).into();
    let key = VipKey { address, port: u16::from_be(place.key.port), protocol };
    let idle = |state: State| place.idle[state as usize];
    let vip = Vip {
        id: place.id,
        service: place.service,
        announce: place.announce != 0,
        pick: [Pick::Hash, Pick::Cursor, Pick::Least].into_iter().find(|pick| *pick as u8 == place.pick)?,
        idle: IdleTicks {
            syn: idle(State::New),
            tcp: idle(State::Established),
            closing: idle(State::Closing),
            udp: idle(State::Udp),
        },
    };
    Some((key, vip, place.ring & 1))
}

/// Reads back what [`interface`] wrote.
pub(super) fn interface_of(place: &[u64]) -> Option<(u32, Mac)> {
    let place: c::interface = from_words(place)?;
    (place.ifindex != 0).then_some((place.ifindex, Mac(place.mac)))
}

/// Reads back what [`server`] wrote.
pub(crate) fn server_of(place: &[u64]) -> Option<ServerEntry> {
    let place: c::server = from_words(place)?;
    (place.flags & SERVER_PRESENT != 0).then_some(ServerEntry {
        identity: place.identity,
        mac: Mac(place.dst),
        ifindex: place.ifindex,
        weight: place.weight,
        up: place.flags & SERVER_UP != 0,
        local: place.flags & SERVER_LOCAL != 0,
    })
}

/// The reverse of [`words`]; `None` unless the length is right.
fn from_words<T: Copy>(words: &[u64]) -> Option<T> {
    // SAFETY: as long as a `T`, and the structs read here are integers, for which any bits are a value.
    (size_of_val(words) == size_of::<T>()).then(|| unsafe { words.as_ptr().cast::<T>().read_unaligned() })
}

pub(super) fn interface(ifindex: u32, mac: Mac) -> [u64; INTERFACE_WORDS] {
    words(&c::interface { mac: mac.0, pad: 0, ifindex, pad2: 0 })
}

/// A C struct without padding, as words of shared memory.
fn words<T: Copy, const N: usize>(value: &T) -> [u64; N] {
    const { assert!(size_of::<T>() == N * 8) };
    // SAFETY: as for `bytes`; any bits are a word.
    unsafe { std::mem::transmute_copy(value) }
}

/// A ring's image, for its place in the map's memory.
pub(super) fn ring(ring: &Ring) -> Vec<u64> {
    let mut image = vec![0u8; RING_WORDS * 8];
    let hash_at = 8 + 2 * tables::ORDER_MAX;
    image[..4].copy_from_slice(&(ring.order.len().min(tables::ORDER_MAX) as u32).to_ne_bytes());
    image[4..8].copy_from_slice(&(ring.hash.len() as u32).to_ne_bytes());
    for (place, slot) in image[8..hash_at].chunks_exact_mut(2).zip(&ring.order) {
        place.copy_from_slice(&slot.to_ne_bytes());
    }
    for (place, slot) in image[hash_at..].chunks_exact_mut(2).zip(ring.hash.iter().take(tables::HASH_SLOTS)) {
        place.copy_from_slice(&slot.to_ne_bytes());
    }
    image.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// A server's words, `src` being the MAC of the interface it is reached by.
pub(crate) fn server(server: &ServerEntry, src: Mac) -> [u64; SERVER_WORDS] {
    let mut flags = SERVER_PRESENT;
    if server.up {
        flags |= SERVER_UP;
    }
    if server.local {
        flags |= SERVER_LOCAL;
    }
    words(&c::server {
        dst: server.mac.0,
        weight: server.weight,
        src: src.0,
        flags,
        ifindex: server.ifindex,
        pad: 0,
        identity: server.identity,
    })
}

/// The word that holds the flags.
pub(crate) const SERVER_FLAGS_WORD: usize = 1;
