//! A connection that is read here, or moves: executes the orders of its [`Transfer`].

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use evener_core::director::transfer::{
    FinalResponse, PATIENCE_MS, Transfer, TransferEvent, TransferInput, TransferOrder, TransferOutcome,
};
use evener_core::net::http::{self, HttpRefusal, Response};
use evener_core::node::lccp::{self, ErrorCode, MessageBody, ReceivedConnection, Receptor};
use evener_dataplane::repair::{self, Saved};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::head::{HEAD_MAX, HeadClass, HeadRefusal, NormalizedRequest, classify};
use super::lccp::{PeerExchange, now_ms, state};
use super::rehandoff::{Rehandoff, taken_up};
use super::{ChosenTarget, ControlQuery, ConversationContext, FourTuple, proxy, reset, restore};
use crate::http::{end, last_bytes};
use crate::record::{HandoffRecord, Mechanism};
use crate::runtime::connection_limit::ConnectionSlot;

/// Maximum number of bytes read before a server is selected.
const READ_MAX: usize = HEAD_MAX + 16 * 1024;
/// SETTINGS, and GOAWAY with HTTP_1_1_REQUIRED (RFC 9113, sections 6.5, 6.8 and 7).
const HTTP_1_REQUIRED: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d";
/// Texts for clients whose server is unreachable, or for whom there is no server.
const UNREACHED: &str = "The server can't be reached.";
const UNSERVED: &str = "No server takes this request now.";
/// Timeout of sending the last response.
const GOODBYE: Duration = Duration::from_millis(PATIENCE_MS / 5);

/// Current holder of the client's connection.
enum ClientSocket {
    /// In a socket of this process.
    Local(TcpStream),
    /// Saved, without a socket.
    Exported(Box<Exported>),
    Remote,
}

struct Exported {
    saved: Saved,
    /// Image for the connection's server, if it can be encoded.
    announced: Option<lccp::TransferImage>,
}

/// State of moving one connection.
struct HandoffTask<'r> {
    reader: &'r ConversationContext,
    ends: FourTuple,
    began: Instant,
    place: ClientSocket,
    /// Bytes received from the client, and the request parsed from them.
    bytes: Vec<u8>,
    wanted: Option<NormalizedRequest>,
    /// Later request that belongs to another server.
    moving: Option<Rehandoff>,
    /// Exchange with another node about the connection.
    exchange: Option<PeerExchange>,
    advice: Option<SocketAddr>,
    /// Number of the route, from 1.
    route: Option<u64>,
    chosen: Option<ChosenTarget>,
    /// Connection to the server, if the client's is spliced.
    server: Option<TcpStream>,
}

/// Handles an accepted connection until it is handed off or closed. Until then the connection
/// occupies a slot, and may be evicted.
pub(super) async fn accepted(
    stream: TcpStream,
    ends: FourTuple,
    slot: ConnectionSlot,
    reader: &ConversationContext,
) {
    let task = HandoffTask::of(ClientSocket::Local(stream), ends, None, reader);
    run(Transfer::accepted(now_ms()), task, Some(slot)).await;
}

/// Moves an open connection to another server, leaves it with its server, or resets it.
pub(crate) async fn rehandoff(moving: Rehandoff, reader: ConversationContext) {
    let task = HandoffTask::of(ClientSocket::Remote, moving.ends, Some(moving), &reader);
    run(Transfer::moving(now_ms()), task, None).await;
}

