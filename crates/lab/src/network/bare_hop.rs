//! Bare hop in a director's position: rewrites link addresses or encapsulates packets, and does
//! nothing else. The difference to a director is the cost of the director's own work.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd as _;

use anyhow::{Context, Result, ensure};
use evener_dataplane::xdp;
use libbpf_rs::{Object, ObjectBuilder};
use nix::net::if_::if_nametoindex;

use crate::farm::{Farm, WEB_PORT};
use crate::network::host::Host;
use crate::network::lan::{Lan, number};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hop.bpf.o"));
const SERVERS_MAX: usize = 16;

/// Method that reaches the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Link,
    /// By IPIP through the router.
    Tunnel,
}

/// Running hop, attached like the XDP engine on a farm's interfaces (tcx).
pub struct Hop {
    _link: Box<dyn Send>,
    _object: Object,
}

impl Hop {
    /// Makes a director's host forward packets for a service address, counted from 0, to the farm's
    /// servers. The host gets the address and so answers ARP for it.
    pub fn start(host: &Host, farm: &Farm, vip: u8, method: Method) -> Result<Hop> {
        let service = SocketAddrV4::new(farm.vip(vip), WEB_PORT);
        host.ip(&[format!("addr add {}/32 dev lo", service.ip())])?;
        let settings = settings(host, farm.servers(), service, method)?;
        let name = if method == Method::Link { "hop_link" } else { "hop_tunnel" };
        host.enter(|| {
            let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
            for mut map in open.maps_mut() {
                if let Some(place) = map.initial_value_mut().and_then(|value| value.get_mut(..settings.len()))
                {
                    place.copy_from_slice(&settings);
                }
            }
            let object = open.load()?;
            let program = object.progs().find(|program| program.name() == OsStr::new(name));
            let program = program.context("The hop has no such program")?;
            let ifindex = if_nametoindex("eth0")?;
            let link = xdp::attach_tc(program.as_fd(), ifindex)?;
            Ok(Hop { _link: Box::new(link), _object: object })
        })?
    }
}

/// Returns `struct settings` of `hop.bpf.c`.
fn settings(host: &Host, servers: &[Host], service: SocketAddrV4, method: Method) -> Result<Vec<u8>> {
    ensure!(servers.len() <= SERVERS_MAX, "A hop has {SERVERS_MAX} servers at most");
    let mut bytes = Vec::new();
    bytes.extend(service.ip().octets());
    bytes.extend(host.address().octets());
    bytes.extend(u32::try_from(servers.len())?.to_ne_bytes());
    bytes.extend(service.port().to_be_bytes());
    bytes.extend(mac(host.address()));
    for server in servers {
        let next =
            if method == Method::Link { server.address() } else { Lan::Servers(0).address(number::ROUTER) };
        bytes.extend(server.address().octets());
        bytes.extend(mac(next));
        bytes.extend([0; 2]);
    }
    Ok(bytes)
}

/// Returns the MAC of the host with this address in a farm.
fn mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [2, 0, a, b, c, d]
}
