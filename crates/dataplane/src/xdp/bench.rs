//! Running the kernel's side without a network: single frames for tests, many for their cost.

use std::ffi::OsStr;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use evener_core::decide::Verdict;
use evener_core::farm::Protocol;
use evener_core::sessions::Seed;
use evener_core::tables::{Delta, Tables, VipKey};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};

use super::program::{PINNED, Program};
use crate::EngineError;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));
/// XDP verdicts (linux/bpf.h).
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
/// The loopback interface, which test runs come in by.
const LOOPBACK: u32 = 1;

pub(super) fn test_run(program: &Program, frame: &[u8]) -> Result<(Verdict, Vec<u8>), EngineError> {
    let mut out = vec![0u8; frame.len() + 256];
    let (verdict, len, _) = run(program.fd("director")?.as_raw_fd(), frame, &mut out, 1)?;
    out.truncate(len);
    let verdict = match verdict {
        XDP_TX => Verdict::Forward { ifindex: LOOPBACK },
        // The target is not told; the frame's new source MAC is that interface's own.
        XDP_REDIRECT => Verdict::Forward { ifindex: 0 },
        XDP_PASS => Verdict::Pass,
        _ => Verdict::Drop,
    };
    Ok((verdict, out))
}

pub(super) fn run(program: i32, frame: &[u8], out: &mut [u8], repeat: u32) -> Result<(u32, usize, Duration), EngineError> {
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: repeat as i32,
        ..Default::default()
    };
    // SAFETY: the pointers are to slices of the lengths given, which live through the call.
    let answer = unsafe { sys::bpf_prog_test_run_opts(program, &raw mut options) };
    if answer < 0 {
        let error = io::Error::from_raw_os_error(-answer);
        return Err(EngineError::system("running a program on a frame", "CAP_BPF", error));
    }
    Ok((options.retval, options.data_size_out as usize, Duration::from_nanos(options.duration.into())))
}

/// What kind of packets a measurement sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Nothing: the cost of the wrapper itself.
    Wrapper,
    /// Packets of sessions that are known.
    Established,
    /// A SYN of a new session each.
    New,
    /// Packets for no service.
    Pass,
    /// Established packets through the yardstick, a kernel balancer of the usual design.
    YardstickEstablished,
    /// New flows through the yardstick.
    YardstickNew,
    /// Packets for no service through the yardstick.
    YardstickPass,
}

impl Traffic {
    fn program(self) -> &'static str {
        match self {
            Traffic::Wrapper => "empty",
            Traffic::Established | Traffic::New | Traffic::Pass => "l2",
            _ => "yardstick",
        }
    }
}

/// A data plane without a network, for measuring what one packet costs.
pub struct Bench {
    program: Program,
    vip: Ipv4Addr,
}

impl Bench {
    /// Loads a table for `sessions_max` sessions. `tables` must have a TCP service on `vip`, port 80, and
    /// interface 1.
    ///
    /// # Errors
    /// As [`super::XdpEngine::start`].
    pub fn new(sessions_max: usize, tables: &Arc<Tables>, vip: Ipv4Addr) -> Result<Self, EngineError> {
        super::lift_memlock();
        let mut program = Program::load(sessions_max, Seed(1, 2), None)?;
        program.apply(&Delta::between(&Tables::default(), tables), tables)?;
        Ok(Bench { program, vip })
    }

    /// The wrappers over the same maps, for `flows` (a power of two) flows from number `first` on.
    fn wrappers(&self, flows: u32, first: u32) -> Result<Object, EngineError> {
        let failed = |e: libbpf_rs::Error| {
            EngineError::system("loading the measuring programs", "CAP_BPF", io::Error::other(format!("{e:#}")))
        };
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(failed)?;
        let settings = super::abi::Settings {
            abi_version: super::abi::ABI_VERSION,
            buckets: self.program.memory().sessions.buckets() as u32,
            seed: Seed(1, 2),
            jiffy_ns: super::abi::jiffy_ns(),
        };
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name.ends_with(".rodata") {
                let value = map.initial_value_mut().unwrap_or_default();
                let (head, tail) = value.split_at_mut(super::abi::SETTINGS_LEN);
                head.copy_from_slice(&settings.to_bytes());
                for (place, byte) in tail.iter_mut().zip([flows, first].iter().flat_map(|n| n.to_ne_bytes())) {
                    *place = byte;
                }
            } else if let Some(ours) = PINNED.iter().find(|p| **p == name).and_then(|p| self.program.map(p)) {
                map.reuse_fd(ours.as_fd()).map_err(failed)?;
            }
        }
        let object = open.load().map_err(failed)?;
        if let Some(vips) = object.maps().find(|map| map.name() == OsStr::new("yardstick_vips")) {
            let key = VipKey { address: self.vip, port: 80, protocol: Protocol::Tcp };
            let key = super::abi::vip_bits(&key).to_ne_bytes();
            vips.update(&key, &[0; 8], MapFlags::ANY).map_err(failed)?;
        }
        if let Some(ring) = object.maps().find(|map| map.name() == OsStr::new("yardstick_ring")) {
            for slot in 0..65_537u32 {
                let real = slot % 8 + 1;
                ring.update(&slot.to_ne_bytes(), &real.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
            }
        }
        Ok(object)
    }

    /// Nanoseconds a packet, the wrapper included, over `packets` packets of `flows` flows after every flow
    /// was opened once. Flows are numbered from `first`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn measure(&self, traffic: Traffic, flows: u32, first: u32, packets: u32) -> Result<f64, EngineError> {
        assert!(flows.is_power_of_two(), "flows are walked by a mask");
        let object = self.wrappers(flows, first)?;
        let program = object
            .progs()
            .find(|program| program.name() == OsStr::new(traffic.program()))
            .map(|program| program.as_fd().as_raw_fd())
            .ok_or_else(|| EngineError::Capacity("a measuring program is missing".into()))?;
        let port = match traffic {
            Traffic::Pass | Traffic::YardstickPass => 81,
            _ => 80,
        };
        let (syn, ack) = (self.frame(port, 0x02), self.frame(port, 0x10));
        let mut out = vec![0u8; 256];
        match traffic {
            Traffic::Established | Traffic::YardstickEstablished => {
                run(program, &syn, &mut out, flows)?;
                run(program, &ack, &mut out, flows.min(packets))?;
                Ok(run(program, &ack, &mut out, packets)?.2.as_nanos() as f64)
            }
            Traffic::New | Traffic::YardstickNew => {
                Ok(run(program, &syn, &mut out, packets.min(flows))?.2.as_nanos() as f64)
            }
            _ => Ok(run(program, &ack, &mut out, packets)?.2.as_nanos() as f64),
        }
    }

    /// Live sessions and room for them.
    pub fn fill(&self) -> (usize, usize) {
        let sessions = self.program.memory().sessions;
        (sessions.list(self.program.now()).count(), sessions.capacity())
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
