//! Simulation of selections by load. Members serve requests one after the other and report their
//! actual load.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::farm::group::{DispatchRequest, LoadReading, MemberCandidate, MessageOrigin, example};
use crate::pool::ClockReading;
use crate::pool::Fact;

/// Pseudo-random numbers, the same in each run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.uniform()).ln() / rate
    }
}

/// A member that answers `rate` requests per second, one after the other.
struct Server {
    rate: f64,
    /// End times of the current requests, in seconds.
    ends: VecDeque<f64>,
    answered: u64,
    answered_then: u64,
    /// Sum of the loads sampled since the last report, and number of samples.
    seen: (u64, u64),
}

impl Server {
    fn at(&mut self, now: f64) -> u64 {
        while self.ends.front().is_some_and(|end| *end <= now) {
            self.ends.pop_front();
            self.answered += 1;
        }
        self.ends.len() as u64
    }
}

struct Play {
    rates: Vec<f64>,
    requests_per_second: f64,
    report_s: f64,
    /// Number of requests that a client makes for each request that the group redirects.
    each: f64,
    /// Number of members that always report 0.
    liars: usize,
    /// Number of lost reports in ten.
    lost: u64,
    /// True if the first member drops to a fifth of its rate at half time.
    slows_down: bool,
}

/// Shares of the requests by member in percent, and the 99th percentile of response times in
/// seconds.
struct Outcome {
    shares: Vec<f64>,
    p99_s: f64,
}

const SECONDS: f64 = 300.0;
const WARM_UP: f64 = 30.0;
const MIDDLE: f64 = 150.0;

impl Play {
    fn new(rates: &[f64], requests_per_second: f64, report_s: f64) -> Play {
        Play {
            rates: rates.to_vec(),
            requests_per_second,
            report_s,
            each: 1.0,
            liars: 0,
            lost: 0,
            slows_down: false,
        }
    }

    /// Runs the simulation. `choose` returns the member for a request, and gets the time and the
    /// number of current requests of each member.
    fn run(
        &self,
        seed: u64,
        mut choose: impl FnMut(f64, &[u64]) -> usize,
        mut report: impl FnMut(f64, usize, f64),
    ) -> Outcome {
        let mut numbers = Numbers(seed);
        let server = |rate: &f64| Server {
            rate: *rate,
            ends: VecDeque::new(),
            answered: 0,
            answered_then: 0,
            seen: (0, 0),
        };
        let mut servers: Vec<Server> = self.rates.iter().map(server).collect();
        let mut looks: Vec<(f64, u64)> =
            servers.iter().map(|_| (numbers.uniform() * self.report_s / 10.0, 0)).collect();
        let (mut now, mut durations, mut counts) = (0.0, Vec::new(), vec![0u64; servers.len()]);
        while now < SECONDS {
            now += numbers.exponential(self.requests_per_second);
            for (place, (server, (due, count))) in servers.iter_mut().zip(&mut looks).enumerate() {
                // The member takes ten samples of its load for each report.
                while *due <= now {
                    server.seen = (server.seen.0 + server.at(*due), server.seen.1 + 1);
                    *count += 1;
                    if *count % 10 == 0 {
                        let per_second = (server.answered - server.answered_then) as f64 / self.report_s;
                        let waiting = server.seen.0 as f64 / server.seen.1 as f64;
                        let load = 10.0 * (self.each * per_second + waiting);
                        if *count / 10 % 10 >= self.lost {
                            report(*due, place, if place < self.liars { 0.0 } else { load });
                        }
                        (server.answered_then, server.seen) = (server.answered, (0, 0));
                    }
                    *due += self.report_s / 10.0;
                }
            }
            let inside: Vec<u64> = servers.iter_mut().map(|server| server.at(now)).collect();
            let place = choose(now, &inside);
            let server = &mut servers[place];
            let begins = server.ends.back().copied().unwrap_or(now).max(now);
            let is_slow = self.slows_down && place == 0 && now > MIDDLE;
            let ends = begins + numbers.exponential(if is_slow { server.rate / 5.0 } else { server.rate });
            server.ends.push_back(ends);
            if now > if self.slows_down { MIDDLE } else { WARM_UP } {
                durations.push(ends - now);
                counts[place] += 1;
            }
        }
        durations.sort_by(f64::total_cmp);
        let all: u64 = counts.iter().sum();
        Outcome {
            shares: counts.iter().map(|count| *count as f64 * 100.0 / all as f64).collect(),
            p99_s: durations[durations.len() * 99 / 100],
        }
    }

