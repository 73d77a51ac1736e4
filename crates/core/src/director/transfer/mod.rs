//! Transfer of a connection to a server. It begins when the connection arrives at this host, and
//! ends when a server owns the connection or the client has got a final response.
//!
//! [`Transfer`] is a state machine for one connection. [`Transfer::order`] returns the next order.
//! The caller owns the socket, carries the order out, and passes its result to
//! [`Transfer::handle`]. Once [`Transfer::deadline_ms`] has passed, the input is
//! [`TransferInput::Timer`]. An input that doesn't belong to the current step is late or a
//! duplicate, and is ignored.
//!
//! At any time at most one host owns the connection. This host owns it while it has the socket.
//! From [`TransferOrder::Export`] on no host owns it, until the server acknowledges the connection.
//! During this time this host buffers the client's packets. A transfer without an answer is not
//! undone, since the server may own the connection. [`TransferOrder::Restore`] restores the
//! connection on this host only if the server has denied the connection, or nothing was sent to the
//! server.
//!
//! Sequence of calls: [`Transfer::accepted`] or [`Transfer::moving`] once; then, until
//! [`Transfer::order`] is `None`, carry the order out and pass its result to [`Transfer::handle`],
//! or [`TransferInput::Timer`] at [`Transfer::deadline_ms`].
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

mod segment_buffer;
mod step;
#[cfg(test)]
mod tests;

pub use segment_buffer::SegmentBuffer;

use crate::net::http::HttpRefusal;
use crate::node::lccp::ErrorCode;
use step::{AfterRestore, PeerKnowledge, RequestRound, TransferState};

/// Timeout of each step without retransmissions, such as reading a client's request, in
/// milliseconds.
pub const PATIENCE_MS: u64 = 10_000;
/// Time to wait for an answer after each transmission of [`TransferOrder::Offer`], in milliseconds.
/// After the last one the transfer fails.
const OFFERS_MS: &[u64] = &[20, 40, 140, 400, 800, 1_600];
/// Time to wait for an answer after each transmission of a release request, in milliseconds. The
/// sum exceeds the time after which a silent server counts as dead, since the server may have
/// released the connection already. The sum is shorter than the time for which a server remembers a
/// release.
const RELEASES_MS: &[u64] = &[20, 40, 140, 400, 800, 1_600, 1_600];
/// Time to wait for an answer after each transmission of a request to the dispatching node, in
/// milliseconds.
const DISPATCHES_MS: &[u64] = &[40, 60];

/// Next order for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferOrder {
    /// Check if the current server also answers the next request: [`TransferInput::Stays`] or
    /// [`TransferInput::Leaves`].
    Look,
    /// Forward the request to the current server. [`TransferInput::Done`].
    Pass,
    /// Count the connection in this quota, and no longer in its previous quota.
    /// [`TransferInput::Admitted`].
    TakePlace(Quota),
    /// Send a release request to the current server. [`TransferInput::Answered`], or
    /// [`TransferInput::PeerDead`].
    Release,
    /// Read until the client's request is complete: [`TransferInput::Wanted`],
    /// [`TransferInput::Refused`] or [`TransferInput::Left`].
    Read,
    /// Send a request to the dispatching node. [`TransferInput::Answered`],
    /// [`TransferInput::PeerDead`], or [`TransferInput::Undispatched`].
    Dispatch,
    /// Select a server, and buffer the client's packets from the selection on:
    /// [`TransferInput::Chosen`] or [`TransferInput::Unserved`].
    Choose,
    /// Export the socket from the kernel: [`TransferInput::Exported`] or
    /// [`TransferInput::NotExported`].
    Export,
    /// Send the connection to the server, from the first byte that the server misses.
    /// [`TransferInput::Answered`].
    Offer {
        /// Offset in the exported state.
        missing: u32,
    },
    /// Wait for a node's answer: [`TransferInput::Released`], [`TransferInput::Advised`],
    /// [`TransferInput::Acknowledged`] or [`TransferInput::Denied`].
    Listen,
    /// Forward the client's packets to the server, after the exported bytes if `replayed`.
    /// [`TransferInput::Committed`].
    Commit {
        /// True if the server has not acknowledged the connection.
        replayed: bool,
    },
    /// Restore a socket on this host, from the exported state or from the state that the server
    /// released. [`TransferInput::Restored`].
    Restore,
    /// Forward the client's packets to this host's socket. [`TransferInput::Done`].
    Keep,
    /// Connect to the server, to splice the connection: [`TransferInput::Reached`].
    Reach,
    /// Send a final response and close. [`TransferInput::Done`].
    Answer(FinalResponse),
    /// Leave the connection with the current server. [`TransferInput::Done`].
    Return,
    /// Reset the client, since the server did not release the connection. [`TransferInput::Done`].
    End,
}

