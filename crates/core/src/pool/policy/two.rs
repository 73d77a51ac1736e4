//! Policies that choose between two candidates. They differ in what they weigh a server's sessions with, and each says that in a file of
//! its own.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Policy, Weighted};
use crate::path::tables::Pick;
use crate::pool::signals::{Signal, Signals};

/// Of two servers that the flow's hash names, the one with less to do.
pub(super) struct Two {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// None where sessions alone count.
    pub(super) weighing: Option<Weighing>,
}

/// What a server's sessions are weighed with: its load.
#[derive(Debug)]
pub struct Weighing {
    /// What it is made of.
    pub needs: &'static [Signal],
    /// The load by what is known of a server, larger than 0 and comparable with other servers' of its service; `None` where nobody has told.
    pub load: fn(&Signals) -> Option<u64>,
    /// The same in words.
    pub said: fn(&Signals) -> Option<String>,
    /// What takes the place of signals that some servers of a name haven't told, by what the others have; `None` where each is weighed alone.
    pub complete: Option<fn(&mut [Signals])>,
}

impl Policy for Two {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn pick(&self) -> Pick {
        Pick::Two
    }

    /// None: the candidates stand in the hash table, and beside it.
    fn order(&self, _: &[Weighted]) -> Vec<u16> {
        Vec::new()
    }

    /// Sessions where nothing else counts. Who sees none of them may still go by a load.
    fn needs(&self) -> &'static [Signal] {
        self.weighing.as_ref().map_or(&[Signal::Active], |weighing| weighing.needs)
    }

    fn weighing(&self) -> Option<&Weighing> {
        self.weighing.as_ref()
    }
}
