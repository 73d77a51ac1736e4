//! One connection that is read here, or moves: carries out what its [`Transfer`] orders.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use evener_core::director::transfer::{Input, Notice, Order, Outcome, PATIENCE_MS, Transfer, Word};
use evener_core::net::http;
use evener_core::node::lccp::{self, Body, ErrorCode, Handed, Receptor};
use evener_dataplane::repair::{self, Saved};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::head::{HEAD_MAX, Judged, Refusal, Wanted, judge};
use super::lccp::{Exchange, now_ms, state};
use super::rehandoff::{Move, taken_up};
use super::{Chosen, FourTuple, Question, Reader, proxy, reset, restore};
use crate::record::{Decided, Mechanism};
use crate::runtime::seats::Seat;

/// Bytes that are read before somebody must be found for them.
const READ_MAX: usize = HEAD_MAX + 16 * 1024;
/// SETTINGS, and GOAWAY with HTTP_1_1_REQUIRED (RFC 9113, sections 6.5, 6.8 and 7).
const HTTP_1_REQUIRED: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d";
/// How long a client may take to hear its last word.
const GOODBYE: Duration = Duration::from_millis(PATIENCE_MS / 5);

/// Where the connection is.
enum Place {
    /// In a socket of this process.
    Here(TcpStream),
    /// In no socket.
    Nowhere(Box<Exported>),
    /// With a server.
    There,
}

/// A connection without a socket.
struct Exported {
    saved: Saved,
    /// What its server is to be told of it, if that can be.
    told: Option<lccp::Transfer>,
}

/// All that one connection is moved with.
struct Carrier<'r> {
    reader: &'r Reader,
    ends: FourTuple,
    began: Instant,
    place: Place,
    /// What its client has said here, and what that comes to.
    bytes: Vec<u8>,
    wanted: Option<Wanted>,
    /// The later request that other servers are for.
    moving: Option<Move>,
    /// With whom is spoken about it.
    exchange: Option<Exchange>,
    advice: Option<SocketAddr>,
    /// Counted from 1.
    route: Option<u64>,
    chosen: Option<Chosen>,
    /// A connection to its server, where its bytes are carried.
    server: Option<TcpStream>,
}

/// Talks with a client until it is somebody else's. It has this place meanwhile, unless somebody else needs it more.
pub(super) async fn accepted(stream: TcpStream, ends: FourTuple, seat: Seat, reader: &Reader) {
    let carrier = Carrier::of(Place::Here(stream), ends, None, reader);
    run(Transfer::accepted(now_ms()), carrier, Some(seat)).await;
}

/// Moves a connection, or has it stay, or end.
pub(crate) async fn rehandoff(moving: Move, reader: Reader) {
    let carrier = Carrier::of(Place::There, moving.ends, Some(moving), &reader);
    run(Transfer::moving(now_ms()), carrier, None).await;
}

async fn run(mut transfer: Transfer, mut carrier: Carrier<'_>, mut seat: Option<Seat>) {
    let (client, mut gave_way) = (carrier.ends.client.ip(), true);
    while let Some(order) = transfer.order() {
        let gives_way = transfer.gives_way();
        match &mut seat {
            Some(seat) if gives_way && !gave_way => seat.offer(),
            Some(seat) if gave_way && !gives_way => seat.keep(),
            _ => {}
        }
        gave_way = gives_way;
        let left = Duration::from_millis(transfer.deadline_ms().saturating_sub(now_ms()));
        let done = match (order, &mut seat) {
            (Order::TakePlace(room), _) => {
                seat = None;
                let taken = timeout(left, carrier.reader.seats(room).take(client)).await;
                gave_way = true;
                taken.map(|taken| {
                    seat = Some(taken);
                    Input::Seated
                })
            }
            (_, Some(seat)) => {
                let done = timeout(left, seat.unless_needed(carrier.carry_out(order))).await;
                done.map(|done| done.unwrap_or(Input::Crowded))
            }
            (_, None) => timeout(left, carrier.carry_out(order)).await,
        };
        if let Some(notice) = transfer.handle(now_ms(), done.unwrap_or(Input::Timer)) {
            carrier.note(notice);
        }
    }
    if let Some((server, seat)) = carrier.server.take().zip(seat) {
        carrier.carry_bytes(server, seat).await;
    }
}

