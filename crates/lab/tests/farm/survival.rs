//! The farm keeps working after any fault of the daemon. After a final stop, nothing is left of it.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::evener::{Evener, left_on};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::host::Host;
use evener_lab::workloads::load::{Load, Running};
use nix::sys::signal::Signal;

use crate::{file, go_on, kept, shares, shares_of, slow_downloads, split, unbroken};

on_both_engines! {
    killed_under_load_nothing_breaks,
    kept_when_stopped_with_keep,
    stopped_it_leaves_nothing,
    leave_ends_daemon_and_leaves_nothing,
    an_upgrade_carries_on,
    daemons_in_two_namespaces_never_meet,
    a_daemon_with_mounts_of_its_own_survives,
    another_engine_finds_nothing_in_its_way,
    as_the_unit_says_a_restart_breaks_nothing,
    sums_never_fall,
    sessions_stay_where_another_size_is_asked_for,
}

on_one_engine! { a_second_daemon_is_refused }

mod kernel {
    on_engine!(xdp: vanished_namespaces_are_cleared_up_after, an_adopted_data_plane_follows_xdp_mode);

    pub(super) use super::{
        an_adopted_data_plane_follows_xdp_mode, vanished_namespaces_are_cleared_up_after,
    };
}

/// Starts clients of all kinds, with timeouts long enough for TCP retransmissions.
fn audience(farm: &Farm) -> [Running; 3] {
    let visit =
        Load { connections: 4, pause: Duration::from_millis(5), timeout: LONG, ..Load::to(farm.service()) };
    let kept = Load { keep_alive: true, path: "/2k".to_owned(), ..visit.clone() };
    let slow = Load { connections: 2, path: "/big".to_owned(), pace: Some(4_000_000), ..visit.clone() };
    [visit, kept, slow].map(|load| load.start_on(farm.client(0)))
}

/// Returns the server of each established session, by client.
fn established(evener: &Evener) -> Result<BTreeMap<String, String>> {
    let sessions = evener.sessions()?.into_iter().filter(|session| session.state == "established");
    Ok(sessions.map(|session| (session.client, session.server)).collect())
}

fn killed_under_load_nothing_breaks(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(3, LONG)?;
    let loads = audience(&farm);
    wait::until("all are at it", || Ok(loads[0].requests() > 100 && loads[1].requests() > 100))?;
    let mut lasting = kept(&farm, 4)?;
    for _ in 0..2 {
        let status = evener.status()?;
        let requests: u64 = loads[..2].iter().map(Running::requests).sum();
        evener.daemon().kill9()?;
        if engine == "xdp" {
            wait::until("traffic flows without a daemon", || {
                Ok(loads[..2].iter().map(Running::requests).sum::<u64>() > requests + 200)
            })?;
        } else {
            thread::sleep(Duration::from_millis(500));
        }
        evener.start_again()?;
        let after = evener.status()?;
        assert!(after.adopted && after.pid != status.pid, "{after:?}");
        assert!(after.packets["forwarded"] >= status.packets["forwarded"], "counters go on");
        let now = established(&evener)?;
        for (server, visit) in &lasting {
            assert_eq!(now.get(&visit.client().to_string()), Some(server), "{now:?}");
        }
        go_on(&mut lasting)?;
        let requests: u64 = loads[..2].iter().map(Running::requests).sum();
        wait::until("all go on", || {
            Ok(loads[..2].iter().map(Running::requests).sum::<u64>() > requests + 100)
        })?;
    }
    for load in loads {
        let report = load.stop()?;
        ensure!(report.errors.total() == 0, "{} broke: {:?}", report.errors.total(), report.examples);
    }
    Ok(())
}

fn kept_when_stopped_with_keep(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let mut evener = Evener::start_by(farm.director(), &file::listed(engine, &farm, ""), &[], &["--keep"])?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept = kept(&farm, 4)?;
    let before: Vec<_> = evener.servers()?.iter().map(|server| server.connections).collect();
    assert_eq!(evener.stop()?, 0);
    if engine == "xdp" {
        go_on(&mut kept)?;
        assert_eq!(shares(&farm, 4)?, split([2, 2]));
    }
    evener.start_again()?;
    assert!(evener.status()?.adopted);
    go_on(&mut kept)?;
    let after: Vec<_> = evener.servers()?.iter().map(|server| server.connections).collect();
    assert!(after.iter().zip(&before).all(|(after, before)| after >= before), "{before:?}, {after:?}");
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    Ok(())
}

