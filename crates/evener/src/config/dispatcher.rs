//! `[farm] dispatcher`: the node that selects servers for the other nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use toml::Spanned;

use super::keys::tables::farm;
use super::problems::Problem;
use super::section::Section;
use super::service::ServiceEntry;
use super::values;

/// Reads the setting as written. It can be resolved once all services are read.
pub(super) fn read(section: &Section<'_>) -> Option<Spanned<String>> {
    section.get(&farm::DISPATCHER, values::text)
}

/// Returns the dispatcher's address: as written, or the address of the server with this name.
pub(super) fn find(
    root: &Section<'_>,
    written: Option<Spanned<String>>,
    placed: &[ServiceEntry],
) -> Option<IpAddr> {
    let written = written?;
    let text = written.get_ref();
    let problem = |message: String, help: &str| root.problem(Problem::new(written.span(), message, help));
    if !placed.iter().any(|placed| placed.service.method.hands_over()) {
        let message = "a dispatcher decides for services of method \"handoff\", and there is none".to_owned();
        problem(message, "remove it, or add method = \"handoff\" to a service");
        return None;
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    let servers = placed.iter().flat_map(|placed| &placed.service.servers);
    let named: BTreeSet<IpAddr> =
        servers.filter(|server| server.name == *text).map(|server| server.address).collect();
    match (named.first(), named.len()) {
        (Some(address), 1) => return Some(*address),
        (None, _) => problem(
            format!("no server of the file is called {text:?}, as the dispatcher is"),
            "write a server's name, or the address of the host that runs `evener run` as the dispatcher",
        ),
        _ => problem(
            format!("servers with several addresses are called {text:?}"),
            "write the dispatcher's address",
        ),
    }
    None
}
