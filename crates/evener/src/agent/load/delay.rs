//! Time to send a server's outstanding bytes: equations 2.2 to 2.5 of the load-balancing agent, as
//! printed and as intended.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use crate::config::DelayKind;
use crate::io::diag::{OpenConnection, Sending};
use crate::runtime::slots_by_source::{ClientSource, source};

/// Time for which a measured speed counts. Pauses don't change the speed.
const SPEED_KEPT: Duration = Duration::from_secs(15);
/// Duration over which a speed is measured, long enough to average out a token bucket's burst.
const STRETCH: Duration = Duration::from_secs(2);
/// Beginning of a busy period, in which a token bucket's saved tokens are spent.
const BURST: Duration = Duration::from_millis(500);
/// Maximum time for which a client's outstanding bytes count, as a multiple of the median client's
/// time. So clients that read slowly on purpose don't make a server seem busy, at any number of
/// connections.
const SLOWEST: f64 = 4.0;
/// Assumed time for a client without an earlier sample, in seconds.
const SOON: f64 = 1.0;

/// Computes delays from samples of the outstanding bytes.
#[derive(Debug)]
pub(super) struct Delay {
    kind: DelayKind,
    /// Speed of one request by this program, in bytes per second. Used until responses to clients
    /// have shown a speed.
    pub(super) first_speed: Option<f64>,
    last: Option<DelaySample>,
    link: LinkSpeed,
    /// Rates of the clients between the last two samples.
    rates: BTreeMap<ClientSource, f64>,
}

#[derive(Debug)]
struct DelaySample {
    at: Duration,
    sent: u64,
    in_flight: u64,
    acknowledged: HashMap<(SocketAddr, SocketAddr), u64>,
}

/// Speed of the link and of clients' paths, measured while they were saturated.
#[derive(Debug, Default)]
struct LinkSpeed {
    /// Start of the busy period: each sample since has had outstanding bytes.
    busy_since: Option<Duration>,
    /// Last samples of this busy period, up to a [`STRETCH`].
    stretch: VecDeque<SendSample>,
    /// Speeds over whole stretches, in bytes per second, with the time of their end.
    speeds: VecDeque<(Duration, f64)>,
    /// Current speed, in bytes per second.
    speed: Option<f64>,
}

/// Bytes sent between two samples.
#[derive(Debug)]
struct SendSample {
    bytes: f64,
    time: Duration,
    /// True if the sample may include a token bucket's burst.
    has_burst: bool,
}

impl LinkSpeed {
    /// Adds the bytes sent in the time before `at`. A single sample sets the speed only if there is
    /// no better measurement.
    fn add_sample(&mut self, at: Duration, time: Duration, bytes: u64, is_busy: bool) {
        if !is_busy {
            (self.busy_since, self.stretch) = (None, VecDeque::new());
            return;
        }
        let Some(since) = self.busy_since else {
            self.busy_since = Some(at);
            return;
        };
        let has_burst = at.saturating_sub(time) < since + BURST && time < STRETCH;
        self.stretch.push_back(SendSample { bytes: bytes as f64, time, has_burst });
        while self.stretch.len() > 1
            && self
                .stretch
                .front()
                .is_some_and(|first| first.has_burst || self.time() >= STRETCH + first.time)
        {
            self.stretch.pop_front();
        }
        let (time, bytes) = (self.time(), self.stretch.iter().map(|sample| sample.bytes).sum::<f64>());
        if bytes == 0.0 || time.is_zero() {
            return;
        }
        let speed = bytes / time.as_secs_f64();
        if time < STRETCH {
            // Valid until a whole stretch is measured, and only if none was measured before.
            if self.speeds.is_empty() {
                self.speed = Some(speed);
            }
            return;
        }
        self.speeds.push_back((at, speed));
        self.speeds.retain(|(end, _)| at.saturating_sub(*end) <= SPEED_KEPT);
        self.speed = self.speeds.iter().map(|(_, speed)| *speed).reduce(f64::max);
    }

    /// Returns the total time of the samples.
    fn time(&self) -> Duration {
        self.stretch.iter().map(|sample| sample.time).sum()
    }
}

