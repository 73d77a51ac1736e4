//! Where a body in chunks ends (RFC 9112, section 7.1).

use alloc::vec::Vec;

/// The longest line of a chunk's size with its extensions, and the longest of all trailers, in
/// bytes.
const LINE_MAX: u32 = 8 * 1024;
const TRAILERS_MAX: u32 = 16 * 1024;

/// The part that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Size,
    /// Behind a size: white space and extensions, which nobody acts on.
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The beginning of a trailer, or of the last line.
    LineStart,
    Trailer,
    TrailerLf,
    LastLf,
}

/// How far a body in chunks was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    state: ChunkState,
    /// Of the chunk: its size as far as it is known, then what is left of it.
    left: u64,
    digits: u32,
    /// Of the line, or of all trailers, in bytes.
    line: u32,
}

/// The parts of a body's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkSpan {
    /// All of them belong to it, and it goes on.
    All,
    /// It ends behind so many.
    Ends(usize),
    /// It is malformed at this one.
    Malformed(usize),
}

impl Chunks {
    pub(super) const fn new() -> Chunks {
        Chunks { state: ChunkState::Size, left: 0, digits: 0, line: 0 }
    }

    /// Follows the next bytes.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> ChunkSpan {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            if self.state == ChunkState::Data {
                let there = (bytes.len() - at) as u64;
                let skipped = self.left.min(there);
                self.left -= skipped;
                at += usize::try_from(skipped).unwrap_or(bytes.len());
                if self.left == 0 {
                    self.state = ChunkState::DataCr;
                }
                continue;
            }
            let is_end = self.state == ChunkState::LastLf && *byte == b'\n';
            match self.step(*byte) {
                Some(state) => self.state = state,
                None if is_end => return ChunkSpan::Ends(at + 1),
                None => return ChunkSpan::Malformed(at),
            }
            at += 1;
        }
        ChunkSpan::All
    }

    /// The data of a body in chunks, as far as it is there and no byte is malformed; and whether
    /// that is all.
    pub(crate) fn data_of(body: &[u8]) -> (Vec<u8>, bool) {
        let (mut chunks, mut data) = (Chunks::new(), Vec::new());
        for byte in body {
            let is_data = chunks.state == ChunkState::Data;
            match chunks.follow(&[*byte]) {
                ChunkSpan::All if is_data => data.push(*byte),
                ChunkSpan::All => {}
                ChunkSpan::Ends(_) | ChunkSpan::Malformed(_) => return (data, true),
            }
        }
        (data, false)
    }

    /// The part that follows this byte; none where that can't be known. Strict about line ends, on
    /// which readers differ (section 2.2).
    fn step(&mut self, byte: u8) -> Option<ChunkState> {
        self.line += 1;
        let max = if matches!(self.state, ChunkState::LineStart | ChunkState::Trailer) {
            TRAILERS_MAX
        } else {
            LINE_MAX
        };
        if self.line > max {
            return None;
        }
        match (self.state, byte) {
            (ChunkState::Size, _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16)?;
                self.left = self.left.checked_mul(16)?.checked_add(digit.into())?;
                self.digits += 1;
                Some(ChunkState::Size)
            }
            (ChunkState::Size, b'\r') if self.digits > 0 => Some(ChunkState::SizeLf),
            (ChunkState::Size, b';' | b' ' | b'\t') if self.digits > 0 => Some(ChunkState::Extension),
            (ChunkState::Extension | ChunkState::Trailer, b'\r') => {
                Some(if self.state == ChunkState::Trailer {
                    ChunkState::TrailerLf
                } else {
                    ChunkState::SizeLf
                })
            }
            (ChunkState::Extension, b'\t' | b' '..=b'~' | 0x80..) => Some(ChunkState::Extension),
            (ChunkState::SizeLf, b'\n') => {
                (self.line, self.digits) = (0, 0);
                Some(if self.left == 0 { ChunkState::LineStart } else { ChunkState::Data })
            }
            (ChunkState::DataCr, b'\r') => Some(ChunkState::DataLf),
            (ChunkState::DataLf, b'\n') => {
                self.line = 0;
                Some(ChunkState::Size)
            }
            (ChunkState::LineStart, b'\r') => Some(ChunkState::LastLf),
            (ChunkState::LineStart, b'!'..=b'~') | (ChunkState::Trailer, b'\t' | b' '..=b'~' | 0x80..) => {
                Some(ChunkState::Trailer)
            }
            (ChunkState::TrailerLf, b'\n') => Some(ChunkState::LineStart),
            _ => None,
        }
    }
}
