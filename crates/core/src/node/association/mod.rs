//! The state shared with one other node, whatever it sends: which of its messages to believe.
//!
//! No clock is compared. A node's *life* has an incarnation, random for each start, and counts its
//! messages. A message *echoes* the receiver's life that it is written to, and a number of it that
//! its sender has heard. So nothing that was said before this node's start is believed, and how old
//! a message can be is known here. Another life of a node is believed only once it echoes something
//! that was sent after the life before became known: what ended before that has never heard of it.
//!
//! Protocols differ in one thing, [`Delivery`]: whether messages tell how their sender is, or each
//! asks for something.

mod refusal;
#[cfg(test)]
mod tests;
mod window;

pub(super) use refusal::SenderCounts;
pub use refusal::{MessageCounters, Refusal};

use alloc::collections::VecDeque;

use zerocopy::byteorder::network_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use window::{REACH_MAX, ReplayWindow};

/// The most messages whose time of sending is remembered. Silence is a few intervals, and in one of
/// them there are at most four hurried reports and four answers; older ones have their echo
/// refused.
const SENT_MAX: usize = 64;

/// Which message of which life of a node. Zeros name none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Numbers {
    /// Random for each start, never 0.
    pub incarnation: u64,
    /// Counts the messages of one incarnation to one receiver, from 1.
    pub sequence: u64,
}

/// The numbers of a message, and those it echoes, as they stand in it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct NumbersBytes {
    incarnation: U64,
    sequence: U64,
    echo_incarnation: U64,
    echo_sequence: U64,
}

impl NumbersBytes {
    pub(super) fn of(numbers: Numbers, echo: Numbers) -> NumbersBytes {
        NumbersBytes {
            incarnation: numbers.incarnation.into(),
            sequence: numbers.sequence.into(),
            echo_incarnation: echo.incarnation.into(),
            echo_sequence: echo.sequence.into(),
        }
    }

    pub(super) fn numbers(&self) -> Numbers {
        Numbers { incarnation: self.incarnation.get(), sequence: self.sequence.get() }
    }

    pub(super) fn echo(&self) -> Numbers {
        Numbers { incarnation: self.echo_incarnation.get(), sequence: self.echo_sequence.get() }
    }
}

/// The order of messages of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Each says how its sender is: the latest counts, and only if it was written lately.
    Latest,
    /// Each stands for itself, and comes in any order, once.
    Each,
}

/// Whether a message makes acquaintance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handshake {
    /// It says who its sender is, and may be written to nobody who is known yet.
    Hello,
    /// It answers one.
    Ack,
    /// It takes acquaintance for granted.
    None,
}

/// An authentic message, as far as it is judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedMessage {
    pub(super) numbers: Numbers,
    /// The receiver's life that it was written to, and a number of that which its sender had heard.
    pub(super) echo: Numbers,
    pub(super) handshake: Handshake,
}

/// The verdict on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageVerdict {
    /// To be believed.
    Good {
        /// The first of its incarnation.
        first: bool,
        /// The first for a while.
        revived: bool,
    },
    /// Of a node that is to hear this one first; nothing but its numbers is taken from it, to be
    /// echoed.
    Hello,
    /// Neither. Not counted yet: see [`Association::refuse`].
    Refused(Refusal),
}

/// One life of the other node.
#[derive(Clone, Copy, Debug)]
struct Life {
    incarnation: u64,
    window: ReplayWindow,
    /// When it was first heard.
    first_ms: u64,
    /// When it was last heard.
    last_ms: u64,
}

impl Life {
    fn numbers(&self) -> Numbers {
        Numbers { incarnation: self.incarnation, sequence: self.window.highest() }
    }
}

