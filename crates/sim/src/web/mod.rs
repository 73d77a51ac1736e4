//! A director whose servers have more consumers than packets: a group, whose members join and
//! report by messages, and names. All of them share four servers, and each probes them, asks them
//! for their load and has them drained by itself.
//!
//! The members' side of a group is that of the product, too. A message is lost, or its answer is,
//! and both may be late.

mod check;
mod client;
mod message;
mod model;
mod orders;
mod returns;

pub(crate) use check::{in_force, settled};
pub(crate) use client::visit;
pub(crate) use message::{forge, storm};
pub(crate) use model::{GROUP, extend, has_service, start_at_once};
pub(crate) use orders::carry_out;
pub(crate) use returns::returns;

use evener_core::dns;
use evener_core::farm::group::{DirectorAnswer, GroupMembership, GroupRules, MembershipOrder};
use evener_core::farm::plan::ServerName;

use crate::check::Promise;
use crate::farms::{self, SERVERS, SERVERS_MAX};
use crate::handoff::{BEGUN_MS, DAY_MS};
use crate::step::OperatorOrder;
use crate::world::World;
use message::{Message, Post};
use model::{LISTED, NAMES, REPORT_MS};

/// The one node of such a farm.
const DIRECTOR: usize = 0;
/// A message without an answer has failed after this time, in milliseconds.
const ANSWER_MS: u64 = 1_000;

/// Everything around the director of such a farm.
#[derive(Default)]
pub(crate) struct Web {
    agents: [Agent; SERVERS],
    reports: [Reports; SERVERS],
    ranks: Ranks,
    /// By what the group's clients are sent on, and queries answered, while the daemon lives.
    rules: Option<GroupRules>,
    answers: Option<dns::Catalog>,
    posts: Vec<Post>,
    /// How far the wall clocks of servers are off, in milliseconds.
    wall_off_ms: [i64; SERVERS],
    /// When something last happened to each server, and to all of them.
    changed_ms: [u64; SERVERS_MAX],
    farm_ms: u64,
    /// The members whom a daemon that was killed had, and must know again.
    members_before: Vec<String>,
    /// One that it doesn't.
    forgotten: Option<String>,
}

/// A server's agent, which makes it a member.
#[derive(Clone, Default)]
struct Agent {
    membership: Option<GroupMembership>,
    /// One that begins anew gets no answer to what the one before sent.
    life: u64,
    /// Whether the group knows that it has left.
    has_left: bool,
}

/// How a server answers when it is asked for its load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reports {
    /// With so much of what it can do, in percent.
    Utilisation(u16),
    /// Not at all.
    Nothing,
    /// That it wants nothing new.
    Refuses,
    /// With little to do, and that it wants half of its weight.
    Half,
    /// With a number that is none.
    Absurd,
    /// With little to do.
    #[default]
    Idle,
}

/// The last name's ranks, as somebody else makes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ranks {
    /// The first server is best, or another one; the others come after it.
    From(usize),
    /// The file can't be read.
    Unread,
    /// It is cut within a line.
    Cut,
    /// It names a stranger's address.
    Stranger,
    /// The first server is best.
    #[default]
    Good,
}

/// A consumer of servers, by which steps name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// The first service, by packets.
    Packets,
    Group,
    /// A name, by its number among [`NAMES`].
    Name(usize),
}

impl Consumer {
    pub(crate) const ALL: [Consumer; 6] = [
        Consumer::Packets,
        Consumer::Group,
        Consumer::Name(0),
        Consumer::Name(1),
        Consumer::Name(2),
        Consumer::Name(model::TURNS),
    ];

    /// Whether it has the servers of a service.
    fn is_of_service(self) -> bool {
        matches!(self, Consumer::Name(number) if model::OF_SERVICE.contains(&number))
    }

    /// The name by which its operator drains a server for it alone, if that can be.
    fn server_name(self, server: usize) -> Option<ServerName> {
        let (service, server) = match self {
            Consumer::Packets => (farms::service(0), farms::name(server)),
            Consumer::Group => (GROUP.to_owned(), model::url(server)?.as_str().to_owned()),
            Consumer::Name(_) if self.is_of_service() => return None,
            Consumer::Name(number) => (NAMES[number].to_owned(), farms::name(server)),
        };
        Some(ServerName { service, server })
    }
}

impl Web {
    /// When an agent, or something on its way, is due.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let agents = self.agents.iter().filter_map(|agent| Some(agent.membership.as_ref()?.poll_timeout()));
        agents.chain(self.posts.iter().map(|post| post.due_ms)).filter(|at_ms| *at_ms < u64::MAX).min()
    }

    /// Something happened to all servers, or to what everybody goes by.
    pub(crate) fn disturb(&mut self, now_ms: u64) {
        self.farm_ms = now_ms;
    }

    /// Something happened to a server.
    pub(crate) fn disturb_server(&mut self, server: usize, now_ms: u64) {
        self.changed_ms[server] = now_ms;
    }

    /// When something last happened to all servers.
    pub(crate) fn last_of_all(&self) -> u64 {
        self.farm_ms
    }

    /// When something last happened to a server.
    pub(crate) fn last_of(&self, server: usize) -> u64 {
        self.changed_ms[server]
    }

    /// A daemon begins: it has yet to say by what clients are sent on.
    pub(crate) fn begin(&mut self, now_ms: u64) {
        (self.rules, self.answers) = (None, None);
        self.disturb(now_ms);
    }

    /// The wall clock of a server, in milliseconds since 1970.
    fn unix_ms(&self, server: usize, now_ms: u64) -> u64 {
        (BEGUN_MS + now_ms).saturating_add_signed(self.wall_off_ms[server])
    }
}

