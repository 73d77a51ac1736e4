//! A connection in motion: from when this host has it until a server does, or its client has been
//! told why none does.
//!
//! [`Transfer`] is a state machine for one of them. [`Transfer::order`] says what is to be done,
//! and whoever has the socket and the network says by [`Transfer::handle`] what came of it, or that
//! [`Transfer::deadline_ms`] has passed. An input that doesn't belong to the step that it is at
//! came late, or twice, and changes nothing.
//!
//! Exactly one has the connection at any time. It is this host's while it has a socket of it; from
//! [`TransferOrder::Export`] on it is nobody's, and its client's packets are kept back, until the
//! server says that it is its own. A transfer without a certain answer doesn't take it back: the
//! server may have it. It comes back by [`TransferOrder::Restore`] only where the server has said
//! that it has none of it, or was never told.
//!
//! The order of calls: [`Transfer::accepted`] or [`Transfer::moving`] once; then, until
//! [`Transfer::order`] is `None`, carry the order out and give its result to
//! [`Transfer::handle`], or [`TransferInput::Timer`] at [`Transfer::deadline_ms`].
//!
//! ```
//! use evener_core::director::transfer::{FinalResponse, Transfer, TransferInput, TransferOrder};
//!
//! let mut transfer = Transfer::accepted(0);
//! assert_eq!(transfer.order(), Some(TransferOrder::Read));
//! // The client sends nothing in time: it gets a response, and the transfer is over.
//! let deadline_ms = transfer.deadline_ms();
//! transfer.handle(deadline_ms, TransferInput::Timer);
//! assert_eq!(transfer.order(), Some(TransferOrder::Answer(FinalResponse::TimedOut)));
//! transfer.handle(deadline_ms, TransferInput::Done);
//! assert_eq!(transfer.order(), None);
//! ```

mod kept_back;
mod step;
#[cfg(test)]
mod tests;

pub use kept_back::KeptBack;

use crate::net::http::HttpRefusal;
use crate::node::lccp::ErrorCode;
use step::{AfterRestore, PeerKnowledge, RequestRound, TransferState};

/// How long a client may take to say what it wants, and the longest that anything else may take, in
/// milliseconds.
pub const PATIENCE_MS: u64 = 10_000;
/// An unacknowledged message is sent again after these times, in milliseconds; after the last it is
/// given up.
const OFFERS_MS: &[u64] = &[20, 40, 140, 400, 800, 1_600];
/// The same for a server that is to let a connection go: longer than one may be silent and still
/// count as heard, since it may have let go already, and shorter than it remembers that.
const RELEASES_MS: &[u64] = &[20, 40, 140, 400, 800, 1_600, 1_600];
/// The same for who decides for all.
const DISPATCHES_MS: &[u64] = &[40, 60];

/// The next step for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferOrder {
    /// Look whether its server answers its next request after all: [`TransferInput::Stays`] or
    /// [`TransferInput::Leaves`].
    Look,
    /// It does: send the request on to it. [`TransferInput::Done`].
    Pass,
    /// Wait for a place in this room, and leave that which it has. [`TransferInput::Admitted`].
    TakePlace(Quota),
    /// Ask its server to let it go. [`TransferInput::Answered`], or [`TransferInput::Unheard`].
    Release,
    /// Read until it is clear what the client wants: [`TransferInput::Wanted`],
    /// [`TransferInput::Refused`] or [`TransferInput::Left`].
    Read,
    /// Ask the node that decides for all. [`TransferInput::Answered`], [`TransferInput::Unheard`],
    /// or [`TransferInput::Undispatched`].
    Dispatch,
    /// Choose its server, and keep back what the client says from then on:
    /// [`TransferInput::Chosen`] or [`TransferInput::Unserved`].
    Choose,
    /// Take its socket out of the kernel: [`TransferInput::Exported`] or
    /// [`TransferInput::NotExported`].
    Export,
    /// Give it to the server, from the first byte on that is missing there.
    /// [`TransferInput::Answered`].
    Offer {
        /// Counted from the beginning of what was exported.
        missing: u32,
    },
    /// Wait for what a node answers: [`TransferInput::Released`], [`TransferInput::Advised`],
    /// [`TransferInput::Acknowledged`] or [`TransferInput::Denied`].
    Listen,
    /// Send on to the server what the client says, and before that what was exported, if it is to
    /// be `replayed`. [`TransferInput::Committed`].
    Commit {
        /// Nobody has said that the server has it.
        replayed: bool,
    },
    /// Make a socket of it on this host: of what was exported, or of what its server has let go.
    /// [`TransferInput::Restored`].
    Restore,
    /// The client's bytes come to this host's socket from now on. [`TransferInput::Done`].
    Keep,
    /// Connect to the server, as its bytes are to be carried: [`TransferInput::Reached`].
    Reach,
    /// Say a last word, and hang up. [`TransferInput::Done`].
    Answer(FinalResponse),
    /// Leave it with the server that has it. [`TransferInput::Done`].
    Return,
    /// Tell its client that it is over: it can't be had from the server that has it.
    /// [`TransferInput::Done`].
    End,
}

