//! Number of bytes that a server still has to send of a response. `bpf/server/pending.h` is this
//! module's copy in C.
//!
//! The load-balancing agent of Chow and Semwal reports the remaining bytes of each pending request
//! (equation 2.2), which needed changes to Apache. Here the packets suffice: the head of the
//! response contains the length (RFC 9112, section 6.3), and TCP counts the bytes that the client
//! has acknowledged. This works for all methods, and for all servers that use HTTP/1 without TLS.
//! If the end of a response is unknown, the bytes in the kernel's queue are a lower bound.

use alloc::vec::Vec;

use super::message::{Head, MessageParse};

/// Minimum number of bytes of a request, since method, target and version don't fit into fewer (RFC
/// 9112, section 3).
const REQUEST_MIN: usize = 16;
/// Maximum length of a response head, in bytes.
const ANSWER_HEAD_MAX: usize = 4_096;
/// Maximum number of interim responses (RFC 9110, section 15.2) that may end in one segment before
/// the final response begins.
const PROVISIONAL_MAX: usize = 2;
/// Maximum length of a body in bytes, so that sums of positions don't overflow.
const LENGTH_MAX: u64 = 1 << 60;
/// Maximum length of a request body that is tracked. It is less than half of the sequence number
/// space.
const FOLLOWED_BODY_MAX: u64 = 1 << 30;
/// Length of the version at the start of a response, in bytes.
const VERSION_LEN: usize = 8;
/// Empty line before a request, which servers ignore (RFC 9112, section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";

/// State of knowledge about a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseProgress {
    /// The response has not begun, or its head is incomplete.
    Waiting,
    /// The response has begun, and its end is known.
    Known,
    /// The end is unknown. The head has no length or an unsupported one, or the response was longer
    /// than its head says.
    Unknown,
}

/// Bytes that the client has sent after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// The end of the request is unknown: its head has several segments, or its body is chunked.
    Unknown,
    /// The client has sent no bytes. The next request begins at this sequence number.
    Nothing(u32),
    /// The client has sent another request (pipelining: RFC 9112, section 9.3.2), whose response is
    /// not tracked.
    Request,
}

/// Last request of a connection, with its response. Positions count the bytes that the server has
/// sent on the connection, as the kernel's `bytes_acked` counts the acknowledged bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// State of the response.
    pub answer: ResponseProgress,
    /// True for a HEAD request, whose response has no body (RFC 9110, section 9.3.2).
    pub is_head: bool,
    /// Sequence number of the response's first byte.
    pub begin_sequence: u32,
    /// Sequence number after the response's last byte, once the end is known.
    pub end_sequence: u32,
    /// Position of the response's first byte, once it has begun.
    pub begin: u64,
    /// Position after the response's last byte, once the end is known.
    pub end: u64,
    /// Bytes that the client has sent after the request.
    pub behind: Behind,
}

/// The client's next bytes, in sequence.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Sequence number of the first byte.
    pub sequence: u32,
    /// Acknowledgment number of the segment.
    pub acknowledgment: u32,
    pub data: &'a [u8],
}

impl Received<'_> {
    /// Returns the sequence number after the data.
    fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.data.len() as u32)
    }
}

/// The server's next bytes, or the end of the stream.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// Sequence number of the first byte.
    pub sequence: u32,
    /// Position of the first byte.
    pub position: u64,
    pub data: &'a [u8],
    /// True if the segment has FIN.
    pub is_last: bool,
}

impl Pending {
    /// Returns the state of a connection whose request is unknown.
    pub fn unknown() -> Pending {
        Pending {
            answer: ResponseProgress::Unknown,
            is_head: false,
            begin_sequence: 0,
            end_sequence: 0,
            begin: 0,
            end: 0,
            behind: Behind::Unknown,
        }
    }

