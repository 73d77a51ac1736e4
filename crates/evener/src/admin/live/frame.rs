//! A frame: the farm at one moment, and the difference from the previous frame.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use axum::body::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};

use super::delta::{TableDelta, fields};
use crate::admin::state::{ChangeView, change_views};
use crate::views::{
    EventView, FarmView, HostView, NameView, ServerView, ServiceView, StatusView, ViewSource,
};

/// The farm at one moment.
pub(super) struct Moment {
    farm: FarmView,
    changes: Vec<ChangeView>,
    /// Latest events, in order.
    events: Vec<Arc<EventView>>,
    at_ms: u64,
    /// Wall clock time, as in events.
    time: String,
    daemon: Arc<str>,
    /// Number of the last event, read before everything else, so that a later event causes another
    /// frame.
    last_event: u64,
}

impl Moment {
    pub(super) fn of(farm: &dyn ViewSource, daemon: &Arc<str>, at_ms: u64) -> Moment {
        let last_event = farm.last_event();
        Moment {
            last_event,
            changes: change_views(&farm.farm_state()),
            events: farm.recent_events(),
            farm: farm.farm(),
            at_ms,
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            daemon: Arc::clone(daemon),
        }
    }

    fn last_event_shown(&self) -> u64 {
        // If a start can't read earlier events, numbers begin again. So the last event need not
        // have the highest number.
        self.events.iter().map(|event| event.number).max().unwrap_or_default()
    }
}

/// Full state of a moment.
#[derive(Serialize)]
struct Snapshot<'a> {
    number: u64,
    daemon: &'a str,
    at_ms: u64,
    time: &'a str,
    status: &'a StatusView,
    services: &'a [ServiceView],
    servers: &'a [ServerView],
    hosts: &'a [HostView],
    names: &'a [NameView],
    changes: &'a [ChangeView],
    events: &'a [Arc<EventView>],
}

/// Difference from the previous moment.
#[derive(Serialize)]
struct Delta<'a> {
    number: u64,
    at_ms: u64,
    time: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    status: Map<String, Value>,
    #[serde(skip_serializing_if = "TableDelta::is_empty")]
    services: TableDelta<'a, ServiceView>,
    #[serde(skip_serializing_if = "TableDelta::is_empty")]
    servers: TableDelta<'a, ServerView>,
    #[serde(skip_serializing_if = "TableDelta::is_empty")]
    hosts: TableDelta<'a, HostView>,
    #[serde(skip_serializing_if = "TableDelta::is_empty")]
    names: TableDelta<'a, NameView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<&'a [ChangeView]>,
    #[serde(skip_serializing_if = "<[Arc<EventView>]>::is_empty")]
    events: &'a [Arc<EventView>],
}

/// A moment, as a snapshot and as a delta.
pub(super) struct Frame {
    number: u64,
    moment: Moment,
    delta: Bytes,
    /// Encoded when the first listener needs it.
    snapshot: OnceLock<Bytes>,
}

impl Frame {
    pub(super) fn new(number: u64, moment: Moment, before: Option<&Frame>) -> Frame {
        let delta = before.map(|before| delta(number, &before.moment, &moment)).unwrap_or_default();
        Frame { number, moment, delta, snapshot: OnceLock::new() }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of the last event before the frame.
    pub(super) fn last_event(&self) -> u64 {
        self.moment.last_event
    }

    /// Returns the frame for a listener that has the previous one.
    pub(super) fn delta(&self) -> Bytes {
        self.delta.clone()
    }

    /// Returns the frame for all other listeners.
    pub(super) fn snapshot(&self) -> Bytes {
        self.snapshot.get_or_init(|| snapshot(self.number, &self.moment)).clone()
    }
}

fn snapshot(number: u64, moment: &Moment) -> Bytes {
    let Moment { farm, changes, events, at_ms, time, daemon, .. } = moment;
    let FarmView { status, services, servers, hosts, names, directors: _ } = farm;
    let at_ms = *at_ms;
    let all =
        Snapshot { number, daemon, at_ms, time, status, services, servers, hosts, names, changes, events };
    message("snapshot", &all)
}

fn delta(number: u64, before: &Moment, now: &Moment) -> Bytes {
    let (old, new) = (&before.farm, &now.farm);
    let last = before.last_event_shown();
    let seen = now.events.partition_point(|event| event.number <= last);
    message(
        "delta",
        &Delta {
            number,
            at_ms: now.at_ms,
            time: &now.time,
            status: fields(&old.status, &new.status),
            services: TableDelta::between(&old.services, &new.services),
            servers: TableDelta::between(&old.servers, &new.servers),
            hosts: TableDelta::between(&old.hosts, &new.hosts),
            names: TableDelta::between(&old.names, &new.names),
            changes: (before.changes != now.changes).then_some(&now.changes),
            events: now.events.get(seen..).unwrap_or_default(),
        },
    )
}

/// Formats a server-sent event (WHATWG HTML, section 9.2).
fn message(event: &str, data: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(data).unwrap_or_else(|error| {
        tracing::error!(%error, "failed to encode a dashboard frame as JSON");
        "null".to_owned()
    });
    Bytes::from(format!("event: {event}\ndata: {json}\n\n"))
}
