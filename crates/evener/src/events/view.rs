//! Events as programs and people get them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use evener_core::director::{self, EventSubject, Level};
use evener_dataplane::installed::Part;
use serde::{Deserialize, Serialize};

use super::{BusItem, DaemonEvent};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Number, which continues over restarts of the daemon if it can store its events.
    pub number: u64,
    /// Time, as in RFC 3339.
    pub time: String,
    /// Name, such as `server_down`. docs/reference/events.md lists all.
    pub event: String,
    /// `info`, `warning` or `error`.
    pub level: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Host of an every-host farm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Reason, from another source than the daemon itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub text: String,
}

/// Item of a stream of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum EventStreamItem {
    Event(Arc<EventView>),
    /// Events are missing here, because the subscriber was too slow.
    Lost {
        /// Number of lost events.
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
            DaemonEvent::Farm(farm) => about(&mut event, farm),
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

/// Formats a time as in RFC 3339. Later times compare as greater texts.
pub(super) fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

fn about(event: &mut EventView, farm: &director::Event) {
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
