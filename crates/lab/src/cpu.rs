//! The machine's processors: their time, and threads that stay on one of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::host::Host;

/// Whether the kernel counts the time that BPF programs take.
const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The kernel counts the time of BPF programs as long as this is there. It makes each run of one
/// dearer by some tens of nanoseconds.
#[derive(Debug)]
pub struct BpfTimes {
    before: String,
}

impl BpfTimes {
    /// Begins to count.
    pub fn count() -> Result<BpfTimes> {
        let before = fs::read_to_string(SWITCH).with_context(|| format!("Reading {SWITCH} failed"))?;
        fs::write(SWITCH, "1").with_context(|| format!("Writing {SWITCH} failed"))?;
        Ok(BpfTimes { before })
    }
}

impl Drop for BpfTimes {
    fn drop(&mut self) {
        // it is only a little slower if this fails
        let _ = fs::write(SWITCH, self.before.trim());
    }
}

impl Host {
    /// Processor time so far of all processes on this host, in application space and in the kernel
    /// on their behalf; and of the BPF programs that they hold, while [they are counted](BpfTimes).
    /// The kernel's work on packets between the two is in nobody's account.
    pub fn processor_time(&self) -> Result<Duration> {
        let netns = self.netns.inode()?;
        let mut programs = BTreeMap::new();
        let mut total = 0;
        for process in paths_in(Path::new("/proc")) {
            // processes come and go meanwhile
            let inside = fs::metadata(process.join("ns/net")).is_ok_and(|of| of.ino() == netns);
            if inside {
                total += paths_in(&process.join("task")).iter().map(|task| run_ns(task)).sum::<u64>();
                let held = paths_in(&process.join("fdinfo"));
                programs.extend(held.iter().filter_map(|file| program(&fs::read_to_string(file).ok()?)));
            }
        }
        Ok(Duration::from_nanos(total + programs.values().sum::<u64>()))
    }
}

/// Processor time so far of one process, of its threads that have ended too.
pub fn process_time(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses, and may have blanks and parentheses itself (proc_pid_stat(5)).
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let ticks = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    let a_second = sysconf(SysconfVar::CLK_TCK)?.context("a second has no ticks")?;
    Ok(Duration::from_secs_f64(ticks.context("the kernel tells no time")? as f64 / a_second as f64))
}

/// Processor time so far of one process, and of the BPF programs that it holds, while [they are
/// counted](BpfTimes).
pub fn process_times(pid: u32) -> [Duration; 2] {
    let process = Path::new("/proc").join(pid.to_string());
    let total: u64 = paths_in(&process.join("task")).iter().map(|task| run_ns(task)).sum();
    let held = paths_in(&process.join("fdinfo"));
    let programs: BTreeMap<_, _> =
        held.iter().filter_map(|file| program(&fs::read_to_string(file).ok()?)).collect();
    [total, programs.values().sum()].map(Duration::from_nanos)
}

/// Keeps this thread, and those that it starts, on one of its processors. Processors are counted
/// from the last one, since the first has more to do, and behind the first the count begins again.
///
/// # Errors
/// When the kernel refuses it.
pub fn stay_on_one(number: usize) -> Result<()> {
    let thread = Pid::from_raw(0);
    let may = sched_getaffinity(thread)?;
    let cpus: Vec<usize> =
        (0..CpuSet::count()).rev().filter(|cpu| may.is_set(*cpu).unwrap_or_default()).collect();
    ensure!(!cpus.is_empty(), "There is no CPU to run on");
    let mut only = CpuSet::new();
    only.set(cpus[number % cpus.len()])?;
    Ok(sched_setaffinity(thread, &only)?)
}

fn paths_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The time that a thread has been on a processor, in nanoseconds: the first number of its
/// `schedstat`.
fn run_ns(task: &Path) -> u64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// Number and run time of the BPF program that a file stands for, in nanoseconds, if it does
/// (proc_pid_fdinfo(5)).
fn program(info: &str) -> Option<(u64, u64)> {
    let field = |name: &str| -> Option<u64> {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    };
    Some((field("prog_id")?, field("run_time_ns")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        // it is counted when a thread leaves its processor
        std::thread::sleep(Duration::from_millis(1));
        assert!(run_ns(Path::new("/proc/thread-self")) > 0);
        let info = "pos:\t0\nprog_type:\t6\nprog_id:\t34\nrun_time_ns:\t1200\nrun_cnt:\t3\n";
        assert_eq!(program(info), Some((34, 1200)));
        assert_eq!(program("pos:\t0\nmap_id:\t3\n"), None);
    }
}
