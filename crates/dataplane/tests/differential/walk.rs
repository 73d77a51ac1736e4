//! Interprets a program as the kernel translated it (`bpftool prog dump xlated`) with a frame, and
//! counts the instructions. Hardware counters are often unavailable, and the instruction count is
//! the same on all processors. A helper call counts as one instruction.
//!
//! The interpreter reads the real maps, but keeps the program's writes to itself. With per-CPU
//! maps, the thread must stay on one CPU.

use std::collections::HashMap;

use evener_dataplane::Engine;
use evener_dataplane::xdp::{Hook, XdpEngine};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

/// Memory regions, in the upper bits of an address. Below them are the map's number and the offset.
const CONTEXT: u64 = 1 << 48;
const FRAME: u64 = 2 << 48;
const STACK: u64 = 3 << 48;
const MAP: u64 = 4 << 48;
const VALUES: u64 = 5 << 48;
const OF_CPU: u64 = 6 << 48;
/// An object that the context points to besides the frame, such as the interface.
const OBJECT: u64 = 7 << 48;
const REGION: u64 = 0xffff << 48;
const INTERFACE: u64 = 1;
const HEADROOM: u64 = 256;
const STACK_LEN: u64 = 512;
pub const XDP_REDIRECT: u64 = 4;
/// Pseudo-verdict for a program that leaves the fast path.
pub const LONG_WAY: u64 = u64::MAX;
const MOST_INTERFACES: u64 = 1 << 16;
/// Limit against endless loops, above the length of any path.
const MOST: u32 = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    dst: usize,
    src: usize,
    offset: i16,
    immediate: i32,
}

struct Map {
    id: u32,
    handle: MapHandle,
    elements: HashMap<u32, Vec<u8>>,
}

/// A program with the data that it wrote.
pub struct Walk {
    program: Vec<Instruction>,
    maps: Vec<Map>,
    written: HashMap<u64, u8>,
    frame: Vec<u8>,
    /// Addresses of the frame's start and end.
    data: [u64; 2],
    jiffies: u64,
    register: [u64; 11],
    counted: u32,
}

/// Returns a program's verdict on a frame and the number of its instructions.
pub fn walk(engine: &XdpEngine, frame: &[u8]) -> (u64, u32) {
    let id = engine.program_id(Hook::Xdp).unwrap();
    let options = ProgInfoQueryOptions::default().include_xlated_prog_insns(true);
    let mut programs = ProgInfoIter::with_query_opts(options);
    let program = programs.find(|program| program.id == id).unwrap().xlated_prog_insns;
    let resolution = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
    let program = program.as_chunks::<8>().0.iter().map(|[code, registers, a, b, rest @ ..]| Instruction {
        code: *code,
        dst: usize::from(registers & 0xf),
        src: usize::from(registers >> 4),
        offset: i16::from_ne_bytes([*a, *b]),
        immediate: i32::from_ne_bytes(*rest),
    });
    let mut walk = Walk {
        program: program.collect(),
        maps: Vec::new(),
        written: HashMap::new(),
        frame: frame.to_vec(),
        data: [FRAME + HEADROOM, FRAME + HEADROOM + frame.len() as u64],
        jiffies: (u64::from(engine.now()) << 20).div_ceil(resolution.tv_nsec() as u64),
        register: [0; 11],
        counted: 0,
    };
    walk.register[1] = CONTEXT;
    walk.register[10] = STACK + (1 << 20);
    let verdict = walk.run();
    (verdict, walk.counted)
}

