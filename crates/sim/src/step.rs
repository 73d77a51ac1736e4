//! The steps of a run: by clients, by the operator, and by misfortune.

use std::collections::BTreeSet;

use evener_core::pool::OperatorState;

use crate::farms::{KINDS, Kind};
use crate::forgery::RECORDED;
use crate::random::Random;

/// Steps of a run: of most, and of one in so many.
const STEPS: usize = 60;
const STEPS_OF_LONG: usize = 240;
const LONG: u64 = 50;
/// Clients of a farm. Each opens a connection, at least.
pub(crate) const CLIENTS: usize = 20;

/// One of them. Numbers of nodes and servers count round: any number is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time passes, in milliseconds.
    Wait(u64),
    /// A client opens a connection.
    Connect(usize),
    /// A client goes on with its last one.
    Send(usize),
    /// A server's service fails.
    Fail(usize),
    /// It works again.
    Work(usize),
    /// A server answers no ARP any more.
    Silence(usize),
    /// It answers again.
    Answer(usize),
    /// The operator drains a server, by one node.
    Drain(usize, usize),
    /// And has it take sessions again.
    Undrain(usize, usize),
    /// The operator has a node leave a server alone, which gets nothing new either.
    Suspend(usize, usize),
    /// And ends that.
    Resume(usize, usize),
    /// The operator loads another file: which servers of the farm it has, by bits.
    Reload(usize, u8),
    /// A node's engine refuses the next tables, at the n-th write.
    Refuse(usize, usize),
    /// A node's daemon is killed; its data plane runs on.
    Kill(usize),
    /// A node leaves the farm, as its operator wishes.
    Leave(usize),
    /// A node loses all.
    Crash(usize),
    /// A daemon is started.
    Start(usize),
    /// The cable of a node is pulled.
    Unplug(usize),
    /// And put back.
    Plug(usize),
    /// The network is cut in two: bit i says on which side node i is.
    Split(u8),
    /// It is whole.
    Join,
    /// So many datagrams are lost, in percent.
    Lose(u8),
    /// A datagram that was recorded comes again, to some node.
    Replay(usize, usize),
    /// One comes with another byte at this place: from another version, another farm, or broken.
    Forge(usize, usize, usize),
    /// The daemons of all nodes are restarted at once.
    Restart,
    /// A node sleeps for so many days, and takes it for no time: its clock leaps.
    Leap(usize, u64),
    /// The wall clock of a host, director or server, is set to so many days before or after the
    /// right time.
    Clock(usize, i8),
    /// A daemon dies once it has carried out so many orders more.
    Die(usize, usize),
    /// A node doesn't hear another one any more, which may hear it.
    Deafen(usize, usize),
    /// A client of a group and of names comes.
    Visit(usize),
    /// A server's agent begins, leaves or is killed.
    Agent(usize, usize),
    /// A server answers questions for its load in another way.
    Report(usize, usize),
    /// The operator drains a server for one of its consumers, by the consumer's number.
    DrainOf(usize, usize),
    /// And wants it again.
    UndrainOf(usize, usize),
    /// The same of maintenance.
    SuspendOf(usize, usize),
    /// And its end.
    ResumeOf(usize, usize),
    /// Somebody else ranks the servers of a name anew.
    Rank(usize),
    /// Somebody says something in a group that is not to be believed: what, and in whose name.
    Message(usize, usize),
    /// So many members join from one host that serves nobody.
    Storm(usize),
    /// The next probe of a server fails, though it works.
    Hiccup(usize),
    /// Changes take so long, in milliseconds; 0 is as long as they take.
    Slow(u64),
    /// A daemon does something that takes so long, in milliseconds, and hears nothing meanwhile.
    Busy(usize, u64),
    /// A stranger answers for a service's address, to a node.
    Claim(usize, usize),
    /// All that has had its time is looked at.
    Look,
    /// The last datagram comes once more, in a way in which it is not to be believed: which, and
    /// where it is cut or changed.
    Forgery(usize, usize),
}

/// An operator's order about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorOrder {
    Drain,
    Undrain,
    Suspend,
    Resume,
}

impl OperatorOrder {
    /// The operator's word behind it. Maintenance is neither begun nor ended by a drain.
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
    /// Whether it changes something for all servers at once, or what everybody goes by.
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

    /// Whether it is something that goes wrong.
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

/// After so many steps nothing happens for so long, in milliseconds: then it is known what each
/// host and each consumer of servers should have learned of those that fail, refuse or left.
const QUIET_STEPS: usize = 30;
const QUIET_MS: u64 = 14_000;
const SOON_MS: u64 = 1_000;

/// The steps of a seed.
pub(crate) fn make(seed: u64) -> Vec<Step> {
    let (mut random, kind) = (Random::new(seed), Kind::of(seed));
    let mut steps = Vec::new();
    // Kinds go by the seed too; this meets all of them.
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

/// A quiet time: hosts hear each other, and servers are as they are. Clients come at its end.
fn quiet(random: &mut Random, kind: Kind) -> Vec<Step> {
    let mut steps = vec![Step::Lose(0), Step::Slow(0), Step::Join];
    steps.extend((0..kind.nodes()).flat_map(|node| [Step::Plug(node), Step::Start(node)]));
    if kind == Kind::EveryHost {
        // Hosts with different files don't heed each other.
        let file = random.below(256) as u8;
        steps.extend((0..kind.nodes()).map(|node| Step::Reload(node, file)));
    }
    // A daemon that was to die soon has done so, and is started once more.
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

/// A farm that goes through all of these, and whose first node's engine refuses what follows one of
/// them at a write.
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

/// A farm whose first node's engine refuses one of these changes at a write, while another one has
/// come already; or, behind both, the reload that came with the other one. Clients come in between.
pub(crate) fn refused_before(change: usize, other: usize, write: usize, is_reload: bool) -> Vec<Step> {
    const CLIENTS: usize = 8;
    // Half of a change: as long as the engine takes, or the director until it hears of that.
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

/// A farm whose group has members, and is joined by so many more at once; its clients come all the
/// time.
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

/// How many clients open a connection.
pub(crate) fn clients(steps: &[Step]) -> usize {
    let clients = steps.iter().filter_map(|step| match step {
        Step::Connect(client) => Some(client % CLIENTS),
        _ => None,
    });
    clients.collect::<BTreeSet<_>>().len()
}
