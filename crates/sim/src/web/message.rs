//! Messages between agents and the director, one connection each. A message or its answer may be
//! lost.

use evener_core::farm::group::{
    DirectorAnswer, Joiner, LoadInform, MemberRefusal, MembershipOrder, MessageOrigin,
};
use evener_core::net::http::Url;

use super::model::{self, GROUP};
use super::{ANSWER_MS, DIRECTOR, Reports, answered};
use crate::check::{Broken, Promise};
use crate::farms;
use crate::world::World;

/// Message of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Join,
    Report { stamp_ms: Option<u64> },
    Leave,
}

/// Message or answer in transit.
pub(super) struct Post {
    pub(super) due_ms: u64,
    server: usize,
    /// Number of the start of the agent that sent the message.
    life: u64,
    what: What,
}

enum What {
    Message(Message),
    Answer(DirectorAnswer),
    /// Load query of the director.
    Query,
}

/// Carries out an order of an agent's state machine.
pub(super) fn order(world: &mut World, server: usize, order: Option<MembershipOrder>) {
    match order {
        Some(MembershipOrder::Join) => send(world, server, Message::Join),
        Some(MembershipOrder::Report { is_stamped }) => {
            let unix_ms = world.web.unix_ms(server, world.now_ms);
            send(world, server, Message::Report { stamp_ms: is_stamped.then_some(unix_ms) });
        }
        Some(MembershipOrder::Probe) | None => {}
    }
}

/// Sends a message, which may be lost.
pub(super) fn send(world: &mut World, server: usize, message: Message) {
    let is_lost = !world.is_reached(DIRECTOR, server) || world.below(100) < u64::from(world.loss);
    if is_lost {
        post(world, server, ANSWER_MS, What::Answer(DirectorAnswer::NoAnswer));
    } else {
        let delay_ms = delay_ms(world);
        post(world, server, delay_ms, What::Message(message));
    }
}

/// Sends the director's load query to a member. Returns true if it arrives.
pub(super) fn query(world: &mut World, server: usize) -> bool {
    let is_heard = world.is_reached(DIRECTOR, server) && world.below(100) >= u64::from(world.loss);
    if is_heard {
        let delay_ms = delay_ms(world);
        post(world, server, delay_ms, What::Query);
    }
    is_heard
}

fn delay_ms(world: &mut World) -> u64 {
    if world.below(8) == 0 { world.below(800) } else { world.below(20) }
}

fn post(world: &mut World, server: usize, delay_ms: u64, what: What) {
    let (due_ms, life) = (world.now_ms + delay_ms, world.web.agents[server].life);
    world.web.posts.push(Post { due_ms, server, life, what });
}

/// Delivers a message or an answer.
pub(super) fn arrive(world: &mut World, post: Post) {
    let Post { server, life, what, .. } = post;
    match what {
        What::Message(message) => {
            let answer = deliver(world, server, message);
            let is_lost = world.below(100) < u64::from(world.loss);
            let (delay_ms, answer) = match answer {
                Some(status) if !is_lost => (delay_ms(world), DirectorAnswer::Status(status)),
                _ => (ANSWER_MS, DirectorAnswer::NoAnswer),
            };
            let due_ms = world.now_ms + delay_ms;
            world.web.posts.push(Post { due_ms, server, life, what: What::Answer(answer) });
        }
        What::Answer(answer) => answered(world, server, life, answer),
        What::Query => {
            if let Some(membership) = &mut world.web.agents[server].membership {
                membership.queried(world.now_ms);
            }
        }
    }
}

/// Returns the director's answer to a message, as an HTTP status.
fn deliver(world: &mut World, server: usize, message: Message) -> Option<u16> {
    let url = model::url(server)?;
    let address = farms::server(server).0;
    let origin = MessageOrigin { from: Some(address), ..MessageOrigin::default() };
    let status = |result: Result<(), MemberRefusal>| match result {
        Ok(()) => Ok(200),
        Err(refused) => Err(refused.status()),
    };
    let load = load(world.web.reports[server]);
    let found = world.message(DIRECTOR, GROUP, |now, _, members| match message {
        Message::Join => status(members.join(now, &origin, &[Joiner::new(url)]).map(drop)),
        Message::Report { stamp_ms } => {
            status(members.inform(now, Some(address), &LoadInform { load, stamp_ms, url: None }))
        }
        Message::Leave => status(members.remove_members(now, &[url])),
    });
    world.nodes[DIRECTOR].director.as_ref()?;
    let status = found.unwrap_or(404);
    if status == 200 && matches!(message, Message::Join | Message::Leave) {
        world.web.agents[server].has_left = message == Message::Leave;
        world.web.disturb_server(server, world.now_ms);
    }
    Some(status)
}

fn load(reports: Reports) -> f64 {
    match reports {
        Reports::Utilisation(percent) => f64::from(percent),
        Reports::Nothing | Reports::Refuses | Reports::Half | Reports::Absurd | Reports::Idle => 1.0,
    }
}

/// Lets a host without other members join `count` members, one per port.
pub(crate) fn storm(world: &mut World, count: usize) {
    let host = farms::client(7);
    let origin = MessageOrigin { from: Some(host), ..MessageOrigin::default() };
    for port in 1..=count {
        let Ok(url) = Url::parse(&format!("http://{host}:{port}")) else { continue };
        world.message(DIRECTOR, GROUP, |now, _, members| {
            members.join(now, &origin, &[Joiner::new(url)]).map(drop).map_err(drop)
        });
    }
}

/// Sends a forged message to a group and checks that its members stay unchanged.
pub(crate) fn forge(world: &mut World, how: usize, server: usize) -> Result<(), Broken> {
    let server = server % farms::SERVERS;
    let members = |world: &World| -> Vec<Url> {
        let groups = world.nodes[DIRECTOR].shown.groups.iter();
        groups.flat_map(|group| &group.members).map(|member| member.joiner.url.clone()).collect()
    };
    let Some((url, stranger)) = model::url(server).zip(Url::parse("http://10.0.0.99").ok()) else {
        return Ok(());
    };
    let before = members(world);
    let address = farms::server(server).0;
    let elsewhere = farms::client(7);
    let is_believed = world.message(DIRECTOR, GROUP, |now, _, members| {
        let origin = |from| MessageOrigin { from: Some(from), ..MessageOrigin::default() };
        let report = |load, ahead_ms| LoadInform {
            load,
            stamp_ms: Some(now.unix_ms + ahead_ms),
            url: Some(url.clone()),
        };
        let refused = match how % 7 {
            // From another host, about an unknown member, with an invalid load, or far in the
            // future.
            0 => members.join(now, &origin(elsewhere), &[Joiner::new(stranger.clone())]).err(),
            1 => members.remove_members(now, std::slice::from_ref(&stranger)).err(),
            2 => members
                .inform(now, Some(elsewhere), &LoadInform { load: 1.0, stamp_ms: None, url: None })
                .err(),
            3 => members.inform(now, Some(address), &report(f64::NAN, 0)).err(),
            4 => members.inform(now, Some(address), &report(-1.0, 0)).err(),
            5 => members.inform(now, Some(address), &report(1e300, 0)).err(),
            _ => members.inform(now, Some(address), &report(1.0, 86_400_000)).err(),
        };
        match refused {
            Some(_) => Err(false),
            None => Ok(true),
        }
    });
    if is_believed == Some(true) || members(world) != before {
        return Err(Promise::Believed.broken(format!(
            "message {} in the name of {}",
            how % 7,
            farms::name(server)
        )));
    }
    Ok(())
}