async fn run(mut transfer: Transfer, mut task: HandoffTask<'_>, mut slot: Option<ConnectionSlot>) {
    let (client, mut gave_way) = (task.ends.client.ip(), true);
    while let Some(order) = transfer.order() {
        let gives_way = transfer.gives_way();
        match &mut slot {
            Some(slot) if gives_way && !gave_way => slot.offer(),
            Some(slot) if gave_way && !gives_way => slot.keep(),
            _ => {}
        }
        gave_way = gives_way;
        let left = Duration::from_millis(transfer.deadline_ms().saturating_sub(now_ms()));
        let done = match (order, &mut slot) {
            (TransferOrder::TakePlace(quota), _) => {
                slot = None;
                let taken = timeout(left, task.reader.limit_of(quota).acquire(client)).await;
                gave_way = true;
                taken.map(|taken| {
                    slot = Some(taken);
                    TransferInput::Admitted
                })
            }
            (_, Some(slot)) => {
                let done = timeout(left, slot.unless_evicted(task.carry_out(order))).await;
                done.map(|done| done.unwrap_or(TransferInput::Crowded))
            }
            (_, None) => timeout(left, task.carry_out(order)).await,
        };
        if let Some(notice) = transfer.handle(now_ms(), done.unwrap_or(TransferInput::Timer)) {
            task.count_event(notice);
        }
    }
    if let Some((server, slot)) = task.server.take().zip(slot) {
        task.carry_bytes(server, slot).await;
    }
}

