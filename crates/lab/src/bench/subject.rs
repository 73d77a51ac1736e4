//! Running single packets through the kernel's side, without a network (BPF_PROG_TEST_RUN).

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use evener_core::net::wire::{TCP_ACK, TCP_SYN};
use evener_core::path::tables::Tables;
use evener_dataplane::xdp::Bare;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, ProgramMut};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));

/// Whose packets are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Nobody's: the cost of measuring, which every figure includes.
    Wrapper,
    /// The director's, to a server on its LAN.
    L2,
    /// The same where every host decides: the packet may have been passed on by another.
    Rewriter,
    /// The director's, to a server with an address and a port of its own.
    NatIn,
    /// Such a server's, through the director.
    NatOut,
    /// The director's, to a server behind a tunnel.
    Tunnel,
    /// A kernel balancer's of the usual design, IPIP with an LRU map of flows (`crates/lab/bpf/bench.bpf.c`).
    Yardstick,
}

impl Subject {
    const fn program(self) -> &'static str {
        match self {
            Subject::Wrapper => "empty",
            Subject::L2 | Subject::Rewriter => "l2",
            Subject::NatIn => "nat_in",
            Subject::NatOut => "nat_out",
            Subject::Tunnel => "tunnel",
            Subject::Yardstick => "yardstick",
        }
    }
}

/// A data plane without a network, for measuring what one packet costs.
pub(super) struct Bench {
    /// The wrappers' maps are its.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests alone look at what was counted"))]
    bare: Bare,
    wrappers: Object,
    vip: Ipv4Addr,
    /// Where answers come from that go through the director.
    endpoint: Option<SocketAddrV4>,
}

/// Flows of [`Bench::new_sessions`] are numbered from here on, out of the way of the others.
const NEW_FLOWS: u32 = 1 << 27;

impl Bench {
    /// Loads a table for `sessions_max` sessions. `tables` must have a TCP service on `vip`, port 80, and
    /// interface 1; its servers must be reached as the subjects are that shall be measured, and for
    /// [`Subject::NatOut`] there must be one alone, and a route and a neighbour for every 10.x.x.x.
    pub(super) fn new(sessions_max: usize, tables: &Arc<Tables>, vip: Ipv4Addr) -> Result<Self> {
        let bare = Bare::new(sessions_max, tables)?;
        let wrappers = wrappers(&bare, vip).context("The measuring programs can't be loaded")?;
        let endpoint = tables.endpoints.keys().find_map(|key| match SocketAddr::new(key.address, key.port) {
            SocketAddr::V4(endpoint) => Some(endpoint),
            SocketAddr::V6(_) => None,
        });
        Ok(Bench { bare, wrappers, vip, endpoint })
    }

    /// Opens `flows` (a power of two) sessions, and sends a packet of each.
    pub(super) fn open(&mut self, subject: Subject, flows: u32) -> Result<()> {
        // Only clients open sessions.
        let opener = if subject == Subject::NatOut { Subject::NatIn } else { subject };
        for flags in [TCP_SYN, TCP_ACK] {
            self.run(opener, self.frame(80, flags), flows, 0, flows)?;
            if let (Subject::NatIn, TCP_SYN, Some(endpoint)) = (opener, flags, self.endpoint) {
                self.run(Subject::NatOut, self.answer(endpoint, TCP_SYN | TCP_ACK), flows, 0, flows)?;
            }
        }
        Ok(())
    }

    /// Nanoseconds a packet of sessions that [`Bench::open`] opened.
    pub(super) fn established(&mut self, subject: Subject, flows: u32, packets: u32) -> Result<u64> {
        let frame = match (subject, self.endpoint) {
            (Subject::NatOut, Some(endpoint)) => self.answer(endpoint, TCP_ACK),
            _ => self.frame(80, TCP_ACK),
        };
        self.run(subject, frame, flows, 0, packets)
    }

    /// Nanoseconds a SYN of a session that there wasn't; `round` keeps calls apart.
    pub(super) fn new_sessions(&mut self, subject: Subject, round: u32, packets: u32) -> Result<u64> {
        self.run(subject, self.frame(80, TCP_SYN), packets, NEW_FLOWS + round * packets, packets)
    }

    /// Nanoseconds a packet for no service.
    pub(super) fn pass(&mut self, subject: Subject, packets: u32) -> Result<u64> {
        self.run(subject, self.frame(81, TCP_ACK), 1024, 0, packets)
    }

    fn run(&mut self, subject: Subject, frame: Vec<u8>, flows: u32, first: u32, packets: u32) -> Result<u64> {
        ensure!(flows.is_power_of_two(), "Flows are walked by a mask");
        let data = self.wrappers.maps().find(|map| map.name().to_string_lossy().ends_with(".data"));
        let data = data.context("The measuring programs have no settings")?;
        let settings: Vec<u8> = [flows, first, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        data.update(&0u32.to_ne_bytes(), &settings, MapFlags::ANY)?;
        let program =
            self.wrappers.progs_mut().find(|program| program.name() == OsStr::new(subject.program()));
        let program: ProgramMut<'_> = program.context("A measuring program is missing")?;
        let mut out = vec![0u8; 256];
        let input = ProgramInput {
            data_in: Some(&frame),
            data_out: Some(&mut out),
            repeat: packets,
            ..ProgramInput::default()
        };
        Ok(program.test_run(input)?.duration.as_nanos() as u64)
    }

    /// What the director's programs counted, and live sessions, to see that what was measured is what was meant.
    #[cfg(test)]
    pub(super) fn outcome(&self) -> Result<(evener_dataplane::Counters, usize)> {
        Ok((self.bare.counters()?, self.bare.fill()))
    }

    /// A server's answer, to a client that the wrapper fills in.
    fn answer(&self, endpoint: SocketAddrV4, flags: u8) -> Vec<u8> {
        let mut frame = self.frame(0, flags);
        frame[26..30].copy_from_slice(&endpoint.ip().octets());
        frame[30..34].fill(0);
        frame[34..36].copy_from_slice(&endpoint.port().to_be_bytes());
        frame
    }

    /// A TCP segment to the service, 64 bytes, from a client that the wrapper fills in.
    fn frame(&self, port: u16, flags: u8) -> Vec<u8> {
        let mut frame = vec![0u8; 64];
        frame[0..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&50u16.to_be_bytes());
        frame[22] = 64;
        frame[23] = 6;
        frame[30..34].copy_from_slice(&self.vip.octets());
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        // What comes behind the server's first number, which is zero.
        frame[45] = 1;
        frame[46] = 0x50;
        frame[47] = flags;
        frame
    }
}

/// The measuring programs over the director's own maps.
fn wrappers(bare: &Bare, vip: Ipv4Addr) -> Result<Object> {
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    bare.share(&mut open)?;
    let object = open.load()?;
    for map in object.maps() {
        if map.name() == OsStr::new("yardstick_ring") {
            for slot in 0..65_537u32 {
                map.update(&slot.to_ne_bytes(), &(slot % 8 + 1).to_ne_bytes(), MapFlags::ANY)?;
            }
        } else if map.name() == OsStr::new("yardstick_vips") {
            // Address, port 80, TCP, no IPv6.
            let key = [&vip.octets()[..], &[0, 80, 6, 0]].concat();
            map.update(&key, &[0; 8], MapFlags::ANY)?;
        }
    }
    Ok(object)
}
