//! Director whose four servers are selected by six consumers: the packets of a service, a group
//! whose members join and report by messages, and four balanced names. Each consumer probes,
//! queries and drains the servers independently.
//!
//! The agents' side of a group is also Evener's. Messages and answers may be lost or delayed.

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

/// Only node of a farm with a group and names.
const DIRECTOR: usize = 0;
/// Timeout of a message, in milliseconds.
const ANSWER_MS: u64 = 1_000;

/// Surroundings of the director of a farm with a group and names.
#[derive(Default)]
pub(crate) struct Web {
    agents: [Agent; SERVERS],
    reports: [Reports; SERVERS],
    ranks: Ranks,
    /// Redirect rules of the group and catalog of DNS answers, while the daemon runs.
    rules: Option<GroupRules>,
    answers: Option<dns::Catalog>,
    posts: Vec<Post>,
    /// Offsets of the servers' wall clocks, in milliseconds.
    wall_off_ms: [i64; SERVERS],
    /// Time of the last event of each server, and of all servers.
    changed_ms: [u64; SERVERS_MAX],
    farm_ms: u64,
    /// Members that a killed daemon had, and its successor must know.
    members_before: Vec<String>,
    /// Member that the successor does not know.
    forgotten: Option<String>,
}

/// Agent of a server, which makes the server a member.
#[derive(Clone, Default)]
struct Agent {
    membership: Option<GroupMembership>,
    /// Number of the agent's start. A restarted agent gets no answers to messages of its
    /// predecessor.
    life: u64,
    /// True if the group knows that the agent has left.
    has_left: bool,
}

/// Answer of a server to load queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reports {
    Utilisation(u16),
    Nothing,
    /// The server requests drain.
    Refuses,
    /// Low load, and half of its weight requested.
    Half,
    Absurd,
    #[default]
    Idle,
}

/// Ranks of the last name's servers, from an external program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ranks {
    /// This server is best; the others follow in order.
    From(usize),
    /// The file is unreadable.
    Unread,
    /// The file is cut within a line.
    Cut,
    /// The file contains an unknown address.
    Stranger,
    /// The first server is best.
    #[default]
    Good,
}

/// Part of the director that selects among the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// Packets of the first service.
    Packets,
    Group,
    /// Name, by its index in [`NAMES`].
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

    /// True if the consumer uses the servers of a service.
    fn is_of_service(self) -> bool {
        matches!(self, Consumer::Name(number) if model::OF_SERVICE.contains(&number))
    }

    /// Name with which the operator drains a server for this consumer alone; `None` if that is
    /// impossible.
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
    /// Time when an agent or a message is next due.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let agents = self.agents.iter().filter_map(|agent| Some(agent.membership.as_ref()?.poll_timeout()));
        agents.chain(self.posts.iter().map(|post| post.due_ms)).filter(|at_ms| *at_ms < u64::MAX).min()
    }

    /// Records an event of all servers or of the whole farm.
    pub(crate) fn disturb(&mut self, now_ms: u64) {
        self.farm_ms = now_ms;
    }

    /// Records an event of a server.
    pub(crate) fn disturb_server(&mut self, server: usize, now_ms: u64) {
        self.changed_ms[server] = now_ms;
    }

    /// Time of the last event of all servers.
    pub(crate) fn last_of_all(&self) -> u64 {
        self.farm_ms
    }

    /// Time of the last event of a server.
    pub(crate) fn last_of(&self, server: usize) -> u64 {
        self.changed_ms[server]
    }

    /// Resets rules and answers at the start of a daemon, until the daemon sends new ones.
    pub(crate) fn begin(&mut self, now_ms: u64) {
        (self.rules, self.answers) = (None, None);
        self.disturb(now_ms);
    }

    /// Wall clock of a server in milliseconds since 1970.
    fn unix_ms(&self, server: usize, now_ms: u64) -> u64 {
        (BEGUN_MS + now_ms).saturating_add_signed(self.wall_off_ms[server])
    }
}

/// Sets the wall clock of the director or of a server.
pub(crate) fn set_clock(world: &mut World, host: usize, days: i64) {
    match (host % (1 + SERVERS)).checked_sub(1) {
        None => {
            world.nodes[DIRECTOR].wall_off_ms = days * DAY_MS;
            world.web.disturb(world.now_ms);
        }
        Some(server) => world.web.wall_off_ms[server] = days * DAY_MS,
    }
}

/// Changes a server's answer to load queries.
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

/// Changes the external ranks.
pub(crate) fn set_ranks(world: &mut World, how: usize) {
    world.web.ranks = match how % 8 {
        0 => Ranks::Unread,
        1 => Ranks::Cut,
        2 => Ranks::Stranger,
        _ => Ranks::From(how % SERVERS),
    };
    world.web.disturb(world.now_ms);
}

/// Starts an agent, makes it leave, or kills it.
pub(crate) fn act(world: &mut World, server: usize, how: usize) {
    // The first server is a member only by the file.
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

/// Gives an operator's order about a server for one of its consumers. Impossible orders are
/// ignored.
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

/// Runs due agents and delivers due messages.
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

/// Gives an agent the answer to its message.
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

/// Records the members of a daemon that is killed; its successor must know them.
pub(crate) fn remember_members(world: &mut World) {
    let node = &world.nodes[DIRECTOR];
    let shown = node.director.iter().flat_map(|_| node.shown.groups.iter());
    world.web.members_before =
        shown.flat_map(|group| &group.members).map(|member| member.joiner.url.to_string()).collect();
}

/// Checks after a restart that all members that had joined are still known.
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

/// Ends all faults of servers and messages.
pub(crate) fn heal(world: &mut World) {
    world.web.reports = [Reports::Idle; SERVERS];
    world.web.ranks = Ranks::Good;
    world.web.wall_off_ms = [0; SERVERS];
    world.nodes[DIRECTOR].wall_off_ms = 0;
    (1..SERVERS).for_each(|server| act(world, server - 1, 0));
    world.web.disturb(world.now_ms);
}
