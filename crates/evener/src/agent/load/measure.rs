//! Computes a host's load from its counters: rates and shares between two readings, smoothed.

use std::time::Duration;

use serde::Serialize;

use super::bandwidth::PathBandwidth;

/// Time constant of the smoothing, in seconds.
const SMOOTHS_SECONDS: f64 = 5.0;
/// Maximum plausible number of requests per second.
const REQUESTS_MAX: f64 = 1e8;

/// Counters of a host at one moment. `None` for a counter that can't be read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct HostCounters {
    /// Running or runnable processes, without this process.
    pub(super) running: Option<u64>,
    /// Busy and total processor time.
    pub(super) busy: Option<(u64, u64)>,
    /// Available and total memory.
    pub(super) memory: Option<(u64, u64)>,
    /// Outstanding bytes of the services' connections.
    pub(super) sockets: Option<ToSend>,
    /// Bandwidth of the paths to clients.
    pub(super) paths: Option<PathBandwidth>,
    pub(super) requests: Option<RequestCount>,
}

/// Number of requests since the start of a server program, or of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestCount {
    /// Requests answered by the server program, from its status page.
    Page {
        all: u64,
        /// Number of these requests that this program itself sent.
        own: u64,
    },
    /// Requests that this program's kernel programs have read.
    Kernel {
        requests: u64,
        /// Connections whose requests can't be read: TLS, HTTP/2 and others.
        unread: u64,
    },
}

/// Outstanding bytes of the services' connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ToSend {
    /// Number of open connections.
    pub(super) connections: u64,
    /// Bytes of responses that clients have not received.
    pub(super) bytes: u64,
    /// Number of these bytes that are in the kernel's queues.
    pub(super) lower_bound: u64,
    /// True if the end of each response is known. Otherwise, a response with an unknown end counts
    /// with its bytes in the kernel's queues.
    pub(super) is_exact: bool,
    /// Time to send the outstanding bytes.
    pub(super) delay_seconds: Option<f64>,
    /// Number of requests that could not be tracked for lack of memory.
    pub(super) unfollowed: Option<u64>,
}

/// Reported load. An unknown value is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::agent) struct Load {
    /// Running or runnable processes.
    pub(in crate::agent) run_queue: Option<f64>,
    /// Busy share of the processors.
    pub(in crate::agent) cpu: Option<f64>,
    /// Used share of the memory.
    pub(in crate::agent) memory: Option<f64>,
    /// Open connections of services.
    pub(in crate::agent) connections: Option<u64>,
    pub(in crate::agent) requests_per_second: Option<f64>,
    /// Source of this rate: `status_url` or `kernel`. `unread` if the rate is unknown because most
    /// connections use TLS, HTTP/2 or another protocol than HTTP/1.
    pub(in crate::agent) requests_source: Option<&'static str>,
    /// Load as in messages of server groups: 10 (requests per second + run queue).
    pub(in crate::agent) load: Option<f64>,
    /// Bytes of responses that clients have not received.
    pub(in crate::agent) bytes_to_send: Option<u64>,
    /// Number of these bytes in the kernel's queues. A correct report is never smaller.
    pub(in crate::agent) lower_bound: Option<u64>,
    /// `exact`, or `lower_bound` if the end of a response is unknown: the part that the server
    /// program has not written yet is missing.
    pub(in crate::agent) bytes_source: Option<&'static str>,
    /// Time to send these bytes at the current speed.
    pub(in crate::agent) delay_seconds: Option<f64>,
    /// Number of requests that could not be tracked for lack of memory. Of their bytes, only those
    /// in the kernel's queues are reported.
    pub(in crate::agent) requests_unfollowed: Option<u64>,
    /// Rate to the median client and to the fastest one, in bits per second, from replies of the
    /// last minute.
    pub(in crate::agent) available_bps: Option<u64>,
    pub(in crate::agent) bottleneck_bps: Option<u64>,
}

/// Computes the load from readings.
#[derive(Debug, Default)]
pub(super) struct Meter {
    last: Option<(HostCounters, Duration)>,
    run_queue: Option<f64>,
    cpu: Option<f64>,
    requests: Option<f64>,
    /// Connections per second whose requests can't be read.
    unread: Option<f64>,
    /// Number of the director's probes per second, which are not clients' requests.
    probes_per_second: f64,
}

