//! Changes at run time: looked at, written down, put in force and answered, in this order. All that
//! wait go together, and share one reading of the farm, one write to disk and one change of the
//! data plane.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use evener_core::director::{Drainable, Input};
use evener_core::farm::plan::ServerName;
use evener_core::pool::OperatorState;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::draining::{PendingDrain, not_drainable};
use super::group_files::GroupFiles;
use super::reading::{LoadedFiles, NamedFiles, ReloadReply};
use super::reload::{AddressCheck, CheckedFile, Origin};
use super::{Daemon, clocks};
use crate::config::{Config, LoadedConfig, Problems};
use crate::events::DaemonEvent;
use crate::runtime::reader;
use crate::state::store::{AuditEntry, Store};
use crate::state::{
    self, Author, Batch, Edit, FarmState, NextState, OperatorStates, OrderError, Outcome, RebasedFile,
    Record, Request, StateOrder,
};

/// Requests that are looked at together.
const TOGETHER_MAX: usize = 64;

/// Where the answer to a request goes.
pub(crate) type Answer = oneshot::Sender<Result<Outcome, OrderError>>;

/// A request that waits.
pub(super) struct PendingRequest {
    request: Request,
    answer: Answer,
    /// The server that it drains, or has take sessions again, as it was before.
    server: Option<Drainable>,
    /// Others were refused together with it, so it goes by itself.
    is_alone: bool,
}

/// A request that is being put in force.
pub(super) struct Committed {
    pending: PendingRequest,
    outcome: Outcome,
}

/// Work that was done on another thread.
pub(super) enum StateWork {
    /// Requests were looked at, and files that they name were read.
    Looked(Box<Batch>, Vec<PendingRequest>, GroupFiles),
    /// Changes were laid over a file that was read.
    Rebased { rebased: Result<Box<RebasedFile>, String>, named: NamedFiles, answer: Option<ReloadReply> },
    /// The record was written, or wasn't.
    Written { file: Option<Box<CheckedFile>>, next: Arc<FarmState>, origin: Origin, result: io::Result<()> },
}

/// The farm's state, and what becomes of it.
pub(super) struct StateControl {
    store: Store,
    /// In force.
    pub(super) state: Arc<FarmState>,
    /// The files that the file in force names.
    named: NamedFiles,
    waiting: Vec<PendingRequest>,
    results: mpsc::Sender<StateWork>,
    pub(super) done: mpsc::Receiver<StateWork>,
    /// Whether work is on its way.
    is_busy: bool,
}

