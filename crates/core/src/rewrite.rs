//! What a decision does to the bytes.

use zerocopy::FromBytes;

use crate::wire::{ARP_LEN, ARP_REPLY, Arp, ETHERNET_LEN, Ethernet, Mac};

/// Layer two (LSMAC, section 3.1): new source and destination MAC, and nothing else changes.
///
/// A frame too short to have them is left alone; the parser lets none through.
pub fn l2(frame: &mut [u8], src: Mac, dst: Mac) {
    if let Ok((ethernet, _)) = Ethernet::mut_from_prefix(frame) {
        ethernet.dst = dst;
        ethernet.src = src;
    }
}

/// Turns an ARP request into its answer: `own` has the target's address (RFC 826).
pub fn arp_answer(frame: &mut [u8], own: Mac) {
    let Some((head, body)) = frame.split_at_mut_checked(ETHERNET_LEN) else { return };
    let (Ok(ethernet), Some(Ok(arp))) =
        (Ethernet::mut_from_bytes(head), body.get_mut(..ARP_LEN).map(Arp::mut_from_bytes))
    else {
        return;
    };
    ethernet.dst = arp.sender_mac;
    ethernet.src = own;
    arp.operation.set(ARP_REPLY);
    let asked = arp.target_ip;
    arp.target_mac = arp.sender_mac;
    arp.target_ip = arp.sender_ip;
    arp.sender_mac = own;
    arp.sender_ip = asked;
}
