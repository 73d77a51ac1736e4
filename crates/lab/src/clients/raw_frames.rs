//! Frames that a host should never send.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evener_core::net::wire::{ARP_REPLY, Arp, ETHERNET_LEN, ETHERTYPE_IPV4, Mac, arp_request};
use evener_dataplane::link::{EtherType, LinkSocket};
use nix::net::if_::if_nametoindex;
use zerocopy::{FromBytes, IntoBytes};

use crate::network::host::Host;
use crate::network::netns::Netns;

/// Pause for a full send queue, and maximum number of pauses.
const REST: Duration = Duration::from_millis(1);
const RESTS: usize = 1000;

/// Sends raw frames from one end of a link.
#[derive(Debug)]
pub struct Raw {
    socket: LinkSocket,
    mac: Mac,
}

impl Host {
    /// Returns a sender on one of the host's interfaces, counted from 0.
    pub fn raw(&self, interface: usize) -> Result<Raw> {
        let interface = self.interfaces.get(interface).context("There is no such interface")?;
        Raw::open(&self.netns, &interface.name, &interface.mac)
    }

    /// Returns a sender to one of the host's interfaces, at the other end of its link. A bridge in
    /// between would drop malformed frames.
    pub fn raw_to(&self, interface: usize) -> Result<Raw> {
        let interface = self.interfaces.get(interface).context("There is no such interface")?;
        Raw::open(&self.switch, &interface.port, "02:00:00:00:00:01")
    }
}

impl Raw {
    fn open(netns: &Netns, interface: &str, mac: &str) -> Result<Raw> {
        let open = || -> Result<LinkSocket> {
            Ok(LinkSocket::open(if_nametoindex(interface)?, EtherType::Only(ETHERTYPE_IPV4))?)
        };
        Ok(Raw { socket: netns.enter(open)??, mac: mac.parse()? })
    }

    /// MAC of the sending end.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Sends a frame unchanged.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        for _ in 0..RESTS {
            match self.socket.send(frame) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(REST),
                Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32) => {
                    thread::sleep(REST);
                }
                done => return Ok(done?),
            }
        }
        bail!("The interface takes no more frames")
    }

    /// Sends an ARP reply (RFC 826) to `to` which claims that `mac` has `address`.
    pub fn claim(&self, address: Ipv4Addr, mac: Mac, to: Mac) -> Result<()> {
        let mut frame = arp_request(self.mac, address, address);
        let (header, body) = frame.split_at_mut(ETHERNET_LEN);
        header[..6].copy_from_slice(to.as_bytes());
        if let Ok(arp) = Arp::mut_from_bytes(body) {
            arp.operation = ARP_REPLY.into();
            arp.sender_mac = mac;
            arp.target_mac = to;
        }
        self.send(&frame)
    }
}
