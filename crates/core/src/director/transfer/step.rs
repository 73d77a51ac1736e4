//! Steps of a transfer, and their timeouts.

use super::{DISPATCHES_MS, FinalResponse, OFFERS_MS, PATIENCE_MS, Quota, RELEASES_MS, TransferOrder};

/// Step of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferState {
    /// A server owns the connection, and may also serve the next request.
    Looking,
    /// The request is being forwarded to the server that owns the connection.
    Passing,
    /// The connection waits for a place in a quota.
    Seating(Quota),
    /// A release request is sent to the current server.
    Releasing(RequestRound),
    /// The client's request is being read.
    Reading,
    /// A request is sent to the dispatching node.
    Dispatching(RequestRound),
    /// A server is being selected.
    Choosing {
        /// True if the dispatching node named a server.
        advised: bool,
    },
    /// The socket is being exported.
    Exporting,
    /// The connection is being sent to the server.
    Offered {
        round: RequestRound,
        /// First byte that the server misses, as an offset in the exported state.
        missing: u32,
        is_full: bool,
    },
    /// Packets are being redirected to the server.
    Committing(PeerKnowledge),
    /// The socket is being restored on this host.
    Restoring(AfterRestore),
    /// The socket is restored; packets are being redirected to this host.
    Keeping(AfterRestore),
    /// A connection to the server is being opened, for splicing.
    Reaching,
    /// A final response is being sent.
    Answering(FinalResponse),
    /// The connection is left with its server.
    Returning,
    /// The client is being reset.
    Ending,
    /// The transfer has ended.
    Over,
}

/// Round of retransmissions of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestRound {
    number: u8,
    is_sent: bool,
}

/// Knowledge of this host about the connection at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerKnowledge {
    /// The connection was not sent to the server.
    Nothing,
    /// The connection was sent to the server, which did not answer.
    Maybe,
    /// The server acknowledged the connection.
    Taken,
}

/// Step that follows once the connection is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRestore {
    Read,
    Carry,
    Answer(FinalResponse),
    HangUp,
}

impl AfterRestore {
    pub(super) fn step(self) -> TransferState {
        match self {
            AfterRestore::Read => TransferState::Reading,
            AfterRestore::Carry => TransferState::Seating(Quota::Carrying),
            AfterRestore::Answer(word) => TransferState::Answering(word),
            AfterRestore::HangUp => TransferState::Over,
        }
    }
}

impl RequestRound {
    pub(super) const FIRST: RequestRound = RequestRound { number: 0, is_sent: false };

    pub(super) fn is_first(self) -> bool {
        self.number == 0
    }

    /// Returns this round with the message sent; `None` if the message was sent before.
    pub(super) fn sent(self) -> Option<RequestRound> {
        (!self.is_sent).then_some(RequestRound { is_sent: true, ..self })
    }

    /// Returns the next round; `None` after the last round.
    pub(super) fn next(self, pauses_ms: &[u64]) -> Option<RequestRound> {
        let number = self.number + 1;
        (usize::from(number) < pauses_ms.len()).then_some(RequestRound { number, is_sent: false })
    }

    fn order(self, request: TransferOrder) -> TransferOrder {
        if self.is_sent { TransferOrder::Listen } else { request }
    }

    fn pause_ms(self, pauses_ms: &[u64]) -> u64 {
        pauses_ms.get(usize::from(self.number)).copied().unwrap_or_default()
    }
}

impl TransferState {
    pub(super) const OFFERED: TransferState =
        TransferState::Offered { round: RequestRound::FIRST, missing: 0, is_full: false };

    pub(super) fn order(self) -> Option<TransferOrder> {
        Some(match self {
            TransferState::Looking => TransferOrder::Look,
            TransferState::Passing => TransferOrder::Pass,
            TransferState::Seating(quota) => TransferOrder::TakePlace(quota),
            TransferState::Releasing(round) => round.order(TransferOrder::Release),
            TransferState::Reading => TransferOrder::Read,
            TransferState::Dispatching(round) => round.order(TransferOrder::Dispatch),
            TransferState::Choosing { .. } => TransferOrder::Choose,
            TransferState::Exporting => TransferOrder::Export,
            TransferState::Offered { round, missing, .. } => round.order(TransferOrder::Offer { missing }),
            TransferState::Committing(knowledge) => {
                TransferOrder::Commit { replayed: knowledge != PeerKnowledge::Taken }
            }
            TransferState::Restoring(_) => TransferOrder::Restore,
            TransferState::Keeping(_) => TransferOrder::Keep,
            TransferState::Reaching => TransferOrder::Reach,
            TransferState::Answering(word) => TransferOrder::Answer(word),
            TransferState::Returning => TransferOrder::Return,
            TransferState::Ending => TransferOrder::End,
            TransferState::Over => return None,
        })
    }

    /// Timeout of this step, in milliseconds.
    pub(super) fn patience_ms(self) -> u64 {
        match self {
            TransferState::Releasing(round) => round.pause_ms(RELEASES_MS),
            TransferState::Dispatching(round) => round.pause_ms(DISPATCHES_MS),
            TransferState::Offered { round, .. } => round.pause_ms(OFFERS_MS),
            _ => PATIENCE_MS,
        }
    }

    /// True if this step differs from `before`, or is another round of the same step. Then the
    /// timeout starts anew.
    pub(super) fn begins_after(self, before: &TransferState) -> bool {
        let number = |step: &TransferState| match step {
            TransferState::Releasing(round)
            | TransferState::Dispatching(round)
            | TransferState::Offered { round, .. } => round.number,
            _ => 0,
        };
        core::mem::discriminant(&self) != core::mem::discriminant(before) || number(&self) != number(before)
    }

    /// True if the connection may lose its place in the quota to another connection.
    pub(super) fn gives_way(self) -> bool {
        matches!(
            self,
            TransferState::Reading
                | TransferState::Dispatching(_)
                | TransferState::Choosing { .. }
                | TransferState::Reaching
                | TransferState::Answering(_)
        )
    }
}