impl<'r> Carrier<'r> {
    fn of(place: Place, ends: FourTuple, moving: Option<Move>, reader: &'r Reader) -> Carrier<'r> {
        Carrier {
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

    async fn carry_out(&mut self, order: Order) -> Input {
        match order {
            Order::Look => self.look().await,
            Order::Pass => self.part(|ends, moving| Question::Pass { ends, held: moving.held }).await,
            Order::Return => {
                self.part(|ends, moving| Question::Return { ends, server: moving.held.server }).await
            }
            Order::End => self.part(|ends, moving| Question::End { ends, held: moving.held }).await,
            Order::Release => self.release(),
            Order::Dispatch => self.dispatch(),
            Order::Listen => self.listen().await,
            Order::Read => self.read().await,
            Order::Choose => self.choose().await,
            Order::Export => self.export(),
            Order::Offer { missing } => self.offer(missing),
            Order::Commit { replayed } => self.commit(replayed).await,
            Order::Restore => self.restore(),
            Order::Keep => self.ask(Question::Keep { ends: self.ends }).await,
            Order::Reach => self.reach().await,
            Order::Answer(word) => self.answer(word).await,
            // A place is taken by who has it.
            Order::TakePlace(_) => Input::Done,
        }
    }

    /// Counts and tells what came of it.
    fn note(&self, notice: Notice) {
        let speaker = &self.reader.speaker;
        speaker.count(notice);
        match (notice, speaker.dispatcher_elsewhere()) {
            (Notice::Alone { silent: true }, Some(node)) => speaker.dispatcher_answers(node, false, true),
            (Notice::Settled { outcome, word }, _) => self.settle(outcome, word),
            _ => {}
        }
    }

    fn settle(&self, outcome: Outcome, word: Option<Word>) {
        let client = self.ends.client;
        tracing::debug!(%client, ?outcome, what = self.wanted.as_ref().map(Wanted::text), "settled");
        let mechanism = match outcome {
            Outcome::Given => Mechanism::Punted,
            Outcome::Carried => Mechanism::Spliced,
            Outcome::Refused => Mechanism::Refused,
            Outcome::Unserved => Mechanism::Unserved,
            Outcome::Late => Mechanism::Late,
            Outcome::Left => Mechanism::Left,
            Outcome::Crowded => Mechanism::Crowded,
            Outcome::Unmoved => return self.reader.outcomes.count_unmoved(),
            Outcome::Returned => return,
        };
        let server = match outcome {
            Outcome::Given | Outcome::Carried => self.chosen.map(|chosen| chosen.server),
            _ => None,
        };
        let status = match word {
            Some(Word::Status(status)) => Some(status),
            Some(Word::TimedOut) => self.speaks_text().then_some(408),
            Some(Word::Http1Required | Word::Reset) | None => None,
        };
        let is_routed = server.is_some() || outcome == Outcome::Unserved;
        self.reader.outcomes.count(mechanism);
        self.reader.recorder.decided(&Decided {
            ends: self.ends,
            mechanism,
            head: &self.bytes,
            route: self.route.filter(|_| is_routed),
            server,
            status,
            at: SystemTime::now(),
            took: self.began.elapsed(),
        });
    }

    /// Has the control loop do something.
    async fn ask(&self, question: Question) -> Input {
        self.reader.asking.ask(question).await;
        Input::Done
    }

    /// The same with what is left of a connection that a server has.
    async fn part(&mut self, question: impl FnOnce(FourTuple, Move) -> Question) -> Input {
        self.exchange = None;
        match self.moving.take() {
            Some(moving) => self.ask(question(self.ends, moving)).await,
            None => Input::Done,
        }
    }

    /// Here complex routes are looked up, too.
    async fn look(&self) -> Input {
        let Some(moving) = &self.moving else { return Input::Leaves };
        let Judged::Wanted(wanted) = judge(&moving.payload) else { return Input::Leaves };
        match self.reader.asking.stays(self.ends, &wanted, moving.held.server).await {
            true => Input::Stays,
            false => Input::Leaves,
        }
    }

    fn release(&mut self) -> Input {
        let Some(moving) = &self.moving else { return Input::Unheard };
        if self.exchange.is_none() {
            self.exchange = self.reader.speaker.exchange(moving.at, Receptor::Distributor, &self.ends);
        }
        let Some(exchange) = &self.exchange else { return Input::Unheard };
        let (rcv_nxt, snd_nxt) = (moving.header.sequence, moving.header.acknowledgment);
        exchange.say(Body::Release { socket: exchange.socket(), rcv_nxt, snd_nxt });
        Input::Said
    }

    fn dispatch(&mut self) -> Input {
        let speaker = &self.reader.speaker;
        let Some(node) = speaker.dispatcher_elsewhere() else { return Input::Undispatched };
        // What is too long to be told is decided here, and that is nobody's fault.
        let Some(content) = self.wanted.as_ref().and_then(Wanted::content) else { return Input::Unheard };
        if self.exchange.is_none() {
            self.exchange = speaker.exchange(node, Receptor::Dispatcher, &self.ends);
        }
        let Some(exchange) = &self.exchange else {
            speaker.dispatcher_answers(node, false, false);
            return Input::Unheard;
        };
        exchange.say(Body::DispatchRequest { socket: exchange.socket(), content });
        Input::Said
    }

    async fn listen(&mut self) -> Input {
        let Some(exchange) = &mut self.exchange else { return Input::Unheard };
        loop {
            return match exchange.answer().await {
                Body::HandoffAck { missing, .. } => Input::Acknowledged { missing },
                Body::Error { code, .. } => Input::Denied(code),
                Body::DispatchReply { server, .. } => {
                    self.advice = Some(server);
                    Input::Advised
                }
                Body::Released { socket, state } => {
                    let handed = Handed { state, send: Vec::new(), receive: Vec::new() };
                    let rests = self.moving.as_ref().filter(|moving| {
                        (moving.header.sequence, moving.header.acknowledgment)
                            == (state.rcv_nxt, state.snd_nxt)
                    });
                    let Some(moving) = rests else { return Input::Denied(ErrorCode::Unknown) };
                    let saved = taken_up(moving, state::saved(socket, handed));
                    self.place = Place::Nowhere(Box::new(Exported { saved, told: None }));
                    Input::Released
                }
                _ => continue,
            };
        }
    }

    /// Reads until it is clear what the client wants.
    async fn read(&mut self) -> Input {
        let Place::Here(stream) = &mut self.place else { return Input::Left };
        self.began = Instant::now();
        let mut buffer = vec![0; 16 * 1024];
        while self.bytes.len() < READ_MAX {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return Input::Left,
                Ok(len) => self.bytes.extend_from_slice(buffer.get(..len).unwrap_or_default()),
            }
            match judge(&self.bytes) {
                Judged::Wanted(wanted) => {
                    let hello = wanted.is_hello();
                    self.wanted = Some(wanted);
                    return Input::Wanted { hello };
                }
                Judged::Refused(refusal) => return Input::Refused(refusal.word()),
                Judged::Incomplete => {}
            }
        }
        Input::Refused(Refusal::Request(http::Refusal::TooLarge).word())
    }

    async fn choose(&mut self) -> Input {
        // Whoever was asked before has answered, or is waited for no more.
        self.exchange = None;
        let Some(wanted) = &self.wanted else { return Input::Unserved };
        let (route, chosen) = self.reader.asking.choose(self.ends, wanted, self.advice).await;
        (self.route, self.chosen) = (route.map(|route| u64::from(route) + 1), chosen);
        match chosen {
            Some(Chosen { takes, advised, .. }) => Input::Chosen { takes, advised },
            None => Input::Unserved,
        }
    }

    fn export(&mut self) -> Input {
        let place = std::mem::replace(&mut self.place, Place::There);
        let (Place::Here(stream), Some(chosen)) = (place, self.chosen) else { return Input::NotExported };
        let Ok(socket) = stream.into_std() else { return Input::NotExported };
        match repair::save(socket, &self.bytes) {
            Ok(saved) => {
                let speaker = &self.reader.speaker;
                self.exchange = speaker.exchange(chosen.own.ip(), Receptor::Distributor, &self.ends);
                let told = state::transfer(&saved).filter(|_| self.exchange.is_some()).map(|(_, told)| told);
                let len = told.as_ref().map(lccp::Transfer::queued_len);
                self.place = Place::Nowhere(Box::new(Exported { saved, told }));
                Input::Exported { len }
            }
            Err(not_saved) => {
                tracing::debug!(client = %self.ends.client, error = %not_saved.error, "not given");
                if let Ok(stream) = TcpStream::from_std(not_saved.socket) {
                    self.place = Place::Here(stream);
                }
                Input::NotExported
            }
        }
    }

    fn offer(&self, missing: u32) -> Input {
        if let (Place::Nowhere(exported), Some(exchange)) = (&self.place, &self.exchange) {
            let socket = exchange.socket();
            let pieces = exported.told.iter().flat_map(|told| told.pieces(missing));
            pieces.for_each(|piece| exchange.say(Body::Handoff { socket, piece }));
        }
        Input::Said
    }

    async fn commit(&mut self, replayed: bool) -> Input {
        // From now on its server may be spoken with about its next request.
        self.exchange = None;
        let (Place::Nowhere(exported), Some(chosen)) = (&self.place, self.chosen) else {
            return Input::Committed(false);
        };
        let packets = if replayed { repair::replay(&exported.saved, chosen.mss) } else { Vec::new() };
        let (answer, committed) = oneshot::channel();
        let question = Question::Give { ends: self.ends, server: chosen.server, packets, answer };
        let is_heard = self.reader.asking.ask(question).await;
        Input::Committed(is_heard && committed.await.unwrap_or_default())
    }

    fn restore(&mut self) -> Input {
        self.exchange = None;
        let Place::Nowhere(exported) = &self.place else { return Input::Restored(false) };
        match restore(&exported.saved) {
            Ok(stream) => {
                self.place = Place::Here(stream);
                Input::Restored(true)
            }
            Err(error) => {
                tracing::debug!(client = %self.ends.client, error, "a connection can't be had here again");
                Input::Restored(false)
            }
        }
    }

    async fn reach(&mut self) -> Input {
        let Some(chosen) = self.chosen else { return Input::Reached(false) };
        self.server = TcpStream::connect(chosen.own).await.ok();
        Input::Reached(self.server.is_some())
    }

    /// Whether the client may understand a text.
    fn speaks_text(&self) -> bool {
        self.bytes.first().is_some_and(u8::is_ascii_alphabetic)
    }

    async fn answer(&mut self, word: Word) -> Input {
        let speaks_text = self.speaks_text();
        let Place::Here(stream) = &mut self.place else { return Input::Done };
        match word {
            Word::Status(status) => answer(stream, status).await,
            // Who has not said a whole request is told so (RFC 9110, section 15.5.9); of TLS nothing can be told.
            Word::TimedOut if speaks_text => answer(stream, 408).await,
            Word::Http1Required => end(stream, HTTP_1_REQUIRED).await,
            Word::TimedOut | Word::Reset => reset(stream),
        }
        Input::Done
    }

    /// Carries the bytes both ways, where the connection can't be given: it is served all the same.
    async fn carry_bytes(mut self, mut server: TcpStream, mut seat: Seat) {
        let Place::Here(mut client) = std::mem::replace(&mut self.place, Place::There) else { return };
        let mut first = std::mem::take(&mut self.bytes);
        if self.chosen.is_some_and(|chosen| chosen.proxied) {
            first.splice(0..0, proxy::header(&self.ends));
        }
        let carrying = async {
            if server.write_all(&first).await.is_ok() {
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        };
        if seat.unless_needed(carrying).await.is_none() {
            self.settle(Outcome::Crowded, None);
            reset(&client);
            reset(&server);
        }
    }
}

impl Refusal {
    /// What a client is told.
    fn word(self) -> Word {
        match self {
            Refusal::Request(refusal) => Word::Status(refusal.status()),
            Refusal::Http2 => Word::Http1Required,
            Refusal::Unreadable => Word::Reset,
        }
    }
}

/// What a status means (RFC 9110, section 15; RFC 6585, section 5).
fn reason(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        505 => "HTTP Version Not Supported",
        _ => "Service Unavailable",
    }
}

/// Answers, and hangs up.
async fn answer(stream: &mut TcpStream, status: u16) {
    let reason = reason(status);
    let body = format!("{status} {reason}\n");
    let head = format!("HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\n");
    let text = format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    end(stream, text.as_bytes()).await;
}

/// Says the last word, and waits a moment for the client to hear it: unread bytes would make a reset of the end
/// (RFC 9112, section 9.6).
async fn end(stream: &mut TcpStream, word: &[u8]) {
    let mut rest = [0; 4096];
    let say = async {
        if stream.write_all(word).await.is_ok() && stream.shutdown().await.is_ok() {
            while matches!(stream.read(&mut rest).await, Ok(1..)) {}
        }
    };
    let _ = timeout(GOODBYE, say).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `docs/handoff.md` has it. Besides, a connection has its socket, what its client has said, and what is read at a time.
    #[test]
    fn a_connection_takes_less_than_a_kilobyte() {
        let saved = size_of::<Exported>();
        let all = size_of::<Transfer>() + size_of::<Carrier<'_>>() + saved;
        assert!(all < 1_024, "{all} bytes, {saved} of them for what was saved");
    }
}
