//! A connection in motion: from when this host has it until a server does, or its client has been told why none does.
//!
//! [`Transfer`] is a state machine for one of them. [`Transfer::order`] says what is to be done, and whoever has the socket and the
//! network says by [`Transfer::handle`] what came of it, or that [`Transfer::deadline_ms`] has passed. What doesn't belong to the step
//! that it is at came late, or twice, and changes nothing.
//!
//! Exactly one has the connection at any time. It is this host's while it has a socket of it; from [`Order::Export`] on it is nobody's,
//! and its client's packets are kept back, until the server says that it is its own. Who was never answered for certain doesn't take it
//! back: the server may have it. It comes back by [`Order::Restore`] only where the server has said that it has none of it, or was
//! never told.

mod kept_back;
mod step;
#[cfg(test)]
mod tests;

pub use kept_back::KeptBack;

use crate::node::lccp::ErrorCode;
use step::{Round, Step, Then, Told};

/// How long a client may take to say what it wants, and the longest that anything else may take, in milliseconds.
pub const PATIENCE_MS: u64 = 10_000;
/// What isn't acknowledged is said again after these times, in milliseconds; after the last it is given up.
const OFFERS_MS: &[u64] = &[20, 40, 140, 400, 800, 1_600];
/// The same for a server that is to let a connection go: longer than one may be silent and still count as heard, since it may have let
/// go already, and shorter than it remembers that.
const RELEASES_MS: &[u64] = &[20, 40, 140, 400, 800, 1_600, 1_600];
/// The same for who decides for all.
const DISPATCHES_MS: &[u64] = &[40, 60];

/// What is to be done about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Look whether its server answers its next request after all: [`Input::Stays`] or [`Input::Leaves`].
    Look,
    /// It does: send the request on to it. [`Input::Done`].
    Pass,
    /// Wait for a place in this room, and leave that which it has. [`Input::Seated`].
    TakePlace(Room),
    /// Ask its server to let it go. [`Input::Said`], or [`Input::Unheard`].
    Release,
    /// Read until it is clear what the client wants: [`Input::Wanted`], [`Input::Refused`] or [`Input::Left`].
    Read,
    /// Ask the node that decides for all. [`Input::Said`], [`Input::Unheard`], or [`Input::Undispatched`].
    Dispatch,
    /// Choose its server, and keep back what the client says from then on: [`Input::Chosen`] or [`Input::Unserved`].
    Choose,
    /// Take its socket out of the kernel: [`Input::Exported`] or [`Input::NotExported`].
    Export,
    /// Give it to the server, from the first byte on that is missing there. [`Input::Said`].
    Offer {
        /// Counted from the beginning of what was exported.
        missing: u32,
    },
    /// Wait for what a node answers: [`Input::Released`], [`Input::Advised`], [`Input::Acknowledged`] or [`Input::Denied`].
    Listen,
    /// Send on to the server what the client says, and before that what was exported, if it is to be `replayed`. [`Input::Committed`].
    Commit {
        /// Nobody has said that the server has it.
        replayed: bool,
    },
    /// Make a socket of it on this host: of what was exported, or of what its server has let go. [`Input::Restored`].
    Restore,
    /// What the client says comes to this host's socket from now on. [`Input::Done`].
    Keep,
    /// Connect to the server, as its bytes are to be carried: [`Input::Reached`].
    Reach,
    /// Say a last word, and hang up. [`Input::Done`].
    Answer(Word),
    /// Leave it with the server that has it. [`Input::Done`].
    Return,
    /// Tell its client that it is over: it can't be had from the server that has it. [`Input::Done`].
    End,
}

/// Who shares places. There are so many in each, and who holds most of them gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Connections that are read, for a while that is bounded.
    Reading,
    /// Those whose bytes are carried, which may last.
    Carrying,
}

/// The last that a client hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// An answer with this status.
    Status(u16),
    /// Status 408, if what it has said is text; else nothing.
    TimedOut,
    /// What a client of HTTP/2 understands.
    Http1Required,
    /// Nothing but a reset.
    Reset,
}

/// What came of an order, or happened meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
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
    Seated,
    /// A node was told, and will answer.
    Said,
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
    /// What was asked for is not done.
    Denied(ErrorCode),
    /// It is clear what the client wants.
    Wanted {
        /// Whether it can be told nothing but by TLS.
        hello: bool,
    },
    /// Nobody should act on what the client says.
    Refused(Word),
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
        /// Bytes of it that the server is to have; `None` if the server isn't heard, or can't be told of it.
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

/// What there is to count or to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A server was asked to let it go.
    ReleaseAsked,
    /// That did.
    Released,
    /// It is at work there, and is asked for again when its client repeats itself.
    Busy,
    /// The node that decides for all was asked.
    DispatchAsked,
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
        /// What became of it.
        outcome: Outcome,
        /// What its client is told, if it is told anything.
        word: Option<Word>,
    },
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
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
    step: Step,
    deadline_ms: u64,
    /// Whether a cookie vouches for its first segments, so that a server makes a socket of them that nobody has told it of.
    vouched: bool,
    /// Whether its client can be told nothing but by TLS.
    hello: bool,
    /// Bytes that its server is to have.
    len: u32,
}