    /// Applies the client's next bytes. They are a new request if they look like a request and the
    /// previous response is complete. The response will begin at the sequence number that the
    /// segment acknowledges, since clients without pipelining have received the whole previous
    /// response.
    #[must_use]
    pub fn request(before: Option<Pending>, received: &Received<'_>) -> Option<Pending> {
        if let Some(mut open) = before.filter(|before| before.is_open(received.acknowledgment)) {
            open.behind = open.behind.up_to(received.end());
            return Some(open);
        }
        let data = received.data.strip_prefix(EMPTY_LINE).unwrap_or(received.data);
        if !is_request(data) {
            return before;
        }
        // After these methods the connection carries another protocol than HTTP/1 (RFC 9113,
        // section 3.4; RFC 9110, section 9.3.6).
        let answer = match data.starts_with(b"PRI ") || data.starts_with(b"CONNECT ") {
            true => ResponseProgress::Unknown,
            false => ResponseProgress::Waiting,
        };
        let begin = received.end().wrapping_sub(data.len() as u32);
        Some(Pending {
            answer,
            is_head: data.starts_with(b"HEAD "),
            begin_sequence: received.acknowledgment,
            behind: Behind::of(begin, data).up_to(received.end()),
            ..Pending::unknown()
        })
    }

    /// True if the client's bytes with this acknowledgment number can't begin a new request.
    fn is_open(&self, acknowledgment: u32) -> bool {
        match self.answer {
            ResponseProgress::Waiting => true, // Further bytes of that request.
            ResponseProgress::Known => self.end_sequence != acknowledgment || self.behind == Behind::Request,
            ResponseProgress::Unknown => false,
        }
    }

    /// Applies the server's next segment. `head` has the earlier bytes of an incomplete head of the
    /// response.
    pub fn send(&mut self, sent: &Sent<'_>, head: &mut Vec<u8>) {
        match self.answer {
            ResponseProgress::Waiting => {
                let expected = self.begin_sequence.wrapping_add(head.len() as u32);
                match sent.sequence.wrapping_sub(expected) as i32 {
                    0 => self.begin_answer(sent, head),
                    // Bytes between were not seen.
                    ahead if ahead > 0 => self.answer = ResponseProgress::Unknown,
                    _ => return, // Retransmission of an earlier response.
                }
            }
            ResponseProgress::Known if sent.position + sent.data.len() as u64 > self.end => {
                self.answer = ResponseProgress::Unknown;
            }
            ResponseProgress::Known | ResponseProgress::Unknown => {}
        }
        if sent.is_last {
            self.finish(
                sent.position + sent.data.len() as u64,
                sent.sequence.wrapping_add(sent.data.len() as u32),
            );
        }
        if self.answer != ResponseProgress::Waiting {
            head.clear();
        }
    }

    /// Ends the response at this position, since no byte follows. If the head has declared a longer
    /// response, the end is corrected.
    fn finish(&mut self, position: u64, sequence: u32) {
        match self.answer {
            ResponseProgress::Known if position < self.end => {
                (self.end, self.end_sequence) = (position, sequence)
            }
            ResponseProgress::Known | ResponseProgress::Unknown => {}
            ResponseProgress::Waiting => self.answer = ResponseProgress::Unknown,
        }
    }

    fn begin_answer(&mut self, sent: &Sent<'_>, kept: &mut Vec<u8>) {
        let mut position = sent.position - kept.len() as u64;
        // The start is stored even if the end of the response will be unknown.
        self.begin = position;
        kept.extend_from_slice(sent.data);
        let bytes = core::mem::take(kept);
        let (mut rest, mut sequence) = (&bytes[..], self.begin_sequence);
        for _ in 0..=PROVISIONAL_MAX {
            let start = rest.get(..ANSWER_HEAD_MAX).unwrap_or(rest);
            if start.len() >= VERSION_LEN && !start.starts_with(b"HTTP/1.") {
                break;
            }
            let head = match Head::read_up_to(start, LENGTH_MAX) {
                MessageParse::Whole(head) => head,
                MessageParse::Cut if start.len() < ANSWER_HEAD_MAX => {
                    (self.begin_sequence, self.begin) = (sequence, position);
                    kept.extend_from_slice(rest);
                    return;
                }
                MessageParse::Cut | MessageParse::Odd => break,
            };
            let Some(status) = status(start) else { break };
            if (100..200).contains(&status) && status != 101 {
                rest = &rest[head.len..];
                position += head.len as u64;
                sequence = sequence.wrapping_add(head.len as u32);
                continue;
            }
            let Some(length) = self.body(&head, status) else { break };
            let end = position + head.len as u64 + length;
            if position + rest.len() as u64 > end {
                break;
            }
            *self = Pending {
                answer: ResponseProgress::Known,
                begin_sequence: sequence,
                end_sequence: sequence.wrapping_add((end - position) as u32),
                begin: position,
                end,
                ..*self
            };
            return;
        }
        self.answer = ResponseProgress::Unknown;
    }

