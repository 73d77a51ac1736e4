//! Records of single connections and packets: the access log, and traces of clients.
//!
//! A thread reads the data plane's events ([`listener`]). User-space readers record the connections
//! that they handle. No caller is blocked: an event that finds no room is lost and counted.

mod access;
mod latency;
mod line;
mod lines;
mod listener;
mod names;
mod summary;
mod trace;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use evener_core::path::content::RouteIndex;
use evener_core::path::cookie::FourTuple;
use evener_core::path::decide::Reason;
use evener_core::path::tables::NO_SERVER;
use evener_dataplane::events::{ConnectionEvent, PacketEvent, TraceFilter, TracedVerdict};
use tokio::sync::mpsc;

use crate::cli::ClientArg;
use crate::config::LogTarget;
use access::{AccessLogQueue, LogCounts};
use latency::LatencyHistogram;
use summary::{ApplicationProtocol, RequestSummary};
use trace::Traces;

pub(crate) use crate::runtime::shown::json;
pub(crate) use access::AccessLogFile;
pub use lines::{AccessLog, AccessLogEntry, DecisionLatency, Traced, TracedPacket};
pub(crate) use listener::TraceReader;
pub(crate) use names::TableNames;
pub(crate) use trace::TRACES_MAX;

/// Outcome of a connection, and how its server was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// Forwarded by the data plane.
    Kernel,
    /// Read in user space, and moved to its server.
    Punted,
    /// Read in user space, and spliced by the daemon.
    Spliced,
    /// Answered with an error, or reset.
    Refused,
    /// No server is available.
    NoServer,
    /// The client sent no complete request in time.
    ClientTimeout,
    /// The client closed the connection before a complete request.
    ClientClosed,
    /// Reset unread, since too many connections are being read.
    Evicted,
}

impl Mechanism {
    const ALL: [Mechanism; 8] = [
        Mechanism::Kernel,
        Mechanism::Punted,
        Mechanism::Spliced,
        Mechanism::Refused,
        Mechanism::NoServer,
        Mechanism::ClientTimeout,
        Mechanism::ClientClosed,
        Mechanism::Evicted,
    ];

    fn name(self) -> &'static str {
        match self {
            Mechanism::Kernel => "kernel",
            Mechanism::Punted => "punted",
            Mechanism::Spliced => "spliced",
            Mechanism::Refused => "refused",
            Mechanism::NoServer => "no_server",
            Mechanism::ClientTimeout => "client_timeout",
            Mechanism::ClientClosed => "client_closed",
            Mechanism::Evicted => "evicted",
        }
    }
}

/// A connection whose decision is final.
pub(crate) struct HandoffRecord<'b> {
    pub(crate) ends: FourTuple,
    pub(crate) mechanism: Mechanism,
    /// Client's bytes, or their beginning.
    pub(crate) head: &'b [u8],
    /// Number of the matched route, from 1.
    pub(crate) route: Option<u64>,
    /// Slot of the server.
    pub(crate) server: Option<u16>,
    /// Status of the daemon's own response.
    pub(crate) status: Option<u16>,
    pub(crate) at: SystemTime,
    pub(crate) latency: Duration,
}

/// A request to a service with method `redirect`, whose decision is final.
pub(crate) struct RedirectRecord<'b> {
    pub(crate) client: SocketAddr,
    pub(crate) service: &'b str,
    /// Head of the request.
    pub(crate) head: &'b [u8],
    /// Name of the selected member.
    pub(crate) server: Option<&'b str>,
    pub(crate) status: u16,
    /// Outcome as a word.
    pub(crate) mechanism: &'static str,
    pub(crate) at: SystemTime,
    pub(crate) latency: Duration,
}

impl RedirectRecord<'_> {
    fn line(&self) -> AccessLogEntry {
        let summary = RequestSummary::of(self.head);
        let text = |bytes: Option<&[u8]>| bytes.map(line::text);
        AccessLogEntry {
            time: time(self.at),
            service: self.service.to_owned(),
            client: self.client.to_string(),
            kind: summary.kind.map(|kind| kind.name().to_owned()),
            method: text(summary.method),
            host: text(summary.host),
            sni: None,
            path: text(summary.target),
            cut: summary.cut,
            route: None,
            server: self.server.map(str::to_owned),
            mechanism: self.mechanism.to_owned(),
            status: Some(self.status),
            decide_us: self.latency.as_nanos() as f64 / 1e3,
        }
    }
}

