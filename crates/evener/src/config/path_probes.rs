//! Checks if the file lets agents answer probes of paths over UDP.

use super::problems::{Problem, Span};
use super::section::Section;
use super::{AgentListen, Config};

#[derive(Debug)]
pub(super) struct ProblemSpans {
    pub(super) dns: Span,
    /// `listen` of `[agent]`, if the file has it.
    pub(super) agent_listen: Option<Span>,
}

/// Reports settings with which an agent would refuse or not receive probes of paths.
pub(super) fn check(root: &Section<'_>, config: &Config, places: ProblemSpans) {
    if !config.dns.probes_paths() {
        return;
    }
    if config.farm.secret_file.is_none() {
        let message = "path probes need `secret_file` in [farm]: agents answer only authenticated probes";
        let help = "run `evener keygen FILE` once, copy FILE to this host and to the servers, and add secret_file = \"FILE\" to [farm]";
        root.problem(Problem::new(places.dns, message, help));
    }
    let is_reached = match config.agent.listen {
        Some(AgentListen::At(address)) => !address.ip().is_loopback(),
        Some(AgentListen::Everywhere { .. }) => true,
        None => false,
    };
    if let Some(span) = places.agent_listen.filter(|_| !is_reached) {
        let message = "agents answer probes of paths at `listen`, where no other host reaches them";
        root.problem(Problem::new(span, message, "write listen = \":9183\""));
    }
}
