//! One other host: which of its datagrams to believe, and what it said last.
//!
//! No wall clock is compared. A datagram echoes the last numbers that its sender has heard from here, so it was
//! written after those were sent, and when that was is known here. What echoes nothing of this host's, or
//! something too old, is a hello: all that is taken from it is its numbers, to be echoed in turn.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::event::Refusal;
use super::wire::{Datagram, Numbers};
use crate::net::wire::Mac;

/// The most datagrams whose time of sending is remembered. Silence is a few intervals, and in one of them there
/// are at most four hurried datagrams and four answers; older ones have their echo refused.
const SENT_MAX: usize = 64;

/// What a host last said that was to be believed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Content {
    pub(super) ready: bool,
    pub(super) load: u32,
    pub(super) up: u64,
    pub(super) draining: u64,
    pub(super) owned: BTreeSet<IpAddr>,
}

/// One incarnation of a host.
#[derive(Clone, Copy, Debug)]
struct Life {
    /// The latest that was heard of it.
    numbers: Numbers,
    /// When it was first heard.
    first_ms: u64,
    /// When it was last heard.
    last_ms: u64,
}

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// To be believed. It may be the `first` of its incarnation.
    Good { first: bool },
    /// Its sender has not heard this host yet.
    Hello,
    /// Its sender has heard this host, but long ago; a hello too.
    Stale,
    /// Neither.
    Refused(Refusal),
}

/// Another host.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) address: IpAddr,
    /// The last of this host's numbers that it has echoed.
    echoed: u64,
    /// The incarnation that is believed.
    life: Option<Life>,
    /// Another incarnation that said hello.
    caller: Option<Life>,
    /// Sequence and time of what was sent to it.
    sent: VecDeque<(u64, u64)>,
    answered_ms: Option<u64>,
    /// When it was last believed.
    pub(super) heard_ms: Option<u64>,
    /// Until when it counts as alive.
    pub(super) alive_until_ms: u64,
    pub(super) alive: bool,
    /// When `alive` last changed.
    pub(super) since_ms: u64,
    /// Since when it is present: see [`Link::is_present`].
    pub(super) present_since_ms: Option<u64>,
    pub(super) content: Option<Content>,
    pub(super) macs: Vec<Mac>,
    /// The configuration of its last report; `None` after one of another version.
    pub(super) generation: Option<u64>,
    /// Since when that is another than this host's.
    pub(super) differs_since_ms: Option<u64>,
    pub(super) told_differs: bool,
    /// Whether it took part no longer, by its own word.
    pub(super) left: bool,
    /// Reasons that were told already.
    pub(super) told: BTreeSet<Refusal>,
}

impl Link {
    pub(super) fn new(name: &str, address: IpAddr, now_ms: u64) -> Link {
        Link {
            name: name.into(),
            address,
            echoed: 0,
            life: None,
            caller: None,
            sent: VecDeque::new(),
            answered_ms: None,
            heard_ms: None,
            alive_until_ms: 0,
            alive: false,
            since_ms: now_ms,
            present_since_ms: None,
            content: None,
            macs: Vec::new(),
            generation: None,
            differs_since_ms: None,
            told_differs: false,
            left: false,
            told: BTreeSet::new(),
        }
    }

