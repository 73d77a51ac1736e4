//! This host as an LCCP node. It exchanges messages with the farm's other nodes
//! (`docs/how-it-works/lccp.md`), directly over IP.
//!
//! [`evener_core::node::lccp`] authenticates and encodes messages. This module has the sockets, the
//! clock, and the actions: [`exchange`] queries another node about a connection, [`take`] makes
//! sockets of connections, [`release`] releases a connection, [`dispatch`] answers as the
//! dispatcher.

mod dispatch;
mod exchange;
mod nodes;
mod release;
pub(crate) mod state;
mod take;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evener_core::node::association::{MessageCounters, Refusal};
use evener_core::node::lccp::wire::LccpMessage;
use evener_core::node::lccp::{
    Components, HourlyKeys, LccpEvent, LccpSession, LocalNode, MessageBody, REFUSALS, Receptor, ResumePoint,
    SocketId,
};
use evener_core::node::secret::Secret;
use evener_dataplane::server::Connections;
use tokio::sync::{Semaphore, mpsc};

use dispatch::DispatcherState;
pub(crate) use exchange::PeerExchange;
pub(crate) use nodes::NodeRole;
use take::HandoffReceiver;

use crate::config::Config;
use crate::events::{self, DaemonEvent};
use crate::handoff::ControlLink;
use crate::io::network::Network;
use crate::io::raw::RawReceiver;

/// Interval of hello messages. These messages make a restarted node known again, and reveal a
/// missing node.
const HELLO_INTERVAL: Duration = Duration::from_secs(1);
/// Capacity of the queue of an exchange's answers.
const ANSWERS: usize = 64;
/// Maximum number of concurrent queries of other nodes to the control loop. Nodes retransmit
/// further queries.
const CONSULTED_MAX: usize = 1_024;

/// This node. Clones share the same state.
#[derive(Clone)]
pub(crate) struct LccpNode(Arc<LccpState>);

/// State shared by all tasks of the node.
struct LccpState {
    part: NodeRole,
    secret: Secret,
    incarnation: u64,
    components: Components,
    talk: Mutex<LccpTask>,
    receiver: Option<HandoffReceiver>,
    /// Channel to the control loop, which has the tables. `None` on servers.
    control: Option<ControlLink>,
    /// Limits concurrent queries of other nodes.
    consulted: Arc<Semaphore>,
    counts: HandoffCounts,
}

#[derive(Default)]
struct HandoffCounts {
    /// Handoffs acknowledged by a server.
    given: AtomicU64,
    /// Handoffs that a server could not restore.
    not_restored: AtomicU64,
    /// Handoffs that a server did not answer in time.
    unanswered: AtomicU64,
    taken: AtomicU64,
    handoffs_refused: AtomicU64,
    /// Releases requested from a server.
    release_requested: AtomicU64,
    /// Connections released by a server.
    released: AtomicU64,
    /// Releases that a server refused because the connection was busy. The director repeats these
    /// requests.
    release_busy: AtomicU64,
    grant: AtomicU64,
    /// Queries to the dispatcher.
    requested: AtomicU64,
    /// Queries that the dispatcher answered with a server.
    answered: AtomicU64,
    /// Answers with a server that this node's tables don't allow.
    disallowed_answers: AtomicU64,
    /// Connections decided by this node because the dispatcher did not answer.
    alone: AtomicU64,
    /// Queries of other nodes answered here, as their dispatcher or forwarder.
    decided: AtomicU64,
}

/// Sockets and sessions of the node.
struct LccpTask {
    keys: HourlyKeys,
    /// Nodes, each with this host's source address for it.
    nodes: BTreeMap<IpAddr, Option<IpAddr>>,
    dispatcher: DispatcherState,
    listeners: BTreeMap<IpAddr, RawReceiver>,
    /// Sessions by node and own address.
    sessions: BTreeMap<(IpAddr, IpAddr), LccpSession>,
    /// Exchanges that wait for a node's answer about a connection.
    waiting: BTreeMap<(IpAddr, SocketId), OpenExchange>,
    /// Counters of ended sessions, and the highest sequence number of any session. New sessions
    /// continue after that number, since other nodes may remember it.
    past: MessageCounters,
    past_sequence: u64,
    /// Reason why no messages can be received. Logged once.
    trouble: Option<String>,
}

struct OpenExchange {
    /// Sequence number of the first message of the exchange. An answer to an earlier message
    /// concerns an earlier connection.
    since: Option<u64>,
    answers: mpsc::Sender<MessageBody>,
}

