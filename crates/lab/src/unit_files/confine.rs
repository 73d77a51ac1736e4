//! Steps of a service manager in a process before it executes the program.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{getrlimit, setrlimit};

use super::{Limit, Restriction, Unit, calls};

/// Search path of programs started by a service manager (systemd.exec(5)).
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// File systems of the kernel, which `ProtectSystem` does not change.
const OF_THE_KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];
/// Remaining devices with `PrivateDevices` (systemd.exec(5)).
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];
/// Capabilities that flags remove, whatever the unit's own capabilities.
const TAKEN: [(Restriction, &[&str]); 4] = [
    (Restriction::Clock, &["sys_time", "wake_alarm"]),
    (Restriction::KernelLogs, &["syslog"]),
    (Restriction::KernelModules, &["sys_module"]),
    (Restriction::Devices, &["mknod", "sys_rawio"]),
];

/// Executes a program with the restrictions of a unit. The folders `shown`, which contain the
/// program and its files, stay visible even if the unit hides them.
///
/// # Errors
/// Returns only if a step fails.
pub fn exec_restricted(unit: &Unit, shown: &[PathBuf], words: &[String]) -> Result<()> {
    let filters = calls::filters(unit)?;
    restrict_files(unit, shown).context("The unit's view of files can't be made")?;
    for Limit { resource, soft, hard } in unit.limits.iter().copied() {
        // If the limit is too high, sets the highest possible one, as a service manager in a
        // container does.
        let (_, most) = getrlimit(resource)?;
        setrlimit(resource, soft, hard)
            .or_else(|_| setrlimit(resource, soft.min(most), hard.min(most)))
            .with_context(|| format!("{resource:?} can't be limited"))?;
    }
    std::env::set_current_dir("/")?;
    let mut command = Command::new("setpriv");
    command.args(privileges(unit)).arg("--").args(words).env_clear().env("PATH", SEARCH);
    for filter in &filters {
        seccompiler::apply_filter(filter).context("A filter of system calls is refused")?;
    }
    Err(command.exec()).context("The program setpriv does not run")
}

/// Returns the options of setpriv(1).
fn privileges(unit: &Unit) -> Vec<String> {
    let mut options = Vec::new();
    if unit.denies(Restriction::NewPrivileges) {
        options.push("--no-new-privs".to_owned());
    }
    let taken: Vec<&str> = TAKEN
        .iter()
        .filter(|(restriction, _)| unit.denies(*restriction))
        .flat_map(|(_, names)| names.iter().copied())
        .collect();
    let bounding = match &unit.capabilities {
        Some(names) => {
            let left = names.iter().filter(|name| !taken.contains(&name.as_str()));
            left.fold("-all".to_owned(), |set, name| set + ",+" + name)
        }
        None => taken.iter().map(|name| format!("-{name}")).collect::<Vec<_>>().join(","),
    };
    if !bounding.is_empty() {
        options.push(format!("--bounding-set={bounding}"));
    }
    options.push("--inh-caps=-all".to_owned());
    options
}