impl StateControl {
    pub(super) fn new(store: Store, state: FarmState, named: NamedFiles) -> StateControl {
        let (results, done) = mpsc::channel(1);
        StateControl {
            store,
            state: Arc::new(state),
            named,
            waiting: Vec::new(),
            results,
            done,
            is_busy: false,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Has work done on another thread.
    fn begin(&mut self, work: impl FnOnce() -> StateWork + Send + 'static) {
        self.is_busy = true;
        let results = self.results.clone();
        spawn_blocking(move || drop(results.blocking_send(work())));
    }
}

impl Daemon {
    /// Takes in a request. A server that is drained is one of the farm, whoever has it.
    pub(super) fn receive_request(&mut self, mut request: Request, answer: Answer) {
        let mut server = None;
        if let StateOrder::ChangeServer { server: meant, fields } = &mut request.order
            && fields.state.is_some()
        {
            let director = &self.executor.director;
            match director.drainable(meant) {
                Ok(found) => {
                    meant.clone_from(&found.name);
                    server = Some(found);
                }
                Err(why) => return drop(answer.send(Err(not_drainable(director, meant, why)))),
            }
        }
        self.state.waiting.push(PendingRequest { request, answer, server, is_alone: false });
    }

    /// Begins with requests that wait.
    pub(super) fn begin_batch(&mut self) {
        let waiting = &mut self.state.waiting;
        let count = match waiting.first() {
            Some(first) if first.is_alone => 1,
            _ => waiting.iter().take_while(|pending| !pending.is_alone).count().min(TOGETHER_MAX),
        };
        let pending: Vec<PendingRequest> = waiting.drain(..count).collect();
        let (state, in_force) = (Arc::clone(&self.state.state), self.state.named.groups.clone());
        self.state.begin(move || {
            let requests: Vec<Request> = pending.iter().map(|pending| pending.request.clone()).collect();
            let files = RefCell::new(in_force);
            let look = |config: &Config| {
                let read = read_group_files(&files.borrow(), config).map_err(OrderError::Invalid)?;
                files.borrow_mut().add(read);
                Ok(())
            };
            let batch = state::batch(&state, &requests, clocks().unix_ms, &look);
            StateWork::Looked(Box::new(batch), pending, files.into_inner())
        });
    }

    /// Begins to lay changes over a file that was read; or drops them.
    pub(super) fn begin_rebase(&mut self, files: LoadedFiles, forget: bool, answer: Option<ReloadReply>) {
        let state = Arc::clone(&self.state.state);
        self.state.begin(move || {
            let LoadedFiles { file, named } = files;
            let mut record = state.record.clone();
            if forget {
                record.forget();
            }
            let rebased = state::rebase(file, record).map(Box::new).map_err(|problems| {
                format!(
                    "the file and the run-time changes don't fit together: take them back by `evener undo`, or drop all by \
                     `evener reload --forget`\n{}",
                    problems.render(false)
                )
            });
            StateWork::Rebased { rebased, named, answer }
        });
    }

    /// Goes on with work that was done on another thread.
    pub(super) async fn continue_work(&mut self, work: StateWork) {
        self.state.is_busy = false;
        match work {
            StateWork::Looked(batch, pending, groups) => self.follow_batch(*batch, pending, groups).await,
            StateWork::Rebased { rebased, named, answer } => match rebased {
                Ok(rebased) => {
                    let RebasedFile { state, config, dropped } = *rebased;
                    let origin = Origin::Reload { answer, dropped };
                    self.check_file(config, named, Arc::new(state), origin).await;
                }
                Err(error) => self.refuse(error, Origin::Reload { answer, dropped: Vec::new() }).await,
            },
            StateWork::Written { file, next, origin, result } => match (result, file) {
                (Ok(()), Some(file)) => self.order(*file, next, origin),
                (Ok(()), None) => self.follow_states(next, origin).await,
                (Err(error), _) => {
                    // The error may have come after the new record had its name.
                    self.write_back().await;
                    let why = format!("run-time changes can't be written: {error}");
                    self.refuse_unwritten(why, origin).await;
                }
            },
        }
    }

    async fn follow_batch(&mut self, batch: Batch, pending: Vec<PendingRequest>, groups: GroupFiles) {
        let mut committed = Vec::new();
        for (pending, outcome) in pending.into_iter().zip(batch.outcomes) {
            match outcome {
                // Undoing shortens the record even where nothing else differs.
                Ok(outcome)
                    if !pending.request.is_dry_run
                        && (!outcome.differences.is_empty() || pending.request.order == StateOrder::Undo) =>
                {
                    committed.push(Committed { pending, outcome });
                }
                Ok(outcome) if pending.request.is_dry_run => drop(pending.answer.send(Ok(outcome))),
                Ok(outcome) => self.answer_committed(Committed { pending, outcome }),
                Err(error) => drop(pending.answer.send(Err(error))),
            }
        }
        let Some(NextState { state, audit, config }) = batch.next else { return };
        let (next, origin) = (Arc::new(state), Origin::Requests { committed, audit });
        match config {
            Some(config) => {
                // Every file was read when the requests were looked at.
                match groups.read_new(&config) {
                    Ok(groups) => {
                        let named = NamedFiles { groups, dns: self.state.named.dns.clone() };
                        self.check_file(config, named, next, origin).await;
                    }
                    Err(error) => self.refuse(error.to_string(), origin).await,
                }
            }
            None => self.write(None, next, origin),
        }
    }

    /// Looks whether anything speaks against a farm, and goes on with it.
    async fn check_file(&mut self, config: Config, named: NamedFiles, next: Arc<FarmState>, origin: Origin) {
        match self.prepare(config, named).await {
            Ok((file, None)) => self.write(Some(file), next, origin),
            Ok((file, Some(probed))) => {
                self.checking = Some(AddressCheck { probed, file, next, origin });
            }
            Err(error) => self.refuse(error, origin).await,
        }
    }

    /// Writes the record of a farm that nothing speaks against, where it is another than before.
    pub(super) fn write(&mut self, file: Option<CheckedFile>, next: Arc<FarmState>, origin: Origin) {
        let (file, before) = (file.map(Box::new), Arc::clone(&self.state.state));
        let store = self.state.store.clone();
        self.state.begin(move || {
            let result = match next.record.generation == before.record.generation {
                true => Ok(()),
                false => store.write(&next.record).map(|()| log(&store, &next, &origin)),
            };
            StateWork::Written { file, next, origin, result }
        });
    }

    /// Puts back the record of the farm in force: what was written is not to be.
    pub(super) async fn write_back(&mut self) {
        let (state, store) = (Arc::clone(&self.state.state), self.state.store.clone());
        let written = spawn_blocking(move || store.write_back(&state.record)).await;
        if let Ok(Err(error)) = written {
            tracing::error!("a refused run-time change can't be taken back on disk: {error}");
        }
    }

    /// Notes that changes which the log has were not put in force.
    pub(super) async fn log_refusal(&self, generation: u64, why: &str) {
        let (store, unix_ms) = (self.state.store.clone(), clocks().unix_ms);
        let author = Author { by: "evener".to_owned(), from: "the engine".to_owned() };
        let message = format!("refused and taken back, all up to generation {generation}: {why}");
        let generation = self.state.state.record.generation;
        let entry = AuditEntry { unix_ms, author, generation, message };
        if let Ok(Err(error)) = spawn_blocking(move || store.log(&[entry])).await {
            tracing::warn!("the audit log can't be written: {error}");
        }
    }

    /// Goes on with a farm that is in force but for what operators say of its servers; answers who
    /// ordered it.
    pub(super) async fn follow_states(&mut self, next: Arc<FarmState>, origin: Origin) {
        let before = std::mem::replace(&mut self.state.state, next);
        let now = Arc::clone(&self.state.state);
        for (server, state) in state_changes(&before.states, &now.states) {
            self.executor.handle_fact(Input::SetOperatorState { server, state });
        }
        self.executor.show_state(Arc::clone(&now));
        let awaited = self.executor.director.awaited();
        match origin {
            Origin::Reload { answer, dropped } => self.reloaded(Ok(dropped), answer).await,
            Origin::Requests { committed, .. } => {
                for committed in committed {
                    let Request { author, .. } = &committed.pending.request;
                    self.executor.bus.publish(DaemonEvent::Changed {
                        by: author.by.clone(),
                        from: author.from.clone(),
                        message: committed.outcome.message.clone(),
                    });
                    // Groups and names don't wait for tables.
                    match awaited.filter(|_| committed.pending.server.is_some()) {
                        Some(number) => self.draining.push(PendingDrain { number, committed }),
                        None => self.answer_committed(committed),
                    }
                }
            }
        }
    }

    /// Answers a request that is in force.
    pub(super) fn answer_committed(&self, committed: Committed) {
        let Committed { pending, mut outcome } = committed;
        if let Some(server) = &pending.server
            && let StateOrder::ChangeServer { fields, .. } = &pending.request.order
            && fields.keys.is_empty()
        {
            let wanted = self.state.state.states.servers.get(&server.name).copied().unwrap_or_default();
            outcome.message = self.drained(server, wanted, !outcome.differences.is_empty());
        }
        // The client may have gone; that is no matter.
        let _ = pending.answer.send(Ok(outcome));
    }

    /// Answers that a farm is not put in force. Requests that were refused together are tried one
    /// by one.
    pub(super) fn refuse_requests(&mut self, committed: Vec<Committed>, error: &OrderError) {
        let is_one = committed.len() == 1;
        let mut again = Vec::new();
        for Committed { mut pending, .. } in committed {
            if is_one {
                let _ = pending.answer.send(Err(error.clone()));
            } else {
                pending.is_alone = true;
                again.push(pending);
            }
        }
        self.state.waiting.splice(..0, again);
    }

    /// Keeps the files that the file in force names, for farms that change beside it.
    pub(super) fn keep_named(&mut self, named: NamedFiles) {
        self.state.named = named;
    }
}

impl Committed {
    /// Answers that the engine has refused it.
    pub(super) fn refuse(self, error: OrderError) {
        let _ = self.pending.answer.send(Err(error));
    }
}

/// The servers of which operators say something else than before, and what.
fn state_changes(before: &OperatorStates, now: &OperatorStates) -> BTreeMap<ServerName, OperatorState> {
    let state = |states: &OperatorStates, name| states.servers.get(name).copied().unwrap_or_default();
    let names = before.servers.keys().chain(now.servers.keys());
    let changed = names.filter(|name| state(before, name) != state(now, name));
    changed.map(|name| (name.clone(), state(now, name))).collect()
}

/// The files of a changed farm's groups: those in force, and those that the change names. They are
/// read on a thread of their own, since a file system may not answer.
fn read_group_files(in_force: &GroupFiles, config: &Config) -> Result<GroupFiles, String> {
    if in_force.has_all(config) {
        return in_force.read_new(config).map_err(|error| error.to_string());
    }
    let (known, config) = (in_force.clone(), config.clone());
    let read = move || known.read_new(&config).map_err(|error| error.to_string());
    reader::blocking_within(reader::TIMEOUT, "a file of the change", read)?
}

/// Notes what was done, for whoever asks later who did it.
fn log(store: &Store, next: &FarmState, origin: &Origin) {
    let dropped;
    let entries = match origin {
        Origin::Requests { audit, .. } => audit,
        Origin::Reload { dropped: edits, .. } => {
            dropped = vec![drop_entry(edits, "a reload", next.record.generation)];
            &dropped
        }
    };
    if let Err(error) = store.log(entries) {
        tracing::warn!("the audit log can't be written: {error}");
    }
}

/// A note that edits were dropped, by a reload or a start; without any, all were.
fn drop_entry(edits: &[Edit], by: &str, generation: u64) -> AuditEntry {
    let message = match edits.is_empty() {
        true => format!("all run-time changes are dropped by {by}"),
        false => format!("{by} drops run-time changes in {}", state::places(edits)),
    };
    let author = Author { by: "evener".to_owned(), from: by.to_owned() };
    AuditEntry { unix_ms: clocks().unix_ms, author, generation, message }
}

/// Has changes dropped for good that the file that a daemon starts with has overruled.
pub(super) fn keep_dropped(store: &Store, rebased: &RebasedFile) -> io::Result<()> {
    let record = &rebased.state.record;
    store.write(record)?;
    store.log(&[drop_entry(&rebased.dropped, "a start", record.generation)])
}

/// The changes of before over the file that the daemon starts with.
pub(super) fn restore(store: &Store, file: LoadedConfig) -> Result<(RebasedFile, Option<String>), Problems> {
    let (record, mut trouble) = match store.read() {
        Ok(record) => (record, None),
        Err(error) => (Record::default(), Some(error.to_string())),
    };
    let generation = record.generation;
    if let Ok(rebased) = state::rebase(file.clone(), record) {
        if let Some(trouble) = &mut trouble {
            set_aside(store, trouble);
        }
        return Ok((rebased, trouble));
    }
    let mut why = "the run-time changes of before don't fit to the file and are not in force".to_owned();
    set_aside(store, &mut why);
    // Tags of the farms of before name no other farm.
    let empty = Record { generation: generation + 1, ..Record::default() };
    Ok((state::rebase(file, empty)?, Some(why)))
}

fn set_aside(store: &Store, why: &mut String) {
    match store.set_aside() {
        Ok(path) => why.push_str(&format!("; they are kept in {}", path.display())),
        Err(error) => why.push_str(&format!("; they can't be put aside: {error}")),
    }
}
