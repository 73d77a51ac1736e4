//! Traces of clients, and their queued lines.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use super::Traced;
use crate::cli::ClientArg;

/// Maximum number of traces at a time.
pub(crate) const TRACES_MAX: usize = 4;
/// Capacity of a trace's queue in lines. Further lines are lost.
const BEHIND_MAX: usize = 4_096;

/// Reader of a trace.
struct TraceSubscriber {
    client: ClientArg,
    lines: mpsc::Sender<Traced>,
    /// Number of lines that were lost since the last queued line.
    lost: u64,
}

impl TraceSubscriber {
    fn concerns(&self, ends: &[SocketAddr]) -> bool {
        let ClientArg { address, port } = self.client;
        ends.iter().any(|end| end.ip() == address && port.is_none_or(|port| port == end.port()))
    }

    /// Queues a line, preceded by the number of lost lines.
    fn send(&mut self, line: Traced) {
        if self.lost > 0 && self.lines.try_send(Traced::Lost { count: self.lost }).is_ok() {
            self.lost = 0;
        }
        if self.lost > 0 || self.lines.try_send(line).is_err() {
            self.lost += 1;
        }
    }
}

#[derive(Default)]
pub(super) struct Traces(Mutex<Vec<TraceSubscriber>>);

impl Traces {
    fn open(&self) -> MutexGuard<'_, Vec<TraceSubscriber>> {
        let mut traces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        traces.retain(|trace| !trace.lines.is_closed());
        traces
    }

    /// Traces a client until the receiver is dropped. Returns `None` if there are too many traces
    /// already.
    pub(super) fn follow(&self, client: ClientArg) -> Option<mpsc::Receiver<Traced>> {
        let mut traces = self.open();
        let (lines, receiver) = mpsc::channel(BEHIND_MAX);
        (traces.len() < TRACES_MAX).then(|| traces.push(TraceSubscriber { client, lines, lost: 0 }))?;
        Some(receiver)
    }

    /// Returns the traced clients.
    pub(super) fn clients(&self) -> BTreeSet<IpAddr> {
        self.open().iter().map(|trace| trace.client.address).collect()
    }

    /// Returns the number of traces.
    pub(super) fn len(&self) -> usize {
        self.open().len()
    }

    /// Queues a line for each trace of an address in `ends`.
    pub(super) fn publish(&self, ends: &[SocketAddr], line: impl FnOnce() -> Traced) {
        let mut traces = self.open();
        let mut concerned = traces.iter_mut().filter(|trace| trace.concerns(ends)).peekable();
        if concerned.peek().is_some() {
            let line = line();
            concerned.for_each(|trace| trace.send(line.clone()));
        }
    }

    /// Adds to the number of lost lines of every trace.
    pub(super) fn publish_lost(&self, count: u64) {
        self.open().iter_mut().for_each(|trace| trace.lost += count);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn client(text: &str) -> ClientArg {
        text.parse().unwrap()
    }

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn counts(lines: &mut mpsc::Receiver<Traced>) -> Vec<u64> {
        let mut counts = Vec::new();
        while let Ok(Traced::Lost { count }) = lines.try_recv() {
            counts.push(count);
        }
        counts
    }

    #[test]
    fn trace_subscriber_gets_its_client_only() {
        let traces = Traces::default();
        let mut any = traces.follow(client("198.51.100.7")).unwrap();
        let mut port = traces.follow(client("198.51.100.7:40000")).unwrap();
        let mut other = traces.follow(client("2001:db8::7")).unwrap();
        let service = end("192.0.2.100:80");
        let lost_line = |count, a: &str| {
            traces.publish(&[end(a), service], || Traced::Lost { count });
        };
        lost_line(1, "198.51.100.7:40000");
        lost_line(2, "198.51.100.7:40001");
        lost_line(3, "[2001:db8::7]:40000");
        lost_line(4, "198.51.100.8:40000");
        traces.publish(&[service, end("198.51.100.7:40000")], || Traced::Lost { count: 5 });
        assert_eq!([&mut any, &mut port, &mut other].map(counts), [vec![1, 2, 5], vec![1, 5], vec![3]]);
        assert_eq!(traces.clients().len(), 2);
        drop(any);
        assert_eq!((traces.len(), traces.clients().len()), (2, 2));
        drop(port);
        assert_eq!(traces.clients(), ["2001:db8::7".parse().unwrap()].into());
    }

    #[test]
    fn there_are_only_so_many_and_one_that_ends_makes_room() {
        let traces = Traces::default();
        let mut all: Vec<_> = (0..TRACES_MAX).map(|_| traces.follow(client("192.0.2.1")).unwrap()).collect();
        assert!(traces.follow(client("192.0.2.1")).is_none());
        all.pop();
        assert!(traces.follow(client("192.0.2.1")).is_some());
    }

    #[test]
    fn slow_trace_subscriber_gets_lost_count() {
        let traces = Traces::default();
        let mut lines = traces.follow(client("192.0.2.1")).unwrap();
        let publish_one = || traces.publish(&[end("192.0.2.1:1")], || Traced::Lost { count: 0 });
        (0..BEHIND_MAX + 3).for_each(|_| publish_one());
        traces.publish_lost(2);
        assert_eq!(counts(&mut lines), vec![0; BEHIND_MAX]);
        publish_one();
        assert_eq!(counts(&mut lines), [5, 0]);
    }
}
