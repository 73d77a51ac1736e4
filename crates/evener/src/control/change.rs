//! Steps of a change: a reload of the file, or requests to change the farm at run time. One change
//! is under way at a time. All other changes wait in one queue, in the order of their arrival.
//! Consecutive requests form a batch and go through all steps together.
//!
//! | step       | work                                   | may fail because of    | undone then |
//! |------------|----------------------------------------|------------------------|-------------|
//! | queued     | a file is read on a thread             | an unreadable file     |             |
//! | validating | edits are made and checked on a thread | any rule of the file   |             |
//! | prepared   | sockets and interfaces are opened      | this host, its network | 1           |
//! | probing    | new addresses are probed for 300 ms    | another owner answers  | 1           |
//! | writing    | the record, then the audit log         | a full disk            | 1, 2        |
//! | applying   | tables are planned and applied         | the plan, the engine   | 1, 2        |
//! | in force   | the daemon adopts and publishes it     |                        |             |
//! | answered   | drains wait for tables without them    | the engine             | 3           |
//!
//! 1: the host is set up for the farm in force again. 2: the record of that farm is restored. 3:
//! the drain stays recorded, and is retried.
//!
//! If the daemon is killed before the new record replaces the old record, the next daemon starts
//! with the old farm. If the daemon is killed later, the next daemon starts with the new farm.
//! Requests are answered only after the record is on disk. The first tables of a daemon replace the
//! tables of its predecessor.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::iter::once;
use std::sync::Arc;
use std::time::SystemTime;

use evener_core::director::{Drainable, Input, NotDrainable};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::sleep_until;

use super::changing::{ChangeResult, ExecuteError};
use super::conflicts::ProbedAddresses;
use super::draining::{drained, not_drainable};
use super::group_files::GroupFiles;
use super::prepare::PreparedFarm;
use super::reading::{FileRead, FileReader, LoadedFiles, NamedFiles, ReloadReply};
use super::reload_reply::reply_to_reload;
use super::{Daemon, clocks};
use crate::board::LoadedFile;
use crate::board::request::ChangeAnswer;
use crate::config::Config;
use crate::events::DaemonEvent;
use crate::io::neighbours::ReceivedFrame;
use crate::redirect::GroupSockets;
use crate::runtime::program;
use crate::state::store::{AuditEntry, Store};
use crate::state::{
    self, Author, Batch, Edit, FarmState, NextState, OrderError, Outcome, RebasedFile, Request, StateOrder,
};

/// Maximum number of requests in a batch.
const TOGETHER_MAX: usize = 64;

/// The farm in force, the change that is under way, and the queued changes.
pub(super) struct ChangeControl {
    pub(super) store: Store,
    /// The state in force, with the files that it names.
    pub(super) state: Arc<FarmState>,
    named: NamedFiles,
    reader: FileReader,
    queue: VecDeque<Queued>,
    step: ChangeStep,
    /// Requests in force whose tables are not applied yet, with the number of the order that
    /// applies them.
    unanswered: Vec<(u64, Committed)>,
}

/// A change in the queue.
enum Queued {
    File(Box<FileRead>),
    Request(Box<PendingRequest>),
}

/// A request that is not answered yet.
pub(super) struct PendingRequest {
    request: Request,
    answer: ChangeAnswer,
    /// Server whose operator state the request changes, as it was before the request.
    server: Option<Drainable>,
    /// True if the request forms a batch of its own, because its earlier batch was refused.
    is_alone: bool,
}

/// A request whose change is being put in force.
struct Committed {
    pending: PendingRequest,
    outcome: Outcome,
}

/// Step of the change under way.
#[derive(Default)]
enum ChangeStep {
    #[default]
    Idle,
    Validating(JoinHandle<Validated>),
    Probing(ProbedAddresses, Box<PreparedFarm>, FarmChange),
    Writing(JoinHandle<Written>),
    /// The engine applies the order with this number.
    Applying(u64, Box<AppliedFile>, FarmChange),
}

