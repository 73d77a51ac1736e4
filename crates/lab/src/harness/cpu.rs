//! Processors of the machine: their time, and pinning of threads.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::network::host::Host;

/// Kernel setting to count the run time of BPF programs.
const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Makes the kernel count the run time of BPF programs until dropped. Each run of a program then
/// takes some tens of nanoseconds longer.
#[derive(Debug)]
pub struct BpfTimes {
    before: String,
}

impl BpfTimes {
    pub fn count() -> Result<BpfTimes> {
        let before = fs::read_to_string(SWITCH).with_context(|| format!("Reading {SWITCH} failed"))?;
        fs::write(SWITCH, "1").with_context(|| format!("Writing {SWITCH} failed"))?;
        Ok(BpfTimes { before })
    }
}

impl Drop for BpfTimes {
    fn drop(&mut self) {
        // a failure only leaves the small overhead
        let _ = fs::write(SWITCH, self.before.trim());
    }
}

impl Host {
    /// Processor time so far of all processes on this host, in user space and in system calls.
    /// Includes the BPF programs that they hold, while [their time is counted](BpfTimes). The
    /// kernel's other work on packets is not included.
    pub fn processor_time(&self) -> Result<Duration> {
        let netns = self.netns.inode()?;
        let mut programs = BTreeMap::new();
        let mut total = 0;
        for process in paths_in(Path::new("/proc")) {
            // processes start and end meanwhile
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

/// Processor time so far of one process, with its ended threads.
pub fn process_time(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may contain blanks and parentheses (proc_pid_stat(5)).
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let ticks = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    let a_second = sysconf(SysconfVar::CLK_TCK)?.context("a second has no ticks")?;
    Ok(Duration::from_secs_f64(ticks.context("the kernel tells no time")? as f64 / a_second as f64))
}

/// Processor time so far of one process, and of the BPF programs that it holds, while [their time
/// is counted](BpfTimes).
pub fn process_times(pid: u32) -> [Duration; 2] {
    let process = Path::new("/proc").join(pid.to_string());
    let total: u64 = paths_in(&process.join("task")).iter().map(|task| run_ns(task)).sum();
    let held = paths_in(&process.join("fdinfo"));
    let programs: BTreeMap<_, _> =
        held.iter().filter_map(|file| program(&fs::read_to_string(file).ok()?)).collect();
    [total, programs.values().sum()].map(Duration::from_nanos)
}

/// Pins this thread, and the threads that it starts, to one processor. The count starts from the
/// last processor, since the first is busier, and wraps around.
///
/// # Errors
/// Fails if the kernel refuses.
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

/// Time that a thread has run, in nanoseconds: the first number of its `schedstat`.
fn run_ns(task: &Path) -> u64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// Returns id and run time in nanoseconds of the BPF program behind a file descriptor; `None` for
/// other files (proc_pid_fdinfo(5)).
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
        // the kernel updates the time when a thread leaves its processor
        std::thread::sleep(Duration::from_millis(1));
        assert!(run_ns(Path::new("/proc/thread-self")) > 0);
        let info = "pos:\t0\nprog_type:\t6\nprog_id:\t34\nrun_time_ns:\t1200\nrun_cnt:\t3\n";
        assert_eq!(program(info), Some((34, 1200)));
        assert_eq!(program("pos:\t0\nmap_id:\t3\n"), None);
    }
}
