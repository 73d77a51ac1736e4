//! The turn on a connection that was handed off: whether the client waits for an answer or the
//! server for the next request. `bpf/server/exchange.h` is its copy in C.
//!
//! Only in the latter case can the connection be taken from this host. Followed are plain turns
//! alone, where one segment has one request, whole and without a body, and where the answer says
//! how long it is (RFC 9112, section 6.3). An exchange that was anything else once stays so:
//! in doubt, the connection is taken for busy.

use alloc::vec::Vec;

use super::message::{Head, LENGTH_MAX, MessageParse};

/// Bytes of a segment that are read as a head at most.
const MESSAGE_MAX: usize = 4_096;
/// The same of an answer's, whose head may come in several segments.
const ANSWER_HEAD_MAX: usize = 2_048;
/// The version that answers begin with.
const VERSION: &[u8] = b"HTTP/1.1";
/// The end of a body in chunks without trailers (RFC 9112, section 7.1), with that of the chunk or
/// head before.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
/// The line end that some clients send behind a request or before one, and servers pass over (RFC
/// 9112, section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";
/// Bytes that are kept of what was said last, in one word.
const TAIL_LEN: usize = 8;

/// A segment's data.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// Sequence number of its first byte.
    pub sequence: u32,
    /// The number that it acknowledges.
    pub acknowledgment: u32,
    /// Whether part of it is urgent.
    pub urgent: bool,
    /// The data.
    pub data: &'a [u8],
}

impl Payload<'_> {
    fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.data.len() as u32)
    }

    /// Whether this is one GET request, whole, perhaps behind an empty line, and nothing else.
    fn is_request(&self) -> bool {
        let data = self.data.strip_prefix(EMPTY_LINE).unwrap_or(self.data);
        if self.urgent || data.len() > MESSAGE_MAX || !data.starts_with(b"GET ") {
            return false;
        }
        Head::read(data)
            .is_some_and(|head| head.len == data.len() && head.lengths + head.codings == 0 && !head.closes)
    }

    /// Whether this is an empty line alone: no request, and nothing that is answered.
    fn is_empty_line(&self) -> bool {
        !self.urgent && self.data == EMPTY_LINE
    }
}

/// Two numbers that are written at once, since the other direction may be at work at the same time.
/// Both directions name where the answer begins: by that the two belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeSpan {
    /// Sequence number of the answer's first byte.
    pub begin: u32,
    /// Where the request ends, or the answer.
    pub end: u32,
}

/// The last request of a connection, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The request. Written by what comes in.
    pub request: ExchangeSpan,
    /// The answer; it ends where it begins as long as its end isn't known. Written, as is what
    /// follows, by what leaves.
    pub answered: ExchangeSpan,
    /// Of an answer in chunks, the last bytes; the very last one is lowest.
    pub tail: u64,
    /// Of an answer in chunks, what is behind them.
    pub sent: u32,
    /// Whether the answer is one in chunks.
    pub chunked: bool,
    /// Whether there was never anything but whole requests and their answers, in turn.
    pub plain: bool,
    /// Where that answer begins of which something left before its first.
    pub ahead: u32,
    /// The beginning of the answer's head, while that isn't whole.
    pub head: Vec<u8>,
}

/// Whether a sequence number stands at another one or before it (RFC 9293, section 3.4).
fn is_up_to(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) as i32 <= 0
}

impl Exchange {
    /// From the first segment of a connection that is made here.
    pub fn begin(first: &Payload<'_>) -> Exchange {
        // The end of an answer that nobody has asked for.
        let before = first.acknowledgment.wrapping_sub(1);
        Exchange {
            request: ExchangeSpan { begin: first.acknowledgment, end: first.end() },
            answered: ExchangeSpan { begin: before, end: before },
            tail: 0,
            sent: 0,
            chunked: false,
            plain: first.is_request(),
            ahead: before,
            head: Vec::new(),
        }
    }

    /// Follows the client's next bytes.
    pub fn follow_request(&mut self, payload: &Payload<'_>) {
        // Something comes again.
        if !self.plain || is_up_to(payload.end(), self.request.end) {
            return;
        }
        if payload.sequence == self.request.end && payload.is_empty_line() {
            self.request.end = payload.end();
            return;
        }
        let ExchangeSpan { begin, end } = self.answered;
        // It has the whole answer to what it has asked before, and says so: only now it asks again.
        let in_turn = payload.sequence == self.request.end
            && begin == self.request.begin
            && end != begin
            && payload.acknowledgment == end;
        if in_turn && payload.is_request() {
            self.request = ExchangeSpan { begin: payload.acknowledgment, end: payload.end() };
        } else {
            self.plain = false;
        }
    }

    /// Follows the server's bytes; with `last` they are the last.
    pub fn answer(&mut self, payload: &Payload<'_>, last: bool) {
        if self.plain {
            self.plain = !last && self.goes_on(payload);
        }
    }

