//! State of the screen: the daemon's views, rates between two readings, and selections by keys.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Instant;

use ratatui::crossterm::event::KeyCode;
use serde_json::{Value, json};

use crate::runtime::terminal::has_colour;
use crate::views::{ServerView, StatusView};

/// Maximum number of events.
const EVENTS: usize = 200;

/// A reading of the daemon's views.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) status: StatusView,
    pub(super) servers: Vec<ServerView>,
}

/// Rates of a server, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) connections: f64,
    pub(super) bytes: f64,
}

/// Capabilities of the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) has_colour: bool,
    /// True if it shows more than ASCII.
    pub(super) is_utf8: bool,
}

impl Look {
    /// Detects the capabilities from standard output and the environment (locale(7)).
    pub(super) fn of_environment() -> Look {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        Look {
            has_colour: has_colour(&io::stdout()),
            is_utf8: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }
}

/// Columns to sort servers by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Name,
    State,
    Sessions,
    Rate,
    Bytes,
}

impl Sort {
    const ALL: [Sort; 5] = [Sort::Name, Sort::State, Sort::Sessions, Sort::Rate, Sort::Bytes];

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::State => "state",
            Sort::Sessions => "sessions",
            Sort::Rate => "connections a second",
            Sort::Bytes => "bytes a second",
        }
    }

    fn next(self) -> Sort {
        let place = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or_default();
        Sort::ALL.get(place + 1).copied().unwrap_or_default()
    }
}

/// An order for a server, before or after its confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) service: String,
    pub(super) server: String,
    pub(super) verb: Verb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Drain,
    Undrain,
    Maintenance,
}

impl Order {
    pub(super) fn body(&self) -> Value {
        match self.verb {
            Verb::Drain => json!({"drain": true}),
            Verb::Undrain => json!({"drain": false}),
            Verb::Maintenance => json!({"maintenance": true}),
        }
    }

    /// Returns the question before the order is sent.
    pub(super) fn question(&self) -> String {
        let verb = match self.verb {
            Verb::Drain => "drain",
            Verb::Undrain => "undrain",
            Verb::Maintenance => "maintenance for",
        };
        format!("{verb} {}/{}? y/n", self.service, self.server)
    }
}

/// State of the screen.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) look: Look,
    pub(super) reading: Option<Reading>,
    pub(super) error: Option<String>,
    pub(super) answer: Option<String>,
    pub(super) events: VecDeque<String>,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
    pub(super) filter: String,
    /// Filter while it is typed.
    pub(super) typed: Option<String>,
    /// Order that waits for confirmation.
    pub(super) pending: Option<Order>,
    pub(super) selected: usize,
    /// Rates of all servers, in the daemon's order.
    pub(super) rates: Vec<Rates>,
    pub(super) read_at: Option<Instant>,
}

impl Model {
    /// Adopts a new reading.
    pub(super) fn take_in(&mut self, reading: Reading, now: Instant) {
        self.error = None;
        if self.is_paused {
            return;
        }
        let seconds = self.read_at.map(|at| now.duration_since(at).as_secs_f64()).filter(|s| *s > 0.0);
        let before = self.reading.as_ref().map(|reading| by_name(&reading.servers)).unwrap_or_default();
        let rates = reading.servers.iter().map(|server| {
            let rates = seconds.zip(before.get(&name(server)));
            rates.map_or_else(Rates::default, |(seconds, old)| {
                // A restarted daemon counts from 0.
                let rate = |new: u64, old: u64| new.checked_sub(old).unwrap_or(new) as f64 / seconds;
                Rates {
                    connections: rate(server.connections, old.connections),
                    bytes: rate(server.bytes, old.bytes),
                }
            })
        });
        self.rates = rates.collect();
        self.read_at = Some(now);
        self.reading = Some(reading);
    }

    pub(super) fn note_event(&mut self, line: String) {
        self.events.push_front(line);
        self.events.truncate(EVENTS);
    }

