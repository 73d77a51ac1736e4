//! Location of the holder of an IP or MAC address. A place is a MAC address on the LAN of an
//! interface. The first place that answers is the holder, until it is silent.

use core::fmt;

use crate::net::wire::Mac;

/// A MAC address on the LAN of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkAddress {
    pub mac: Mac,
    /// Index of this host's interface.
    pub ifindex: u32,
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on interface {}", self.mac, self.ifindex)
    }
}

/// Tracks the holder of one address over rounds of requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Binding {
    place: Option<LinkAddress>,
    /// True if the holder answered since the last round.
    answered: bool,
    silent_rounds: u32,
    /// Another place that claims the address, and true if it did so since the last round.
    claim: Option<(LinkAddress, bool)>,
    /// True if the interface of the holder's place is gone.
    stranded: bool,
}

/// Meaning of an answer, for the place of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BindingChange {
    /// The first answer: its place is the holder's.
    First,
    /// An answer from the holder's place.
    Again,
    /// A claim from another place, while no earlier claim is tracked.
    Claim {
        /// Place of the holder.
        from: LinkAddress,
    },
    /// A claim from another place, while an earlier claim is tracked.
    OldClaim,
    /// An answer from another place, after the interface of the holder's place was removed. The new
    /// place becomes the holder's.
    Landed {
        /// Earlier place of the holder.
        from: LinkAddress,
    },
}

impl Binding {
    /// Returns the state of a holder that has answered from this place in the current round.
    pub(super) fn at(place: LinkAddress) -> Binding {
        Binding { place: Some(place), answered: true, ..Binding::default() }
    }

    pub(super) fn place(&self) -> Option<LinkAddress> {
        self.place
    }

    /// Number of rounds in a row without an answer.
    pub(super) fn silent_rounds(&self) -> u32 {
        self.silent_rounds
    }

    pub(super) fn note_reply(&mut self, place: LinkAddress) -> BindingChange {
        match (self.place, &mut self.claim) {
            (None, _) => {
                *self = Binding::at(place);
                BindingChange::First
            }
            (Some(own), _) if own == place => {
                self.answered = true;
                self.silent_rounds = 0;
                self.stranded = false;
                BindingChange::Again
            }
            (Some(from), _) if self.stranded => {
                *self = Binding::at(place);
                BindingChange::Landed { from }
            }
            (Some(_), Some((claimed, recent))) => {
                *recent |= *claimed == place;
                BindingChange::OldClaim
            }
            (Some(from), claim @ None) => {
                *claim = Some((place, true));
                BindingChange::Claim { from }
            }
        }
    }

    /// Ends a round. If the holder has been silent for `rounds`, a place that claimed the address
    /// in the last round becomes the holder's. Returns the old and the new place then.
    pub(super) fn end_round(&mut self, rounds: u32) -> Option<(LinkAddress, LinkAddress)> {
        let from = self.place?;
        self.silent_rounds = if self.answered { 0 } else { self.silent_rounds.saturating_add(1) };
        self.answered = false;
        match self.claim {
            Some((to, true)) if self.silent_rounds >= rounds.max(1) => {
                *self = Binding { place: Some(to), ..Binding::default() };
                return Some((from, to));
            }
            Some((to, true)) => self.claim = Some((to, false)),
            Some((_, false)) => self.claim = None,
            None => {}
        }
        None
    }

    /// Records that the holder's interface is gone. The next answer decides the new place, since
    /// the old place can't answer any more.
    pub(super) fn strand(&mut self) {
        self.stranded = self.place.is_some();
    }

    /// Forgets the holder's place.
    pub(super) fn clear(&mut self) {
        *self = Binding::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LinkAddress = LinkAddress { mac: Mac([2, 0, 0, 0, 0, 1]), ifindex: 1 };
    const B: LinkAddress = LinkAddress { mac: Mac([2, 0, 0, 0, 0, 2]), ifindex: 1 };

    #[test]
    fn a_claim_is_followed_only_after_the_holder_was_silent() {
        let mut binding = Binding::default();
        assert_eq!(binding.note_reply(A), BindingChange::First);
        assert_eq!(binding.note_reply(B), BindingChange::Claim { from: A });
        for _ in 0..10 {
            binding.note_reply(A);
            assert_eq!(binding.note_reply(B), BindingChange::OldClaim);
            assert_eq!(binding.end_round(2), None);
        }
        binding.note_reply(B);
        assert_eq!(binding.end_round(2), None);
        binding.note_reply(B);
        assert_eq!(binding.end_round(2), Some((A, B)));
        assert_eq!(binding.place(), Some(B));
    }

    #[test]
    fn server_on_removed_interface_is_followed_at_once() {
        let mut binding = Binding::at(A);
        binding.strand();
        assert_eq!(binding.note_reply(B), BindingChange::Landed { from: A });
        assert_eq!(binding.note_reply(A), BindingChange::Claim { from: B });
    }

    #[test]
    fn a_claim_not_repeated_is_forgotten() {
        let mut binding = Binding::at(A);
        binding.note_reply(B);
        for _ in 0..5 {
            assert_eq!(binding.end_round(2), None);
        }
        assert_eq!((binding.place(), binding.silent_rounds()), (Some(A), 4));
        assert_eq!(binding.note_reply(A), BindingChange::Again);
        assert_eq!(binding.silent_rounds(), 0);
    }

    #[test]
    fn many_claims_in_one_round_are_one() {
        let mut binding = Binding::at(A);
        assert_eq!(binding.note_reply(B), BindingChange::Claim { from: A });
        for last in 3..100 {
            let place = LinkAddress { mac: Mac([2, 0, 0, 0, 0, last]), ifindex: 1 };
            assert_eq!(binding.note_reply(place), BindingChange::OldClaim);
        }
    }
}
