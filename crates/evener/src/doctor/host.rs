//! Checks the machine: privileges, kernel, and other requirements of the engines.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use evener_dataplane::requirements::{OLDEST_KERNEL, REQUIREMENTS};
use evener_dataplane::xdp::{self, Hook, pins};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::sys::utsname::uname;

use crate::views::Finding;

/// Kernel version from which BPF maps are no locked memory, so that the limit is irrelevant.
const KERNEL_WITHOUT_MEMLOCK: (u32, u32) = (5, 11);
/// Locked memory for the maps of a million sessions in bytes, on kernels that count maps as locked.
const MEMLOCK_BYTES: u64 = 256 << 20;

const PRIVILEGES: &str = "privileges";
const PROGRAMS: &str = "BPF programs";

/// Bit numbers of capabilities(7) in CapEff.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

pub(super) fn findings() -> Vec<Finding> {
    let capabilities = fs::read_to_string("/proc/self/status").ok().and_then(|text| effective(&text));
    let release = uname().ok().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let may_mount = capabilities.is_some_and(|set| has(set, CAP_SYS_ADMIN));
    vec![
        privileges(capabilities),
        kernel(&release),
        programs(capabilities),
        btf(),
        jit(fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").ok().as_deref()),
        bpf_file_system(may_mount),
        memory_lock(&release),
        nft(),
    ]
}

/// Removes the findings on engines, for a farm that needs no engine.
pub(super) fn without_engine(findings: &mut Vec<Finding>) {
    const FOR_ENGINES: [&str; 7] =
        [PRIVILEGES, PROGRAMS, "BTF", "BPF JIT", "BPF file system", "memory lock", "nft"];
    findings.retain(|finding| !FOR_ENGINES.contains(&finding.check.as_ref()));
    findings.insert(0, Finding::ok(PRIVILEGES, "None are needed: no service of this file sends packets on."));
}

/// Parses the effective capabilities in /proc/PID/status.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn has(set: u64, capability: u32) -> bool {
    set & (1 << capability) != 0
}

fn privileges(set: Option<u64>) -> Finding {
    const CHECK: &str = PRIVILEGES;
    let Some(set) = set else {
        return Finding::warn(
            CHECK,
            "failed to read this process's capabilities from /proc/self/status; mount /proc.",
        );
    };
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, which are newer.
    let bpf = |capability| has(set, capability) || has(set, CAP_SYS_ADMIN);
    let wanted = [
        ("CAP_NET_ADMIN", has(set, CAP_NET_ADMIN)),
        ("CAP_BPF", bpf(CAP_BPF)),
        ("CAP_PERFMON", bpf(CAP_PERFMON)),
    ];
    let missing: Vec<&str> = wanted.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
    if !has(set, CAP_NET_RAW) {
        return Finding::fail(CHECK, "CAP_NET_RAW is missing: no engine, ARP or probe works; run as root.");
    }
    match missing.is_empty() {
        true => Finding::ok(CHECK, "Enough for both engines."),
        false => {
            let missing = missing.join(", ");
            Finding::warn(
                CHECK,
                format!("{missing} missing: only the packet engine works; run as root for xdp."),
            )
        }
    }
}

/// Parses major and minor version from a release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel(release: &str) -> Finding {
    const CHECK: &str = "kernel";
    match version(release) {
        Some(found) if found >= OLDEST_KERNEL => Finding::ok(CHECK, format!("Linux {release}.{}", lacking())),
        Some(_) => {
            let (major, minor) = OLDEST_KERNEL;
            let help = format!("the xdp engine is tried from {major}.{minor} on; the packet engine works");
            Finding::warn(CHECK, format!("Linux {release}: {help}."))
        }
        None => Finding::warn(CHECK, format!("The version {release:?} can't be understood.")),
    }
}

/// Returns a sentence for each feature that this kernel lacks.
fn lacking() -> String {
    let missing = REQUIREMENTS.iter().filter(|requirement| matches!(requirement.is_met(), Ok(false)));
    missing
        .map(|requirement| {
            let (major, minor) = requirement.since;
            format!(" It lacks {} of Linux {major}.{minor}: {}.", requirement.function, requirement.without)
        })
        .collect()
}

/// Loads the director's programs as a test, and drops them.
fn programs(capabilities: Option<u64>) -> Finding {
    if !capabilities.is_some_and(|set| has(set, CAP_BPF) || has(set, CAP_SYS_ADMIN)) {
        return Finding::ok(PROGRAMS, "Not tried: this process may not load any.");
    }
    match (xdp::try_load(Hook::Xdp), xdp::try_load(Hook::Tc)) {
        (Ok(()), Ok(())) => Finding::ok(PROGRAMS, "The kernel accepts the director's programs."),
        (Ok(()), Err(error)) => Finding::warn(PROGRAMS, format!("{error}; XDP is used on every interface.")),
        (Err(error), Ok(())) => {
            Finding::warn(PROGRAMS, format!("{error}; traffic control is used on every interface."))
        }
        (Err(error), Err(_)) => Finding::fail(
            PROGRAMS,
            format!("{error}; with `kind = \"auto\"` in [engine] the packet engine serves."),
        ),
    }
}

