//! Steps of a run: of clients, of the operator, and faults.

use std::collections::BTreeSet;

use evener_core::pool::OperatorState;

use crate::farms::{KINDS, Kind};
use crate::forgery::RECORDED;
use crate::random::Random;

/// Number of steps of most runs, and of one run in [`LONG`].
const STEPS: usize = 60;
const STEPS_OF_LONG: usize = 240;
const LONG: u64 = 50;
/// Number of clients of a farm. Each opens at least one connection.
pub(crate) const CLIENTS: usize = 20;

/// Step of a run. Numbers of nodes and servers are taken modulo their count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time passes, in milliseconds.
    Wait(u64),
    /// A client opens a connection.
    Connect(usize),
    /// A client sends a segment of its last connection.
    Send(usize),
    /// A server's service fails.
    Fail(usize),
    /// A server's service recovers.
    Work(usize),
    /// A server stops answering ARP.
    Silence(usize),
    /// A server answers ARP again.
    Answer(usize),
    /// The operator drains a server at one node: node and server.
    Drain(usize, usize),
    /// The operator ends a drain.
    Undrain(usize, usize),
    /// The operator puts a server in maintenance at one node.
    Suspend(usize, usize),
    /// The operator ends maintenance.
    Resume(usize, usize),
    /// The operator loads another file: node, and bits of the file.
    Reload(usize, u8),
    /// A node's engine refuses the next tables, at the n-th write.
    Refuse(usize, usize),
    /// A node's daemon is killed; its data plane runs on.
    Kill(usize),
    /// A node leaves the farm by its operator's order.
    Leave(usize),
    /// A node loses its daemon and its data plane.
    Crash(usize),
    /// A daemon is started.
    Start(usize),
    /// A node loses its carrier.
    Unplug(usize),
    /// A node's carrier returns.
    Plug(usize),
    /// The network is partitioned: bit i is the partition of node i.
    Split(u8),
    Join,
    /// Loss of datagrams in percent.
    Lose(u8),
    /// A recorded datagram is sent again, to any node.
    Replay(usize, usize),
    /// A recorded datagram is sent with a changed byte.
    Forge(usize, usize, usize),
    /// The daemons of all nodes are restarted at once.
    Restart,
    /// A node sleeps for some days without noticing, so its clock leaps.
    Leap(usize, u64),
    /// The wall clock of a director or server is set some days off the right time.
    Clock(usize, i8),
    /// A daemon dies after some more outputs.
    Die(usize, usize),
    /// A node stops receiving another node's datagrams; the reverse direction may work.
    Deafen(usize, usize),
    /// A client of the group and of names sends requests and queries.
    Visit(usize),
    /// A server's agent starts, leaves or is killed.
    Agent(usize, usize),
    /// A server changes its answer to load queries.
    Report(usize, usize),
    /// The operator drains a server for one of its consumers, by the consumer's number.
    DrainOf(usize, usize),
    /// The operator ends a drain for one consumer.
    UndrainOf(usize, usize),
    /// The operator puts a server in maintenance for one of its consumers.
    SuspendOf(usize, usize),
    /// The operator ends maintenance for one consumer.
    ResumeOf(usize, usize),
    /// An external program ranks the servers of a name anew.
    Rank(usize),
    /// A forged message is sent to a group: kind of forgery, and claimed server.
    Message(usize, usize),
    /// Number of members that one host without other members lets join at once.
    Storm(usize),
    /// The next probe of a server fails although the server works.
    Hiccup(usize),
    /// Duration of changes in milliseconds; 0 for random short ones.
    Slow(u64),
    /// A daemon is busy for this time in milliseconds and receives no inputs.
    Busy(usize, u64),
    /// A stranger claims a service address by ARP at a node.
    Claim(usize, usize),
    /// Checks the states that must be known by now.
    Look,
    /// The last received datagram is sent again as a forgery: kind of forgery, and index of the cut
    /// or changed byte.
    Forgery(usize, usize),
}

/// Operator's order about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorOrder {
    Drain,
    Undrain,
    Suspend,
    Resume,
}

impl OperatorOrder {
    /// Returns the state after the order. A drain neither starts nor ends maintenance.
    pub(crate) fn after(self, before: OperatorState) -> OperatorState {
        match self {
            OperatorOrder::Drain => before.max(OperatorState::Drain),
            OperatorOrder::Undrain if before.is_suspended() => before,
            OperatorOrder::Undrain | OperatorOrder::Resume => OperatorState::Ready,
            OperatorOrder::Suspend => OperatorState::Maintenance,
        }
    }
}

impl Step {
    /// True if the step affects all servers at once, or settings of the whole farm.
    pub(crate) fn is_of_all(&self) -> bool {
        matches!(
            self,
            Step::Reload(..)
                | Step::Refuse(..)
                | Step::Kill(_)
                | Step::Leave(_)
                | Step::Crash(_)
                | Step::Start(_)
                | Step::Restart
                | Step::Die(..)
                | Step::Leap(..)
                | Step::Lose(_)
                | Step::Unplug(_)
                | Step::Plug(_)
                | Step::Clock(..)
                | Step::Slow(_)
                | Step::Busy(..)
        )
    }