impl LccpNode {
    /// Starts the node, without any peers: see [`LccpNode::follow`].
    ///
    /// # Errors
    /// Without random numbers.
    pub(crate) fn start(
        secret: Secret,
        part: NodeRole,
        network: &Network,
        control: Option<ControlLink>,
    ) -> io::Result<LccpNode> {
        let incarnation = crate::runtime::secret::random_number()?;
        let receiver = (part != NodeRole::Director).then(|| HandoffReceiver::open(network)).and_then(|receiver| {
            let cannot = |error| tracing::warn!(%error, "failed to listen for control messages: handed-off connections are accepted without an acknowledgment");
            receiver.map_err(cannot).ok()
        });
        let components = match part {
            NodeRole::Director | NodeRole::Host => {
                Components::new(&[Receptor::Distributor, Receptor::Dispatcher, Receptor::Forwarder])
            }
            NodeRole::Server if receiver.is_some() => Components::new(&[Receptor::Distributor]),
            NodeRole::Server => Components::new(&[]),
        };
        let talk = LccpTask {
            keys: HourlyKeys::at(&secret, unix_s()),
            nodes: BTreeMap::new(),
            dispatcher: DispatcherState::default(),
            listeners: BTreeMap::new(),
            sessions: BTreeMap::new(),
            waiting: BTreeMap::new(),
            past: MessageCounters::default(),
            past_sequence: 0,
            trouble: None,
        };
        let shared = Arc::new(LccpState {
            part,
            secret,
            incarnation,
            components,
            talk: Mutex::new(talk),
            receiver,
            control,
            consulted: Arc::new(Semaphore::new(CONSULTED_MAX)),
            counts: HandoffCounts::default(),
        });
        tokio::spawn(send_inits(Arc::downgrade(&shared)));
        Ok(LccpNode(shared))
    }

    /// True if the node uses this secret.
    pub(crate) fn has(&self, secret: &Secret) -> bool {
        self.0.secret == *secret
    }

    /// Sets the programs' view of connections, for handoffs and releases.
    pub(crate) fn look_at(&self, connections: Connections) {
        if let Some(receiver) = &self.0.receiver {
            receiver.look_at(connections);
        }
    }

    /// Adopts the nodes of this file, and this host's current addresses.
    pub(crate) fn follow(&self, config: &Config, network: &Network) {
        let nodes = nodes::nodes(self.0.part, config, network);
        let own: BTreeSet<IpAddr> =
            nodes.values().flatten().copied().chain(nodes::own(config, network)).collect();
        if let Some(receiver) = &self.0.receiver {
            receiver.serve(nodes::served(self.0.part, config, network));
        }
        let mut talk = self.0.talk();
        talk.nodes = nodes;
        let other = config.farm.dispatcher.filter(|address| !network.is_local(*address));
        if other != talk.dispatcher.at {
            talk.dispatcher = DispatcherState { at: other, ..DispatcherState::default() };
        }
        talk.listeners.retain(|address, _| own.contains(address));
        let mut trouble = None;
        for address in own {
            if let std::collections::btree_map::Entry::Vacant(place) = talk.listeners.entry(address) {
                match open(&self.0, address) {
                    Ok(listener) => drop(place.insert(listener)),
                    Err(error) => trouble = Some(format!("{address}: {error}")),
                }
            }
        }
        if let Some(trouble) = trouble.as_ref().filter(|_| trouble != talk.trouble) {
            tracing::warn!(
                "failed to receive messages of other nodes at {trouble}; connections are handed off without an acknowledgment"
            );
        }
        talk.trouble = trouble;
        talk.forget_strangers();
    }