/// Result of the validation.
pub(super) enum Validated {
    Requests(Box<Batch>, Vec<PendingRequest>, GroupFiles),
    File(Result<Box<RebasedFile>, String>, NamedFiles, Option<ReloadReply>),
}

/// Result of writing the record, with the farm to apply. Without a farm, only operator states
/// change.
type Written = (io::Result<()>, Option<Box<PreparedFarm>>, FarmChange);

/// A new state of the farm that is to be put in force.
pub(super) struct FarmChange {
    next: Arc<FarmState>,
    origin: Origin,
}

/// Callers of a change.
enum Origin {
    /// A reload, with its caller if there is one, and the run-time changes that it drops.
    Reload {
        answer: Option<ReloadReply>,
        dropped: Vec<Edit>,
    },
    Requests {
        committed: Vec<Committed>,
        audit: Vec<AuditEntry>,
    },
}

/// Parts of a file that the daemon adopts once the farm is in force.
struct AppliedFile {
    config: Config,
    named: NamedFiles,
    opened: Option<GroupSockets>,
}

/// Event that a change waits for.
pub(super) enum ChangeInput {
    Read(Box<FileRead>),
    /// The first change in the queue can start.
    Turn,
    Validated(Validated),
    /// No other host has answered for a probed address in time.
    Probed,
    Written(Written),
    /// A thread has panicked.
    Lost(JoinError),
}

impl ChangeControl {
    pub(super) fn new(store: Store, state: Arc<FarmState>, named: NamedFiles) -> ChangeControl {
        ChangeControl {
            store,
            state,
            named,
            reader: FileReader::new(),
            queue: VecDeque::new(),
            step: ChangeStep::Idle,
            unanswered: Vec::new(),
        }
    }

    /// True if the engine is applying a farm.
    pub(super) fn is_applying(&self) -> bool {
        matches!(self.step, ChangeStep::Applying(..))
    }

    /// Returns the next event. Cancel safe: no event is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> ChangeInput {
        let ChangeControl { reader, queue, step, .. } = self;
        let step = async {
            match step {
                ChangeStep::Idle if !queue.is_empty() => ChangeInput::Turn,
                ChangeStep::Idle | ChangeStep::Applying(..) => pending().await,
                ChangeStep::Validating(work) => {
                    work.await.map_or_else(ChangeInput::Lost, ChangeInput::Validated)
                }
                ChangeStep::Probing(probed, ..) => {
                    sleep_until(probed.until).await;
                    ChangeInput::Probed
                }
                ChangeStep::Writing(work) => work.await.map_or_else(ChangeInput::Lost, ChangeInput::Written),
            }
        };
        tokio::select! {
            Some(read) = reader.done.recv() => ChangeInput::Read(Box::new(read)),
            input = step => input,
        }
    }

    /// Returns the batch that starts with this request.
    fn together(&mut self, first: PendingRequest) -> Vec<PendingRequest> {
        let is_alone = first.is_alone;
        let joins =
            |queued: &&Queued| matches!(queued, Queued::Request(pending) if !pending.is_alone && !is_alone);
        let count = self.queue.iter().take_while(joins).take(TOGETHER_MAX - 1).count();
        let others = self.queue.drain(..count).filter_map(|queued| match queued {
            Queued::Request(pending) => Some(*pending),
            Queued::File(_) => None,
        });
        once(first).chain(others).collect()
    }
}

impl Daemon {
    /// Starts to read the file, for a caller or for none. The reload is queued once the file is
    /// read.
    pub(super) fn begin_reload(&mut self, forget: bool, answer: Option<ReloadReply>) {
        program::notify(sd_notify::NotifyState::Reloading);
        self.changes.reader.begin(&self.config_path, forget, answer);
    }