    /// True if the step is a fault.
    pub fn is_fault(&self) -> bool {
        match self {
            Step::Fail(_)
            | Step::Silence(_)
            | Step::Refuse(..)
            | Step::Kill(_)
            | Step::Crash(_)
            | Step::Leave(_) => true,
            Step::Unplug(_) | Step::Split(_) | Step::Replay(..) | Step::Forge(..) => true,
            Step::Clock(_, off) => *off != 0,
            Step::Restart | Step::Leap(..) | Step::Die(..) | Step::Deafen(..) | Step::Forgery(..) => true,
            Step::Lose(percent) => *percent > 0,
            Step::Slow(ms) => *ms > 0,
            Step::Hiccup(_) | Step::Busy(..) | Step::Claim(..) => true,
            Step::Look => false,
            Step::Agent(_, how) => how % 4 > 1,
            Step::Report(..) | Step::Rank(_) | Step::Message(..) | Step::Storm(_) => true,
            Step::Visit(_) | Step::DrainOf(..) | Step::UndrainOf(..) => false,
            Step::SuspendOf(..) | Step::ResumeOf(..) => false,
            Step::Wait(_) | Step::Connect(_) | Step::Send(_) | Step::Work(_) | Step::Answer(_) => false,
            Step::Drain(..) | Step::Undrain(..) | Step::Suspend(..) | Step::Resume(..) => false,
            Step::Reload(..) | Step::Start(_) => false,
            Step::Plug(_) | Step::Join => false,
        }
    }
}

/// Number of steps between two quiet phases, and their duration in milliseconds. After a quiet
/// phase each host and each consumer of servers must know which servers failed, refuse or left.
const QUIET_STEPS: usize = 30;
const QUIET_MS: u64 = 14_000;
const SOON_MS: u64 = 1_000;

/// Returns the steps of a seed.
pub(crate) fn make(seed: u64) -> Vec<Step> {
    let (mut random, kind) = (Random::new(seed), Kind::of(seed));
    let mut steps = Vec::new();
    // The seed also selects the kind; the division covers all kinds.
    let is_long = (seed / KINDS).is_multiple_of(LONG);
    let count = if is_long { STEPS_OF_LONG } else { STEPS };
    for number in 0..count {
        steps.push(match kind {
            Kind::Web if random.below(2) == 0 => step_of_web(&mut random),
            _ => step(&mut random),
        });
        if number % QUIET_STEPS == QUIET_STEPS - 1 {
            steps.extend(quiet(&mut random, kind));
        }
        if number % (count / CLIENTS) == 0 {
            steps.push(Step::Connect(number / (count / CLIENTS)));
        }
        let pause = if random.below(4) == 0 { 3_000 } else { 300 };
        steps.push(Step::Wait(random.below(pause) as u64));
    }
    steps
}

/// Returns the steps of a quiet phase: hosts receive each other's reports, and servers don't
/// change. Clients connect at its end.
fn quiet(random: &mut Random, kind: Kind) -> Vec<Step> {
    let mut steps = vec![Step::Lose(0), Step::Slow(0), Step::Join];
    steps.extend((0..kind.nodes()).flat_map(|node| [Step::Plug(node), Step::Start(node)]));
    if kind == Kind::EveryHost {
        // Hosts with different files ignore each other's reports.
        let file = random.below(256) as u8;
        steps.extend((0..kind.nodes()).map(|node| Step::Reload(node, file)));
    }
    // Starts daemons again, because a daemon that was to die soon has died by now.
    steps.push(Step::Wait(SOON_MS));
    steps.extend((0..kind.nodes()).map(Step::Start));
    steps.extend([Step::Wait(QUIET_MS), Step::Look]);
    steps.extend((0..2).flat_map(|client| match kind {
        Kind::Web => [Step::Visit(client), Step::Wait(0)],
        _ => [Step::Connect(client), Step::Send(client)],
    }));
    steps
}

/// Changes of a farm whose tables are refused at each write in turn.
pub(crate) const CHANGES: [Step; 12] = [
    Step::Drain(0, 1),
    Step::Undrain(0, 1),
    Step::Fail(2),
    Step::Work(2),
    Step::Reload(0, 0b0110),
    Step::Reload(0, 0b1111),
    Step::Silence(3),
    Step::Answer(3),
    Step::Kill(0),
    Step::Start(0),
    Step::Crash(0),
    Step::Start(0),
];