impl Walk {
    fn run(&mut self) -> u64 {
        let mut callers: Vec<(usize, [u64; 5])> = Vec::new();
        let mut at = 0;
        loop {
            let one = self.program[at];
            self.counted += 1;
            assert!(self.counted < MOST, "it goes in circles");
            at += 1;
            match one.code {
                0x18 => {
                    self.register[one.dst] = self.wide(one, self.program[at].immediate);
                    at += 1;
                }
                0x95 => {
                    let Some((back, kept)) = callers.pop() else { return self.register[0] };
                    at = back;
                    self.register[6..].copy_from_slice(&kept);
                }
                0x85 if one.src == 1 => {
                    let mut kept = [0; 5];
                    kept.copy_from_slice(&self.register[6..]);
                    callers.push((at, kept));
                    self.register[10] -= STACK_LEN;
                    at = at.saturating_add_signed(one.offset.into());
                }
                0x85 if self.help() => {}
                0x85 => return LONG_WAY,
                0x06 => at = at.saturating_add_signed(one.immediate as isize),
                0x05 => at = at.saturating_add_signed(one.offset.into()),
                // The kernel adds speculation barriers, so they do not count.
                0xc2 => self.counted -= 1,
                code => match code & 7 {
                    0 | 1 => self.load(one),
                    2 | 3 => self.store(one),
                    // Byte swap, of as many bits as the immediate value.
                    4 if code >> 4 != 0xd => {
                        self.register[one.dst] = u64::from(self.compute(one, 32) as u32);
                    }
                    5 | 6 if self.holds(one) => at = at.saturating_add_signed(one.offset.into()),
                    5 | 6 => {}
                    _ => self.register[one.dst] = self.compute(one, 64),
                },
            }
        }
    }

    /// Loads a 64-bit constant or the address of a map.
    fn wide(&mut self, one: Instruction, high: i32) -> u64 {
        let (low, high) = (one.immediate as u32, u64::from(high as u32));
        match one.src {
            0 => high << 32 | u64::from(low),
            1 => MAP | self.map(low) << 32,
            2 => VALUES | self.map(low) << 32 | high,
            other => panic!("a constant of kind {other}"),
        }
    }

    /// Returns a map's number within addresses, by its kernel id.
    fn map(&mut self, id: u32) -> u64 {
        let place = self.maps.iter().position(|map| map.id == id).unwrap_or_else(|| {
            let handle = MapHandle::from_map_id(id).unwrap();
            self.maps.push(Map { id, handle, elements: HashMap::new() });
            self.maps.len() - 1
        });
        place as u64
    }

    /// Runs a helper. False for helpers that fast paths do not call: known are the helper that
    /// moves the start of the frame, and the redirect helper.
    fn help(&mut self) -> bool {
        self.register[0] = match self.register[1] {
            CONTEXT => {
                self.data[0] = self.data[0].wrapping_add_signed(i64::from(self.register[2] as i32));
                0
            }
            1..MOST_INTERFACES => XDP_REDIRECT,
            _ => return false,
        };
        true
    }

    fn operand(&self, one: Instruction) -> u64 {
        if one.code & 8 != 0 { self.register[one.src] } else { i64::from(one.immediate) as u64 }
    }

    fn compute(&self, one: Instruction, bits: u32) -> u64 {
        let (mut to, mut by) = (self.register[one.dst], self.operand(one));
        // The elements of an array are behind the map's header.
        if to & REGION == MAP && one.code == 0x07 {
            return to - MAP + VALUES;
        }
        if one.code >> 4 == 0xd {
            return match (one.code & 8 != 0, one.immediate) {
                (true, 16) => (to as u16).to_be().into(),
                (true, 32) => (to as u32).to_be().into(),
                (true, _) => to.to_be(),
                (false, width) => to & (u64::MAX >> (64 - width)),
            };
        }
        if bits == 32 {
            (to, by) = (u64::from(to as u32), u64::from(by as u32));
        }
        let shift = (by & u64::from(bits - 1)) as u32;
        match one.code >> 4 {
            0x0 => to.wrapping_add(by),
            0x1 => to.wrapping_sub(by),
            0x2 => to.wrapping_mul(by),
            0x3 => to.checked_div(by).unwrap_or_default(),
            0x4 => to | by,
            0x5 => to & by,
            0x6 => to << shift,
            0x7 => to >> shift,
            0x8 => to.wrapping_neg(),
            0x9 => to.checked_rem(by).unwrap_or(to),
            0xa => to ^ by,
            // Also the address of a per-CPU variable.
            0xb => by,
            0xc if bits == 32 => ((to as i32) >> shift) as u64,
            0xc => ((to as i64) >> shift) as u64,
            other => panic!("no operation {other:x}"),
        }
    }