    /// Queues a request. If the request changes a server's operator state, looks up its server
    /// among services, groups and names.
    pub(super) fn receive_request(&mut self, mut request: Request, answer: ChangeAnswer) {
        let mut server = None;
        if let StateOrder::ChangeServer { server: meant, .. } = &request.order
            && self.executor.director.other_host(meant).is_some()
        {
            let refusal = not_drainable(&self.executor.director, meant, NotDrainable::OtherHost);
            return drop(answer.send(Err(refusal)));
        }
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
        let pending = PendingRequest { request, answer, server, is_alone: false };
        self.changes.queue.push_back(Queued::Request(Box::new(pending)));
    }

    /// Continues the change under way, or starts the next one.
    pub(super) async fn continue_change(&mut self, input: ChangeInput) {
        if let ChangeInput::Read(read) = input {
            return self.changes.queue.push_back(Queued::File(read));
        }
        let step = std::mem::take(&mut self.changes.step);
        match (input, step) {
            (ChangeInput::Turn, _) => match self.changes.queue.pop_front() {
                Some(Queued::File(read)) => self.validate_file(*read).await,
                Some(Queued::Request(first)) => self.validate_requests(*first),
                None => {}
            },
            (ChangeInput::Validated(Validated::Requests(batch, pending, groups)), _) => {
                self.requests_validated(*batch, pending, groups).await;
            }
            (ChangeInput::Validated(Validated::File(Ok(rebased), named, answer)), _) => {
                let RebasedFile { state, config, dropped } = *rebased;
                let change = FarmChange { next: Arc::new(state), origin: Origin::Reload { answer, dropped } };
                self.prepare_change(config, named, change).await;
            }
            (ChangeInput::Validated(Validated::File(Err(error), _, answer)), _) => {
                self.refuse_reload(error, answer).await;
            }
            (ChangeInput::Probed, ChangeStep::Probing(probed, farm, change)) => {
                self.probed(probed, farm, change).await;
            }
            (ChangeInput::Written((Ok(()), Some(farm), change)), _) => self.apply(*farm, change),
            (ChangeInput::Written((Ok(()), None, change)), _) => self.put_in_force(change).await,
            (ChangeInput::Written((Err(error), _, change)), _) => {
                // The write may have failed after the new record replaced the old one.
                self.write_back(None).await;
                let why = format!("run-time changes can't be written: {error}");
                self.refuse(OrderError::Unavailable(why), change.origin).await;
            }
            (ChangeInput::Lost(error), _) => {
                tracing::error!(%error, "a run-time change is lost");
                self.write_back(None).await;
            }
            (ChangeInput::Read(_) | ChangeInput::Probed, step) => self.changes.step = step,
        }
    }
}

impl Daemon {
    /// Starts to validate a file that was read. Run-time changes are applied to the file, or
    /// dropped.
    async fn validate_file(&mut self, read: FileRead) {
        let is_latest = self.changes.reader.is_latest(&read);
        let FileRead { files, forget, answer, .. } = read;
        let LoadedFiles { file, named } = match files {
            Ok(files) if is_latest => files,
            Err(error) if is_latest => return self.refuse_reload(error, answer).await,
            _ => {
                let later = "nothing was changed: a reload that was asked for later is in force";
                return reply_to_reload(answer, Err(later.to_owned()));
            }
        };
        let state = Arc::clone(&self.changes.state);
        self.changes.step = ChangeStep::Validating(spawn_blocking(move || {
            let mut record = state.record.clone();
            if forget {
                record.forget();
            }
            let rebased = state::rebase(file, record).map(Box::new).map_err(|problems| {
                format!(
                    "the file conflicts with the run-time changes: undo them by `evener undo`, or drop all by `evener reload --forget`\n{}",
                    problems.render(false)
                )
            });
            Validated::File(rebased, named, answer)
        }));
    }

