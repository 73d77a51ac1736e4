//! This host as a server, and its reader of punted connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use evener_dataplane::server::ProgramCounters;

use crate::handoff::Outcomes;
use crate::handoff::lccp::LccpNode;

/// State of this host as a server, for concurrent readers.
#[derive(Clone)]
pub(crate) struct LocalServerState {
    /// Outcomes of connections that were read here.
    pub(crate) outcomes: Option<Arc<Outcomes>>,
    /// LCCP node of this host.
    pub(crate) lccp_node: Option<LccpNode>,
    /// Counters of the agent's programs.
    pub(crate) tally: Option<Arc<ProgramCounters>>,
}

impl LocalServerState {
    /// Returns the programs' counters, by reason.
    pub(crate) fn tunnels(&self) -> BTreeMap<String, u64> {
        let counted = self.tally.as_ref().map(|tally| tally.read()).transpose().unwrap_or_else(|error| {
            tracing::debug!(%error, "failed to read the counters");
            None
        });
        counted.into_iter().flatten().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
    }
}
