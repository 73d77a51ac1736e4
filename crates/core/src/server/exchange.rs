//! Exchanges on a connection that was handed off: requests, and the responses to them. They show if
//! the client waits for a response or the server waits for a request. `bpf/server/exchange.h` is
//! this module's copy in C.
//!
//! A connection can be released to another host only while the server waits for a request. Only
//! plain exchanges are tracked: one segment has one complete request without a body, and the
//! response states its length or is chunked (RFC 9112, section 6.3). After any other exchange the
//! connection counts as busy until it ends.

use alloc::vec::Vec;

use super::message::{Head, LENGTH_MAX, MessageParse};

/// Maximum length of a request, in bytes. A connection with a longer request counts as busy.
const MESSAGE_MAX: usize = 4_096;
/// Maximum length of a response head, in bytes. The head may be split over several segments.
const ANSWER_HEAD_MAX: usize = 2_048;
/// Version that the responses must begin with.
const VERSION: &[u8] = b"HTTP/1.1";
/// End of a chunked body without trailers (RFC 9112, section 7.1): the CRLF of the previous chunk
/// or of the head, the last chunk, and the final CRLF.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
/// Empty line that some clients send before or after a request, and that servers ignore (RFC 9112,
/// section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";
/// Number of last bytes of a chunked response that are kept, in one word.
const TAIL_LEN: usize = 8;

/// Payload of a TCP segment, and fields of its header.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// Sequence number of the first byte of the payload.
    pub sequence: u32,
    /// Acknowledgment number of the segment.
    pub acknowledgment: u32,
    /// True if the URG flag is set.
    pub urgent: bool,
    pub data: &'a [u8],
}

impl Payload<'_> {
    fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.data.len() as u32)
    }

    /// True if the data is exactly one complete GET request without a body and without `Connection:
    /// close`. An empty line before the request is allowed.
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

/// Sequence numbers of a request or response. The C code writes both as one word, since a program
/// for the other direction may run on another CPU at the same time. A request and its response have
/// the same `begin`, which links them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeSpan {
    /// Sequence number of the first byte of the response.
    pub begin: u32,
    /// Sequence number after the last byte of the request or response.
    pub end: u32,
}

/// The last request of a connection, and its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The request. The program for received segments writes it.
    pub request: ExchangeSpan,
    /// The response. `end` equals `begin` while the end is unknown. The program for sent segments
    /// writes this field and the following ones.
    pub answered: ExchangeSpan,
    /// Last bytes of a chunked response. The last byte is the lowest one.
    pub tail: u64,
    /// Sequence number after the last byte sent so far of a chunked response.
    pub sent: u32,
    /// True if the response is chunked.
    pub chunked: bool,
    /// True if all exchanges so far were plain. Once false, the value never changes back.
    pub plain: bool,
    /// Start of a response whose later bytes were sent before its first bytes.
    pub ahead: u32,
    /// First bytes of the response head while the head is incomplete; empty otherwise.
    pub head: Vec<u8>,
}

/// True if a sequence number is at or before another one (RFC 9293, section 3.4).
fn is_up_to(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) as i32 <= 0
}

impl Exchange {
    /// Returns the state after the client's first data segment, from which this host creates the
    /// connection.
    pub fn begin(first: &Payload<'_>) -> Exchange {
        // This response belongs to no request, since the first response begins one byte later.
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

    /// Updates the state with a segment from the client.
    pub fn follow_request(&mut self, payload: &Payload<'_>) {
        // The segment is a retransmission.
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

    /// Updates the state with a segment from the server. `last` is true for a FIN or RST.
    pub fn answer(&mut self, payload: &Payload<'_>, last: bool) {
        if self.plain {
            self.plain = !last && self.goes_on(payload);
        }
    }

    /// True if the connection stays plain after a segment from the server.
    fn goes_on(&mut self, payload: &Payload<'_>) -> bool {
        let begin = self.request.begin;
        let ExchangeSpan { begin: known, end } = self.answered;
        if is_up_to(payload.end(), begin) {
            return true; // Retransmission of an earlier response.
        }
        if known != begin {
            return self.begins_or_overtakes(payload, begin);
        }
        if !self.chunked {
            return is_up_to(payload.end(), end);
        }
        if is_up_to(payload.end(), self.sent) {
            return true; // Retransmission of the current response.
        }
        if payload.sequence != self.sent || end != begin {
            return false;
        }
        self.add_chunks(payload);
        true
    }

    /// Handles a segment while the response head is incomplete: the next bytes of the head, a
    /// retransmission, or bytes that overtake the head. A segment can overtake segments that wait
    /// for neighbour resolution: the kernel empties that queue on one CPU, while the server's
    /// process continues to send on another CPU. Returns false if the connection is no longer
    /// plain.
    fn begins_or_overtakes(&mut self, payload: &Payload<'_>, begin: u32) -> bool {
        let next = begin.wrapping_add(self.head.len() as u32);
        if payload.sequence == next {
            return self.begin_answer(payload, begin);
        }
        if is_up_to(payload.end(), next) {
            return true; // Retransmission of the first bytes of the head.
        }
        self.ahead = begin;
        !is_up_to(payload.sequence, next)
    }

    /// Handles the first bytes of a response, or further bytes of its head. Returns false if the
    /// end of the response can't be determined, or if the segment has bytes beyond the end.
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
        // After an interim response (1xx) the client still waits for the final response.
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
                // Chunks can be tracked only in order, but later bytes were sent first.
                if self.ahead == begin {
                    return false;
                }
                self.chunked = true;
                // The segment may begin with the LF of the CRLF that ends the head. The CR was sent
                // with the previous segment, and is part of `LAST_CHUNK`.
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

    /// Handles the next bytes of a chunked response, and sets its end after the last chunk.
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

    /// Returns the state after client and server have sent these segments in turn, the client
    /// first.
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
