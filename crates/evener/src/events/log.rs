//! The log as a reader of events. The reader of its lines may be slow, or stuck, and no other waits
//! for that.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use evener_core::director::{self, Level};
use tracing::field::display;

use super::{Bus, BusItem, DaemonEvent};

/// How long the log's last lines may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The log's thread.
#[derive(Debug)]
pub(crate) struct Log {
    bus: Bus,
    /// Closed when it has written all.
    written: Receiver<()>,
}

impl Log {
    /// Begins to write what is told from now on.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub(crate) fn start(bus: &Bus) -> io::Result<Log> {
        let (writing, written) = channel();
        let mut listener = bus.listen();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            let _writing = writing;
            while let Some(item) = listener.wait() {
                match item {
                    BusItem::Event(published) => write(&published.event),
                    BusItem::Lost(count) => {
                        tracing::warn!(
                            "{count} events are missing here: they came faster than they could be written"
                        );
                    }
                }
            }
        })?;
        Ok(Log { bus: bus.clone(), written })
    }
}

impl Drop for Log {
    /// Ends all telling, with what waits to be written.
    fn drop(&mut self) {
        self.bus.end();
        // It never sends: this ends when it does, or has taken too long.
        let _ = self.written.recv_timeout(PATIENCE);
    }
}

/// Writes an event into the log, where there is no bus for it.
pub(crate) fn write(event: &DaemonEvent) {
    match event {
        DaemonEvent::Farm(event) => write_farm(event),
        DaemonEvent::Started { engine, adopted } => tracing::info!(engine, adopted, "{event}"),
        DaemonEvent::Reloaded { file, .. } | DaemonEvent::ReloadRefused { file, .. } => match event.level() {
            Level::Info => tracing::info!(file, "{event}"),
            Level::Warning => tracing::warn!(file, "{event}"),
            Level::Error => tracing::error!("{event}"),
        },
        // Standard error has that already.
        DaemonEvent::Ready { serving: true } => {}
        DaemonEvent::Stopping => tracing::debug!("{event}"),
        DaemonEvent::Ready { serving: false }
        | DaemonEvent::Changed { .. }
        | DaemonEvent::ChangesDropped { .. }
        | DaemonEvent::Dispatcher { .. }
        | DaemonEvent::Restored { .. }
        | DaemonEvent::Missing { .. }
        | DaemonEvent::Node(_) => match event.level() {
            Level::Info => tracing::info!("{event}"),
            Level::Warning => tracing::warn!("{event}"),
            Level::Error => tracing::error!("{event}"),
        },
    }
}

fn write_farm(event: &director::Event) {
    let (service, server) = match event {
        // Its text has both.
        director::Event::Member { .. } => (None, None),
        _ => (event.service(), event.server().map(|server| server.server.as_str())),
    };
    let (mut reason, mut from, mut mac, mut interface) = (None, None, None, None);
    match event {
        director::Event::Health { transition, .. } => reason = transition.reason.as_ref().map(display),
        director::Event::DatagramRefused { from: address, .. } => from = Some(display(address)),
        director::Event::Answered { mac: other, .. } => mac = Some(display(other)),
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