impl Transfer {
    /// Of a connection whose client is to be read. A cookie vouches for its first segments.
    pub fn accepted(now_ms: u64) -> Transfer {
        Transfer::at(Step::Reading, true, now_ms)
    }

    /// Of a connection that a server has, and whose next request others may be for.
    pub fn moving(now_ms: u64) -> Transfer {
        Transfer::at(Step::Looking, false, now_ms)
    }

    fn at(step: Step, vouched: bool, now_ms: u64) -> Transfer {
        Transfer { step, deadline_ms: now_ms + step.patience_ms(), vouched, hello: false, len: 0 }
    }

    /// What is to be done now; nothing once all is done.
    pub fn order(&self) -> Option<Order> {
        self.step.order()
    }

    /// When [`Input::Timer`] is due, in milliseconds.
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    /// Whether it gives way to another that needs its place. What is nobody's socket doesn't, for a while that is bounded.
    pub fn gives_way(&self) -> bool {
        self.step.gives_way()
    }

    /// Takes in what came of an order, or happened meanwhile.
    pub fn handle(&mut self, now_ms: u64, input: Input) -> Option<Notice> {
        let (step, notice) = self.next(input)?;
        if step.begins_after(&self.step) {
            self.deadline_ms = now_ms + step.patience_ms();
        }
        self.step = step;
        notice
    }

    /// The next step, if an input leads to one.
    fn next(&mut self, input: Input) -> Option<(Step, Option<Notice>)> {
        match (self.step, input) {
            (step, Input::Crowded) if step.gives_way() => Some(self.give_way()),
            (Step::Looking | Step::Seating(Room::Reading) | Step::Releasing(_), _) => {
                self.leave_server(input)
            }
            (Step::Reading, _) => self.read(input),
            (Step::Dispatching(_) | Step::Choosing { .. }, _) => self.choose(input),
            (Step::Exporting | Step::Offered { .. } | Step::Committing(_), _) => self.give(input),
            (Step::Restoring(then), Input::Restored(true)) => Some((Step::Keeping(then), None)),
            (Step::Restoring(Then::Read), Input::Restored(false) | Input::Timer) => Some(unmoved()),
            // It is lost: the server hasn't it either.
            (Step::Restoring(_), Input::Restored(false) | Input::Timer) => {
                Some((Step::Keeping(Then::HangUp), settled(Outcome::Given, None)))
            }
            (Step::Keeping(then), Input::Done | Input::Timer) => Some((then.step(), None)),
            (Step::Seating(Room::Carrying), Input::Seated) => Some((Step::Reaching, None)),
            (Step::Reaching, Input::Reached(true)) => Some((Step::Over, settled(Outcome::Carried, None))),
            (Step::Reaching, Input::Reached(false)) | (Step::Reaching | Step::Seating(_), Input::Timer) => {
                Some(last_word(Outcome::Carried, Word::Status(502)))
            }
            (Step::Passing | Step::Returning, Input::Done | Input::Timer) => {
                Some((Step::Over, settled(Outcome::Returned, None)))
            }
            (Step::Answering(_) | Step::Ending, Input::Done | Input::Timer) => Some((Step::Over, None)),
            _ => None,
        }
    }

    /// Somebody else gets its place.
    fn give_way(&self) -> (Step, Option<Notice>) {
        let crowded = settled(Outcome::Crowded, None);
        match self.step {
            // It was settled before.
            Step::Answering(_) => (Step::Over, None),
            // Its packets may be kept back already.
            Step::Choosing { .. } => (Step::Keeping(Then::Answer(Word::Reset)), crowded),
            _ => (Step::Answering(Word::Reset), crowded),
        }
    }

    /// While a server has it.
    fn leave_server(&self, input: Input) -> Option<(Step, Option<Notice>)> {
        Some(match (self.step, input) {
            (Step::Looking, Input::Stays) => (Step::Passing, None),
            (Step::Looking, Input::Leaves) => (Step::Seating(Room::Reading), None),
            // Its client says again what it wants.
            (Step::Looking | Step::Seating(_), Input::Timer) => (Step::Returning, None),
            (Step::Seating(_), Input::Seated) => (Step::Releasing(Round::FIRST), None),
            (Step::Releasing(round), Input::Said) => {
                (Step::Releasing(round.said()?), round.is_first().then_some(Notice::ReleaseAsked))
            }
            (Step::Releasing(_), Input::Released) => (Step::Restoring(Then::Read), Some(Notice::Released)),
            (Step::Releasing(_), Input::Denied(ErrorCode::Busy)) => (Step::Returning, Some(Notice::Busy)),
            (Step::Releasing(_), Input::Denied(_) | Input::Unheard) => unmoved(),
            (Step::Releasing(round), Input::Timer) => match round.next(RELEASES_MS) {
                Some(round) => (Step::Releasing(round), None),
                None => unmoved(),
            },
            _ => return None,
        })
    }