fn stopped_it_leaves_nothing(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let director = farm.director();
    assert_eq!(left_on(director)?, [""; 0], "nothing was there before");
    let mut evener = Evener::start(director, &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    assert!(!left_on(director)?.is_empty());
    assert_eq!(evener.stop()?, 0);
    assert_eq!(left_on(director)?, [""; 0]);
    let (code, output) = evener.failure(&["status"])?;
    assert!(code == 6 && output.starts_with("evener: "), "{output}");
    // The next daemon cleans up after a killed one.
    evener.start_again()?;
    evener.daemon().kill9()?;
    evener.start_again()?;
    assert_eq!(evener.stop()?, 0);
    assert_eq!(left_on(director)?, [""; 0]);
    Ok(())
}

fn an_upgrade_carries_on(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept = kept(&farm, 4)?;
    evener.daemon().kill9()?;
    evener.upgrade()?;
    assert!(evener.status()?.adopted);
    go_on(&mut kept)?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    Ok(())
}

fn a_second_daemon_is_refused(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let file = file::listed(engine, &farm, "");
    let mut evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept = kept(&farm, 2)?;
    let mut is_refused = |evener: &mut Evener, before: &[&str]| -> Result<()> {
        let (code, message) = Evener::refused(farm.director(), &file, before)?;
        let pid = format!("pid {}", evener.daemon().pid());
        ensure!(code == 5 && message.contains(&pid) && message.lines().count() == 1, "{code}: {message}");
        go_on(&mut kept)?;
        ensure!(shares(&farm, 4)? == split([2, 2]));
        Ok(())
    };
    is_refused(&mut evener, &[])?;
    // A different folder still refers to the same data plane.
    let run_dir = format!("EVENER_RUN_DIR={}", farm.director().file("elsewhere").display());
    is_refused(&mut evener, &["env", &run_dir])?;
    // A new copy of the same folder also refers to the same data plane.
    fs::remove_dir_all(run_folder(farm.director())?)?;
    is_refused(&mut evener, &[])?;
    // The data plane is free as soon as its daemon is dead.
    evener.daemon().kill9()?;
    evener.start_again()?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    assert_eq!(evener.stop()?, 0);
    Ok(())
}

/// Returns the folder of the daemon's lock on a host.
pub(crate) fn run_folder(host: &Host) -> Result<PathBuf> {
    let number = host.run(&["stat", "-L", "-c", "%i", "/proc/self/ns/net"])?;
    Ok(PathBuf::from(format!("/run/evener/net-{}", number.trim())))
}

fn daemons_in_two_namespaces_never_meet(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).directors(2).vips(2).answering().build()?;
    let second = SocketAddr::from((farm.vip(1), 80));
    let other = file::engine(engine) + &file::service("other", second, file::DISCOVER) + file::ALWAYS_UP;
    let mut one = Evener::start(&farm.directors()[0], &file::discovered(engine, &farm, ""))?;
    let mut two = Evener::start(&farm.directors()[1], &other)?;
    one.wait_for_servers(2, LONG)?;
    two.wait_for_servers(2, LONG)?;
    assert_eq!((one.services()?[0].name.as_str(), two.services()?[0].name.as_str()), ("web", "other"));
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    assert_eq!(shares_of(&farm, second, 6)?, split([3, 3]));
    assert_eq!((one.services()?[0].connections, two.services()?[0].connections), (4, 6));
    assert_eq!(one.stop()?, 0);
    assert_eq!(shares_of(&farm, second, 6)?, split([3, 3]));
    two.daemon().kill9()?;
    one.start_again()?;
    assert!(!one.status()?.adopted, "the other's is not its own");
    two.start_again()?;
    assert!(two.status()?.adopted);
    Ok(())
}

