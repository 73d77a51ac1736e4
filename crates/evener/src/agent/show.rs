//! `evener agent --status`: shows an agent's changes of this host, and its programs' counters.

use std::collections::BTreeMap;
use std::io::{self, Write};

use evener_dataplane::server;
use nix::net::if_::if_indextoname;
use serde::Serialize;

use super::member::{self, MembershipView};
use super::place::dotted;
use super::state::{self, AppliedState};
use crate::runtime::Exit;
use crate::runtime::folders;
use crate::runtime::lock::Lock;

#[derive(Debug, Serialize)]
struct AgentView {
    /// True if the agent runs.
    running: bool,
    /// Service addresses, as `ADDRESS on INTERFACE`.
    addresses: Vec<String>,
    /// Changed kernel settings, with their original values.
    settings: BTreeMap<String, u32>,
    /// Hooks of decapsulation (`native`, `tc`, `generic`) and of clamping (`egress`), by interface.
    programs: Vec<AttachedProgram>,
    /// Server groups that this host joins.
    groups: Vec<MembershipView>,
    /// Number of packets, by reason.
    packets: BTreeMap<&'static str, u64>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct AttachedProgram {
    interface: String,
    hook: &'static str,
}

pub(super) fn run(json: bool) -> Exit {
    let shown = view().and_then(|view| {
        let text = if json { serde_json::to_string_pretty(&view)? } else { render(&view) };
        writeln!(io::stdout(), "{text}")
    });
    match shown {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!("evener: what the agent has done can't be shown: {error}");
            Exit::Failed
        }
    }
}

fn view() -> io::Result<AgentView> {
    let directory = folders::directory()?;
    let AppliedState { addresses, settings, .. } = state::read(&directory)?.unwrap_or_default();
    let pins = server::existing_directory();
    let mut programs: Vec<AttachedProgram> = pins
        .iter()
        .flat_map(|pins| server::attached(pins))
        .map(|(ifindex, hook)| AttachedProgram {
            interface: if_indextoname(ifindex)
                .map_or_else(|_| ifindex.to_string(), |name| name.to_string_lossy().into_owned()),
            hook: hook.name(),
        })
        .collect();
    programs.sort();
    let running = Lock::is_held(&folders::agent_lock_path(&directory));
    let counted = pins.as_ref().and_then(|pins| server::counters(pins)).unwrap_or_default();
    Ok(AgentView {
        running,
        addresses: addresses
            .iter()
            .map(|placed| format!("{} on {}", placed.address, placed.interface))
            .collect(),
        settings: settings.iter().map(|(path, changed)| (dotted(path), changed.was)).collect(),
        programs,
        groups: if running { member::read_shown(&directory) } else { Vec::new() },
        packets: counted.into_iter().map(|(reason, count)| (reason.name(), count)).collect(),
    })
}

fn render(view: &AgentView) -> String {
    let mut lines = vec![format!("agent      {}", if view.running { "runs" } else { "does not run" })];
    lines.extend(view.addresses.iter().map(|placed| format!("address    {placed}")));
    lines.extend(view.settings.iter().map(|(name, was)| format!("setting    {name}, which was {was}")));
    let programs = view.programs.iter();
    lines.extend(programs.map(|program| format!("program    {} on {}", program.hook, program.interface)));
    let groups = view.groups.iter();
    lines.extend(groups.map(|one| format!("group      {}: {}", one.group, one.state)));
    let counted = view.packets.iter().filter(|(_, count)| **count > 0);
    lines.extend(counted.map(|(reason, count)| format!("packets    {count} {reason}")));
    lines.join("\n")
}
