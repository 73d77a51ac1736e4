//! Frames as a host should never send them.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evener_core::wire::{ARP_REPLY, Arp, ETHERNET_LEN, ETHERTYPE_IPV4, Mac, arp_request};
use evener_dataplane::link::{EtherType, LinkSocket};
use nix::net::if_::if_nametoindex;
use zerocopy::{FromBytes, IntoBytes};

use crate::host::Host;

/// How long a full queue is given to empty, and how often.
const REST: Duration = Duration::from_millis(1);
const RESTS: usize = 1000;

/// Sends whole frames by one of a host's interfaces.
#[derive(Debug)]
pub struct Raw {
    socket: LinkSocket,
    mac: Mac,
}

impl Host {
    /// Opens an interface, counted from 0, for whole frames.
    pub fn raw(&self, interface: usize) -> Result<Raw> {
        let interface = self.interfaces.get(interface).context("There is no such interface")?;
        let open = || -> Result<LinkSocket> {
            Ok(LinkSocket::open(if_nametoindex(interface.name.as_str())?, EtherType::Only(ETHERTYPE_IPV4))?)
        };
        Ok(Raw { socket: self.enter(open)??, mac: interface.mac.parse()? })
    }
}

impl Raw {
    /// The interface's own address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Sends a frame as it is.
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

    /// Tells `to` by an ARP reply (RFC 826) that `mac` has `address`.
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