    /// Returns the length of the body; `None` if the head doesn't show it (RFC 9112, section 6.3).
    fn body(&self, head: &Head, status: u16) -> Option<u64> {
        if status == 101 {
            return None;
        }
        if self.is_head || status == 204 || status == 304 {
            return Some(0);
        }
        (head.lengths == 1 && head.codings == 0).then_some(head.length)
    }

    /// True if the client waits for another response after this one.
    pub fn has_another(&self) -> bool {
        self.behind == Behind::Request
    }

    /// Returns the number of bytes of the response that the client has not acknowledged; `None` if
    /// the end of the response is unknown. `acknowledged` is the number of acknowledged bytes of
    /// the connection.
    pub fn left(&self, acknowledged: u64) -> Option<u64> {
        (self.answer == ResponseProgress::Known)
            .then(|| self.end.saturating_sub(acknowledged.max(self.begin)))
    }
}

impl Behind {
    /// Returns the state right after a request that begins at this sequence number. `data` has at
    /// least the start of the request.
    fn of(begin: u32, data: &[u8]) -> Behind {
        let start = data.get(..ANSWER_HEAD_MAX).unwrap_or(data);
        let MessageParse::Whole(head) = Head::read_up_to(start, LENGTH_MAX) else { return Behind::Unknown };
        if head.lengths > 1 || head.codings > 0 || head.length >= FOLLOWED_BODY_MAX {
            return Behind::Unknown;
        }
        Behind::Nothing(begin.wrapping_add(head.len as u32).wrapping_add(head.length as u32))
    }

    /// Returns the state after the client has sent up to this sequence number.
    fn up_to(self, end: u32) -> Behind {
        match self {
            Behind::Nothing(next) if (end.wrapping_sub(next) as i32) > 0 => Behind::Request,
            _ => self,
        }
    }
}

/// True if the bytes begin with a method and a blank. All registered methods consist of these
/// letters (RFC 9110, section 9.1).
fn is_request(data: &[u8]) -> bool {
    let Some(start) = data.get(..REQUEST_MIN) else { return false };
    let method = start.iter().position(|byte| *byte == b' ').map(|len| &start[..len]);
    method.is_some_and(|method| {
        !method.is_empty() && method.iter().all(|byte| byte.is_ascii_uppercase() || b"-_".contains(byte))
    })
}