/// The state shared with one other node.
#[derive(Clone, Debug)]
pub(super) struct Association {
    delivery: Delivery,
    /// This node's incarnation.
    own: u64,
    /// A node that isn't heard for so long is silent.
    silence_ms: u64,
    /// Of the message that was sent last.
    sequence: u64,
    /// That of the message that was sent last before the believed life was. No other life is
    /// believed that echoes it or one before.
    settled: u64,
    /// Sequence and time of what was sent lately, where that matters.
    sent: VecDeque<(u64, u64)>,
    /// The life that is believed.
    life: Option<Life>,
    /// Another one that said hello.
    caller: Option<Life>,
    received_ms: Option<u64>,
    /// When the node was answered last.
    answered_ms: Option<u64>,
    alive: bool,
    alive_until_ms: u64,
    /// Why nothing of it is understood.
    trouble: Option<Refusal>,
    tally: SenderCounts,
}

impl Association {
    /// With a node that was never heard. Counts on from `after`, which is 0 unless this incarnation
    /// may have spoken to it before.
    pub(super) fn new(delivery: Delivery, own: u64, silence_ms: u64, after: u64) -> Association {
        Association {
            delivery,
            // 0 in a message means that no life is known
            own: own.max(1),
            silence_ms,
            sequence: after,
            settled: after,
            sent: VecDeque::new(),
            life: None,
            caller: None,
            received_ms: None,
            answered_ms: None,
            alive: false,
            alive_until_ms: 0,
            trouble: None,
            tally: SenderCounts::default(),
        }
    }

    /// From now on a node that isn't heard for so long is silent.
    pub(super) fn set_silence(&mut self, silence_ms: u64) {
        self.silence_ms = silence_ms;
    }

    /// Judges an authentic message, and remembers its numbers.
    pub(super) fn judge(&mut self, now_ms: u64, message: ReceivedMessage) -> MessageVerdict {
        let first = match self.weigh(now_ms, message) {
            Ok(first) => first,
            Err(judgement) => {
                self.tally.counters.hellos += u64::from(judgement == MessageVerdict::Hello);
                return judgement;
            }
        };
        let revived = !self.alive;
        if first || revived {
            self.tally.reset_logged();
        }
        self.tally.counters.accepted += 1;
        self.received_ms = Some(now_ms);
        self.trouble = None;
        self.presume(now_ms);
        MessageVerdict::Good { first, revived }
    }

    /// Whether a message that is to be believed is the first of its life; else what it is.
    fn weigh(&mut self, now_ms: u64, message: ReceivedMessage) -> Result<bool, MessageVerdict> {
        let ReceivedMessage { numbers, echo, handshake } = message;
        let refused = |refusal| Err(MessageVerdict::Refused(refusal));
        let for_us = echo.incarnation == self.own;
        let same = |life: &Life| life.incarnation == numbers.incarnation;
        let known = self.life.filter(same);
        let first = known.is_none();
        if !for_us && handshake != Handshake::Hello {
            return refused(Refusal::Former);
        }
        if first && for_us && handshake == Handshake::None {
            return refused(Refusal::Unknown);
        }
        if first && for_us && !(self.settled + 1..=self.sequence).contains(&echo.sequence) {
            return refused(if self.life.is_some() { Refusal::Ended } else { Refusal::Stale });
        }
        let new = Life {
            incarnation: numbers.incarnation,
            window: ReplayWindow::default(),
            first_ms: now_ms,
            last_ms: 0,
        };
        let mut life = known.or(self.caller.filter(same)).unwrap_or(new);
        let reach = if self.delivery == Delivery::Latest { 1 } else { REACH_MAX };
        if !life.window.accept(numbers.sequence, reach) {
            return refused(Refusal::Replayed);
        }
        life.last_ms = now_ms;
        let believed = match self.delivery {
            Delivery::Latest => for_us && self.was_sent_lately(echo.sequence, now_ms),
            Delivery::Each => for_us || !first,
        };
        if believed {
            if first {
                (self.caller, self.settled) = (None, self.sequence);
            }
            self.life = Some(life);
            return Ok(first);
        }
        *(if first { &mut self.caller } else { &mut self.life }) = Some(life);
        // Both went on for so long that neither is the other's former life.
        let both =
            self.alive && self.received_ms.is_some_and(|at_ms| at_ms > life.first_ms + self.silence_ms);
        match for_us {
            true => refused(Refusal::Stale),
            false if both && first => refused(Refusal::Namesake),
            false => Err(MessageVerdict::Hello),
        }
    }

