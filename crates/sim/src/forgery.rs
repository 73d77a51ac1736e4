//! Datagrams that no host should take for what they seem to be.

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

/// Datagrams that are recorded, of all.
pub(crate) const RECORDED: usize = 500;

/// The error in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// It is of another farm, and says that its sender's servers are down.
    Farm,
    /// It ends too early.
    Cut,
    /// A byte is another.
    Changed,
    /// It was heard already.
    Twice,
    /// It is of another version of the protocol: authentic, and its sender lives.
    Version,
    /// It is of another life of its sender, which is authentic too.
    Life,
}

impl Forgery {
    pub(crate) const ALL: [Forgery; 6] =
        [Forgery::Farm, Forgery::Cut, Forgery::Changed, Forgery::Twice, Forgery::Version, Forgery::Life];

    /// Whether nothing may come of it at all.
    pub(crate) fn is_nothing(self) -> bool {
        !matches!(self, Forgery::Version | Forgery::Life)
    }

    /// The datagram with that fault, cut or changed at a byte.
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

/// The same datagram with a right tag, as far as it can be read.
pub(crate) fn sealed(bytes: &[u8]) -> Vec<u8> {
    match Datagram::read(bytes, &Key([8; 32])) {
        Ok(heard) => heard.write(&KEY),
        Err(_) => bytes.to_vec(),
    }
}

/// The next of its sender's, which takes no part in anything.
fn falsify(heard: &mut Datagram) {
    heard.numbers.sequence += 1;
    if let Body::Report(report) = &mut heard.body {
        (report.up, report.owned) = (0, 0);
    }
}

fn rewritten(bytes: &[u8], key: Key, change: impl Fn(&mut Datagram)) -> Vec<u8> {
    let Ok(mut heard) = Datagram::read(bytes, &KEY) else { return bytes.to_vec() };
    change(&mut heard);
    heard.write(&key)
}

/// Datagrams that somebody has listened to.
#[derive(Default)]
pub(crate) struct Recording {
    /// So many of all, each of which has the same chance.
    recorded: Vec<Input>,
    posted: usize,
    /// The last one that a director has heard: whose, and since when that lives.
    heard: Option<(usize, u64, Input)>,
}

impl Recording {
    /// One was sent.
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

    /// A director has heard one.
    pub(crate) fn hear(&mut self, by: usize, since_ms: u64, what: &Input) {
        self.heard = Some((by, since_ms, what.clone()));
    }

    fn nth(&self, number: usize) -> Option<Input> {
        self.recorded.get(number % self.recorded.len().max(1)).cloned()
    }
}

/// A datagram comes once more, to some node.
pub(crate) fn replay(world: &mut World, number: usize, to: usize) {
    if let Some(recorded) = world.recording.nth(number) {
        world.hosts.relay(to, world.now_ms);
        world.send(to, None, 1, recorded);
    }
}

/// One comes with another byte.
pub(crate) fn change(world: &mut World, number: usize, to: usize, at: usize) {
    if let Some(Input::Datagram { from, bytes }) = world.recording.nth(number) {
        let bytes = Forgery::Changed.make(&bytes, at);
        world.send(to, None, 1, Input::Datagram { from, bytes });
    }
}

/// A director is told something that is not what it seems: of most of that nothing may come.
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

/// A stranger answers for a service address that a director announces.
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
    // A refused change may be tried again with each input.
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

/// A node is told something that isn't what it seems: for what that was found is counted.
pub(crate) fn judge(world: &mut World, node: usize, input: Input) {
    let before = world.nodes[node].shown.datagrams.clone();
    world.tell(node, input);
    for (name, count) in &*world.nodes[node].shown.datagrams {
        if before.get(name) < Some(count) {
            world.coverage.forged(name);
        }
    }
}
