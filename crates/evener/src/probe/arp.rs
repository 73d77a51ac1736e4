//! Does the server still answer ARP? Asked of it alone, so that the others need not hear it.

use std::net::Ipv4Addr;
use std::time::Duration;

use evener_core::health::Failure;
use evener_core::membership::ArpReply;
use evener_core::wire::{ARP_REPLY, ETHERTYPE_ARP, arp_request};
use evener_dataplane::link::Instruction;
use nix::libc::{BPF_ABS, BPF_H, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use tokio::time::{Instant, timeout_at};

use super::Target;
use super::link::Link;

/// How often it is asked before it counts as silent: frames get lost.
const ASKED: u32 = 3;
/// Holds an ARP body for IPv4, padding included.
const FRAME_MAX: usize = 64;

/// Asks for the server's own address where that is known, else for the service address.
pub(super) async fn probe(target: &Target, timeout: Duration) -> Result<(), Failure> {
    if target.local {
        return Ok(());
    }
    let address = target.server_address.unwrap_or(*target.destination.ip());
    let link = Link::open(target.ifindex, ETHERTYPE_ARP, &replies_for(address))?;
    let result = ask(&link, target, address, timeout).await;
    link.close();
    result
}

async fn ask(link: &Link, target: &Target, address: Ipv4Addr, timeout: Duration) -> Result<(), Failure> {
    let mut request = arp_request(target.own_mac, target.source, address);
    if let Some(destination) = request.get_mut(..target.mac.0.len()) {
        destination.copy_from_slice(&target.mac.0);
    }
    let started = Instant::now();
    for asked in 1..=ASKED {
        link.send(&request)?;
        let until = started + timeout * asked / ASKED;
        if let Ok(heard) = timeout_at(until, hear(link, target, address)).await {
            return heard;
        }
    }
    Err(Failure::NoArp)
}

/// Waits for the server's answer.
async fn hear(link: &Link, target: &Target, address: Ipv4Addr) -> Result<(), Failure> {
    let mut buffer = [0; FRAME_MAX];
    loop {
        while let Some(frame) = link.receive(&mut buffer)? {
            let reply = ArpReply::read(target.ifindex, frame).ok().flatten();
            if reply.is_some_and(|reply| reply.address == address && reply.place.mac == target.mac) {
                return Ok(());
            }
        }
        link.wait().await?;
    }
}

/// A filter for ARP replies that tell who has `address` (RFC 826).
fn replies_for(address: Ipv4Addr) -> [Instruction; 6] {
    const OPERATION: u32 = 20;
    const SENDER_ADDRESS: u32 = 28;
    let instruction = |code: u32, jf: u8, k: u32| Instruction { code: code as u16, jt: 0, jf, k };
    [
        instruction(BPF_LD | BPF_H | BPF_ABS, 0, OPERATION),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 3, ARP_REPLY.into()),
        instruction(BPF_LD | BPF_W | BPF_ABS, 0, SENDER_ADDRESS),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 1, address.to_bits()),
        instruction(BPF_RET | BPF_K, 0, u32::MAX),
        instruction(BPF_RET | BPF_K, 0, 0),
    ]
}