impl<'r> HandoffTask<'r> {
    fn of(
        place: ClientSocket,
        ends: FourTuple,
        moving: Option<Rehandoff>,
        reader: &'r ConversationContext,
    ) -> HandoffTask<'r> {
        HandoffTask {
            reader,
            ends,
            began: Instant::now(),
            place,
            bytes: Vec::new(),
            wanted: None,
            moving,
            exchange: None,
            advice: None,
            route: None,
            chosen: None,
            server: None,
        }
    }

    async fn carry_out(&mut self, order: TransferOrder) -> TransferInput {
        match order {
            TransferOrder::Look => self.check_rehandoff().await,
            TransferOrder::Pass => {
                self.part(|ends, moving| ControlQuery::Pass { ends, held: moving.held }).await
            }
            TransferOrder::Return => {
                self.part(|ends, moving| ControlQuery::Return { ends, server: moving.held.server }).await
            }
            TransferOrder::End => {
                self.part(|ends, moving| ControlQuery::End { ends, held: moving.held }).await
            }
            TransferOrder::Release => self.release(),
            TransferOrder::Dispatch => self.dispatch(),
            TransferOrder::Listen => self.listen().await,
            TransferOrder::Read => self.read().await,
            TransferOrder::Choose => self.choose().await,
            TransferOrder::Export => self.export(),
            TransferOrder::Offer { missing } => self.offer(missing),
            TransferOrder::Commit { replayed } => self.commit(replayed).await,
            TransferOrder::Restore => self.restore(),
            TransferOrder::Keep => self.query_control(ControlQuery::Keep { ends: self.ends }).await,
            TransferOrder::Reach => self.reach().await,
            TransferOrder::Answer(word) => self.answer(word).await,
            // The caller acquires the slot.
            TransferOrder::TakePlace(_) => TransferInput::Done,
        }
    }

    /// Counts and publishes an event of the transfer.
    fn count_event(&self, notice: TransferEvent) {
        let lccp_node = &self.reader.lccp_node;
        lccp_node.count(notice);
        match (notice, lccp_node.dispatcher_elsewhere()) {
            (TransferEvent::Alone { silent: true }, Some(node)) => {
                lccp_node.dispatcher_answers(node, false, true)
            }
            (TransferEvent::Settled { outcome, word }, _) => self.record_outcome(outcome, word),
            _ => {}
        }
    }

    fn record_outcome(&self, outcome: TransferOutcome, word: Option<FinalResponse>) {
        let client = self.ends.client;
        tracing::debug!(%client, ?outcome, what = self.wanted.as_ref().map(NormalizedRequest::text), "decided a connection's server");
        let mechanism = match outcome {
            TransferOutcome::Given => Mechanism::Punted,
            TransferOutcome::Carried => Mechanism::Spliced,
            TransferOutcome::Refused => Mechanism::Refused,
            TransferOutcome::Unserved => Mechanism::NoServer,
            TransferOutcome::Late => Mechanism::ClientTimeout,
            TransferOutcome::Left => Mechanism::ClientClosed,
            TransferOutcome::Crowded => Mechanism::Evicted,
            TransferOutcome::Unmoved => return self.reader.outcomes.count_not_moved(),
            TransferOutcome::Returned => return,
        };
        let server = match outcome {
            TransferOutcome::Given | TransferOutcome::Carried => self.chosen.map(|chosen| chosen.server),
            _ => None,
        };
        let status = match word {
            Some(FinalResponse::Refused(refusal)) => Some(refusal.status()),
            Some(FinalResponse::Status(status)) => Some(status),
            Some(FinalResponse::TimedOut) => self.speaks_text().then_some(408),
            Some(FinalResponse::Http1Required | FinalResponse::Reset) | None => None,
        };
        let is_routed = server.is_some() || outcome == TransferOutcome::Unserved;
        self.reader.outcomes.count(mechanism);
        self.reader.recorder.decided(&HandoffRecord {
            ends: self.ends,
            mechanism,
            head: &self.bytes,
            route: self.route.filter(|_| is_routed),
            server,
            status,
            at: SystemTime::now(),
            latency: self.began.elapsed(),
        });
    }

    /// Sends the control loop a query that needs no reply.
    async fn query_control(&self, question: ControlQuery) -> TransferInput {
        self.reader.control.send(question).await;
        TransferInput::Done
    }

    /// Sends a query about a connection that a server holds.
    async fn part(&mut self, question: impl FnOnce(FourTuple, Rehandoff) -> ControlQuery) -> TransferInput {
        self.exchange = None;
        match self.moving.take() {
            Some(moving) => self.query_control(question(self.ends, moving)).await,
            None => TransferInput::Done,
        }
    }

    /// Checks if the held request belongs to another server. Unlike the data plane, also matches
    /// complex routes.
    async fn check_rehandoff(&self) -> TransferInput {
        let Some(moving) = &self.moving else { return TransferInput::Leaves };
        let HeadClass::Wanted(wanted) = classify(&moving.payload) else { return TransferInput::Leaves };
        match self.reader.control.stays(self.ends, &wanted, moving.held.server).await {
            true => TransferInput::Stays,
            false => TransferInput::Leaves,
        }
    }

    fn release(&mut self) -> TransferInput {
        let Some(moving) = &self.moving else { return TransferInput::PeerDead };
        if self.exchange.is_none() {
            self.exchange = self.reader.lccp_node.exchange(moving.at, Receptor::Distributor, &self.ends);
        }
        let Some(exchange) = &self.exchange else { return TransferInput::PeerDead };
        let (rcv_nxt, snd_nxt) = (moving.header.sequence, moving.header.acknowledgment);
        exchange.send(MessageBody::Release { socket: exchange.socket(), rcv_nxt, snd_nxt });
        TransferInput::Answered
    }

    fn dispatch(&mut self) -> TransferInput {
        let lccp_node = &self.reader.lccp_node;
        let Some(node) = lccp_node.dispatcher_elsewhere() else { return TransferInput::Undispatched };
        // A request too long for a message is decided here, which is no failure.
        let Some(content) = self.wanted.as_ref().and_then(NormalizedRequest::content) else {
            return TransferInput::PeerDead;
        };
        if self.exchange.is_none() {
            self.exchange = lccp_node.exchange(node, Receptor::Dispatcher, &self.ends);
        }
        let Some(exchange) = &self.exchange else {
            lccp_node.dispatcher_answers(node, false, false);
            return TransferInput::PeerDead;
        };
        exchange.send(MessageBody::DispatchRequest { socket: exchange.socket(), content });
        TransferInput::Answered
    }

    async fn listen(&mut self) -> TransferInput {
        let Some(exchange) = &mut self.exchange else { return TransferInput::PeerDead };
        loop {
            return match exchange.answer().await {
                MessageBody::HandoffAck { missing, .. } => TransferInput::Acknowledged { missing },
                MessageBody::Error { code, .. } => TransferInput::Denied(code),
                MessageBody::DispatchReply { server, .. } => {
                    self.advice = Some(server);
                    TransferInput::Advised
                }
                MessageBody::Released { socket, state } => {
                    let handed = ReceivedConnection { state, send: Vec::new(), receive: Vec::new() };
                    let rests = self.moving.as_ref().filter(|moving| {
                        (moving.header.sequence, moving.header.acknowledgment)
                            == (state.rcv_nxt, state.snd_nxt)
                    });
                    let Some(moving) = rests else { return TransferInput::Denied(ErrorCode::Unknown) };
                    let saved = taken_up(moving, state::saved(socket, handed));
                    self.place = ClientSocket::Exported(Box::new(Exported { saved, announced: None }));
                    TransferInput::Released
                }
                _ => continue,
            };
        }
    }

    /// Reads until the request is complete.
    async fn read(&mut self) -> TransferInput {
        let ClientSocket::Local(stream) = &mut self.place else { return TransferInput::Left };
        self.began = Instant::now();
        let mut buffer = vec![0; 16 * 1024];
        while self.bytes.len() < READ_MAX {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return TransferInput::Left,
                Ok(len) => self.bytes.extend_from_slice(buffer.get(..len).unwrap_or_default()),
            }
            match classify(&self.bytes) {
                HeadClass::Wanted(wanted) => {
                    let hello = wanted.is_hello();
                    self.wanted = Some(wanted);
                    return TransferInput::Wanted { hello };
                }
                HeadClass::Refused(refusal) => return TransferInput::Refused(refusal.word()),
                HeadClass::Incomplete => {}
            }
        }
        TransferInput::Refused(HeadRefusal::Request(http::HttpRefusal::TooLarge).word())
    }

    async fn choose(&mut self) -> TransferInput {
        // The dispatcher has answered, or its timeout is over.
        self.exchange = None;
        let Some(wanted) = &self.wanted else { return TransferInput::Unserved };
        let (route, chosen) = self.reader.control.choose(self.ends, wanted, self.advice).await;
        (self.route, self.chosen) = (route.map(|route| u64::from(route) + 1), chosen);
        match chosen {
            Some(ChosenTarget { takes, advised, .. }) => TransferInput::Chosen { takes, advised },
            None => TransferInput::Unserved,
        }
    }

    fn export(&mut self) -> TransferInput {
        let place = std::mem::replace(&mut self.place, ClientSocket::Remote);
        let (ClientSocket::Local(stream), Some(chosen)) = (place, self.chosen) else {
            return TransferInput::NotExported;
        };
        let Ok(socket) = stream.into_std() else { return TransferInput::NotExported };
        match repair::save(socket, &self.bytes) {
            Ok(saved) => {
                let lccp_node = &self.reader.lccp_node;
                self.exchange = lccp_node.exchange(chosen.own.ip(), Receptor::Distributor, &self.ends);
                let image =
                    state::transfer(&saved).filter(|_| self.exchange.is_some()).map(|(_, image)| image);
                let len = image.as_ref().map(lccp::TransferImage::queued_len);
                self.place = ClientSocket::Exported(Box::new(Exported { saved, announced: image }));
                TransferInput::Exported { len }
            }
            Err(not_saved) => {
                tracing::debug!(client = %self.ends.client, error = %not_saved.error, "failed to hand off a connection");
                if let Ok(stream) = TcpStream::from_std(not_saved.socket) {
                    self.place = ClientSocket::Local(stream);
                }
                TransferInput::NotExported
            }
        }
    }

    fn offer(&self, missing: u32) -> TransferInput {
        if let (ClientSocket::Exported(exported), Some(exchange)) = (&self.place, &self.exchange) {
            let socket = exchange.socket();
            let pieces = exported.announced.iter().flat_map(|image| image.pieces(missing));
            pieces.for_each(|piece| exchange.send(MessageBody::Handoff { socket, piece }));
        }
        TransferInput::Answered
    }

    async fn commit(&mut self, replayed: bool) -> TransferInput {
        // From now on, the server may be queried about the connection's next request.
        self.exchange = None;
        let (ClientSocket::Exported(exported), Some(chosen)) = (&self.place, self.chosen) else {
            return TransferInput::Committed(false);
        };
        let packets = if replayed { repair::replay(&exported.saved, chosen.mss) } else { Vec::new() };
        let (answer, committed) = oneshot::channel();
        let question = ControlQuery::Give { ends: self.ends, server: chosen.server, packets, answer };
        let is_sent = self.reader.control.send(question).await;
        TransferInput::Committed(is_sent && committed.await.unwrap_or_default())
    }

    fn restore(&mut self) -> TransferInput {
        self.exchange = None;
        let ClientSocket::Exported(exported) = &self.place else { return TransferInput::Restored(false) };
        match restore(&exported.saved) {
            Ok(stream) => {
                self.place = ClientSocket::Local(stream);
                TransferInput::Restored(true)
            }
            Err(error) => {
                tracing::debug!(client = %self.ends.client, error, "failed to restore a connection on this host");
                TransferInput::Restored(false)
            }
        }
    }

    async fn reach(&mut self) -> TransferInput {
        let Some(chosen) = self.chosen else { return TransferInput::Reached(false) };
        self.server = TcpStream::connect(chosen.own).await.ok();
        TransferInput::Reached(self.server.is_some())
    }

    /// True if the client may understand an HTTP response in plain text.
    fn speaks_text(&self) -> bool {
        self.bytes.first().is_some_and(u8::is_ascii_alphabetic)
    }

    async fn answer(&mut self, word: FinalResponse) -> TransferInput {
        let speaks_text = self.speaks_text();
        let ClientSocket::Local(stream) = &mut self.place else { return TransferInput::Done };
        let last = match word {
            FinalResponse::Refused(refusal) => last_bytes(&Response::refusal(refusal)),
            FinalResponse::Status(502) => last_bytes(&Response::sentence(502, UNREACHED)),
            FinalResponse::Status(status) => last_bytes(&Response::sentence(status, UNSERVED)),
            // A client that has not sent a whole request gets 408 (RFC 9110, section 15.5.9). With
            // TLS, the director can't send a status.
            FinalResponse::TimedOut if speaks_text => last_bytes(&Response::refusal(HttpRefusal::Timeout)),
            FinalResponse::Http1Required => HTTP_1_REQUIRED.to_vec(),
            FinalResponse::TimedOut | FinalResponse::Reset => {
                reset(stream);
                return TransferInput::Done;
            }
        };
        end(stream, &last, true, GOODBYE).await;
        TransferInput::Done
    }

    /// Splices a connection that can't be handed off.
    async fn carry_bytes(mut self, mut server: TcpStream, mut slot: ConnectionSlot) {
        let ClientSocket::Local(mut client) = std::mem::replace(&mut self.place, ClientSocket::Remote) else {
            return;
        };
        let mut first = std::mem::take(&mut self.bytes);
        if self.chosen.is_some_and(|chosen| chosen.proxied) {
            first.splice(0..0, proxy::header(&self.ends));
        }
        let carrying = async {
            if server.write_all(&first).await.is_ok() {
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        };
        if slot.unless_evicted(carrying).await.is_none() {
            self.record_outcome(TransferOutcome::Crowded, None);
            reset(&client);
            reset(&server);
        }
    }
}

impl HeadRefusal {
    /// Returns the response to the client.
    fn word(self) -> FinalResponse {
        match self {
            HeadRefusal::Request(refusal) => FinalResponse::Refused(refusal),
            HeadRefusal::Http2 => FinalResponse::Http1Required,
            HeadRefusal::Unreadable => FinalResponse::Reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the numbers of `docs/how-it-works/handoff.md`. A connection also needs its socket,
    /// the client's bytes and a read buffer.
    #[test]
    fn a_connection_takes_less_than_a_kilobyte() {
        let saved = size_of::<Exported>();
        let all = size_of::<Transfer>() + size_of::<HandoffTask<'_>>() + saved;
        assert!(all < 1_024, "{all} bytes, {saved} of them for what was saved");
    }
}