    fn goes_on(&mut self, payload: &Payload<'_>) -> bool {
        let begin = self.request.begin;
        let ExchangeSpan { begin: known, end } = self.answered;
        if is_up_to(payload.end(), begin) {
            return true; // of an answer before, that comes again
        }
        if known != begin {
            return self.begins_or_overtakes(payload, begin);
        }
        if !self.chunked {
            return is_up_to(payload.end(), end);
        }
        if is_up_to(payload.end(), self.sent) {
            return true; // this, too
        }
        if payload.sequence != self.sent || end != begin {
            return false;
        }
        self.add_chunks(payload);
        true
    }

    /// Later bytes of an answer of which the first have not left. Segments that waited until a
    /// neighbour was found are overtaken by those sent once it is: a host's queue for it is emptied
    /// on one processor, while a process goes on on another.
    fn begins_or_overtakes(&mut self, payload: &Payload<'_>, begin: u32) -> bool {
        let next = begin.wrapping_add(self.head.len() as u32);
        if payload.sequence == next {
            return self.begin_answer(payload, begin);
        }
        if is_up_to(payload.end(), next) {
            return true; // of its head, that comes again
        }
        self.ahead = begin;
        !is_up_to(payload.sequence, next)
    }

    /// The first of an answer, or more of its head; false where its end is not to be known.
    fn begin_answer(&mut self, payload: &Payload<'_>, begin: u32) -> bool {
        let mut start = core::mem::take(&mut self.head);
        start.extend(payload.data.iter().take(ANSWER_HEAD_MAX - start.len()));
        let known = start.len().min(VERSION.len());
        if start.get(..known) != VERSION.get(..known) {
            return false;
        }
        let head = match Head::read_up_to(&start, LENGTH_MAX) {
            MessageParse::Whole(head) if !head.closes => head,
            MessageParse::Cut if start.len() < ANSWER_HEAD_MAX => {
                self.head = start;
                return true;
            }
            MessageParse::Whole(_) | MessageParse::Cut | MessageParse::Odd => return false,
        };
        let Some(status) = start.strip_prefix(VERSION).and_then(|rest| rest.first_chunk::<4>()) else {
            return false;
        };
        // Provisional ones are not the answer.
        if !(b" 200"..=b" 599").contains(&status) {
            return false;
        }
        let mut end = begin.wrapping_add(head.len as u32);
        self.chunked = false;
        // These have no body, whatever they say (RFC 9112, section 6.3).
        if !matches!(status, b" 204" | b" 304") {
            if head.lengths + head.codings != 1 {
                return false;
            }
            if head.codings == 1 {
                // Chunks are followed in order.
                if self.ahead == begin {
                    return false;
                }
                self.chunked = true;
                // The head's last line ends in it, and may have begun with the segment before.
                self.tail = b'\r'.into();
                self.answered = ExchangeSpan { begin, end: begin };
                self.add_chunks(payload);
                return true;
            }
            end = end.wrapping_add(head.length as u32);
        }
        self.answered = ExchangeSpan { begin, end };
        is_up_to(payload.end(), end)
    }

    /// More of an answer in chunks; it may be the end.
    fn add_chunks(&mut self, payload: &Payload<'_>) {
        let last = payload.data.len().saturating_sub(TAIL_LEN);
        let tail = payload.data.iter().skip(last).fold(self.tail, |tail, byte| tail << 8 | u64::from(*byte));
        self.tail = tail;
        self.sent = payload.end();
        if self.tail.to_be_bytes().ends_with(LAST_CHUNK) {
            self.answered = ExchangeSpan { end: payload.end(), ..self.answered };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const BEHIND_LINE: &[u8] = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

    /// The state of a connection on which client and server send these in turn: the client first.
    fn after(payload: &[&[u8]]) -> Option<Exchange> {
        let (mut next, mut exchange) = ([7_u32, 9_u32], None::<Exchange>);
        for (at, data) in payload.iter().enumerate() {
            let (from, to) = if at % 2 == 0 { (0, 1) } else { (1, 0) };
            let payload = Payload { sequence: next[from], acknowledgment: next[to], urgent: false, data };
            match &mut exchange {
                None => exchange = Some(Exchange::begin(&payload)),
                Some(exchange) if data.is_empty() => assert!(exchange.plain),
                Some(exchange) if from == 0 => exchange.follow_request(&payload),
                Some(exchange) => exchange.answer(&payload, false),
            }
            next[from] = next[from].wrapping_add(data.len() as u32);
        }
        exchange
    }

    #[test]
    fn an_empty_line_is_no_reason_for_doubt() {
        let plain = |payload: &[&[u8]]| after(payload).is_some_and(|exchange| exchange.plain);
        assert!(plain(&[BEHIND_LINE, ANSWER, GET, ANSWER, BEHIND_LINE, ANSWER]));
        assert!(plain(&[GET, ANSWER, b"\r\n", b"", GET, ANSWER]));
        assert!(plain(&[GET, b"", b"\r\n", ANSWER, GET, ANSWER]));
        for other in [&b"\n"[..], b"\r", b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\n\r"] {
            assert!(!plain(&[GET, ANSWER, other]), "{other:?}");
        }
    }
}