/// Returns steps with all of these changes. The first node's engine refuses the tables that follow
/// one of the changes, at a write.
pub(crate) fn refused_at(change: usize, write: usize) -> Vec<Step> {
    let mut steps = vec![Step::Wait(5_000)];
    for (number, step) in CHANGES.into_iter().enumerate() {
        steps.push(Step::Connect(number));
        if number == change {
            steps.push(Step::Refuse(0, write));
        }
        steps.extend([step, Step::Wait(2_000), Step::Send(number), Step::Wait(4_000), Step::Connect(number)]);
    }
    steps
}

/// Returns steps in which the first node's engine refuses one of these changes at a write while
/// another change is waiting. With `is_reload` it refuses the reload after both. Clients connect in
/// between.
pub(crate) fn refused_before(change: usize, other: usize, write: usize, is_reload: bool) -> Vec<Step> {
    const CLIENTS: usize = 8;
    // Duration of half a change: until the engine has applied it, or until the director gets the
    // answer.
    const HALF_MS: u64 = 300;
    let at = |changes: [usize; 2]| changes.map(|number| CHANGES[number % CHANGES.len()]);
    let [change, other] = at([change, other]);
    let mut steps = vec![Step::Wait(5_000)];
    steps.extend((0..CLIENTS / 2).map(Step::Connect));
    let refuse = Step::Refuse(0, write);
    steps.push(Step::Slow(HALF_MS));
    steps.extend(match is_reload {
        false => [refuse, change, Step::Wait(50), other, Step::Wait(100)],
        true => [change, other, Step::Reload(0, 0b0111_0110), Step::Wait(2 * HALF_MS + 50), refuse],
    });
    steps.extend((CLIENTS / 2..CLIENTS).map(Step::Connect));
    for pause_ms in [400, 2_000, 6_000] {
        steps.push(Step::Wait(pause_ms));
        steps.extend((0..CLIENTS).map(Step::Send));
    }
    steps.extend([Step::Slow(0), Step::Wait(QUIET_MS), Step::Look]);
    steps
}

/// Returns steps in which many members join a group that already has members, while clients
/// connect.
pub(crate) fn storm(count: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = (0..3).map(|server| Step::Agent(server, 0)).collect();
    steps.extend([Step::Wait(QUIET_MS), Step::Visit(0), Step::Storm(count)]);
    steps.extend((0..40).flat_map(|client| [Step::Visit(client), Step::Connect(client), Step::Wait(250)]));
    steps
}

fn step(random: &mut Random) -> Step {
    let (a, b) = (random.below(64), random.below(64));
    match random.below(60) {
        0..=9 => Step::Connect(a),
        10..=16 => Step::Send(a),
        17 | 18 => Step::Fail(a),
        19 | 20 => Step::Work(a),
        21 => Step::Silence(a),
        22 => Step::Answer(a),
        23 => Step::Drain(a, b),
        24 => Step::Undrain(a, b),
        25 | 26 => Step::Reload(a, random.below(256) as u8),
        27 | 28 => Step::Refuse(a, random.below(12)),
        29 => Step::Kill(a),
        30 => Step::Crash(a),
        31 | 32 => Step::Start(a),
        33 => Step::Unplug(a),
        34 => Step::Plug(a),
        35 => Step::Split(random.below(256) as u8),
        36 => Step::Join,
        37 => Step::Lose(random.below(60) as u8),
        38 => Step::Lose(0),
        39 | 40 => Step::Replay(random.below(RECORDED), b),
        41 => Step::Forge(random.below(RECORDED), b, random.below(256)),
        42 => Step::Restart,
        43 => Step::Leap(a, [1, 30][b % 2]),
        44 | 45 => Step::Die(a, random.below(12)),
        46 => Step::Deafen(a, b),
        47 | 48 => Step::Clock(a, [-1, 0, 0, 1][b % 4]),
        49 => Step::Leave(a),
        50 => Step::Suspend(a, b),
        51 => Step::Resume(a, b),
        52 | 53 => Step::Hiccup(a),
        54 => Step::Slow([0, 200, 900][b % 3]),
        55 => Step::Busy(a, random.below(2_000) as u64),
        56 => Step::Claim(a, b),
        _ => Step::Forgery(a, random.below(256)),
    }
}

fn step_of_web(random: &mut Random) -> Step {
    let (a, b) = (random.below(64), random.below(64));
    match random.below(19) {
        0..=5 => Step::Visit(a),
        6..=8 => Step::Agent(a, b),
        9..=11 => Step::Report(a, b),
        12 => Step::DrainOf(a, b),
        13 => Step::UndrainOf(a, b),
        14 => Step::Rank(a),
        15 => Step::SuspendOf(a, b),
        16 | 17 => Step::ResumeOf(a, b),
        _ => Step::Message(a, b),
    }
}

/// Number of clients that open a connection.
pub(crate) fn clients(steps: &[Step]) -> usize {
    let clients = steps.iter().filter_map(|step| match step {
        Step::Connect(client) => Some(client % CLIENTS),
        _ => None,
    });
    clients.collect::<BTreeSet<_>>().len()
}
