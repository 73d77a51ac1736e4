//! A thread that answers clients of groups: one for each processor, each with sockets of its own,
//! so that none waits for another.
//!
//! Memory and time for each client are bounded, and so is the number of clients: whoever comes when
//! there is no place gets that of the source that holds most ([`shares`](crate::runtime::shares)),
//! its slowest connection first.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evener_core::farm::group::MemberCandidate;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use super::frontend::Frontend;
use super::http_connection::{AnswerContext, ConnectionAction, HttpConnection};
use super::request_log::RequestLog;
use crate::runtime::slots_by_source::{ClientSource, SlotsBySource, source};

/// The token of who has something to order.
pub(super) const ORDERS: Token = Token(usize::MAX);
/// Listeners have the numbers below that.
const LISTENERS: usize = usize::MAX / 2;
/// The bytes that are read at once.
const READ: usize = 16 * 1024;
/// Reads of one connection before others have their turn.
const READS: u32 = 8;
/// Connections taken from one listener before others have their turn.
const ACCEPTS: u32 = 64;
/// How long a client may take for a head, from its first byte on; and before that.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection may be idle between two requests.
const IDLE: Duration = Duration::from_secs(60);
/// How long a client may take to read its answers.
const ANSWER: Duration = Duration::from_secs(20);
/// How long a client may go on sending after the last answer.
const LINGER: Duration = Duration::from_secs(2);
/// Between two looks for clients that took too long.
const LOOK: Duration = Duration::from_millis(250);
/// Sources that are spared, for having asked for something lately, before one is not.
const SPARED: u32 = 16;

/// An order to a responder.
pub(super) enum ResponderOrder {
    /// Answer for a group here.
    Listen { listener: std::net::TcpListener, address: SocketAddr, front: Arc<Frontend> },
    /// No more.
    Silence { address: SocketAddr },
    /// End.
    Stop,
}

/// A connection that somebody else is to answer on.
pub(crate) struct DelegatedConnection {
    pub(crate) stream: std::net::TcpStream,
    pub(crate) client: SocketAddr,
    pub(crate) front: Arc<Frontend>,
    /// The bytes received already.
    pub(crate) received: Vec<u8>,
    /// The member that was chosen for their first request, if one was.
    pub(crate) chosen: Option<MemberCandidate>,
}

/// The taker of such connections. Called by the responder's thread, and must not wait; false where
/// there is no room.
pub(crate) type Delegate = Arc<dyn Fn(DelegatedConnection) -> bool + Send + Sync>;

struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    front: Arc<Frontend>,
}

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionWait {
    /// For the client.
    Talking(ConnectionAction),
    /// For the client's end, after the last answer.
    Lingering,
}

struct Connection {
    stream: TcpStream,
    client: SocketAddr,
    front: Arc<Frontend>,
    talk: HttpConnection,
    waits: ConnectionWait,
    /// Answers that the client has not taken yet, and how much of them it has.
    unsent: Vec<u8>,
    sent: usize,
    deadline: Instant,
    source: ClientSource,
    ticket: u64,
    /// Whether it was answered something since its ticket.
    is_busy: bool,
    is_registered: bool,
}

/// The rest of a connection after a turn.
enum TurnResult {
    /// It waits.
    Waits,
    /// It has more to do, once others had their turn.
    Again,
    /// It is over.
    Over,
    /// It is somebody else's.
    Given,
}

/// A responder.
pub(super) struct Responder {
    poll: Poll,
    orders: Receiver<ResponderOrder>,
    taker: Delegate,
    request_log: RequestLog,
    places: usize,
    listeners: Slab<Listener>,
    connections: Slab<Connection>,
    shares: SlotsBySource<usize>,
    again: VecDeque<Token>,
    /// Listeners that the system refused a connection of.
    refused: Vec<usize>,
    buffer: Box<[u8]>,
    out: Vec<u8>,
    date: String,
    dated: u64,
    now: Instant,
    looked: Instant,
}

