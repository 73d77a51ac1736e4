//! The program within the limits of its packaged units: capabilities, address families, system
//! calls, files and limits. The units must permit all methods and roles.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[macro_use]
extern crate evener_lab;

use anyhow::{Result, ensure};
use evener_lab::evener::{Agent, Evener, Plan, Team, web_service, web_service_by};
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::unit_files;
use nix::sys::signal::Signal;

on_both_engines! {
    servers_are_found_and_served_by_link,
    addresses_are_translated,
    tunnels_are_opened,
    every_host_serves,
}

/// Returns the names of the servers that respond to a client.
fn answers(client: &Host, url: &str, count: usize) -> Result<Vec<String>> {
    let mut names =
        (0..count).map(|_| Ok(client.curl(&[url])?.trim().to_owned())).collect::<Result<Vec<_>>>()?;
    names.sort();
    names.dedup();
    Ok(names)
}

fn both(farm: &Farm) -> Result<()> {
    let names = answers(farm.client(0), &format!("http://{}/who", farm.service()), 8)?;
    ensure!(names == ["web1", "web2"], "{names:?}");
    Ok(())
}

fn servers_are_found_and_served_by_link(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).answering().build()?;
    let mut evener = Evener::start_in_unit(farm.director(), &web_service(&farm, 0, engine))?;
    evener.wait_for_servers(2, LONG)?;
    both(&farm)?;
    evener.reload(&web_service(&farm, 0, engine))?;
    assert_eq!(evener.stop()?, 0);
    Ok(())
}

fn addresses_are_translated(engine: &str) -> Result<()> {
    for keys in ["method = \"nat\"\n", "method = \"nat\"\nsource_nat = true\n"] {
        let farm = Farm::builder().routed().servers(2).build()?;
        let evener = Evener::start_in_unit(farm.director(), &web_service_by(&farm, 0, engine, keys))?;
        evener.wait_for_servers(2, LONG)?;
        both(&farm)?;
    }
    Ok(())
}

fn tunnels_are_opened(engine: &str) -> Result<()> {
    let farm = Farm::builder().remote().bare().servers(2).build()?;
    let config = web_service_by(&farm, 0, engine, "method = \"tunnel\"\nencapsulation = \"gue\"\n");
    let mut agents =
        farm.servers().iter().map(|host| Agent::start_in_unit(host, &config)).collect::<Result<Vec<_>>>()?;
    let evener = Evener::start_in_unit(farm.director(), &config)?;
    evener.wait_for_servers(2, LONG)?;
    both(&farm)?;
    for (agent, host) in agents.iter_mut().zip(farm.servers()) {
        ensure!(!agent.process().log().contains("can't be tracked"), "it is told what there is to send");
        let has_address =
            || anyhow::Ok(host.run(&["ip", "-oneline", "address"])?.contains(&farm.vip(0).to_string()));
        // After a stop or restart, the host keeps its configuration as a server.
        assert_eq!(agent.stop()?, 0);
        ensure!(has_address()?);
        agent.start_again()?;
        agent.process().signal(Signal::SIGQUIT)?;
        agent.process().wait(LONG)?;
        ensure!(!has_address()?);
    }
    Ok(())
}

fn every_host_serves(engine: &str) -> Result<()> {
    for keys in ["method = \"l2\"\npolicy = \"hash\"\n", "method = \"handoff\"\npolicy = \"round-robin\"\n"] {
        let farm = Farm::builder().every_host(2).build()?;
        let plan = Plan { in_unit: true, ..Plan::new(engine, keys, 2) };
        let team = Team::start(farm, plan)?;
        for service in team.farm.own_services(Family::V4) {
            let names = answers(team.farm.client(0), &format!("http://{service}/who"), 16)?;
            ensure!(names == ["web1", "web2"], "{keys}: {names:?}");
        }
    }
    Ok(())
}

const UNITS: [&str; 3] = ["evener.service", "evener-agent.service", "evener-announce.service"];

/// systemd's exposure level from 0 to 10, which rates the harm that a service could do to its host.
#[test]
fn units_are_exposed_at_most_to_3() -> Result<()> {
    for name in UNITS {
        let unit = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
        let words = ["security", "--offline=true", "--threshold=30"];
        let output = std::process::Command::new("systemd-analyze").args(words).arg(&unit).output()?;
        ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

/// Checks that the testbed enforces the units' limits.
#[test]
fn the_units_are_carried_out() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let host = farm.server(0);
    let allowed = |name: &str, script: &str| -> Result<bool> {
        let words = unit_files::words_for(name, &["sh".to_owned(), "-c".to_owned(), script.to_owned()])?;
        Ok(host.output(&words)?.status.success())
    };
    let is = |name, script| allowed(name, script).unwrap();
    for name in UNITS {
        ensure!(is(name, "true"), "{name}");
        for denied in [
            "touch /etc/evener-was-here",
            "touch /usr/evener-was-here",
            "mount -t tmpfs none /mnt",
            "unshare --net true",
            "nsenter --net=/proc/1/ns/net true",
            "chroot / true",
            "hostname elsewhere",
            "head -c1 /dev/kmsg",
            "cat /root/* /home/*/*",
            "test -e /tmp/evener-lab-seen",
            "chrt -f 1 true",
            "chown nobody /run/evener",
            "touch /tmp/x && chmod u+s /tmp/x",
            "mknod /tmp/loop b 7 0",
            "test -e /dev/loop-control || test -e /dev/vda || test -e /dev/mem",
            "mkdir $(stat --file-system --format=%T /sys/fs/cgroup/unified >/dev/null 2>&1 && echo /sys/fs/cgroup/unified || echo /sys/fs/cgroup)/evener-was-here",
        ] {
            ensure!(!is(name, denied), "{name}: {denied}");
        }
        for granted in ["touch /run/evener/x && rm /run/evener/x", "touch /tmp/x", "ls /sys/fs/bpf"] {
            ensure!(is(name, granted), "{name}: {granted}");
        }
    }
    let limit = |name| -> Result<String> {
        let words = unit_files::words_for(name, &["sh".to_owned(), "-c".to_owned(), "ulimit -n".to_owned()])?;
        host.run(&words)
    };
    assert_eq!((limit("evener.service")?.trim(), limit("evener-agent.service")?.trim()), ("16384", "4096"));
    wait::until("nothing is left behind", || Ok(!std::path::Path::new("/etc/evener-was-here").exists()))
}
