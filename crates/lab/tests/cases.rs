//! The cases of `cases/`, on the core, the C program and the packet engine.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::thread;

use anyhow::Result;
use evener_dataplane::xdp::Hook;
use evener_lab::cases::{self, Cables, CaseFile, Spec, Tally, run};
use evener_lab::harness::engines;

fn files() -> Result<Vec<CaseFile>> {
    let files = cases::load(&cases::directory())?;
    assert!(!files.is_empty(), "there are no cases in {}", cases::directory().display());
    Ok(files)
}

fn check(tallies: &[Tally]) {
    let sum = |count: fn(&Tally) -> usize| tallies.iter().map(count).sum::<usize>();
    let (cases, packets, left_out) = (sum(|t| t.cases), sum(|t| t.packets), sum(|t| t.left_out));
    println!("{cases} cases, {packets} packets; {left_out} packets left out");
    let failures: Vec<&str> = tallies.iter().flat_map(|tally| &tally.failures).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} of {cases} cases fail\n\n{}\n", failures.len(), failures.join("\n\n"));
}

#[test]
fn core_passes_all_cases() -> Result<()> {
    let tallies: Vec<Tally> = files()?.iter().map(|file| run(file, &mut Spec::default())).collect();
    check(&tallies);
    Ok(())
}

/// Packets of a traced client take the slow path, with the same decisions.
fn traced() -> Result<Vec<CaseFile>> {
    Ok(files()?.iter().map(CaseFile::traced).collect())
}

#[test]
fn the_core_does_the_same_the_long_way() -> Result<()> {
    let tallies: Vec<Tally> = traced()?.iter().map(|file| run(file, &mut Spec::default())).collect();
    check(&tallies);
    Ok(())
}

#[test]
fn the_c_does_the_same_the_long_way() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let tallies: Vec<Tally> =
        traced()?.iter().map(|file| cases::play_on_kernel(file, Hook::Xdp)).collect::<Result<_>>()?;
    check(&tallies);
    Ok(())
}

fn the_kernel_does_what_the_cases_say(hook: Hook) -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let tallies: Vec<Tally> =
        files()?.iter().map(|file| cases::play_on_kernel(file, hook)).collect::<Result<_>>()?;
    check(&tallies);
    Ok(())
}

#[test]
fn xdp_program_passes_all_cases() -> Result<()> {
    the_kernel_does_what_the_cases_say(Hook::Xdp)
}

#[test]
fn tc_program_passes_all_cases() -> Result<()> {
    the_kernel_does_what_the_cases_say(Hook::Tc)
}

#[test]
fn packet_engine_passes_all_cases() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    // All files run at the same time, each in its own namespace, because most of the time is spent
    // waiting for the kernel.
    let files = files()?;
    let tallies: Vec<Tally> = thread::scope(|scope| {
        let playing: Vec<_> =
            files.iter().map(|file| scope.spawn(move || Cables::lay(file)?.run(file))).collect();
        playing.into_iter().map(|file| file.join().unwrap()).collect::<Result<_>>()
    })?;
    check(&tallies);
    Ok(())
}
