//! The requests of one connection, one after another: each head is read, each body followed to its
//! end.

use super::chunks::{ChunkSpan, Chunks};
use super::{BodyFraming, HeadParse, HttpRefusal, read};

/// Where the next byte of a connection belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPosition {
    /// To a head.
    Head,
    /// To a body of which so many bytes are left,
    Length(u64),
    /// or one in chunks.
    Chunked(Chunks),
    /// Nobody knows: the connection can't go on.
    Lost(Option<HttpRefusal>),
}

/// The result of bytes that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestProgress {
    /// So many of them, at least one, may be acted on: a whole head, or some of a body.
    Bytes(usize),
    /// More has to come before any may be.
    Incomplete,
    /// None of them ever, nor what follows: the next request is refused for this, or the last one's
    /// body is malformed.
    End(Option<HttpRefusal>),
}

/// Follows the requests of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    place: StreamPosition,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests { place: StreamPosition::Head }
    }
}

impl Requests {
    /// Says how many of the next bytes may be acted on; these are then taken for passed.
    pub fn pass(&mut self, bytes: &[u8]) -> RequestProgress {
        match &mut self.place {
            StreamPosition::Lost(refusal) => RequestProgress::End(*refusal),
            _ if bytes.is_empty() => RequestProgress::Incomplete,
            StreamPosition::Head => match read(bytes) {
                HeadParse::Request(request) => {
                    self.place = match request.body {
                        BodyFraming::Length(0) => StreamPosition::Head,
                        BodyFraming::Length(length) => StreamPosition::Length(length),
                        BodyFraming::Chunked => StreamPosition::Chunked(Chunks::new()),
                    };
                    RequestProgress::Bytes(request.len)
                }
                HeadParse::Incomplete => RequestProgress::Incomplete,
                HeadParse::Refused(refusal) => {
                    self.place = StreamPosition::Lost(Some(refusal));
                    RequestProgress::End(Some(refusal))
                }
            },
            StreamPosition::Length(left) => {
                let len = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= len as u64;
                if *left == 0 {
                    self.place = StreamPosition::Head;
                }
                RequestProgress::Bytes(len)
            }
            StreamPosition::Chunked(chunks) => match chunks.follow(bytes) {
                ChunkSpan::All => RequestProgress::Bytes(bytes.len()),
                ChunkSpan::Ends(len) => {
                    self.place = StreamPosition::Head;
                    RequestProgress::Bytes(len)
                }
                // The reader of the body finds the fault in its last byte.
                ChunkSpan::Malformed(at) => {
                    self.place = StreamPosition::Lost(None);
                    RequestProgress::Bytes(at + 1)
                }
            },
        }
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
    const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

    /// The bytes of a body passed, where they come in pieces of so many, and how it ends.
    fn passed(text: &str, piece: usize) -> (String, RequestProgress) {
        let (mut requests, mut bytes, mut out) = (Requests::default(), Vec::new(), Vec::new());
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
        let chunks = "5\r\nGET /\r\n0A ;x=y\r\n\n\n\n\n\n\n\n\n\n\n\r\n0\r\nA: b\r\n\r\n";
        let good = format!("{GET}{length}{CHUNKED}{chunks}{CHUNKED}0\r\n\r\n{GET}");
        for piece in [1, 2, 3, 7, good.len()] {
            assert_eq!(passed(&good, piece), (good.clone(), RequestProgress::Incomplete), "{piece}");
            let bad = format!("{good}GET / HTTP/1.1\nHost: a\r\n\r\n");
            assert_eq!(
                passed(&bad, piece),
                (good.clone(), RequestProgress::End(Some(HttpRefusal::Malformed))),
                "{piece}"
            );
        }
    }

    #[test]
    fn malformed_body_ends_request_parsing() {
        for body in [
            "x\r\n",
            "\r\n",
            ";a\r\n",
            "1\na\r\n",
            "1\r\nab\r\n",
            "1\r\na\n0\r\n\r\n",
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\n A: b\r\n\r\n",
            "10000000000000000\r\n",
        ] {
            let text = format!("{CHUNKED}{body}{GET}");
            let (out, end) = passed(&text, text.len());
            assert_eq!(end, RequestProgress::End(None), "{body:?}");
            assert!(out.starts_with(CHUNKED) && !out.contains("GET"), "{out:?}");
        }
        let long = format!("{CHUNKED}1;{}", "x".repeat(9_000));
        assert_eq!(passed(&long, 1_000).1, RequestProgress::End(None));
    }
}
