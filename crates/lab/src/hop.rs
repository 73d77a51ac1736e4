//! A bare hop in a director's place: it rewrites link addresses, or wraps packets, and does nothing
//! else. The cost of a director beside it is that of being one.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd as _;

use anyhow::{Context, Result, ensure};
use evener_dataplane::xdp;
use libbpf_rs::{Object, ObjectBuilder};
use nix::net::if_::if_nametoindex;

use crate::farm::{Farm, WEB_PORT};
use crate::host::Host;
use crate::lan::{Lan, number};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hop.bpf.o"));
/// As `hop.bpf.c` has room for.
const SERVERS_MAX: usize = 16;

/// How packets reach servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By their link address.
    Link,
    /// In IPIP, by the router.
    Tunnel,
}

/// A hop at work, attached as the kernel engine is on such interfaces (tcx).
pub struct Hop {
    _link: Box<dyn Send>,
    _object: Object,
}

impl Hop {
    /// Has a host that is a farm's director pass on what comes for a service address, counted from
    /// 0, to the farm's servers. The host itself gets the address, so that it answers for it.
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

/// `struct settings` of `hop.bpf.c`.
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

/// The link address of whoever has an address in a farm.
fn mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [2, 0, a, b, c, d]
}