/// The quotas of connections. There are so many in each, and the client that holds most of them
/// gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Connections that are read, for a while that is bounded.
    Reading,
    /// Those whose bytes are carried, which may last.
    Carrying,
}

/// The last that a client hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalResponse {
    /// The answer to a request that is refused.
    Refused(HttpRefusal),
    /// An answer with this status.
    Status(u16),
    /// Status 408, if what it has said is text; else nothing.
    TimedOut,
    /// An answer that a client of HTTP/2 understands.
    Http1Required,
    /// Nothing but a reset.
    Reset,
}

/// The result of an order, or an event meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferInput {
    /// The deadline has passed.
    Timer,
    /// Somebody else needs its place more.
    Crowded,
    /// That is done.
    Done,
    /// Its server answers the request.
    Stays,
    /// Other servers do.
    Leaves,
    /// It has a place.
    Admitted,
    /// A node was told, and will answer.
    Answered,
    /// The node that would have to be told isn't heard.
    Unheard,
    /// No other node decides.
    Undispatched,
    /// The node that decides for all has named a server.
    Advised,
    /// The server has let it go.
    Released,
    /// The server has what there is before this byte.
    Acknowledged {
        /// Counted from the beginning of what was exported.
        missing: u32,
    },
    /// The server refuses the request.
    Denied(ErrorCode),
    /// It is clear what the client wants.
    Wanted {
        /// Whether it can be told nothing but by TLS.
        hello: bool,
    },
    /// Nobody should act on what the client says.
    Refused(FinalResponse),
    /// The client is gone.
    Left,
    /// It has a server.
    Chosen {
        /// Whether that makes sockets of what it is given.
        takes: bool,
        /// Whether it is the one that was advised.
        advised: bool,
    },
    /// No server takes it.
    Unserved,
    /// Its socket is gone from here, without a word to the client.
    Exported {
        /// Bytes of it that the server is to have; `None` if the server isn't heard, or can't be
        /// told of it.
        len: Option<u32>,
    },
    /// Its socket is still here, as it was.
    NotExported,
    /// Whether its packets go to the server.
    Committed(bool),
    /// Whether there is a socket of it here.
    Restored(bool),
    /// Whether there is a connection to the server.
    Reached(bool),
}

/// Events to count or to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEvent {
    /// A server was asked to let it go.
    ReleaseRequested,
    /// That did.
    Released,
    /// It is at work there, and is asked for again when its client repeats itself.
    Busy,
    /// The node that decides for all was asked.
    DispatchRequested,
    /// It named a server.
    Advised,
    /// It didn't, so that this host decides.
    Alone {
        /// It said nothing at all.
        silent: bool,
    },
    /// It named one that isn't one of those that may have it by this host's tables.
    Unbelieved,
    /// The server has said that it has it.
    Taken,
    /// The server has said that it can't have it.
    NotTaken,
    /// The server said nothing in time.
    Unanswered,
    /// All is decided about it.
    Settled {
        /// Its outcome.
        outcome: TransferOutcome,
        /// The last response to its client, if there is one.
        word: Option<FinalResponse>,
    },
}