impl Responder {
    pub(super) fn new(
        poll: Poll,
        orders: Receiver<ResponderOrder>,
        taker: Delegate,
        request_log: RequestLog,
        places: usize,
    ) -> Responder {
        let now = Instant::now();
        Responder {
            poll,
            orders,
            taker,
            request_log,
            places: places.max(1),
            listeners: Slab::new(),
            connections: Slab::new(),
            shares: SlotsBySource::default(),
            again: VecDeque::new(),
            refused: Vec::new(),
            buffer: vec![0; READ].into_boxed_slice(),
            out: Vec::new(),
            date: String::new(),
            dated: 0,
            now,
            looked: now,
        }
    }

    /// Answers until it is told to stop.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1_024);
        loop {
            let wait = match (self.again.is_empty(), self.connections.is_empty() && self.refused.is_empty()) {
                (false, _) => Some(Duration::ZERO),
                (true, false) => Some(LOOK),
                (true, true) => None,
            };
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    tracing::error!(%error, "a responder can't wait for clients");
                    return;
                }
                _ => {}
            }
            self.update_date();
            for _ in 0..self.again.len() {
                if let Some(token) = self.again.pop_front() {
                    self.attend(token, false);
                }
            }
            for event in &events {
                match event.token() {
                    ORDERS => {}
                    token => self.attend(token, ends(event)),
                }
            }
            if !self.follow_orders() {
                return;
            }
            self.evict_late();
        }
    }

    fn update_date(&mut self) {
        self.now = Instant::now();
        let time = SystemTime::now();
        let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if self.dated != seconds || self.date.is_empty() {
            self.date = httpdate::fmt_http_date(time);
            self.dated = seconds;
        }
    }

    /// Whether to go on.
    fn follow_orders(&mut self) -> bool {
        loop {
            match self.orders.try_recv() {
                Ok(ResponderOrder::Listen { listener, address, front }) => {
                    self.listen(listener, address, front)
                }
                Ok(ResponderOrder::Silence { address }) => {
                    self.listeners.retain(|_, listener| listener.address != address);
                }
                Ok(ResponderOrder::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn listen(&mut self, listener: std::net::TcpListener, address: SocketAddr, front: Arc<Frontend>) {
        let entry = self.listeners.vacant_entry();
        let token = Token(LISTENERS + entry.key());
        let mut socket = TcpListener::from_std(listener);
        match self.poll.registry().register(&mut socket, token, Interest::READABLE) {
            Ok(()) => drop(entry.insert(Listener { socket, address, front })),
            Err(error) => tracing::error!(%address, %error, "a responder can't hear clients"),
        }
    }

    fn attend(&mut self, Token(number): Token, ends: bool) {
        match number.checked_sub(LISTENERS) {
            Some(listener) => self.accept(listener),
            None => self.serve(number, ends),
        }
    }

    fn accept(&mut self, key: usize) {
        for _ in 0..ACCEPTS {
            // It may have gone since the event.
            let Some(listener) = self.listeners.get(key) else { return };
            match listener.socket.accept() {
                Ok((stream, client)) => {
                    let front = Arc::clone(&listener.front);
                    self.welcome(stream, client, front);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    self.refused.push(key);
                    return;
                }
            }
        }
        self.again.push_back(Token(LISTENERS + key));
    }

    fn welcome(&mut self, stream: TcpStream, client: SocketAddr, front: Arc<Frontend>) {
        if front.is_secure() {
            // Where there is no room the connection just ends.
            let (stream, received) = (stream.into(), Vec::new());
            (self.taker)(DelegatedConnection { stream, client, front, received, chosen: None });
            return;
        }
        if self.connections.len() >= self.places {
            self.evict();
        }
        let (source, ticket) = (source(client.ip()), self.shares.ticket());
        // Answers are whole when they are sent: to wait for more would only make them late.
        let _ = stream.set_nodelay(true);
        let key = self.connections.insert(Connection {
            stream,
            client,
            front,
            talk: HttpConnection::default(),
            waits: ConnectionWait::Talking(ConnectionAction::Read),
            unsent: Vec::new(),
            sent: 0,
            deadline: self.now + HEAD,
            source,
            ticket,
            is_busy: false,
            is_registered: false,
        });
        self.shares.insert(source, ticket, key);
        // Mostly the request is there already.
        self.serve(key, false);
    }

    /// Has one who holds most give up a connection; who was answered something since he was looked
    /// at last is spared once.
    fn evict(&mut self) {
        for spared in 0.. {
            let Some((source, key)) = self.shares.take_away() else { return };
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if std::mem::take(&mut connection.is_busy) && spared < SPARED {
                connection.ticket = self.shares.ticket();
                self.shares.insert(source, connection.ticket, key);
                continue;
            }
            connection.front.count_evicted();
            self.drop_connection(key);
            return;
        }
    }

    fn drop_connection(&mut self, key: usize) -> Option<Connection> {
        let mut connection = self.connections.try_remove(key)?;
        self.shares.give_back(connection.source, connection.ticket);
        if connection.is_registered {
            // The kernel forgets a closed socket all the same.
            let _ = self.poll.registry().deregister(&mut connection.stream);
        }
        Some(connection)
    }

    fn serve(&mut self, key: usize, ends: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let mut desk = WorkerContext {
            buffer: &mut self.buffer,
            out: &mut self.out,
            date: &self.date,
            request_log: &mut self.request_log,
            now: self.now,
        };
        match connection.turn(&mut desk, ends) {
            TurnResult::Waits => self.wait_for(key),
            TurnResult::Again => {
                self.wait_for(key);
                self.again.push_back(Token(key));
            }
            TurnResult::Over => drop(self.drop_connection(key)),
            TurnResult::Given => self.give(key),
        }
    }

    fn wait_for(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key).filter(|connection| !connection.is_registered)
        else {
            return;
        };
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self.poll.registry().register(&mut connection.stream, Token(key), interest) {
            Ok(()) => connection.is_registered = true,
            Err(error) => {
                tracing::debug!(%error, "a client can't be waited for");
                self.drop_connection(key);
            }
        }
    }

    fn give(&mut self, key: usize) {
        let Some(connection) = self.drop_connection(key) else { return };
        let Connection { stream, client, front, talk, .. } = connection;
        // Where there is no room the connection just ends, and the client may come again.
        let (received, chosen) = talk.into_unread();
        (self.taker)(DelegatedConnection { stream: stream.into(), client, front, received, chosen });
    }

    /// Looks for clients that took too long.
    fn evict_late(&mut self) {
        if self.now.duration_since(self.looked) < LOOK {
            return;
        }
        self.looked = self.now;
        for key in std::mem::take(&mut self.refused) {
            self.evict();
            self.again.push_back(Token(LISTENERS + key));
        }
        let now = self.now;
        let late: Vec<usize> =
            self.connections.iter().filter(|(_, c)| c.deadline <= now).map(|(key, _)| key).collect();
        for key in late {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if !connection.answer_timeout(&self.date, &mut self.out, now) {
                self.drop_connection(key);
            }
        }
    }
}

/// Whether the client has ended its side, or the whole of it.
fn ends(event: &Event) -> bool {
    event.is_read_closed() || event.is_error()
}

/// Whether an error of accept(2) is about one client only.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted)
}

/// The means of a turn.
struct WorkerContext<'d> {
    buffer: &'d mut [u8],
    out: &'d mut Vec<u8>,
    date: &'d str,
    request_log: &'d mut RequestLog,
    now: Instant,
}

