//! Probes and their consequences.

use std::collections::BTreeMap;

use anyhow::Result;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::servers::nginx_tls;

use crate::{file, shares, shares_of, split};

on_both_engines! {
    when_all_fail_the_last_are_kept_or_not,
    a_probe_goes_the_way_that_traffic_goes,
}

on_one_engine! {
    a_server_that_fails_is_left_out_until_it_works,
    every_kind_of_probe,
    probe_by_tls_verifies_the_certificate_unless_told_not_to,
    rise_and_fall_are_counted,
    who_comes_back_begins_with_a_tenth,
    below_the_threshold_failed_servers_are_used_and_drained_ones_are_not,
}

/// Returns fast probes. A busy machine can delay one probe, but rarely three in a row.
fn probed(keys: &str) -> String {
    let fall = if keys.contains("fall") { "" } else { "fall = 3\n" };
    let rise = if keys.contains("rise") { "" } else { "rise = 1\n" };
    format!("[service.health]\ninterval = \"300ms\"\ntimeout = \"250ms\"\n{rise}{fall}{keys}\n")
}

fn one_service(engine: &str, farm: &Farm, health: &str) -> String {
    file::engine(engine)
        + &file::service("web", farm.service(), "")
        + &probed(health)
        + &file::servers(farm.servers())
}

const HEALTHZ: &str = "kind = \"http\"\npath = \"/healthz\"\n";

fn a_server_that_fails_is_left_out_until_it_works(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(2).build()?;
    let evener = Evener::start(farm.director(), &one_service(engine, &farm, HEALTHZ))?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]));

    farm.stop_web(1)?;
    evener.wait_for_servers(1, LONG)?;
    assert_eq!(evener.server("web2")?.reason.as_deref(), Some("connection refused"));
    assert_eq!(shares(&farm, 6)?, split([6, 0]));
    farm.start_web(1)?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]));

    let mut old = Vec::new();
    for _ in 0..2 {
        let mut visit = HttpConnection::open(farm.client(0), farm.service())?;
        old.push((visit.who()?, visit));
    }
    farm.set_healthy(0, false)?;
    evener.wait_for_servers(1, LONG)?;
    assert_eq!(evener.server("web1")?.reason.as_deref(), Some("status 503"));
    assert_eq!(shares(&farm, 6)?, split([0, 6]));
    for (server, visit) in &mut old {
        assert_eq!(*server, visit.who()?, "what was open stays");
    }
    farm.set_healthy(0, true)?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]));
    Ok(())
}

fn who_comes_back_begins_with_a_tenth(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(2).build()?;
    let text = file::engine(engine)
        + &file::service("web", farm.service(), "slow_start = \"1h\"\n")
        + &probed(HEALTHZ)
        + &file::servers(farm.servers());
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]), "nobody is cold when the director begins");
    farm.stop_web(1)?;
    evener.wait_for_servers(1, LONG)?;
    assert_eq!(evener.server("web2")?.effective_weight, 0.0);
    farm.start_web(1)?;
    evener.wait_for_servers(2, LONG)?;
    let web2 = evener.server("web2")?;
    assert_eq!((web2.effective_weight, web2.cause.as_deref()), (0.1, Some("slow start 10 %")));
    assert_eq!(shares(&farm, 22)?, split([20, 2]));
    evener.reload(&text.replace("1h", "0s"))?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]));
    assert_eq!((evener.server("web2")?.effective_weight, evener.server("web2")?.cause), (1.0, None));
    Ok(())
}

fn every_kind_of_probe(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(1).build()?;
    let kinds = [
        ("tcp", "kind = \"tcp\"\nport = 80"),
        ("status", "kind = \"http\"\nport = 80\npath = \"/healthz\"\nstatus = [503]"),
        ("body", "kind = \"http\"\nport = 80\npath = \"/healthz\"\nbody = \"ok\""),
        ("other-body", "kind = \"http\"\nport = 80\npath = \"/healthz\"\nbody = \"fine\""),
        ("arp", "kind = \"arp\""),
        ("none", "kind = \"none\""),
    ];
    let mut text = file::engine(engine);
    for ((name, health), port) in kinds.into_iter().zip(8001..) {
        text += &file::service(name, (farm.vip(0), port), "");
        text += &if name == "none" { file::ALWAYS_UP.to_owned() } else { probed(health) };
        text += &file::servers(farm.servers());
    }
    let evener = Evener::start(farm.director(), &text)?;
    let becomes = |what: &str, up: &[&str]| {
        wait::until(what, || {
            let servers = evener.servers()?;
            let states: BTreeMap<_, _> =
                servers.iter().map(|server| (server.service.as_str(), server.state == "up")).collect();
            Ok(kinds.iter().all(|(name, _)| states.get(name) == Some(&up.contains(name))))
        })
    };
    becomes("all as a healthy server answers", &["tcp", "body", "arp", "none"])?;
    farm.set_healthy(0, false)?;
    becomes("all as a sick server answers", &["tcp", "status", "arp", "none"])?;
    farm.stop_web(0)?;
    becomes("all as a host without a web server answers", &["arp", "none"])?;
    farm.set_healthy(0, true)?;
    farm.start_web(0)?;
    becomes("all as a healthy server answers again", &["tcp", "body", "arp", "none"])?;
    farm.server(0).unplug()?;
    wait::until("ARP tells that the host is gone", || {
        Ok(evener.servers()?.iter().any(|server| server.service == "arp" && server.state == "down"))
    })
}

