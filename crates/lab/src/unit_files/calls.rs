//! System calls that a unit denies, filtered like a service manager would (systemd.exec(5)).

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::libc::{self, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::{Restriction, Unit};
use syscalls::Sysno;

/// System call, and the cases in which it is denied: always if there are none. A case is a set of
/// conditions that must all hold.
type Denied = (c_long, Vec<Vec<SeccompCondition>>);

/// Flags of clone(2) that create a namespace.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// Argument of personality(2) that changes nothing.
const QUERY: u64 = 0xffff_ffff;

/// Returns the number of an address family.
pub(super) fn family(name: &str) -> Result<i32> {
    let known = [
        ("AF_UNIX", libc::AF_UNIX),
        ("AF_INET", libc::AF_INET),
        ("AF_INET6", libc::AF_INET6),
        ("AF_NETLINK", libc::AF_NETLINK),
        ("AF_PACKET", libc::AF_PACKET),
    ];
    let found = known.iter().find(|(known, _)| *known == name);
    found.map(|(_, number)| *number).with_context(|| format!("nothing is known here of the family {name}"))
}

/// Returns the filters of a unit, each with its error for denied calls.
pub(super) fn filters(unit: &Unit) -> Result<Vec<BpfProgram>> {
    let mut filters = Vec::new();
    if let Some(families) = &unit.families {
        let other = families.iter().map(|family| is(0, SeccompCmpOp::Ne, *family as u64));
        let other = other.collect::<Result<Vec<_>>>()?;
        filters.push(filter(vec![(libc::SYS_socket, vec![other])], libc::EAFNOSUPPORT)?);
    }
    let mut denied = Vec::new();
    for restriction in &unit.restrictions {
        denied.extend(calls(*restriction)?);
    }
    filters.push(filter(denied, libc::EPERM)?);
    if unit.denies(Restriction::Namespaces) {
        // The flags of clone3 are in memory, where a filter can't read them; callers fall back to
        // clone(2).
        filters.push(filter(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)?);
    }
    // Last, because no filter can be added after it.
    if let Some(words) = &unit.allowed {
        filters.push(only(words)?);
    }
    Ok(filters)
}

fn calls(restriction: Restriction) -> Result<Vec<Denied>> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let always = |numbers: &[c_long]| numbers.iter().map(|number| (*number, Vec::new())).collect::<Vec<_>>();
    let has = |argument, bits: i32| is(argument, MaskedEq(bits as u64), bits as u64);
    Ok(match restriction {
        // Other mechanisms enforce these: no new privileges, and every filter accepts native calls
        // only.
        Restriction::NewPrivileges | Restriction::ForeignCalls | Restriction::ControlGroups => Vec::new(),
        Restriction::Devices => always(&[libc::SYS_iopl, libc::SYS_ioperm]),
        Restriction::SetUserBits => {
            let bits = |argument: u8| -> Result<Vec<Vec<SeccompCondition>>> {
                let has = |bit: u32| Ok(vec![is(argument, MaskedEq(bit.into()), bit.into())?]);
                [libc::S_ISUID, libc::S_ISGID].into_iter().map(has).collect()
            };
            vec![
                (libc::SYS_chmod, bits(1)?),
                (libc::SYS_fchmod, bits(1)?),
                (libc::SYS_fchmodat, bits(2)?),
                (libc::SYS_mkdir, bits(1)?),
                (libc::SYS_mkdirat, bits(2)?),
                (libc::SYS_mknod, bits(1)?),
                (libc::SYS_mknodat, bits(2)?),
            ]
        }
        Restriction::Clock => always(&[
            libc::SYS_adjtimex,
            libc::SYS_clock_adjtime,
            libc::SYS_clock_settime,
            libc::SYS_settimeofday,
        ]),
        Restriction::Hostname => always(&[libc::SYS_sethostname, libc::SYS_setdomainname]),
        Restriction::KernelLogs => always(&[libc::SYS_syslog]),
        Restriction::KernelModules => {
            always(&[libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module])
        }
        Restriction::Namespaces => {
            let any = NAMESPACES.iter().map(|flag| Ok(vec![has(0, *flag)?])).collect::<Result<Vec<_>>>()?;
            vec![(libc::SYS_clone, any.clone()), (libc::SYS_unshare, any), (libc::SYS_setns, Vec::new())]
        }
        Restriction::Realtime => {
            let policies = [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE];
            let any = policies.iter().map(|policy| Ok(vec![is(1, Eq, *policy as u64)?]));
            vec![(libc::SYS_sched_setscheduler, any.collect::<Result<_>>()?)]
        }
        Restriction::Personality => {
            vec![(libc::SYS_personality, vec![vec![is(0, Ne, 0)?, is(0, Ne, QUERY)?]])]
        }
        Restriction::WriteExecute => vec![
            (libc::SYS_mmap, vec![vec![has(2, libc::PROT_WRITE | libc::PROT_EXEC)?]]),
            (libc::SYS_mprotect, vec![vec![has(2, libc::PROT_EXEC)?]]),
            (libc::SYS_pkey_mprotect, vec![vec![has(2, libc::PROT_EXEC)?]]),
            (libc::SYS_shmat, vec![vec![has(2, libc::SHM_EXEC)?]]),
        ],
    })
}

/// Allows only these calls, and sets of calls as systemd defines them.
fn only(words: &[String]) -> Result<BpfProgram> {
    let (mut rules, mut left, mut seen) = (BTreeMap::new(), words.to_vec(), BTreeSet::new());
    while let Some(word) = left.pop() {
        match word.strip_prefix('@') {
            Some(_) if seen.insert(word.clone()) => left.extend(set(&word)?),
            Some(_) => {}
            // Sets contain names of all architectures.
            None => {
                if let Ok(number) = word.parse::<Sysno>() {
                    rules.insert(number.id().into(), Vec::new());
                }
            }
        }
    }
    let native = TargetArch::try_from(std::env::consts::ARCH)?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    Ok(SeccompFilter::new(rules, denied, SeccompAction::Allow, native)?.try_into()?)
}

/// Returns the calls in a set of system calls.
fn set(name: &str) -> Result<Vec<String>> {
    let output = Command::new("systemd-analyze").args(["syscall-filter", name]).output();
    let output = output.context("systemd-analyze, which knows sets of system calls, does not run")?;
    ensure!(output.status.success(), "systemd knows no set of system calls {name}");
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().skip(1).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

fn is(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?)
}

/// Denies calls with an error and allows all others. A call with another architecture's numbers
/// ends the process.
fn filter(denied: Vec<Denied>, error: i32) -> Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for (number, cases) in denied {
        let cases = cases.into_iter().map(SeccompRule::new).collect::<Result<Vec<_>, _>>()?;
        rules.insert(number, cases);
    }
    let native = TargetArch::try_from(std::env::consts::ARCH)?;
    let error = SeccompAction::Errno(error as u32);
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, error, native)?.try_into()?)
}
