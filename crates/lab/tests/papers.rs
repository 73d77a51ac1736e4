//! The runner of the papers' experiments, held servers, and limited networks.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evener_lab::farm::Farm;
use evener_lab::harness::cleanup;
use evener_lab::harness::engines;
use evener_lab::harness::held_machine::HeldMachine;
use evener_lab::harness::wait;
use evener_lab::network::host::Host;
use evener_lab::network::medium::Medium;
use evener_lab::papers::points;
use evener_lab::servers::other_web_servers::{apache_is_there, apache_prefork};
use evener_lab::workloads::load::Load;

/// Length of a window in which a rate is measured.
const WINDOW: Duration = Duration::from_secs(1);

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_evener-lab"))
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("evener-papers-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn refused(words: &[&str]) -> Result<String> {
    let output = lab().args(words).output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "{words:?} was not refused");
    Ok(text)
}

#[test]
fn unknown_experiment_figure_or_folder_is_refused() -> Result<()> {
    let folder = folder("refused");
    let out = folder.to_string_lossy().into_owned();
    assert!(refused(&["paper", "dprr"])?.contains("a similar subcommand exists: 'dpr'"));
    assert!(
        refused(&["paper", "dpr", "--figure", "9", "--out", &out])?
            .contains("dpr has the figures 2, 3, 4, 5")
    );
    assert!(
        refused(&["paper", "dpr", "--hours=-1", "--out", &out])?.contains("--hours has no number of hours")
    );
    assert!(refused(&["paper", "report", &out])?.contains("points.jsonl is missing"));
    assert!(!folder.exists());
    let limited = format!("ulimit -n 100; exec {} paper lccp --out {out}", env!("CARGO_BIN_EXE_evener-lab"));
    let output = Command::new("sh").args(["-c", &limited]).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("840 clients need 1040 open files, and this process may have 100"), "{text}");
    Ok(())
}

