//! Forged datagrams, which a host must reject.

use std::sync::Arc;

use evener_core::director::Input;
use evener_core::node::association::Numbers;
use evener_core::node::peers::wire::{Body, Datagram};
use evener_core::node::secret::Key;

use crate::check::{Broken, Promise};
use crate::farms::{self, KEY, Kind, LINK, VIPS};
use crate::link::arp_reply;
use crate::random::Random;
use crate::world::World;

/// Maximum number of recorded datagrams.
pub(crate) const RECORDED: usize = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// The datagram belongs to another farm and reports its sender's servers as down.
    Farm,
    /// The datagram is cut short.
    Cut,
    /// One byte is changed.
    Changed,
    /// The datagram is a replay.
    Twice,
    /// The datagram has another protocol version. It is authentic, and its sender is alive.
    Version,
    /// The datagram belongs to another incarnation of its sender and is authentic.
    Life,
}

impl Forgery {
    pub(crate) const ALL: [Forgery; 6] =
        [Forgery::Farm, Forgery::Cut, Forgery::Changed, Forgery::Twice, Forgery::Version, Forgery::Life];

    /// True if the datagram must have no effect at all.
    pub(crate) fn is_nothing(self) -> bool {
        !matches!(self, Forgery::Version | Forgery::Life)
    }

    /// Returns the forged datagram, cut or changed at index `at`.
    pub(crate) fn make(self, bytes: &[u8], at: usize) -> Vec<u8> {
        let at = at % bytes.len().max(1);
        let mut changed = bytes.to_vec();
        match self {
            Forgery::Twice => {}
            Forgery::Cut => changed.truncate(at),
            Forgery::Changed => {
                changed.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add(1))
            }
            Forgery::Farm => changed = rewritten(bytes, Key([8; 32]), falsify),
            Forgery::Version => {
                changed = rewritten(bytes, KEY, |heard| {
                    heard.numbers.sequence += 1;
                    heard.body = Body::Foreign { version: u8::MAX };
                });
            }
            Forgery::Life => {
                changed = rewritten(bytes, KEY, |heard| {
                    heard.numbers = Numbers { incarnation: 1 << 40, sequence: 1 }
                });
            }
        }
        changed
    }
}

/// Returns the datagram with a valid tag, if it can be decoded.
pub(crate) fn sealed(bytes: &[u8]) -> Vec<u8> {
    match Datagram::read(bytes, &Key([8; 32])) {
        Ok(heard) => heard.write(&KEY),
        Err(_) => bytes.to_vec(),
    }
}

/// Turns a datagram into the sender's next one, which reports no working server and owns no
/// address.
fn falsify(heard: &mut Datagram) {
    heard.numbers.sequence += 1;
    if let Body::Report(report) = &mut heard.body {
        report.servers.values_mut().for_each(|server| server.is_up = false);
        report.owned = 0;
    }
}

fn rewritten(bytes: &[u8], key: Key, change: impl Fn(&mut Datagram)) -> Vec<u8> {
    let Ok(mut heard) = Datagram::read(bytes, &KEY) else { return bytes.to_vec() };
    change(&mut heard);
    heard.write(&key)
}

/// Datagrams that an attacker has recorded.
#[derive(Default)]
pub(crate) struct Recording {
    /// Sample of at most [`RECORDED`] datagrams; each datagram has the same chance.
    recorded: Vec<Input>,
    posted: usize,
    /// Last datagram that a director received: the director, its start time, and the datagram.
    heard: Option<(usize, u64, Input)>,
}

impl Recording {
    /// Records a datagram that was sent.
    pub(crate) fn record(&mut self, what: &Input, random: &mut Random) {
        self.posted += 1;
        let len = self.recorded.len();
        let at = if len < RECORDED { len } else { random.below(self.posted) };
        if at == len {
            self.recorded.push(what.clone());
        } else if let Some(place) = self.recorded.get_mut(at) {
            *place = what.clone();
        }
    }

    /// Records a datagram that a director received.
    pub(crate) fn hear(&mut self, by: usize, since_ms: u64, what: &Input) {
        self.heard = Some((by, since_ms, what.clone()));
    }

    fn nth(&self, number: usize) -> Option<Input> {
        self.recorded.get(number % self.recorded.len().max(1)).cloned()
    }
}

/// Sends a recorded datagram again, to any node.
pub(crate) fn replay(world: &mut World, number: usize, to: usize) {
    if let Some(recorded) = world.recording.nth(number) {
        world.hosts.relay(to, world.now_ms);
        world.send(to, None, 1, recorded);
    }
}

/// Sends a recorded datagram with a changed byte.
pub(crate) fn change(world: &mut World, number: usize, to: usize, at: usize) {
    if let Some(Input::Datagram { from, bytes }) = world.recording.nth(number) {
        let bytes = Forgery::Changed.make(&bytes, at);
        world.send(to, None, 1, Input::Datagram { from, bytes });
    }
}

/// Sends a forged datagram to a director and checks that it has no effect, if it must have none.
pub(crate) fn forge(world: &mut World, forgery: Forgery, at: usize) -> Result<(), Broken> {
    let Some((to, since_ms, Input::Datagram { from, bytes })) = world.recording.heard.clone() else {
        return Ok(());
    };
    if world.nodes[to].director.is_none() || world.nodes[to].since_ms != since_ms {
        return Ok(());
    }
    let input = Input::Datagram { from, bytes: forgery.make(&bytes, at) };
    let may_matter = !forgery.is_nothing();
    changes_nothing(world, to, input, may_matter, &format!("{forgery:?}"))
}

/// Sends an ARP reply in which a stranger claims a service address that a director announces.
pub(crate) fn claim(world: &mut World, to: usize, service: usize) -> Result<(), Broken> {
    if world.kind == Kind::EveryHost || world.nodes[to].director.is_none() {
        return Ok(());
    }
    let (own, address) = (farms::node(world.kind, to), VIPS[service % VIPS.len()]);
    let frame = arp_reply(farms::STRANGER, address, own);
    let input = Input::Frame { ifindex: LINK, bytes: frame };
    changes_nothing(world, to, input, false, "a stranger's claim")
}

fn changes_nothing(
    world: &mut World,
    to: usize,
    input: Input,
    may_matter: bool,
    what: &str,
) -> Result<(), Broken> {
    world.finish(to);
    // The director may retry a refused change at each input.
    let waits = world.nodes[to].refused;
    let before = Arc::clone(&world.nodes[to].engine.tables);
    judge(world, to, input);
    world.finish(to);
    if may_matter || waits {
        return Ok(());
    }
    world.coverage.checked(Promise::Believed);
    match world.nodes[to].engine.tables == before {
        true => Ok(()),
        false => Err(Promise::Believed.broken(format!("{what} by node {to}"))),
    }
}

/// Sends a forged datagram to a node and counts the reason of its rejection.
pub(crate) fn judge(world: &mut World, node: usize, input: Input) {
    let before = world.nodes[node].shown.datagrams.clone();
    world.tell(node, input);
    for (name, count) in &*world.nodes[node].shown.datagrams {
        if before.get(name) < Some(count) {
            world.coverage.count_forgery(name);
        }
    }
}