impl Delay {
    pub(super) fn new(kind: DelayKind) -> Delay {
        Delay { kind, first_speed: None, last: None, link: LinkSpeed::default(), rates: BTreeMap::new() }
    }

    /// Adds a sample. `sent` is the number of all bytes sent so far. `at` is the time since the
    /// first sample.
    pub(super) fn add_sample(&mut self, sending: &Sending, sent: Option<u64>, at: Duration) {
        let Some(sent) = sent else { return };
        let acknowledged = sending.open.iter().map(|one| ((one.client, one.server), one.acknowledged));
        let is_busy = sending.open.iter().any(|one| one.left().0 > 0);
        let in_flight = sending.in_flight;
        let look = DelaySample { at, sent, in_flight, acknowledged: acknowledged.collect() };
        if let Some(last) = self.last.replace(look) {
            let time = at.saturating_sub(last.at);
            // Clients have received all sent bytes except the bytes in flight now. The bytes in
            // flight at the last sample count as received since.
            let taken =
                sent.saturating_sub(last.sent).saturating_add(last.in_flight).saturating_sub(in_flight);
            self.link.add_sample(at, time, taken, is_busy);
            self.rates = rates(&sending.open, &last, time.as_secs_f64());
        } else {
            self.link.add_sample(at, Duration::ZERO, 0, is_busy);
        }
    }

    /// Returns the delay in seconds for these outstanding bytes. `now_ns` is by the clock of the
    /// requests' start times.
    pub(super) fn seconds(&self, sending: &Sending, now_ns: u64) -> Option<f64> {
        match self.kind {
            DelayKind::Paper => self.paper(&sending.open, now_ns),
            DelayKind::Corrected => self.corrected(&sending.open),
        }
    }

    /// Returns the delay from the outstanding bytes and the recent rates of the link and of
    /// clients' paths.
    fn corrected(&self, open: &[OpenConnection]) -> Option<f64> {
        let bytes = self.bounded(open);
        if bytes < 1.0 {
            return Some(0.0);
        }
        self.link.speed.or(self.first_speed).filter(|speed| *speed >= 1.0).map(|speed| bytes / speed)
    }

    /// Returns the sum of outstanding bytes. A client counts for at most [`SLOWEST`] times the
    /// median client's time. A client without an earlier sample is assumed to finish soon.
    fn bounded(&self, open: &[OpenConnection]) -> f64 {
        let mut left: BTreeMap<ClientSource, f64> = BTreeMap::new();
        for one in open {
            *left.entry(source(one.client.ip())).or_default() += one.left().0 as f64;
        }
        let rate = |client: &ClientSource| self.rates.get(client).copied();
        let time =
            |(client, left): (&ClientSource, &f64)| rate(client).map_or(SOON, |rate| left / rate.max(1.0));
        let mut times: Vec<f64> = left.iter().map(time).collect();
        times.sort_unstable_by(f64::total_cmp);
        let most = SLOWEST * times.get(times.len() / 2).copied().unwrap_or_default();
        let counts = |(client, left): (&ClientSource, &f64)| match rate(client).filter(|_| times.len() > 1) {
            Some(rate) => left.min(most * rate),
            None => *left,
        };
        left.iter().map(counts).sum()
    }

    /// Equations 2.3 to 2.5, with requests as busy child processes: B / (sum of speeds / number of
    /// speeds). A speed is the sent part of a response divided by the time since its request. B
    /// divided by the mean of single speeds is the time that one process would need for the work of
    /// all.
    fn paper(&self, open: &[OpenConnection], now_ns: u64) -> Option<f64> {
        let bytes: u64 = open.iter().map(|one| one.left().0).sum();
        if bytes == 0 {
            return Some(0.0);
        }
        let speed =
            |one: &OpenConnection| one.rate_since(now_ns).filter(|rate| *rate > 0.0).or(self.first_speed);
        let speeds: Vec<f64> = open.iter().filter_map(speed).collect();
        let mean = speeds.iter().sum::<f64>() / speeds.len().max(1) as f64;
        (mean >= 1.0).then(|| bytes as f64 / mean)
    }
}