/// The outcome of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferOutcome {
    /// It is a server's, or is lost on the way to one.
    Given,
    /// Its bytes are carried, or would be if its server could be reached.
    Carried,
    /// Nobody should act on what its client said.
    Refused,
    /// Nobody serves it.
    Unserved,
    /// Its client said nothing whole in time.
    Late,
    /// Its client left.
    Left,
    /// Somebody else had its place.
    Crowded,
    /// It couldn't be taken from its server, and is over.
    Unmoved,
    /// It stays with the server that it had.
    Returned,
}

/// One connection in motion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    step: TransferState,
    deadline_ms: u64,
    /// Whether a cookie vouches for its first segments, so that a server makes a socket of them
    /// that nobody has told it of.
    vouched: bool,
    /// Whether its client can be told nothing but by TLS.
    hello: bool,
    /// Bytes that its server is to have.
    len: u32,
}

impl Transfer {
    /// Of a connection whose client is to be read. A cookie vouches for its first segments.
    pub fn accepted(now_ms: u64) -> Transfer {
        Transfer::at(TransferState::Reading, true, now_ms)
    }

    /// Of a connection that a server has, and whose next request others may be for.
    pub fn moving(now_ms: u64) -> Transfer {
        Transfer::at(TransferState::Looking, false, now_ms)
    }

    fn at(step: TransferState, vouched: bool, now_ms: u64) -> Transfer {
        Transfer { step, deadline_ms: now_ms + step.patience_ms(), vouched, hello: false, len: 0 }
    }

    /// The order of this step; none once all is done.
    pub fn order(&self) -> Option<TransferOrder> {
        self.step.order()
    }

    /// When [`TransferInput::Timer`] is due, in milliseconds.
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    /// Whether it gives way to another that needs its place. A connection that is no socket of this
    /// host's doesn't, for a while that is bounded.
    pub fn gives_way(&self) -> bool {
        self.step.gives_way()
    }

    /// Takes in what came of an order, or happened meanwhile.
    pub fn handle(&mut self, now_ms: u64, input: TransferInput) -> Option<TransferEvent> {
        let (step, notice) = self.next(input)?;
        if step.begins_after(&self.step) {
            self.deadline_ms = now_ms + step.patience_ms();
        }
        self.step = step;
        notice
    }

    /// The next step, if an input leads to one.
    fn next(&mut self, input: TransferInput) -> Option<(TransferState, Option<TransferEvent>)> {
        match (self.step, input) {
            (step, TransferInput::Crowded) if step.gives_way() => Some(self.give_way()),
            (
                TransferState::Looking | TransferState::Seating(Quota::Reading) | TransferState::Releasing(_),
                _,
            ) => self.leave_server(input),
            (TransferState::Reading, _) => self.read(input),
            (TransferState::Dispatching(_) | TransferState::Choosing { .. }, _) => self.choose(input),
            (TransferState::Exporting | TransferState::Offered { .. } | TransferState::Committing(_), _) => {
                self.give(input)
            }
            (TransferState::Restoring(then), TransferInput::Restored(true)) => {
                Some((TransferState::Keeping(then), None))
            }
            (
                TransferState::Restoring(AfterRestore::Read),
                TransferInput::Restored(false) | TransferInput::Timer,
            ) => Some(not_moved()),
            // It is lost: the server hasn't it either.
            (TransferState::Restoring(_), TransferInput::Restored(false) | TransferInput::Timer) => {
                Some((TransferState::Keeping(AfterRestore::HangUp), settled(TransferOutcome::Given, None)))
            }
            (TransferState::Keeping(then), TransferInput::Done | TransferInput::Timer) => {
                Some((then.step(), None))
            }
            (TransferState::Seating(Quota::Carrying), TransferInput::Admitted) => {
                Some((TransferState::Reaching, None))
            }
            (TransferState::Reaching, TransferInput::Reached(true)) => {
                Some((TransferState::Over, settled(TransferOutcome::Carried, None)))
            }
            (TransferState::Reaching, TransferInput::Reached(false))
            | (TransferState::Reaching | TransferState::Seating(_), TransferInput::Timer) => {
                Some(last_word(TransferOutcome::Carried, FinalResponse::Status(502)))
            }
            (
                TransferState::Passing | TransferState::Returning,
                TransferInput::Done | TransferInput::Timer,
            ) => Some((TransferState::Over, settled(TransferOutcome::Returned, None))),
            (
                TransferState::Answering(_) | TransferState::Ending,
                TransferInput::Done | TransferInput::Timer,
            ) => Some((TransferState::Over, None)),
            _ => None,
        }
    }

