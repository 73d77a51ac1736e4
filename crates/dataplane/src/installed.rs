//! Parts of the engine in the kernel. Other processes can remove each part: a firewall's reload
//! flushes all of nftables, a tool detaches a program, an administrator clears the BPF file system.
//! So an engine reads the kernel's state and does not rely on its own record.

use std::fmt;
use std::path::PathBuf;

use crate::EngineError;
use crate::link::name_of;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// BPF program on the interface with this index.
    Program(u32),
    /// Pins in this folder, from which a later daemon adopts the engine.
    Pins(PathBuf),
    /// Rules that drop the engine's packets before the host's own stack receives them.
    Guard,
    /// Kernel setting, by its path below /proc/sys.
    Setting(String),
}

impl Part {
    /// Kind of the part, as views name it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Part::Program(_) => "program",
            Part::Pins(_) => "pins",
            Part::Guard => "guard",
            Part::Setting(_) => "setting",
        }
    }

    /// Location of the part, for messages.
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

/// Part whose state in the kernel differed from the state that the engine had set.
#[derive(Debug)]
pub struct MissingPart {
    pub part: Part,
    /// `Ok` if the engine has restored the part.
    pub restored: Result<(), EngineError>,
}
