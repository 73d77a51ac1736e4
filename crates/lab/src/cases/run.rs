//! Plays cases on a subject and says where it differs.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::{Context, Result};
use evener_core::sessions::State;
use evener_core::tables::Tables;

use super::{Action, Case, CaseFile, Packet, Seen, Step};

/// What cases are played on.
pub trait Subject {
    /// For people.
    fn name(&self) -> &'static str;

    /// Lengths of frames that can be given to it, in bytes.
    fn frame_lens(&self) -> RangeInclusive<usize>;

    /// Begins a case: no session is known, and the tables are the case's.
    ///
    /// # Errors
    /// When the subject can't be started.
    fn begin(&mut self, case: &Case) -> Result<()>;

    /// Changes the tables; sessions stay.
    ///
    /// # Errors
    /// When the subject refuses.
    fn change(&mut self, tables: &Arc<Tables>) -> Result<()>;

    /// Gives it a frame. What becomes of that may take a while to see: whoever has to wait, waits
    /// for what is expected.
    ///
    /// # Errors
    /// When the subject fails; not when it does something else with the frame.
    fn meet(&mut self, packet: &Packet) -> Result<Seen>;

    /// Lets time pass, in milliseconds, and some more if its clock is coarse.
    fn wait(&mut self, ms: u64);

    /// States of the live sessions, in any order.
    fn sessions(&self) -> Vec<State>;
}

/// How a file went.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Cases played.
    pub cases: usize,
    /// Packets given.
    pub packets: usize,
    /// Packets left out, because the subject can't be given frames of their length.
    pub left_out: usize,
    /// What differed, for people.
    pub failures: Vec<String>,
}

/// Plays every case of a file; a case ends where it first differs.
pub fn run(file: &CaseFile, subject: &mut dyn Subject) -> Tally {
    let mut tally = Tally::default();
    for case in &file.cases {
        tally.cases += 1;
        if let Err(difference) = play(case, subject, &mut tally) {
            let (path, name) = (file.path.display(), subject.name());
            let (line, why) = difference;
            tally.failures.push(format!("{path}:{line}: {name}, case {}:\n{why}", case.name));
        }
    }
    tally
}

fn play(case: &Case, subject: &mut dyn Subject, tally: &mut Tally) -> Result<(), (usize, String)> {
    let failed = |line: usize| move |error: anyhow::Error| (line, format!("    {error:#}"));
    subject.begin(case).context("The case can't begin").map_err(failed(case.line))?;
    for step in &case.steps {
        match &step.action {
            Action::Packet(packet) if !subject.frame_lens().contains(&packet.frame.len()) => {
                tally.left_out += 1
            }
            Action::Packet(packet) => {
                tally.packets += 1;
                let seen = subject.meet(packet).map_err(failed(step.line))?;
                if !seen.agrees(&packet.expected) {
                    return Err((step.line, difference(step, packet, &seen)));
                }
            }
            Action::Sessions { count, states } => {
                let mut found = subject.sessions();
                found.sort_by_key(|state| *state as u8);
                if found.len() != *count || !(states.is_empty() || found == *states) {
                    let names: Vec<_> = found.iter().map(|state| state.name()).collect();
                    let (text, count) = (&step.text, found.len());
                    return Err((
                        step.line,
                        format!("    expected {text}\n    got      sessions {count} {}", names.join(" ")),
                    ));
                }
            }
            Action::Change(tables) => subject.change(tables).map_err(failed(step.line))?,
            Action::Wait { ms } => subject.wait(*ms),
        }
    }
    Ok(())
}

fn difference(step: &Step, packet: &Packet, seen: &Seen) -> String {
    let expected = &packet.expected;
    let mut text = format!("    {}\n    packet   {}\n", step.text, hex(&packet.frame));
    // Writing to a String does not fail.
    let _ = writeln!(text, "    expected {}", describe(expected));
    let _ = write!(text, "    got      {}", describe(seen));
    if let Some(at) = (0..)
        .zip(seen.frame.iter().zip(&expected.frame))
        .find(|(_, (a, b))| a != b)
        .map(|(at, _): (usize, _)| at)
    {
        let _ = write!(text, "\n    the first byte that differs is number {at}");
    }
    text
}

fn describe(seen: &Seen) -> String {
    let reasons: Vec<_> = seen
        .reasons
        .iter()
        .map(
            |(reason, count)| {
                if *count == 1 { reason.name().to_owned() } else { format!("{} x{count}", reason.name()) }
            },
        )
        .collect();
    format!("{:?} ({})\n             {}", seen.exit, reasons.join(", "), hex(&seen.frame))
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} bytes: {}", bytes.len(), digits.join(" "))
}