impl Connection {
    /// Sends what is to be sent, hears what there is to be heard, and answers it. `ends`: the
    /// client has said that it ends, so reading goes on until that.
    fn turn(&mut self, desk: &mut WorkerContext<'_>, ends: bool) -> TurnResult {
        match self.send() {
            Ok(true) => {}
            Ok(false) => return TurnResult::Waits,
            Err(_) => return TurnResult::Over,
        }
        for _ in 0..READS {
            let next = match self.waits {
                ConnectionWait::Talking(next) => next,
                ConnectionWait::Lingering => return self.linger(desk),
            };
            let len = match next {
                ConnectionAction::GiveAway => return TurnResult::Given,
                ConnectionAction::End { lingers: false } => return TurnResult::Over,
                ConnectionAction::End { lingers: true } => {
                    let _ = self.stream.shutdown(Shutdown::Write);
                    self.waits = ConnectionWait::Lingering;
                    self.deadline = desk.now + LINGER;
                    continue;
                }
                ConnectionAction::GoOn => 0,
                ConnectionAction::Read => match self.stream.read(desk.buffer) {
                    Ok(0) => return TurnResult::Over,
                    Ok(len) => len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return TurnResult::Waits,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => return TurnResult::Over,
                },
            };
            if !self.answer(len, desk) {
                return TurnResult::Over;
            }
            if self.sent < self.unsent.len() {
                return TurnResult::Waits;
            }
            // epoll(7): what filled less than it could have was all there is.
            let is_all = len < desk.buffer.len() && !ends;
            if is_all
                && self.waits == ConnectionWait::Talking(ConnectionAction::Read)
                && next == ConnectionAction::Read
            {
                return TurnResult::Waits;
            }
        }
        TurnResult::Again
    }

