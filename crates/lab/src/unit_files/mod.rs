//! Runs Evener with the restrictions of its unit files: capabilities, system calls, files and
//! limits as a service manager would set them. The unit files are parsed, and an unknown key is an
//! error.
//!
//! There is no service manager. `evener-lab unit` restricts itself and executes the program.

mod calls;
mod confine;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{RLIM_INFINITY, Resource};

use crate::evener;
use crate::harness::cleanup;

pub use confine::exec_restricted;

/// Paths of Evener's program and file after installation.
const PROGRAM: &str = "/usr/bin/evener";
const CONFIG: &str = "/etc/evener/evener.toml";
/// Default limit of a service manager for units without one (systemd-system.conf(5),
/// `DefaultLimitNOFILE`).
const DESCRIPTORS: Limit = Limit { resource: Resource::RLIMIT_NOFILE, soft: 1_024, hard: 524_288 };

/// Permissions of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    command: Vec<String>,
    /// Names as in setpriv(1); `None` for all.
    capabilities: Option<Vec<String>>,
    limits: Vec<Limit>,
    /// Address families of sockets; `None` for any.
    families: Option<Vec<i32>>,
    /// Folders to create, below `/run`, and for logs and state.
    runtime: Vec<PathBuf>,
    kept: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    strict: bool,
    no_home: bool,
    private_tmp: bool,
    restrictions: Vec<Restriction>,
    /// Allowed system calls, and sets of them with an @; `None` for any.
    allowed: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    resource: Resource,
    soft: u64,
    hard: u64,
}

/// Permission that a flag of the file denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restriction {
    NewPrivileges,
    Clock,
    Hostname,
    KernelLogs,
    KernelModules,
    Namespaces,
    Realtime,
    Personality,
    WriteExecute,
    ForeignCalls,
    Devices,
    ControlGroups,
    SetUserBits,
}

/// Flags, which are `yes` or missing.
const FLAGS: [(&str, Restriction); 12] = [
    ("NoNewPrivileges", Restriction::NewPrivileges),
    ("ProtectClock", Restriction::Clock),
    ("ProtectHostname", Restriction::Hostname),
    ("ProtectKernelLogs", Restriction::KernelLogs),
    ("ProtectKernelModules", Restriction::KernelModules),
    ("RestrictNamespaces", Restriction::Namespaces),
    ("RestrictRealtime", Restriction::Realtime),
    ("LockPersonality", Restriction::Personality),
    ("MemoryDenyWriteExecute", Restriction::WriteExecute),
    ("PrivateDevices", Restriction::Devices),
    ("ProtectControlGroups", Restriction::ControlGroups),
    ("RestrictSUIDSGID", Restriction::SetUserBits),
];
/// Keys that don't affect permissions.
const OF_NO_MATTER: [&str; 22] = [
    "StartLimitIntervalSec",
    "WatchdogSec",
    "Description",
    "Documentation",
    "Wants",
    "After",
    "Before",
    "WantedBy",
    "Type",
    "ExecReload",
    "ExecStop",
    "Restart",
    "RestartSec",
    "RestartPreventExitStatus",
    "TimeoutStartSec",
    "TimeoutStopSec",
    "RuntimeDirectoryPreserve",
    "LogsDirectoryMode",
    "StateDirectoryMode",
    "SyslogIdentifier",
    "SyslogLevelPrefix",
    "StandardError",
];

impl Unit {
    /// Reads a file of the `packaging` folder, such as `evener.service`.
    pub fn shipped(name: &str) -> Result<Unit> {
        Unit::read(&shipped(name))
    }

    pub fn read(path: &Path) -> Result<Unit> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("Reading {} failed", path.display()))?;
        text.parse().with_context(|| format!("{} can't be carried out", path.display()))
    }

    /// Returns the unit's command, with another program and file instead of the installed ones.
    fn command(&self, program: &str, config: &str) -> Vec<String> {
        let other = |word: &String| match word.as_str() {
            PROGRAM => program.to_owned(),
            CONFIG => config.to_owned(),
            _ => word.clone(),
        };
        self.command.iter().map(other).collect()
    }

    fn say(&mut self, key: &str, value: &str) -> Result<()> {
        let words = || value.split_whitespace();
        let below = |folder: &str| words().map(|name| Path::new(folder).join(name)).collect::<Vec<_>>();
        if let Some((_, restriction)) = FLAGS.iter().find(|(flag, _)| *flag == key) {
            if value != "yes" {
                bail!("{key} is known here as `yes` only");
            }
            self.restrictions.push(*restriction);
            return Ok(());
        }
        match (key, value) {
            ("ExecStart", _) => self.command = words().map(str::to_owned).collect(),
            ("CapabilityBoundingSet", _) => {
                let name = |word: &str| Some(word.strip_prefix("CAP_")?.to_ascii_lowercase());
                let names: Option<Vec<_>> = words().map(name).collect();
                self.capabilities = Some(names.context("a capability has another name than CAP_...")?);
            }
            ("RestrictAddressFamilies", _) => {
                self.families = Some(words().map(calls::family).collect::<Result<_>>()?);
            }
            ("SystemCallFilter", _) if !value.starts_with('~') => {
                self.allowed.get_or_insert_default().extend(words().map(str::to_owned));
            }
            // Denied calls return an error; by default they would end the process.
            ("SystemCallErrorNumber", "EPERM") => {}
            // A member of the group root sees all processes nevertheless (proc_pid(5), `hidepid`).
            ("ProtectProc", "invisible") => {}
            ("SystemCallArchitectures", "native") => self.restrictions.push(Restriction::ForeignCalls),
            ("ProtectSystem", "strict") => self.strict = true,
            ("ProtectHome", "yes") => self.no_home = true,
            ("PrivateTmp", "yes") => self.private_tmp = true,
            ("ReadWritePaths", _) => {
                self.writable.extend(words().map(|path| path.trim_start_matches('-').into()));
            }
            ("RuntimeDirectory", _) => self.runtime.extend(below("/run")),
            ("LogsDirectory", _) => self.kept.extend(below("/var/log")),
            ("StateDirectory", _) => self.kept.extend(below("/var/lib")),
            ("LimitNOFILE", _) => self.limits.push(Limit::of(Resource::RLIMIT_NOFILE, value)?),
            ("LimitMEMLOCK", _) => self.limits.push(Limit::of(Resource::RLIMIT_MEMLOCK, value)?),
            _ if OF_NO_MATTER.contains(&key) => {}
            _ => bail!("nothing is known here of {key}={value}"),
        }
        Ok(())
    }

    fn denies(&self, restriction: Restriction) -> bool {
        self.restrictions.contains(&restriction)
    }
}

