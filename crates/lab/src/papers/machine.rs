//! Use of the machine's processors during a measurement: by clients, by everything else of the
//! experiment, and by other programs.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{SysconfVar, sysconf};

/// Times of processors so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    at: Instant,
    /// Idle time of all processors in clock ticks (proc_stat(5)).
    idle: u64,
    /// Time in clock ticks that the hypervisor gave to others.
    stolen: u64,
    /// Time in clock ticks of programs that are no descendants of this process, kernel threads
    /// apart: those may work on the experiment's packets.
    others: u64,
    /// Time of this process, whose threads are the clients.
    own: Duration,
}

/// Use between two times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Use {
    /// Parts of all processors.
    pub(super) idle: f64,
    pub(super) others: f64,
    /// Part of one processor.
    pub(super) generator: f64,
}

/// Least part of the processors that a counted measurement leaves, others' use apart.
const IDLE_MIN: f64 = 0.15;
/// Greatest part of a processor that clients of a counted measurement use.
const GENERATOR_MAX: f64 = 0.8;
/// Greatest part of requests that may fail.
const FAILED_MAX: f64 = 0.001;

impl Usage {
    pub(super) fn read() -> Result<Usage> {
        let stat = fs::read_to_string("/proc/stat").context("Reading /proc/stat failed")?;
        let line = stat.lines().next().unwrap_or_default();
        let fields: Vec<u64> =
            line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
        let field = |number: usize| fields.get(number).copied().unwrap_or_default();
        let usage = getrusage(UsageWho::RUSAGE_SELF).context("The clients' time can't be read")?;
        let time = |time: nix::sys::time::TimeVal| {
            Duration::new(time.tv_sec().unsigned_abs(), time.tv_usec().unsigned_abs() as u32 * 1_000)
        };
        Ok(Usage {
            at: Instant::now(),
            idle: field(3) + field(4),
            stolen: field(7),
            others: others(),
            own: time(usage.user_time()) + time(usage.system_time()),
        })
    }

    /// Returns the use since `before`.
    pub(super) fn since(&self, before: &Usage) -> Result<Use> {
        let elapsed = (self.at - before.at).as_secs_f64().max(f64::EPSILON);
        let ticks = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100) as f64;
        let processors = sysconf(SysconfVar::_NPROCESSORS_ONLN)?.unwrap_or(1) as f64;
        let part = |now: u64, before: u64| {
            (now.saturating_sub(before) as f64 / ticks / elapsed / processors).clamp(0.0, 1.0)
        };
        Ok(Use {
            idle: part(self.idle, before.idle),
            others: part(self.others + self.stolen, before.others + before.stolen),
            generator: (self.own - before.own).as_secs_f64() / elapsed,
        })
    }
}

impl Use {
    /// Returns why a measurement with these numbers of requests doesn't count.
    pub(super) fn excluded(&self, requests: u64, failed: u64) -> Option<String> {
        let left = self.idle + self.others;
        let of = (requests + failed).max(1) as f64;
        if requests == 0 {
            Some("no request was answered".to_owned())
        } else if left < IDLE_MIN {
            Some(format!("the experiment left {:.0} % of the processors", left * 100.0))
        } else if self.generator > GENERATOR_MAX {
            Some(format!("clients used {:.0} % of a processor", self.generator * 100.0))
        } else if failed as f64 / of > FAILED_MAX {
            Some(format!("{failed} of {} requests failed", requests + failed))
        } else {
            None
        }
    }
}

/// Process id of the kernel threads' parent.
const KERNEL_THREADS: u32 = 2;

/// Returns the clock ticks so far of programs that are no descendants of this process nor kernel
/// threads, with those of their ended children.
fn others() -> u64 {
    let mut processes = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // processes end meanwhile
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        processes.extend(process(&stat).map(|process| (pid, process)));
    }
    let own = std::process::id();
    let is_ours = |pid: u32| {
        let mut pid = pid;
        // parents can't form a circle, but are read at different times
        for _ in 0..processes.len() {
            if pid == own || pid == KERNEL_THREADS {
                return true;
            }
            match processes.get(&pid) {
                Some((parent, _)) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    processes.iter().filter(|(pid, _)| !is_ours(**pid)).map(|(_, (_, ticks))| ticks).sum()
}

/// Returns a process's parent and its clock ticks (proc_pid_stat(5), fields 4 and 14 to 17).
fn process(stat: &str) -> Option<(u32, u64)> {
    // field 2, the command name, may contain any text, but the last parenthesis ends it
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = (14 - 3..=17 - 3).map(|field| fields.get(field)?.parse::<u64>().ok());
    Some((fields.get(4 - 3)?.parse().ok()?, ticks.sum::<Option<u64>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_times_are_read_after_any_command_name() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 99";
        assert_eq!(process(stat), Some((3, 100)));
        assert_eq!(process("7 (short) S 3"), None);
    }

    #[test]
    fn own_work_is_the_generators() -> Result<()> {
        let before = Usage::read()?;
        let mut sum = 0_u64;
        while before.at.elapsed() < Duration::from_millis(300) {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        let used = Usage::read()?.since(&before)?;
        assert!(sum > 0 && used.generator > 0.0 && used.idle <= 1.0 && used.others <= 1.0, "{used:?}");
        Ok(())
    }

    #[test]
    fn measurement_counts_within_bounds_alone() {
        let used = Use { idle: 0.1, others: 0.3, generator: 0.5 };
        assert_eq!(used.excluded(1_000, 1), None);
        assert_eq!(used.excluded(1_000, 2).as_deref(), Some("2 of 1002 requests failed"));
        assert_eq!(used.excluded(0, 0).as_deref(), Some("no request was answered"));
        let busy = Use { others: 0.0, ..used };
        assert_eq!(busy.excluded(1_000, 0).as_deref(), Some("the experiment left 10 % of the processors"));
        let short = Use { generator: 0.9, ..used };
        assert_eq!(short.excluded(1_000, 0).as_deref(), Some("clients used 90 % of a processor"));
    }
}
