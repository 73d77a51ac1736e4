//! Bodies of responses by their framing: a length, chunks, or the connection's end (RFC 9112,
//! sections 6 and 7).

/// Longest line with a chunk's length, or of a trailer.
const LINE_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Body that is being received.
#[derive(Debug)]
pub(super) struct Body {
    state: State,
    /// Length so far, and with the chunks' framing.
    pub(super) len: usize,
    pub(super) framed_len: usize,
    line: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// This number of bytes are left of the body.
    Length(usize),
    UntilClose,
    /// A line with a chunk's length.
    Size,
    /// This number of bytes are left of a chunk.
    Chunk(usize),
    /// The end of a chunk's line.
    ChunkEnd,
    Trailer,
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Bytes differ from this one on.
    Other(usize),
    /// More follows than was announced.
    Longer,
    /// A chunk's length can't be read.
    Framing,
}

impl Body {
    pub(super) fn new(framing: &Framing) -> Body {
        let state = match framing {
            Framing::Length(0) => State::Whole,
            Framing::Length(len) => State::Length(*len),
            Framing::Chunked => State::Size,
            Framing::UntilClose => State::UntilClose,
        };
        Body { state, len: 0, framed_len: 0, line: Vec::new() }
    }

    /// Takes received bytes. `holds` checks a part of the body at its offset. Returns true if the
    /// body is whole.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        holds: impl Fn(usize, &[u8]) -> bool,
    ) -> Result<bool, Fault> {
        self.framed_len += bytes.len();
        while !bytes.is_empty() {
            let used = match self.state {
                State::Length(left) | State::Chunk(left) => {
                    let used =
                        self.content(bytes.get(..left.min(bytes.len())).unwrap_or_default(), &holds)?;
                    self.state = match (self.state, left - used) {
                        (State::Length(_), 0) => State::Whole,
                        (State::Length(_), left) => State::Length(left),
                        (_, 0) => State::ChunkEnd,
                        (_, left) => State::Chunk(left),
                    };
                    used
                }
                State::UntilClose => self.content(bytes, &holds)?,
                State::Size | State::ChunkEnd | State::Trailer => self.line(bytes)?,
                State::Whole => return Err(Fault::Longer),
            };
            bytes = bytes.get(used..).unwrap_or_default();
        }
        Ok(self.state == State::Whole)
    }

    fn content(&mut self, part: &[u8], holds: &impl Fn(usize, &[u8]) -> bool) -> Result<usize, Fault> {
        if !holds(self.len, part) {
            return Err(Fault::Other(self.len));
        }
        self.len += part.len();
        Ok(part.len())
    }

    /// Takes bytes of a line, which may be incomplete. Returns their number.
    fn line(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(bytes.len(), |end| end + 1);
        self.line.extend_from_slice(bytes.get(..used).unwrap_or_default());
        if self.line.len() > LINE_MAX {
            return Err(Fault::Framing);
        }
        if end.is_some() {
            let line = std::mem::take(&mut self.line);
            let is_empty = line == b"\r\n";
            self.state = match self.state {
                State::Size => match httparse::parse_chunk_size(&line) {
                    Ok(httparse::Status::Complete((_, 0))) => State::Trailer,
                    Ok(httparse::Status::Complete((_, len))) => {
                        State::Chunk(usize::try_from(len).map_err(|_| Fault::Framing)?)
                    }
                    _ => return Err(Fault::Framing),
                },
                State::ChunkEnd if is_empty => State::Size,
                State::ChunkEnd => return Err(Fault::Framing),
                _ if is_empty => State::Whole,
                state => state,
            };
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKS: &[u8] = b"4\r\nabcd\r\n10;name=value\r\n0123456789abcdef\r\n0\r\nTrailer: x\r\n\r\n";
    const CONTENT: &[u8] = b"abcd0123456789abcdef";

    fn take(framing: Framing, bytes: &[u8], step: usize) -> Result<(bool, usize), Fault> {
        let mut body = Body::new(&framing);
        let mut is_whole = false;
        for part in bytes.chunks(step) {
            is_whole = body.take(part, |at, part| CONTENT.get(at..at + part.len()) == Some(part))?;
        }
        Ok((is_whole, body.len))
    }

    #[test]
    fn chunks_are_joined_wherever_they_are_cut() {
        for step in 1..=CHUNKS.len() {
            assert_eq!(take(Framing::Chunked, CHUNKS, step), Ok((true, CONTENT.len())), "{step}");
        }
        let cut = CHUNKS.len() - 1;
        assert_eq!(take(Framing::Chunked, &CHUNKS[..cut], 7), Ok((false, CONTENT.len())));
    }

    #[test]
    fn wrong_bytes_lengths_and_chunks_are_noticed() {
        assert_eq!(take(Framing::Length(20), CONTENT, 3), Ok((true, 20)));
        assert_eq!(take(Framing::Length(19), CONTENT, 20), Err(Fault::Longer));
        assert_eq!(take(Framing::UntilClose, CONTENT, 6), Ok((false, 20)));
        assert_eq!(take(Framing::UntilClose, b"abce", 3), Err(Fault::Other(3)));
        assert_eq!(take(Framing::Chunked, b"4\r\nabcdX\r\n", 64), Err(Fault::Framing));
        assert_eq!(take(Framing::Chunked, b"xyz\r\n", 64), Err(Fault::Framing));
        assert_eq!(take(Framing::Chunked, &[b'1'; 2_000], 64), Err(Fault::Framing));
        assert_eq!(take(Framing::Chunked, b"0\r\n\r\nmore", 64), Err(Fault::Longer));
    }
}
