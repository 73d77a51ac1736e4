//! Parses cases strictly: an invalid line is an error with its position.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use evener_core::path::cookie::Keys;
use evener_core::path::decide::Reason;
use evener_core::path::sessions::State;

use super::frame::frame;
use super::words::{Words, Wrong};
use super::world::World;
use super::{Action, Case, CaseFile, Exit, Lease, Packet, Seen, Step, keys};

/// Parses the text of the file `path`.
///
/// # Errors
/// Returns the first invalid line as `path:line: why`.
pub fn parse(path: &Path, text: &str) -> Result<CaseFile> {
    let mut reader = Reader::default();
    let mut last = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        last = number;
        if !line.is_empty() {
            reader.line(number, line).map_err(|why| anyhow!("{}:{number}: {why}", path.display()))?;
        }
    }
    reader.expect_out().map_err(|why| anyhow!("{}:{last}: {why}", path.display()))?;
    let World { interfaces, routes, .. } = reader.farm;
    Ok(CaseFile { path: path.to_owned(), interfaces, routes: Arc::new(routes), cases: reader.cases })
}

/// State of the parser.
#[derive(Default)]
struct Reader {
    /// Farm that every case starts with.
    farm: World,
    /// Farm with the changes of the current case.
    world: World,
    cases: Vec<Case>,
    /// Frame of an `in` line whose `out` line is missing so far, with the line.
    coming: Option<(u32, Vec<u8>, usize, String)>,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) -> Result<(), Wrong> {
        let mut words = Words::of(line);
        let word = words.next("a statement")?;
        if word != "out" {
            self.expect_out()?;
        }
        match word {
            "case" => self.begin(number, line),
            "in" => self.frame_in(number, line, &mut words),
            "out" => self.frame_out(&mut words),
            "also" => self.frame_released(&mut words),
            "sessions" => {
                let action = sessions(&mut words)?;
                self.step(number, line, action)
            }
            "wait" => {
                let ms = words.parse("a time in milliseconds")?;
                words.expect("ms")?;
                words.end()?;
                self.step(number, line, Action::Wait { ms })
            }
            "lease" => {
                let action = Action::Lease(lease(&mut words)?);
                self.step(number, line, action)
            }
            "epoch" => {
                let keys = epoch(&mut words)?;
                self.world.set_keys(keys);
                self.step(number, line, Action::Keys(keys))
            }
            "traced" => {
                let clients = traced(&mut words)?;
                self.step(number, line, Action::Trace(clients))
            }
            "guessed" => {
                words.end()?;
                self.step(number, line, Action::Guessed)
            }
            "now" => {
                self.world.change(&mut words)?;
                let tables = Arc::new(self.world.tables());
                self.step(number, line, Action::Change(tables))
            }
            _ if self.cases.is_empty() && self.farm.describe(line)? => Ok(()),
            "interface" | "host" | "peer" | "server" | "service" | "previous" | "route" | "timeouts"
            | "sessions-max" => Err("the farm is described before the first case".into()),
            other => Err(format!("`{other}` begins no line")),
        }
    }

    fn expect_out(&self) -> Result<(), Wrong> {
        match &self.coming {
            Some((_, _, line, _)) => {
                Err(format!("line {line} lets a frame in, and there is no `out` for it"))
            }
            None => Ok(()),
        }
    }

    fn begin(&mut self, number: usize, line: &str) -> Result<(), Wrong> {
        let name = line.trim_start_matches("case").trim().to_owned();
        if name.is_empty() {
            return Err("a case says what it shows".into());
        }
        self.world = self.farm.clone();
        // Every case of a file starts with the same tables.
        let (tables, routes) = match self.cases.first() {
            Some(first) => (Arc::clone(&first.tables), Arc::clone(&first.routes)),
            None => (Arc::new(self.world.tables()), Arc::new(self.world.routes.clone())),
        };
        let sessions_max = self.farm.sessions_max;
        let limits = self.world.limits();
        self.cases.push(Case { name, line: number, sessions_max, tables, limits, routes, steps: Vec::new() });
        Ok(())
    }

    fn step(&mut self, line: usize, text: &str, action: Action) -> Result<(), Wrong> {
        let case = self.cases.last_mut().ok_or("this belongs into a case")?;
        case.steps.push(Step { line, text: text.to_owned(), action });
        Ok(())
    }

    fn frame_in(&mut self, number: usize, line: &str, words: &mut Words<'_>) -> Result<(), Wrong> {
        let ingress = self.interface(words)?;
        let frame = frame(words, &self.world, None)?;
        self.world.note_syn(ingress, &frame);
        self.coming = Some((ingress, frame, number, line.to_owned()));
        Ok(())
    }

    fn frame_out(&mut self, words: &mut Words<'_>) -> Result<(), Wrong> {
        let (ingress, before, line, text) = self.coming.take().ok_or("no frame came in that could go out")?;
        let (exit, usual) = match words.next("a verdict")? {
            "forward" => (Exit::Interface(self.interface(words)?), Some(Reason::Forwarded)),
            "answer" => (Exit::Interface(self.interface(words)?), Some(Reason::ArpAnswered)),
            "local" => (Exit::Host, Some(Reason::Local)),
            "hold" => (Exit::Held, Some(Reason::FragmentHeld)),
            "pass" => (Exit::Host, None),
            "drop" => (Exit::Nowhere, None),
            other => {
                return Err(format!(
                    "`{other}` is no verdict; forward, answer, local, hold, pass and drop are"
                ));
            }
        };
        let reasons = reasons(words, usual)?;
        let frame = match words.peek() {
            None if !matches!(exit, Exit::Interface(_)) => before.clone(),
            _ => frame(words, &self.world, Some(&before))?,
        };
        words.end()?;
        let expected = Seen { exit, reasons, frame, released: Vec::new() };
        self.step(line, &text, Action::Packet(Packet { ingress, frame: before, expected }))
    }

    /// Reads a held frame that is released together with the previous frame.
    fn frame_released(&mut self, words: &mut Words<'_>) -> Result<(), Wrong> {
        words.expect("forward")?;
        let exit = Exit::Interface(self.interface(words)?);
        let reasons = reasons(words, Some(Reason::Forwarded))?;
        let frame = frame(words, &self.world, None)?;
        let step = self.cases.last_mut().and_then(|case| case.steps.last_mut());
        let Some(Step { action: Action::Packet(packet), .. }) = step else {
            return Err("no frame came in that could have released another".into());
        };
        packet.expected.released.push((exit, frame));
        for (reason, count) in reasons {
            *packet.expected.reasons.entry(reason).or_default() += count;
        }
        Ok(())
    }

    fn interface(&self, words: &mut Words<'_>) -> Result<u32, Wrong> {
        let number = words.parse("an interface number")?;
        match self.world.interfaces.contains_key(&number) {
            true => Ok(number),
            false => Err(format!("there is no interface {number}")),
        }
    }
}

