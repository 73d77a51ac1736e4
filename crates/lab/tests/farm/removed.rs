//! Foreign changes of the daemon's state in the kernel are detected, repaired and reported.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use evener_lab::evener::{Installed, program};
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use libbpf_rs::Link;

use crate::stage::{Plan, Stage, Way};
use crate::{file, go_on, kept_of, split};

mod l2 {
    on_both_engines! { each_part_is_restored, a_new_mac_is_announced }

    pub(super) use super::a_new_mac_is_announced;

    pub(super) fn each_part_is_restored(engine: &str) -> anyhow::Result<()> {
        super::each_part_is_restored(engine, super::Way::L2)
    }
}

mod foreign {
    on_engine!(packet: what_cannot_be_restored_is_said, flushes_in_a_row_leave_the_guard);

    pub(super) use super::{flushes_in_a_row_leave_the_guard, what_cannot_be_restored_is_said};
}

mod nat {
    on_both_engines! { each_part_is_restored }

    pub(super) fn each_part_is_restored(engine: &str) -> anyhow::Result<()> {
        super::each_part_is_restored(engine, super::Way::Nat)
    }
}

fn stage(engine: &str, way: Way) -> Result<Stage> {
    let farm = way.builder().servers(2).build()?;
    Plan::new(engine, way, Family::V4).start(farm, "", file::ALWAYS_UP, &[1; 2])
}

/// Removes or changes a part of any kind.
fn remove(director: &Host, parts: &[Installed], part: &Installed) -> Result<()> {
    match part.kind.as_str() {
        "program" => {
            let pins = parts.iter().find(|part| part.kind == "pins").context("nothing is pinned")?;
            let link = director.run(&["ip", "-o", "link", "show", "dev", &part.location])?;
            let number = link.split(':').next().context("ip shows nothing")?;
            let pin = format!("{}/link-{number}", pins.location);
            Link::open(&pin).with_context(|| format!("{pin} can't be opened"))?.detach()?;
        }
        "pins" => fs::remove_dir_all(&part.location)?,
        "guard" => drop(director.run(&["nft", "flush", "ruleset"])?),
        "setting" => {
            let path = Path::new("/proc/sys").join(&part.location);
            director.run(&["sh", "-c", &format!("echo 0 > {}", path.display())])?;
        }
        other => bail!("{other}: no test removes it"),
    }
    Ok(())
}

fn each_part_is_restored(engine: &str, way: Way) -> Result<()> {
    let mut stage = stage(engine, way)?;
    let mut kept = kept_of(stage.client(), stage.service, 4)?;
    let expected: &[&str] = match (engine, way) {
        ("xdp", Way::Nat) => &["pins", "program", "setting"],
        ("xdp", _) => &["pins", "program"],
        _ => &["guard"],
    };
    let kinds = |parts: &[Installed]| -> Vec<String> {
        let mut kinds: Vec<_> = parts.iter().map(|part| part.kind.clone()).collect();
        kinds.dedup();
        kinds
    };
    wait::until("all is installed", || Ok(kinds(&stage.evener.status()?.installed) == expected))?;
    let parts = stage.evener.status()?.installed;
    for (part, number) in parts.iter().zip(1..) {
        remove(stage.farm.director(), &parts, part)?;
        wait::until("it is restored", || {
            Ok(stage.evener.status()?.events.get("installed_restored").copied().unwrap_or_default() >= number)
        })?;
        let status = stage.evener.status()?;
        ensure!(status.installed == parts, "after {part:?}: {:?}", status.installed);
        go_on(&mut kept)?;
        assert_eq!(stage.shares(4)?, split([2, 2]), "{part:?}");
    }
    // The next daemon finds the maps that were pinned again.
    stage.evener.daemon().kill9()?;
    stage.evener.start_again()?;
    assert!(stage.evener.status()?.adopted);
    go_on(&mut kept)?;
    Ok(())
}

fn a_new_mac_is_announced(engine: &str) -> Result<()> {
    const MAC: &str = "02:00:5e:00:53:77";
    let stage = stage(engine, Way::L2)?;
    assert_eq!(stage.shares(2)?, split([1, 1]));
    let (farm, vip) = (&stage.farm, stage.service.ip().to_string());
    let neighbour = || farm.router().run(&["ip", "neigh", "show", &vip]);
    let before = neighbour()?;
    ensure!(
        before.contains("lladdr") && !before.contains(MAC),
        "the router knows the service address: {before}"
    );
    let interface = &farm.director().interfaces()[0].name;
    farm.director().run(&["ip", "link", "set", "dev", interface, "address", MAC])?;
    wait::until("the router learns of the new address", || Ok(neighbour()?.contains(MAC)))?;
    assert_eq!(stage.shares(2)?, split([1, 1]));
    Ok(())
}

/// A table of the same name whose owner lets no other process change it.
fn what_cannot_be_restored_is_said(engine: &str) -> Result<()> {
    let stage = stage(engine, Way::L2)?;
    wait::until("all is installed", || Ok(!stage.evener.status()?.installed.is_empty()))?;
    let script = "delete table netdev evener; add table netdev evener { flags owner; }";
    let flag = stage.farm.director().write("held", "")?;
    let hold = format!("(echo '{script}'; while [ -e {} ]; do sleep 0.1; done) | nft -i", flag.display());
    let mut holder = stage.farm.director().spawn("holder", &["sh", "-c", &hold])?;
    let missing = || Ok(stage.evener.status()?.installed.iter().any(|part| part.missing.is_some()));
    wait::until("it is missing", missing)?;
    let file = stage.evener.file().display().to_string();
    let program = program()?.to_string_lossy().into_owned();
    let output = stage.farm.director().output(&[&program, "doctor", "--config", &file])?;
    let findings = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(!output.status.success() && findings.contains("table netdev evener"), "{findings}");
    assert_eq!(stage.evener.status()?.events.get("installed_missing"), Some(&1));
    fs::remove_file(flag)?;
    wait::until("who held the table is gone", || Ok(holder.status()?.is_some()))?;
    wait::until("it is restored", || Ok(!missing()?))?;
    Ok(())
}

/// Flushes each new table as soon as the kernel announces it, before the daemon can act.
fn flushes_in_a_row_leave_the_guard(engine: &str) -> Result<()> {
    const FLUSHES: usize = 10;
    let stage = stage(engine, Way::L2)?;
    let director = stage.farm.director();
    wait::until("all is installed", || Ok(!stage.evener.status()?.installed.is_empty()))?;
    let flag = director.write("flushing", "")?;
    let flush = format!(
        "timeout 120 nft monitor new tables | (flushes=0; while [ $flushes -lt {FLUSHES} ] && read -r line; do \
             echo flush ruleset; flushes=$((flushes + 1)); done; rm {}) | nft -i",
        flag.display()
    );
    let _flusher = director.spawn("flusher", &["sh", "-c", &flush])?;
    wait::until("the guard was flushed each time", || {
        director.run(&["nft", "flush", "ruleset"])?;
        Ok(!flag.exists())
    })?;
    wait::until("requests are served", || {
        let has_guard = director.run(&["nft", "list", "tables"])?.contains("netdev evener");
        Ok(has_guard && stage.shares(4).is_ok_and(|shares| shares == split([2, 2])))
    })?;
    let status = stage.evener.status()?;
    ensure!(status.installed.iter().all(|part| part.missing.is_none()), "{:?}", status.installed);
    Ok(())
}