    /// Starts to validate a batch of requests. Each request applies to the result of the previous
    /// ones.
    fn validate_requests(&mut self, first: PendingRequest) {
        let pending = self.changes.together(first);
        let (state, config) = (Arc::clone(&self.changes.state), Arc::clone(&self.executor.config));
        let in_force = self.changes.named.groups.clone();
        self.changes.step = ChangeStep::Validating(spawn_blocking(move || {
            let requests: Vec<Request> = pending.iter().map(|pending| pending.request.clone()).collect();
            let files = RefCell::new(in_force);
            let look = |config: &Config| files.borrow_mut().add_new(config).map_err(OrderError::Invalid);
            let batch = state::batch(&state, &config, &requests, clocks().unix_ms, &look);
            Validated::Requests(Box::new(batch), pending, files.into_inner())
        }));
    }

    /// Answers requests that change nothing, and continues with the other requests.
    async fn requests_validated(&mut self, batch: Batch, pending: Vec<PendingRequest>, groups: GroupFiles) {
        let mut committed = Vec::new();
        for (pending, outcome) in pending.into_iter().zip(batch.outcomes) {
            match outcome {
                // An undo shortens the record even if nothing else differs.
                Ok(outcome)
                    if !pending.request.is_dry_run
                        && (!outcome.differences.is_empty()
                            || matches!(pending.request.order, StateOrder::Undo(_))) =>
                {
                    committed.push(Committed { pending, outcome });
                }
                Ok(outcome) if pending.request.is_dry_run => drop(pending.answer.send(Ok(outcome))),
                Ok(outcome) => self.answer_request(Committed { pending, outcome }),
                Err(error) => drop(pending.answer.send(Err(error))),
            }
        }
        let Some(NextState { state, audit, config }) = batch.next else { return };
        let change = FarmChange { next: Arc::new(state), origin: Origin::Requests { committed, audit } };
        let Some(config) = config else { return self.write(None, change) };
        // Nothing is read here: the validation has already read all files.
        match groups.read_new(&config) {
            Ok(groups) => {
                let named = NamedFiles { groups, dns: self.changes.named.dns.clone() };
                self.prepare_change(config, named, change).await;
            }
            Err(error) => self.refuse(OrderError::Conflict(error.to_string()), change.origin).await,
        }
    }
}

/// Steps: prepared and probing.
impl Daemon {
    async fn prepare_change(&mut self, config: Config, named: NamedFiles, change: FarmChange) {
        match self.prepare(config, named).await {
            Ok((farm, None)) => self.write(Some(Box::new(farm)), change),
            Ok((farm, Some(probed))) => {
                self.changes.step = ChangeStep::Probing(probed, Box::new(farm), change)
            }
            Err(error) => self.refuse(OrderError::Conflict(error), change.origin).await,
        }
    }

    /// Handles a received frame. If another host answers for a probed address, the farm is refused.
    pub(super) async fn receive_frame(&mut self, frame: ReceivedFrame) {
        let network = self.executor.director.network();
        let owner = match &self.changes.step {
            ChangeStep::Probing(probed, ..) => probed.owner(&frame, network).err(),
            _ => None,
        };
        let ReceivedFrame { ifindex, bytes } = frame;
        self.executor.handle_fact(Input::Frame { ifindex, bytes });
        let Some(owner) = owner else { return };
        if let ChangeStep::Probing(_, _, change) = std::mem::take(&mut self.changes.step) {
            self.refuse(OrderError::Conflict(owner.to_string()), change.origin).await;
        }
    }

    /// Ends the probing of addresses. First handles the frames that are still queued.
    async fn probed(&mut self, probed: ProbedAddresses, farm: Box<PreparedFarm>, change: FarmChange) {
        self.changes.step = ChangeStep::Probing(probed, farm, change);
        for _ in 0..self.inbox.frames.len() {
            let Ok(frame) = self.inbox.frames.try_recv() else { break };
            self.receive_frame(frame).await;
        }
        match std::mem::take(&mut self.changes.step) {
            ChangeStep::Probing(_, farm, change) => self.write(Some(farm), change),
            step => self.changes.step = step,
        }
    }
}

