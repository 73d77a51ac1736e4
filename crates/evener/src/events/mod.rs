//! Events for subscribers, through one bus that never blocks the control loop.
//!
//! Each subscriber has a queue of [`BEHIND_MAX`] events. A slower subscriber loses the oldest
//! events, and learns their number. The log ([`log`]), the [`history`] and each `evener events` are
//! subscribers.

pub(crate) mod history;
pub(crate) mod log;
mod past;
pub(crate) mod readers;
mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use evener_core::director::{self, Level};
use evener_core::node::directors::DirectorEvent;
use evener_core::node::lccp::LccpEvent;
use evener_dataplane::installed::Part;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};

use past::PastEvents;
pub use view::{EventStreamItem, EventView};

/// Capacity of a subscriber's queue of events.
pub const BEHIND_MAX: usize = 4_096;

/// Number of past events that the dashboard starts with.
pub const RECENT_MAX: usize = 100;

/// Names and descriptions of the daemon's own events. [`director::EVENTS`] has the farm's events.
pub const EVENTS: &[(&str, &str)] = &[
    ("started", "The engine is attached."),
    ("ready", "The daemon serves; a warning where some service has no server yet."),
    ("stopping", "The daemon stops."),
    ("reloaded", "Another file is in force; a warning where some keys wait for a restart."),
    ("reload_refused", "A file was refused, and nothing was changed."),
    ("changed", "The farm was changed at run time; the text has the author and the address."),
    ("changes_dropped", "A reload has dropped run-time changes, since the file itself has changed there."),
    ("dispatcher_responding", "The dispatcher answers again and selects servers."),
    ("dispatcher_silent", "The dispatcher does not answer: this host decides by its own tables."),
    (
        "installed_restored",
        "Another program had removed or changed a program, a rule or a setting of the daemon; it was restored.",
    ),
    ("installed_missing", "The same, and it can't be restored."),
    ("node_discovered", "Another LCCP node answers for the first time."),
    ("node_restarted", "An LCCP node has restarted."),
    ("node_silent", "An LCCP node does not answer any more."),
    ("node_responding", "A silent LCCP node answers again."),
    ("director_heard", "Another director of the farm sends reports."),
    ("director_silent", "Another director sends no more reports."),
    ("address_shared", "Another director and this one have the same service address."),
    ("director_refused", "Reports of a director are invalid; the text has the reason."),
    ("message_refused", "Messages of an LCCP node are invalid; the text has the reason and the remedy."),
];

#[derive(Clone, Debug)]
pub enum DaemonEvent {
    /// Event of the farm, from its director.
    Farm(director::Event),
    /// The daemon has started.
    Started {
        /// Engine, with its attachment.
        engine: String,
        /// True if the daemon has adopted an earlier one's data plane.
        adopted: bool,
    },
    Ready {
        /// True if every service has a server.
        serving: bool,
    },
    Stopping,
    /// Another file is in force.
    Reloaded {
        file: String,
        /// Keys that wait for a restart, with the remedy.
        restart_needed_for: Option<(String, String)>,
        /// Reason why the file is not fully adopted.
        trouble: Option<String>,
    },
    /// A file was refused.
    ReloadRefused {
        file: String,
        error: String,
    },
    /// The farm was changed at run time.
    Changed {
        by: String,
        /// Address, or the admin socket.
        from: String,
        message: String,
    },
    /// Run-time changes were dropped, because the file has changed at their places.
    ChangesDropped {
        /// Places of the dropped changes.
        places: String,
    },
    /// The dispatcher responds again, or no longer.
    Dispatcher {
        address: IpAddr,
        /// True if the dispatcher responds.
        decides: bool,
    },
    /// A part that this daemon set up in the kernel was removed, and has been restored.
    Restored {
        part: Part,
    },
    /// A part that this daemon set up in the kernel was removed, and can't be restored.
    Missing {
        part: Part,
        error: String,
    },
    /// Event of another LCCP node.
    Node(LccpEvent),
    /// Event of another director.
    Director(DirectorEvent),
}