/// Quotas of connections. A connection takes one place in a quota. If a quota is full, a connection
/// of the client with the most connections is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Connections whose request is being read, which takes a limited time.
    Reading,
    /// Spliced connections, which may last long.
    Carrying,
}

/// Final response to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalResponse {
    /// Response to a refused request.
    Refused(HttpRefusal),
    /// HTTP response with this status.
    Status(u16),
    /// HTTP status 408 if the client has sent the start of a request in text; otherwise nothing.
    TimedOut,
    /// Response that an HTTP/2 client understands: the error HTTP_1_1_REQUIRED.
    Http1Required,
    /// No response: the connection is reset.
    Reset,
}

/// Result of an order, or an event during a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferInput {
    /// The deadline has passed.
    Timer,
    /// Another connection needs this connection's place in the quota.
    Crowded,
    /// The order was carried out.
    Done,
    /// The current server also serves the next request.
    Stays,
    /// Other servers than the current one serve the next request.
    Leaves,
    /// The connection has a place in the quota.
    Admitted,
    /// The message was sent, and its answer will be a later input.
    Answered,
    /// The target node of the message is not alive.
    PeerDead,
    /// No other node selects servers.
    Undispatched,
    /// The dispatching node has named a server.
    Advised,
    /// The server has released the connection.
    Released,
    /// The server has all bytes before `missing`.
    Acknowledged {
        /// Offset in the exported state.
        missing: u32,
    },
    /// The server refuses the request.
    Denied(ErrorCode),
    /// The client's request is complete.
    Wanted {
        /// True if the client needs TLS, so that it can't get an HTTP response.
        hello: bool,
    },
    /// The client's request is refused.
    Refused(FinalResponse),
    /// The client has closed.
    Left,
    /// A server was selected.
    Chosen {
        /// True if the server accepts transferred connections. Otherwise the connection is spliced.
        takes: bool,
        /// True if the dispatching node named this server.
        advised: bool,
    },
    /// No server is available.
    Unserved,
    /// The socket was removed from the kernel without a packet to the client.
    Exported {
        /// Number of exported bytes; `None` if the server is not alive, or the connection can't be
        /// sent to it.
        len: Option<u32>,
    },
    /// The socket is unchanged.
    NotExported,
    /// True if packets are forwarded to the server.
    Committed(bool),
    /// True if this host has a socket of the connection.
    Restored(bool),
    /// True if the connection to the server is open.
    Reached(bool),
}

/// Events for counters and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEvent {
    /// A release request was sent to a server.
    ReleaseRequested,
    /// The server released the connection.
    Released,
    /// The server is busy with the connection; the release is requested again when the client
    /// retransmits.
    Busy,
    /// A request was sent to the dispatching node.
    DispatchRequested,
    /// The dispatching node named a server.
    Advised,
    /// The dispatching node named no server, so this host selects one.
    Alone {
        /// True if the dispatching node did not answer.
        silent: bool,
    },
    /// The dispatching node named a server that this host's tables do not allow for the request.
    Unbelieved,
    /// The server acknowledged the connection.
    Taken,
    /// The server denied the connection.
    NotTaken,
    /// The server did not answer before the deadline.
    Unanswered,
    /// The outcome is decided.
    Settled {
        outcome: TransferOutcome,
        /// Final response to the client, if any.
        word: Option<FinalResponse>,
    },
}

/// The outcome of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferOutcome {
    /// A server owns the connection, or the connection was lost during the transfer.
    Given,
    /// The connection is spliced, or was to be spliced but its server could not be reached.
    Carried,
    /// The request was refused.
    Refused,
    /// No server was available.
    Unserved,
    /// The client sent no complete request in time.
    Late,
    /// The client has closed its connection.
    Left,
    /// Another connection got this connection's place in the quota.
    Crowded,
    /// The server did not release the connection, so the connection is reset.
    Unmoved,
    /// The connection stays with its server.
    Returned,
}

/// Transfer of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    step: TransferState,
    deadline_ms: u64,
    /// True if a SYN cookie validates the client's first segments, so that a server can create the
    /// socket from these segments without a transfer.
    has_cookie: bool,
    /// True if the client needs TLS, so that it can't get an HTTP response.
    hello: bool,
    /// Number of exported bytes.
    len: u32,
}