    /// Judges a datagram that says it is from this host and for us, and remembers its numbers. `own` is our
    /// incarnation.
    pub(super) fn judge(&mut self, now_ms: u64, own: u64, silence_ms: u64, heard: &Datagram) -> Judgement {
        let numbers = heard.numbers;
        let same = |life: &Life| life.numbers.incarnation == numbers.incarnation;
        let established = self.life.as_ref().is_some_and(same);
        let known = if established { self.life } else { self.caller.filter(same) };
        if known.is_some_and(|life| numbers.sequence <= life.numbers.sequence) {
            return Judgement::Refused(Refusal::Replayed);
        }
        let first_ms = known.map_or(now_ms, |life| life.first_ms);
        let life = Life { numbers, first_ms, last_ms: now_ms };
        let echoes = heard.echo.incarnation == own;
        // A new incarnation has heard this host later than the one before; a recorded one of long ago has not.
        let last =
            if established { heard.echo.sequence >= self.echoed } else { heard.echo.sequence > self.echoed };
        if echoes && !last {
            return Judgement::Refused(Refusal::Replayed);
        }
        if echoes && self.was_sent_lately(heard.echo.sequence, now_ms, silence_ms) {
            self.echoed = heard.echo.sequence;
            self.life = Some(life);
            if !established {
                self.caller = None;
            }
            return Judgement::Good { first: !established };
        }
        if established {
            self.life = Some(life);
        } else {
            self.caller = Some(life);
        }
        // Both went on for so long that neither is the other's former life.
        let both = self.alive && self.heard_ms.is_some_and(|heard_ms| heard_ms > first_ms + silence_ms);
        match echoes {
            true => Judgement::Stale,
            false if both && !established => Judgement::Refused(Refusal::Namesake),
            false => Judgement::Hello,
        }
    }

    fn was_sent_lately(&self, sequence: u64, now_ms: u64, silence_ms: u64) -> bool {
        let sent = self.sent.iter().rev().find(|(sent, _)| *sent == sequence);
        sent.is_some_and(|(_, at_ms)| now_ms.saturating_sub(*at_ms) <= silence_ms)
    }

    /// Remembers that this was sent to it.
    pub(super) fn sent(&mut self, sequence: u64, now_ms: u64) {
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((sequence, now_ms));
    }

    /// What to echo without being asked: the incarnation that is believed, so that recorded hellos of others come
    /// to nothing; while it is silent, whoever was heard last.
    pub(super) fn echo(&self) -> Numbers {
        let silent = !self.alive;
        let caller =
            self.caller.filter(|caller| self.life.is_none_or(|l| silent && caller.last_ms > l.last_ms));
        caller.or(self.life).map(|life| life.numbers).unwrap_or_default()
    }

    /// Whether an answer may be sent now; if so, the next may be in `pause_ms`.
    pub(super) fn may_answer(&mut self, now_ms: u64, pause_ms: u64) -> bool {
        let may = self.answered_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= pause_ms);
        if may {
            self.answered_ms = Some(now_ms);
        }
        may
    }

    /// Counts as alive until then. Gives whether it did not before.
    pub(super) fn revive(&mut self, now_ms: u64, until_ms: u64) -> bool {
        self.alive_until_ms = until_ms;
        let news = !self.alive;
        if news {
            self.alive = true;
            self.since_ms = now_ms;
            self.told.clear();
        }
        news
    }

    /// Draws the conclusion from silence. Gives whether it just ended to be alive.
    pub(super) fn expire(&mut self, now_ms: u64) -> bool {
        let expired = self.alive && now_ms >= self.alive_until_ms;
        if expired {
            self.alive = false;
            self.since_ms = now_ms;
        }
        expired
    }

    /// Whether it may be the rightful owner of an address. Who runs another configuration and has never said
    /// whether it takes part, may: an address that nobody owns is better than one that two hosts do.
    pub(super) fn is_present(&self) -> bool {
        self.alive && self.content.as_ref().is_none_or(|content| content.ready)
    }

    /// Whether it takes part, as far as it was believed.
    pub(super) fn is_ready(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.ready)
    }

    /// Keeps [`Link::present_since_ms`] true to its name.
    pub(super) fn note_presence(&mut self, now_ms: u64) {
        self.present_since_ms = if self.is_present() { self.present_since_ms.or(Some(now_ms)) } else { None };
    }

    /// How many things are remembered of it.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.sent.len().max(self.told.len()).max(self.macs.len())
    }

    /// Whether its last report was of this generation.
    pub(super) fn agrees(&self, generation: u64) -> bool {
        self.generation == Some(generation)
    }
}
