//! Current state of the host, for its readiness.

use std::collections::{BTreeMap, BTreeSet};

use evener_dataplane::xdp::pins;
use nix::unistd::geteuid;

use super::Record;
use crate::io::network::{self, Interface};

/// State of a host at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Monotonic time in milliseconds.
    pub(crate) now_ms: u64,
    /// Interfaces, with whether each is up and has a carrier.
    pub(crate) carriers: BTreeMap<u32, bool>,
    /// Interfaces with an attached Evener program.
    pub(crate) attached: BTreeSet<u32>,
}

impl Seen {
    /// Creates the state from the interfaces, and those with attached programs.
    pub(crate) fn of(interfaces: &BTreeMap<u32, Interface>, attached: BTreeSet<u32>) -> Seen {
        let carriers = interfaces.iter().map(|(at, one)| (*at, one.up && one.carrier));
        Seen { now_ms: evener_dataplane::now_ns() / 1_000_000, carriers: carriers.collect(), attached }
    }

    /// Reads the state that a record refers to. The error is a sentence.
    pub(super) async fn now(record: &Record) -> Result<Seen, String> {
        let interfaces =
            network::interfaces().await.map_err(|error| format!("failed to read the interfaces: {error}"))?;
        let attached = match record.is_in_kernel {
            true => {
                pins::attached().map_err(|error| format!("failed to list the attached programs: {error}"))?
            }
            false => BTreeSet::new(),
        };
        if record.is_in_kernel && attached.is_empty() && !geteuid().is_root() {
            return Err("only root may list the attached programs".to_owned());
        }
        Ok(Seen::of(&interfaces, attached))
    }
}
