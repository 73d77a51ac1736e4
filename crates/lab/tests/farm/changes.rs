//! Run-time changes, step by step: the daemon is killed in each step, or other changes wait.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::host::Host;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::survival::run_folder;
use crate::{file, shares, split};

on_one_engine! {
    daemon_killed_in_any_step_starts_with_old_or_new_farm,
    changes_and_reloads_wait_for_each_other,
    failed_write_refuses_change_only_before_it_lasts,
}

/// Returns the folder with the run-time changes.
fn state_folder(host: &Host) -> Result<PathBuf> {
    let mut folders = fs::read_dir(host.file("state"))?.flatten();
    Ok(folders.next().context("there is no folder of changes")?.path())
}

/// Blocks a file: opening it waits, because it is a FIFO without a peer.
struct Held {
    path: PathBuf,
    aside: PathBuf,
}

impl Held {
    fn at(path: PathBuf) -> Result<Held> {
        let aside = path.with_extension("aside");
        if path.exists() {
            fs::rename(&path, &aside)?;
        }
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        Ok(Held { path, aside })
    }

    /// Waits until a thread of the daemon blocks on the file.
    fn wait_for(&self, evener: &mut Evener) -> Result<()> {
        let tasks = PathBuf::from(format!("/proc/{}/task", evener.daemon().pid()));
        wait::until(&format!("{} is opened", self.path.display()), || waits_in_open(&tasks))
    }

    /// Restores the original file.
    fn end(self) -> Result<()> {
        fs::remove_file(&self.path)?;
        if self.aside.exists() {
            fs::rename(&self.aside, &self.path)?;
        }
        Ok(())
    }
}

/// True if a thread of the process waits for the other end of a FIFO.
fn waits_in_open(tasks: &Path) -> Result<bool> {
    let places = fs::read_dir(tasks)?.flatten().map(|task| fs::read_to_string(task.path().join("wchan")));
    Ok(places.flatten().any(|place| place == "wait_for_partner"))
}

fn daemon_killed_in_any_step_starts_with_old_or_new_farm(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let director = farm.director();
    let mut evener = Evener::start(director, &file::listed(engine, &farm, ""))?;
    evener.command(&["weight", "web/web1", "3"])?;
    let (state, run) = (state_folder(director)?, run_folder(director)?);
    let remove = &["remove", "web/web2"][..];
    let steps = [
        ("reading", evener.file().to_owned(), &["reload"][..], 2),
        // The record on disk is complete by then, and the engine has not been changed.
        ("writing", state.join("audit.log"), remove, 1),
        ("applied", run.join("totals.new"), remove, 1),
    ];
    for (step, path, change, servers) in steps {
        evener.wait_for_servers(2, LONG)?;
        let held = Held::at(path)?;
        let mut client = evener.begin(step, change)?;
        held.wait_for(&mut evener)?;
        ensure!(client.status()?.is_none(), "{step} is answered already: {}", client.log());
        evener.daemon().kill9()?;
        held.end()?;
        let status = client.wait(LONG)?;
        ensure!(!status.success(), "{step} is answered: {}", client.log());
        // An incomplete record still has its temporary name.
        fs::write(state.join("changes.json.new"), "{\"format\":1,\"gen")?;
        evener.start_again()?;
        evener.wait_for_servers(servers, LONG)?;
        let known = evener.servers()?.into_iter().map(|server| (server.name, server.weight));
        let wanted = [("web1".to_owned(), 3), ("web2".to_owned(), 1)];
        assert_eq!(known.collect::<Vec<_>>(), wanted[..servers], "{step}");
        if servers == 1 {
            assert_eq!(shares(&farm, 4)?, split([4, 0]), "{step}");
            evener.command(&["undo"])?;
        }
    }
    Ok(())
}

fn changes_and_reloads_wait_for_each_other(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let listed = file::listed(engine, &farm, "");
    let mut evener = Evener::start(farm.director(), &listed)?;
    evener.wait_for_servers(2, LONG)?;
    evener.command(&["weight", "web/web1", "2"])?;
    let reloads = evener.status()?.reloads;
    let held = Held::at(state_folder(farm.director())?.join("audit.log"))?;
    let mut first = evener.begin("first", &["weight", "web/web1", "3"])?;
    held.wait_for(&mut evener)?;
    // The file overrides the weight of the pending change.
    evener.write(&listed.replacen("weight = 1", "weight = 5", 1))?;
    let mut reload = evener.begin("reload", &["reload"])?;
    let mut writers = [
        evener.begin("one", &["weight", "web/web2", "6"])?,
        evener.begin("other", &["weight", "web/web2", "7"])?,
    ];
    assert_eq!(evener.status()?.reloads, reloads, "a reload waits for the change before");
    assert_eq!(evener.server("web1")?.weight, 2, "a change is in force once it is on disk");
    // Takes all log lines that are written to the FIFO until the file is restored.
    let _log = fs::File::options().read(true).write(true).open(&held.path)?;
    for client in [&mut first, &mut reload].into_iter().chain(&mut writers) {
        let status = client.wait(LONG)?;
        ensure!(status.success(), "{}", client.log());
    }
    held.end()?;
    let weights = [evener.server("web1")?.weight, evener.server("web2")?.weight];
    ensure!(weights[0] == 5 && [6, 7].contains(&weights[1]), "{weights:?}");
    evener.daemon().kill9()?;
    evener.start_again()?;
    let after = [evener.server("web1")?.weight, evener.server("web2")?.weight];
    assert_eq!(after, weights);
    Ok(())
}

/// A folder in place of a file makes writing fail, as on a full disk.
fn failed_write_refuses_change_only_before_it_lasts(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    evener.command(&["weight", "web/web1", "3"])?;
    let (state, run) = (state_folder(farm.director())?, run_folder(farm.director())?);
    let remove = ["remove", "web/web2"];
    let draft = state.join("changes.json.new");
    fs::create_dir(&draft)?;
    let (code, why) = evener.failure(&remove)?;
    ensure!(code == 1 && why.replace('\n', " ").contains("nothing was changed"), "{why}");
    fs::remove_dir(&draft)?;
    for (path, warning) in [
        (state.join("audit.log"), "failed to record a change in the audit log"),
        (run.join("totals.new"), "lost at a restart"),
    ] {
        evener.wait_for_servers(2, LONG)?;
        let aside = path.with_extension("aside");
        if path.exists() {
            fs::rename(&path, &aside)?;
        }
        fs::create_dir(&path)?;
        evener.command(&remove)?;
        evener.daemon().wait_for(warning, LONG)?;
        fs::remove_dir(&path)?;
        evener.daemon().kill9()?;
        evener.start_again()?;
        assert_eq!(evener.wait_for_servers(1, LONG)?[0].name, "web1");
        assert_eq!(shares(&farm, 4)?, split([4, 0]));
        evener.command(&["undo"])?;
    }
    Ok(())
}