impl Meter {
    /// Returns the load after one more reading. `at` is the time since the start.
    pub(super) fn measure(&mut self, now: HostCounters, at: Duration) -> Load {
        let (last, last_at) = self.last.replace((now, at)).unwrap_or((HostCounters::default(), at));
        let seconds = at.saturating_sub(last_at).as_secs_f64();
        let busy = now.busy.zip(last.busy).and_then(|((busy, all), (busy_before, all_before))| {
            let (busy, all) = (busy.checked_sub(busy_before)?, all.checked_sub(all_before)?);
            (all > 0).then(|| busy.min(all) as f64 / all as f64)
        });
        smooth(&mut self.run_queue, now.running.map(|running| running as f64), seconds);
        smooth(&mut self.cpu, busy, seconds);
        let (requests, requests_source) = self.requests(&now, &last, seconds);
        let mut load = Load {
            run_queue: self.run_queue,
            cpu: self.cpu,
            memory: now
                .memory
                .filter(|(_, all)| *all > 0)
                .map(|(free, all)| 1.0 - free.min(all) as f64 / all as f64),
            requests_per_second: requests,
            requests_source,
            load: self.run_queue.map(|run_queue| 10.0 * (requests.unwrap_or_default() + run_queue)),
            available_bps: now.paths.map(|paths| paths.available),
            bottleneck_bps: now.paths.map(|paths| paths.bottleneck),
            ..Load::default()
        };
        load.set_to_send(now.sockets);
        load
    }
}

impl Meter {
    /// Creates a meter that subtracts the director's probes, at this rate per second.
    pub(super) fn without_probes(probes_per_second: f64) -> Meter {
        Meter { probes_per_second, ..Meter::default() }
    }

    /// Returns clients' requests per second, smoothed, with their source.
    fn requests(
        &mut self,
        now: &HostCounters,
        last: &HostCounters,
        seconds: f64,
    ) -> (Option<f64>, Option<&'static str>) {
        let counts = now.requests.zip(last.requests);
        let (source, rate, unread) = match counts {
            Some((
                RequestCount::Page { all, own },
                RequestCount::Page { all: all_before, own: own_before },
            )) => {
                let rate = self.request_rate(all, all_before, own.saturating_sub(own_before), seconds);
                ("status_url", rate, None)
            }
            Some((
                RequestCount::Kernel { requests, unread },
                RequestCount::Kernel { requests: before, unread: unread_before },
            )) => {
                let unread = unread.saturating_sub(unread_before) as f64 / seconds;
                ("kernel", self.request_rate(requests, before, 0, seconds), Some(unread))
            }
            _ => return (None, None),
        };
        smooth(&mut self.requests, rate, seconds);
        smooth(&mut self.unread, unread.filter(|unread| unread.is_finite()), seconds);
        let rate = rate.and(self.requests);
        // A few connections of scanners are no reason to discard the count.
        let is_unread = rate.is_some_and(|rate| unread.and(self.unread).is_some_and(|unread| unread > rate));
        if is_unread { (None, Some("unread")) } else { (rate, rate.and(Some(source))) }
    }

    /// Returns clients' requests per second. `None` if the count falls, or rises implausibly.
    fn request_rate(&self, all: u64, before: u64, own: u64, seconds: f64) -> Option<f64> {
        let grown = all.checked_sub(before)?;
        let rate = grown.saturating_sub(own) as f64 / seconds - self.probes_per_second;
        (seconds > 0.0 && rate < REQUESTS_MAX).then(|| rate.max(0.0))
    }
}

impl Load {
    /// Sets the current outstanding bytes.
    pub(super) fn set_to_send(&mut self, now: Option<ToSend>) {
        self.connections = now.map(|sums| sums.connections);
        self.bytes_to_send = now.map(|sums| sums.bytes);
        self.lower_bound = now.map(|sums| sums.lower_bound);
        self.bytes_source = now.map(|sums| source_of(sums.is_exact));
        self.delay_seconds = now.and_then(|sums| sums.delay_seconds);
        self.requests_unfollowed = now.and_then(|sums| sums.unfollowed);
    }

    /// Returns the share of its weight that the server wants, in percent: its idle share, at least
    /// 1.
    pub(super) fn percent(&self) -> Option<u8> {
        self.cpu.map(|cpu| (100.0 * (1.0 - cpu)).round().clamp(1.0, 100.0) as u8)
    }
}

/// Returns the name of the source.
pub(in crate::agent) fn source_of(is_exact: bool) -> &'static str {
    if is_exact { "exact" } else { "lower_bound" }
}

