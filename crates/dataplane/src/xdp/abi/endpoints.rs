//! Addresses of services and servers, in the format of the kernel's maps.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evener_core::path::tables::{self, ReplyOrigin, VipKey};

use super::{bytes, c, from_bytes, h, ip, ip_of, protocol_of, vip_bits};

const ADDRESS_SERVICE: u32 = h::ADDRESS_SERVICE as u32;
const ADDRESS_ANNOUNCED: u32 = h::ADDRESS_ANNOUNCED as u32;
const ADDRESS_ENDPOINT: u32 = h::ADDRESS_ENDPOINT as u32;

const ADDRESS_KEY_LEN: usize = size_of::<c::address_key>();

/// Key of the map `addresses`.
pub(in crate::xdp) fn address_key(address: IpAddr) -> [u8; ADDRESS_KEY_LEN] {
    bytes(&c::address_key { address: ip(address), v6: address.is_ipv6().into() })
}

/// Value of the map `addresses`; `None` if the address needs no entry.
pub(in crate::xdp) fn address(address: IpAddr, tables: &tables::Tables) -> Option<[u8; 4]> {
    let flag = |is: bool, flag: u32| if is { flag } else { 0 };
    let flags = flag(tables.has_address(address), ADDRESS_SERVICE)
        | flag(tables.announces(address), ADDRESS_ANNOUNCED)
        | flag(tables.has_endpoint(address), ADDRESS_ENDPOINT);
    (flags != 0).then(|| bytes(&c::address { flags }))
}

const ENDPOINT_KEY_LEN: usize = size_of::<c::endpoint_key>();
const ENDPOINT_LEN: usize = size_of::<c::endpoint>();

/// Key of the map `endpoints`.
pub(in crate::xdp) fn endpoint_key(key: &VipKey) -> [u8; ENDPOINT_KEY_LEN] {
    bytes(&c::endpoint_key {
        address: ip(key.address),
        port: key.port.to_be(),
        protocol: key.protocol.number(),
        v6: key.address.is_ipv6().into(),
    })
}

/// Decodes the result of [`endpoint_key`].
pub(in crate::xdp) fn endpoint_key_of(key: &[u8]) -> Option<VipKey> {
    let key: c::endpoint_key = from_bytes(key)?;
    let protocol = protocol_of(key.protocol)?;
    Some(VipKey { address: ip_of(key.address, key.v6 != 0), port: u16::from_be(key.port), protocol })
}

/// Value of the map `endpoints`; entries beyond [`tables::BEHIND_MAX`] are left out.
pub(in crate::xdp) fn endpoint(behind: &[ReplyOrigin]) -> [u8; ENDPOINT_LEN] {
    let mut value = c::endpoint { count: 0, behind: [c::behind { vip: 0, server: 0 }; tables::BEHIND_MAX] };
    for (place, behind) in value.behind.iter_mut().zip(behind) {
        *place = c::behind { vip: behind.vip, server: behind.server };
        value.count += 1;
    }
    bytes(&value)
}

/// Index of an endpoint's hint in `returns`: `hint_place` of `bpf/director/maps.h`.
fn hint_place(key: &VipKey) -> usize {
    let bits = vip_bits(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits / (u64::MAX / h::RETURN_PLACES + 1)) as usize
}

pub(in crate::xdp) const RETURN_WORDS: usize = h::RETURN_PLACES as usize * size_of::<c::hint>() / 8;

/// Returns the content of `returns`. If endpoints share an index, the last one wins. IPv6 endpoints
/// have no hint.
pub(in crate::xdp) fn hints(endpoints: &BTreeMap<VipKey, Vec<ReplyOrigin>>) -> Vec<u64> {
    let mut hints = vec![c::hint { vip: 0, server: 0 }; h::RETURN_PLACES as usize];
    for (key, behind) in endpoints.iter().filter(|(key, _)| key.address.is_ipv4()) {
        if let [ReplyOrigin { vip, server }] = **behind {
            hints[hint_place(key)] = c::hint { vip, server };
        }
    }
    // SAFETY: two hints are eight bytes without padding, for which any bits are valid.
    hints.as_chunks::<2>().0.iter().map(|pair| unsafe { std::mem::transmute_copy(pair) }).collect()
}

/// Decodes the result of [`endpoint`].
pub(in crate::xdp) fn endpoint_of(value: &[u8]) -> Option<Vec<ReplyOrigin>> {
    let value: c::endpoint = from_bytes(value)?;
    let all = value.behind.iter().take(value.count as usize);
    Some(all.map(|behind| ReplyOrigin { vip: behind.vip, server: behind.server }).collect())
}