    /// Returns all servers, in the daemon's order.
    fn servers(&self) -> impl Iterator<Item = (&ServerView, Rates)> {
        let servers = self.reading.iter().flat_map(|reading| &reading.servers);
        servers.zip(self.rates.iter().copied())
    }

    /// Returns the servers that match the filter, sorted.
    pub(super) fn rows(&self) -> Vec<(&ServerView, Rates)> {
        let filter = self.typed.as_ref().unwrap_or(&self.filter).to_lowercase();
        let is_shown = |(server, _): &(&ServerView, Rates)| {
            let text = || format!("{}/{} {} {}", server.service, server.name, server.address, server.state);
            filter.is_empty() || text().to_lowercase().contains(&filter)
        };
        let mut rows: Vec<(&ServerView, Rates)> = self.servers().filter(is_shown).collect();
        // The greatest number first. Servers with equal numbers are sorted by name.
        let great = |number: f64| std::cmp::Reverse((number * 1_000.0) as u64);
        rows.sort_by(|(one, _), (other, _)| name(one).cmp(&name(other)));
        match self.sort {
            Sort::Name => {}
            Sort::State => rows.sort_by(|(one, _), (other, _)| {
                let rank = |server: &ServerView| server.state == "up";
                (rank(one), &one.state).cmp(&(rank(other), &other.state))
            }),
            Sort::Sessions => rows.sort_by_key(|(server, _)| std::cmp::Reverse(server.sessions)),
            Sort::Rate => rows.sort_by_key(|(_, rates)| great(rates.connections)),
            Sort::Bytes => rows.sort_by_key(|(_, rates)| great(rates.bytes)),
        }
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    pub(super) fn press(&mut self, key: KeyCode) -> Option<Order> {
        if let Some(order) = self.pending.take() {
            return matches!(key, KeyCode::Char('y' | 'Y')).then_some(order);
        }
        if let Some(typed) = &mut self.typed {
            match key {
                KeyCode::Char(letter) => typed.push(letter),
                KeyCode::Backspace => drop(typed.pop()),
                KeyCode::Delete => typed.clear(),
                KeyCode::Enter => self.filter = self.typed.take().unwrap_or_default(),
                KeyCode::Esc => self.typed = None,
                _ => {}
            }
            return None;
        }
        let last = self.rows().len().saturating_sub(1);
        match key {
            KeyCode::Char('/') => self.typed = Some(self.filter.clone()),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('?' | 'h') => self.has_help = !self.has_help,
            KeyCode::Char('d') => self.propose(Verb::Drain),
            KeyCode::Char('u') => self.propose(Verb::Undrain),
            KeyCode::Char('m') => self.propose(Verb::Maintenance),
            KeyCode::Esc => (self.has_help, self.answer) = (false, None),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown => self.selected = (self.selected + 10).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            _ => {}
        }
        None
    }

    fn propose(&mut self, verb: Verb) {
        let chosen =
            self.rows().get(self.selected).map(|(server, _)| (server.service.clone(), server.name.clone()));
        self.pending = chosen.map(|(service, server)| Order { service, server, verb });
    }

    /// Returns status and servers with rates, as JSON.
    pub(super) fn json(&self) -> Value {
        let Some(reading) = &self.reading else { return Value::Null };
        let servers = self.servers().map(|(server, rates)| {
            let mut view = serde_json::to_value(server).unwrap_or_default();
            if let Some(object) = view.as_object_mut() {
                object.insert("connections_per_second".to_owned(), json!(rates.connections));
                object.insert("bytes_per_second".to_owned(), json!(rates.bytes));
            }
            view
        });
        json!({"status": reading.status, "servers": servers.collect::<Vec<_>>()})
    }
}

fn by_name(servers: &[ServerView]) -> HashMap<(&str, &str), &ServerView> {
    servers.iter().map(|server| (name(server), server)).collect()
}

fn name(server: &ServerView) -> (&str, &str) {
    (&server.service, &server.name)
}
