//! The server of a flow without a session, as each director explains it.

use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use evener_lab::evener::{AdminSocket, Explanation};
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::wait;
use evener_lab::network::host::Host;

use super::{Pair, PolicyService, SERVERS};

const FLOWS: u32 = 10_000;
/// Policies whose selection depends only on the flow's hash while there are no sessions.
const POLICIES: [&str; 2] = ["hash", "power-of-two"];

/// Names of servers by flow.
type Choices = Vec<String>;

#[test]
fn directors_with_one_file_explain_flows_alike() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let pair = Pair::start(Farm::builder(), "l2", &POLICIES)?;
    pair.wait_for_servers()?;
    for service in &pair.services {
        let choices = explained(&pair, service)?;
        are_alike(service, &choices, None)?;
        let has_flows = |host: &&Host| choices[0].iter().any(|name| name == host.name());
        let count = pair.farm.servers().iter().filter(has_flows).count();
        ensure!(count == SERVERS, "{}: {count} servers of {SERVERS} have flows", service.policy);
    }
    pair.only_is_down(0, None)?;
    pair.only_is_down(1, None)
}

#[test]
fn director_without_a_server_explains_flows_of_others_alike() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let pair = Pair::start(Farm::builder(), "l2", &POLICIES)?;
    pair.wait_for_servers()?;
    let (cut, director) = (pair.farm.server(0), pair.farm.director());
    cut.split(&[cut], &[director])?;
    wait::until("the first director has the server down", || {
        Ok(pair.only_is_down(0, Some(cut.name())).is_ok())
    })?;
    for service in &pair.services {
        let choices = explained(&pair, service)?;
        let [lost, kept] =
            choices.each_ref().map(|all| all.iter().filter(|name| *name == cut.name()).count());
        ensure!(
            lost == 0 && kept > 0,
            "{}: {} has {lost} flows where it is down, {kept} elsewhere",
            service.policy,
            cut.name()
        );
        are_alike(service, &choices, Some(cut.name()))?;
    }
    pair.only_is_down(0, Some(cut.name()))?;
    pair.only_is_down(1, None)
}

/// Queries both directors at the same time and returns their selections.
fn explained(pair: &Pair, service: &PolicyService) -> Result<[Choices; 2]> {
    let sockets = [pair.directors[0].admin_socket()?, pair.directors[1].admin_socket()?];
    let choices = thread::scope(|scope| {
        sockets
            .each_ref()
            .map(|socket| scope.spawn(|| (0..FLOWS).map(|flow| choice(socket, service, flow)).collect()))
            .map(|queries| queries.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    });
    let [one, other] = choices;
    Ok([one?, other?])
}

fn choice(socket: &AdminSocket, service: &PolicyService, flow: u32) -> Result<String> {
    let (client, vip) = (client(flow), service.address);
    let explanation: Explanation = socket.get(&format!("/v1/explain?client={client}&vip={vip}"))?;
    explanation.server.clone().with_context(|| format!("{client} has no server: {explanation:?}"))
}

/// Returns a client endpoint. The flows cover many addresses and ports.
fn client(flow: u32) -> String {
    format!("198.51.100.{}:{}", 1 + flow % 250, 1_024 + flow * 6)
}

/// Fails if the directors' selections differ for a flow. Flows that the second director assigns to
/// server `except` do not count.
fn are_alike(service: &PolicyService, [one, other]: &[Choices; 2], except: Option<&str>) -> Result<()> {
    let pairs = (0..).zip(one.iter().zip(other));
    let differing = pairs.filter(|(_, (one, other))| one != other && Some(other.as_str()) != except);
    let differing: Vec<String> =
        differing.map(|(flow, (one, other))| format!("{} to {one} and to {other}", client(flow))).collect();
    let (count, first) = (differing.len(), &differing[..differing.len().min(5)]);
    ensure!(count == 0, "{}: {count} of {FLOWS} flows differ, such as {first:?}", service.policy);
    Ok(())
}