/// Receives all records, for the access log and for traces.
#[derive(Default)]
pub(crate) struct Recorder {
    names: RwLock<Arc<TableNames>>,
    writing: RwLock<Option<AccessLogQueue>>,
    traces: Traces,
    latencies: [LatencyHistogram; Mechanism::ALL.len()],
    counts: Arc<LogCounts>,
    /// Number of events that the data plane lost while there was a log.
    lost_events: AtomicU64,
}

impl Recorder {
    pub(crate) fn name(&self, names: TableNames) {
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
    }

    fn names(&self) -> Arc<TableNames> {
        Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the log, or ends it. The previous log still gets its queued lines.
    ///
    /// # Errors
    /// If the log's thread can't be started. There is no log then.
    pub(crate) fn log(&self, log: Option<AccessLogFile>) -> Result<(), String> {
        let started = log.map(|log| AccessLogQueue::start(log, Arc::clone(&self.counts))).transpose();
        let (writing, error) = match started {
            Ok(writing) => (writing, None),
            Err(error) => (None, Some(format!("the access log has no thread to write it: {error}"))),
        };
        *self.writing.write().unwrap_or_else(PoisonError::into_inner) = writing;
        error.map_or(Ok(()), Err)
    }

    /// Ends the log after its queued lines are written.
    pub(crate) fn finish(&self) {
        let writing = self.writing.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writing) = writing {
            writing.finish();
        }
    }

    fn target(&self) -> Option<LogTarget> {
        let writing = self.writing.read().unwrap_or_else(PoisonError::into_inner);
        writing.as_ref().map(|writing| writing.target.clone())
    }

    /// Traces a client until the receiver is dropped. Returns `None` if there are too many traces
    /// already.
    pub(crate) fn follow(&self, client: ClientArg) -> Option<mpsc::Receiver<Traced>> {
        self.traces.follow(client)
    }

    /// Returns the filter for the data plane.
    pub(crate) fn wanted(&self) -> TraceFilter {
        let clients = self.traces.clients();
        TraceFilter { connections: self.target().is_some() || !clients.is_empty(), clients }
    }

    /// Returns the routes in force of a service.
    pub(crate) fn routes(&self, service: SocketAddr) -> Option<Arc<RouteIndex>> {
        self.names().routes(service)
    }