fn probe_by_tls_verifies_the_certificate_unless_told_not_to(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let _webs: Vec<_> = farm.servers().iter().map(nginx_tls::start).collect::<Result<_>>()?;
    let ca = farm.server(0).file("tls.pem").display().to_string();
    let verified = format!("kind = \"https\"\nname = \"{}\"\nca = \"{ca}\"\n", nginx_tls::NAME);
    let services = [
        ("verified", "", format!("{verified}body = \"web1\"\n")),
        ("direct", "method = \"nat\"\n", verified.clone()),
        ("other-name", "", verified.replace(nginx_tls::NAME, "other.example")),
        ("believed", "", "kind = \"https\"\nverify = false\n".to_owned()),
    ];
    let mut text = file::engine(engine);
    for ((name, keys, health), port) in services.iter().zip(8001..) {
        text += &file::service(name, (farm.vip(0), port), keys);
        text += &probed(&format!("port = {}\n{health}", nginx_tls::PORT));
        text += &file::servers(farm.servers());
    }
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(4, LONG)?;
    wait::until("each is up where its certificate is the one that is wanted", || {
        let servers = evener.servers()?;
        let up = servers.iter().filter(|server| server.state == "up");
        let up: Vec<_> = up.map(|server| (server.service.as_str(), server.name.as_str())).collect();
        let all = [("verified", "web1"), ("direct", "web1"), ("believed", "web1"), ("believed", "web2")];
        Ok(up == all)
    })?;
    let reason = |service: &str, server: &str| -> Result<String> {
        let servers = evener.servers()?;
        let found = servers.into_iter().find(|one| one.service == service && one.name == server);
        Ok(found.and_then(|one| one.reason).unwrap_or_default())
    };
    assert!(reason("verified", "web2")?.starts_with("TLS: invalid peer certificate"));
    assert!(reason("other-name", "web1")?.contains("not valid for name"));
    Ok(())
}

fn rise_and_fall_are_counted(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(1).build()?;
    let mut text = file::engine(engine);
    for (name, counts, port) in [
        ("quick", "rise = 1\nfall = 1", 8001),
        ("stubborn", "rise = 1\nfall = 50", 8002),
        ("wary", "rise = 50\nfall = 1", 8003),
    ] {
        text += &file::service(name, (farm.vip(0), port), "");
        text += &probed(&format!("{HEALTHZ}port = 80\n{counts}"));
        text += &file::servers(farm.servers());
    }
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(3, LONG)?;
    let states =
        || -> Result<Vec<String>> { Ok(evener.servers()?.into_iter().map(|server| server.state).collect()) };
    farm.set_healthy(0, false)?;
    wait::until("two fell", || Ok(states()? == ["down", "up", "down"]))?;
    farm.set_healthy(0, true)?;
    wait::until("one rose", || Ok(states()? == ["up", "up", "down"]))
}

fn when_all_fail_the_last_are_kept_or_not(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).vips(2).build()?;
    let strict = (farm.vip(1), 80).into();
    let text = one_service(engine, &farm, HEALTHZ)
        + &file::service("strict", strict, "keep_last = false\n")
        + &probed(HEALTHZ)
        + &file::servers(farm.servers());
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(4, LONG)?;
    let mut old = HttpConnection::open(farm.client(0), strict)?;
    let server = old.who()?;

    farm.set_healthy(0, false)?;
    farm.set_healthy(1, false)?;
    evener.wait_for_servers(0, LONG)?;
    let services = evener.services()?;
    let degraded: Vec<_> = services.iter().map(|service| service.degraded).collect();
    assert_eq!(degraded, [true, false], "{services:?}");
    assert_eq!(shares(&farm, 6)?, split([3, 3]), "an empty farm helps nobody");
    let url = format!("http://{strict}/who");
    assert!(farm.client(0).curl(&["--max-time", "1", &url]).is_err(), "no new connections");
    assert!(evener.status()?.packets["no_server"] > 0);
    assert_eq!(old.who()?, server, "the old ones go on");

    farm.set_healthy(0, true)?;
    farm.set_healthy(1, true)?;
    evener.wait_for_servers(4, LONG)?;
    assert_eq!(shares_of(&farm, strict, 6)?.len(), 2);
    Ok(())
}

fn a_probe_goes_the_way_that_traffic_goes(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let evener = Evener::start(farm.director(), &one_service(engine, &farm, HEALTHZ))?;
    evener.wait_for_servers(2, LONG)?;
    let change = |verb: &str| farm.server(1).ip(&[format!("addr {verb} {}/32 dev lo", farm.vip(0))]);
    change("del")?;
    evener.wait_for_servers(1, LONG)?;
    assert_eq!(evener.server("web2")?.state, "down");
    let straight = format!("http://{}/who", farm.server(1).address());
    assert_eq!(farm.director().curl(&[&straight])?, "web2\n", "its own address works");
    assert_eq!(shares(&farm, 6)?, split([6, 0]));
    change("add")?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]));
    Ok(())
}

fn below_the_threshold_failed_servers_are_used_and_drained_ones_are_not(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(4).build()?;
    let text = file::engine(engine)
        + &file::service("web", farm.service(), "panic_threshold = \"60%\"\n")
        + &probed(HEALTHZ)
        + &file::servers(farm.servers());
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(4, LONG)?;
    evener.command(&["drain", "web/web4"])?;
    farm.set_healthy(0, false)?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([0, 3, 3, 0]), "two of three work");
    farm.set_healthy(1, false)?;
    evener.wait_for_servers(1, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([2, 2, 2, 0]));
    assert!(evener.services()?[0].degraded);
    let cause = evener.server("web1")?.cause;
    assert_eq!(cause.as_deref(), Some("too few servers work for probes to be believed"));
    farm.set_healthy(1, true)?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([0, 3, 3, 0]));
    Ok(())
}
