//! This host as a server, and its reader for the data plane.

use std::collections::BTreeMap;
use std::sync::Arc;

use evener_dataplane::server::ProgramCounters;

use crate::handoff::Outcomes;
use crate::handoff::lccp::LccpNode;

/// This host's state as a server, for any number of readers.
#[derive(Clone)]
pub(crate) struct LocalServerState {
    /// The outcomes of connections that were read here.
    pub(crate) outcomes: Option<Arc<Outcomes>>,
    /// The LCCP node here.
    pub(crate) speaker: Option<LccpNode>,
    /// The counts of its programs.
    pub(crate) tally: Option<Arc<ProgramCounters>>,
}

impl LocalServerState {
    /// The programs' counts, by the names of reasons.
    pub(crate) fn tunnels(&self) -> BTreeMap<String, u64> {
        let counted = self.tally.as_ref().map(|tally| tally.read()).transpose().unwrap_or_else(|error| {
            tracing::debug!(%error, "no counters");
            None
        });
        counted.into_iter().flatten().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
    }
}