    /// True if connections are logged or traced.
    pub(crate) fn is_wanted(&self) -> bool {
        self.traces.len() > 0 || self.writing.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Records a request to a `redirect` service.
    pub(crate) fn redirected(&self, redirected: &RedirectRecord<'_>) {
        let line = || redirected.line();
        if let Some(writing) = &*self.writing.read().unwrap_or_else(PoisonError::into_inner) {
            writing.enqueue(line());
        }
        self.traces.publish(&[redirected.client], || Traced::Decision(line()));
    }

    /// Records the outcome of a connection.
    pub(crate) fn decided(&self, decided: &HandoffRecord<'_>) {
        if let Some(histogram) = self.latencies.get(decided.mechanism as usize) {
            histogram.add(decided.latency);
        }
        let line = || self.line(decided);
        if let Some(writing) = &*self.writing.read().unwrap_or_else(PoisonError::into_inner) {
            writing.enqueue(line());
        }
        self.traces.publish(&[decided.ends.client], || Traced::Decision(line()));
    }

    fn line(&self, decided: &HandoffRecord<'_>) -> AccessLogEntry {
        let (names, summary) = (self.names(), RequestSummary::of(decided.head));
        let FourTuple { client, service } = decided.ends;
        let text = |bytes: Option<&[u8]>| bytes.map(line::text);
        let is_tls = summary.kind == Some(ApplicationProtocol::Tls);
        AccessLogEntry {
            time: time(decided.at),
            service: names.service(service).map_or_else(|| service.to_string(), str::to_owned),
            client: client.to_string(),
            kind: summary.kind.map(|kind| kind.name().to_owned()),
            method: text(summary.method),
            host: text(summary.host.filter(|_| !is_tls)),
            sni: text(summary.host.filter(|_| is_tls)),
            path: text(summary.target),
            cut: summary.cut,
            route: decided.route,
            server: decided.server.and_then(|slot| names.server(slot)).map(str::to_owned),
            mechanism: decided.mechanism.name().to_owned(),
            status: decided.status,
            // Whole nanoseconds, as the data plane measures.
            decide_us: decided.latency.as_nanos() as f64 / 1e3,
        }
    }

    /// Notes a connection that the data plane reports. The user-space reader records its own
    /// connections.
    fn connection(&self, event: &ConnectionEvent, at: SystemTime) {
        let mechanism = match (event.also_counted, event.server) {
            (Some(Reason::Punted), _) => return,
            (Some(Reason::TableFull), _) => Mechanism::Refused,
            (_, NO_SERVER) => Mechanism::NoServer,
            _ => Mechanism::Kernel,
        };
        self.decided(&HandoffRecord {
            ends: FourTuple { client: event.client, service: event.service },
            mechanism,
            head: &event.head,
            route: event.route.map(|route| u64::from(route) + 1),
            server: (event.server != NO_SERVER).then_some(event.server),
            status: None,
            at,
            latency: Duration::from_nanos(event.latency_ns.into()),
        });
    }

    /// Records a packet that the data plane reports.
    fn packet(&self, event: &PacketEvent, at: SystemTime) {
        self.traces.publish(&[event.src, event.dst], || {
            let server = self.names().server(event.server).map(str::to_owned);
            Traced::Packet(packet(event, at, server))
        });
    }

    /// Records that events were lost.
    fn missed(&self, count: u64) {
        if self.target().is_some() {
            self.lost_events.fetch_add(count, Relaxed);
        }
        self.traces.publish_lost(count);
    }

    /// Returns the state of the access log.
    pub(crate) fn show_log(&self) -> AccessLog {
        AccessLog {
            path: self.target().map(|target| target.to_string()),
            written: self.counts.written.load(Relaxed),
            lost: self.counts.lost.load(Relaxed) + self.lost_events.load(Relaxed),
        }
    }

    /// Returns the number of traces.
    pub(crate) fn traces(&self) -> u64 {
        self.traces.len() as u64
    }

    /// Returns the duration of decisions, by mechanism.
    pub(crate) fn latencies_shown(&self) -> impl Iterator<Item = (String, DecisionLatency)> {
        let shown = Mechanism::ALL.into_iter().zip(self.latencies.iter().map(LatencyHistogram::show));
        shown
            .map(|(mechanism, histogram)| (mechanism.name().to_owned(), histogram))
            .filter(|(_, histogram)| histogram.count > 0)
    }
}

/// Formats a time as in RFC 3339, in UTC.
fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

fn packet(event: &PacketEvent, at: SystemTime, server: Option<String>) -> TracedPacket {
    let end = |end: SocketAddr| if end.port() == 0 { end.ip().to_string() } else { end.to_string() };
    let verdict = match event.verdict {
        TracedVerdict::Forward => "forward",
        TracedVerdict::Pass => "pass",
        TracedVerdict::Drop => "drop",
        TracedVerdict::Hold => "hold",
    };
    TracedPacket {
        time: time(at),
        protocol: protocol(event.protocol),
        flags: (event.protocol == TCP).then(|| flags(event.tcp_flags)),
        src: end(event.src),
        dst: end(event.dst),
        bytes: event.len.into(),
        verdict: verdict.to_owned(),
        reason: event.reason.name().to_owned(),
        also_counted: event.also_counted.map(|reason| reason.name().to_owned()),
        server,
    }
}

const TCP: u8 = 6;

/// Returns the name of an IANA protocol number, as far as services and their clients use it.
fn protocol(number: u8) -> String {
    let name = match number {
        1 => "icmp",
        TCP => "tcp",
        17 => "udp",
        58 => "icmpv6",
        _ => return number.to_string(),
    };
    name.to_owned()
}

/// Returns the names of TCP flags, the lowest bit first (RFC 9293, section 3.1).
fn flags(bits: u8) -> String {
    const NAMES: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
    let set = NAMES.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
