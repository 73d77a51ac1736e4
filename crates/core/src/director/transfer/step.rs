//! Where a connection in motion stands, and for how long.

use super::{DISPATCHES_MS, OFFERS_MS, Order, PATIENCE_MS, RELEASES_MS, Room, Word};

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A server has it, whose it may stay.
    Looking,
    /// It stays.
    Passing,
    /// It waits for a place.
    Seating(Room),
    /// Its server is asked to let it go.
    Releasing(Round),
    /// Its client is read.
    Reading,
    /// Another node is asked who is to have it.
    Dispatching(Round),
    /// It is about to have a server.
    Choosing {
        /// The other node has named one.
        advised: bool,
    },
    /// It is about to leave this host.
    Exporting,
    /// The server is told of it.
    Offered {
        round: Round,
        /// What it has said in this round: the first byte that it misses, and that it has no room.
        missing: u32,
        is_full: bool,
    },
    /// Its packets are about to go to the server.
    Committing(Told),
    /// It is about to be this host's again.
    Restoring(Then),
    /// It is, and its packets are about to.
    Keeping(Then),
    /// Its bytes are about to be carried.
    Reaching,
    /// Its client is told off.
    Answering(Word),
    /// It is left where it is.
    Returning,
    /// Its client is told that it is over.
    Ending,
    /// There is nothing left to do.
    Over,
}

/// How often a node was told something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    number: u8,
    is_said: bool,
}

/// What is known of whether a server has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was told nothing.
    Nothing,
    /// It was told, and hasn't answered.
    Maybe,
    /// It has it.
    Taken,
}

/// What is done once a connection is this host's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Read,
    Carry,
    Answer(Word),
    HangUp,
}

impl Then {
    pub(super) fn step(self) -> Step {
        match self {
            Then::Read => Step::Reading,
            Then::Carry => Step::Seating(Room::Carrying),
            Then::Answer(word) => Step::Answering(word),
            Then::HangUp => Step::Over,
        }
    }
}

impl Round {
    pub(super) const FIRST: Round = Round { number: 0, is_said: false };

    pub(super) fn is_first(self) -> bool {
        self.number == 0
    }

    /// It was said in this round, if it wasn't before.
    pub(super) fn said(self) -> Option<Round> {
        (!self.is_said).then_some(Round { is_said: true, ..self })
    }

    /// The next, if there is another.
    pub(super) fn next(self, pauses_ms: &[u64]) -> Option<Round> {
        let number = self.number + 1;
        (usize::from(number) < pauses_ms.len()).then_some(Round { number, is_said: false })
    }

    fn order(self, say: Order) -> Order {
        if self.is_said { Order::Listen } else { say }
    }

    fn pause_ms(self, pauses_ms: &[u64]) -> u64 {
        pauses_ms.get(usize::from(self.number)).copied().unwrap_or_default()
    }
}

impl Step {
    pub(super) const OFFERED: Step = Step::Offered { round: Round::FIRST, missing: 0, is_full: false };

    pub(super) fn order(self) -> Option<Order> {
        Some(match self {
            Step::Looking => Order::Look,
            Step::Passing => Order::Pass,
            Step::Seating(room) => Order::TakePlace(room),
            Step::Releasing(round) => round.order(Order::Release),
            Step::Reading => Order::Read,
            Step::Dispatching(round) => round.order(Order::Dispatch),
            Step::Choosing { .. } => Order::Choose,
            Step::Exporting => Order::Export,
            Step::Offered { round, missing, .. } => round.order(Order::Offer { missing }),
            Step::Committing(told) => Order::Commit { replayed: told != Told::Taken },
            Step::Restoring(_) => Order::Restore,
            Step::Keeping(_) => Order::Keep,
            Step::Reaching => Order::Reach,
            Step::Answering(word) => Order::Answer(word),
            Step::Returning => Order::Return,
            Step::Ending => Order::End,
            Step::Over => return None,
        })
    }

    /// How long it may take.
    pub(super) fn patience_ms(self) -> u64 {
        match self {
            Step::Releasing(round) => round.pause_ms(RELEASES_MS),
            Step::Dispatching(round) => round.pause_ms(DISPATCHES_MS),
            Step::Offered { round, .. } => round.pause_ms(OFFERS_MS),
            _ => PATIENCE_MS,
        }
    }

    /// Whether it is another step than the one before, or another round of the same.
    pub(super) fn begins_after(self, before: &Step) -> bool {
        let number = |step: &Step| match step {
            Step::Releasing(round) | Step::Dispatching(round) | Step::Offered { round, .. } => round.number,
            _ => 0,
        };
        core::mem::discriminant(&self) != core::mem::discriminant(before) || number(&self) != number(before)
    }

    /// Whether somebody else may have the place.
    pub(super) fn gives_way(self) -> bool {
        matches!(
            self,
            Step::Reading
                | Step::Dispatching(_)
                | Step::Choosing { .. }
                | Step::Reaching
                | Step::Answering(_)
        )
    }
}
