//! The parts of a farm's life that a run has met: promises that had something to decide, and what
//! its directors were told and ordered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use evener_core::director::{Input, Output};

use crate::check::Promise;

/// How often each was met, by topic and name.
pub type Counts = BTreeMap<(Topic, &'static str), u64>;

/// A kind of thing that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// A promise that was looked at where it could have been broken.
    Promise,
    /// A fact that a director was told.
    Input,
    /// An order of a director.
    Output,
    /// A datagram that isn't what it seems, by what it was found to be.
    Forgery,
}

/// Inputs that directors of simulated farms get.
pub const INPUTS: &[&str] = &[
    "applied",
    "datagram",
    "frame",
    "leave",
    "member",
    "name",
    "network",
    "operator state",
    "probed",
    "released",
    "reload",
    "reported",
    "time",
];
/// Outputs of theirs.
pub const OUTPUTS: &[&str] = &[
    "announce",
    "apply",
    "event",
    "forget",
    "group",
    "lease",
    "limit",
    "load query",
    "name",
    "probe",
    "ready",
    "resolve",
    "score",
    "send",
    "solicit",
];
/// Counts of datagrams that don't say for what one was found.
const NO_VERDICTS: [&str; 3] = ["sent", "hellos", "ended"];

/// The counts of one run. Clones are the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage(Rc<RefCell<Counts>>);

impl Coverage {
    fn count(&self, topic: Topic, name: &'static str) {
        *self.0.borrow_mut().entry((topic, name)).or_default() += 1;
    }

    /// A promise is looked at where it could be broken.
    pub(crate) fn checked(&self, promise: Promise) {
        self.count(Topic::Promise, promise.name());
    }

    /// A director is told something.
    pub(crate) fn told(&self, input: &Input) {
        self.count(Topic::Input, name_of_input(input));
    }

    /// A director has ordered something.
    pub(crate) fn ordered(&self, output: &Output) {
        self.count(Topic::Output, name_of_output(output));
    }

    /// A datagram that isn't what it seems was found to be this.
    pub(crate) fn forged(&self, verdict: &'static str) {
        if !NO_VERDICTS.contains(&verdict) {
            self.count(Topic::Forgery, verdict);
        }
    }

    /// All counts.
    pub(crate) fn counts(&self) -> Counts {
        self.0.borrow().clone()
    }
}

fn name_of_input(input: &Input) -> &'static str {
    match input {
        Input::Time { .. } => "time",
        Input::Frame { .. } => "frame",
        Input::Datagram { .. } => "datagram",
        Input::Probed { .. } => "probed",
        Input::Reported { .. } => "reported",
        Input::Member { .. } => "member",
        Input::Name { .. } => "name",
        Input::Path { .. } => "path",
        Input::Network(_) => "network",
        Input::PathMtu { .. } => "path MTU",
        Input::Reload { .. } => "reload",
        Input::ReloadRefused { .. } => "reload refused",
        Input::SetOperatorState { .. } => "operator state",
        Input::Applied(_) => "applied",
        Input::Released { .. } => "released",
        Input::Walked(_) => "walked",
        Input::Leave => "leave",
    }
}

pub(crate) fn name_of_output(output: &Output) -> &'static str {
    match output {
        Output::Apply(_) => "apply",
        Output::Forget { .. } => "forget",
        Output::Lease { .. } => "lease",
        Output::Send { .. } => "send",
        Output::Solicit { .. } => "solicit",
        Output::Announce(_) => "announce",
        Output::Resolve { .. } => "resolve",
        Output::Probe(_) => "probe",
        Output::LoadQuery(_) => "load query",
        Output::Score(_) => "score",
        Output::Limit(_) => "limit",
        Output::Group { .. } => "group",
        Output::Name(_) => "name",
        Output::Ready { .. } => "ready",
        Output::Event(_) => "event",
    }
}
