//! What happens, as it is told live.

use std::net::IpAddr;

use evener_core::director::{self, About, Level};
use evener_dataplane::installed::Part;
use serde::{Deserialize, Serialize};

use crate::events::{self, Heard};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counted from the daemon's start.
    pub number: u64,
    /// When it happened, as RFC 3339 has it.
    pub time: String,
    /// Its name, such as `server_down`; docs/events.md has all.
    pub event: String,
    /// `info`, `warning` or `error`.
    pub level: String,
    /// The service that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The host, where every one decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Why, where something else said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// In words.
    pub text: String,
}

/// What somebody who listens gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Happening {
    /// Something happened.
    Event(Box<Event>),
    /// Events are missing here: they came faster than they were read.
    Lost {
        /// How many.
        count: u64,
    },
}

impl From<&Heard> for Happening {
    fn from(heard: &Heard) -> Happening {
        match heard {
            Heard::Event(told) => Happening::Event(Box::new(event(told))),
            Heard::Lost(count) => Happening::Lost { count: *count },
        }
    }
}

fn event(told: &events::Told) -> Event {
    let happened = &told.event;
    let mut event = Event {
        number: told.number,
        time: humantime::format_rfc3339_millis(told.at).to_string(),
        event: happened.name().to_owned(),
        level: level(happened.level()).to_owned(),
        service: None,
        server: None,
        host: None,
        address: None,
        interface: None,
        reason: None,
        text: happened.to_string(),
    };
    match happened {
        events::Event::Farm(farm) => be_about(&mut event, farm),
        events::Event::Dispatcher { address, .. } => {
            event.address = Some(address.to_string());
        }
        events::Event::Restored { part } | events::Event::Missing { part, .. } => {
            event.interface = matches!(part, Part::Program(_)).then(|| part.place());
        }
        events::Event::Node(notice) => event.address = Some(notice.peer().to_string()),
        events::Event::Started { .. }
        | events::Event::Ready { .. }
        | events::Event::Stopping
        | events::Event::Reloaded { .. }
        | events::Event::ReloadRefused { .. } => {}
    }
    event
}

fn be_about(event: &mut Event, farm: &director::Event) {
    let About { service, server, host, address, interface, reason } = farm.about();
    let owned = |text: Option<&str>| text.map(str::to_owned);
    (event.service, event.server, event.host) = (owned(service), owned(server), owned(host));
    event.address = address.as_ref().map(IpAddr::to_string);
    (event.interface, event.reason) = (owned(interface), reason);
}

fn level(level: Level) -> &'static str {
    match level {
        Level::Info => "info",
        Level::Warning => "warning",
        Level::Error => "error",
    }
}
