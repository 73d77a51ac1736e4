//! One client: read, then given to a server, or told why not.

use std::time::{Instant, SystemTime};

use evener_dataplane::repair;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::head::{HEAD_MAX, Judged, Refusal, Wanted, judge};
use super::seats::Seat;
use super::{Chosen, FourTuple, PATIENCE, Question, Reader, proxy, reset, restore};
use crate::lccp::Given;
use crate::record::{Decided, Mechanism};

/// Bytes that are read before somebody must be found for them.
const READ_MAX: usize = HEAD_MAX + 16 * 1024;
/// SETTINGS, and GOAWAY with HTTP_1_1_REQUIRED (RFC 9113, sections 6.5, 6.8 and 7).
const HTTP_1_REQUIRED: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d";

/// What a client's first bytes led to.
enum Read {
    Wanted(Wanted),
    Refused(Refusal),
    Late,
    Left,
}

/// One conversation, from when it was taken up until all is decided about it.
struct Talk<'r> {
    ends: FourTuple,
    /// Whether a server would make a socket of the client's segments without a word about them.
    vouched: bool,
    began: Instant,
    reader: &'r Reader,
}

/// What came of one.
#[derive(Default)]
struct Outcome {
    /// Counted from 1.
    route: Option<u64>,
    server: Option<u16>,
    /// Of the answer, if it is given here.
    status: Option<u16>,
}

impl Talk<'_> {
    /// Counts and tells what came of it, `head` being what the client has said.
    fn settle(&self, head: &[u8], mechanism: Mechanism, outcome: &Outcome) {
        self.reader.outcomes.count(mechanism);
        let Outcome { route, server, status } = *outcome;
        let (ends, at, took) = (self.ends, SystemTime::now(), self.began.elapsed());
        self.reader.recorder.decided(&Decided { ends, mechanism, head, route, server, status, at, took });
    }

    /// Ends the connection: somebody else needs its place more.
    fn turn_away(&self, stream: &TcpStream, head: &[u8]) {
        reset(stream);
        self.settle(head, Mechanism::Crowded, &Outcome::default());
    }
}

/// Talks with a client until it is somebody else's. A cookie has `vouched` for its first segments, or this is the middle of its
/// connection. It has this place meanwhile, unless somebody else needs it more.
pub(super) async fn hold(
    mut stream: TcpStream,
    ends: FourTuple,
    vouched: bool,
    mut seat: Seat,
    reader: &Reader,
) {
    let mut bytes = Vec::new();
    let talk = Talk { ends, vouched, began: Instant::now(), reader };
    let reading = timeout(PATIENCE, read(&mut stream, &mut bytes));
    let Some(read) = seat.unless_needed(reading).await else {
        return talk.turn_away(&stream, &bytes);
    };
    match read.unwrap_or(Read::Late) {
        Read::Wanted(wanted) => pass_on(stream, &talk, bytes, wanted, seat).await,
        Read::Refused(refusal) => {
            let status = refusal.answer().map(|(status, _)| status);
            talk.settle(&bytes, Mechanism::Refused, &Outcome { status, ..Outcome::default() });
            tracing::debug!(client = %ends.client, ?refusal, "refused");
            seat.unless_needed(refuse(&mut stream, refusal)).await;
        }
        Read::Late => {
            // Who has not said a whole request is told so (RFC 9110, section 15.5.9); of TLS nothing can be told.
            let told = bytes.first().is_some_and(u8::is_ascii_alphabetic);
            talk.settle(
                &bytes,
                Mechanism::Late,
                &Outcome { status: told.then_some(408), ..Outcome::default() },
            );
            if told {
                seat.unless_needed(answer(&mut stream, 408, "Request Timeout")).await;
            } else {
                reset(&stream);
            }
        }
        Read::Left => talk.settle(&bytes, Mechanism::Left, &Outcome::default()),
    }
}

/// Reads until it is clear what the client wants.
async fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Read {
    let mut buffer = vec![0; 16 * 1024];
    while bytes.len() < READ_MAX {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return Read::Left,
            Ok(len) => bytes.extend_from_slice(buffer.get(..len).unwrap_or_default()),
        }
        match judge(bytes) {
            Judged::Wanted(wanted) => return Read::Wanted(wanted),
            Judged::Refused(refusal) => return Read::Refused(refusal),
            Judged::Incomplete => {}
        }
    }
    Read::Refused(Refusal::HeadTooLarge)
}