    /// Somebody else gets its place.
    fn give_way(&self) -> (TransferState, Option<TransferEvent>) {
        let crowded = settled(TransferOutcome::Crowded, None);
        match self.step {
            // It was settled before.
            TransferState::Answering(_) => (TransferState::Over, None),
            // Its packets may be kept back already.
            TransferState::Choosing { .. } => {
                (TransferState::Keeping(AfterRestore::Answer(FinalResponse::Reset)), crowded)
            }
            _ => (TransferState::Answering(FinalResponse::Reset), crowded),
        }
    }

    /// While a server has it.
    fn leave_server(&self, input: TransferInput) -> Option<(TransferState, Option<TransferEvent>)> {
        Some(match (self.step, input) {
            (TransferState::Looking, TransferInput::Stays) => (TransferState::Passing, None),
            (TransferState::Looking, TransferInput::Leaves) => (TransferState::Seating(Quota::Reading), None),
            // Its client says again what it wants.
            (TransferState::Looking | TransferState::Seating(_), TransferInput::Timer) => {
                (TransferState::Returning, None)
            }
            (TransferState::Seating(_), TransferInput::Admitted) => {
                (TransferState::Releasing(RequestRound::FIRST), None)
            }
            (TransferState::Releasing(round), TransferInput::Answered) => (
                TransferState::Releasing(round.sent()?),
                round.is_first().then_some(TransferEvent::ReleaseRequested),
            ),
            (TransferState::Releasing(_), TransferInput::Released) => {
                (TransferState::Restoring(AfterRestore::Read), Some(TransferEvent::Released))
            }
            (TransferState::Releasing(_), TransferInput::Denied(ErrorCode::Busy)) => {
                (TransferState::Returning, Some(TransferEvent::Busy))
            }
            (TransferState::Releasing(_), TransferInput::Denied(_) | TransferInput::Unheard) => not_moved(),
            (TransferState::Releasing(round), TransferInput::Timer) => match round.next(RELEASES_MS) {
                Some(round) => (TransferState::Releasing(round), None),
                None => not_moved(),
            },
            _ => return None,
        })
    }

    fn read(&mut self, input: TransferInput) -> Option<(TransferState, Option<TransferEvent>)> {
        Some(match input {
            TransferInput::Wanted { hello } => {
                self.hello = hello;
                (TransferState::Dispatching(RequestRound::FIRST), None)
            }
            TransferInput::Refused(word) => last_word(TransferOutcome::Refused, word),
            TransferInput::Timer => last_word(TransferOutcome::Late, FinalResponse::TimedOut),
            TransferInput::Left => (TransferState::Over, settled(TransferOutcome::Left, None)),
            _ => return None,
        })
    }

    fn choose(&self, input: TransferInput) -> Option<(TransferState, Option<TransferEvent>)> {
        let own = TransferState::Choosing { advised: false };
        let unserved = if self.hello { FinalResponse::Reset } else { FinalResponse::Status(503) };
        Some(match (self.step, input) {
            (TransferState::Dispatching(round), TransferInput::Answered) => (
                TransferState::Dispatching(round.sent()?),
                round.is_first().then_some(TransferEvent::DispatchRequested),
            ),
            (TransferState::Dispatching(_), TransferInput::Undispatched) => (own, None),
            (TransferState::Dispatching(_), TransferInput::Advised) => {
                (TransferState::Choosing { advised: true }, Some(TransferEvent::Advised))
            }
            (TransferState::Dispatching(_), TransferInput::Unheard | TransferInput::Denied(_)) => {
                (own, Some(TransferEvent::Alone { silent: false }))
            }
            (TransferState::Dispatching(round), TransferInput::Timer) => match round.next(DISPATCHES_MS) {
                Some(round) => (TransferState::Dispatching(round), None),
                None => (own, Some(TransferEvent::Alone { silent: true })),
            },
            (TransferState::Choosing { advised }, TransferInput::Chosen { takes, advised: believed }) => {
                let step = if takes {
                    TransferState::Exporting
                } else {
                    TransferState::Keeping(AfterRestore::Carry)
                };
                (step, (advised && !believed).then_some(TransferEvent::Unbelieved))
            }
            (TransferState::Choosing { .. }, TransferInput::Unserved) => {
                last_word(TransferOutcome::Unserved, unserved)
            }
            // It may be chosen yet, and is kept back then.
            (TransferState::Choosing { .. }, TransferInput::Timer) => (
                TransferState::Keeping(AfterRestore::Answer(unserved)),
                settled(TransferOutcome::Unserved, Some(unserved)),
            ),
            _ => return None,
        })
    }

