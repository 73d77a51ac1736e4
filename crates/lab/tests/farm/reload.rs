//! A new configuration is applied completely or not at all, and sessions continue.

use std::fs;

use anyhow::{Result, anyhow};
use evener_dataplane::xdp::attach_pass;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::workloads::load::Load;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::{file, shares, shares_of, slow_downloads, split, unbroken};

on_both_engines! {
    what_did_not_change_goes_on,
    what_the_engine_refuses_changes_nothing,
}

on_one_engine! {
    a_file_with_errors_changes_nothing,
    an_address_of_another_host_is_not_taken,
    what_takes_a_restart_is_said_until_it_is_done,
    a_file_that_cannot_be_read_to_its_end_holds_nothing_up,
}

fn what_did_not_change_goes_on(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(2).vips(2).build()?;
    let second = (farm.vip(1), 80).into();
    let web = file::listed(engine, &farm, "");
    let mut evener = Evener::start(farm.director(), &web)?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept: Vec<_> =
        (0..4).map(|_| HttpConnection::open(farm.client(0), farm.service())).collect::<Result<_>>()?;
    let before: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    let downloads = slow_downloads(&farm);
    let visitors = Load { connections: 2, ..Load::to(farm.service()) }.start_on(farm.client(0));
    let mut same = || -> Result<()> {
        let now: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
        assert_eq!(before, now);
        Ok(())
    };
    same()?;

    let added = farm.add_server()?;
    let three = file::listed(engine, &farm, "");
    evener.reload(&three)?;
    evener.wait_for_servers(3, LONG)?;
    same()?;
    let weighted = three.replacen("weight = 1", "weight = 5", 1);
    evener.reload(&weighted)?;
    assert_eq!(evener.server("web1")?.weight, 5);
    same()?;
    let both = file::service("second", second, "") + file::ALWAYS_UP + &file::server(&added, 1);
    evener.reload(&(weighted + &both))?;
    evener.wait_for_servers(4, LONG)?;
    assert_eq!(shares_of(&farm, second, 3)?, split([0, 0, 3]));
    same()?;

    // A drained server without sessions can be removed without effect on clients.
    evener.command(&["drain", "web/web3"])?;
    wait::until("nobody is left on the server that goes", || {
        let server = evener.server("web3")?;
        let sessions = evener.sessions()?;
        let left = sessions.iter().filter(|session| session.service == "web" && session.server == "web3");
        Ok(server.state == "draining" && left.filter(|session| !session.is_ending()).count() == 0)
    })?;
    // A reload by signal.
    evener.write(&web)?;
    evener.daemon().sighup()?;
    wait::until("SIGHUP is heeded", || Ok(evener.status()?.reloads == 4))?;
    evener.wait_for_servers(2, LONG)?;
    same()?;
    assert!(shares_of(&farm, second, 1).is_err(), "the second service is gone");
    unbroken(visitors.stop()?)?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]));
    let report = unbroken(downloads.join()?)?;
    assert_eq!(report.requests, 2);
    same()
}

fn a_file_with_errors_changes_nothing(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let good = file::listed(engine, &farm, "");
    let evener = Evener::start(farm.director(), &good)?;
    evener.wait_for_servers(2, LONG)?;
    let mut visit = HttpConnection::open(farm.client(0), farm.service())?;
    let server = visit.who()?;

    evener.write(&good.replacen("weight = 1", "wieght = 1", 1).replacen("192.0.2.12", "192.0.2.300", 1))?;
    let (code, output) = evener.failure(&["reload"])?;
    assert_eq!(code, 1, "{output}");
    for part in ["nothing was changed", "wieght", "weight", "192.0.2.300"] {
        assert!(output.contains(part), "{part} is missing: {output}");
    }
    let status = evener.status()?;
    assert!(status.reload_error.as_deref().is_some_and(|error| error.contains("192.0.2.300")), "{status:?}");
    assert_eq!(status.reloads, 0);
    assert_eq!(evener.servers()?.len(), 2);
    assert_eq!(visit.who()?, server);
    assert_eq!(shares(&farm, 6)?, split([3, 3]));

    evener.reload(&good)?;
    let status = evener.status()?;
    assert_eq!((status.reloads, status.reload_error), (1, None));
    assert_eq!(visit.who()?, server);
    Ok(())
}

/// Creates an interface of the director that no engine can use while the second result lives. The
/// kernel engine finds a foreign program on it, and the packet engine cannot quote its name in a
/// rule.
fn unusable(engine: &str, farm: &Farm) -> Result<(&'static str, impl Send + use<>)> {
    let director = farm.director();
    let name = if engine == "xdp" { "spare0" } else { "spare'\"0" };
    director.run(&["ip", "link", "add", name, "type", "veth", "peer", "name", "spare1"])?;
    director.run(&["ip", "link", "set", name, "up"])?;
    let other = match engine {
        "xdp" => {
            let attach = || anyhow::Ok(attach_pass(nix::net::if_::if_nametoindex(name)?)?);
            Some(director.enter(attach)??)
        }
        _ => None,
    };
    Ok((name, other))
}

