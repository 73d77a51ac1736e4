//! Properties that hold for every method and both IP versions.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::clients::reused_ports;
use evener_lab::clients::transfer;
use evener_lab::evener::left_on;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::workloads::load::{Load, Running};

use crate::stage::{Plan, Stage, Way};
use crate::{file, go_on, kept_of, split, unbroken};

by_every_way! {
    pages_come_from_every_server,
    large_files_arrive_whole,
    a_drained_server_keeps_what_it_has,
    killed_under_load_nothing_breaks,
    a_reload_breaks_nothing,
    stopped_it_leaves_nothing,
    ports_are_used_again,
}

/// Servers are selected before the method is applied, so one method is enough. NAT is one of the
/// two methods that also see the end of a connection.
mod choice {
    use super::{Result, Way};

    on_both_engines! { weights_and_policies_hold }

    fn weights_and_policies_hold(engine: &str) -> Result<()> {
        super::weights_and_policies_hold(engine, Way::Nat)
    }
}

/// Probes are the daemon's own packets and take a different path with each method.
mod failure {
    use super::{Result, Way, a_server_that_fails_is_left_out_until_it_works as is_left_out};

    on_one_engine! { l2, nat, source_nat, ipip, gue }

    fn l2(engine: &str) -> Result<()> {
        is_left_out(engine, Way::L2)
    }

    fn nat(engine: &str) -> Result<()> {
        is_left_out(engine, Way::Nat)
    }

    fn source_nat(engine: &str) -> Result<()> {
        is_left_out(engine, Way::SourceNat)
    }

    fn ipip(engine: &str) -> Result<()> {
        is_left_out(engine, Way::Ipip)
    }

    fn gue(engine: &str) -> Result<()> {
        is_left_out(engine, Way::Gue)
    }
}

/// Returns fast probes of the servers.
fn probed(way: Way) -> String {
    let port = if way.is_nat() { "port = 8080\n" } else { "" };
    format!(
        "[service.health]\nkind = \"http\"\npath = \"/healthz\"\n{port}interval = \"300ms\"\ntimeout = \"250ms\"\nrise = 1\nfall = 3\n"
    )
}

fn pages_come_from_every_server(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let builder = way.builder().servers(4).clients(2).server_lans(2);
        let stage = Plan::new(engine, way, family).start(builder.build()?, "", file::ALWAYS_UP, &[1; 4])?;
        let director = stage.farm.director();
        let recordings: Vec<_> = (0..director.interfaces().len())
            .map(|interface| director.record(interface))
            .collect::<Result<_>>()?;
        assert_eq!(stage.shares(12)?, split([3, 3, 3, 3]), "{family}");
        for path in ["/who", "/0k", "/2k", "/108k"] {
            let load = Load {
                path: path.to_owned(),
                connections: 6,
                requests: Some(20),
                timeout: LONG,
                ..Load::to(stage.service)
            };
            let kept = Load { keep_alive: true, ..load.clone() }.start_on(stage.farm.client(1));
            let report = unbroken(load.run_on(stage.client())?)?;
            assert_eq!(report.requests, 120, "{family} {path}");
            assert_eq!(unbroken(kept.join()?)?.requests, 120, "{family} {path}");
        }
        let mut sent = 0;
        for recording in recordings {
            sent += recording.verified().with_context(|| format!("{family}"))?.len();
        }
        assert!(sent > 1000, "{family}: {sent}");
    }
    Ok(())
}

fn large_files_arrive_whole(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        for offload in [false, true] {
            let builder = way.builder().servers(2);
            let builder = if offload { builder.offload_all() } else { builder };
            let stage =
                Plan::new(engine, way, family).start(builder.build()?, "", file::ALWAYS_UP, &[1; 2])?;
            for len in [1, 1460, 70_000, 8_000_000] {
                transfer::there_and_back(&stage.farm, stage.client(), stage.service, len)
                    .with_context(|| format!("{family}, offload {offload}, {len} bytes"))?;
            }
            let big = Load {
                path: "/big".to_owned(),
                connections: 4,
                requests: Some(1),
                ..Load::to(stage.service)
            };
            unbroken(big.run_on(stage.client())?).with_context(|| format!("{family}, offload {offload}"))?;
        }
    }
    Ok(())
}

fn weights_and_policies_hold(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let plan = Plan::new(engine, way, family);
        let farm = way.builder().servers(3).build()?;
        let stage = plan.start(farm, "", file::ALWAYS_UP, &[1, 2, 3])?;
        assert_eq!(stage.shares(30)?, split([5, 10, 15]), "{family}");
        let reload = |keys: &str, weights: &[u16]| {
            stage.evener.reload(&plan.file(&stage.farm, keys, file::ALWAYS_UP, weights))
        };
        reload("", &[1, 1, 0])?;
        assert_eq!(stage.shares(10)?, split([5, 5]), "{family}");
        reload("policy = \"least-connections\"\n", &[1, 1, 1])?;
        let mut held = Vec::new();
        for _ in 0..6 {
            let mut visit = HttpConnection::open(stage.client(), stage.service)?;
            held.push((visit.who()?, visit));
        }
        let of = |name: &str| held.iter().filter(|(server, _)| server == name).count();
        assert_eq!([of("web1"), of("web2"), of("web3")], [2, 2, 2], "{family}");
        drop(held);
        reload("policy = \"hash\"\n", &[1, 1, 1])?;
        assert_eq!(stage.shares(60)?.len(), 3, "{family}");
    }
    Ok(())
}