impl DaemonEvent {
    /// Returns the stable name.
    pub fn name(&self) -> &'static str {
        match self {
            DaemonEvent::Farm(event) => event.name(),
            DaemonEvent::Started { .. } => "started",
            DaemonEvent::Ready { .. } => "ready",
            DaemonEvent::Stopping => "stopping",
            DaemonEvent::Reloaded { .. } => "reloaded",
            DaemonEvent::ReloadRefused { .. } => "reload_refused",
            DaemonEvent::Changed { .. } => "changed",
            DaemonEvent::ChangesDropped { .. } => "changes_dropped",
            DaemonEvent::Dispatcher { decides: true, .. } => "dispatcher_responding",
            DaemonEvent::Dispatcher { decides: false, .. } => "dispatcher_silent",
            DaemonEvent::Restored { .. } => "installed_restored",
            DaemonEvent::Missing { .. } => "installed_missing",
            DaemonEvent::Node(LccpEvent::Met { .. }) => "node_discovered",
            DaemonEvent::Node(LccpEvent::Restarted { .. }) => "node_restarted",
            DaemonEvent::Node(LccpEvent::Silent { .. }) => "node_silent",
            DaemonEvent::Node(LccpEvent::Answers { .. }) => "node_responding",
            DaemonEvent::Node(LccpEvent::Refused { .. }) => "message_refused",
            DaemonEvent::Director(DirectorEvent::Answers(_)) => "director_heard",
            DaemonEvent::Director(DirectorEvent::Silent(_)) => "director_silent",
            DaemonEvent::Director(DirectorEvent::Refused { .. }) => "director_refused",
            DaemonEvent::Director(DirectorEvent::AddressShared { .. }) => "address_shared",
        }
    }

    pub fn level(&self) -> Level {
        match self {
            DaemonEvent::Farm(event) => event.level(),
            DaemonEvent::ReloadRefused { .. } | DaemonEvent::Missing { .. } => Level::Error,
            DaemonEvent::Ready { serving: false }
            | DaemonEvent::Reloaded { restart_needed_for: Some(_), .. }
            | DaemonEvent::Reloaded { trouble: Some(_), .. }
            | DaemonEvent::ChangesDropped { .. }
            | DaemonEvent::Dispatcher { decides: false, .. }
            | DaemonEvent::Restored { .. }
            | DaemonEvent::Director(
                DirectorEvent::Silent(_)
                | DirectorEvent::Refused { .. }
                | DirectorEvent::AddressShared { .. },
            )
            | DaemonEvent::Node(LccpEvent::Silent { .. } | LccpEvent::Refused { .. }) => Level::Warning,
            DaemonEvent::Started { .. }
            | DaemonEvent::Ready { serving: true }
            | DaemonEvent::Stopping
            | DaemonEvent::Changed { .. }
            | DaemonEvent::Reloaded { restart_needed_for: None, trouble: None, .. }
            | DaemonEvent::Dispatcher { decides: true, .. }
            | DaemonEvent::Director(DirectorEvent::Answers(_))
            | DaemonEvent::Node(
                LccpEvent::Met { .. } | LccpEvent::Restarted { .. } | LccpEvent::Answers { .. },
            ) => Level::Info,
        }
    }
}

impl fmt::Display for DaemonEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaemonEvent::Farm(event) => event.fmt(f),
            DaemonEvent::Started { .. } => f.write_str("attached"),
            DaemonEvent::Ready { serving: true } => f.write_str("ready"),
            DaemonEvent::Ready { serving: false } => f.write_str(
                "some service has no server yet: its packets are dropped until one is found and healthy",
            ),
            DaemonEvent::Stopping => f.write_str("stopping"),
            DaemonEvent::Reloaded { trouble: Some(trouble), .. } => write!(f, "reloaded: {trouble}"),
            DaemonEvent::Reloaded { restart_needed_for: None, .. } => f.write_str("reloaded"),
            DaemonEvent::Reloaded { restart_needed_for: Some((keys, remedy)), .. } => {
                write!(f, "reloaded: all of it is in force but {keys}: {remedy}")
            }
            DaemonEvent::ReloadRefused { error, .. } => f.write_str(error),
            DaemonEvent::Changed { by, from, message } => write!(f, "{message} (by {by}, from {from})"),
            DaemonEvent::ChangesDropped { places } => {
                write!(f, "the file's value replaces the run-time change of {places}")
            }
            DaemonEvent::Dispatcher { address, decides: true } => {
                write!(f, "the dispatcher {address} selects servers again")
            }
            DaemonEvent::Dispatcher { address, decides: false } => write!(
                f,
                "the dispatcher {address} doesn't answer: this host decides by its own tables until it does"
            ),
            DaemonEvent::Restored { part } => {
                write!(f, "another program had removed or changed {part}; it was restored")
            }
            DaemonEvent::Missing { part, error } => {
                write!(f, "another program has removed or changed {part}, and restoring it failed: {error}")
            }
            DaemonEvent::Node(notice) => notice.fmt(f),
            DaemonEvent::Director(event) => event.fmt(f),
        }
    }
}

/// Event as subscribers get it.
#[derive(Clone, Debug)]
pub struct PublishedEvent {
    /// View of the event, with its number and time.
    pub view: Arc<EventView>,
    pub event: DaemonEvent,
}

/// Bus of events. Clones share the same bus.
#[derive(Clone, Debug)]
pub struct Bus {
    /// `None` ends the stream.
    sender: Sender<Option<Arc<PublishedEvent>>>,
    next: Arc<AtomicU64>,
    record: Arc<Mutex<EventRecord>>,
    lost: Arc<AtomicU64>,
}

/// Past events, and counters.
#[derive(Debug, Default)]
struct EventRecord {
    counts: BTreeMap<&'static str, u64>,
    /// Past events, including events of earlier daemons.
    past: PastEvents,
}

impl Default for Bus {
    fn default() -> Self {
        Bus::holding(BEHIND_MAX)
    }
}

impl Bus {
    fn holding(behind_max: usize) -> Bus {
        Bus {
            sender: broadcast::channel(behind_max).0,
            next: Arc::new(AtomicU64::new(1)),
            record: Arc::default(),
            lost: Arc::default(),
        }
    }

