//! Events, as programs and people get them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use evener_core::director::{self, EventSubject, Level};
use evener_dataplane::installed::Part;
use serde::{Deserialize, Serialize};

use super::{BusItem, DaemonEvent};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Counted on over restarts of the daemon, where it could keep its events.
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
    Event(Arc<EventView>),
    /// Events are missing here: they came faster than they were read.
    Lost {
        /// How many.
        count: u64,
    },
}

impl From<&BusItem> for EventStreamItem {
    fn from(item: &BusItem) -> EventStreamItem {
        match item {
            BusItem::Event(published) => EventStreamItem::Event(Arc::clone(&published.view)),
            BusItem::Lost(count) => EventStreamItem::Lost { count: *count },
        }
    }
}

impl EventView {
    pub(super) fn new(number: u64, at: SystemTime, happened: &DaemonEvent) -> EventView {
        let mut event = EventView {
            number,
            time: time(at),
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
            DaemonEvent::Farm(farm) => be_about(&mut event, farm),
            DaemonEvent::Dispatcher { address, .. } => {
                event.address = Some(address.to_string());
            }
            DaemonEvent::Restored { part } | DaemonEvent::Missing { part, .. } => {
                event.interface = matches!(part, Part::Program(_)).then(|| part.place());
            }
            DaemonEvent::Node(notice) => event.address = Some(notice.peer().to_string()),
            DaemonEvent::Director(notice) => event.address = notice.director().map(|one| one.to_string()),
            DaemonEvent::Started { .. }
            | DaemonEvent::Ready { .. }
            | DaemonEvent::Stopping
            | DaemonEvent::Changed { .. }
            | DaemonEvent::ChangesDropped { .. }
            | DaemonEvent::Reloaded { .. }
            | DaemonEvent::ReloadRefused { .. } => {}
        }
        event
    }
}

/// A time as events have it (RFC 3339): a later one is a greater text.
pub(super) fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
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