    fn was_sent_lately(&self, sequence: u64, now_ms: u64) -> bool {
        let sent = self.sent.iter().rev().find(|(sent, _)| *sent == sequence);
        sent.is_some_and(|(_, at_ms)| now_ms.saturating_sub(*at_ms) <= self.silence_ms)
    }

    /// Counts a refusal. Gives whether it is to be told: each is, once, until the node is heard
    /// anew. See [`Association::suspect`], too.
    pub(super) fn refuse(&mut self, refusal: Refusal) -> bool {
        self.tally.refuse(refusal)
    }

    /// This may be why the node isn't heard. Gives whether that is news.
    pub(super) fn suspect(&mut self, refusal: Refusal) -> bool {
        let before = self.trouble();
        let certain = matches!(refusal, Refusal::Key { .. } | Refusal::Version { .. });
        // the rest anybody can bring about
        let possible = matches!(refusal, Refusal::Forged | Refusal::Misdirected) && self.trouble.is_none();
        if certain || possible {
            self.trouble = Some(refusal);
        }
        self.trouble() != before
    }

    /// Why nothing that the node says is understood, as far as can be told; nothing while it is.
    pub(super) fn trouble(&self) -> Option<Refusal> {
        // Anybody can forge a tag; and what is of another version may live all the same.
        self.trouble.filter(|trouble| !self.alive || matches!(trouble, Refusal::Version { .. }))
    }

    /// The numbers of the next message.
    pub(super) fn next(&mut self) -> Numbers {
        self.sequence += 1;
        self.tally.counters.sent += 1;
        Numbers { incarnation: self.own, sequence: self.sequence }
    }

    /// The same where it matters when it was sent.
    pub(super) fn next_at(&mut self, now_ms: u64) -> Numbers {
        let numbers = self.next();
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((numbers.sequence, now_ms));
        numbers
    }

    /// The life to echo unasked: the one that is believed, so that recorded hellos of others come
    /// to nothing; while it is silent, whichever was heard last.
    pub(super) fn echo(&self) -> Numbers {
        let later = |caller: &Life| self.life.is_none_or(|life| !self.alive && caller.last_ms > life.last_ms);
        self.caller.filter(later).or(self.life).map(|life| life.numbers()).unwrap_or_default()
    }

    /// Whether an answer may be sent now; if so, the next may be in `pause_ms`.
    pub(super) fn may_answer(&mut self, now_ms: u64, pause_ms: u64) -> bool {
        let may = self.answered_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= pause_ms);
        if may {
            self.answered_ms = Some(now_ms);
        }
        may
    }

    /// The incarnation that is believed.
    pub(super) fn believed(&self) -> Option<u64> {
        self.life.map(|life| life.incarnation)
    }

    /// The number of the message that was sent last.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The counts.
    pub(super) fn counters(&self) -> &MessageCounters {
        &self.tally.counters
    }

    /// When the node was last believed.
    pub(super) fn received_ms(&self) -> Option<u64> {
        self.received_ms
    }

    /// Whether it has not fallen silent, as far as [`Association::expire`] was told.
    pub(super) fn is_alive(&self) -> bool {
        self.alive
    }

    /// Until when it counts as alive, if it does.
    pub(super) fn alive_until_ms(&self) -> Option<u64> {
        self.alive.then_some(self.alive_until_ms)
    }

    /// Counts as alive from now until it would have been heard. Gives whether it did not before.
    pub(super) fn presume(&mut self, now_ms: u64) -> bool {
        self.alive_until_ms = now_ms.saturating_add(self.silence_ms);
        !core::mem::replace(&mut self.alive, true)
    }

    /// Counts as alive for so long more, if it does: nobody listened meanwhile.
    pub(super) fn prolong(&mut self, ms: u64) {
        self.alive_until_ms = self.alive_until_ms.saturating_add(ms);
    }

    /// Draws the conclusion from silence. Gives whether it has just ended to be alive.
    pub(super) fn expire(&mut self, now_ms: u64) -> bool {
        let expired = self.alive && now_ms >= self.alive_until_ms;
        self.alive &= !expired;
        expired
    }

    /// How many things are remembered of it.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.sent.len()
    }
}
