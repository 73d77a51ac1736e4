//! Tracks the successive requests of one connection. It parses each head, and counts the bytes of
//! each body of known length.

use super::{BodyFraming, HeadParse, HttpRefusal, read};

/// Position of the next byte of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPosition {
    Head,
    /// In a body, of which this number of bytes is left.
    Length(u64),
    /// In a chunked body. The reader of the body finds its end. No further request of the
    /// connection is parsed.
    Chunked,
    /// After the last request.
    Rest,
    /// In or after a refused head.
    Lost(HttpRefusal),
}

/// Part of the received bytes that may be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestProgress {
    /// Number of bytes that may be forwarded, at least one: a complete head, or a part of a body.
    Bytes(usize),
    /// No byte may be forwarded before more bytes arrive.
    Incomplete,
    /// Neither these bytes nor later ones may be forwarded, since the next request is refused for
    /// this reason.
    End(HttpRefusal),
}

/// Tracks the requests of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    position: StreamPosition,
    is_single: bool,
}

impl Requests {
    /// Returns the state at the start of a connection. If `is_single` is true, only one request is
    /// parsed.
    pub const fn new(is_single: bool) -> Requests {
        Requests { position: StreamPosition::Head, is_single }
    }

    /// True if the next byte belongs to a head or begins one.
    pub fn is_in_head(&self) -> bool {
        self.position == StreamPosition::Head
    }

    /// True if the current request is incomplete.
    pub fn is_in_request(&self) -> bool {
        matches!(self.position, StreamPosition::Length(_) | StreamPosition::Chunked | StreamPosition::Lost(_))
    }

    /// Returns how many of the next bytes may be forwarded, and counts them as forwarded.
    pub fn pass(&mut self, bytes: &[u8]) -> RequestProgress {
        match &mut self.position {
            StreamPosition::Lost(refusal) => RequestProgress::End(*refusal),
            _ if bytes.is_empty() => RequestProgress::Incomplete,
            StreamPosition::Head => match read(bytes) {
                HeadParse::Request(request) => {
                    self.position = match request.body {
                        BodyFraming::Length(0) => self.behind_request(),
                        BodyFraming::Length(length) => StreamPosition::Length(length),
                        BodyFraming::Chunked => StreamPosition::Chunked,
                    };
                    RequestProgress::Bytes(request.len)
                }
                HeadParse::Incomplete => RequestProgress::Incomplete,
                HeadParse::Refused(refusal) => {
                    self.position = StreamPosition::Lost(refusal);
                    RequestProgress::End(refusal)
                }
            },
            StreamPosition::Length(left) => {
                let len = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= len as u64;
                if *left == 0 {
                    self.position = self.behind_request();
                }
                RequestProgress::Bytes(len)
            }
            StreamPosition::Chunked | StreamPosition::Rest => RequestProgress::Bytes(bytes.len()),
        }
    }

    fn behind_request(&self) -> StreamPosition {
        if self.is_single { StreamPosition::Rest } else { StreamPosition::Head }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    use super::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const BAD: &str = "GET / HTTP/1.1\nHost: a\r\n\r\n";

    /// Passes the text in pieces of this length. Returns the forwarded bytes and the last result.
    fn passed(text: &str, piece: usize, is_single: bool) -> (String, RequestProgress) {
        let (mut requests, mut bytes, mut out) = (Requests::new(is_single), Vec::new(), Vec::new());
        let mut last = RequestProgress::Incomplete;
        for piece in text.as_bytes().chunks(piece) {
            bytes.extend_from_slice(piece);
            loop {
                last = requests.pass(&bytes);
                let RequestProgress::Bytes(len) = last else { break };
                out.extend(bytes.drain(..len));
            }
        }
        (String::from_utf8(out).unwrap(), last)
    }

    #[test]
    fn requests_parse_the_same_for_any_segmentation() {
        let length = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nGET / \n\n\n\n";
        let good = format!("{GET}{length}{GET}");
        for piece in [1, 2, 3, 7, good.len()] {
            let whole = (good.clone(), RequestProgress::Incomplete);
            assert_eq!(passed(&good, piece, false), whole, "{piece}");
            let refused = (good.clone(), RequestProgress::End(HttpRefusal::Malformed));
            assert_eq!(passed(&format!("{good}{BAD}"), piece, false), refused, "{piece}");
        }
    }

    #[test]
    fn last_request_of_connection_is_followed_by_no_head() {
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
        for (text, is_single) in [(format!("{chunked}{BAD}"), false), (format!("{GET}{BAD}"), true)] {
            let whole = (text.clone(), RequestProgress::Incomplete);
            assert_eq!(passed(&text, 5, is_single), whole);
        }
    }
}