/// Reads the counted reasons. Adds `usual` unless a main reason is listed. Other reasons only
/// accompany a main reason.
fn reasons(words: &mut Words<'_>, usual: Option<Reason>) -> Result<BTreeMap<Reason, u64>, Wrong> {
    let mut reasons = BTreeMap::new();
    if usual.is_none() {
        reasons.insert(reason(words)?, 1);
    }
    while words.peek().is_some_and(|word| word != "eth" && word != "hex") {
        reasons.insert(reason(words)?, 1);
    }
    let beside = |reason: &Reason| {
        matches!(reason, Reason::TableFull | Reason::NoSession | Reason::SecondChance | Reason::Punted)
    };
    if let Some(usual) = usual.filter(|_| reasons.keys().all(beside)) {
        reasons.insert(usual, 1);
    }
    Ok(reasons)
}

fn reason(words: &mut Words<'_>) -> Result<Reason, Wrong> {
    let name = words.next("a reason")?;
    Reason::ALL
        .iter()
        .copied()
        .find(|reason| reason.name() == name)
        .ok_or_else(|| format!("`{name}` is no reason that is counted"))
}

/// Reads `N` or `none`.
fn epoch(words: &mut Words<'_>) -> Result<Keys, Wrong> {
    let keys = if words.take("none") { Keys::NONE } else { keys(words.parse("a number")?) };
    words.end()?;
    Ok(keys)
}

/// Reads addresses or `nobody`.
fn traced(words: &mut Words<'_>) -> Result<BTreeSet<IpAddr>, Wrong> {
    let mut clients = BTreeSet::new();
    while !words.take("nobody") && words.peek().is_some() {
        clients.insert(words.parse("an address")?);
    }
    words.end()?;
    Ok(clients)
}

