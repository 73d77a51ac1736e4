//! What this host is as a server, and where it reads for the data plane.

use std::collections::BTreeMap;
use std::sync::Arc;

use evener_dataplane::server::ProgramCounters;

use crate::handoff::Outcomes;
use crate::handoff::lccp::LccpNode;

/// What there is to see of this host as a server, for as many as look.
#[derive(Clone)]
pub(crate) struct LocalServerState {
    /// What became of connections that were read here.
    pub(crate) outcomes: Option<Arc<Outcomes>>,
    /// Who speaks with other nodes here.
    pub(crate) speaker: Option<LccpNode>,
    /// What its programs count.
    pub(crate) tally: Option<Arc<ProgramCounters>>,
}

impl LocalServerState {
    /// What the programs counted, by the names of reasons.
    pub(crate) fn tunnels(&self) -> BTreeMap<String, u64> {
        let counted = self.tally.as_ref().map(|tally| tally.read()).transpose().unwrap_or_else(|error| {
            tracing::debug!(%error, "no counters");
            None
        });
        counted.into_iter().flatten().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
    }
}
