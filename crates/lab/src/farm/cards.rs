//! Network cards of the machine as links of a farm, for guests with cards of several drivers.

use std::fs;

use anyhow::Result;

use super::{Builder, Farm};
use crate::harness::wait;
use crate::network::host::{Host, Interface};
use crate::network::netns::ip_batch;

/// First bytes of the MAC address of the card at the switch's end; see [`Builder::cards`].
const SWITCH_END: &str = "06:00:";

impl Builder {
    /// Connects the directors to the switch by cards of the machine instead of veth pairs. Each
    /// interface uses the card with the MAC address of [`Interface::mac`]. The switch's port uses
    /// the card whose address starts with 06 instead of 02. A cable outside of the machine connects
    /// both. Hosts leave checksums and segmentation to the cards.
    pub fn cards(self) -> Self {
        Builder { cards: true, ..self.offload_all() }
    }
}

impl Farm {
    /// Moves the two cards of an interface into the namespaces of the ends of its link.
    pub(super) fn plug_cards(&self, host: &Host, interface: &Interface) -> Result<()> {
        let ends = [
            (interface.mac.clone(), host.netns.name(), &interface.name),
            (interface.mac.replacen("02:00:", SWITCH_END, 1), self.switch.name(), &interface.port),
        ];
        let mut lines = Vec::new();
        for (mac, netns, name) in ends {
            // The cards of an earlier farm return when the kernel has removed its namespaces.
            wait::until(&format!("there is a card {mac}"), || Ok(card(&mac)?.is_some()))?;
            let Some(card) = card(&mac)? else { continue };
            lines.push(format!("link set {card} down"));
            lines.push(format!("link set {card} netns {netns} name {name}"));
        }
        ip_batch(&[], &lines)
    }
}

/// Returns the name of this namespace's interface with a MAC address.
fn card(mac: &str) -> Result<Option<String>> {
    for entry in fs::read_dir("/sys/class/net")?.flatten() {
        let address = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        if address.trim() == mac {
            return Ok(entry.file_name().into_string().ok());
        }
    }
    Ok(None)
}
