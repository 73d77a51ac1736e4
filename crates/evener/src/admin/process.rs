//! Resources of the daemon, under the usual names of Prometheus' client libraries.

use std::fs;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::{SysconfVar, sysconf};

/// Resources of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// User and system processor time, in seconds.
    pub cpu_seconds: f64,
    pub open_fds: u64,
    /// Limit on file descriptors.
    pub max_fds: u64,
    /// Virtual memory, in bytes.
    pub virtual_bytes: u64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    pub threads: u64,
    /// Start time, in seconds since 1970.
    pub start_seconds: f64,
}

impl Process {
    /// Reads the current values. Values that can't be read are 0.
    pub fn read() -> Process {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        let used = getrusage(UsageWho::RUSAGE_SELF).ok();
        let cpu = used.map_or(0, |used| (used.user_time() + used.system_time()).num_microseconds());
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4_096);
        Process {
            cpu_seconds: Duration::from_micros(u64::try_from(cpu).unwrap_or_default()).as_secs_f64(),
            open_fds: fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count() as u64),
            max_fds: getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft),
            virtual_bytes: field(&stat, 23),
            resident_bytes: field(&stat, 24) * u64::try_from(page).unwrap_or_default(),
            threads: field(&stat, 20),
            start_seconds: booted(&boot) + field(&stat, 22) as f64 / ticks as f64,
        }
    }
}

/// Returns a field of /proc/PID/stat, numbered from 1 as in proc_pid_stat(5). The second field, a
/// name, may contain spaces.
fn field(stat: &str, number: usize) -> u64 {
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    behind_name.split_whitespace().nth(number - 3).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Returns the host's boot time, in seconds since 1970 (proc_stat(5)).
fn booted(stat: &str) -> f64 {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_manual_page() {
        let stat =
            "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 9 0 1234 1000000 50 18446744073709551615";
        assert_eq!([20, 22, 23, 24].map(|number| field(stat, number)), [9, 1_234, 1_000_000, 50]);
        assert_eq!(field("", 24), 0);
        assert_eq!(booted("cpu 1 2\nbtime 1700000000\n"), 1_700_000_000.0);
    }

    #[test]
    fn this_process_is_seen() {
        let process = Process::read();
        assert!(process.cpu_seconds >= 0.0 && process.start_seconds > 1e9, "{process:?}");
        assert!(process.open_fds >= 3 && process.max_fds >= process.open_fds, "{process:?}");
        assert!(process.virtual_bytes >= process.resident_bytes && process.resident_bytes > 0, "{process:?}");
        assert!(process.threads >= 1, "{process:?}");
    }
}