/// Moves the smoothed value towards the current one, by the time since the last reading. An unknown
/// value changes nothing.
fn smooth(smoothed: &mut Option<f64>, now: Option<f64>, seconds: f64) {
    let Some(now) = now else { return };
    let share = 1.0 - (-seconds / SMOOTHS_SECONDS).exp();
    *smoothed = Some(smoothed.map_or(now, |before| before + (now - before) * share));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn reading(at: u64) -> HostCounters {
        HostCounters {
            running: Some(2),
            busy: Some((at * 30, at * 100)),
            memory: Some((250, 1_000)),
            sockets: Some(ToSend {
                connections: 7,
                bytes: 4_000,
                lower_bound: 3_000,
                is_exact: true,
                delay_seconds: Some(2.0),
                unfollowed: None,
            }),
            paths: Some(PathBandwidth { available: 4_000_000, bottleneck: 9_000_000 }),
            requests: Some(RequestCount::Page { all: at * 5, own: 0 }),
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_readings() {
        let mut meter = Meter::default();
        let first = meter.measure(reading(0), Duration::ZERO);
        assert_eq!((first.run_queue, first.cpu, first.memory), (Some(2.0), None, Some(0.75)));
        assert_eq!((first.requests_per_second, first.load), (None, Some(20.0)));
        let second = meter.measure(reading(1), Duration::from_secs(1));
        assert_eq!((second.cpu, second.requests_per_second), (Some(0.3), Some(5.0)));
        assert_eq!((second.load, second.delay_seconds), (Some(70.0), Some(2.0)));
        assert_eq!((second.available_bps, second.bottleneck_bps), (Some(4_000_000), Some(9_000_000)));
        assert_eq!((second.lower_bound, second.bytes_source), (Some(3_000), Some("exact")));
        assert_eq!(
            (second.connections, second.bytes_to_send, second.percent()),
            (Some(7), Some(4_000), Some(70))
        );
    }

    #[test]
    fn chance_is_smoothed_away() {
        let mut meter = Meter::default();
        meter.measure(HostCounters { running: Some(0), ..HostCounters::default() }, Duration::ZERO);
        let mut after = |seconds| {
            let now = HostCounters { running: Some(10), ..HostCounters::default() };
            meter.measure(now, Duration::from_secs(seconds)).run_queue.unwrap()
        };
        assert!((after(1) - 1.81).abs() < 0.01);
        assert!((after(6) - 6.99).abs() < 0.01, "two thirds of the way five seconds later");
        assert!(after(60) > 9.9);
    }

    #[test]
    fn questions_of_agents_and_directors_are_no_clients_requests() {
        let mut meter = Meter::without_probes(0.5);
        let of = |all, own| HostCounters {
            running: Some(0),
            requests: Some(RequestCount::Page { all, own }),
            ..HostCounters::default()
        };
        meter.measure(of(0, 0), Duration::ZERO);
        let mut rate = |requests, own_requests, seconds| {
            meter.measure(of(requests, own_requests), Duration::from_secs(seconds)).requests_per_second
        };
        assert_eq!(rate(200, 5, 10), Some(19.0));
        assert!(rate(200, 9, 20).unwrap() < 19.0, "fewer than the own are none");
        assert_eq!(rate(u64::MAX, 9, 21), None, "no server answers so many");
        assert_eq!(rate(3, 9, 22), None, "it was begun anew");
        assert!(rate(23, 9, 23).is_some());
    }

    #[test]
    fn requests_of_unreadable_connections_are_unknown() {
        let mut meter = Meter::default();
        let of = |requests, unread| HostCounters {
            running: Some(1),
            requests: Some(RequestCount::Kernel { requests, unread }),
            ..HostCounters::default()
        };
        assert_eq!(meter.measure(of(7, 0), Duration::ZERO).requests_source, None, "nothing to compare");
        let clear = meter.measure(of(27, 1), Duration::from_secs(1));
        assert_eq!((clear.requests_per_second, clear.requests_source), (Some(20.0), Some("kernel")));
        assert_eq!(clear.load, Some(210.0), "a scanner changes nothing");
        let tls = meter.measure(of(27, 10_001), Duration::from_secs(21));
        assert_eq!((tls.requests_per_second, tls.requests_source), (None, Some("unread")));
        assert_eq!(tls.load, Some(10.0), "10 m");
        let page =
            HostCounters { requests: Some(RequestCount::Page { all: 9, own: 0 }), ..HostCounters::default() };
        let changed = meter.measure(page, Duration::from_secs(22));
        assert_eq!((changed.requests_per_second, changed.requests_source), (None, None), "after a reload");
    }

    #[test]
    fn impossible_counters_give_unknown_load() {
        let mut meter = Meter::default();
        assert_eq!(meter.measure(HostCounters::default(), Duration::ZERO), Load::default());
        meter.measure(reading(9), Duration::from_secs(1));
        let after_reset = meter.measure(reading(1), Duration::from_secs(2));
        assert_eq!((after_reset.requests_per_second, after_reset.cpu), (None, None));
        let idle = ToSend { delay_seconds: Some(0.0), ..ToSend::default() };
        let mut load = meter
            .measure(HostCounters { sockets: Some(idle), ..HostCounters::default() }, Duration::from_secs(3));
        assert_eq!((load.delay_seconds, load.bytes_source), (Some(0.0), Some("lower_bound")));
        load.set_to_send(None);
        assert_eq!((load.delay_seconds, load.bytes_to_send), (None, None));
        assert_eq!(
            Load { cpu: Some(1.0), ..Load::default() }.percent(),
            Some(1),
            "nobody is left without a word"
        );
    }
}
