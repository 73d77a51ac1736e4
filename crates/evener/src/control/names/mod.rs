//! Balanced names within the control loop: executes core's orders, and publishes core's answers for
//! queries.

use std::path::Path;
use std::sync::Arc;

use evener_core::director::{Input, NameFact, NameOrder, Snapshot};
use evener_core::dns::{self, AddressPool, BalancedName, PathMode, PathOrder};
use evener_core::node::secret::Key;
use evener_core::path::seed::Seed;
use evener_dataplane::heap;
use tokio::sync::mpsc;

mod own;
mod rank_files;

use own::{ServerQueries, ServerQuery};
use rank_files::RankFiles;

use super::reading::{DnsFileError, DnsFiles};
use crate::agent::path_probe;
use crate::config::{Config, DnsConfig, NameConfig};
use crate::io::path_probe as probes;
use crate::names::{BoundSockets, DnsServers, NamesError, QueryContext, QueryCounts};
use crate::runtime::secret::SecretFileError;
use crate::runtime::{files, reader};

/// Maximum size of a file of ranks, in bytes.
const FILE_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Sockets(#[from] NamesError),
    #[error(transparent)]
    File(#[from] DnsFileError),
    /// The secret that authenticates probes of paths is missing.
    #[error(transparent)]
    Secret(#[from] SecretFileError),
}

/// Files, keys and sockets of a file's names, before queries are answered.
pub(super) struct OpenedNames {
    dns: DnsConfig,
    sockets: BoundSockets,
    files: DnsFiles,
    path_key: Option<Key>,
}

/// State for answering queries for names.
pub(super) struct NameControl {
    /// Names of the file in force, in its order. A name's number is its index.
    names: Vec<Arc<NameConfig>>,
    nsid: String,
    read: DnsFiles,
    /// Key that authenticates probes of paths.
    path_key: Option<Key>,
    /// Names of a file that isn't in force yet.
    next: Option<OpenedNames>,
    questions: ServerQueries,
    servers: DnsServers,
    answering: Arc<QueryContext>,
    key: Seed,
    facts: mpsc::Sender<Input>,
    files: RankFiles,
}

impl NameControl {
    /// Creates the control without names. `key` is a secret for random draws of answers.
    pub(super) fn new(key: Seed, facts: mpsc::Sender<Input>) -> NameControl {
        let empty = dns::Catalog::new([], [], key, "");
        let answering = Arc::new(QueryContext::new(empty, key, Arc::default()));
        NameControl {
            names: Vec::new(),
            nsid: String::new(),
            read: DnsFiles::default(),
            path_key: None,
            next: None,
            questions: ServerQueries::new(facts.clone()),
            servers: DnsServers::new(Arc::clone(&answering)),
            answering,
            key,
            facts,
            files: RankFiles::default(),
        }
    }

    /// Returns the counters of queries.
    pub(super) fn counts(&self) -> Arc<QueryCounts> {
        Arc::clone(&self.answering.counts)
    }

    /// Opens the sockets and files of a file's names, without an effect on names in force.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn open(&self, config: &Config, files: DnsFiles) -> Result<OpenedNames, OpenError> {
        let path_key = path_probe::key(config)?;
        let sockets = self.servers.open(&config.dns.listen)?;
        Ok(OpenedNames { dns: config.dns.clone(), sockets, files, path_key })
    }

    /// Sets the names to adopt as soon as core adopts them. `None` cancels the adoption.
    pub(super) fn will_follow(&mut self, opened: Option<OpenedNames>) {
        self.next = opened;
    }

    /// Starts to answer queries.
    pub(super) fn begin(&mut self) {
        if let Err(error) = self.servers.begin() {
            tracing::error!("{error}");
        }
    }

    /// Executes an order for names. The snapshot has the names' current state.
    pub(super) fn execute(&mut self, order: NameOrder, snapshot: &Snapshot) {
        match order {
            NameOrder::Reloaded => self.follow(),
            NameOrder::Probe(name, server) => self.questions.enqueue(name, server, ServerQuery::Probe),
            NameOrder::QueryLoad(name, server) => self.questions.enqueue(name, server, ServerQuery::Load),
            NameOrder::ReadRanks(name, number) => self.read_ranks(name, number),
            NameOrder::ProbePath(order) => self.probe_path(order),
            NameOrder::AnswerAll(balanced) => self.answer_all(balanced, snapshot),
            NameOrder::Answer(balanced) => {
                balanced.iter().for_each(|(number, _)| self.write_ranks(*number, snapshot));
                self.answering.names.store(Arc::new(self.answering.names.load().with(balanced)));
            }
        }
    }

    /// Handles the end of a query to a server.
    pub(super) fn answered(&mut self, fact: &Input) {
        if matches!(fact, Input::Name { fact: NameFact::Server(..), .. }) {
            self.questions.ended();
        }
    }

    /// Adopts the file that core has adopted.
    fn follow(&mut self) {
        let Some(OpenedNames { dns, sockets, files, path_key }) = self.next.take() else { return };
        (self.read, self.path_key) = (files, path_key);
        self.answering.limit.store(Arc::new(dns.limit));
        if let Err(error) = self.servers.follow(sockets, &dns.listen) {
            tracing::error!("{error}");
        }
        (self.names, self.nsid) = (dns.names, dns.nsid);
    }

    fn answer_all(&mut self, balanced: Vec<Arc<AddressPool>>, snapshot: &Snapshot) {
        (0..balanced.len()).for_each(|number| self.write_ranks(number, snapshot));
        let zones = self.read.zones.iter().cloned();
        let names = dns::Catalog::new(zones, balanced, self.key, &self.nsid);
        self.answering.names.store(Arc::new(names.with_cookie_secrets(&self.read.cookie_secrets)));
        // Unused memory is returned only if there are names or zones. Other farms are small, and
        // their run-time changes come in quick succession.
        if !self.names.is_empty() || !self.read.zones.is_empty() {
            heap::give_back();
        }
    }

    fn write_ranks(&mut self, number: usize, snapshot: &Snapshot) {
        if let (Some(config), Some(seen)) = (self.names.get(number), snapshot.names.get(number)) {
            self.files.write(config, seen);
        }
    }

    /// Reads ranks on a separate thread, since a file system may hang.
    fn read_ranks(&self, name: Arc<BalancedName>, number: usize) {
        let config = self.names.get(number);
        let Some(path) = config.and_then(|config| config.rank_from.clone()) else { return };
        let facts = self.facts.clone();
        tokio::spawn(async move {
            let what = path.display().to_string();
            let read = reader::within(reader::TIMEOUT, &what, move || text_of(&path)).await;
            let fact = NameFact::Ranks(read.and_then(|text| text));
            // The receiver is gone only when the daemon ends.
            let _ = facts.send(Input::Name { name, fact }).await;
        });
    }

    fn probe_path(&self, order: PathOrder) {
        let (key, facts) = (self.path_key, self.facts.clone());
        tokio::spawn(async move {
            let found = match (order.mode, key) {
                (PathMode::Udp, Some(key)) => probes::by_trains(order.to, &key).await,
                (PathMode::Udp, None) => Err("there is no secret of the farm".to_owned()),
                (PathMode::Paper, _) => probes::by_echoes(order.to.ip()).await,
            };
            let _ = facts.send(Input::Path { address: order.to.ip(), found }).await;
        });
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let bytes = files::bounded(path, FILE_BYTES).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}