/// Returns the rates at which clients receive data, in bytes per second, for clients of the last
/// sample.
fn rates(open: &[OpenConnection], last: &DelaySample, seconds: f64) -> BTreeMap<ClientSource, f64> {
    let mut rates = BTreeMap::new();
    for one in open {
        let before = last.acknowledged.get(&(one.client, one.server));
        if let Some(before) = before.filter(|_| seconds > 0.0) {
            let taken = one.acknowledged.saturating_sub(*before) as f64 / seconds;
            *rates.entry(source(one.client.ip())).or_default() += taken;
        }
    }
    rates
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use evener_core::server::{Pending, ResponseProgress};
    use evener_dataplane::pending::TrackedRequest;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Builds a download of this client: received bytes, length, and age in seconds.
    fn download(client: u8, taken: u64, length: u64, since_seconds: u64) -> OpenConnection {
        let pending = Pending { answer: ResponseProgress::Known, end: length, ..Pending::unknown() };
        OpenConnection {
            client: ([192, 0, 2, client], 1_000).into(),
            server: ([192, 0, 2, 200], 80).into(),
            queued: 0,
            acknowledged: taken,
            rate: None,
            request: Some(TrackedRequest {
                pending,
                since_ns: 100_000_000_000 - since_seconds * 1_000_000_000,
                line: Vec::new(),
            }),
        }
    }

    fn of(open: Vec<OpenConnection>) -> Sending {
        Sending { open, ..Sending::default() }
    }

    const NOW_NS: u64 = 100_000_000_000;

    /// Returns the delay after one more sample, at a time in seconds after the first.
    fn look(delay: &mut Delay, sending: &Sending, sent: u64, at_seconds: u64) -> Option<f64> {
        delay.add_sample(sending, Some(sent), Duration::from_secs(at_seconds));
        delay.seconds(sending, NOW_NS)
    }

    #[test]
    fn corrected_delay_is_bytes_left_by_measured_rate() {
        let mut delay = Delay::new(DelayKind::Corrected);
        assert_eq!(look(&mut delay, &of(vec![]), 0, 0), Some(0.0));
        let first = of(vec![download(1, 0, 10 * MIB, 0), download(2, 0, 10 * MIB, 0)]);
        assert_eq!(look(&mut delay, &first, 0, 1), None, "nothing is known of any speed");
        let second = of(vec![download(1, MIB, 10 * MIB, 1), download(2, MIB, 10 * MIB, 1)]);
        assert_eq!(look(&mut delay, &second, 2 * MIB, 2), Some(9.0));
        // Idle for a while: the link's speed stays.
        assert_eq!(look(&mut delay, &of(vec![]), 20 * MIB, 11), Some(0.0));
        let later = of(vec![download(3, 0, 4 * MIB, 0)]);
        assert_eq!(look(&mut delay, &later, 20 * MIB, 100), Some(2.0));
    }

    #[test]
    fn bytes_on_their_way_are_not_carried_yet() {
        let mut delay = Delay::new(DelayKind::Corrected);
        let sending = |taken, in_flight| Sending { in_flight, ..of(vec![download(1, taken, 11 * MIB, 1)]) };
        look(&mut delay, &sending(0, 0), 0, 0);
        assert_eq!(look(&mut delay, &sending(MIB, 2 * MIB), 3 * MIB, 1), Some(10.0));
    }

    #[test]
    fn idle_sending_does_not_lower_measured_rate() {
        let mut delay = Delay::new(DelayKind::Corrected);
        for at in 0..4 {
            look(&mut delay, &of(vec![download(1, at * MIB, 10 * MIB, at)]), at * MIB, at);
        }
        // Small responses now and then, long after: the link's speed is still 1 MiB/s.
        for at in 100..120 {
            look(&mut delay, &of(vec![]), 3 * MIB + at * 1_000, at);
        }
        let burst = of(vec![download(2, 0, 5 * MIB, 0)]);
        assert_eq!(look(&mut delay, &burst, 3 * MIB + 120_000, 120), Some(5.0));
        // The link has become slower.
        for at in 121..140 {
            let sent = 3 * MIB + 120_000 + (at - 120) * MIB / 4;
            look(&mut delay, &of(vec![download(2, (at - 120) * MIB / 4, 9 * MIB, at - 120)]), sent, at);
        }
        let left = (9 * MIB - 5 * MIB) as f64;
        let slow = of(vec![download(2, 5 * MIB, 9 * MIB, 20)]);
        assert_eq!(look(&mut delay, &slow, 8 * MIB + 120_000, 140), Some(left / (MIB as f64 / 4.0)));
    }

    /// A link of 1 MiB/s after a token bucket of 64 KiB. The bucket's burst is within one sample of
    /// half a second or a millisecond.
    #[test]
    fn one_sample_governs_no_speed() {
        for bursts_at_ms in [1, 400, 900, 901, 2_400] {
            let mut delay = Delay::new(DelayKind::Corrected);
            let mut told = Vec::new();
            let looks = (0..20).map(|look| look * 500).chain((0..5).map(|look| look * 1_000 + 401));
            let mut looks: Vec<u64> = looks.collect();
            looks.sort_unstable();
            for at_ms in looks {
                let burst = if at_ms >= bursts_at_ms { MIB / 16 } else { 0 };
                let taken = MIB * at_ms / 1_000 + burst;
                let sending = of(vec![download(1, taken, 100 * MIB, at_ms / 1_000)]);
                delay.add_sample(&sending, Some(taken), Duration::from_millis(at_ms));
                let seconds = delay.seconds(&sending, NOW_NS);
                let true_seconds = (100 * MIB - taken) as f64 / MIB as f64;
                told.push((at_ms, seconds.map(|seconds| seconds / true_seconds)));
            }
            let close = |told: &(u64, Option<f64>)| {
                told.0 < 3_000 || told.1.is_some_and(|ratio| (0.8..1.25).contains(&ratio))
            };
            assert!(told.iter().all(close), "a burst at {bursts_at_ms} ms: {told:?}");
        }
    }

    #[test]
    fn first_speed_applies_until_first_measurement() {
        let mut delay = Delay::new(DelayKind::Corrected);
        delay.first_speed = Some(MIB as f64);
        let first = of(vec![download(1, 0, 10 * MIB, 0)]);
        assert_eq!(look(&mut delay, &first, 0, 0), Some(10.0));
        assert_eq!(look(&mut delay, &of(vec![download(1, 2 * MIB, 10 * MIB, 1)]), 2 * MIB, 1), Some(4.0));
    }

    #[test]
    fn a_client_that_reads_slowly_makes_no_server_look_busy() {
        let with_slow = |delay: &mut Delay, at: u64, slow: u64| {
            let fast = (1..=4).map(|client| download(client, at * MIB, 20 * MIB, at));
            let slow = (0..slow).map(|port| {
                let mut one = download(66, at * 1_000, 100 * MIB, at);
                one.client.set_port(2_000 + port as u16);
                one
            });
            look(delay, &of(fast.chain(slow).collect()), at * 4 * MIB, at)
        };
        let mut alone = Delay::new(DelayKind::Corrected);
        with_slow(&mut alone, 0, 0);
        let honest = with_slow(&mut alone, 1, 0).unwrap();
        let mut parallel = Delay::new(DelayKind::Corrected);
        with_slow(&mut parallel, 0, 500);
        let attacked = with_slow(&mut parallel, 1, 500).unwrap();
        assert!(attacked < 1.6 * honest, "{attacked} and {honest}");
    }

    #[test]
    fn paper_divides_by_the_mean_of_single_speeds() {
        let mut delay = Delay::new(DelayKind::Paper);
        let one = of(vec![download(1, MIB, 11 * MIB, 1)]);
        assert_eq!(look(&mut delay, &one, 0, 0), Some(10.0));
        let two = of(vec![download(1, MIB, 11 * MIB, 1), download(2, MIB, 11 * MIB, 1)]);
        assert_eq!(look(&mut delay, &two, 0, 1), Some(20.0), "as if one did the work of both");
        assert_eq!(look(&mut delay, &of(vec![]), 0, 2), Some(0.0));
        let started = of(vec![download(1, 0, 10 * MIB, 0)]);
        assert_eq!(look(&mut delay, &started, 0, 3), None);
        delay.first_speed = Some(2.0 * MIB as f64);
        assert_eq!(look(&mut delay, &started, 0, 4), Some(5.0));
    }
}