impl Transfer {
    /// Starts the transfer of a new connection, whose request must be read first. A SYN cookie
    /// validates the client's first segments.
    pub fn accepted(now_ms: u64) -> Transfer {
        Transfer::at(TransferState::Reading, true, now_ms)
    }

    /// Starts the transfer of a connection that a server owns. Its next request may be for another
    /// server.
    pub fn moving(now_ms: u64) -> Transfer {
        Transfer::at(TransferState::Looking, false, now_ms)
    }

    fn at(step: TransferState, has_cookie: bool, now_ms: u64) -> Transfer {
        Transfer { step, deadline_ms: now_ms + step.patience_ms(), has_cookie, hello: false, len: 0 }
    }

    /// Returns the order of this step; `None` at the end.
    pub fn order(&self) -> Option<TransferOrder> {
        self.step.order()
    }

    /// Time of [`TransferInput::Timer`], in milliseconds.
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    /// True if the connection may lose its place in a quota to another connection. A connection
    /// without a socket on this host keeps its place, but only for a limited time.
    pub fn gives_way(&self) -> bool {
        self.step.gives_way()
    }

    /// Applies the result of an order, or an event.
    pub fn handle(&mut self, now_ms: u64, input: TransferInput) -> Option<TransferEvent> {
        let (step, notice) = self.next(input)?;
        if step.begins_after(&self.step) {
            self.deadline_ms = now_ms + step.patience_ms();
        }
        self.step = step;
        notice
    }

    /// Returns the next step; `None` if the input doesn't belong to the current step.
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
            // The connection is lost: the server doesn't have it either.
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
                Some(final_response(TransferOutcome::Carried, FinalResponse::Status(502)))
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

    /// Ends a connection that loses its place to another one.
    fn give_way(&self) -> (TransferState, Option<TransferEvent>) {
        let crowded = settled(TransferOutcome::Crowded, None);
        match self.step {
            // The outcome was decided before.
            TransferState::Answering(_) => (TransferState::Over, None),
            // The caller may buffer packets already, so they must return to the socket first.
            TransferState::Choosing { .. } => {
                (TransferState::Keeping(AfterRestore::Answer(FinalResponse::Reset)), crowded)
            }
            _ => (TransferState::Answering(FinalResponse::Reset), crowded),
        }
    }

    /// Returns the next step while a server owns the connection.
    fn leave_server(&self, input: TransferInput) -> Option<(TransferState, Option<TransferEvent>)> {
        Some(match (self.step, input) {
            (TransferState::Looking, TransferInput::Stays) => (TransferState::Passing, None),
            (TransferState::Looking, TransferInput::Leaves) => (TransferState::Seating(Quota::Reading), None),
            // The request is not lost, since the client retransmits it.
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
            (TransferState::Releasing(_), TransferInput::Denied(_) | TransferInput::PeerDead) => not_moved(),
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
            TransferInput::Refused(word) => final_response(TransferOutcome::Refused, word),
            TransferInput::Timer => final_response(TransferOutcome::Late, FinalResponse::TimedOut),
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
            (TransferState::Dispatching(_), TransferInput::PeerDead | TransferInput::Denied(_)) => {
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
                final_response(TransferOutcome::Unserved, unserved)
            }
            // The caller may have selected a server already, and then it buffers the packets.
            (TransferState::Choosing { .. }, TransferInput::Timer) => (
                TransferState::Keeping(AfterRestore::Answer(unserved)),
                settled(TransferOutcome::Unserved, Some(unserved)),
            ),
            _ => return None,
        })
    }

    /// Returns the next step while no host owns the connection.
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
            // The server gets the segments that this host received. The SYN cookie in them lets the
            // server create a socket without a transfer.
            (TransferState::Exporting, TransferInput::Exported { len: None }) if self.has_cookie => {
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
            // The server has no state of the connection, and may have capacity soon.
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
                // A node that did not answer may have restarted, so it gets all bytes again.
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
            // Packets may not have been redirected, but this host must not restore a connection
            // that the server may own.
            (TransferState::Committing(_), TransferInput::Committed(_) | TransferInput::Timer) => given,
            _ => return None,
        })
    }
}

fn settled(outcome: TransferOutcome, word: Option<FinalResponse>) -> Option<TransferEvent> {
    Some(TransferEvent::Settled { outcome, word })
}

fn final_response(outcome: TransferOutcome, word: FinalResponse) -> (TransferState, Option<TransferEvent>) {
    (TransferState::Answering(word), settled(outcome, Some(word)))
}

fn not_moved() -> (TransferState, Option<TransferEvent>) {
    (TransferState::Ending, settled(TransferOutcome::Unmoved, None))
}
