//! What is done to a farm: by its clients, its operator, and by misfortune.

use crate::load::random::Random;

/// Steps of a run.
const STEPS: usize = 90;
/// Clients of a farm.
pub(super) const CLIENTS: usize = 20;

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
    /// The operator loads another file: which servers of the farm it has, by bits.
    Reload(usize, u8),
    /// A node's engine refuses the next tables, at the n-th write.
    Refuse(usize, usize),
    /// A node's daemon is killed; its data plane runs on.
    Kill(usize),
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
}

/// The steps of a seed.
pub(super) fn make(seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut steps = Vec::new();
    for _ in 0..STEPS {
        steps.push(step(&mut random));
        let pause = if random.below(4) == 0 { 3_000 } else { 300 };
        steps.push(Step::Wait(random.below(pause) as u64));
    }
    steps
}

fn step(random: &mut Random) -> Step {
    let (a, b) = (random.below(64), random.below(64));
    match random.below(40) {
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
        _ => Step::Replay(a, b),
    }
}
