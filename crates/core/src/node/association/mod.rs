//! Association: the state that this node keeps about one other node, for all protocols. It decides
//! which messages of the other node are accepted.
//!
//! Clocks are not compared. Each start of a node begins a new *life*, with a random incarnation and
//! message numbers from 1. A message *echoes* the incarnation of the receiver for which it is
//! meant, and the last number that the sender received from that incarnation. A node therefore
//! accepts no message from before its own start, and knows the maximum age of each message. A new
//! life of a node is accepted only once it echoes a message sent after the previous life became
//! known. A life that ended earlier can't have received such a message.
//!
//! Protocols differ in [`Delivery`]: a message either reports the sender's state, or is an
//! independent request.

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

/// Maximum number of messages whose sending time is stored. A node counts as silent after a few
/// intervals. In each interval a node sends at most four early reports and four answers. Echoes of
/// older messages are refused.
const SENT_MAX: usize = 64;

/// Identification of a message. Both numbers are zero if there is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Numbers {
    /// Random number of the sender's start, never 0.
    pub incarnation: u64,
    /// Number of the message among those of one incarnation to one receiver, from 1.
    pub sequence: u64,
}

/// Numbers of a message and of its echo, in wire format.
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

/// Semantics of a protocol's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Each message reports the sender's state. Only the latest message counts, and only if it was
    /// sent recently.
    Latest,
    /// Each message is independent of the others, and is accepted once, in any order.
    Each,
}

/// Role of a message in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handshake {
    /// First message. Its sender need not know the receiver's incarnation.
    Hello,
    /// Answer to a first message.
    Ack,
    /// The message is not part of the handshake.
    None,
}

/// Fields of an authentic message that decide if it is accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedMessage {
    pub(super) numbers: Numbers,
    /// Incarnation of the receiver for which the message is meant, and the last number that the
    /// sender received from that incarnation.
    pub(super) echo: Numbers,
    pub(super) handshake: Handshake,
}

/// Verdict on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageVerdict {
    /// The message is accepted.
    Good {
        /// True for the first message of its incarnation.
        first: bool,
        /// True for the first message after a silence.
        revived: bool,
    },
    /// First message of a node that has not received a message of this node yet. Only its numbers
    /// are used: this node's messages echo them.
    Hello,
    /// The message is refused. The caller counts the refusal: see [`Association::refuse`].
    Refused(Refusal),
}

/// A life of the other node.
#[derive(Clone, Copy, Debug)]
struct Life {
    incarnation: u64,
    window: ReplayWindow,
    /// Time of the first message of this life, in milliseconds.
    first_ms: u64,
    /// Time of the last message of this life, in milliseconds.
    last_ms: u64,
}

impl Life {
    fn numbers(&self) -> Numbers {
        Numbers { incarnation: self.incarnation, sequence: self.window.highest() }
    }
}

/// State about one other node.
#[derive(Clone, Debug)]
pub(super) struct Association {
    delivery: Delivery,
    /// Incarnation of this node.
    own: u64,
    /// Time without messages after which the other node is silent, in milliseconds.
    silence_ms: u64,
    /// Number of the last message that was sent to the node.
    sequence: u64,
    /// Number of the last message that was sent before the accepted life became known. Another life
    /// that echoes this number or a lower one is refused.
    settled: u64,
    /// Number and time of recently sent messages, if the protocol needs them.
    sent: VecDeque<(u64, u64)>,
    life: Option<Life>,
    /// Another life of the node than the accepted one. It has sent a first message.
    caller: Option<Life>,
    received_ms: Option<u64>,
    /// Time of the last answer that was sent to the node, in milliseconds.
    answered_ms: Option<u64>,
    alive: bool,
    alive_until_ms: u64,
    /// Reason why all messages of the node are refused.
    trouble: Option<Refusal>,
    tally: SenderCounts,
}

impl Association {
    /// Returns the state for a node that has sent no message. Message numbers continue after
    /// `after`, which is 0 unless this incarnation may have sent messages to the node before.
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

    pub(super) fn set_silence(&mut self, silence_ms: u64) {
        self.silence_ms = silence_ms;
    }

