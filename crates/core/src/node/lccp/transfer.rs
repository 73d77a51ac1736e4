//! Splits a connection into pieces for messages, and joins the pieces again. The connection
//! consists of its state and its queued bytes.
//!
//! Each piece has the whole state and an offset, so pieces may arrive in any order and more than
//! once.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::handoff_information::TcpState;

/// Length of each piece except the last, in bytes of the queues.
pub const CHUNK_LEN: u32 = 1_024;

/// A piece of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    state: TcpState,
    offset: u32,
    bytes: Vec<u8>,
}

impl Piece {
    /// Returns the piece with these bytes. `None` if the piece does not fit a connection in this
    /// state.
    pub(super) fn new(state: TcpState, offset: u32, bytes: &[u8]) -> Option<Piece> {
        let rest = state.queued_len().checked_sub(offset)?;
        // An empty piece is valid only for a connection with empty queues.
        let begins = offset.is_multiple_of(CHUNK_LEN) && (rest > 0 || offset == 0);
        let fits = state.is_sound() && begins && bytes.len() == rest.min(CHUNK_LEN) as usize;
        fits.then(|| Piece { state, offset, bytes: bytes.into() })
    }

    pub fn state(&self) -> &TcpState {
        &self.state
    }

    /// Offset of the piece's bytes in the queues. The send queue comes first, followed by the
    /// receive queue.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// The piece's bytes of the queues.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A connection to hand off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferImage {
    state: TcpState,
    queues: Vec<u8>,
}

impl TransferImage {
    /// Returns the connection with this state and these queues. `None` if the queues have other
    /// lengths than the state says, or if the state is impossible.
    pub fn new(state: TcpState, send: &[u8], receive: &[u8]) -> Option<TransferImage> {
        let lengths = (send.len(), receive.len()) == (state.send_len as usize, state.receive_len as usize);
        (lengths && state.is_sound()).then(|| TransferImage { state, queues: [send, receive].concat() })
    }

    /// Returns the pieces from the first missing byte on ([`super::MessageBody::HandoffAck`]). If
    /// `missing` is 0, returns all pieces.
    pub fn pieces(&self, missing: u32) -> impl Iterator<Item = Piece> {
        let first = missing - missing % CHUNK_LEN;
        // A connection with empty queues has one piece, too.
        let end = self.state.queued_len().max(1);
        (first..end).step_by(CHUNK_LEN as usize).filter_map(|offset| self.piece(offset))
    }

    /// Number of queued bytes. A receiver that acknowledges this number has received all bytes.
    pub fn queued_len(&self) -> u32 {
        self.state.queued_len()
    }

    fn piece(&self, offset: u32) -> Option<Piece> {
        let rest = self.queues.get(offset as usize..)?;
        Piece::new(self.state, offset, rest.get(..CHUNK_LEN as usize).unwrap_or(rest))
    }
}

/// A connection handed off to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedConnection {
    pub state: TcpState,
    /// Bytes that the client has not acknowledged.
    pub send: Vec<u8>,
    /// Bytes that the process has not read.
    pub receive: Vec<u8>,
}

/// The received pieces of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    state: TcpState,
    pieces: BTreeMap<u32, Vec<u8>>,
    missing: u32,
}

impl Assembly {
    /// Starts with the first piece that arrived.
    pub fn new(piece: Piece) -> Assembly {
        let mut assembly = Assembly { state: piece.state, pieces: BTreeMap::new(), missing: 0 };
        assembly.add(piece);
        assembly
    }

    /// Adds a piece. Returns false if the piece has another state, so that the earlier pieces are
    /// obsolete.
    pub fn add(&mut self, piece: Piece) -> bool {
        let same = piece.state == self.state;
        if same {
            self.pieces.entry(piece.offset).or_insert(piece.bytes);
            while let Some(bytes) = self.pieces.get(&self.missing).filter(|bytes| !bytes.is_empty()) {
                self.missing += bytes.len() as u32;
            }
        }
        same
    }

    /// Offset of the first missing byte of the queues, for [`super::MessageBody::HandoffAck`]. If
    /// no byte is missing, this is the length of the queues.
    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// Returns the connection; `None` while a byte is missing.
    pub fn handed(&self) -> Option<ReceivedConnection> {
        if self.missing < self.state.queued_len() {
            return None;
        }
        let mut send: Vec<u8> = self.pieces.values().flatten().copied().collect();
        let receive = send.split_off((self.state.send_len as usize).min(send.len()));
        Some(ReceivedConnection { state: self.state, send, receive })
    }
}
