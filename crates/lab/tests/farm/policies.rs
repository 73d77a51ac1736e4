//! Server selection.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};

use crate::{file, go_on, kept, shares, slow_downloads, split, unbroken};

on_both_engines! {
    round_robin_is_exact_by_weight,
    the_hash_has_one_server_for_an_endpoint,
    least_connections_spares_who_has_many,
    power_of_two_spares_who_has_many,
    a_drained_server_keeps_what_it_has,
    full_server_is_passed_over_and_full_farm_refuses_until_there_is_room,
}

on_one_engine! {
    a_service_without_policy_spares_who_has_many,
    backup_serves_while_no_other_can_and_keeps_its_sessions,
}

fn weighted(engine: &str, farm: &Farm, weights: [u16; 3]) -> String {
    let servers = farm.servers().iter().zip(weights).map(|(host, weight)| file::server(host, weight));
    file::engine(engine)
        + &file::service("web", farm.service(), "")
        + file::ALWAYS_UP
        + &servers.collect::<String>()
}

fn round_robin_is_exact_by_weight(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let evener = Evener::start(farm.director(), &weighted(engine, &farm, [1, 2, 3]))?;
    evener.wait_for_servers(3, LONG)?;
    assert_eq!(shares(&farm, 60)?, split([10, 20, 30]));
    evener.reload(&weighted(engine, &farm, [1, 1, 1]))?;
    assert_eq!(shares(&farm, 30)?, split([10, 10, 10]));

    let mut kept: Vec<_> =
        (0..3).map(|_| HttpConnection::open(farm.client(0), farm.service())).collect::<Result<_>>()?;
    let before: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    evener.reload(&weighted(engine, &farm, [2, 1, 0]))?;
    assert_eq!(evener.server("web3")?.state, "draining");
    assert_eq!(shares(&farm, 30)?, split([20, 10]));
    let after: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    assert_eq!(before, after, "weight 0 keeps the old ones");
    Ok(())
}

fn the_hash_has_one_server_for_an_endpoint(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let keys = "policy = \"hash\"\ntimeouts = { closing = \"100ms\" }\n";
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, keys))?;
    evener.wait_for_servers(3, LONG)?;
    let mut used = BTreeSet::new();
    for port in 40_000..40_020 {
        let explain =
            ["explain", &format!("{}:{port}", farm.client(0).address()), &farm.service().to_string()];
        let foretold = evener.json::<evener_lab::evener::Explanation>(&explain)?.server;
        let visit = || -> Result<String> {
            let mut visit = HttpConnection::open_from(farm.client(0), port, farm.service())?;
            let server = visit.who()?;
            visit.reset()?;
            Ok(server)
        };
        let first = visit()?;
        assert_eq!(foretold.as_deref(), Some(first.as_str()), "port {port}");
        assert_eq!((visit()?, visit()?), (first.clone(), first.clone()), "port {port}");
        used.insert(first);
    }
    assert_eq!(used.len(), 3, "every server is somebody's");
    Ok(())
}

fn least_connections_spares_who_has_many(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let keys = "policy = \"least-connections\"\ntimeouts = { closing = \"100ms\" }\n";
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, keys))?;
    evener.wait_for_servers(3, LONG)?;
    let shares_of = |visits: &[(String, HttpConnection)]| {
        let of = |name: &str| visits.iter().filter(|(server, _)| server == name).count();
        ["web1", "web2", "web3"].map(of)
    };
    let mut held = kept(&farm, 9)?;
    assert_eq!(shares_of(&held), [3, 3, 3]);

    // Only the connections of web1 stay open.
    let (stay, leave): (Vec<_>, Vec<_>) = held.drain(..).partition(|(server, _)| server == "web1");
    leave.into_iter().try_for_each(|(_, visit)| visit.reset())?;
    wait::until("those who left are forgotten", || {
        let active: Vec<_> = evener.servers()?.iter().map(|server| server.sessions).collect();
        Ok(active == [3, 0, 0])
    })?;
    assert_eq!(shares_of(&kept(&farm, 6)?), [0, 3, 3]);
    assert_eq!(stay.len(), 3);
    Ok(())
}

const POWER_OF_TWO: &str = "policy = \"power-of-two\"\n";

fn of_two(engine: &str, farm: &Farm) -> String {
    file::listed(engine, farm, &format!("{POWER_OF_TWO}timeouts = {{ closing = \"100ms\" }}\n"))
}

fn power_of_two_spares_who_has_many(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let file = of_two(engine, &farm);
    spares_who_has_many(&farm, &file)
}

fn a_service_without_policy_spares_who_has_many(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let file = of_two(engine, &farm).replace(POWER_OF_TWO, "");
    ensure!(!file.contains("policy"), "{file}");
    spares_who_has_many(&farm, &file)
}