    /// Judges an authentic message, and stores its numbers.
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
        self.mark_alive(now_ms);
        MessageVerdict::Good { first, revived }
    }

    /// Returns true if an accepted message is the first of its life. Otherwise returns the verdict.
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
        // Both lives have sent messages for a long time, so neither has ended. This means that two
        // nodes have the same name.
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

    /// Counts a refusal. Returns true if the refusal must be reported. Each reason is reported once
    /// until the node's next accepted message. See also [`Association::suspect`].
    pub(super) fn refuse(&mut self, refusal: Refusal) -> bool {
        self.tally.refuse(refusal)
    }

    /// Records a possible reason why the node is silent. Returns true if the reason is new.
    pub(super) fn suspect(&mut self, refusal: Refusal) -> bool {
        let before = self.trouble();
        let certain = matches!(refusal, Refusal::Key { .. } | Refusal::Version { .. });
        // A message with one of these refusals may come from anyone.
        let possible = matches!(refusal, Refusal::Forged | Refusal::Misdirected) && self.trouble.is_none();
        if certain || possible {
            self.trouble = Some(refusal);
        }
        self.trouble() != before
    }

    /// Reason why all messages of the node are refused. `None` if one is accepted, or if the reason
    /// is unknown.
    pub(super) fn trouble(&self) -> Option<Refusal> {
        // Anyone can send a wrong tag in the node's name, so that reason counts only while the node
        // is silent. Another version is a reason even while the node is alive.
        self.trouble.filter(|trouble| !self.alive || matches!(trouble, Refusal::Version { .. }))
    }

    /// Returns the numbers of the next message.
    pub(super) fn next(&mut self) -> Numbers {
        self.sequence += 1;
        self.tally.counters.sent += 1;
        Numbers { incarnation: self.own, sequence: self.sequence }
    }

    /// Returns the numbers of the next message, and stores its time for [`Delivery::Latest`].
    pub(super) fn next_at(&mut self, now_ms: u64) -> Numbers {
        let numbers = self.next();
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((numbers.sequence, now_ms));
        numbers
    }

    /// Returns the numbers to echo in unsolicited messages. They are those of the accepted life, so
    /// that replayed first messages have no effect. While the node is silent, they are those of the
    /// life with the latest message.
    pub(super) fn echo(&self) -> Numbers {
        let later = |caller: &Life| self.life.is_none_or(|life| !self.alive && caller.last_ms > life.last_ms);
        self.caller.filter(later).or(self.life).map(|life| life.numbers()).unwrap_or_default()
    }

    /// Returns true if an answer may be sent now. Then the next answer is allowed after `pause_ms`.
    pub(super) fn may_answer(&mut self, now_ms: u64, pause_ms: u64) -> bool {
        let may = self.answered_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= pause_ms);
        if may {
            self.answered_ms = Some(now_ms);
        }
        may
    }

    pub(super) fn believed(&self) -> Option<u64> {
        self.life.map(|life| life.incarnation)
    }

    /// Number of the last message that was sent to the node.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(super) fn counters(&self) -> &MessageCounters {
        &self.tally.counters
    }

    /// Time of the last accepted message, in milliseconds.
    pub(super) fn received_ms(&self) -> Option<u64> {
        self.received_ms
    }

    /// True if the node is not silent. [`Association::expire`] detects silence.
    pub(super) fn is_alive(&self) -> bool {
        self.alive
    }

    /// Time until which the node counts as alive, in milliseconds.
    pub(super) fn alive_until_ms(&self) -> Option<u64> {
        self.alive.then_some(self.alive_until_ms)
    }

    /// Counts the node as alive until its next message is overdue. Returns true if the node was not
    /// alive before.
    pub(super) fn mark_alive(&mut self, now_ms: u64) -> bool {
        self.alive_until_ms = now_ms.saturating_add(self.silence_ms);
        !core::mem::replace(&mut self.alive, true)
    }

    /// Extends the time for which the node counts as alive, by the time for which its messages were
    /// not read.
    pub(super) fn extend_liveness(&mut self, ms: u64) {
        self.alive_until_ms = self.alive_until_ms.saturating_add(ms);
    }

    /// Checks for silence. Returns true if the node was alive and no longer is.
    pub(super) fn expire(&mut self, now_ms: u64) -> bool {
        let expired = self.alive && now_ms >= self.alive_until_ms;
        self.alive &= !expired;
        expired
    }

    /// Number of stored entries, for tests that memory is bounded.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.sent.len()
    }
}