/// Starts the short form of a figure with two systems of two points.
fn start(out: &Path) -> Result<Child> {
    let words = ["paper", "lccp", "--quick", "--figure", "5", "--out"];
    Ok(lab().args(words).arg(out).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

fn output(run: Child) -> Result<(String, String)> {
    let Output { status, stdout, stderr } = run.wait_with_output()?;
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(status.success(), "{stderr}");
    Ok((stdout, stderr))
}

#[test]
fn interrupted_run_leaves_nothing_and_next_one_goes_on() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let folder = folder("resumed");
    let first = start(&folder)?;
    let points = || points::read(&folder).map_or(0, |points| points.len());
    wait::until("a point is measured", || Ok(points() > 0))?;
    // a second run into the same folder is refused, and harms nothing
    let second = output(start(&folder)?).map_err(|error| error.to_string());
    ensure!(second.is_err_and(|error| error.contains("Another run is measuring into")));
    let pid = first.id();
    let interrupted = Command::new("kill").args(["-INT", &pid.to_string()]).status()?;
    ensure!(interrupted.success());
    let ended = first.wait_with_output()?;
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(ended.status.code() == Some(130), "{text}");
    ensure!(text.contains("evener-lab: stopped; measured points are in"), "{text}");
    wait::until("nothing is left", || Ok(cleanup::namespaces_of(pid).is_empty()))?;
    let measured = points();
    // a run that is over its time begins no point
    let out = folder.to_string_lossy().into_owned();
    let words = ["paper", "lccp", "--quick", "--figure", "5", "--hours", "0", "--out", &out];
    let (printed, _) = output(lab().args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)?;
    ensure!(printed.starts_with("0 measurements"), "{printed}");
    let (printed, _) = output(start(&folder)?)?;
    ensure!(printed.contains(" 0 are left"), "{printed}");
    ensure!(points() >= 4 && points::read(&folder)?.len() > measured);

    let report = lab().args(["paper", "report", &out]).output()?;
    let printed = String::from_utf8_lossy(&report.stdout).into_owned();
    ensure!(printed.starts_with("lccp figure 5: "), "{printed}");
    for file in ["lccp-figure-5.csv", "lccp-figure-5.svg", "report.md", "index.html"] {
        ensure!(fs::metadata(folder.join(file))?.len() > 100, "{file} is empty");
    }
    let page = fs::read_to_string(folder.join("index.html"))?;
    ensure!(page.contains("<svg") && page.contains("handed off") && !page.contains("src="));
    fs::remove_dir_all(folder)?;
    Ok(())
}

#[test]
fn killed_run_leaves_no_control_group() -> Result<()> {
    if !engines::has_root() || !apache_is_there() {
        return Ok(());
    }
    let folder = folder("killed");
    let words = ["paper", "workloads", "--quick", "--out"];
    let mut run = lab().args(words).arg(&folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let pid = run.id();
    wait::until("a server is held", || Ok(!cleanup::control_groups_of(pid).is_empty()))?;
    run.kill()?;
    run.wait()?;
    wait::until("nothing is left", || {
        Ok(cleanup::control_groups_of(pid).is_empty() && cleanup::namespaces_of(pid).is_empty())
    })?;
    fs::remove_dir_all(folder)?;
    Ok(())
}

/// Waits until the megabits per second that a client receives are in these bounds.
fn rate_is_within(client: &Host, least: f64, most: f64) -> Result<()> {
    let rate = || -> Result<f64> {
        let (before, started) = (client.traffic()?, Instant::now());
        thread::sleep(WINDOW);
        let received = client.traffic()?.since(&before).received_bytes;
        Ok(received as f64 * 8.0 / 1e6 / started.elapsed().as_secs_f64())
    };
    let found = wait::for_value(wait::LONG, rate, |rate| (least..=most).contains(rate))?;
    found.map(drop).map_err(|rate| anyhow::anyhow!("{rate:.2} Mbit/s aren't in {least} to {most}"))
}

/// Returns a load of long downloads that can be stopped at once.
fn downloads(farm: &Farm) -> Load {
    let (path, pace, targets) = ("/big".to_owned(), Some(100_000_000), farm.straight());
    Load { path, connections: 6, pace, targets, ..Load::to(farm.service()) }
}

#[test]
fn shared_medium_holds_sum_and_switched_one_each_cable() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    // clients' acknowledgments take their part of the shared rate: a fiftieth
    for (medium, least, most) in [(Medium::Shared(10), 9.2, 10.3), (Medium::Switched(10), 9.6, 10.3)] {
        let farm = Farm::builder().servers(3).build()?;
        farm.limit_network(medium)?;
        let running = downloads(&farm).start_on(farm.client(0));
        rate_is_within(farm.client(0), least, most).with_context(|| format!("{medium:?}"))?;
        running.stop()?;
    }
    // on a switch, each of two clients has its own cable
    let farm = Farm::builder().servers(3).clients(2).build()?;
    farm.limit_network(Medium::Switched(10))?;
    let running = [0, 1].map(|number| downloads(&farm).start_on(farm.client(number)));
    [0, 1].into_iter().try_for_each(|number| rate_is_within(farm.client(number), 9.6, 10.3))?;
    running.into_iter().try_for_each(|running| running.stop().map(drop))
}

#[test]
fn held_server_uses_its_part_of_a_processor() -> Result<()> {
    if !engines::has_root() || !apache_is_there() {
        return Ok(());
    }
    let mut farm = Farm::builder().servers(1).build()?;
    farm.stop_web(0)?;
    let machine = HeldMachine::new(0.1)?;
    let mut apache = apache_prefork(farm.server(0), &farm, 64, &machine)?;
    let load = Load {
        path: "/0k".to_owned(),
        connections: 32,
        targets: farm.straight(),
        ..Load::to(farm.service())
    };
    let running = load.start_on(farm.client(0));
    let part = || -> Result<f64> {
        let (before, started) = (machine.used()?, Instant::now());
        thread::sleep(WINDOW);
        let part = (machine.used()? - before).as_secs_f64() / started.elapsed().as_secs_f64();
        ensure!(part <= 0.12, "the server used {part:.3} of a processor");
        Ok(part)
    };
    let found = wait::for_value(wait::LONG, part, |part| *part >= 0.08)?;
    ensure!(found.is_ok(), "the server used {found:?} of a processor, though it had much to do");
    running.stop()?;
    ensure!(apache.status()?.is_none(), "{}", apache.log());
    drop(machine);
    wait::until("the held programs have ended", || Ok(apache.status()?.is_some()))
}
