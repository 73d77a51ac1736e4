//! Orders of groups and names, and load queries to servers.

use std::sync::Arc;

use evener_core::director::{Input, LoadQuery, MemberFact, NameFact, NameOrder, Output};
use evener_core::dns::{self, BalancedName};
use evener_core::farm::group::{MemberOrder, QueryResult};
use evener_core::farm::plan::ServerName;
use evener_core::net::http::Url;
use evener_core::path::seed::Seed;
use evener_core::pool::Fact;
use evener_core::pool::report::{AdminState, BadReport, Report};

use super::{DIRECTOR, Ranks, Reports, message, model};
use crate::farms::{self, PROBE_TIMEOUT_MS, SERVERS};
use crate::mutation::Mutation;
use crate::world::World;

/// Carries out a director's output about groups, names or reports.
pub(crate) fn carry_out(world: &mut World, order: Output) {
    match order {
        Output::Group { group, order } => of_group(world, group, order),
        Output::Name(order) => of_names(world, order),
        Output::LoadQuery(LoadQuery { server, .. }) => {
            let number = farms::number(&server.server).unwrap_or_default();
            let (delay_ms, result) = report(world, number);
            world.send(DIRECTOR, None, delay_ms, Input::Reported { server, result });
        }
        Output::Score(scores) => world.nodes[DIRECTOR].engine.memory().counts.score(&scores),
        _ => {}
    }
}

fn of_group(world: &mut World, group: String, order: MemberOrder) {
    let fact = |member, fact| Input::Member { group: group.clone(), member, fact };
    match order {
        MemberOrder::Probe { member, url, .. } => {
            let server = ServerName { service: group.clone(), server: url.as_str().to_owned() };
            world.probes(DIRECTOR, &server);
            let (delay_ms, result) = world.probe_result(DIRECTOR, number_of(&url));
            world.send(DIRECTOR, None, delay_ms, fact(member, MemberFact::Server(Fact::Probed(result))));
        }
        MemberOrder::FetchReport { member, url, .. } => {
            let (delay_ms, result) = report(world, number_of(&url).unwrap_or_default());
            world.send(DIRECTOR, None, delay_ms, fact(member, MemberFact::Server(Fact::Reported(result))));
        }
        MemberOrder::Query { member, url, .. } => {
            let is_heard = number_of(&url).is_some_and(|server| message::query(world, server));
            let delay_ms = if is_heard { world.below(20) } else { PROBE_TIMEOUT_MS };
            world.send(DIRECTOR, None, delay_ms, fact(member, MemberFact::Queried(QueryResult::Unanswered)));
        }
        MemberOrder::Save { record } => {
            if !world.has(Mutation::ForgetsMembers) {
                world.nodes[DIRECTOR].record = Some(record);
            }
        }
        MemberOrder::Publish(rules) => {
            if !world.has(Mutation::KeepsRules) || world.web.rules.is_none() {
                world.web.rules = Some(rules);
            }
        }
    }
}

fn of_names(world: &mut World, order: NameOrder) {
    let known = |name: &Arc<BalancedName>, place: usize| {
        let listed = name.list().and_then(|list| list.servers.get(place));
        listed.and_then(|server| farms::number(&server.name())).unwrap_or_default()
    };
    match order {
        NameOrder::Probe(name, place) => {
            let number = known(&name, place);
            let service = name.settings.name.to_string();
            world.probes(DIRECTOR, &ServerName { service, server: farms::name(number) });
            let (delay_ms, result) = world.probe_result(DIRECTOR, Some(number));
            let fact = NameFact::Server(place, Fact::Probed(result));
            world.send(DIRECTOR, None, delay_ms, Input::Name { name, fact });
        }
        NameOrder::QueryLoad(name, place) => {
            let (delay_ms, result) = report(world, known(&name, place));
            let fact = NameFact::Server(place, Fact::Reported(result));
            world.send(DIRECTOR, None, delay_ms, Input::Name { name, fact });
        }
        NameOrder::ReadRanks(name, _) => {
            let fact = NameFact::Ranks(ranks(world, &name));
            let delay_ms = world.below(5);
            world.send(DIRECTOR, None, delay_ms, Input::Name { name, fact });
        }
        NameOrder::AnswerAll(balanced) => {
            let zone = world.nodes[DIRECTOR].director.as_ref().and_then(|one| model::zone(one.farm()));
            world.web.answers =
                zone.map(|zone| dns::Catalog::new([Arc::new(zone)], balanced, Seed(1, 2), ""));
        }
        NameOrder::Answer(changed) => {
            if !world.has(Mutation::KeepsAnswers)
                && let Some(answers) = &mut world.web.answers
            {
                *answers = answers.with(changed);
            }
        }
        NameOrder::Reloaded | NameOrder::ProbePath(_) => {}
    }
}

/// Returns the server with this URL.
pub(super) fn number_of(url: &Url) -> Option<usize> {
    let address = url.address();
    (0..SERVERS).find(|server| Some(farms::server(*server).0) == address)
}

/// Returns delay and result of a load query. The server's agent answers even if the server fails.
fn report(world: &mut World, server: usize) -> (u64, Result<Report, BadReport>) {
    if !world.is_reached(DIRECTOR, server) {
        return (PROBE_TIMEOUT_MS, Err(BadReport::Silent));
    }
    let load = |percent: u64| Report { utilisation_permille: Some(percent * 10), ..Report::default() };
    let result = match world.web.reports[server] {
        Reports::Nothing => return (PROBE_TIMEOUT_MS, Err(BadReport::Silent)),
        Reports::Refuses if world.has(Mutation::WishUnheard) => Ok(load(10)),
        Reports::Refuses => Ok(Report { claim: Some(AdminState::Drain), ..load(10) }),
        Reports::Half => Ok(Report { percent: Some(50), ..load(10) }),
        Reports::Absurd => Err(BadReport::Absurd),
        Reports::Idle => Ok(load(10)),
        Reports::Utilisation(percent) => Ok(load(u64::from(percent))),
    };
    (world.below(20), result)
}

/// Returns the text of the external ranks of a name's servers.
fn ranks(world: &World, name: &BalancedName) -> Result<String, String> {
    let servers = name.list().map_or(&[][..], |list| &list.servers);
    let best = match world.web.ranks {
        Ranks::Unread => return Err("no such file".to_owned()),
        Ranks::From(best) => best,
        Ranks::Cut | Ranks::Stranger | Ranks::Good => 0,
    };
    let mut text = String::new();
    for server in servers {
        let number = farms::number(&server.name()).unwrap_or_default();
        let rank = (number + SERVERS - best) % SERVERS;
        text.push_str(&format!("{} {} {rank}\n", name.settings.name, server.address.ip()));
    }
    match world.web.ranks {
        Ranks::Cut => drop(text.pop()),
        Ranks::Stranger => text.push_str(&format!("{} {} 9\n", name.settings.name, farms::client(1))),
        Ranks::Unread | Ranks::From(_) | Ranks::Good => {}
    }
    Ok(text)
}
