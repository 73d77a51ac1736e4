//! Coverage of a run: promises that were checked in a relevant state, inputs and outputs of
//! directors, and rejected forgeries.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use evener_core::director::{Input, Output};

use crate::check::Promise;

/// Counts by topic and name.
pub type Counts = BTreeMap<(Topic, &'static str), u64>;

/// Kind of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Promise, checked in a state in which it could be violated.
    Promise,
    /// Input of a director.
    Input,
    /// Output of a director.
    Output,
    /// Forged datagram, by the counter that it increased.
    Forgery,
}

/// Names of the inputs that directors of simulated farms get.
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
/// Names of the outputs of directors of simulated farms.
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
/// Datagram counters that don't count rejections.
const NO_VERDICTS: [&str; 3] = ["sent", "hellos", "ended"];

/// Counters of one run, shared by all clones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage(Rc<RefCell<Counts>>);

impl Coverage {
    fn count(&self, topic: Topic, name: &'static str) {
        *self.0.borrow_mut().entry((topic, name)).or_default() += 1;
    }

    /// Counts a check of a promise.
    pub(crate) fn checked(&self, promise: Promise) {
        self.count(Topic::Promise, promise.name());
    }

    pub(crate) fn count_input(&self, input: &Input) {
        self.count(Topic::Input, name_of_input(input));
    }

    pub(crate) fn count_output(&self, output: &Output) {
        self.count(Topic::Output, name_of_output(output));
    }

    /// Counts a forged datagram by the reason of its rejection. Accepted ones are not counted.
    pub(crate) fn count_forgery(&self, verdict: &'static str) {
        if !NO_VERDICTS.contains(&verdict) {
            self.count(Topic::Forgery, verdict);
        }
    }

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