fn btf() -> Finding {
    match Path::new("/sys/kernel/btf/vmlinux").exists() {
        true => Finding::ok("BTF", "The kernel describes its types."),
        false => Finding::warn(
            "BTF",
            "There is no /sys/kernel/btf/vmlinux: directors work, but servers can't decapsulate tunnel packets or accept handed-off connections; for these, use a kernel with CONFIG_DEBUG_INFO_BTF, or mount /sys.",
        ),
    }
}

fn jit(setting: Option<&str>) -> Finding {
    const CHECK: &str = "BPF JIT";
    match setting.map(str::trim) {
        Some("0") => Finding::warn(
            CHECK,
            "Off: the xdp engine runs interpreted, several times slower; \
             `sysctl -w net.core.bpf_jit_enable=1` turns it on.",
        ),
        Some(_) => Finding::ok(CHECK, "On."),
        // The setting is visible in the initial network namespace only.
        None => Finding::ok(CHECK, "Not shown in this network namespace; on with nearly all kernels."),
    }
}

fn bpf_file_system(may_mount: bool) -> Finding {
    const CHECK: &str = "BPF file system";
    let mounted = |path: &PathBuf| statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    // `ip netns exec` creates separate mounts for each command. The engine then pins in the mounts
    // of PID 1.
    let known = fs::read_to_string("/proc/filesystems").is_ok_and(|text| text.contains("\tbpf"));
    match pins::roots().into_iter().find(|path| mounted(path)) {
        Some(path) if pins::ends_with_mounts(&path) => Finding::warn(
            CHECK,
            format!(
                "Mounted at {} for this program's mount namespace alone: traffic stops with that; mount it in the first \
                 one, `mount -t bpf bpf /sys/fs/bpf`.",
                path.display()
            ),
        ),
        Some(path) => Finding::ok(CHECK, format!("Mounted at {}.", path.display())),
        None if known && may_mount => Finding::ok(CHECK, "Not mounted yet; `evener run` mounts it."),
        None if known => Finding::warn(
            CHECK,
            "Not mounted: traffic stops with the daemon; `mount -t bpf bpf /sys/fs/bpf` as root.",
        ),
        None => Finding::warn(CHECK, "This kernel has none: only the packet engine works."),
    }
}

fn memory_lock(release: &str) -> Finding {
    const CHECK: &str = "memory lock";
    if version(release).is_some_and(|found| found >= KERNEL_WITHOUT_MEMLOCK) {
        return Finding::ok(CHECK, "BPF maps don't count with this kernel.");
    }
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft == RLIM_INFINITY || soft >= MEMLOCK_BYTES => Finding::ok(CHECK, "High enough."),
        Ok((soft, _)) => {
            let kib = soft / 1024;
            Finding::warn(CHECK, format!("{kib} KiB may be too little for BPF maps; `ulimit -l unlimited`."))
        }
        Err(error) => Finding::warn(CHECK, format!("failed to read the limit: {error}.")),
    }
}

/// True if the program nft is in PATH.
pub(super) fn has_nft() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join("nft").is_file())
}

fn nft() -> Finding {
    match has_nft() {
        true => Finding::ok("nft", "There, for the packet engine to keep this host's stack out."),
        false => Finding::warn(
            "nft",
            "Not found in PATH: the packet engine can't keep this host's stack out and works only where that \
             stays silent; install nftables.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    #[test]
    fn host_without_packet_services_needs_no_kernel_features() {
        let mut findings = findings();
        without_engine(&mut findings);
        let checks: Vec<&str> = findings.iter().map(|finding| finding.check.as_str()).collect();
        assert_eq!(checks, [PRIVILEGES, "kernel"]);
    }

    #[test]
    fn capabilities_are_read_and_judged() {
        let root = effective("Name:\tx\nCapEff:\t000001ffffffffff\n");
        assert_eq!(root, Some(0x1ff_ffff_ffff));
        assert_eq!(privileges(root).state, Severity::Ok);
        // Default capabilities of a container: CAP_NET_RAW, but none for BPF.
        let container = privileges(Some(0xa804_25fb));
        assert_eq!(container.state, Severity::Warn);
        assert!(container.message.contains("CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON"), "{container:?}");
        // CAP_SYS_ADMIN suffices instead of CAP_BPF and CAP_PERFMON.
        assert_eq!(privileges(Some(1 << 12 | 1 << 13 | 1 << 21)).state, Severity::Ok);
        assert_eq!(privileges(Some(0)).state, Severity::Fail);
        assert_eq!(effective("CapEff:\tmany\n"), None);
    }

    #[test]
    fn kernel_versions_are_compared() {
        assert_eq!(version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(version("6.18-rc1"), Some((6, 18)));
        assert_eq!(version("linux"), None);
        let states = ["6.1.0", "5.15.3", "?"].map(|release| kernel(release).state);
        assert_eq!(states, [Severity::Ok, Severity::Warn, Severity::Warn]);
    }

    #[test]
    fn jit_finding_depends_on_readable_setting() {
        assert_eq!(
            [Some("0\n"), Some("1\n"), None].map(|s| jit(s).state),
            [Severity::Warn, Severity::Ok, Severity::Ok]
        );
    }
}
