//! Control groups that hold programs to a part of one processor, so that one machine plays many
//! slower ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::cleanup;

/// Period of the quota. Within it, programs of a group run until their part is used.
const PERIOD_US: f64 = 10_000.0;
/// Least quota that the kernel takes. A smaller part of a processor has a longer period.
const QUOTA_MIN_US: f64 = 1_000.0;
/// Number of attempts to remove a group whose processes are ending.
const REMOVALS_MAX: u32 = 200;

/// Control group with a quota. Dropping the value kills its processes and removes it.
#[derive(Debug)]
pub struct HeldMachine {
    controllers: Controllers,
    name: String,
}

/// Mounted controllers (cgroups(7)).
#[derive(Clone, Debug)]
enum Controllers {
    /// Version 1: one hierarchy for quotas, and one for used times, which may be the same.
    One { cpu: PathBuf, cpuacct: PathBuf },
    /// Version 2: one hierarchy.
    Two(PathBuf),
}

impl HeldMachine {
    /// Makes a group that has this part of one processor, at least a hundredth.
    pub fn new(part: f64) -> Result<HeldMachine> {
        ensure!((0.01..=64.0).contains(&part), "A held machine has a hundredth of a processor or more");
        let mounts = fs::read_to_string("/proc/self/mounts").context("Reading /proc/self/mounts failed")?;
        let Some(controllers) = Controllers::find(&mounts) else {
            bail!("No control group with a CPU quota can be made: the cpu controller isn't mounted");
        };
        let machine = HeldMachine { controllers, name: format!("{}held", cleanup::next_prefix()?) };
        machine.limit(part).with_context(|| {
            format!("No control group with a CPU quota can be made: {} was refused", machine.name)
        })?;
        Ok(machine)
    }

    fn limit(&self, part: f64) -> Result<()> {
        let period_us = PERIOD_US.max(QUOTA_MIN_US / part).ceil() as u32;
        let quota_us = (part * f64::from(period_us)) as u32;
        if let Controllers::Two(root) = &self.controllers {
            write(&root.join("cgroup.subtree_control"), "+cpu")?;
        }
        for folder in self.folders() {
            fs::create_dir_all(&folder).with_context(|| format!("Making {} failed", folder.display()))?;
        }
        match &self.controllers {
            Controllers::One { cpu, .. } => {
                let folder = cpu.join(&self.name);
                write(&folder.join("cpu.cfs_period_us"), &period_us.to_string())?;
                write(&folder.join("cpu.cfs_quota_us"), &quota_us.to_string())
            }
            Controllers::Two(root) => {
                write(&root.join(&self.name).join("cpu.max"), &format!("{quota_us} {period_us}"))
            }
        }
    }

    /// Returns words that start a program in the group if they are put before its own.
    pub fn before(&self) -> Vec<String> {
        let files =
            self.folders().into_iter().map(|folder| folder.join("cgroup.procs").display().to_string());
        let script = files.map(|file| format!("echo $$ >{file} && ")).collect::<String>() + "exec \"$@\"";
        ["sh", "-c", &script, "held"].map(str::to_owned).to_vec()
    }

    /// Moves a running process into the group, whose start took more than its part.
    pub fn hold(&self, pid: u32) -> Result<()> {
        self.folders().iter().try_for_each(|folder| write(&folder.join("cgroup.procs"), &pid.to_string()))
    }

    /// Processor time that the group has used.
    pub fn used(&self) -> Result<Duration> {
        let read = |path: PathBuf| {
            fs::read_to_string(&path).with_context(|| format!("Reading {} failed", path.display()))
        };
        match &self.controllers {
            Controllers::One { cpuacct, .. } => {
                let text = read(cpuacct.join(&self.name).join("cpuacct.usage"))?;
                Ok(Duration::from_nanos(text.trim().parse().context("cpuacct.usage is no number")?))
            }
            Controllers::Two(root) => {
                let text = read(root.join(&self.name).join("cpu.stat"))?;
                let used = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
                let used = used.and_then(|used| used.trim().parse().ok());
                Ok(Duration::from_micros(used.context("cpu.stat has no usage_usec")?))
            }
        }
    }

    fn folders(&self) -> Vec<PathBuf> {
        let roots = match &self.controllers {
            Controllers::One { cpu, cpuacct } if cpu != cpuacct => vec![cpu, cpuacct],
            Controllers::One { cpu, .. } => vec![cpu],
            Controllers::Two(root) => vec![root],
        };
        roots.into_iter().map(|root| root.join(&self.name)).collect()
    }
}

impl Drop for HeldMachine {
    fn drop(&mut self) {
        for folder in self.folders() {
            for _ in 0..REMOVALS_MAX {
                let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                for pid in processes.lines().filter_map(|pid| pid.parse().ok()) {
                    let pid = nix::unistd::Pid::from_raw(pid);
                    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
                }
                match fs::remove_dir(&folder) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        thread::sleep(Duration::from_millis(10));
                    }
                    // what is left is removed with the remains of this process
                    _ => break,
                }
            }
        }
    }
}

impl Controllers {
    /// Finds the controllers in a table of mounts (proc_pid_mounts(5)).
    fn find(mounts: &str) -> Option<Controllers> {
        let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mounts: Vec<_> = lines.filter(|fields| fields.len() > 3).collect();
        let version1 = |controller: &str| {
            let found = mounts.iter().find(|fields| {
                fields[2] == "cgroup" && fields[3].split(',').any(|option| option == controller)
            });
            found.map(|fields| PathBuf::from(fields[1]))
        };
        if let (Some(cpu), Some(cpuacct)) = (version1("cpu"), version1("cpuacct")) {
            return Some(Controllers::One { cpu, cpuacct });
        }
        let version2 = mounts.iter().find(|fields| fields[2] == "cgroup2")?;
        Some(Controllers::Two(PathBuf::from(version2[1])))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("Writing {text} to {} failed", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_of_both_versions_are_found() {
        let one = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                   cgroup /sys/fs/cgroup/cpuacct cgroup rw,relatime,cpuacct 0 0\n\
                   cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = Controllers::find(one);
        assert!(matches!(&found, Some(Controllers::One { cpu, cpuacct })
            if cpu.ends_with("cpu") && cpuacct.ends_with("cpuacct")));
        let joint = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
        assert!(
            matches!(Controllers::find(joint), Some(Controllers::One { cpu, cpuacct }) if cpu == cpuacct)
        );
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert!(matches!(Controllers::find(two), Some(Controllers::Two(_))));
        assert!(Controllers::find("proc /proc proc rw 0 0\n").is_none());
    }
}
