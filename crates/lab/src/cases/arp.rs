//! Encodes ARP from the words of a case file.

use std::net::Ipv4Addr;

use evener_core::net::wire::{ARP_REPLY, ARP_REQUEST, Arp, ETHERTYPE_IPV4, Mac};
use zerocopy::IntoBytes;

use super::words::{Fields, Words, Wrong};
use super::world::World;

/// Encodes a request or a reply. The default sender is the frame's source, the default target its
/// destination.
pub(super) fn arp(words: &mut Words<'_>, world: &World, src: Mac, dst: Mac) -> Result<Vec<u8>, Wrong> {
    words.expect("arp")?;
    let address = "an IPv4 address";
    let (operation, sender_mac, sender_ip, target_mac, target_ip): (_, _, Ipv4Addr, _, Ipv4Addr);
    if words.take("who-has") {
        (operation, sender_mac, target_mac) = (ARP_REQUEST, src, Mac::default());
        target_ip = words.parse(address)?;
        words.expect("tell")?;
        sender_ip = words.parse(address)?;
    } else {
        (operation, target_mac) = (ARP_REPLY, dst);
        sender_ip = words.parse(address)?;
        words.expect("is-at")?;
        sender_mac = world.mac(words.next("a MAC address")?)?;
        words.expect("tell")?;
        target_ip = words.parse(address)?;
    }
    let known = ["htype", "ptype", "hlen", "plen", "op", "sender-mac", "target-mac"];
    let fields = Fields::of(words, &known)?;
    let mac = |key, right| fields.text(key).map_or(Ok(right), |word| world.mac(word));
    let body = Arp {
        hardware_type: fields.number("htype", 1)?.into(),
        protocol_type: fields.number("ptype", ETHERTYPE_IPV4)?.into(),
        hardware_len: fields.number("hlen", 6)?,
        protocol_len: fields.number("plen", 4)?,
        operation: fields.number("op", operation)?.into(),
        sender_mac: mac("sender-mac", sender_mac)?,
        sender_ip: sender_ip.to_bits().into(),
        target_mac: mac("target-mac", target_mac)?,
        target_ip: target_ip.to_bits().into(),
    };
    Ok(body.as_bytes().to_vec())
}
