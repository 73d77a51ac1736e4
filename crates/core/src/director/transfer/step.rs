//! Where a connection in motion stands, and for how long.

use super::{DISPATCHES_MS, FinalResponse, OFFERS_MS, PATIENCE_MS, Quota, RELEASES_MS, TransferOrder};

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferState {
    /// A server has it, whose it may stay.
    Looking,
    /// It stays.
    Passing,
    /// It waits for a place.
    Seating(Quota),
    /// Its server is asked to let it go.
    Releasing(RequestRound),
    /// Its client is read.
    Reading,
    /// Another node is asked who is to have it.
    Dispatching(RequestRound),
    /// It is about to have a server.
    Choosing {
        /// The other node has named one.
        advised: bool,
    },
    /// It is about to leave this host.
    Exporting,
    /// The server is told of it.
    Offered {
        round: RequestRound,
        /// Its state in this round: the first byte that it misses, and that it has no room.
        missing: u32,
        is_full: bool,
    },
    /// Its packets are about to go to the server.
    Committing(PeerKnowledge),
    /// It is about to be this host's again.
    Restoring(AfterRestore),
    /// It is, and its packets are about to.
    Keeping(AfterRestore),
    /// Its bytes are about to be carried.
    Reaching,
    /// Its client is told off.
    Answering(FinalResponse),
    /// It is left where it is.
    Returning,
    /// Its client is told that it is over.
    Ending,
    /// There is nothing left to do.
    Over,
}

/// How often a node was told something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestRound {
    number: u8,
    is_sent: bool,
}

/// The known state of a connection at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerKnowledge {
    /// It was told nothing.
    Nothing,
    /// It was told, and hasn't answered.
    Maybe,
    /// It has it.
    Taken,
}

/// The step after a connection is this host's again.
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

    /// It was said in this round, if it wasn't before.
    pub(super) fn sent(self) -> Option<RequestRound> {
        (!self.is_sent).then_some(RequestRound { is_sent: true, ..self })
    }

    /// The next, if there is another.
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

    /// How long it may take.
    pub(super) fn patience_ms(self) -> u64 {
        match self {
            TransferState::Releasing(round) => round.pause_ms(RELEASES_MS),
            TransferState::Dispatching(round) => round.pause_ms(DISPATCHES_MS),
            TransferState::Offered { round, .. } => round.pause_ms(OFFERS_MS),
            _ => PATIENCE_MS,
        }
    }

    /// Whether it is another step than the one before, or another round of the same.
    pub(super) fn begins_after(self, before: &TransferState) -> bool {
        let number = |step: &TransferState| match step {
            TransferState::Releasing(round)
            | TransferState::Dispatching(round)
            | TransferState::Offered { round, .. } => round.number,
            _ => 0,
        };
        core::mem::discriminant(&self) != core::mem::discriminant(before) || number(&self) != number(before)
    }

    /// Whether somebody else may have the place.
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
