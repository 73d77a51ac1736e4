//! The engine's parts in the kernel, one by one. Others can take each away, by intent or not: a
//! firewall's reload flushes all of nftables, a tool detaches a program, somebody clears the BPF
//! file system. So an engine reads what the kernel holds, and never believes what it once set up.

use std::fmt;
use std::path::PathBuf;

use crate::EngineError;
use crate::link::name_of;

/// A part of what is installed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The program on the interface of this number.
    Program(u32),
    /// The pins in this folder, with which a later daemon carries on.
    Pins(PathBuf),
    /// The rules that keep the host's stack from what the engine handles.
    Guard,
    /// A kernel setting, by its path below /proc/sys.
    Setting(String),
}

impl Part {
    /// Its kind, as views name it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Part::Program(_) => "program",
            Part::Pins(_) => "pins",
            Part::Guard => "guard",
            Part::Setting(_) => "setting",
        }
    }

    /// Where it is.
    pub fn place(&self) -> String {
        match self {
            Part::Program(ifindex) => name_of(*ifindex),
            Part::Pins(dir) => dir.display().to_string(),
            Part::Guard => "table netdev evener".to_owned(),
            Part::Setting(path) => path.clone(),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        match self {
            Part::Program(_) => write!(f, "the program on {place}"),
            Part::Pins(_) => write!(f, "what is pinned in {place}"),
            Part::Guard => write!(f, "nftables' {place}"),
            Part::Setting(_) => write!(f, "the setting {place}"),
        }
    }
}

/// A part that was no longer as the engine had left it.
#[derive(Debug)]
pub struct MissingPart {
    /// Which.
    pub part: Part,
    /// Whether it is there again, or why not.
    pub restored: Result<(), EngineError>,
}