/// Returns the status of a response that begins with these bytes (RFC 9112, section 4).
fn status(start: &[u8]) -> Option<u16> {
    let [b' ', digits @ ..] = start.get(VERSION_LEN..VERSION_LEN + 4)? else { return None };
    digits
        .iter()
        .try_fold(0u16, |status, digit| digit.is_ascii_digit().then(|| status * 10 + u16::from(digit - b'0')))
        .filter(|status| *status >= 100)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::format;
    use alloc::string::String;

    use super::*;

    /// First sequence number of the server, chosen to wrap.
    const FIRST: u32 = u32::MAX - 20;

    /// A connection after the segments sent so far. `position` is the position after the server's
    /// last byte.
    struct Connection {
        pending: Option<Pending>,
        head: Vec<u8>,
        position: u64,
        /// The client's next sequence number.
        next: u32,
    }

    impl Connection {
        fn new() -> Connection {
            Connection { pending: None, head: Vec::new(), position: 0, next: FIRST }
        }

        fn sequence(&self) -> u32 {
            FIRST.wrapping_add(self.position as u32)
        }

        /// Sends data of a client that has acknowledged all of the server's bytes.
        fn request(&mut self, data: &str) -> &mut Connection {
            self.request_early(data, self.sequence())
        }

        /// Sends data of a client that has acknowledged the server's bytes up to this number.
        fn request_early(&mut self, data: &str, acknowledgment: u32) -> &mut Connection {
            let received = Received { sequence: self.next, acknowledgment, data: data.as_bytes() };
            self.pending = Pending::request(self.pending, &received);
            self.next = received.end();
            self
        }

        fn send(&mut self, data: &str, is_last: bool) -> &mut Connection {
            let (sequence, position) = (self.sequence(), self.position);
            let pending = self.pending.get_or_insert_with(Pending::unknown);
            pending.send(&Sent { sequence, position, data: data.as_bytes(), is_last }, &mut self.head);
            self.position += data.len() as u64;
            self
        }

        fn answer(&mut self, data: &str) -> &mut Connection {
            self.send(data, false)
        }

        fn left(&self, acknowledged: u64) -> Option<u64> {
            self.pending.unwrap().left(acknowledged)
        }
    }

    const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    const HEAD: &str = "HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n";

    fn answer(status: &str, fields: &str) -> String {
        format!("HTTP/1.1 {status}\r\n{fields}\r\n")
    }

    #[test]
    fn bytes_left_are_response_minus_acknowledged() {
        let head = answer("200 OK", "Content-Length: 1000\r\n");
        let len = head.len() as u64;
        let mut connection = Connection::new();
        connection.request(GET);
        assert_eq!(connection.left(0), None, "it waits");
        connection.answer(&head);
        assert_eq!(connection.left(0), Some(len + 1_000));
        assert_eq!(connection.left(len + 400), Some(600));
        connection.answer(&"x".repeat(1_000));
        assert_eq!(connection.left(len + 1_000), Some(0));
        // The next request on the same connection.
        let second = answer("206 Partial Content", "Content-Range: bytes 0-9/1000\r\nContent-Length: 10\r\n");
        connection.request(GET).answer(&second);
        assert_eq!(connection.left(len + 1_000), Some(second.len() as u64 + 10));
    }

    #[test]
    fn heads_may_come_in_pieces() {
        let (hints, ok) =
            (answer("103 Early Hints", "Link: </a>\r\n"), answer("200 OK", "Content-Length: 1000\r\n"));
        let whole = [&*hints, &ok, "x"].concat();
        for first in 1..whole.len() {
            for second in [first, first + 1, whole.len() - 1] {
                let mut connection = Connection::new();
                connection.request(GET).answer(&whole[..first]);
                connection.answer(&whole[first..second.max(first)]).answer(&whole[second.max(first)..]);
                let begin = hints.len() as u64;
                assert_eq!(connection.left(begin), Some(ok.len() as u64 + 1_000), "{first} and {second}");
                assert!(connection.head.is_empty());
            }
        }
        // A head of the maximum length, and a head that is one byte longer.
        for (len, is_known) in [(ANSWER_HEAD_MAX, true), (ANSWER_HEAD_MAX + 1, false)] {
            let rest = answer("200 OK", "Content-Length: 0\r\nA: \r\n").len();
            let head = answer("200 OK", &format!("Content-Length: 0\r\nA: {}\r\n", "b".repeat(len - rest)));
            let mut connection = Connection::new();
            connection.request(GET).answer(&head[..3_000]).answer(&head[3_000..]);
            assert_eq!(connection.left(0).is_some(), is_known, "{len}");
        }
        // Bytes that can't be a head are not buffered up to the maximum.
        for no_head in ["HTTP/2.0", "HTTP/1.1 200 OK\n", "HTTP/1.1 200 OK\r\nA\r\n b\r\n"] {
            let mut connection = Connection::new();
            connection.request(GET).answer(no_head);
            assert_eq!(connection.pending.unwrap().answer, ResponseProgress::Unknown, "{no_head}");
        }
        let mut ends = Connection::new();
        ends.request(GET).answer(&ok[..20]).send("", true);
        assert_eq!((ends.pending.unwrap().answer, ends.head.len()), (ResponseProgress::Unknown, 0));
    }

    #[test]
    fn answers_without_a_body_end_with_their_head() {
        for (request, head) in [
            (HEAD, answer("200 OK", "Content-Length: 5000000\r\n")),
            (GET, answer("304 Not Modified", "Content-Length: 5000000\r\n")),
            (GET, answer("204 No Content", "")),
            (HEAD, answer("200 OK", "Transfer-Encoding: chunked\r\n")),
        ] {
            let mut connection = Connection::new();
            connection.request(request).answer(&head);
            assert_eq!(connection.left(0), Some(head.len() as u64), "{head}");
        }
    }

    #[test]
    fn provisional_answers_come_before_the_final_one() {
        let (proceed, ok) = (answer("100 Continue", ""), answer("200 OK", "Content-Length: 7\r\n"));
        let hints = answer("103 Early Hints", "Link: </a>\r\n");
        let post = "POST /a HTTP/1.1\r\nExpect: 100-continue\r\n\r\n";
        let mut apart = Connection::new();
        apart.request(post).answer(&proceed).request("the body, whatever it is").answer(&ok);
        assert_eq!(apart.left(proceed.len() as u64), Some(ok.len() as u64 + 7));
        let mut at_once = Connection::new();
        at_once.request(post).answer(&[&*proceed, &hints, &ok].concat());
        assert_eq!(at_once.left(0), Some(ok.len() as u64 + 7));
        let mut many = Connection::new();
        many.request(post).answer(&[&*hints, &hints, &hints, &ok].concat());
        assert_eq!(many.left(0), None);
    }

    #[test]
    fn responses_without_length_have_unknown_end() {
        for head in [
            answer("200 OK", ""),
            answer("200 OK", "Content-Length: 5\r\nContent-Length: 5\r\n"),
            answer("200 OK", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
            answer("200 OK", "Transfer-Encoding: chunked\r\n"),
            answer("200 OK", "Content-Length: 99999999999999999999\r\n"),
            answer("200 OK", "Content-Length: -1\r\n"),
            answer("101 Switching Protocols", "Upgrade: websocket\r\n"),
            answer("099 None", "Content-Length: 5\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Length: 5\n\r\n".to_owned(),
            "HTTP/2 200 OK\r\nContent-Length: 5\r\n\r\n".to_owned(),
            "ICY 200 OK\r\nContent-Length: 5\r\n\r\n".to_owned(),
            answer("200 OK", "Content-Length: 5\r\n") + "123456",
        ] {
            let mut connection = Connection::new();
            connection.request(GET).answer(&head);
            assert_eq!(connection.pending.unwrap().answer, ResponseProgress::Unknown, "{head}");
        }
        for request in ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "CONNECT a:1 HTTP/1.1\r\n\r\n"] {
            let mut connection = Connection::new();
            assert_eq!(connection.request(request).pending.unwrap().answer, ResponseProgress::Unknown);
        }
    }

    #[test]
    fn a_false_length_is_noticed_once_the_server_sends_more_or_ends() {
        let head = answer("200 OK", "Content-Length: 10\r\n");
        let mut more = Connection::new();
        more.request(GET).answer(&head).answer("1234567890");
        assert_eq!(more.left(0), Some(head.len() as u64 + 10));
        more.answer("x");
        assert_eq!(more.left(0), None);
        let mut less = Connection::new();
        less.request(GET).answer(&head).send("123", true);
        assert_eq!(less.left(0), Some(head.len() as u64 + 3));
        let mut none = Connection::new();
        none.request(GET).send("", true);
        assert_eq!(none.left(0), None);
    }

    #[test]
    fn requests_begin_where_the_answer_before_is_over() {
        let head = answer("200 OK", "Content-Length: 10\r\n");
        let mut connection = Connection::new();
        // A pipelined request: the second response is unknown, the third is known.
        connection.request(GET).request(GET).answer(&head);
        connection.request(GET);
        assert_eq!(connection.left(0), Some(head.len() as u64 + 10));
        connection.answer("1234567890").answer(&head).answer("1234567890");
        assert_eq!(connection.left(0), None);
        let before = connection.position;
        connection.request(GET).answer(&head);
        assert_eq!(connection.left(before), Some(head.len() as u64 + 10));
        // Bytes that are no request don't change the state.
        let known = connection.pending;
        let at = |acknowledgment, data: &str, before| {
            Pending::request(before, &Received { sequence: 0, acknowledgment, data: data.as_bytes() })
        };
        for data in
            ["", "GET / HTTP/1.1", "get /aaaaaaaa HTTP/1.1", " GET /aaaaaa HTTP/1.1", "ABCDEFGHIJKLMNOPQ / H"]
        {
            let over = at(connection.sequence().wrapping_add(10), data, known);
            assert_eq!(over, known, "{data}");
            assert_eq!(at(0, data, None), None, "{data}");
        }
        assert!(at(0, &["\r\n", GET].concat(), None).is_some());
    }

    #[test]
    fn requests_that_come_ahead_leave_the_sum_a_lower_bound() {
        let head = answer("200 OK", "Content-Length: 10\r\n");
        let upload = "POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\n";
        for (pieces, has_another) in [
            (&[GET][..], false),
            (&["\r\n", GET], false),
            (&[GET, GET], true),
            (&[upload, "hello"], false),
            (&[upload, "he", "llo"], false),
            (&[upload, "hello", GET], true),
        ] {
            let mut apart = Connection::new();
            for piece in pieces.iter().filter(|piece| piece.len() > 2) {
                apart.request(piece);
            }
            let mut at_once = Connection::new();
            at_once.request(&pieces.concat());
            for mut connection in [apart, at_once] {
                connection.answer(&head);
                let pending = connection.pending.unwrap();
                assert_eq!(pending.has_another(), has_another, "{pieces:?}");
                assert_eq!(pending.left(0), Some(head.len() as u64 + 10), "{pieces:?}");
            }
        }
        let mut during = Connection::new();
        during.request(GET).answer(&head).request_early(GET, FIRST);
        assert!(during.pending.unwrap().has_another());
        // The client has acknowledged the first response. The second response belongs to the
        // pipelined request and not to this third request.
        during.answer("1234567890").request(GET);
        assert!(during.pending.unwrap().has_another());
        during.answer(&head);
        assert_eq!((during.left(0), during.pending.unwrap().answer), (None, ResponseProgress::Unknown));
        // The end of a chunked body, or of a head in several segments, is not tracked.
        let mut chunked = Connection::new();
        chunked
            .request("PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            .request("5\r\n")
            .answer(&head);
        assert!(!chunked.pending.unwrap().has_another());
    }

    #[test]
    fn retransmission_of_earlier_answer_is_ignored() {
        let head = answer("200 OK", "Content-Length: 10\r\n");
        let first = Received { sequence: 0, acknowledgment: FIRST, data: GET.as_bytes() };
        let mut pending = Pending::request(None, &first).unwrap();
        let sent = |sequence, data| Sent { sequence, position: 0, data, is_last: false };
        let head_so_far = &mut Vec::new();
        pending.send(&sent(FIRST.wrapping_sub(5), b"12345"), head_so_far);
        assert_eq!(pending.answer, ResponseProgress::Waiting);
        pending.send(&sent(FIRST, head.as_bytes()), head_so_far);
        assert_eq!(pending.answer, ResponseProgress::Known);
        let mut late = Pending::request(None, &first).unwrap();
        late.send(&sent(FIRST.wrapping_add(1), head.as_bytes()), head_so_far);
        assert_eq!(late.answer, ResponseProgress::Unknown);
    }
}
