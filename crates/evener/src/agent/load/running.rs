//! Running or runnable processes: of the machine, of a control group, or of this container.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Mount points of control groups, version 2 first. All hierarchies of version 1 list the same
/// processes.
const CGROUPS: [&str; 4] =
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/cpu"];
/// Maximum number of processes that are examined. With more, the number is unknown.
const PROCESSES_MAX: usize = 16_384;
/// Maximum depth of control groups that are examined.
const DEPTH_MAX: usize = 16;

/// The processes that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Processes {
    /// All processes of the machine.
    Machine,
    /// Processes of a control group and its descendants.
    Group(PathBuf),
}

impl Processes {
    /// Returns the processes of the named control group. Without a name, returns all processes of
    /// the machine. In a container, `/proc/stat` describes the whole machine, so the processes of
    /// the container's root control group are returned instead.
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

    /// Returns the number of running or runnable processes. `of_machine` is the number from
    /// `/proc/stat`. `None` if the group can't be read.
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

/// Collects the processes of a control group and its descendants.
fn collect(group: &Path, depth: usize, processes: &mut BTreeSet<u32>) -> Option<()> {
    let text = fs::read_to_string(group.join("cgroup.procs")).ok()?;
    processes.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    if depth >= DEPTH_MAX || processes.len() > PROCESSES_MAX {
        return (processes.len() <= PROCESSES_MAX).then_some(());
    }
    for entry in fs::read_dir(group).ok()?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // A group that is gone by now has no processes.
            let _ = collect(&entry.path(), depth + 1, processes);
        }
    }
    (processes.len() <= PROCESSES_MAX).then_some(())
}

/// Returns the number of a process's running or runnable threads.
fn running_tasks(process: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return 0 };
    let runs = |stat: String| is_running(&stat);
    let running =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok().map(runs));
    running.map(u64::from).sum()
}

/// True if a task's state is R. The state follows the name, which may contain any character
/// (proc_pid_stat(5)).
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