impl Daemon {
    /// Starts to write the record, if it differs, and the audit log.
    fn write(&mut self, farm: Option<Box<PreparedFarm>>, change: FarmChange) {
        let (before, store) = (Arc::clone(&self.changes.state), self.changes.store.clone());
        self.changes.step = ChangeStep::Writing(spawn_blocking(move || {
            let result = match change.next.record.generation == before.record.generation {
                true => Ok(()),
                false => store.write(&change.next.record).map(|()| change.log(&store)),
            };
            (result, farm, change)
        }));
    }

    /// Restores the record of the farm in force if the file differs, and logs `note` to the audit
    /// log.
    async fn write_back(&mut self, note: Option<AuditEntry>) {
        let (state, store) = (Arc::clone(&self.changes.state), self.changes.store.clone());
        let written = spawn_blocking(move || {
            store.write_back(&state.record);
            store.note(note.as_slice());
        });
        // The panic of a thread is already printed.
        let _ = written.await;
    }
}

impl Daemon {
    /// Orders the director to put the whole farm in force, or nothing of it.
    fn apply(&mut self, farm: PreparedFarm, change: FarmChange) {
        let PreparedFarm { config, farm, network, links, opened, opened_names, named } = farm;
        if let Origin::Reload { .. } = change.origin {
            let restart_needed_for = self.fixed.differences(&config);
            let reloads = self.executor.showing.about().loaded.reloads + 1;
            let loaded = LoadedFile { at: SystemTime::now(), restart_needed_for, trouble: None, reloads };
            self.executor.showing.will_load(Some(loaded));
        }
        let groups = self.executor.groups.kept(&config);
        self.executor.names.will_follow(Some(opened_names));
        let reload = Input::Reload { farm: Box::new(farm), network: Box::new(network), links, groups };
        self.executor.handle_fact(reload);
        let number = self.executor.director.awaited().unwrap_or_default();
        let file = Box::new(AppliedFile { config, named, opened });
        self.changes.step = ChangeStep::Applying(number, file, change);
    }

    /// Handles the result of an order to the engine.
    pub(super) async fn applied(&mut self, done: ChangeResult) {
        let (number, result) = self.executor.finish_change(done);
        let is_own = matches!(self.changes.step, ChangeStep::Applying(own, ..) if own == number);
        self.answer_drains(number, &result, is_own);
        match std::mem::take(&mut self.changes.step) {
            ChangeStep::Applying(_, file, change) if is_own => self.farm_applied(*file, change, result).await,
            step => {
                self.changes.step = step;
                // The director has reported the engine's refusal, and retries.
                if let Err(ExecuteError::Plan(error)) = result {
                    tracing::error!("{error}; the previous farm stays in force");
                }
            }
        }
    }

    async fn farm_applied(
        &mut self,
        file: AppliedFile,
        change: FarmChange,
        result: Result<(), ExecuteError>,
    ) {
        self.executor.showing.will_load(None);
        self.executor.names.will_follow(None);
        if let Err(error) = result {
            let [refused, kept] = [&change.next, &self.changes.state].map(|state| state.record.generation);
            if refused != kept {
                let note = AuditEntry::refused(clocks().unix_ms, refused, kept, &error.to_string());
                self.write_back(Some(note)).await;
            }
            return self.refuse(OrderError::Conflict(error.to_string()), change.origin).await;
        }
        self.executor.config = Arc::new(file.config);
        self.executor.follow_groups(file.opened);
        self.executor.set_mark_key();
        self.changes.named = file.named;
        if let Origin::Requests { .. } = change.origin {
            self.settle().await;
        }
        self.put_in_force(change).await;
    }
}

/// Steps: in force and answered.
impl Daemon {
    /// Puts the operator states of servers in force, publishes the farm and answers its callers.
    async fn put_in_force(&mut self, change: FarmChange) {
        let FarmChange { next, origin } = change;
        let before = std::mem::replace(&mut self.changes.state, Arc::clone(&next));
        for (server, state) in before.states.changes_to(&next.states) {
            self.executor.handle_fact(Input::SetOperatorState { server, state });
        }
        self.executor.show_state(next);
        match origin {
            Origin::Reload { answer, dropped } => self.reloaded(&dropped, answer).await,
            Origin::Requests { committed, .. } => self.requests_in_force(committed),
        }
    }