    /// While it is nobody's.
    fn give(&mut self, input: TransferInput) -> Option<(TransferState, Option<TransferEvent>)> {
        let given = (TransferState::Over, settled(TransferOutcome::Given, None));
        let back = TransferState::Restoring(AfterRestore::Carry);
        Some(match (self.step, input) {
            (TransferState::Exporting, TransferInput::NotExported) => {
                (TransferState::Keeping(AfterRestore::Carry), None)
            }
            (TransferState::Exporting, TransferInput::Exported { len: Some(len) }) => {
                self.len = len;
                (TransferState::OFFERED, None)
            }
            // Its segments go there as they did here: they make no second socket.
            (TransferState::Exporting, TransferInput::Exported { len: None }) if self.vouched => {
                (TransferState::Committing(PeerKnowledge::Nothing), None)
            }
            (TransferState::Exporting, TransferInput::Exported { len: None } | TransferInput::Timer) => {
                (back, None)
            }
            (TransferState::Offered { .. }, TransferInput::Acknowledged { missing })
                if missing == self.len =>
            {
                (TransferState::Committing(PeerKnowledge::Taken), Some(TransferEvent::Taken))
            }
            // It has nothing of it, and may have room in a moment.
            (TransferState::Offered { round, missing, .. }, TransferInput::Denied(ErrorCode::NoCapacity)) => {
                (TransferState::Offered { round, missing, is_full: true }, None)
            }
            (TransferState::Offered { .. }, TransferInput::Denied(_)) => {
                (back, Some(TransferEvent::NotTaken))
            }
            (TransferState::Offered { round, missing, is_full }, input) => match input {
                TransferInput::Acknowledged { missing: first } if first < self.len => {
                    (TransferState::Offered { round, missing: missing.max(first), is_full: false }, None)
                }
                // A silent node may have started anew, and misses everything.
                TransferInput::Answered => {
                    (TransferState::Offered { round: round.sent()?, missing: 0, is_full: false }, None)
                }
                TransferInput::Timer => match round.next(OFFERS_MS) {
                    Some(round) => (TransferState::Offered { round, missing, is_full }, None),
                    None if is_full => (back, Some(TransferEvent::NotTaken)),
                    None => {
                        (TransferState::Committing(PeerKnowledge::Maybe), Some(TransferEvent::Unanswered))
                    }
                },
                _ => return None,
            },
            (TransferState::Committing(PeerKnowledge::Nothing), TransferInput::Committed(false)) => {
                (back, None)
            }
            // A connection that may be there must not be here, too.
            (TransferState::Committing(_), TransferInput::Committed(_) | TransferInput::Timer) => given,
            _ => return None,
        })
    }
}

fn settled(outcome: TransferOutcome, word: Option<FinalResponse>) -> Option<TransferEvent> {
    Some(TransferEvent::Settled { outcome, word })
}

fn last_word(outcome: TransferOutcome, word: FinalResponse) -> (TransferState, Option<TransferEvent>) {
    (TransferState::Answering(word), settled(outcome, Some(word)))
}

fn not_moved() -> (TransferState, Option<TransferEvent>) {
    (TransferState::Ending, settled(TransferOutcome::Unmoved, None))
}
