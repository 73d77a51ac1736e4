//! Running the kernel's side without a network: single frames for tests, many for their cost.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::Arc;

use evener_core::net::Protocol;
use evener_core::net::wire::{TCP_ACK, TCP_SYN};
use evener_core::path::sessions::Seed;
use evener_core::path::tables::{Tables, VipKey};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};

use super::abi;
use super::program::{Program, Size};
use super::test_run::run;
use crate::{Counters, EngineError};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));
/// Whose packets are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
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
    /// A kernel balancer's of the usual design, IPIP with an LRU map of flows (`bpf/director/bench.bpf.c`).
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
pub struct Bench {
    program: Program,
    wrappers: Object,
    vip: Ipv4Addr,
    /// Where answers come from that go through the director.
    endpoint: Option<SocketAddrV4>,
}

/// Any will do whose bits are mixed.
const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
/// Flows of [`Bench::new_sessions`] are numbered from here on, out of the way of the others.
const NEW_FLOWS: u32 = 1 << 27;

impl Bench {
    /// Loads a table for `sessions_max` sessions. `tables` must have a TCP service on `vip`, port 80, and
    /// interface 1; its servers must be reached as the subjects are that shall be measured, and for
    /// [`Subject::NatOut`] there must be one alone, and a route and a neighbour for every 10.x.x.x.
    ///
    /// # Errors
    /// As [`super::XdpEngine::start`].
    pub fn new(sessions_max: usize, tables: &Arc<Tables>, vip: Ipv4Addr) -> Result<Self, EngineError> {
        super::lift_memlock();
        let (seed, clock_is_given) = (SEED, false);
        let size = Size { sessions_max, sessions6_max: 2, seed, ring_seed: None, clock_is_given };
        let mut program = Program::load(size, None)?;
        program.apply(tables)?;
        let wrappers = wrappers(&program, vip).map_err(|error| {
            EngineError::system(
                "loading the measuring programs",
                "CAP_BPF",
                io::Error::other(format!("{error:#}")),
            )
        })?;
        let endpoint = tables.endpoints.keys().find_map(|key| match SocketAddr::new(key.address, key.port) {
            SocketAddr::V4(endpoint) => Some(endpoint),
            SocketAddr::V6(_) => None,
        });
        Ok(Bench { program, wrappers, vip, endpoint })
    }

    /// Opens `flows` (a power of two) sessions, and sends a packet of each.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(&self, subject: Subject, flows: u32) -> Result<(), EngineError> {
        for flags in [TCP_SYN, TCP_ACK] {
            // Only clients open sessions.
            let opener = if subject == Subject::NatOut { Subject::NatIn } else { subject };
            self.run(opener, self.frame(80, flags), flows, 0, flows)?;
        }
        Ok(())
    }

    /// Nanoseconds a packet of sessions that [`Bench::open`] opened.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn established(&self, subject: Subject, flows: u32, packets: u32) -> Result<u64, EngineError> {
        let frame = match (subject, self.endpoint) {
            (Subject::NatOut, Some(endpoint)) => self.answer(endpoint),
            _ => self.frame(80, TCP_ACK),
        };
        self.run(subject, frame, flows, 0, packets)
    }

    /// Nanoseconds a SYN of a session that there wasn't; `round` keeps calls apart.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new_sessions(&self, subject: Subject, round: u32, packets: u32) -> Result<u64, EngineError> {
        self.run(subject, self.frame(80, TCP_SYN), packets, NEW_FLOWS + round * packets, packets)
    }

    /// Nanoseconds a packet for no service.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pass(&self, subject: Subject, packets: u32) -> Result<u64, EngineError> {
        self.run(subject, self.frame(81, TCP_ACK), 1024, 0, packets)
    }

    fn run(
        &self,
        subject: Subject,
        frame: Vec<u8>,
        flows: u32,
        first: u32,
        packets: u32,
    ) -> Result<u64, EngineError> {
        assert!(flows.is_power_of_two(), "flows are walked by a mask");
        let failed = |error: libbpf_rs::Error| {
            EngineError::system("setting the measurement", "CAP_BPF", io::Error::other(format!("{error:#}")))
        };
        let data = self.wrappers.maps().find(|map| map.name().to_string_lossy().ends_with(".data"));
        let data =
            data.ok_or_else(|| EngineError::Capacity("the measuring programs have no settings".into()))?;
        let settings: Vec<u8> = [flows, first, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        data.update(&0u32.to_ne_bytes(), &settings, MapFlags::ANY).map_err(failed)?;
        let program = self.wrappers.progs().find(|program| program.name() == OsStr::new(subject.program()));
        let program =
            program.ok_or_else(|| EngineError::Capacity("a measuring program is missing".into()))?;
        let mut out = vec![0u8; 256];
        Ok(run(program.as_fd(), &frame, &mut out, packets)?.took.as_nanos() as u64)
    }

    /// What the director's programs counted, to see that what was measured is what was meant.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counters(&self) -> Result<Counters, EngineError> {
        self.program.counters()
    }

    /// Live sessions and slots for them.
    pub fn fill(&self) -> (usize, usize) {
        let sessions = self.program.memory().sessions;
        (sessions.list(self.program.now()).count(), sessions.capacity())
    }

    /// A server's answer, to a client that the wrapper fills in.
    fn answer(&self, endpoint: SocketAddrV4) -> Vec<u8> {
        let mut frame = self.frame(0, TCP_ACK);
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
        frame[46] = 0x50;
        frame[47] = flags;
        frame
    }
}

/// The measuring programs over the director's own maps.
fn wrappers(program: &Program, vip: Ipv4Addr) -> libbpf_rs::Result<Object> {
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    program.share(&mut open)?;
    let object = open.load()?;
    for map in object.maps() {
        if map.name() == OsStr::new("yardstick_ring") {
            for slot in 0..65_537u32 {
                map.update(&slot.to_ne_bytes(), &(slot % 8 + 1).to_ne_bytes(), MapFlags::ANY)?;
            }
        } else if map.name() == OsStr::new("yardstick_vips") {
            let key = VipKey { address: vip.into(), port: 80, protocol: Protocol::Tcp };
            map.update(&abi::vip_bits(&key).to_ne_bytes(), &[0; 8], MapFlags::ANY)?;
        }
    }
    Ok(object)
}