fn what_the_engine_refuses_changes_nothing(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let (spare, _other) = unusable(engine, &farm)?;
    let on = |interfaces: &[&str]| {
        format!("{}xdp_mode = \"generic\"\ninterfaces = {interfaces:?}\n", file::engine(engine))
    };
    let service = file::service("web", farm.service(), "") + file::ALWAYS_UP;
    let both = file::servers(farm.servers());
    let good = on(&["eth0"]) + &service + &both;
    let evener = Evener::start(farm.director(), &good)?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept: Vec<_> =
        (0..4).map(|_| HttpConnection::open(farm.client(0), farm.service())).collect::<Result<_>>()?;
    let before: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    let mut as_it_was = || -> Result<()> {
        let servers = evener.servers()?;
        let states: Vec<_> = servers.iter().map(|server| (server.state.as_str(), server.weight)).collect();
        assert_eq!(states, [("up", 1), ("up", 1)]);
        assert_eq!(shares(&farm, 20)?, split([10, 10]));
        let now: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
        assert_eq!(before, now);
        Ok(())
    };
    as_it_was()?;

    let more = on(&["eth0", spare]) + &service;
    let drained = both.replacen("weight = 1", "weight = 0", 1);
    let weighted = more.clone() + &drained;
    let fewer = more + &file::server(farm.server(0), 1);
    for refused in [&weighted, &fewer, &weighted] {
        evener.write(refused)?;
        let (code, output) = evener.failure(&["reload"])?;
        assert!(code == 1 && output.contains("nothing was changed"), "{code}: {output}");
        as_it_was()?;
    }
    evener.reload(&good)?;
    as_it_was()?;

    // The change succeeds without the obstacle.
    evener.reload(&(on(&["eth0"]) + &service + &drained))?;
    assert_eq!(shares(&farm, 6)?, split([0, 6]));
    Ok(())
}

fn an_address_of_another_host_is_not_taken(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).directors(2).vips(2).build()?;
    let (director, owner) = (farm.director(), &farm.directors()[1]);
    owner.ip(&[format!("addr add {}/32 dev eth0", farm.vip(1))])?;
    let web = file::listed(engine, &farm, "");
    let mut evener = Evener::start(director, &web)?;
    evener.wait_for_servers(2, LONG)?;
    let second = (farm.vip(1), 80).into();
    let both =
        web.clone() + &file::service("second", second, "") + file::ALWAYS_UP + &file::servers(farm.servers());
    evener.write(&both)?;
    let (code, output) = evener.failure(&["reload"])?;
    assert!(code == 1 && output.contains("nothing was changed"), "{code}: {output}");
    assert!(output.contains("another host owns") && output.contains(owner.mac()), "{output}");
    assert_eq!(evener.services()?.len(), 1);
    // A daemon that adopts a running data plane refuses the address, too.
    evener.daemon().kill9()?;
    let (code, output) = Evener::refused(director, &both, &[])?;
    assert!(code == 4 && output.contains("another host owns"), "{code}: {output}");
    evener.write(&web)?;
    evener.start_again()?;
    assert!(evener.status()?.adopted);
    assert_eq!(shares(&farm, 4)?, split([2, 2]));

    owner.ip(&[format!("addr del {}/32 dev eth0", farm.vip(1))])?;
    evener.reload(&both)?;
    evener.wait_for_servers(4, LONG)?;
    assert_eq!(shares_of(&farm, second, 4)?, split([2, 2]));
    Ok(())
}

fn what_takes_a_restart_is_said_until_it_is_done(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let good = file::listed(engine, &farm, "");
    let mut evener = Evener::start(farm.director(), &good)?;
    evener.wait_for_servers(2, LONG)?;
    let larger = good.replacen("65536", "131072", 1);
    // The second reload has the same result, because the file is compared with the running state
    // and not with the previous file.
    for _ in 0..2 {
        let output = evener.reload(&larger)?;
        assert!(output.contains("sessions_max") && output.contains("SIGQUIT"), "{output}");
        let keys = evener.status()?.restart_needed_for.unwrap_or_default();
        assert!(keys.starts_with("[engine] sessions_max"), "{keys}");
    }
    crate::told::is_logged(&mut evener, &["SIGQUIT"])?;
    let output = evener.reload(&good)?;
    assert!(!output.contains("sessions_max"), "nothing is left to be done: {output}");
    assert_eq!(evener.status()?.restart_needed_for, None);
    Ok(())
}

/// While the read of a file blocks, the daemon's loop continues, and another reload succeeds.
fn a_file_that_cannot_be_read_to_its_end_holds_nothing_up(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let probed =
        "[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"300ms\"\nrise = 1\nfall = 2\n";
    let text = file::listed(engine, &farm, "").replace(file::ALWAYS_UP, probed);
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(2, LONG)?;
    let path = evener.file().to_owned();
    let whole = path.with_extension("whole");
    fs::rename(&path, &whole)?;
    // A FIFO without a writer.
    mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let mut waiting = evener.begin("reload", &["reload"])?;
    // A nonblocking open for writing succeeds once the daemon opens the file.
    let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK;
    let opened = wait::for_value(LONG, || Ok(open(&path, flags, Mode::empty())), |opened| opened.is_ok())?;
    let writer = opened.map_err(|last| anyhow!("nobody reads the file: {last:?}"))??;
    evener.command(&["drain", "web/web1"])?;
    evener.command(&["undrain", "web/web1"])?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    fs::remove_file(&path)?;
    fs::rename(&whole, &path)?;
    evener.command(&["reload"])?;
    assert_eq!(evener.status()?.reloads, 1);
    drop(writer);
    waiting.wait_for("asked for later", LONG)?;
    assert_eq!(evener.status()?.reloads, 1);
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    Ok(())
}
