//! Readings of a host, made into load: rates and shares of the time between two readings, smoothed.

use std::time::Duration;

use serde::Serialize;

use super::bandwidth::PathBandwidth;

/// Chance ups and downs of this many seconds are smoothed away.
const SMOOTHS_SECONDS: f64 = 5.0;
/// More requests in a second are answered by no server.
const REQUESTS_MAX: f64 = 1e8;

/// A host's counters at one moment. A counter that can't be read isn't there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct HostCounters {
    /// Processes that run or wait to, without the one that reads.
    pub(super) running: Option<u64>,
    /// Processors' time that was spent on anything, and all of it.
    pub(super) busy: Option<(u64, u64)>,
    /// Memory that is free or can be made so, and all of it.
    pub(super) memory: Option<(u64, u64)>,
    /// The bytes that connections of services have to send.
    pub(super) sockets: Option<ToSend>,
    /// The bandwidth of paths to clients.
    pub(super) paths: Option<PathBandwidth>,
    /// Requests that its server program has answered.
    pub(super) requests: Option<u64>,
    /// The part of that which is this program's own.
    pub(super) own_requests: u64,
}

/// The bytes that connections of services have to send.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ToSend {
    /// How many are open.
    pub(super) connections: u64,
    /// The bytes that clients lack of their answers.
    pub(super) bytes: u64,
    /// The part of it in the kernel.
    pub(super) lower_bound: u64,
    /// Whether the end of each answer is known; else the kernel's part stands for those whose end
    /// isn't.
    pub(super) is_exact: bool,
    /// How long it takes.
    pub(super) delay_seconds: Option<f64>,
    /// Requests that couldn't be followed, so far, for want of memory.
    pub(super) unfollowed: Option<u64>,
}

/// The reported load. An unknown value is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::agent) struct Load {
    /// Processes that run or wait to.
    pub(in crate::agent) run_queue: Option<f64>,
    /// Of all processors' time, what is spent.
    pub(in crate::agent) cpu: Option<f64>,
    /// Of all memory, what is used.
    pub(in crate::agent) memory: Option<f64>,
    /// Open connections of services.
    pub(in crate::agent) connections: Option<u64>,
    pub(in crate::agent) requests_per_second: Option<f64>,
    /// The server groups' load, 10 (r + m).
    pub(in crate::agent) load: Option<f64>,
    /// The bytes that clients lack of the answers to their requests.
    pub(in crate::agent) bytes_to_send: Option<u64>,
    /// The kernel's count of them: a smaller report is wrong.
    pub(in crate::agent) lower_bound: Option<u64>,
    /// `exact`, or `lower_bound` where the end of some answer isn't known: what the server program
    /// has yet to write of it isn't in the kernel.
    pub(in crate::agent) bytes_source: Option<&'static str>,
    /// How long those bytes will take at the speed of now.
    pub(in crate::agent) delay_seconds: Option<f64>,
    /// Requests that couldn't be followed, so far, for want of memory: of these the kernel's queue
    /// is told.
    pub(in crate::agent) requests_unfollowed: Option<u64>,
    /// The rate to one of the clients, in bits a second, and that to the fastest: by replies of the
    /// last minute.
    pub(in crate::agent) available_bps: Option<u64>,
    pub(in crate::agent) bottleneck_bps: Option<u64>,
}

/// Makes loads of readings.
#[derive(Debug, Default)]
pub(super) struct Meter {
    last: Option<(HostCounters, Duration)>,
    run_queue: Option<f64>,
    cpu: Option<f64>,
    requests: Option<f64>,
    /// The director's probes in a second, which are no client's.
    probes_per_second: f64,
}

impl Meter {
    /// The load by one more reading, so long after the meter began.
    pub(super) fn measure(&mut self, now: HostCounters, at: Duration) -> Load {
        let (last, last_at) = self.last.replace((now, at)).unwrap_or((HostCounters::default(), at));
        let seconds = at.saturating_sub(last_at).as_secs_f64();
        let busy = now.busy.zip(last.busy).and_then(|((busy, all), (busy_before, all_before))| {
            let (busy, all) = (busy.checked_sub(busy_before)?, all.checked_sub(all_before)?);
            (all > 0).then(|| busy.min(all) as f64 / all as f64)
        });
        smooth(&mut self.run_queue, now.running.map(|running| running as f64), seconds);
        smooth(&mut self.cpu, busy, seconds);
        let requests = self.request_rate(&now, &last, seconds);
        smooth(&mut self.requests, requests, seconds);
        let requests = requests.and(self.requests);
        let mut load = Load {
            run_queue: self.run_queue,
            cpu: self.cpu,
            memory: now
                .memory
                .filter(|(_, all)| *all > 0)
                .map(|(free, all)| 1.0 - free.min(all) as f64 / all as f64),
            requests_per_second: requests,
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
    /// Of the same, without the director's probes, of which there are so many in a second.
    pub(super) fn without_probes(probes_per_second: f64) -> Meter {
        Meter { probes_per_second, ..Meter::default() }
    }

    /// Requests of clients in a second. A page whose count falls, or rises by what no server
    /// answers, says nothing this time.
    fn request_rate(&self, now: &HostCounters, last: &HostCounters, seconds: f64) -> Option<f64> {
        let grown = now.requests?.checked_sub(last.requests?)?;
        let own = now.own_requests.saturating_sub(last.own_requests);
        let rate = grown.saturating_sub(own) as f64 / seconds - self.probes_per_second;
        (seconds > 0.0 && rate < REQUESTS_MAX).then(|| rate.max(0.0))
    }
}

impl Load {
    /// Sets the bytes to send as of now.
    pub(super) fn set_to_send(&mut self, now: Option<ToSend>) {
        self.connections = now.map(|sums| sums.connections);
        self.bytes_to_send = now.map(|sums| sums.bytes);
        self.lower_bound = now.map(|sums| sums.lower_bound);
        self.bytes_source = now.map(|sums| source_of(sums.is_exact));
        self.delay_seconds = now.and_then(|sums| sums.delay_seconds);
        self.requests_unfollowed = now.and_then(|sums| sums.unfollowed);
    }

    /// How much of its weight the server wants, in percent: what it has left, and something in any
    /// case.
    pub(super) fn percent(&self) -> Option<u8> {
        self.cpu.map(|cpu| (100.0 * (1.0 - cpu)).round().clamp(1.0, 100.0) as u8)
    }
}

/// How bytes to send are known, in words.
pub(in crate::agent) fn source_of(is_exact: bool) -> &'static str {
    if is_exact { "exact" } else { "lower_bound" }
}

/// Follows what is known now, by how long that was so; what isn't known any more stays as it was.
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
            requests: Some(at * 5),
            own_requests: 0,
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
        let of = |requests, own_requests| HostCounters {
            running: Some(0),
            requests: Some(requests),
            own_requests,
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
