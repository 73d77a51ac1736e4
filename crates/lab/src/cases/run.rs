//! Runs cases on a subject and reports differences.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evener_core::path::cookie::Keys;
use evener_core::path::decide::Reason;
use evener_core::path::fragments::PATIENCE_MS;
use evener_core::path::sessions::State;
use evener_core::path::tables::Tables;

use super::{Action, Case, CaseFile, Lease, Packet, Seen, Step};

/// Implementation that cases run on.
pub trait Subject {
    fn name(&self) -> &'static str;

    /// True if the subject can receive the frame.
    fn takes(&self, frame: &[u8]) -> bool;

    /// Starts a case without sessions and with the case's tables.
    ///
    /// # Errors
    /// Fails if the subject can't be started.
    fn begin(&mut self, case: &Case) -> Result<()>;

    /// Changes the tables; sessions stay.
    ///
    /// # Errors
    /// Fails if the subject refuses the tables.
    fn change(&mut self, tables: &Arc<Tables>) -> Result<()>;

    /// Sets the lease for shared addresses. A case starts with an endless lease.
    ///
    /// # Errors
    /// Fails before the first case.
    fn lease(&mut self, lease: Lease) -> Result<()>;

    /// Sets the keys of SYN cookies. A case starts with the keys of [`super::FIRST_EPOCH`].
    ///
    /// # Errors
    /// Fails before the first case.
    fn keys(&mut self, keys: &Keys) -> Result<()>;

    /// Brings the subject to its limit of failed cookie guesses, so that further cookies are not
    /// checked. A case starts without failed guesses.
    ///
    /// # Errors
    /// Fails before the first case.
    fn guessed(&mut self) -> Result<()>;

    /// Replaces the traced clients. A case starts with none.
    ///
    /// # Errors
    /// Fails before the first case, or if there are too many clients.
    fn trace(&mut self, clients: &BTreeSet<IpAddr>) -> Result<()>;

    /// Gives a frame to the subject and returns the result. A subject with delayed results waits
    /// for the expected one.
    ///
    /// # Errors
    /// Fails if the subject fails, but not if the result differs.
    fn meet(&mut self, packet: &Packet) -> Result<Seen>;

    /// Lets time pass, in milliseconds, plus the resolution of the subject's clock.
    fn wait(&mut self, ms: u64);

    /// True if the subject's time also passes between calls.
    fn has_real_clock(&self) -> bool {
        false
    }

    /// Returns the states of the live sessions, in any order.
    fn sessions(&self) -> Vec<State>;
}

/// Result of a file.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub cases: usize,
    pub packets: usize,
    /// Number of packets that the subject can't receive.
    pub left_out: usize,
    pub failures: Vec<String>,
}

/// Maximum number of attempts at a case on a busy machine.
const TRIES: u32 = 5;

/// Runs every case of a file. A case ends at its first difference.
pub fn run(file: &CaseFile, subject: &mut dyn Subject) -> Tally {
    let mut tally = Tally::default();
    for case in &file.cases {
        tally.cases += 1;
        if let Err(difference) = play_in_time(case, subject, &mut tally) {
            let (path, name) = (file.path.display(), subject.name());
            let (line, why) = difference;
            tally.failures.push(format!("{path}:{line}: {name}, case {}:\n{why}", case.name));
        }
    }
    tally
}

/// Runs a case, and repeats a failed attempt that took too long: a held fragment may have expired.
fn play_in_time(case: &Case, subject: &mut dyn Subject, tally: &mut Tally) -> Result<(), (usize, String)> {
    let waits = case.steps.iter().map(|step| if let Action::Wait { ms } = step.action { ms } else { 0 });
    let in_time = Duration::from_millis(waits.sum::<u64>() + PATIENCE_MS);
    let mut played = Ok(());
    for _ in 0..TRIES {
        let started = Instant::now();
        played = play(case, subject, tally);
        if played.is_ok() || !subject.has_real_clock() || started.elapsed() < in_time {
            break;
        }
    }
    played
}