    fn read(&mut self, input: Input) -> Option<(Step, Option<Notice>)> {
        Some(match input {
            Input::Wanted { hello } => {
                self.hello = hello;
                (Step::Dispatching(Round::FIRST), None)
            }
            Input::Refused(word) => last_word(Outcome::Refused, word),
            Input::Timer => last_word(Outcome::Late, Word::TimedOut),
            Input::Left => (Step::Over, settled(Outcome::Left, None)),
            _ => return None,
        })
    }

    fn choose(&self, input: Input) -> Option<(Step, Option<Notice>)> {
        let own = Step::Choosing { advised: false };
        let unserved = if self.hello { Word::Reset } else { Word::Status(503) };
        Some(match (self.step, input) {
            (Step::Dispatching(round), Input::Said) => {
                (Step::Dispatching(round.said()?), round.is_first().then_some(Notice::DispatchAsked))
            }
            (Step::Dispatching(_), Input::Undispatched) => (own, None),
            (Step::Dispatching(_), Input::Advised) => {
                (Step::Choosing { advised: true }, Some(Notice::Advised))
            }
            (Step::Dispatching(_), Input::Unheard | Input::Denied(_)) => {
                (own, Some(Notice::Alone { silent: false }))
            }
            (Step::Dispatching(round), Input::Timer) => match round.next(DISPATCHES_MS) {
                Some(round) => (Step::Dispatching(round), None),
                None => (own, Some(Notice::Alone { silent: true })),
            },
            (Step::Choosing { advised }, Input::Chosen { takes, advised: believed }) => {
                let step = if takes { Step::Exporting } else { Step::Keeping(Then::Carry) };
                (step, (advised && !believed).then_some(Notice::Unbelieved))
            }
            (Step::Choosing { .. }, Input::Unserved) => last_word(Outcome::Unserved, unserved),
            // It may be chosen yet, and is kept back then.
            (Step::Choosing { .. }, Input::Timer) => {
                (Step::Keeping(Then::Answer(unserved)), settled(Outcome::Unserved, Some(unserved)))
            }
            _ => return None,
        })
    }

    /// While it is nobody's.
    fn give(&mut self, input: Input) -> Option<(Step, Option<Notice>)> {
        let given = (Step::Over, settled(Outcome::Given, None));
        let back = Step::Restoring(Then::Carry);
        Some(match (self.step, input) {
            (Step::Exporting, Input::NotExported) => (Step::Keeping(Then::Carry), None),
            (Step::Exporting, Input::Exported { len: Some(len) }) => {
                self.len = len;
                (Step::OFFERED, None)
            }
            // Its segments go there as they did here: they make no second socket.
            (Step::Exporting, Input::Exported { len: None }) if self.vouched => {
                (Step::Committing(Told::Nothing), None)
            }
            (Step::Exporting, Input::Exported { len: None } | Input::Timer) => (back, None),
            (Step::Offered { .. }, Input::Acknowledged { missing }) if missing == self.len => {
                (Step::Committing(Told::Taken), Some(Notice::Taken))
            }
            // It has nothing of it, and may have room in a moment.
            (Step::Offered { round, missing, .. }, Input::Denied(ErrorCode::NoRoom)) => {
                (Step::Offered { round, missing, is_full: true }, None)
            }
            (Step::Offered { .. }, Input::Denied(_)) => (back, Some(Notice::NotTaken)),
            (Step::Offered { round, missing, is_full }, input) => match input {
                Input::Acknowledged { missing: first } if first < self.len => {
                    (Step::Offered { round, missing: missing.max(first), is_full: false }, None)
                }
                // Who says nothing now may have started anew, and misses everything.
                Input::Said => (Step::Offered { round: round.said()?, missing: 0, is_full: false }, None),
                Input::Timer => match round.next(OFFERS_MS) {
                    Some(round) => (Step::Offered { round, missing, is_full }, None),
                    None if is_full => (back, Some(Notice::NotTaken)),
                    None => (Step::Committing(Told::Maybe), Some(Notice::Unanswered)),
                },
                _ => return None,
            },
            (Step::Committing(Told::Nothing), Input::Committed(false)) => (back, None),
            // What may be there must not be here, too.
            (Step::Committing(_), Input::Committed(_) | Input::Timer) => given,
            _ => return None,
        })
    }
}

fn settled(outcome: Outcome, word: Option<Word>) -> Option<Notice> {
    Some(Notice::Settled { outcome, word })
}

fn last_word(outcome: Outcome, word: Word) -> (Step, Option<Notice>) {
    (Step::Answering(word), settled(outcome, Some(word)))
}

fn unmoved() -> (Step, Option<Notice>) {
    (Step::Ending, settled(Outcome::Unmoved, None))
}
