//! Published workloads against a farm: files, programs, redirects and names.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::held_machine::HeldMachine;
use evener_lab::harness::wait::LONG;
use evener_lab::network::family::Family;
use evener_lab::servers::dnsmasq;
use evener_lab::servers::other_web_servers::{apache_is_there, apache_prefork};
use evener_lab::workloads::catalog::{Name, Parameters};
use evener_lab::workloads::load::{Clients, Schedule, ServerName};
use evener_lab::workloads::{self, Workload};

const PARAMETERS: Parameters =
    Parameters { seed: 1, rate: 50.0, pattern: 7, program_time: Duration::from_millis(1) };
const DURATION: Duration = Duration::from_secs(2);

fn workload(name: Name) -> Box<dyn Workload> {
    name.workload(&PARAMETERS).unwrap()
}

#[test]
fn each_workload_is_answered_without_failure() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().servers(2).clients(2).build()?;
    for name in [Name::Webstone, Name::Log, Name::Surge, Name::SurgeLccp, Name::Groups, Name::Mix] {
        let workload = workload(name);
        workloads::write_files(&farm.page(""), &*workload)?;
        let clients = Clients { count: 8, duration: DURATION, ..Clients::new(&*workload, farm.straight()) };
        let report = clients.run_on_all(farm.clients())?;
        ensure!(report.errors.total() == 0 && report.requests > 0, "{name:?}: {report:?}");
        ensure!(
            farm.clients().iter().all(|client| client.traffic().is_ok_and(|it| it.received_bytes > 1_000))
        );
        ensure!(report.wire_bytes > report.bytes && report.load_factor > 0.0, "{name:?}: {report:?}");
        ensure!(report.connections == report.requests && report.redirect_us == 0.0, "{name:?}: {report:?}");
    }
    let workload = workload(Name::Specweb96);
    workloads::write_files(&farm.page(""), &*workload)?;
    let (targets, rate, warmup) = (farm.straight(), PARAMETERS.rate, Duration::ZERO);
    let schedule = Schedule { workload: &*workload, targets, rate, duration: DURATION, warmup, seed: 1 };
    let report = schedule.run_on(farm.client(0))?;
    ensure!(report.errors.total() == 0 && report.requests > 0, "{report:?}");
    Ok(())
}

#[test]
fn programs_replies_are_read_whole() -> Result<()> {
    if !engines::has_root() || !apache_is_there() {
        return Ok(());
    }
    let mut farm = Farm::builder().servers(1).build()?;
    farm.stop_web(0)?;
    let machine = HeldMachine::new(0.5)?;
    let _apache = apache_prefork(farm.server(0), &farm, 16, &machine)?;
    let workload = workload(Name::Cgi);
    let before = machine.used()?;
    let clients = Clients { count: 4, duration: DURATION, ..Clients::new(&*workload, farm.straight()) };
    let report = clients.run_on(farm.client(0))?;
    ensure!(report.errors.total() == 0 && report.requests > 0, "{report:?}");
    // each reply took the program's time
    let least = PARAMETERS.program_time * u32::try_from(report.requests)?;
    ensure!(machine.used()? - before >= least, "{report:?}");
    Ok(())
}

#[test]
fn redirects_are_followed_and_timed() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().servers(2).build()?;
    let servers = farm.servers().iter().map(|host| {
        format!("[[service.server]]\nname = \"{}\"\nurl = \"http://{}\"\n", host.name(), host.address())
    });
    let address = std::net::SocketAddr::from((farm.director().address(), 80));
    let file = format!(
        "[[service]]\nname = \"web\"\naddress = \"{address}\"\nmethod = \"redirect\"\npolicy = \"round-robin\"\n{}",
        servers.collect::<String>()
    );
    let evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(2, LONG)?;
    let workload = workload(Name::Groups);
    workloads::write_files(&farm.page(""), &*workload)?;
    let clients =
        Clients { count: 4, duration: DURATION, follow: true, ..Clients::new(&*workload, vec![address]) };
    let report = clients.run_on(farm.client(0))?;
    ensure!(report.errors.total() == 0 && report.servers.len() == 2, "{report:?}");
    ensure!(report.connect_us > 0.0 && report.redirect_us > 0.0 && report.fetch_us > 0.0, "{report:?}");
    Ok(())
}

#[test]
fn name_is_resolved_for_each_connection() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().servers(2).build()?;
    let address = farm.server(1).address();
    let _dns = dnsmasq::Server::start_with(farm.server(0), &[format!("--address=/www.test/{address}")])?;
    let resolver = (farm.server(0).address(), dnsmasq::PORT).into();
    let name = |name: &str| Some(ServerName { name: name.to_owned(), resolver, family: Family::V4 });
    let workload = workload(Name::Mix);
    workloads::write_files(&farm.page(""), &*workload)?;
    let clients = Clients { count: 4, duration: DURATION, ..Clients::new(&*workload, farm.straight()) };
    let report = Clients { name: name("www.test"), ..clients.clone() }.run_on(farm.client(0))?;
    ensure!(report.errors.total() == 0 && report.requests > 0, "{report:?}");
    ensure!(report.servers.keys().eq(["web2"]), "{report:?}");
    let report = Clients { name: name("other.test"), ..clients }.run_on(farm.client(0))?;
    ensure!(report.requests == 0 && report.errors.connect > 0, "{report:?}");
    Ok(())
}

#[test]
fn log_is_replayed_and_other_files_are_refused() -> Result<()> {
    let lab = |words: &[&str]| Command::new(env!("CARGO_BIN_EXE_evener-lab")).args(words).output();
    let folder = std::env::temp_dir().join(format!("evener-log-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let line = "192.0.2.9 - - [31/Jan/2026:12:01:02 +0000] \"GET /a HTTP/1.1\" 200 512\n";
    let (log, other) = (folder.join("access.log"), folder.join("other"));
    fs::write(&log, line.repeat(6) + "what is this\n")?;
    fs::write(&other, [0xff; 4_096])?;
    let [log, other] = [log, other].map(|path| path.to_string_lossy().into_owned());
    let output = lab(&["log", &log, "--policy", "round-robin", "--by-minute"])?;
    assert_eq!(String::from_utf8(output.stdout)?, "minute,server,hits\n12:01,1,2\n12:01,2,2\n12:01,3,2\n");
    assert_eq!(String::from_utf8(output.stderr)?, "evener-lab: 1 lines are no requests\n");
    for (words, printed) in [
        (vec!["log", &other], "1 lines are not of common or combined format"),
        (vec!["log", "/nowhere"], "Opening /nowhere failed"),
        (vec!["log", &log, "--policy", "best"], "\"best\" is no policy for packets; there are "),
    ] {
        let output = lab(&words)?;
        let text = String::from_utf8(output.stderr)?;
        assert!(!output.status.success() && text.contains(printed), "{text}");
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}

#[test]
fn too_many_clients_are_refused_before_run() -> Result<()> {
    let program = env!("CARGO_BIN_EXE_evener-lab");
    let words = "load 192.0.2.1:80 --workload mix --connections 500 --seconds 1";
    let output =
        Command::new("sh").args(["-c", &format!("ulimit -n 100; exec {program} {words}")]).output()?;
    let text = String::from_utf8(output.stderr)?;
    assert!(text.contains("500 clients need 700 open files, and this process may have 100"), "{text}");
    let output = Command::new(program).args(words.replace("500", "70000").split(' ')).output()?;
    let text = String::from_utf8(output.stderr)?;
    assert!(text.contains("70000 clients need "), "{text}");
    Ok(())
}