    /// Runs the simulation with a group, which knows only the members' reports.
    fn by_group(&self, seed: u64, load: LoadReading) -> Outcome {
        let report_ms = (self.report_s * 1_000.0) as u64;
        let mut group = Group { load, ..example::group() };
        group.joining.report_ms = report_ms;
        (group.joining.query_after_ms, group.joining.remove_after_ms) = (report_ms * 3, report_ms * 10);
        let members = core::cell::RefCell::new(Members::new(at(0.0), &group, Seed(seed, 2), None));
        let origin = MessageOrigin { from: Some([192, 0, 2, 31].into()), ..MessageOrigin::default() };
        for place in 0..self.rates.len() {
            let joiner = Joiner::parse(&format!("http://192.0.2.31:{}", 8_000 + place)).unwrap();
            members.borrow_mut().join(at(0.0), &origin, &[joiner]).unwrap();
            members.borrow_mut().apply_fact(at(0.0), place, Fact::Probed(Ok(1)));
        }
        let mut dispatch = members.borrow_mut().dispatch(at(0.0));
        let choose = |now: f64, _: &[u64]| {
            let now = at(now);
            if members.borrow().poll_timeout() <= now.now_ms {
                let orders = members.borrow_mut().poll(now);
                if let Some(MemberOrder::Publish(rules)) = orders.last() {
                    dispatch = Arc::clone(&rules.dispatch);
                }
            }
            let wanted =
                DispatchRequest { client: [10, 0, 0, 1].into(), method: "GET", host: b"h", target: "/" };
            dispatch.choose(&wanted).map(|MemberCandidate { id, .. }| *id).unwrap()
        };
        let report = |now: f64, place: usize, load: f64| {
            let url = Url::parse(&format!("http://192.0.2.31:{}", 8_000 + place)).unwrap();
            let report = LoadInform { load, stamp_ms: None, url: Some(url) };
            members.borrow_mut().inform(at(now), None, &report).unwrap();
        };
        self.run(seed, choose, report)
    }

    /// Runs the simulation with an ideal selection, which knows the number of current requests of
    /// each member and selects the member with the fewest.
    fn by_fewest(&self, seed: u64) -> Outcome {
        let fewest = |_: f64, inside: &[u64]| {
            let places = 0..inside.len();
            places.min_by_key(|place| inside[*place]).unwrap()
        };
        self.run(seed, fewest, |_, _, _| ())
    }
}

fn at(seconds: f64) -> ClockReading {
    let now_ms = (seconds * 1_000.0) as u64;
    ClockReading { now_ms, unix_ms: 1_800_000_000_000 + now_ms, ..ClockReading::default() }
}

#[test]
fn a_slow_member_gets_its_share_and_clients_wait_little_longer_than_by_the_fewest_requests() {
    // With reports every quarter of a second the samples are few. With reports every quarter of a
    // minute a queue grows long between two of them.
    for (report_s, times) in [(0.25, 2.5), (1.0, 2.0), (15.0, 3.0)] {
        for seed in 1..=3 {
            let play = Play::new(&[50.0, 50.0, 20.0], 80.0, report_s);
            let (group, fewest) = (play.by_group(seed, LoadReading::Aged), play.by_fewest(seed));
            let (slow, p99_s, least_s) = (group.shares[2], group.p99_s, fewest.p99_s);
            assert!((3.0..=20.0).contains(&slow), "each {report_s} s, seed {seed}: {slow:.1} %");
            assert!(
                p99_s <= times * least_s,
                "each {report_s} s, seed {seed}: {p99_s:.2} s in place of {least_s:.2}"
            );
        }
    }
}

