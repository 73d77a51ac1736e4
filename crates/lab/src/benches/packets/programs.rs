//! Programs for BPF_PROG_TEST_RUN in two builds with shared maps. The measured build restores every
//! frame; the other build leaves the resulting frame for checks.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{Map, MapCore, MapFlags, Object, OpenObject, ProgramInput, ProgramMut};

/// XDP verdicts of a program.
pub(super) const XDP_PASS: u32 = 2;
pub(super) const XDP_TX: u32 = 3;
pub(super) const XDP_REDIRECT: u32 = 4;

/// Flows of a run, numbered from `first`. The run starts at flow number `turn`; `flows` is a power
/// of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flows {
    pub(super) flows: u32,
    pub(super) first: u32,
    pub(super) turn: u32,
}

impl Flows {
    /// Number of the first flow that the wrapper writes to a frame.
    pub(super) fn number(self) -> u32 {
        (self.turn.wrapping_mul(2_654_435_761) & (self.flows - 1)).wrapping_add(self.first)
    }

    /// Returns the first frame that the program sees. `client_at` has the offsets of the client's
    /// address and port.
    pub(super) fn vary(self, frame: &[u8], client_at: (usize, usize)) -> Vec<u8> {
        let (flow, mut varied) = (self.number(), frame.to_vec());
        let (address, port) = client_at;
        varied[address..address + 4].copy_from_slice(&(10 | flow << 8).to_le_bytes());
        varied[port..port + 2].copy_from_slice(&(0x1001 | (flow >> 24) as u16).to_le_bytes());
        varied
    }
}

/// Result of a run.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) each: u64,
    /// Verdict on the last packet, and resulting frame.
    pub(super) verdict: u32,
    pub(super) frame: Vec<u8>,
}

/// Loaded programs of both builds.
pub(super) struct Programs {
    measured: Object,
    shown: Object,
}

impl Programs {
    pub(super) fn load(measured: OpenObject, mut shown: OpenObject) -> Result<Programs> {
        let measured = measured.load()?;
        for mut map in shown.maps_mut() {
            // data sections are separate for each build
            let is_own =
                [".data", ".bss", ".rodata"].iter().any(|end| map.name().to_string_lossy().ends_with(end));
            if let Some(ours) = measured.maps().find(|ours| !is_own && ours.name() == map.name()) {
                map.reuse_fd(ours.as_fd())?;
            }
        }
        Ok(Programs { measured, shown: shown.load()? })
    }

    /// Returns a map that both builds share.
    pub(super) fn map(&self, name: &str) -> Result<Map<'_>> {
        let found = self.measured.maps().find(|it| it.name() == OsStr::new(name));
        found.with_context(|| format!("There is no map {name}"))
    }

    /// Writes entries of a map.
    pub(super) fn fill(
        &self,
        map: &str,
        entries: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        let found = self.map(map)?;
        for (key, value) in entries {
            found.update(&key, &value, MapFlags::ANY).with_context(|| format!("Writing map {map} failed"))?;
        }
        Ok(())
    }

    /// Returns two words of an entry of a counter map, summed over all CPUs.
    pub(super) fn count(&self, map: &str, place: u32) -> Result<[u64; 2]> {
        let found = self.map(map)?;
        let cpus = found.lookup_percpu(&place.to_ne_bytes(), MapFlags::ANY)?;
        let word = |cpu: &[u8], at: usize| {
            cpu.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_ne_bytes)
        };
        let sum = |at| cpus.iter().flatten().filter_map(|cpu| word(cpu, at)).sum();
        Ok([sum(0), sum(8)])
    }

    /// Runs a program on a frame `packets` times, each time with the next flow.
    pub(super) fn measure(&mut self, program: &str, frame: &[u8], flows: Flows, packets: u32) -> Result<Ran> {
        run(&mut self.measured, program, frame, flows, packets)
    }

    /// Runs a program once and returns the resulting frame.
    pub(super) fn show(&mut self, program: &str, frame: &[u8], flows: Flows) -> Result<Ran> {
        run(&mut self.shown, program, frame, flows, 1)
    }
}

fn run(object: &mut Object, name: &str, frame: &[u8], flows: Flows, packets: u32) -> Result<Ran> {
    ensure!(flows.flows.is_power_of_two(), "Flows are walked by a mask");
    let data = object.maps().find(|map| map.name().to_string_lossy().ends_with(".data"));
    let data = data.context("The measuring programs have no settings")?;
    let settings = [flows.flows, flows.first, flows.turn, 0];
    let settings: Vec<u8> = settings.iter().flat_map(|word| word.to_ne_bytes()).collect();
    data.update(&0u32.to_ne_bytes(), &settings, MapFlags::ANY)?;
    let program: ProgramMut<'_> = object
        .progs_mut()
        .find(|it| it.name() == OsStr::new(name))
        .context("A measuring program is missing")?;
    let mut out = vec![0u8; 256];
    let input = ProgramInput {
        data_in: Some(frame),
        data_out: Some(&mut out),
        repeat: packets,
        ..ProgramInput::default()
    };
    let output = program.test_run(input)?;
    let (each, verdict) = (output.duration.as_nanos() as u64, output.return_value);
    let frame = output.data.unwrap_or_default().to_vec();
    Ok(Ran { each, verdict, frame })
}