/// With two servers, both are candidates for each connection.
fn spares_who_has_many(farm: &Farm, file: &str) -> Result<()> {
    let evener = Evener::start(farm.director(), file)?;
    evener.wait_for_servers(2, LONG)?;
    let (stay, leave): (Vec<_>, Vec<_>) =
        kept(farm, 6)?.into_iter().partition(|(server, _)| server == "web1");
    ensure!((stay.len(), leave.len()) == (3, 3), "{} and {}", stay.len(), leave.len());
    leave.into_iter().try_for_each(|(_, visit)| visit.reset())?;
    wait::until("those who left are forgotten", || {
        let active: Vec<_> = evener.servers()?.iter().map(|server| server.sessions).collect();
        Ok(active == [3, 0])
    })?;
    ensure!(kept(farm, 3)?.iter().all(|(server, _)| server == "web2"));
    Ok(())
}

fn a_drained_server_keeps_what_it_has(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept: Vec<_> =
        (0..2).map(|_| HttpConnection::open(farm.client(0), farm.service())).collect::<Result<_>>()?;
    let before: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    let downloads = slow_downloads(&farm);
    wait::until("the downloads began", || Ok(evener.sessions()?.len() >= 4))?;

    let output = evener.command(&["drain", "web/web1"])?;
    assert!(output.contains("drains"), "{output}");
    let drained = evener.server("web1")?;
    assert_eq!(
        (drained.state.as_str(), drained.reason.as_deref()),
        ("draining", Some("drained by the operator"))
    );
    assert_eq!(shares(&farm, 6)?, split([0, 6]));
    assert_eq!(evener.server("web1")?.connections, drained.connections);
    // The operator's drain outlives the daemon.
    evener.daemon().kill9()?;
    evener.start_again()?;
    assert_eq!(shares(&farm, 6)?, split([0, 6]));
    let after: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    assert_eq!(before, after);

    evener.command(&["undrain", "web/web1"])?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]));
    let report = unbroken(downloads.join()?)?;
    assert_eq!((report.requests, report.servers.len()), (2, 2), "{report:?}");

    let (code, output) = evener.failure(&["drain", "web/web9"])?;
    assert!(code == 1 && output.contains("no server web9"), "{output}");
    Ok(())
}

fn backup_serves_while_no_other_can_and_keeps_its_sessions(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(3).build()?;
    let servers: String = farm.servers().iter().map(|host| file::server(host, 1)).collect();
    let text = file::engine(engine)
        + &file::service("web", farm.service(), "")
        + "[service.health]\ninterval = \"300ms\"\ntimeout = \"250ms\"\nrise = 1\nfall = 3\n"
        + &servers
        + "backup = true\n";
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(3, LONG)?;
    let web3 = evener.server("web3")?;
    assert!(web3.backup && web3.effective_weight == 0.0, "{web3:?}");
    assert_eq!(web3.cause.as_deref(), Some("backup: the others can serve"));
    assert_eq!(shares(&farm, 6)?, split([3, 3, 0]));

    farm.stop_web(0)?;
    farm.stop_web(1)?;
    evener.wait_for_servers(1, LONG)?;
    assert_eq!(shares(&farm, 4)?, split([0, 0, 4]));
    let mut held = kept(&farm, 2)?;
    farm.start_web(0)?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 4)?, split([4, 0, 0]));
    go_on(&mut held)
}

fn full_server_is_passed_over_and_full_farm_refuses_until_there_is_room(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let servers: String = farm.servers().iter().map(|host| file::server(host, 1)).collect();
    let servers = servers.replace("weight = 1\n", "weight = 1\nmax_connections = 2\n");
    let keys = "timeouts = { closing = \"100ms\" }\n";
    let text =
        file::engine(engine) + &file::service("web", farm.service(), keys) + file::ALWAYS_UP + &servers;
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(2, LONG)?;
    let mut held = kept(&farm, 4)?;
    let active = || -> Result<Vec<u64>> { Ok(evener.servers()?.iter().map(|one| one.sessions).collect()) };
    assert_eq!(active()?, [2, 2]);
    let url = format!("http://{}/who", farm.service());
    assert!(farm.client(0).curl(&["--max-time", "1", &url]).is_err(), "nobody has room");
    assert!(evener.status()?.packets["servers_full"] > 0);

    let (server, visit) = held.pop().expect("four are open");
    visit.reset()?;
    wait::until("its session is forgotten", || Ok(active()?.iter().sum::<u64>() == 3))?;
    let (next, _visit) = kept(&farm, 1)?.pop().expect("one is open");
    assert_eq!(next, server, "only that one has room");
    go_on(&mut held)?;
    evener.reload(&text.replace("max_connections = 2", "max_connections = 9"))?;
    kept(&farm, 2).map(drop)
}