#[test]
fn the_papers_queue_leaves_a_slow_member_overloaded() {
    let group = Play::new(&[50.0, 50.0, 20.0], 80.0, 1.0).by_group(1, LoadReading::Paper);
    assert!(group.p99_s > 1.0, "{:.2} s", group.p99_s);
}

#[test]
fn equal_members_have_equal_shares() {
    let group = Play::new(&[40.0, 40.0, 40.0], 80.0, 1.0).by_group(1, LoadReading::Aged);
    assert!(group.shares.iter().all(|share| (30.0..=36.5).contains(share)), "{:?}", group.shares);
}

#[test]
fn direct_requests_of_clients_reduce_turns() {
    let play = Play { each: 3.0, ..Play::new(&[50.0, 50.0, 20.0], 80.0, 1.0) };
    let group = play.by_group(1, LoadReading::Aged);
    assert!((5.0..=20.0).contains(&group.shares[2]) && group.p99_s < 1.0, "{:?}", group.shares);
}

#[test]
fn lost_reports_cost_little() {
    // Three reports may be lost in a row before a member counts as silent. If more are lost, the
    // member is queried and reports.
    for lost in [3, 5] {
        let play = Play { lost, ..Play::new(&[50.0, 50.0, 20.0], 80.0, 1.0) };
        let group = play.by_group(1, LoadReading::Aged);
        assert!(
            group.shares[2] <= 20.0 && group.p99_s < 1.0,
            "{lost}: {:?} {:.2} s",
            group.shares,
            group.p99_s
        );
    }
}

#[test]
fn a_member_at_a_tenth_is_spared() {
    let play = Play::new(&[60.0, 60.0, 6.0], 80.0, 1.0);
    let (group, fewest) = (play.by_group(1, LoadReading::Aged), play.by_fewest(1));
    assert!(group.shares[2] < 7.5 && group.p99_s < 2.0 * fewest.p99_s, "{:?}", group.shares);
}

#[test]
fn member_reporting_idle_gains_at_most_half_a_share() {
    let play = Play { liars: 1, ..Play::new(&[30.0, 30.0, 30.0, 30.0], 60.0, 1.0) };
    let liar = play.by_group(1, LoadReading::Aged).shares[0];
    assert!((25.0..=38.5).contains(&liar), "{liar:.1} %");
}

#[test]
fn a_member_that_becomes_slow_is_spared_within_seconds() {
    let play = Play { slows_down: true, ..Play::new(&[50.0, 50.0, 50.0], 80.0, 1.0) };
    let group = play.by_group(1, LoadReading::Aged);
    assert!(group.shares[0] < 12.5 && group.p99_s < 2.0, "{:?}, {:.2} s", group.shares, group.p99_s);
}

#[test]
fn first_reports_are_compared_as_soon_as_there_are_two() {
    let group = Group { load: LoadReading::Aged, report_gain_percent: 3_200, ..example::group() };
    let mut members = Members::new(at(0.0), &group, Seed(1, 2), None);
    let origin = MessageOrigin { from: Some([192, 0, 2, 31].into()), ..MessageOrigin::default() };
    let joiners =
        ["http://192.0.2.31:1 weight=2", "http://192.0.2.31:2"].map(|line| Joiner::parse(line).unwrap());
    members.join(at(0.0), &origin, &joiners).unwrap();
    (0..2).for_each(|member| members.apply_fact(at(0.0), member, Fact::Probed(Ok(1))));
    members.dispatch(at(1.0));
    for (load, port) in [(1_000_000.0, 1), (0.5, 2)] {
        let url = Some(Url::parse(&format!("http://192.0.2.31:{port}")).unwrap());
        members.inform(at(2.0), None, &LoadInform { load, stamp_ms: None, url }).unwrap();
    }
    let dispatch = members.dispatch(at(3.0));
    let wanted = DispatchRequest { client: [10, 0, 0, 1].into(), method: "GET", host: b"h", target: "/" };
    let second = (0..530).filter(|_| dispatch.choose(&wanted).unwrap().id == 1).count();
    assert_eq!(second, 500, "all but what everybody keeps");
}
