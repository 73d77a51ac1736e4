//! Turns on a handed off connection: either the client waits for a response, or the server waits
//! for the next request. `bpf/server/exchange.h` is the copy in C.
//!
//! Only a connection that waits for a request can be released. Only plain turns are tracked: one
//! segment has one complete request without body, and the response has a known length (RFC 9112,
//! section 6.3). After any other exchange the connection counts as busy for good.

use alloc::vec::Vec;

use super::message::{Head, LENGTH_MAX, MessageParse};

/// Bytes of a segment that are read as a head at most.
const MESSAGE_MAX: usize = 4_096;
/// Maximum length of a response's head, which may have several segments.
const ANSWER_HEAD_MAX: usize = 2_048;
/// The version that answers begin with.
const VERSION: &[u8] = b"HTTP/1.1";
/// The end of a body in chunks without trailers (RFC 9112, section 7.1), with that of the chunk or
/// head before.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
/// The line end that some clients send behind a request or before one, and servers pass over (RFC
/// 9112, section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";
/// Number of last bytes kept, in one word.
const TAIL_LEN: usize = 8;

/// Data of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// Sequence number of its first byte.
    pub sequence: u32,
    /// The number that it acknowledges.
    pub acknowledgment: u32,
    /// True if part of the data is urgent.
    pub urgent: bool,
    pub data: &'a [u8],
}

impl Payload<'_> {
    fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.data.len() as u32)
    }

    /// True if the data is one complete GET request, perhaps after an empty line, and nothing else.
    fn is_request(&self) -> bool {
        let data = self.data.strip_prefix(EMPTY_LINE).unwrap_or(self.data);
        if self.urgent || data.len() > MESSAGE_MAX || !data.starts_with(b"GET ") {
            return false;
        }
        Head::read(data)
            .is_some_and(|head| head.len == data.len() && head.lengths + head.codings == 0 && !head.closes)
    }

    /// True if the data is an empty line only, which is not a request.
    fn is_empty_line(&self) -> bool {
        !self.urgent && self.data == EMPTY_LINE
    }
}

/// Two numbers written as one word, since the other direction may be active at the same time.
/// Request and response share the start of the response, which links them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeSpan {
    /// Sequence number of the answer's first byte.
    pub begin: u32,
    /// End of the request or response.
    pub end: u32,
}

/// The last request of a connection, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The request. Written by the receive path.
    pub request: ExchangeSpan,
    /// The response; `end` equals `begin` while the end is unknown. This and the following fields
    /// are written by the send path.
    pub answered: ExchangeSpan,
    /// Last bytes of a chunked response; the very last one is lowest.
    pub tail: u64,
    /// End of the bytes sent of a chunked response.
    pub sent: u32,
    /// True if the response is chunked.
    pub chunked: bool,
    /// True if there were only complete requests and their responses, in turn.
    pub plain: bool,
    /// Start of a response whose later bytes were sent before the first ones.
    pub ahead: u32,
    /// The beginning of the answer's head, while that isn't whole.
    pub head: Vec<u8>,
}

/// True if a sequence number is at or before another one (RFC 9293, section 3.4).
fn is_up_to(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) as i32 <= 0
}

impl Exchange {
    /// Starts with the first segment of a connection made here.
    pub fn begin(first: &Payload<'_>) -> Exchange {
        // The end of a response without request.
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
        // Retransmission.
        if !self.plain || is_up_to(payload.end(), self.request.end) {
            return;
        }
        if payload.sequence == self.request.end && payload.is_empty_line() {
            self.request.end = payload.end();
            return;
        }
        let ExchangeSpan { begin, end } = self.answered;
        // The client has acknowledged the whole previous response before this request.
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

    /// Handles later bytes of a response whose first bytes were not sent yet. Segments that wait
    /// for neighbour resolution are overtaken by later ones: the queue is emptied on one processor,
    /// while the process continues on another.
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
        // Responses with these statuses have no body in any case (RFC 9112, section 6.3).
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
