//! Servers with queues on a simulated clock, to which Evener's own selection, or a rule of another
//! program, sends requests. Nothing else runs, so a result depends on the seed alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::vec;

use anyhow::{Context, Result};
use evener_core::path::select::{Counts, Score, select};
use evener_core::path::sessions::FlowHash;
use evener_core::path::tables::{Forwarding, Ring, ServerEntry, Tables};
use evener_core::pool::policy::score::{GAIN_PERCENT, Smoothed, gains, scores};
use evener_core::pool::policy::{Fills, PacketPolicy, Weighted, for_packets, second_candidates};
use evener_core::pool::report::Report;
use evener_core::pool::signals::Signals;
use evener_sim::Random;

use super::surge::Surge;

/// Number of the only service.
const SERVICE: u16 = 1;
/// Least time between two reports of a server, in seconds.
const REPORT_MIN: f64 = 0.01;
/// Time for which a disturbed server does nothing, and mean time between two such times, in
/// seconds.
const STALL: f64 = 1.0;
const STALL_EACH: f64 = 30.0;
/// Prequal's probes for each request, its pool, the lifetime of a probe's result in seconds, and
/// the part of probes above which a server is hot (Wydrowski and others, NSDI 2024, section 4).
const PROBES: usize = 3;
const PROBES_MAX: usize = 16;
const PROBE_AGE_MAX: f64 = 1.0;
const HOT: f64 = 0.84;
/// SURGE's files: their number, and the greatest length in bytes; and the approximate mean pause of
/// its users, in seconds.
const SURGE_FILES: usize = 2_000;
const SURGE_LONGEST: usize = 1_000_000;
const SURGE_PAUSE: f64 = 4.0;
pub const PREQUAL: &str = "prequal";

/// Farm and load.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// Requests per second that each server can answer.
    pub rates: Vec<f64>,
    /// Offered part of what all servers together can answer.
    pub load: f64,
    /// Time between two reports of a server, or after which a probe's result is known, in seconds.
    pub staleness: f64,
    /// True if servers do nothing for a while now and then.
    pub is_disturbed: bool,
    /// True if requests are those of SURGE's users, false if they come at Poisson times and have
    /// exponential lengths.
    pub is_surge: bool,
    /// Number of requests that count, after a tenth as many that don't.
    pub requests: usize,
    pub seed: u64,
}

/// Result of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Times from a request's arrival to its reply, in milliseconds, sorted.
    pub times_ms: Vec<f64>,
    /// How far the busiest server is above the mean, by requests for what it can answer, in
    /// percent.
    pub imbalance_percent: f64,
}

