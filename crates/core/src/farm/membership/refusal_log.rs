//! Refused answers. All of them are counted. The first answer of each pair of MAC address and
//! reason is logged, up to a limit.

use alloc::collections::BTreeSet;

use super::event::{MembershipEvent, ReplyRefusal};
use super::neighbour_reply::NeighbourReply;
use crate::net::wire::Mac;

/// Number of refused answers by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RefusalCounts([u64; ReplyRefusal::ALL.len()]);

impl RefusalCounts {
    /// Number of answers refused for this reason.
    pub fn count(&self, refusal: ReplyRefusal) -> u64 {
        self.0[refusal as usize]
    }

    /// Returns all reasons, each with its number of refused answers.
    pub fn iter(&self) -> impl Iterator<Item = (ReplyRefusal, u64)> + '_ {
        ReplyRefusal::ALL.into_iter().map(|refusal| (refusal, self.count(refusal)))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct RefusalLog {
    max: usize,
    logged: BTreeSet<(Mac, ReplyRefusal)>,
    refused: RefusalCounts,
}

impl RefusalLog {
    /// Returns a log that remembers up to `max` pairs of MAC address and reason.
    pub(super) fn new(max: usize) -> RefusalLog {
        RefusalLog { max, ..RefusalLog::default() }
    }

    /// Counts a refusal. Returns the event if the pair of MAC address and reason is new and the log
    /// has room for it.
    pub(super) fn refuse(&mut self, reply: NeighbourReply, refusal: ReplyRefusal) -> Option<MembershipEvent> {
        let count = &mut self.refused.0[refusal as usize];
        *count = count.saturating_add(1);
        let news = self.logged.len() < self.max && self.logged.insert((reply.place.mac, refusal));
        news.then_some(MembershipEvent::Refused { reply, refusal })
    }

    /// Forgets the refusals of a MAC address that has become a server's.
    pub(super) fn forget(&mut self, mac: Mac) {
        self.logged.retain(|(logged, _)| *logged != mac);
    }

    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    pub(super) fn refused(&self) -> RefusalCounts {
        self.refused
    }
}