    fn holds(&self, one: Instruction) -> bool {
        let (mut a, mut b) = (self.register[one.dst], self.operand(one));
        if one.code & 7 == 6 {
            // 32-bit comparison: signed values keep their sign.
            (a, b) = (i64::from(a as i32) as u64, i64::from(b as i32) as u64);
            if !matches!(one.code >> 4, 0x6 | 0x7 | 0xc | 0xd) {
                (a, b) = (u64::from(a as u32), u64::from(b as u32));
            }
        }
        match one.code >> 4 {
            0x1 => a == b,
            0x2 => a > b,
            0x3 => a >= b,
            0x4 => a & b != 0,
            0x5 => a != b,
            0x6 => (a as i64) > b as i64,
            0x7 => a as i64 >= b as i64,
            0xa => a < b,
            0xb => a <= b,
            0xc => (a as i64) < b as i64,
            0xd => a as i64 <= b as i64,
            other => panic!("no comparison {other:x}"),
        }
    }

    fn load(&mut self, one: Instruction) {
        let at = self.register[one.src].wrapping_add_signed(one.offset.into());
        self.register[one.dst] = match (at & REGION, len_of(one)) {
            (CONTEXT, 8) if at & !REGION < 16 => self.data[(at & !REGION) as usize / 8],
            (CONTEXT | OBJECT, 8) => OBJECT,
            (OBJECT, 4) => INTERFACE,
            (VALUES, 8) if self.is_of_cpu(at) => self.of_cpu(at),
            (CONTEXT..OBJECT, len) => {
                let bytes: [u8; 8] =
                    std::array::from_fn(|byte| if byte < len { self.byte(at + byte as u64) } else { 0 });
                u64::from_le_bytes(bytes)
            }
            // Kernel memory: programs read only the clock from it.
            _ => self.jiffies,
        };
    }

    fn store(&mut self, one: Instruction) {
        let at = self.register[one.dst].wrapping_add_signed(one.offset.into());
        assert!(one.code >> 5 != 6, "an atomic operation at {at:x}");
        let value = if one.code & 7 == 2 { i64::from(one.immediate) as u64 } else { self.register[one.src] };
        for (byte, place) in value.to_le_bytes().into_iter().zip(at..).take(len_of(one)) {
            self.written.insert(place, byte);
        }
    }

    /// Returns the address of the element that a per-CPU map's pointer refers to.
    fn of_cpu(&self, at: u64) -> u64 {
        let len = self.maps[(at >> 32) as usize & 0xffff].handle.value_size().next_multiple_of(8);
        OF_CPU | at & 0xffff << 32 | u64::from(at as u32 / 8 * len)
    }

    fn is_of_cpu(&self, at: u64) -> bool {
        self.maps[(at >> 32) as usize & 0xffff].handle.map_type() == MapType::PercpuArray
    }

    fn byte(&mut self, at: u64) -> u8 {
        if let Some(byte) = self.written.get(&at) {
            return *byte;
        }
        match at & REGION {
            FRAME => self.frame[(at - FRAME - HEADROOM) as usize],
            VALUES | OF_CPU => {
                let map = &mut self.maps[(at >> 32) as usize & 0xffff];
                let (place, len) = (at as u32, map.handle.value_size().next_multiple_of(8));
                let index = place / len;
                map.elements.entry(index).or_insert_with(|| read(&map.handle, index))[(place % len) as usize]
            }
            _ => 0,
        }
    }
}

/// Reads an element. For a per-CPU map, reads this CPU's element.
fn read(map: &MapHandle, index: u32) -> Vec<u8> {
    let key = index.to_ne_bytes();
    if map.map_type() != MapType::PercpuArray {
        return map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
    }
    let mut all = map.lookup_percpu(&key, MapFlags::ANY).unwrap().unwrap();
    all.swap_remove(nix::sched::sched_getcpu().unwrap())
}

/// Returns the number of bytes of a load or store.
fn len_of(one: Instruction) -> usize {
    [4, 2, 1, 8][usize::from(one.code >> 3 & 3)]
}