/// Creates a private view of the file system.
fn restrict_files(unit: &Unit, shown: &[PathBuf]) -> Result<()> {
    let names =
        if unit.denies(Restriction::Hostname) { CloneFlags::CLONE_NEWUTS } else { CloneFlags::empty() };
    unshare(CloneFlags::CLONE_NEWNS | names)?;
    set("/", MsFlags::MS_SLAVE | MsFlags::MS_REC)?;
    // Open descriptors keep the folders accessible after they are hidden.
    let held = shown.iter().map(|path| Ok((path, File::open(path)?))).collect::<Result<Vec<_>>>()?;
    make(&unit.runtime)?;
    let exists = |path: &&PathBuf| path.exists();
    let writable: Vec<&PathBuf> = unit.runtime.iter().chain(unit.writable.iter().filter(exists)).collect();
    if unit.strict {
        for path in &writable {
            bind(path, path)?;
        }
        read_only(&writable)?;
    }
    if unit.private_tmp {
        ["/tmp", "/var/tmp"].into_iter().try_for_each(|path| empty(path, "mode=1777"))?;
    }
    if !unit.kept.is_empty() {
        // Files of a test must not stay on the machine.
        ["/var/log", "/var/lib"].into_iter().try_for_each(|path| empty(path, "mode=0755"))?;
        make(&unit.kept)?;
    }
    if unit.no_home {
        HOMES.into_iter().try_for_each(|path| empty(path, "mode=0755"))?;
    }
    if unit.denies(Restriction::KernelModules) {
        empty("/usr/lib/modules", "mode=0000")?;
    }
    if unit.denies(Restriction::KernelLogs) {
        deny(&["/dev/kmsg", "/proc/kmsg"])?;
    }
    if unit.denies(Restriction::ControlGroups) {
        below("/sys/fs/cgroup")?
            .iter()
            .try_for_each(|point| set(point, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY))?;
    }
    if unit.denies(Restriction::Devices) {
        private_devices()?;
    }
    for (path, folder) in held {
        if !path.exists() {
            DirBuilder::new().recursive(true).create(path)?;
            bind(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())), path)?;
        }
    }
    Ok(())
}

fn make(folders: &[PathBuf]) -> Result<()> {
    for folder in folders {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.with_context(|| format!("Making {} failed", folder.display()))?;
    }
    Ok(())
}

/// Makes all mounts read-only, except those of the kernel and those below `writable`.
fn read_only(writable: &[&PathBuf]) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    // The fifth field (proc_pid_mountinfo(5)); a blank is written there as an octal number.
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|at| at.replace("\\040", " "));
    let is_left = |point: &str| {
        let below = |folder: &Path| Path::new(point).starts_with(folder);
        OF_THE_KERNEL.iter().any(|folder| below(Path::new(folder)))
            || writable.iter().any(|folder| below(folder))
    };
    for point in points.filter(|point| !is_left(point)) {
        // A path that another mount hides can't be changed.
        let _ = set(&point, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY);
    }
    Ok(())
}

/// Returns the mount points at a folder and below.
fn below(folder: &str) -> Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.filter(|at| Path::new(at).starts_with(folder)).map(str::to_owned).collect())
}

/// Leaves only harmless devices in /dev.
fn private_devices() -> Result<()> {
    let held = DEVICES.map(|name| Path::new("/dev").join(name));
    let held = held.iter().filter(|path| path.exists());
    let held = held
        .map(|path| Ok((path.clone(), OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?)));
    let held = held.collect::<Result<Vec<_>>>()?;
    empty("/dev", "mode=0755")?;
    DirBuilder::new().mode(0o1777).create("/dev/shm")?;
    for (path, device) in held {
        File::create(&path)?;
        bind(Path::new(&format!("/proc/self/fd/{}", device.as_raw_fd())), &path)?;
    }
    Ok(())
}

fn set(at: &str, flags: MsFlags) -> Result<()> {
    mount(None::<&str>, at, None::<&str>, flags, None::<&str>).with_context(|| format!("{at}: {flags:?}"))
}

fn bind(what: &Path, at: &Path) -> Result<()> {
    mount(Some(what), at, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .with_context(|| format!("{} can't be had at {}", what.display(), at.display()))
}

/// Mounts an empty file system on a folder, if the folder exists.
fn empty(folder: &str, options: &str) -> Result<()> {
    if !Path::new(folder).is_dir() {
        return Ok(());
    }
    mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(options))
        .with_context(|| format!("{folder} can't be hidden"))
}

/// Hides these files behind an inaccessible one.
fn deny(files: &[&str]) -> Result<()> {
    let nothing = Path::new("/dev/shm").join(format!("evener-lab-{}", std::process::id()));
    File::create(&nothing)?.set_permissions(Permissions::from_mode(0o0))?;
    let done =
        files.iter().map(Path::new).filter(|file| file.exists()).try_for_each(|file| bind(&nothing, file));
    fs::remove_file(&nothing)?;
    done
}