async fn pass_on(stream: TcpStream, talk: &Talk<'_>, bytes: Vec<u8>, wanted: Wanted, mut seat: Seat) {
    let Talk { ends, reader, .. } = *talk;
    let (text, is_hello) = (wanted.text(), wanted.is_hello());
    let advice = reader.speaker.dispatch(&ends, &wanted).await;
    let choosing = timeout(PATIENCE, reader.asking.choose(ends, &wanted, advice));
    let Some(found) = seat.unless_needed(choosing).await else {
        return talk.turn_away(&stream, &bytes);
    };
    let (route, chosen) = found.unwrap_or_default();
    let route = route.map(|route| u64::from(route) + 1);
    seat.keep();
    if advice.is_some() && !chosen.is_some_and(|chosen| chosen.advised) {
        reader.speaker.disbelieve();
    }
    let Some(chosen) = chosen else {
        let status = (!is_hello).then_some(503);
        talk.settle(&bytes, Mechanism::Unserved, &Outcome { route, status, ..Outcome::default() });
        tracing::debug!(client = %ends.client, text, "nobody serves this");
        let mut stream = stream;
        if is_hello {
            return reset(&stream);
        }
        seat.offer();
        seat.unless_needed(answer(&mut stream, 503, "Service Unavailable")).await;
        return;
    };
    let outcome = Outcome { route, server: Some(chosen.server), status: None };
    match give(stream, talk, &bytes, chosen).await {
        Ok(()) => {
            talk.settle(&bytes, Mechanism::Punted, &outcome);
            tracing::debug!(client = %ends.client, text, server = chosen.server, "given");
        }
        Err(stream) => {
            // From here on it has another place: it may last.
            drop(seat);
            splice(stream, talk, &bytes, chosen, outcome).await;
        }
    }
}

/// Gives the open connection to the server; or gives it back, as it was.
async fn give(stream: TcpStream, talk: &Talk<'_>, bytes: &[u8], chosen: Chosen) -> Result<(), TcpStream> {
    let Talk { ends, vouched, reader, .. } = *talk;
    let keep = || reader.asking.ask(Question::Keep { ends });
    if !chosen.takes {
        keep().await;
        return Err(stream);
    }
    let Ok(socket) = stream.into_std() else { return Ok(()) };
    let saved = match repair::save(socket, bytes) {
        Ok(saved) => saved,
        Err(not_saved) => {
            tracing::debug!(client = %ends.client, error = %not_saved.error, "not given");
            keep().await;
            return match TcpStream::from_std(not_saved.socket) {
                Ok(stream) => Err(stream),
                Err(_) => Ok(()),
            };
        }
    };
    let told = reader.speaker.give(chosen.own.ip(), &saved).await;
    let is_in_vain = told == Given::Refused || (told == Given::Unspoken && !vouched);
    if !is_in_vain {
        // Where nobody says that the server has it, its segments go there as they did here: they make no second socket.
        let is_there = told == Given::Taken;
        let packets = if is_there { Vec::new() } else { repair::replay(&saved, chosen.mss) };
        let (answer, given) = oneshot::channel();
        let question = Question::Give { ends, server: chosen.server, packets, answer };
        let given = reader.asking.ask(question).await && given.await.unwrap_or_default();
        // What may be there must not be here, too.
        if given || matches!(told, Given::Taken | Given::Unanswered) {
            return Ok(());
        }
    }
    let restored = restore(&saved);
    // Only now: what the client has said meanwhile finds its socket.
    keep().await;
    match restored {
        Ok(stream) => Err(stream),
        Err(error) => {
            tracing::debug!(client = %ends.client, error, "a connection that nobody took is lost");
            Ok(())
        }
    }
}

/// Carries the bytes both ways, where the connection can't be given: it is served all the same.
async fn splice(mut stream: TcpStream, talk: &Talk<'_>, bytes: &[u8], chosen: Chosen, outcome: Outcome) {
    let mut seat = talk.reader.carried.take(talk.ends.client.ip()).await;
    let reaching = timeout(PATIENCE, TcpStream::connect(chosen.own));
    let Some(reached) = seat.unless_needed(reaching).await else { return talk.turn_away(&stream, bytes) };
    let reached = reached.ok().and_then(Result::ok);
    let status = reached.is_none().then_some(502);
    talk.settle(bytes, Mechanism::Spliced, &Outcome { status, ..outcome });
    let Some(mut server) = reached else {
        seat.unless_needed(answer(&mut stream, 502, "Bad Gateway")).await;
        return;
    };
    let first = if chosen.proxied { [&proxy::header(&talk.ends), bytes].concat() } else { bytes.to_vec() };
    let carrying = async {
        if server.write_all(&first).await.is_ok() {
            let _ = copy_bidirectional(&mut stream, &mut server).await;
        }
    };
    if seat.unless_needed(carrying).await.is_none() {
        talk.turn_away(&stream, &[]);
        reset(&server);
    }
}

impl Refusal {
    /// What a client is told, if it speaks HTTP/1.
    fn answer(self) -> Option<(u16, &'static str)> {
        match self {
            Refusal::BadRequest => Some((400, "Bad Request")),
            Refusal::Misdirected => Some((421, "Misdirected Request")),
            Refusal::HeadTooLarge => Some((431, "Request Header Fields Too Large")),
            Refusal::Http2 | Refusal::Unreadable => None,
        }
    }
}

async fn refuse(stream: &mut TcpStream, refusal: Refusal) {
    match (refusal.answer(), refusal) {
        (Some((status, reason)), _) => answer(stream, status, reason).await,
        (None, Refusal::Http2) => end(stream, HTTP_1_REQUIRED).await,
        (None, _) => reset(stream),
    }
}

/// Answers, and hangs up.
async fn answer(stream: &mut TcpStream, status: u16, reason: &str) {
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
    let _ = timeout(PATIENCE / 5, say).await;
}
