//! A name whose addresses depend on how servers are, and who of them is given.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher13;

use super::name::Name;
use crate::farm::policy::{Policy, RoundRobin, Weighted, maglev};

/// The most addresses in an answer.
pub(super) const TOP_MAX: usize = 16;
/// Slots of the table by which clients keep to servers, a prime.
const HASH_SLOTS: usize = 2_053;

/// Who is given first. Those behind are those whose turn would be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Servers in turn, as often as their share says.
    Turn,
    /// Anyone, as often as their share says.
    Random,
    /// By the client's network, the same whoever answers.
    Client,
    /// The first in order that lives.
    First,
}

/// What is answered where no server lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoneAlive {
    /// All of them: they may live for clients.
    All,
    /// That there is no answer.
    Refuse,
    /// These, which say so.
    Fixed(Vec<IpAddr>),
}

/// What a file says of such a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name.
    pub name: Name,
    /// How long an answer may be kept, in seconds.
    pub ttl_s: u32,
    /// The most addresses in an answer.
    pub top: usize,
    /// Who is given first.
    pub draw: Draw,
    /// What is answered where no server lives.
    pub none_alive: NoneAlive,
}

/// An address that may be given.
#[derive(Clone, Debug)]
pub struct Address {
    /// It.
    pub address: IpAddr,
    /// How often it is given, relative to others; 0 never.
    pub share: u16,
    /// Whether who is there lives.
    pub lives: bool,
    /// How often it was given first.
    pub given: Arc<AtomicU64>,
}

/// Those of one IP version.
#[derive(Debug)]
struct Set {
    addresses: Vec<Address>,
    /// Places among them.
    order: Vec<u16>,
    /// How many of them are in it.
    count: usize,
    /// Whose turn it is. Of each version its own: who asks for both would meet every other one.
    turn: AtomicU64,
}

/// Such a name as its servers are now.
#[derive(Debug)]
pub struct Balanced {
    pub(super) settings: Settings,
    four: Set,
    six: Set,
    /// No server lives.
    pub(super) is_dead: bool,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) network: IpAddr,
    /// A number that nobody foresees.
    pub(super) draw: u64,
}

impl Balanced {
    /// With these addresses. Turns go on at `turns`, of IPv4 and of IPv6.
    pub fn new(settings: Settings, addresses: &[Address], turns: [u64; 2]) -> Balanced {
        let takes = |address: &&Address| address.lives && address.share > 0;
        let mut given: Vec<Address> = addresses.iter().filter(takes).cloned().collect();
        let is_dead = given.is_empty();
        if is_dead {
            given = match &settings.none_alive {
                NoneAlive::All => {
                    addresses.iter().map(|one| Address { share: one.share.max(1), ..one.clone() }).collect()
                }
                NoneAlive::Refuse => Vec::new(),
                NoneAlive::Fixed(fixed) => fixed
                    .iter()
                    .map(|address| Address {
                        address: *address,
                        share: 1,
                        lives: false,
                        given: Arc::default(),
                    })
                    .collect(),
            };
        }
        let (four, six) = given.into_iter().partition(|one: &Address| one.address.is_ipv4());
        Balanced {
            four: Set::new(four, settings.draw, turns[0]),
            six: Set::new(six, settings.draw, turns[1]),
            is_dead,
            settings,
        }
    }

    /// Whose turn it is among IPv4 addresses, and among IPv6 ones.
    pub fn turns(&self) -> [u64; 2] {
        [&self.four, &self.six].map(|set| set.turn.load(Relaxed))
    }

    /// Whether answers differ by the client's network.
    pub(super) fn goes_by_client(&self) -> bool {
        self.settings.draw == Draw::Client
    }

    /// Whether it is said that there is no answer.
    pub(super) fn refuses(&self) -> bool {
        self.is_dead && self.settings.none_alive == NoneAlive::Refuse
    }

    /// The addresses of an answer, the first one counted as given.
    pub(super) fn draw(&self, is_ipv4: bool, client: Client, mut each: impl FnMut(&Address)) {
        let set = self.set(is_ipv4);
        let turn = set.turn.fetch_add(u64::from(self.settings.draw == Draw::Turn), Relaxed);
        let mut is_first = true;
        self.look(set, client, turn, |address| {
            if core::mem::take(&mut is_first) {
                address.given.fetch_add(1, Relaxed);
            }
            each(address);
        });
    }

    /// The addresses that the next answer will have.
    pub(super) fn hint(&self, is_ipv4: bool, client: Client, each: impl FnMut(&Address)) {
        let set = self.set(is_ipv4);
        self.look(set, client, set.turn.load(Relaxed), each);
    }

    fn set(&self, is_ipv4: bool) -> &Set {
        if is_ipv4 { &self.four } else { &self.six }
    }

    fn look(&self, set: &Set, client: Client, turn: u64, mut each: impl FnMut(&Address)) {
        let Some(steps) = (set.order.len() as u64).checked_sub(1) else { return };
        let first = match self.settings.draw {
            Draw::Turn => turn,
            Draw::Random => client.draw,
            Draw::Client => hash_of(client.network),
            Draw::First => 0,
        };
        let wanted = self.settings.top.min(set.count).min(TOP_MAX);
        let mut drawn = [0; TOP_MAX];
        let mut count = 0;
        for step in 0..=steps {
            if count == wanted {
                break;
            }
            let at = (first % (steps + 1) + step) % (steps + 1);
            let Some(place) = set.order.get(at as usize) else { break };
            if drawn[..count].contains(place) {
                continue;
            }
            drawn[count] = *place;
            count += 1;
            if let Some(address) = set.addresses.get(usize::from(*place)) {
                each(address);
            }
        }
    }
}

impl Set {
    fn new(addresses: Vec<Address>, draw: Draw, turn: u64) -> Set {
        let weighted: Vec<Weighted> = (0u16..)
            .zip(&addresses)
            .map(|(slot, one)| Weighted { slot, weight: one.share, seed: hash_of(one.address) })
            .collect();
        let order = match draw {
            Draw::Turn | Draw::Random => RoundRobin.order(&weighted),
            Draw::Client => maglev(&weighted, HASH_SLOTS),
            Draw::First => weighted.iter().map(|one| one.slot).collect(),
        };
        Set { count: addresses.len(), addresses, order, turn: AtomicU64::new(turn) }
    }
}

/// The same on every host.
fn hash_of(address: IpAddr) -> u64 {
    let mut hasher = SipHasher13::new();
    match address.to_canonical() {
        IpAddr::V4(address) => hasher.write(&address.octets()),
        IpAddr::V6(address) => hasher.write(&address.octets()),
    }
    hasher.finish()
}