fn a_server_that_fails_is_left_out_until_it_works(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let farm = way.builder().servers(2).build()?;
        let mut stage = Plan::new(engine, way, family).start(farm, "", &probed(way), &[1; 2])?;
        assert_eq!(stage.shares(6)?, split([3, 3]), "{family}");
        stage.farm.stop_web(1)?;
        stage.evener.wait_for_servers(1, LONG)?;
        assert_eq!(stage.shares(6)?, split([6, 0]), "{family}");
        stage.farm.start_web(1)?;
        stage.evener.wait_for_servers(2, LONG)?;
        assert_eq!(stage.shares(6)?, split([3, 3]), "{family}");
        stage.farm.set_healthy(0, false)?;
        stage.evener.wait_for_servers(1, LONG)?;
        assert_eq!(stage.evener.server("web1")?.reason.as_deref(), Some("status 503"), "{family}");
        assert_eq!(stage.shares(6)?, split([0, 6]), "{family}");
    }
    Ok(())
}

fn a_drained_server_keeps_what_it_has(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let stage = Plan::new(engine, way, family).stage(2)?;
        let mut kept = kept_of(stage.client(), stage.service, 4)?;
        stage.evener.command(&["drain", "web/web1"])?;
        assert_eq!(stage.shares(6)?, split([0, 6]), "{family}");
        go_on(&mut kept)?;
        stage.evener.command(&["undrain", "web/web1"])?;
        assert_eq!(stage.shares(6)?, split([3, 3]), "{family}");
        go_on(&mut kept)?;
    }
    Ok(())
}

fn killed_under_load_nothing_breaks(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let mut stage = Plan::new(engine, way, family).stage(2)?;
        let visit = Load {
            connections: 3,
            pause: Duration::from_millis(5),
            timeout: LONG,
            ..Load::to(stage.service)
        };
        let kept = Load { keep_alive: true, path: "/2k".to_owned(), ..visit.clone() };
        let loads = [visit, kept].map(|load| load.start_on(stage.client()));
        let requests = || loads.iter().map(Running::requests).sum::<u64>();
        wait::until("all are at it", || Ok(loads.iter().all(|load| load.requests() > 50)))?;
        stage.evener.daemon().kill9()?;
        let before = requests();
        if engine == "xdp" {
            wait::until("traffic flows without a daemon", || Ok(requests() > before + 100))?;
        } else {
            thread::sleep(Duration::from_millis(300));
        }
        // Decapsulation by the agents continues, too.
        if let Some(agent) = stage.agents.first_mut() {
            agent.process().kill9()?;
        }
        stage.evener.start_again()?;
        assert!(stage.evener.status()?.adopted, "{family}");
        let before = requests();
        wait::until("all go on", || Ok(requests() > before + 100))?;
        if let Some(agent) = stage.agents.first_mut() {
            agent.start_again()?;
        }
        let before = requests();
        wait::until("all go on with the agent", || Ok(requests() > before + 100))?;
        for load in loads {
            unbroken(load.stop()?).with_context(|| format!("{family}"))?;
        }
    }
    Ok(())
}

fn a_reload_breaks_nothing(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let plan = Plan::new(engine, way, family);
        let farm = way.builder().servers(3).build()?;
        let stage = plan.start(farm, "", file::ALWAYS_UP, &[1, 1, 0])?;
        let mut kept = kept_of(stage.client(), stage.service, 4)?;
        let load = Load { connections: 2, timeout: LONG, ..Load::to(stage.service) }.start_on(stage.client());
        stage.evener.reload(&plan.file(&stage.farm, "", file::ALWAYS_UP, &[1, 1, 1]))?;
        stage.evener.wait_for_servers(3, LONG)?;
        go_on(&mut kept)?;
        let refused = stage.evener.reload(&plan.file(&stage.farm, "polcy = 1\n", file::ALWAYS_UP, &[1]));
        assert!(refused.is_err(), "{family}");
        go_on(&mut kept)?;
        ensure!(unbroken(load.stop()?)?.servers.contains_key("web1"), "{family}");
        assert_eq!(stage.shares(9)?, split([3, 3, 3]), "{family}");
    }
    Ok(())
}

/// Returns the forwarding sysctls of the director.
fn forwarding(stage: &Stage) -> Result<Vec<String>> {
    let list = "cd /proc/sys/net; grep -r . ipv4/conf/*/forwarding ipv6/conf/*/forwarding";
    let settings = stage.farm.director().run(&["sh", "-c", list])?;
    Ok(settings.lines().map(str::to_owned).collect())
}

fn stopped_it_leaves_nothing(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let mut stage = Plan::new(engine, way, family).stage(2)?;
        assert_eq!(stage.shares(4)?, split([2, 2]), "{family}");
        assert!(!left_on(stage.farm.director())?.is_empty());
        assert_eq!(stage.evener.stop()?, 0);
        assert_eq!(left_on(stage.farm.director())?, [""; 0], "{family}");
        let after = forwarding(&stage)?;
        assert!(after.iter().all(|setting| setting.ends_with(":0")), "{family}: {after:?}");
        for agent in &mut stage.agents {
            assert_eq!(agent.stop()?, 0);
        }
        if way.is_tunnel() {
            for server in stage.farm.servers() {
                assert_eq!(left_on(server)?, [""; 0], "{family}");
                let addresses = server.run(&["ip", "address", "show", "dev", "lo"])?;
                let vip = stage.service.ip().to_string();
                assert!(!addresses.contains(&vip), "{family}: {addresses}");
            }
        }
    }
    Ok(())
}

fn ports_are_used_again(engine: &str, way: Way) -> Result<()> {
    let farm = way.builder().servers(2).clients(2).build()?;
    let stage = Plan::new(engine, way, Family::V4).start(farm, "", file::ALWAYS_UP, &[1; 2])?;
    reused_ports::ports_are_used_again(stage.farm.clients(), &[stage.service])
}
