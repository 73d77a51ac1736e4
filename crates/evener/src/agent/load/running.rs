//! Processes that run or wait to: of the machine, of a control group, or of the container that this
//! is.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are: of version 2, and beside those of version 1, which list their
/// processes as well.
const CGROUPS: [&str; 4] =
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/cpu"];
/// Processes that are looked at, at the most: of more than these it isn't said.
const PROCESSES_MAX: usize = 16_384;
/// How deep control groups are nested that are looked into.
const DEPTH_MAX: usize = 16;

/// The processes that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Processes {
    /// All of the machine.
    Machine,
    /// Those of a control group, and of those below it.
    Group(PathBuf),
}

impl Processes {
    /// Those of the group that the operator names. Without a name the machine's, unless this is a
    /// container, whose root is a control group like others: `/proc/stat` says nothing of it alone.
    pub(super) fn of(cgroup: Option<&Path>) -> Processes {
        let [root, ..] = CGROUPS.map(Path::new);
        match cgroup {
            Some(path) => {
                let places = CGROUPS.iter().map(|root| Path::new(root).join(path));
                let found = places.into_iter().find(|group| group.join("cgroup.procs").exists());
                Processes::Group(found.unwrap_or_else(|| root.join(path)))
            }
            // Only the machine's own root has no type (cgroups(7)).
            None if root.join("cgroup.type").exists() => Processes::Group(root.to_owned()),
            None => Processes::Machine,
        }
    }

    /// How many run or wait to, by `/proc/stat` where that says it. `None` where nothing can be
    /// read.
    pub(super) fn running(&self, of_machine: Option<u64>) -> Option<u64> {
        match self {
            Processes::Machine => of_machine,
            Processes::Group(path) => {
                let mut processes = BTreeSet::new();
                collect(path, 0, &mut processes)?;
                let own = std::process::id();
                let tasks = processes.into_iter().filter(|process| *process != own).map(running_tasks);
                Some(tasks.sum())
            }
        }
    }
}

impl fmt::Display for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Processes::Machine => f.write_str("/proc/stat"),
            Processes::Group(path) => write!(f, "the control group {}", path.display()),
        }
    }
}

/// The processes of a control group and of those below it.
fn collect(group: &Path, depth: usize, processes: &mut BTreeSet<u32>) -> Option<()> {
    let text = fs::read_to_string(group.join("cgroup.procs")).ok()?;
    processes.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    if depth >= DEPTH_MAX || processes.len() > PROCESSES_MAX {
        return (processes.len() <= PROCESSES_MAX).then_some(());
    }
    for entry in fs::read_dir(group).ok()?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // One that is gone meanwhile has no processes.
            let _ = collect(&entry.path(), depth + 1, processes);
        }
    }
    (processes.len() <= PROCESSES_MAX).then_some(())
}

/// Threads of a process that run or wait to.
fn running_tasks(process: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return 0 };
    let runs = |stat: String| is_running(&stat);
    let running =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok().map(runs));
    running.map(u64::from).sum()
}

/// Whether a task's state is R: behind its name, which may have anything in it (proc_pid_stat(5)).
fn is_running(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_stand_behind_names_that_may_be_anything() {
        assert!(is_running("12 (nginx) R 1 12"));
        assert!(is_running("12 (a) S (b) R 1 12"));
        assert!(!is_running("12 (a) R) S 1 12"));
        assert!(!is_running("") && !is_running("12 (nginx"));
    }

    #[test]
    fn running_processes_match_proc_and_missing_cgroup_is_unknown() {
        assert_eq!(Processes::Machine.running(Some(7)), Some(7));
        assert_eq!(Processes::of(Some(Path::new("no-such.slice"))).running(Some(7)), None);
    }
}
