//! The log as a subscriber of events.

use evener_core::director::{self, Level};
use tracing::field::display;

use super::{BusItem, DaemonEvent};

/// Logs an item of the bus.
pub(crate) fn take(item: BusItem) {
    match item {
        BusItem::Event(published) => write(&published.event),
        BusItem::Lost(count) => {
            tracing::warn!(
                "{count} events are missing in this log: they occurred faster than they could be written"
            );
        }
    }
}

/// Logs an event without a bus.
pub(crate) fn write(event: &DaemonEvent) {
    match event {
        DaemonEvent::Farm(event) => write_farm(event),
        DaemonEvent::Started { engine, adopted } => tracing::info!(engine, adopted, "{event}"),
        DaemonEvent::Reloaded { file, .. } | DaemonEvent::ReloadRefused { file, .. } => match event.level() {
            Level::Info => tracing::info!(file, "{event}"),
            Level::Warning => tracing::warn!(file, "{event}"),
            Level::Error => tracing::error!("{event}"),
        },
        // Standard error already has the line `evener: ready`.
        DaemonEvent::Ready { serving: true } => {}
        DaemonEvent::Stopping => tracing::debug!("{event}"),
        DaemonEvent::Ready { serving: false }
        | DaemonEvent::Changed { .. }
        | DaemonEvent::ChangesDropped { .. }
        | DaemonEvent::Dispatcher { .. }
        | DaemonEvent::Restored { .. }
        | DaemonEvent::Missing { .. }
        | DaemonEvent::Director(_)
        | DaemonEvent::Node(_) => match event.level() {
            Level::Info => tracing::info!("{event}"),
            Level::Warning => tracing::warn!("{event}"),
            Level::Error => tracing::error!("{event}"),
        },
    }
}

fn write_farm(event: &director::Event) {
    let (service, server) = match event {
        // The text already contains the service and the server.
        director::Event::Member { .. } => (None, None),
        _ => (event.service(), event.server().map(|server| server.server.as_str())),
    };
    let (mut reason, mut from, mut mac, mut interface) = (None, None, None, None);
    match event {
        director::Event::Health { transition, .. } => reason = transition.reason.as_ref().map(display),
        director::Event::DatagramRefused { from: address, .. } => from = Some(display(address)),
        director::Event::AddressContested { mac: other, .. } => mac = Some(display(other)),
        director::Event::Link { interface: name, .. } | director::Event::Attached { interface: name } => {
            interface = Some(name.as_str());
        }
        _ => {}
    }
    match event.level() {
        Level::Info => tracing::info!(service, server, interface, from, mac, reason, "{event}"),
        Level::Warning => tracing::warn!(service, server, interface, from, mac, reason, "{event}"),
        Level::Error => tracing::error!(service, server, interface, from, mac, reason, "{event}"),
    }
}