    fn requests_in_force(&mut self, committed: Vec<Committed>) {
        let awaited = self.executor.director.awaited();
        for committed in committed {
            let Author { by, from } = committed.pending.request.author.clone();
            let message = committed.outcome.message.clone();
            self.executor.bus.publish(DaemonEvent::Changed { by, from, message });
            // Groups and names do not wait for tables.
            match awaited.filter(|_| committed.pending.server.is_some()) {
                Some(number) => self.changes.unanswered.push((number, committed)),
                None => self.answer_request(committed),
            }
        }
    }

    /// Answers the drains that wait for the tables of this order. If a reload is refused, the
    /// drains of its order wait for the next order.
    fn answer_drains(&mut self, number: u64, result: &Result<(), ExecuteError>, is_reload: bool) {
        let next = self.executor.director.awaited().filter(|_| is_reload && result.is_err());
        for (awaited, committed) in std::mem::take(&mut self.changes.unanswered) {
            match (next, result) {
                _ if awaited > number => self.changes.unanswered.push((awaited, committed)),
                (Some(next), _) => self.changes.unanswered.push((next, committed)),
                (None, Err(error)) if !is_reload => {
                    let why = format!("the change is saved but not in force yet; retrying: {error}");
                    let _ = committed.pending.answer.send(Err(OrderError::Unavailable(why)));
                }
                (None, _) => self.answer_request(committed),
            }
        }
    }

    /// Answers a request that is in force.
    fn answer_request(&self, committed: Committed) {
        let Committed { pending, mut outcome } = committed;
        if let Some(server) = &pending.server
            && let StateOrder::ChangeServer { fields, .. } = &pending.request.order
            && fields.keys.is_empty()
        {
            let wanted = self.changes.state.states.servers.get(&server.name).copied().unwrap_or_default();
            outcome.message = drained(&self.executor, server, wanted, !outcome.differences.is_empty());
        }
        // The client may have disconnected.
        let _ = pending.answer.send(Ok(outcome));
    }
}

impl Daemon {
    /// Keeps the farm in force. Requests that conflict in a batch are retried one by one.
    async fn refuse(&mut self, error: OrderError, origin: Origin) {
        let committed = match origin {
            Origin::Reload { answer, .. } => return self.refuse_reload(error.to_string(), answer).await,
            Origin::Requests { committed, .. } => committed,
        };
        self.settle().await;
        let goes_again = committed.len() > 1 && matches!(error, OrderError::Conflict(_));
        let why = format!("nothing was changed: {error}");
        let error = match error {
            OrderError::Unavailable(_) => OrderError::Unavailable(why),
            _ => OrderError::Conflict(why),
        };
        for Committed { mut pending, .. } in committed.into_iter().rev() {
            if goes_again {
                pending.is_alone = true;
                self.changes.queue.push_front(Queued::Request(Box::new(pending)));
            } else {
                let _ = pending.answer.send(Err(error.clone()));
            }
        }
    }

    async fn refuse_reload(&mut self, error: String, answer: Option<ReloadReply>) {
        self.executor.handle_fact(Input::ReloadRefused { error: error.clone() });
        self.settle().await;
        self.report_refusal(error, answer);
    }
}

impl FarmChange {
    /// Writes the author of the change to the audit log.
    fn log(&self, store: &Store) {
        let dropped;
        let entries = match &self.origin {
            Origin::Requests { audit, .. } => audit,
            Origin::Reload { dropped: edits, .. } => {
                let generation = self.next.record.generation;
                dropped = vec![AuditEntry::dropped(clocks().unix_ms, edits, "a reload", generation)];
                &dropped
            }
        };
        store.note(entries);
    }
}