    /// Answers what was heard; false if the client is gone.
    fn answer(&mut self, len: usize, desk: &mut WorkerContext<'_>) -> bool {
        let was_in_request = self.talk.is_in_request();
        desk.out.clear();
        let rules = self.front.rules();
        let setting = AnswerContext {
            client: self.client.ip(),
            rules: &rules,
            date: desk.date,
            ends: self.front.is_over(),
        };
        let (front, client, request_log, began) =
            (&self.front, self.client, &mut *desk.request_log, desk.now);
        let mut log = |answered: &super::http_connection::AnsweredRequest<'_>| {
            front.count(answered.outcome);
            request_log.record(front, &rules, client, began, answered);
        };
        let received = desk.buffer.get(..len).unwrap_or_default();
        self.waits = ConnectionWait::Talking(self.talk.receive(received, &setting, desk.out, &mut log));
        self.is_busy |= !desk.out.is_empty();
        // A head's time counts from its first byte: who sends it byte by byte gains nothing.
        match (was_in_request && desk.out.is_empty(), self.talk.is_in_request()) {
            (true, _) => {}
            (false, true) => self.deadline = desk.now + HEAD,
            (false, false) => self.deadline = desk.now + IDLE,
        }
        match self.stream.write(desk.out) {
            _ if desk.out.is_empty() => true,
            Ok(sent) if sent == desk.out.len() => true,
            Ok(sent) => self.keep_unsent(desk.out.get(sent..).unwrap_or_default(), desk.now),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                self.keep_unsent(desk.out, desk.now)
            }
            Err(_) => false,
        }
    }

    fn keep_unsent(&mut self, rest: &[u8], now: Instant) -> bool {
        self.unsent.extend_from_slice(rest);
        self.deadline = now + ANSWER;
        true
    }

    /// Sends what is left of answers; whether that was all.
    fn send(&mut self) -> io::Result<bool> {
        while let Some(rest) = self.unsent.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.unsent, self.sent) = (Vec::new(), 0);
        Ok(true)
    }

    /// Reads away what the client goes on sending.
    fn linger(&mut self, desk: &mut WorkerContext<'_>) -> TurnResult {
        for _ in 0..READS {
            match self.stream.read(desk.buffer) {
                Ok(0) => return TurnResult::Over,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return TurnResult::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return TurnResult::Over,
            }
        }
        TurnResult::Again
    }

    /// Says that it took too long, where there is somebody to say it to; whether the answer is yet
    /// to be taken.
    fn answer_timeout(&mut self, date: &str, out: &mut Vec<u8>, now: Instant) -> bool {
        out.clear();
        let is_reading =
            self.waits == ConnectionWait::Talking(ConnectionAction::Read) && self.unsent.is_empty();
        if !is_reading || !self.talk.late(date, out) || self.stream.write(out).is_err() {
            return false;
        }
        self.front
            .count(super::frontend::RequestOutcome::Refused(evener_core::net::http::HttpRefusal::Timeout));
        let _ = self.stream.shutdown(Shutdown::Write);
        self.waits = ConnectionWait::Lingering;
        self.deadline = now + LINGER;
        true
    }
}