fn a_daemon_with_mounts_of_its_own_survives(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    // ip-netns(8) gives each command its own mounts, among them a BPF file system that disappears
    // with it.
    let name = farm.director().netns().name();
    let file = file::listed(engine, &farm, "");
    let mut evener = Evener::start_by(farm.director(), &file, &["ip", "netns", "exec", name], &[])?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept = kept(&farm, 4)?;
    evener.daemon().kill9()?;
    if engine == "xdp" {
        go_on(&mut kept)?;
        assert_eq!(shares(&farm, 4)?, split([2, 2]));
    }
    evener.start_again()?;
    assert!(evener.status()?.adopted);
    go_on(&mut kept)?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    assert_eq!(evener.stop()?, 0);
    assert_eq!(left_on(farm.director())?, [""; 0]);
    Ok(())
}

fn another_engine_finds_nothing_in_its_way(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let other = if engine == "xdp" { "packet" } else { "xdp" };
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    evener.daemon().kill9()?;
    evener.write(&file::listed(other, &farm, ""))?;
    evener.start_again()?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(evener.status()?.engine, other);
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    assert_eq!(evener.services()?[0].connections, 4, "all were its own");
    assert_eq!(evener.stop()?, 0);
    assert_eq!(left_on(farm.director())?, [""; 0]);
    Ok(())
}

fn pins_of(host: &Host) -> Result<PathBuf> {
    Ok(PathBuf::from(format!("/sys/fs/bpf/evener/net-{}", host.netns().inode()?)))
}

fn vanished_namespaces_are_cleared_up_after(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(1).directors(2).vips(2).answering().build()?;
    let mut evener = Evener::start(farm.director(), &file::discovered(engine, &farm, ""))?;
    evener.wait_for_servers(1, LONG)?;
    let pins = pins_of(farm.director())?;
    evener.daemon().kill9()?;
    assert!(pins.is_dir(), "no daemon removes them while the namespace lives");
    farm.switch().ip(&[format!("link delete {}", farm.director().interfaces()[0].port)])?;
    farm.router().run(&["ip", "netns", "delete", farm.director().netns().name()])?;
    // Any daemon that starts removes the leftovers, also daemons of other tests.

    let second = SocketAddr::from((farm.vip(1), 80));
    let other = file::engine(engine) + &file::service("other", second, file::DISCOVER) + file::ALWAYS_UP;
    wait::until("the kernel has removed the namespace, and a daemon what was left of it", || {
        let mut evener = Evener::start(&farm.directors()[1], &other)?;
        evener.wait_for_servers(1, LONG)?;
        evener.stop()?;
        Ok(!pins.exists())
    })
}

/// Returns the daemon's options in the packaged unit.
fn options_of_the_unit() -> Vec<&'static str> {
    let unit = include_str!("../../../../packaging/evener.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<_> = start.split_whitespace().collect();
    assert_eq!(words[..4], ["/usr/bin/evener", "run", "--config", "/etc/evener/evener.toml"]);
    words[4..].to_vec()
}

fn as_the_unit_says_a_restart_breaks_nothing(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let file = file::listed(engine, &farm, "");
    let mut evener = Evener::start_by(farm.director(), &file, &[], &options_of_the_unit())?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept = kept(&farm, 4)?;
    let downloads = slow_downloads(&farm);
    wait::until("downloads run", || Ok(evener.sessions()?.len() == 6))?;
    // `systemctl restart` stops the daemon in the same way.
    assert_eq!(evener.stop()?, 0);
    evener.start_again()?;
    assert!(evener.status()?.adopted);
    go_on(&mut kept)?;
    assert_eq!(unbroken(downloads.join()?)?.requests, 2);
    // SIGQUIT also stops the data plane.
    evener.daemon().signal(Signal::SIGQUIT)?;
    assert!(evener.daemon().wait(LONG)?.success());
    assert_eq!(left_on(farm.director())?, [""; 0]);
    Ok(())
}

fn leave_ends_daemon_and_leaves_nothing(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(1).build()?;
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(1, LONG)?;
    let pid = evener.status()?.pid;
    let printed = evener.command(&["leave"])?;
    ensure!(printed == format!("the daemon (pid {pid}) has ended and restored this host\n"), "{printed}");
    assert!(evener.daemon().wait(LONG)?.success());
    assert_eq!(left_on(farm.director())?, [""; 0]);
    let (code, why) = evener.failure(&["leave"])?;
    ensure!(code == 6 && why.contains("neither a daemon nor an agent"), "{code}: {why}");
    Ok(())
}

