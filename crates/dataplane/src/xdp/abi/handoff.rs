//! Handoff settings of a VIP and keys of its routes, in the format of the kernel's maps.

use evener_core::path::content::{
    CLASSES, HOST_LABELS_MAX, HOST_MAX, PATH_DEPTH_MAX, READ_MAX, RequestClass,
};
use evener_core::path::content::{LATER_MAX, METHOD_MAX, NO_ROUTE, RouteEntry, RouteIndex, RouteKey};
use evener_core::path::cookie;
use evener_core::path::mark;
use evener_core::path::tables::{Handoff, RehandoffMode};

use super::{bytes, c, from_bytes, from_words, h, words};

pub(in crate::xdp) const HANDOFF_WORDS: usize = size_of::<c::handoff>() / 8;
const ROUTE_KEY_LEN: usize = size_of::<c::route_key>();
const ROUTE_ENTRY_LEN: usize = size_of::<c::route_entry>();

const fn number_of_class(class: RequestClass) -> u64 {
    match class {
        RequestClass::Get => h::CLASS_GET,
        RequestClass::Head => h::CLASS_HEAD,
        RequestClass::Post => h::CLASS_POST,
        RequestClass::Put => h::CLASS_PUT,
        RequestClass::Delete => h::CLASS_DELETE,
        RequestClass::Other => h::CLASS_OTHER,
        RequestClass::Hello => h::CLASS_HELLO,
    }
}

const fn number_of_later(later: RehandoffMode) -> u16 {
    let number = match later {
        RehandoffMode::Stay => h::LATER_STAY,
        RehandoffMode::Close => h::LATER_CLOSE,
        RehandoffMode::Rehandoff => h::LATER_REHANDOFF,
    };
    number as u16
}

// The build fails if C and core differ.
const _: () = {
    assert!(HANDOFF_WORDS * 8 == size_of::<c::handoff>() && ROUTE_KEY_LEN == 24);
    assert!(ROUTE_ENTRY_LEN == 4 * CLASSES && h::CLASSES == CLASSES as u64);
    let mut class = 0;
    while class < RequestClass::ALL.len() {
        assert!(number_of_class(RequestClass::ALL[class]) == RequestClass::ALL[class] as u64);
        class += 1;
    }
    assert!(h::READ_MAX == READ_MAX as u64 && h::LATER_LOOKED_MAX == LATER_MAX as u64);
    assert!(h::HOST_MAX == HOST_MAX as u64 && h::HOST_LABELS_MAX == HOST_LABELS_MAX as u64);
    assert!(h::PATH_DEPTH_MAX == PATH_DEPTH_MAX as u64 && h::METHOD_MAX == METHOD_MAX as u64);
    assert!(h::NO_ROUTE == NO_ROUTE as u64 && size_of::<c::cookie_keys>() == 8 * cookie::WORDS);
    assert!(size_of::<c::marker>() == 8 * mark::WORDS);
};

/// Where a VIP's routes and rings are in the maps, which the daemon adds to [`Handoff`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::xdp) struct HandoffState {
    /// Generation of the service's routes in the map.
    pub(in crate::xdp) generation: u32,
    /// Active half of each ring, one bit per ring.
    pub(in crate::xdp) ring_halves: u64,
}

/// Returns the handoff entry of a VIP. Without routes, every request is punted.
pub(in crate::xdp) fn handoff(
    handoff: &Handoff,
    routes: Option<&RouteIndex>,
    in_force: HandoffState,
) -> [u64; HANDOFF_WORDS] {
    words(&c::handoff {
        ring_halves: in_force.ring_halves,
        multiplier: routes.map_or([0; 2], |routes| routes.key.0),
        generation: in_force.generation,
        mss: handoff.mss,
        punt: handoff.punt,
        complex_from: routes.map_or(0, |routes| routes.complex_from),
        default_ring: routes.map_or(0, |routes| routes.default_ring),
        later: number_of_later(handoff.later),
        held: handoff.held,
    })
}

/// Decodes the result of [`handoff`]; `None` for an empty entry.
pub(in crate::xdp) fn handoff_of(place: &[u64]) -> Option<(Handoff, HandoffState)> {
    let place: c::handoff = from_words(place)?;
    let in_force = HandoffState { generation: place.generation, ring_halves: place.ring_halves };
    let all = [RehandoffMode::Stay, RehandoffMode::Close, RehandoffMode::Rehandoff];
    let later = all.into_iter().find(|later| number_of_later(*later) == place.later).unwrap_or_default();
    let handoff = Handoff { mss: place.mss, punt: place.punt, held: place.held, later };
    (place.mss != 0).then_some((handoff, in_force))
}

/// Key of the map `routes`.
pub(in crate::xdp) fn route_key(key: &RouteKey, generation: u32) -> [u8; ROUTE_KEY_LEN] {
    bytes(&c::route_key { host: key.host, path: key.path, generation, pad: 0 })
}

/// Returns the generation in a key of `routes`. Each generation belongs to one service.
pub(in crate::xdp) fn generation_of(key: &[u8]) -> Option<u32> {
    from_bytes(key).map(|key: c::route_key| key.generation)
}

/// Value of the map `routes`.
pub(in crate::xdp) fn route_entry(entry: &RouteEntry) -> [u8; ROUTE_ENTRY_LEN] {
    bytes(&c::route_entry { route: entry.route, ring: entry.ring })
}
