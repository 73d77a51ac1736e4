//! Events, as they are shown live.

use std::net::IpAddr;

use evener_core::director::{self, EventSubject, Level};
use evener_dataplane::installed::Part;
use serde::{Deserialize, Serialize};

use crate::events::{self, BusItem};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Counted from the daemon's start.
    pub number: u64,
    /// When it happened, as RFC 3339 has it.
    pub time: String,
    /// Its name, such as `server_down`; docs/reference/events.md has all.
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

/// An item for a subscriber.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum EventStreamItem {
    /// Something happened.
    Event(Box<EventView>),
    /// Events are missing here: they came faster than they were read.
    Lost {
        /// How many.
        count: u64,
    },
}

impl From<&BusItem> for EventStreamItem {
    fn from(item: &BusItem) -> EventStreamItem {
        match item {
            BusItem::Event(published) => EventStreamItem::Event(Box::new(event(published))),
            BusItem::Lost(count) => EventStreamItem::Lost { count: *count },
        }
    }
}

pub(super) fn event(published: &events::PublishedEvent) -> EventView {
    let happened = &published.event;
    let mut event = EventView {
        number: published.number,
        time: humantime::format_rfc3339_millis(published.at).to_string(),
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
        events::DaemonEvent::Farm(farm) => be_about(&mut event, farm),
        events::DaemonEvent::Dispatcher { address, .. } => {
            event.address = Some(address.to_string());
        }
        events::DaemonEvent::Restored { part } | events::DaemonEvent::Missing { part, .. } => {
            event.interface = matches!(part, Part::Program(_)).then(|| part.place());
        }
        events::DaemonEvent::Node(notice) => event.address = Some(notice.peer().to_string()),
        events::DaemonEvent::Started { .. }
        | events::DaemonEvent::Ready { .. }
        | events::DaemonEvent::Stopping
        | events::DaemonEvent::Changed { .. }
        | events::DaemonEvent::ChangesDropped { .. }
        | events::DaemonEvent::Reloaded { .. }
        | events::DaemonEvent::ReloadRefused { .. } => {}
    }
    event
}

fn be_about(event: &mut EventView, farm: &director::Event) {
    let EventSubject { service, server, host, address, interface, reason } = farm.about();
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