fn sums_never_fall(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let some = |servers: &[Host]| {
        file::engine(engine)
            + &file::service("web", farm.service(), "")
            + file::ALWAYS_UP
            + &file::servers(servers)
    };
    let mut evener = Evener::start(farm.director(), &some(farm.servers()))?;
    evener.wait_for_servers(3, LONG)?;
    let mut last = (0, 0, 0, 0);
    let mut look = |evener: &Evener| -> Result<u64> {
        let services: serde_json::Value = evener.json(&["services"])?;
        let of = |key: &str| services[0][key].as_u64().unwrap_or_default();
        let forwarded = evener.status()?.packets["forwarded"];
        let now = (of("connections"), of("packets"), of("bytes"), forwarded);
        ensure!(
            now.0 >= last.0 && now.1 >= last.1 && now.2 >= last.2 && now.3 >= last.3,
            "{last:?}, {now:?}"
        );
        last = now;
        Ok(now.0)
    };
    assert_eq!(shares(&farm, 12)?, split([4, 4, 4]));
    assert_eq!(look(&evener)?, 12);
    // One server is removed by a reload, and one while no daemon runs.
    evener.reload(&some(&farm.servers()[..2]))?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(look(&evener)?, 12);
    evener.daemon().kill9()?;
    evener.write(&some(&farm.servers()[..1]))?;
    evener.start_again()?;
    evener.wait_for_servers(1, LONG)?;
    assert_eq!(look(&evener)?, 12);
    // A slot's next server starts at zero. A server that returns to its service continues its own
    // counts.
    evener.reload(&some(farm.servers()))?;
    evener.wait_for_servers(3, LONG)?;
    assert_eq!(shares(&farm, 6)?, split([2, 2, 2]));
    assert_eq!(look(&evener)?, 18);
    let own: Vec<u64> = evener.servers()?.iter().map(|server| server.connections).collect();
    assert_eq!(own, [6, 2, 2]);
    evener.daemon().kill9()?;
    evener.start_again()?;
    assert_eq!(look(&evener)?, 18);
    Ok(())
}

fn sessions_stay_where_another_size_is_asked_for(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let file = file::listed(engine, &farm, "");
    let mut evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept = kept(&farm, 4)?;
    let output = evener.reload(&file.replacen("65536", "131072", 1))?;
    assert!(output.contains("sessions_max") && output.contains("SIGQUIT"), "{output}");
    evener.daemon().kill9()?;
    evener.start_again()?;
    let status = evener.status()?;
    let keys = status.restart_needed_for.unwrap_or_default();
    assert!(status.adopted && keys.contains("sessions_max"), "{keys}");
    assert!(evener.daemon().log().contains("sessions_max"));
    go_on(&mut kept)?;
    // The remedy in the log message.
    evener.daemon().signal(Signal::SIGQUIT)?;
    assert!(evener.daemon().wait(LONG)?.success());
    evener.start_again()?;
    assert_eq!(evener.status()?.restart_needed_for, None);
    Ok(())
}

fn an_adopted_data_plane_follows_xdp_mode(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let file = |mode: &str| {
        let keys = format!("xdp_mode = \"{mode}\"\n");
        file::engine(engine)
            + &keys
            + &file::service("web", farm.service(), "")
            + file::ALWAYS_UP
            + &file::servers(farm.servers())
    };
    let mut evener = Evener::start(farm.director(), &file("auto"))?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept = kept(&farm, 4)?;
    for (mode, word) in
        [("generic", "xdpgeneric"), ("native", "prog/xdp"), ("generic", "xdpgeneric"), ("tc", "")]
    {
        evener.reload(&file(mode))?;
        evener.daemon().kill9()?;
        evener.start_again()?;
        // Checks the mode that the kernel and the daemon report.
        let link = farm.director().run(&["ip", "-details", "link", "show", "dev", "eth0"])?;
        let is_xdp = link.contains("prog/xdp") || link.contains("xdpgeneric");
        assert!(if word.is_empty() { !is_xdp } else { link.contains(word) }, "{mode}: {link}");
        assert!(evener.command(&["status"])?.contains(&format!("{mode} on eth0")), "{mode}");
        if mode != "native" {
            // Native XDP would need a program on the other end of the veth.
            go_on(&mut kept)?;
        }
    }
    Ok(())
}