/// Sets a host's wall clock: the director's, or a server's.
pub(crate) fn set_clock(world: &mut World, host: usize, days: i64) {
    match (host % (1 + SERVERS)).checked_sub(1) {
        None => {
            world.nodes[DIRECTOR].wall_off_ms = days * DAY_MS;
            world.web.disturb(world.now_ms);
        }
        Some(server) => world.web.wall_off_ms[server] = days * DAY_MS,
    }
}

/// Has a server answer questions for its load in another way.
pub(crate) fn set_reports(world: &mut World, server: usize, how: usize) {
    world.web.reports[server] = match how % 8 {
        0 => Reports::Nothing,
        1 => Reports::Refuses,
        2 => Reports::Half,
        3 => Reports::Absurd,
        4 => Reports::Idle,
        _ => Reports::Utilisation((how % 64) as u16 * 3 / 2),
    };
    world.web.disturb_server(server, world.now_ms);
}

/// Somebody else ranks the servers anew.
pub(crate) fn set_ranks(world: &mut World, how: usize) {
    world.web.ranks = match how % 8 {
        0 => Ranks::Unread,
        1 => Ranks::Cut,
        2 => Ranks::Stranger,
        _ => Ranks::From(how % SERVERS),
    };
    world.web.disturb(world.now_ms);
}

/// An agent begins, leaves and ends, or is killed.
pub(crate) fn act(world: &mut World, server: usize, how: usize) {
    // The first one is no member but by the file.
    let server = 1 + server % (SERVERS - 1);
    let now_ms = world.now_ms;
    let agent = &mut world.web.agents[server];
    match how % 4 {
        0 | 1 if agent.membership.is_none() => {
            agent.life += 1;
            agent.membership = Some(GroupMembership::new(now_ms, REPORT_MS));
        }
        2 => {
            if agent.membership.take().is_some_and(|membership| membership.is_to_leave()) {
                message::send(world, server, Message::Leave);
            }
        }
        3 => agent.membership = None,
        _ => return,
    }
    world.web.disturb_server(server, now_ms);
}

/// The operator orders something of a server for one of its consumers; where there is none, it is
/// told so.
pub(crate) fn order(world: &mut World, consumer: usize, server: usize, order: OperatorOrder) {
    let server = server % SERVERS;
    let Some(name) = Consumer::ALL[consumer % Consumer::ALL.len()].server_name(server) else { return };
    let node = &world.nodes[DIRECTOR];
    let director = node.director.as_ref().filter(|_| node.takes_part());
    if director.is_some_and(|director| director.drainable(&name).is_ok())
        && world.give_order(DIRECTOR, &name, order)
    {
        world.web.disturb_server(server, world.now_ms);
    }
}

/// Does what agents have to do, and what has come to its end of their messages.
pub(crate) fn go_on(world: &mut World) {
    while let Some(at) = world.web.posts.iter().position(|post| post.due_ms <= world.now_ms) {
        let post = world.web.posts.swap_remove(at);
        message::arrive(world, post);
    }
    for server in 0..SERVERS {
        let now_ms = world.now_ms;
        let works = world.works[server];
        let Some(membership) = &mut world.web.agents[server].membership else { continue };
        if let Some(MembershipOrder::Probe) = membership.poll(now_ms) {
            let order = membership.probed(now_ms, works);
            message::order(world, server, order);
        }
    }
}

/// An agent hears what became of its message.
fn answered(world: &mut World, server: usize, life: u64, answer: DirectorAnswer) {
    let draw = world.below(1_000);
    let now_ms = world.now_ms;
    let agent = &mut world.web.agents[server];
    let Some(membership) = agent.membership.as_mut().filter(|_| agent.life == life) else { return };
    let was_member = membership.is_member();
    let order = membership.answered(now_ms, answer, draw);
    if membership.is_member() != was_member {
        world.web.disturb_server(server, now_ms);
    }
    message::order(world, server, order);
}

/// A daemon is killed: the next one must know the members that this one shows.
pub(crate) fn remember_members(world: &mut World) {
    let node = &world.nodes[DIRECTOR];
    let shown = node.director.iter().flat_map(|_| node.shown.groups.iter());
    world.web.members_before =
        shown.flat_map(|group| &group.members).map(|member| member.joiner.url.to_string()).collect();
}

/// It has begun again: those who had joined are its members still.
pub(crate) fn compare_members(world: &mut World) {
    let before = std::mem::take(&mut world.web.members_before);
    let Some(group) = world.nodes[DIRECTOR].shown.groups.first() else { return };
    let is_listed =
        |url: &str| (0..LISTED).any(|server| model::url(server).is_some_and(|listed| listed.as_str() == url));
    if !before.is_empty() {
        world.coverage.checked(Promise::Forgotten);
    }
    let known = |url: &String| group.members.iter().any(|member| member.joiner.url.as_str() == url);
    world.web.forgotten = before.into_iter().find(|url| !is_listed(url) && !known(url));
}

/// Everything about servers and messages becomes as it should be.
pub(crate) fn heal(world: &mut World) {
    world.web.reports = [Reports::Idle; SERVERS];
    world.web.ranks = Ranks::Good;
    world.web.wall_off_ms = [0; SERVERS];
    world.nodes[DIRECTOR].wall_off_ms = 0;
    (1..SERVERS).for_each(|server| act(world, server - 1, 0));
    world.web.disturb(world.now_ms);
}