    /// Returns all counters, by name.
    pub(crate) fn counted(&self) -> BTreeMap<String, u64> {
        let counts = &self.0.counts;
        let done = [
            ("handoffs_acknowledged", &counts.given),
            ("not_restored", &counts.not_restored),
            ("handoffs_unanswered", &counts.unanswered),
            ("handoffs_accepted", &counts.taken),
            ("handoffs_refused", &counts.handoffs_refused),
            ("release_requested", &counts.release_requested),
            ("released", &counts.released),
            ("release_busy", &counts.release_busy),
            ("releases_granted", &counts.grant),
            ("dispatch_requested", &counts.requested),
            ("dispatch_answered", &counts.answered),
            ("dispatch_rejected", &counts.disallowed_answers),
            ("dispatch_local", &counts.alone),
            ("dispatch_served", &counts.decided),
        ];
        let messages = self.0.talk().messages();
        let all = messages.named(&REFUSALS).chain(done.map(|(name, count)| (name, count.load(Relaxed))));
        all.map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// Returns the number of refused messages, by reason.
    pub(crate) fn refused(&self) -> BTreeMap<String, u64> {
        let messages = self.0.talk().messages();
        let refused = messages.refusals().filter(|(_, count)| *count > 0);
        refused.map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// Returns the state of each node, by address: `known`, `silent` if its messages no longer
    /// arrive, `unknown` if no message ever arrived.
    pub(crate) fn nodes(&self) -> BTreeMap<String, String> {
        let talk = self.0.talk();
        let state = |node: &IpAddr| match talk.towards(*node) {
            Some(session) if session.is_alive(now_ms()) => "known",
            Some(session) if session.is_known() => "silent",
            _ => "unknown",
        };
        talk.nodes.keys().map(|node| (node.to_string(), state(node).to_owned())).collect()
    }

    /// Returns the nodes whose messages are all refused, by address, with the reason.
    pub(crate) fn not_understood(&self) -> BTreeMap<IpAddr, Refusal> {
        let talk = self.0.talk();
        let trouble = |node: &IpAddr| Some((*node, talk.towards(*node)?.trouble()?));
        talk.nodes.keys().filter_map(trouble).collect()
    }
}

impl LccpState {
    fn talk(&self) -> MutexGuard<'_, LccpTask> {
        // A panic leaves the state consistent.
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a node is alive and has a component.
    fn speaks(&self, node: IpAddr, receptor: Receptor) -> bool {
        let talk = self.talk();
        let session = talk.towards(node).filter(|session| session.is_alive(now_ms()));
        session.and_then(LccpSession::components).is_some_and(|all| all.contains(receptor))
    }

    /// Sends a message to a known node.
    fn send(&self, node: IpAddr, receptor: Receptor, body: MessageBody) {
        let mut talk = self.talk();
        let LccpTask { keys, nodes, listeners, sessions, waiting, .. } = &mut *talk;
        let own = nodes.get(&node).copied().flatten();
        let Some(own) = own else { return };
        let exchange_key = body.socket().map(|socket| (node, socket));
        let bytes = sessions.get_mut(&(node, own)).and_then(|session| session.send(keys, receptor, body));
        let Some((sequence, message)) = bytes else { return };
        if let Some(waiting) = exchange_key.and_then(|exchange_key| waiting.get_mut(&exchange_key)) {
            waiting.since.get_or_insert(sequence);
        }
        if let Some(listener) = listeners.get(&own) {
            listener.send(node, &message);
        }
    }

    fn answer(&self, way: AddressPair, message: &LccpMessage, receptor: Receptor, body: MessageBody) {
        let mut talk = self.talk();
        let LccpTask { keys, listeners, sessions, .. } = &mut *talk;
        let session = sessions.get_mut(&(way.node, way.own));
        let message = session.and_then(|session| session.answer(keys, message, receptor, body));
        if let Some((message, listener)) = message.zip(listeners.get(&way.own)) {
            listener.send(way.node, &message);
        }
    }

    /// Handles the content of an IP packet from a node.
    fn receive(self: &Arc<Self>, way: AddressPair, bytes: &[u8]) {
        let Some(message) = self.authenticate(way, bytes) else { return };
        match (message.receptor, &message.body) {
            (Receptor::Distributor, MessageBody::Handoff { socket, piece }) => {
                let (socket, piece) = (*socket, piece.clone());
                self.receive_handoff(way, message, socket, piece);
            }
            (Receptor::Distributor, MessageBody::Release { socket, rcv_nxt, snd_nxt }) => {
                let place = ResumePoint { rcv_nxt: *rcv_nxt, snd_nxt: *snd_nxt };
                let socket = *socket;
                self.release(way, message, socket, place);
            }
            (Receptor::Dispatcher, MessageBody::DispatchRequest { socket, content }) => {
                let (socket, content) = (*socket, content.clone());
                self.decide(way, message, socket, &content);
            }
            (Receptor::Forwarder, MessageBody::Forward { socket, server }) => {
                let (socket, server) = (*socket, *server);
                self.forward(way, message, socket, server);
            }
            (Receptor::Forwarder, MessageBody::Close { socket }) => self.close(*socket),
            (
                Receptor::Distributor,
                MessageBody::HandoffAck { socket, .. }
                | MessageBody::DispatchReply { socket, .. }
                | MessageBody::Released { socket, .. }
                | MessageBody::Error { socket: Some(socket), .. },
            ) => {
                let talk = self.talk();
                let waiting = talk.waiting.get(&(way.node, *socket));
                // An answer without a waiting exchange is late or a duplicate.
                if let Some(waiting) = waiting.filter(|waiting| waiting.is_for(&message)) {
                    let _ = waiting.answers.try_send(message.body);
                }
            }
            (receptor, body) => {
                tracing::debug!(node = %way.node, ?receptor, ?body, "ignored a control message")
            }
        }
    }

    /// Authenticates a message and answers hello messages. Returns the message if it requires an
    /// action.
    fn authenticate(&self, way: AddressPair, bytes: &[u8]) -> Option<LccpMessage> {
        let AddressPair { node, own } = way;
        let mut talk = self.talk();
        if !talk.nodes.contains_key(&node) {
            return None;
        }
        let LccpTask { keys, listeners, sessions, past_sequence, .. } = &mut *talk;
        let session = sessions.entry((node, own)).or_insert_with(|| self.new_session(way, *past_sequence));
        let received = session.receive(now_ms(), keys, bytes);
        if let Some((answer, listener)) = received.answer.zip(listeners.get(&own)) {
            listener.send(node, &answer);
        }
        drop(talk);
        received.notice.into_iter().for_each(|notice| self.publish(notice));
        received.message
    }

    /// Creates a session. Its sequence numbers continue after the numbers of an earlier session.
    fn new_session(&self, way: AddressPair, after: u64) -> LccpSession {
        let own = LocalNode { address: way.own, incarnation: self.incarnation, components: self.components };
        LccpSession::new(own, way.node, after)
    }

    /// Publishes an event through the control loop, or logs it without one.
    fn publish(&self, notice: LccpEvent) {
        let event = DaemonEvent::Node(notice);
        match &self.control {
            Some(control) => control.publish(event),
            None => events::log::write(&event),
        }
    }

    /// Sends a hello to all nodes, including unknown and silent ones.
    fn send_inits(&self) {
        let mut talk = self.talk();
        let LccpTask { keys, nodes, listeners, sessions, past_sequence, .. } = &mut *talk;
        *keys = HourlyKeys::at(&self.secret, unix_s());
        let silent: Vec<LccpEvent> =
            sessions.values_mut().filter_map(|session| session.expire(now_ms())).collect();
        for (node, own) in nodes.iter().filter_map(|(node, own)| Some((*node, (*own)?))) {
            let Some(listener) = listeners.get(&own) else { continue };
            let new = || self.new_session(AddressPair { node, own }, *past_sequence);
            listener.send(node, &sessions.entry((node, own)).or_insert_with(new).init(keys));
        }
        drop(talk);
        silent.into_iter().for_each(|notice| self.publish(notice));
        if let Some(receiver) = &self.receiver {
            receiver.forget_old(now_ms());
        }
    }
}

impl LccpTask {
    /// Returns the current session with a node.
    fn towards(&self, node: IpAddr) -> Option<&LccpSession> {
        self.sessions.get(&(node, self.nodes.get(&node).copied().flatten()?))
    }

    /// Removes sessions with nodes that are no longer in the file, and sessions of addresses that
    /// are gone.
    fn forget_strangers(&mut self) {
        let LccpTask { nodes, listeners, sessions, past, past_sequence, .. } = self;
        sessions.retain(|(node, own), session| {
            let stays = nodes.contains_key(node) && listeners.contains_key(own);
            if !stays {
                past.add(session.counters());
                *past_sequence = session.sequence().max(*past_sequence);
            }
            stays
        });
    }

    /// Returns the message counters, over all sessions.
    fn messages(&self) -> MessageCounters {
        let mut all = self.past;
        self.sessions.values().for_each(|session| all.add(session.counters()));
        all
    }
}

impl OpenExchange {
    fn is_for(&self, message: &LccpMessage) -> bool {
        self.since.is_some_and(|since| message.echo.sequence >= since)
    }
}

/// A node and this host's own address.
#[derive(Clone, Copy, Debug)]
struct AddressPair {
    node: IpAddr,
    own: IpAddr,
}

fn open(shared: &Arc<LccpState>, own: IpAddr) -> io::Result<RawReceiver> {
    let (nodes, hearing) = (Arc::downgrade(shared), Arc::downgrade(shared));
    let is_node = move |from| nodes.upgrade().is_some_and(|shared| shared.talk().nodes.contains_key(&from));
    let receive = move |node, bytes: &[u8]| {
        if let Some(shared) = hearing.upgrade() {
            shared.receive(AddressPair { node, own }, bytes);
        }
    };
    RawReceiver::open(own, is_node, receive)
}

/// Sends hello messages while the node exists.
async fn send_inits(shared: Weak<LccpState>) {
    let mut hello_timer = tokio::time::interval(HELLO_INTERVAL);
    loop {
        hello_timer.tick().await;
        match shared.upgrade() {
            Some(shared) => shared.send_inits(),
            None => return,
        }
    }
}

/// Returns the monotonic clock in milliseconds.
pub(crate) fn now_ms() -> u64 {
    evener_dataplane::now_ns() / 1_000_000
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