/// Reads `endless`, `ended` or `N ms`.
fn lease(words: &mut Words<'_>) -> Result<Lease, Wrong> {
    let lease = if words.take("endless") {
        Lease::Endless
    } else if words.take("ended") {
        Lease::Ms(0)
    } else {
        let ms = words.parse("a time in milliseconds")?;
        words.expect("ms")?;
        Lease::Ms(ms)
    };
    words.end()?;
    Ok(lease)
}

fn sessions(words: &mut Words<'_>) -> Result<Action, Wrong> {
    let count = words.parse("a number of sessions")?;
    let mut states = Vec::new();
    while let Ok(name) = words.next("a state") {
        let all = State::ALL.into_iter().chain([State::Affinity]);
        let state = all.into_iter().find(|state| state.name() == name);
        states.push(state.ok_or_else(|| format!("`{name}` is no state of a session"))?);
    }
    if !states.is_empty() && states.len() != count {
        return Err(format!("{count} sessions can't have {} states", states.len()));
    }
    states.sort_by_key(|state| *state as u8);
    Ok(Action::Sessions { count, states })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    const FARM: &str = "interface 1 02:00:00:00:00:01\nhost router 02:00:00:00:00:09\n\
        server web1 02:00:00:00:01:01 via 1\nservice web tcp 192.0.2.100:80 round-robin announce: web1\n";

    fn error(lines: &str) -> String {
        parse(Path::new("a.case"), &format!("{FARM}{lines}")).unwrap_err().to_string()
    }

    #[test]
    fn a_case_is_read() {
        let text = "case one # of many\n\
            in 1 eth router > if1 ip 203.0.113.7 > 192.0.2.100 tcp 1000 > 80 S\n\
            out forward 1 no_session eth if1 > web1 ...\n\
            sessions 1 new\nnow web1 down\nwait 5 ms";
        let file = parse(Path::new("a.case"), &format!("{FARM}{text}")).unwrap();
        let [case] = &file.cases[..] else { panic!("one case") };
        assert_eq!((case.name.as_str(), case.line, case.steps.len()), ("one", 5, 4));
        let Action::Packet(packet) = &case.steps[0].action else { panic!("a packet") };
        assert_eq!(packet.expected.exit, Exit::Interface(1));
        assert_eq!(packet.expected.reasons.len(), 2);
        assert_eq!(packet.expected.frame[..12], [2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 1]);
        assert_eq!(packet.expected.frame[12..], packet.frame[12..]);
        assert_eq!(case.tables.vips.len(), 1);
    }

    #[test]
    fn case_errors_have_their_line() {
        for (lines, expected) in [
            ("cake", "a.case:5: `cake` begins no line"),
            ("case x\nin 2 eth router > if1", "a.case:6: there is no interface 2"),
            ("case x\nin 1 eth nobody > if1", "a.case:6: `nobody` is no MAC address and nobody's name"),
            (
                "case x\nin 1 eth router > if1\nsessions 0",
                "a.case:7: line 6 lets a frame in, and there is no `out` for it",
            ),
            (
                "case x\nin 1 eth router > if1",
                "a.case:6: line 6 lets a frame in, and there is no `out` for it",
            ),
            ("case x\nout drop runt", "a.case:6: no frame came in that could go out"),
            ("case x\nin 1 hex 00\nout drop rant", "a.case:7: `rant` is no reason that is counted"),
            ("case x\nsessions 2 new", "a.case:6: 2 sessions can't have 1 states"),
            (
                "case x\nserver web2 02:00:00:00:01:02 via 1",
                "a.case:6: the farm is described before the first case",
            ),
            ("server web2 02:00:00:00:01:02 via 3", "a.case:5: there is no interface 3"),
            ("case x\nnow web3 down", "a.case:6: there is no server web3"),
            ("sessions 0", "a.case:5: this belongs into a case"),
            ("peer nobody", "a.case:5: `nobody` is no MAC address and nobody's name"),
            ("previous mail: web1", "a.case:5: there is no service mail"),
            (
                "server far 02:00:00:00:01:02 via 1 tunnel ipip from 10.0.0.1 to 10.0.0.2 twice",
                "a.case:5: only gue can say how often a packet was passed on",
            ),
            (
                "case x\nlease soon",
                "a.case:6: `soon` is not a time in milliseconds: invalid digit found in string",
            ),
        ] {
            assert_eq!(error(lines), expected);
        }
    }
}