fn play(case: &Case, subject: &mut dyn Subject, tally: &mut Tally) -> Result<(), (usize, String)> {
    let failed = |line: usize| move |error: anyhow::Error| (line, format!("    {error:#}"));
    subject.begin(case).context("The case can't begin").map_err(failed(case.line))?;
    for step in &case.steps {
        match &step.action {
            Action::Packet(packet) if !subject.takes(&packet.frame) => tally.left_out += 1,
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
                    let (text, count, names) = (&step.text, found.len(), names.join(" "));
                    let why = format!("    expected {text}\n    got      sessions {count} {names}");
                    return Err((step.line, why));
                }
            }
            Action::Change(tables) => subject.change(tables).map_err(failed(step.line))?,
            Action::Lease(lease) => subject.lease(*lease).map_err(failed(step.line))?,
            Action::Keys(keys) => subject.keys(keys).map_err(failed(step.line))?,
            Action::Trace(clients) => subject.trace(clients).map_err(failed(step.line))?,
            Action::Guessed => subject.guessed().map_err(failed(step.line))?,
            Action::Wait { ms } => subject.wait(*ms),
        }
    }
    Ok(())
}

fn difference(step: &Step, packet: &Packet, seen: &Seen) -> String {
    let expected = &packet.expected;
    let mut text = format!("    {}\n", step.text);
    let frames = [("came in as", &packet.frame), ("expected", &expected.frame), ("got", &seen.frame)];
    // Writing to a String does not fail.
    let _ = writeln!(text, "    expected {}", verdict(expected));
    let _ = writeln!(text, "    got      {}", verdict(seen));
    let differing = expected.frame.iter().zip(&seen.frame).position(|(expected, got)| expected != got);
    if let Some(at) = differing.filter(|_| seen.shows_frame()) {
        let _ = writeln!(text, "    the first byte that differs is number {at}");
    }
    for (what, frame) in frames {
        let _ = writeln!(text, "    {what:<10} {}", hex(frame));
    }
    for (what, released) in [("expected", &expected.released), ("got", &seen.released)] {
        for (exit, frame) in released {
            let _ = writeln!(text, "    {what:<10} besides, {exit}: {}", hex(frame));
        }
    }
    text.trim_end().to_owned()
}

fn verdict(seen: &Seen) -> String {
    let name = |(reason, count): (&Reason, &u64)| match count {
        1 => reason.name().to_owned(),
        count => format!("{} {count} times", reason.name()),
    };
    let reasons: Vec<_> = seen.reasons.iter().map(name).collect();
    format!(
        "{}; counted: {}",
        seen.exit,
        if reasons.is_empty() { "nothing".into() } else { reasons.join(", ") }
    )
}

/// Returns the start of a frame in hex: all headers, within a few lines.
fn hex(bytes: &[u8]) -> String {
    const SHOWN: usize = 80;
    let digits: Vec<_> = bytes.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect();
    let more = if bytes.len() > SHOWN { " ..." } else { "" };
    format!("{} bytes: {}{more}", bytes.len(), digits.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::path::Path;

    use super::super::{Spec, parse};
    use super::*;

    /// Returns the differences of a case with these lines on the core.
    fn failure(lines: &str) -> String {
        let farm = "interface 1 02:00:00:00:00:01\ninterface 2 02:00:00:00:00:02\nhost router 02:00:00:00:00:09\n\
            server web1 02:00:00:00:01:01 via 1\nserver web2 02:00:00:00:01:02 via 2\n\
            service web tcp 192.0.2.100:80 round-robin: web1 web2\ncase x\n\
            in 1 eth router > if1 ip 203.0.113.7 > 192.0.2.100 tcp 1000 > 80 S\n";
        let file = parse(Path::new("a.case"), &format!("{farm}{lines}")).unwrap();
        run(&file, &mut Spec::default()).failures.join("\n")
    }

    #[test]
    fn matching_case_prints_no_difference() {
        assert_eq!(failure("out forward 1 eth if1 > web1 ...\nsessions 1 new"), "");
    }

    #[test]
    fn every_difference_is_reported_with_its_place() {
        let text = failure("out forward 1 eth if1 > web2 ...");
        assert!(text.starts_with("a.case:8: core, case x:\n    in 1 eth router > if1 ip"), "{text}");
        assert!(text.contains("the first byte that differs is number 5\n"), "{text}");
        for (lines, expected) in [
            ("out forward 2 eth if1 > web1 ...", "expected out of interface 2; counted: forwarded\n"),
            ("out drop no_server", "got      out of interface 1; counted: forwarded\n"),
            ("out pass not_service", "expected to the host's own stack; counted: not_service\n"),
            (
                "out forward 1 table_full eth if1 > web1 ...",
                "expected out of interface 1; counted: forwarded, table_full\n",
            ),
            ("out forward 1 eth if1 > web1 ...\nsessions 0", "got      sessions 1 new"),
            ("out forward 1 eth if1 > web1 ...\nsessions 1 closing", "expected sessions 1 closing"),
        ] {
            assert!(failure(lines).contains(expected), "{}", failure(lines));
        }
    }
}
