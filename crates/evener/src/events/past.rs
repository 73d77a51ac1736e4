//! Past events in memory: the latest for the dashboard, and all of a period for `evener events
//! --since`.

use std::collections::VecDeque;
use std::sync::Arc;

use super::EventView;

/// Maximum number of events, and of bytes of their text.
const EVENTS_MAX: usize = 10_000;
const BYTES_MAX: usize = 4 << 20;

/// Past events in order, the newest last.
#[derive(Debug, Default)]
pub(super) struct PastEvents {
    events: VecDeque<Arc<EventView>>,
    bytes: usize,
}

impl PastEvents {
    /// Adds an event, and drops the oldest ones if there are too many.
    pub(super) fn push(&mut self, event: Arc<EventView>) {
        self.bytes += size(&event);
        self.events.push_back(event);
        while self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.events.pop_front() else { return };
            self.bytes -= size(&oldest);
        }
    }

    /// Returns the highest number. 0 without events.
    pub(super) fn last_number(&self) -> u64 {
        self.events.iter().map(|event| event.number).max().unwrap_or_default()
    }

    /// Returns the last `count` events.
    pub(super) fn latest(&self, count: usize) -> Vec<Arc<EventView>> {
        self.events.iter().skip(self.events.len().saturating_sub(count)).cloned().collect()
    }

    /// Returns the events since a time in the events' format. After a backward step of the clock,
    /// times are not in order.
    pub(super) fn since(&self, time: &str) -> Vec<Arc<EventView>> {
        self.events.iter().filter(|event| event.time.as_str() >= time).cloned().collect()
    }
}

/// Estimates the memory of an event in bytes: of its long texts, and a constant for the rest.
fn size(event: &EventView) -> usize {
    256 + event.text.len() + event.reason.as_ref().map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::super::{DaemonEvent, view};
    use super::*;

    fn event(number: u64, at: SystemTime, length: usize) -> Arc<EventView> {
        let event = DaemonEvent::ReloadRefused { file: String::new(), error: "x".repeat(length) };
        Arc::new(EventView::new(number, at, &event))
    }

    #[test]
    fn oldest_events_are_dropped_by_number_and_by_size() {
        let (mut past, now) = (PastEvents::default(), SystemTime::now());
        (1..=EVENTS_MAX as u64 + 5).for_each(|number| past.push(event(number, now, 1)));
        assert_eq!((past.events.len(), past.latest(1)[0].number), (EVENTS_MAX, EVENTS_MAX as u64 + 5));
        assert_eq!(past.events[0].number, 6);
        past.push(event(20_000, now, BYTES_MAX / 2));
        assert!(past.bytes <= BYTES_MAX && past.last_number() == 20_000);
        past.push(event(20_001, now, BYTES_MAX));
        assert_eq!((past.events.len(), past.bytes), (0, 0), "one that is too large by itself");
    }

    #[test]
    fn events_since_a_time_are_found_though_the_clock_was_set() {
        let (mut past, base) = (PastEvents::default(), SystemTime::UNIX_EPOCH + Duration::from_secs(99));
        for (number, seconds) in [(1, 10), (2, 0), (3, 20), (4, 5)] {
            past.push(event(number, base + Duration::from_secs(seconds), 1));
        }
        let since = |seconds| -> Vec<u64> {
            let time = view::time(base + Duration::from_secs(seconds));
            past.since(&time).iter().map(|event| event.number).collect()
        };
        assert_eq!((since(10), since(11), since(21)), (vec![1, 3], vec![3], vec![]));
        assert_eq!(past.latest(2).iter().map(|event| event.number).collect::<Vec<_>>(), [3, 4]);
    }
}