impl FromStr for Unit {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Unit> {
        let mut unit = Unit::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', ';', '[']) {
                continue;
            }
            let (key, value) = line.split_once('=').with_context(|| format!("what is {line:?}?"))?;
            unit.say(key.trim(), value.trim())?;
        }
        if unit.command.is_empty() {
            bail!("there is no ExecStart");
        }
        if !unit.limits.iter().any(|limit| limit.resource == DESCRIPTORS.resource) {
            unit.limits.push(DESCRIPTORS);
        }
        Ok(unit)
    }
}

impl Limit {
    /// Parses `infinity`, a number, or two of them with a colon.
    fn of(resource: Resource, value: &str) -> Result<Limit> {
        let number = |text: &str| match text {
            "infinity" => Ok(RLIM_INFINITY),
            text => text.parse().with_context(|| format!("{text:?} is no limit")),
        };
        let (soft, hard) = value.split_once(':').unwrap_or((value, value));
        Ok(Limit { resource, soft: number(soft)?, hard: number(hard)? })
    }
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

/// Returns the words that run the command of a shipped unit with its restrictions, with another
/// configuration.
pub(crate) fn words(name: &str, program: &str, config: &Path) -> Result<Vec<String>> {
    words_for(name, &Unit::shipped(name)?.command(program, &config.to_string_lossy()))
}

/// Returns the words that run another command with the restrictions of a shipped unit.
pub fn words_for(name: &str, command: &[String]) -> Result<Vec<String>> {
    let program = command.first().map(Path::new).and_then(Path::parent);
    let files = cleanup::directory();
    let shown = program.into_iter().chain([files.as_path()]).filter(|path| path.is_absolute());
    let mut words = vec![evener::beside("evener-lab")?.display().to_string(), "unit".to_owned()];
    words.extend(shown.flat_map(|path| ["--show".to_owned(), path.display().to_string()]));
    words.extend([shipped(name).display().to_string(), "--".to_owned()]);
    words.extend(command.iter().cloned());
    Ok(words)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_files_can_be_carried_out() {
        for name in ["evener.service", "evener-agent.service", "evener-announce.service"] {
            let unit = Unit::shipped(name).unwrap();
            let command = unit.command("/opt/evener", "/tmp/x.toml");
            assert_eq!(command[0], "/opt/evener", "{name}");
            let has_file = command.windows(2).any(|words| words == ["--config", "/tmp/x.toml"]);
            assert_eq!(has_file, name != "evener-announce.service", "{command:?}");
            assert!(unit.capabilities.as_ref().unwrap().contains(&"net_admin".to_owned()));
            assert!(unit.strict && unit.no_home && unit.private_tmp && unit.families.is_some());
            assert!(unit.denies(Restriction::NewPrivileges), "{name}");
        }
    }

    #[test]
    fn unknown_unit_directive_is_an_error() {
        let parsed = |line: &str| format!("[Service]\nExecStart=/usr/bin/evener\n{line}\n").parse::<Unit>();
        for line in [
            "ProtectEverything=yes",
            "NoNewPrivileges=no",
            "ProtectHome=read-only",
            "ProtectSystem=full",
            "SystemCallFilter=~@system-service",
            "SystemCallErrorNumber=EACCES",
            "RestrictAddressFamilies=AF_PHONET",
            "RestrictAddressFamilies=~AF_INET",
            "CapabilityBoundingSet=~CAP_SYS_ADMIN",
            "LimitNOFILE=many",
            "User=www-data",
            "rubbish",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert!("[Service]\n".parse::<Unit>().is_err(), "no command");
        let limits = |line: &str| parsed(line).unwrap().limits;
        assert_eq!(limits("# nothing"), [DESCRIPTORS]);
        let both = Limit { resource: Resource::RLIMIT_NOFILE, soft: 100, hard: RLIM_INFINITY };
        assert_eq!(limits("LimitNOFILE=100:infinity"), [both]);
        assert_eq!(limits("LimitNOFILE=100"), [Limit { hard: 100, ..both }]);
    }
}