    /// Publishes an event without blocking.
    pub fn publish(&self, event: DaemonEvent) {
        let name = event.name();
        debug_assert!(EVENTS.iter().chain(director::EVENTS).any(|(known, _)| *known == name), "{name}");
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        *record.counts.entry(name).or_default() += 1;
        // Under the lock, so that numbers are in the order of publication.
        let number = self.next.fetch_add(1, Relaxed);
        let view = Arc::new(EventView::new(number, SystemTime::now(), &event));
        record.past.push(Arc::clone(&view));
        // There may be no subscriber.
        let _ = self.sender.send(Some(Arc::new(PublishedEvent { view, event })));
    }

    /// Restores the events of earlier daemons. Their numbers continue. Call before the first event.
    fn restore(&self, past: PastEvents) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        self.next.store(past.last_number() + 1, Relaxed);
        record.past = past;
    }

    /// Ends each subscriber's stream after the events published so far.
    pub fn end(&self) {
        let _ = self.sender.send(None);
    }

    /// Subscribes to events from now on.
    pub fn listen(&self) -> Subscriber {
        Subscriber { receiver: self.sender.subscribe(), lost: Arc::clone(&self.lost) }
    }

    /// Returns the events of the last `time`, and a subscription from now on, without a gap.
    pub fn listen_since(&self, time: Duration) -> (Vec<Arc<EventView>>, Subscriber) {
        let since = SystemTime::now().checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH);
        let since = view::time(since.max(SystemTime::UNIX_EPOCH));
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        (record.past.since(&since), self.listen())
    }

    /// Returns the number of events by name, and the number of events lost by subscribers.
    pub fn counts(&self) -> (BTreeMap<&'static str, u64>, u64) {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        (record.counts.clone(), self.lost.load(Relaxed))
    }

    /// Returns the number of the last event. 0 before the first event.
    pub fn last(&self) -> u64 {
        self.next.load(Relaxed) - 1
    }

    /// Returns the latest events, in order.
    pub fn recent(&self) -> Vec<Arc<EventView>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).past.latest(RECENT_MAX)
    }
}

#[derive(Debug)]
pub struct Subscriber {
    receiver: Receiver<Option<Arc<PublishedEvent>>>,
    lost: Arc<AtomicU64>,
}

/// Item for a subscriber.
#[derive(Clone, Debug)]
pub enum BusItem {
    Event(Arc<PublishedEvent>),
    /// Number of events lost here, because the subscriber was too slow.
    Lost(u64),
}

impl Subscriber {
    /// Returns the next item. `None` at the end.
    pub async fn next(&mut self) -> Option<BusItem> {
        let next = self.receiver.recv().await;
        self.item_of(next)
    }

    /// Like [`Subscriber::next`], but blocks the thread.
    fn wait(&mut self) -> Option<BusItem> {
        let next = self.receiver.blocking_recv();
        self.item_of(next)
    }

    fn item_of(&self, next: Result<Option<Arc<PublishedEvent>>, RecvError>) -> Option<BusItem> {
        match next {
            Ok(published) => published.map(BusItem::Event),
            Err(RecvError::Lagged(count)) => {
                self.lost.fetch_add(count, Relaxed);
                Some(BusItem::Lost(count))
            }
            Err(RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn publish_all(bus: &Bus, events: std::ops::Range<u64>) {
        events.for_each(|_| bus.publish(DaemonEvent::Stopping));
    }

    fn numbers(listener: &mut Subscriber) -> Vec<Result<u64, u64>> {
        std::iter::from_fn(|| listener.wait())
            .map(|item| match item {
                BusItem::Event(published) => Ok(published.view.number),
                BusItem::Lost(count) => Err(count),
            })
            .collect()
    }

    #[test]
    fn subscriber_gets_all_events_and_slow_one_gets_lost_count() {
        let bus = Bus::holding(4);
        let (mut quick, mut slow) = (bus.listen(), bus.listen());
        publish_all(&bus, 0..3);
        for number in 1..=3 {
            assert!(
                matches!(quick.wait(), Some(BusItem::Event(published)) if published.view.number == number)
            );
        }
        // Publishing does not block without a reader. Four items are kept, the last of which is the
        // end.
        publish_all(&bus, 0..10);
        bus.end();
        assert_eq!(numbers(&mut quick), [Err(7), Ok(11), Ok(12), Ok(13)]);
        assert_eq!(numbers(&mut slow), [Err(10), Ok(11), Ok(12), Ok(13)]);
        assert_eq!(bus.counts(), ([("stopping", 13)].into(), 17));
    }

    #[test]
    fn latest_events_are_kept_for_later_readers() {
        let bus = Bus::default();
        assert!(bus.recent().is_empty() && bus.last() == 0);
        publish_all(&bus, 0..RECENT_MAX as u64 + 5);
        let numbers: Vec<u64> = bus.recent().iter().map(|event| event.number).collect();
        assert_eq!((numbers[0], numbers[RECENT_MAX - 1], numbers.len()), (6, bus.last(), RECENT_MAX));
    }
}