impl Outcome {
    /// Returns the time that this part of the requests takes at most, in milliseconds.
    pub fn quantile_ms(&self, part: f64) -> f64 {
        let place = (self.times_ms.len() as f64 * part) as usize;
        self.times_ms.get(place.min(self.times_ms.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    pub fn mean_ms(&self) -> f64 {
        self.times_ms.iter().sum::<f64>() / self.times_ms.len().max(1) as f64
    }
}

/// A server with its queue.
#[derive(Clone, Debug, Default)]
struct QueuedServer {
    rate: f64,
    /// Arrival and service time of each request, in seconds; the first one is served.
    queue: VecDeque<(f64, f64)>,
    /// Time at which the first request is answered.
    done_at: f64,
    stalled_until: f64,
    answered: u64,
}

impl QueuedServer {
    /// Time until a request that arrives now would be answered, in seconds.
    fn wait(&self, now: f64) -> f64 {
        let first = if self.queue.is_empty() { 0.0 } else { (self.done_at - now).max(0.0) };
        let others: f64 = self.queue.iter().skip(1).map(|(_, service)| service).sum();
        first.max(self.stalled_until - now) + others + 1.0 / self.rate
    }
}

/// Rule that selects a server.
trait Chooser {
    fn choose(&mut self, now: f64, servers: &[QueuedServer], random: &mut Random) -> usize;
    fn starts(&mut self, _server: usize) {}
    fn ends(&mut self, _server: usize) {}
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Arrival,
    Done(usize),
    Stall(usize),
}

impl Simulation {
    /// Runs with a policy for packets, or with Prequal's rule.
    ///
    /// # Errors
    /// Fails if there is no such policy.
    pub fn run(&self, policy: &str) -> Result<Outcome> {
        let mut chooser: Box<dyn Chooser> = if policy == PREQUAL {
            Box::new(Prequal { staleness: self.staleness, ..Prequal::default() })
        } else {
            let packets = for_packets(policy).context("There is no such policy")?;
            Box::new(Selection::new(packets, self.rates.len(), self.staleness)?)
        };
        Ok(self.run_by(&mut *chooser))
    }

    fn run_by(&self, chooser: &mut dyn Chooser) -> Outcome {
        let mut random = Random::new(self.seed);
        let (warmup, mut ended, mut times_ms) = (self.requests / 10, 0, Vec::with_capacity(self.requests));
        let mut arrivals = self.arrivals();
        let server = |rate: &f64| QueuedServer { rate: *rate, ..QueuedServer::default() };
        let mut servers: Vec<QueuedServer> = self.rates.iter().map(server).collect();
        let mut events = Events::default();
        events.extend(arrivals.next(0.0, &mut random), Event::Arrival);
        if self.is_disturbed {
            for server in 0..servers.len() {
                events.add(exponential(&mut random, 1.0 / STALL_EACH), Event::Stall(server));
            }
        }
        while times_ms.len() < self.requests {
            let Some((now, event)) = events.next() else { break };
            match event {
                Event::Arrival => {
                    events.extend(arrivals.next(now, &mut random), Event::Arrival);
                    let place = chooser.choose(now, &servers, &mut random);
                    let Some(server) = servers.get_mut(place) else { continue };
                    let service = arrivals.work(&mut random) / server.rate;
                    server.queue.push_back((now, service));
                    chooser.starts(place);
                    if server.queue.len() == 1 {
                        server.done_at = now.max(server.stalled_until) + service;
                        events.add(server.done_at, Event::Done(place));
                    }
                }
                Event::Stall(place) => {
                    events.add(now + exponential(&mut random, 1.0 / STALL_EACH), Event::Stall(place));
                    let Some(server) = servers.get_mut(place) else { continue };
                    server.stalled_until = now + STALL;
                    server.done_at += STALL;
                }
                Event::Done(place) => {
                    let Some(server) = servers.get_mut(place) else { continue };
                    if server.done_at > now {
                        // it stalled meanwhile
                        events.add(server.done_at, Event::Done(place));
                        continue;
                    }
                    let Some((arrived, _)) = server.queue.pop_front() else { continue };
                    chooser.ends(place);
                    if let Some((_, service)) = server.queue.front() {
                        server.done_at = now.max(server.stalled_until) + service;
                        events.add(server.done_at, Event::Done(place));
                    }
                    ended += 1;
                    if ended > warmup {
                        server.answered += 1;
                        times_ms.push((now - arrived) * 1e3);
                    }
                }
            }
        }
        times_ms.sort_by(f64::total_cmp);
        Outcome { times_ms, imbalance_percent: imbalance(&servers) }
    }
}

/// Requests that reach the farm.
enum Arrivals {
    Poisson {
        rate: f64,
    },
    /// Times of all requests in seconds, and their work as a multiple of the mean.
    Trace {
        times: vec::IntoIter<f64>,
        works: vec::IntoIter<f64>,
    },
}

impl Simulation {
    fn arrivals(&self) -> Arrivals {
        let rate = self.rates.iter().sum::<f64>() * self.load;
        if !self.is_surge {
            return Arrivals::Poisson { rate };
        }
        // the run ends when enough requests are answered, and others are still open then
        let requests = self.requests + self.requests / 5;
        let surge = Surge::new(SURGE_FILES, SURGE_LONGEST, self.seed);
        let trace = surge.arrivals((rate * SURGE_PAUSE) as usize, requests);
        let mean = trace.iter().map(|(_, len)| *len as f64).sum::<f64>() / trace.len().max(1) as f64;
        let duration = trace.last().map_or(0.0, |(time, _)| *time);
        // exactly the offered load
        let scale = trace.len() as f64 / rate / duration;
        let (times, works): (Vec<f64>, Vec<f64>) =
            trace.into_iter().map(|(time, len)| (time * scale, len as f64 / mean)).unzip();
        Arrivals::Trace { times: times.into_iter(), works: works.into_iter() }
    }
}

impl Arrivals {
    /// Returns the time of the next request.
    fn next(&mut self, now: f64, random: &mut Random) -> Option<f64> {
        match self {
            Arrivals::Poisson { rate } => Some(now + exponential(random, *rate)),
            Arrivals::Trace { times, .. } => times.next(),
        }
    }

    /// Returns the work of the request that arrives, as a multiple of the mean.
    fn work(&mut self, random: &mut Random) -> f64 {
        match self {
            Arrivals::Poisson { .. } => exponential(random, 1.0),
            Arrivals::Trace { works, .. } => works.next().unwrap_or_default(),
        }
    }
}

fn imbalance(servers: &[QueuedServer]) -> f64 {
    let parts: Vec<f64> = servers.iter().map(|server| server.answered as f64 / server.rate).collect();
    let all: f64 = servers.iter().map(|server| server.answered as f64).sum();
    let mean = all / servers.iter().map(|server| server.rate).sum::<f64>();
    (parts.into_iter().fold(0.0, f64::max) / mean - 1.0) * 100.0
}

fn exponential(random: &mut Random, rate: f64) -> f64 {
    -(1.0 - random.unit()).ln() / rate
}

/// Events by time; those of equal times in the order of their addition.
#[derive(Default)]
struct Events {
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    kinds: BTreeMap<u64, (f64, Event)>,
    added: u64,
}

impl Events {
    fn add(&mut self, at: f64, event: Event) {
        self.added += 1;
        // times are positive, so that their bits are in the same order
        self.queue.push(Reverse((at.to_bits(), self.added)));
        self.kinds.insert(self.added, (at, event));
    }

    fn extend(&mut self, at: Option<f64>, event: Event) {
        at.into_iter().for_each(|at| self.add(at, event));
    }

    fn next(&mut self) -> Option<(f64, Event)> {
        let Reverse((_, number)) = self.queue.pop()?;
        self.kinds.remove(&number)
    }
}

/// Evener's selection from the data plane's tables.
struct Selection {
    packets: &'static PacketPolicy,
    tables: Tables,
    cursors: Vec<AtomicU64>,
    active: Vec<AtomicU64>,
    scores: Vec<AtomicU16>,
    limits: Vec<AtomicU32>,
    loads: Vec<Option<Smoothed>>,
    interval: f64,
    due: f64,
}

impl Selection {
    fn new(packets: &'static PacketPolicy, servers: usize, staleness: f64) -> Result<Selection> {
        let servers = u16::try_from(servers)?;
        let members: Vec<Weighted> =
            (1..=servers).map(|slot| Weighted { slot, weight: 1, seed: u64::from(slot) }).collect();
        let hash = Fills::default().table(&members, &members);
        let second = second_candidates(&hash);
        let ring = Ring { order: (packets.order)(&members), hash, second, previous: Arc::default() };
        let entry = |slot: u16| ServerEntry {
            identity: slot.into(),
            mac: Default::default(),
            ifindex: 1,
            weight: 1,
            up: true,
            local: false,
            forwarding: Forwarding::Link,
        };
        let tables = Tables {
            rings: BTreeMap::from([(SERVICE, Arc::new(ring))]),
            servers: (1..=servers).map(|slot| (slot, entry(slot))).collect(),
            ..Tables::default()
        };
        let places = usize::from(servers) + 1;
        Ok(Selection {
            packets,
            tables,
            cursors: (0..=SERVICE).map(|_| AtomicU64::default()).collect(),
            active: (0..places).map(|_| AtomicU64::default()).collect(),
            scores: (0..places).map(|_| AtomicU16::default()).collect(),
            limits: (0..places).map(|_| AtomicU32::default()).collect(),
            loads: vec![None; usize::from(servers)],
            interval: staleness.max(REPORT_MIN),
            due: 0.0,
        })
    }

    fn counts(&self) -> Counts<'_> {
        Counts { cursors: &self.cursors, active: &self.active, scores: &self.scores, limits: &self.limits }
    }

    /// Applies what all servers report now.
    fn report(&mut self, now: f64, servers: &[QueuedServer]) {
        let Some(weighing) = self.packets.weighing else { return };
        let now_ms = (now * 1e3) as u64;
        for (server, load) in servers.iter().zip(&mut self.loads) {
            let waiting = server.queue.len() as u64;
            let wait_us = (server.wait(now) * 1e6) as u64;
            let report = Report {
                // a server with a queue is busy all of its time
                utilisation_permille: Some((waiting * 1_000).min(1_000)),
                load_milli: Some(waiting * 10_000),
                delay_us: Some(wait_us),
                ..Report::default()
            };
            let signals = Signals { latency_us: Some(wait_us), report, ..Signals::default() };
            let Some(found) = (weighing.load)(&signals) else { continue };
            load.get_or_insert(Smoothed::new(found, now_ms)).follow(found, now_ms);
        }
        let known: Vec<Option<u64>> = self.loads.iter().map(|load| load.map(Smoothed::load)).collect();
        let loads = scores(&known);
        let weighted: Vec<(u16, u64)> = loads.iter().map(|load| (1, u64::from(*load))).collect();
        let gains = gains(&weighted, GAIN_PERCENT);
        let scored = (1u16..).zip(loads.into_iter().zip(gains));
        let scored: Vec<(u16, Score)> =
            scored.map(|(slot, (load, gain))| (slot, Score { load, gain })).collect();
        self.counts().score(&scored);
    }
}

impl Chooser for Selection {
    fn choose(&mut self, now: f64, servers: &[QueuedServer], random: &mut Random) -> usize {
        if now >= self.due {
            self.due = now + self.interval;
            self.report(now, servers);
        }
        // all bits of a hash are random, the low ones too, by which some flows ignore loads
        let mut half = || (random.unit() * 2_f64.powi(32)) as u64;
        let hash = FlowHash(half() << 32 | half());
        let slot = select(&self.tables, self.counts(), SERVICE, self.packets.pick, hash);
        usize::from(slot).saturating_sub(1)
    }

    fn starts(&mut self, server: usize) {
        self.active.get(server + 1).map(|active| active.fetch_add(1, Relaxed));
    }

    fn ends(&mut self, server: usize) {
        self.active.get(server + 1).map(|active| active.fetch_sub(1, Relaxed));
    }
}

/// Result of a probe: number of requests in flight, and latency.
#[derive(Clone, Copy, Debug)]
struct Probe {
    server: usize,
    usable_at: f64,
    in_flight: usize,
    latency: f64,
}

/// Prequal's hot-cold lexicographic rule.
#[derive(Default)]
struct Prequal {
    staleness: f64,
    pool: VecDeque<Probe>,
}

impl Chooser for Prequal {
    fn choose(&mut self, now: f64, servers: &[QueuedServer], random: &mut Random) -> usize {
        for _ in 0..PROBES {
            let server = random.below(servers.len());
            let Some(found) = servers.get(server) else { continue };
            let (in_flight, latency) = (found.queue.len(), found.wait(now));
            self.pool.push_back(Probe { server, usable_at: now + self.staleness, in_flight, latency });
        }
        self.pool.retain(|probe| now - probe.usable_at <= PROBE_AGE_MAX);
        let usable = self.pool.iter().filter(|probe| probe.usable_at <= now).count();
        // results that aren't known yet aren't in Prequal's pool
        self.pool.drain(..usable.saturating_sub(PROBES_MAX));
        let usable = || self.pool.iter().enumerate().filter(|(_, probe)| probe.usable_at <= now);
        let mut in_flight: Vec<usize> = usable().map(|(_, probe)| probe.in_flight).collect();
        in_flight.sort_unstable();
        let hot = in_flight.get((in_flight.len() as f64 * HOT) as usize).copied().unwrap_or(usize::MAX);
        let cold = usable().filter(|(_, probe)| probe.in_flight < hot);
        let best = cold.min_by(|(_, one), (_, other)| one.latency.total_cmp(&other.latency));
        let best = best.or_else(|| usable().min_by_key(|(_, probe)| probe.in_flight));
        match best.map(|(place, probe)| (place, probe.server)) {
            Some((place, server)) => {
                self.pool.remove(place);
                server
            }
            None => random.below(servers.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulation(servers: usize) -> Simulation {
        Simulation {
            rates: vec![10.0; servers],
            load: 0.8,
            staleness: 0.0,
            is_disturbed: false,
            is_surge: false,
            requests: 200_000,
            seed: 1,
        }
    }

    /// Requests that are spread by chance find a queue of Poisson arrivals: M/M/1.
    #[test]
    fn hash_is_as_the_formula_of_one_queue() -> Result<()> {
        let found = simulation(100).run("hash")?;
        let formula = |part: f64| -(1.0 - part).ln() / (10.0 * 0.2) * 1e3;
        for part in [0.5, 0.9, 0.99] {
            let ratio = found.quantile_ms(part) / formula(part);
            // Maglev's tables differ by a few percent
            assert!((0.93..1.12).contains(&ratio), "{part}: {ratio}");
        }
        Ok(())
    }

    /// Of two random queues the shorter one: Mitzenmacher 2001, theorem 1.
    #[test]
    fn two_choices_are_as_their_formula() -> Result<()> {
        let found = simulation(256).run("power-of-two")?;
        let formula: f64 = (1..20).map(|level| 0.8_f64.powf(2_f64.powi(level) - 2.0)).sum::<f64>() * 100.0;
        let ratio = found.mean_ms() / formula;
        assert!((0.93..1.12).contains(&ratio), "{ratio}");
        Ok(())
    }

    /// Loads that are known at once leave no more to wait than sessions.
    #[test]
    fn fresh_loads_are_as_good_as_sessions() -> Result<()> {
        let all = simulation(20);
        let [two, delay, hash] = ["power-of-two", "expected-delay", "hash"].map(|policy| all.run(policy));
        let [two, delay, hash] = [two?, delay?, hash?].map(|outcome| outcome.quantile_ms(0.99));
        assert!(delay < 1.1 * two && delay < 0.6 * hash, "{delay}, {two}, {hash}");
        Ok(())
    }

    #[test]
    fn same_seed_has_same_result_and_stalls_cost_time() -> Result<()> {
        let one = simulation(10);
        assert_eq!(one.run(PREQUAL)?.times_ms, one.run(PREQUAL)?.times_ms);
        let disturbed = Simulation { is_disturbed: true, ..one.clone() };
        let slower = disturbed.run("hash")?.mean_ms() / one.run("hash")?.mean_ms();
        assert!(slower > 1.2, "{slower}");
        assert!(one.run("fastest").is_err());
        Ok(())
    }

    /// Users request more at once, and files of very different lengths.
    #[test]
    fn users_of_surge_wait_longer_at_the_same_load() -> Result<()> {
        let poisson = simulation(64);
        let surge = Simulation { is_surge: true, ..poisson.clone() };
        let trace = surge.arrivals();
        let Arrivals::Trace { times, works } = trace else { anyhow::bail!("no trace") };
        let (times, works): (Vec<f64>, Vec<f64>) = (times.collect(), works.collect());
        assert!(times.is_sorted() && times.len() == works.len());
        let offered = works.iter().sum::<f64>() / times.last().copied().unwrap_or_default() / 640.0;
        assert!((offered - 0.8).abs() < 1e-6, "{offered}");
        let [poisson, surge] = [poisson, surge].map(|all| all.run("power-of-two"));
        let (poisson, surge) = (poisson?, surge?);
        assert_eq!(poisson.times_ms.len(), surge.times_ms.len());
        assert!(surge.mean_ms() > 1.5 * poisson.mean_ms(), "{} {}", surge.mean_ms(), poisson.mean_ms());
        Ok(())
    }
}
