//! Schedule of path probes to servers, and lifetime of their results.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::net::{IpAddr, SocketAddr};

use crate::pool::report::Report;
use crate::pool::{ClockReading, Period};

/// Number of intervals for which a probe's result is valid.
const KEPT_INTERVALS: u64 = 3;

/// Method of path measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathMode {
    /// UDP trains, which the server's agent sends.
    #[default]
    Udp,
    /// ICMP echoes, as in bprobe and cprobe.
    Paper,
}

/// Settings of a name's path probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathProbing {
    pub mode: PathMode,
    /// Interval between two probes of one path.
    pub interval: Period,
}

/// Bandwidth of a path, in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredPath {
    /// Bandwidth of the bottleneck link.
    pub bottleneck_bps: u64,
    /// Available bandwidth; `None` if it couldn't be measured.
    pub available_bps: Option<u64>,
}

/// A path probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOrder {
    /// Address and port of the server's agent. [`PathMode::Paper`] ignores the port.
    pub to: SocketAddr,
    pub mode: PathMode,
}

/// Result of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathChange {
    /// True if the known bandwidth changed.
    pub is_news: bool,
    /// `Some(Some(reason))` for the first failure, `Some(None)` for the first success afterwards,
    /// `None` if nothing changed.
    pub turned: Option<Option<String>>,
}

/// A server with its path.
#[derive(Clone, Debug)]
struct ProbedPath {
    port: u16,
    probing: PathProbing,
    due_ms: u64,
    /// Interval at the last probe, in milliseconds.
    interval_ms: u64,
    /// Last result, with its time and the time for which it is valid, in milliseconds.
    found: Option<(MeasuredPath, u64, u64)>,
    fails: bool,
}

/// All probed paths. Probes run one at a time, so that they don't compete on a shared link.
#[derive(Clone, Debug, Default)]
pub struct PathProber {
    all: BTreeMap<IpAddr, ProbedPath>,
    /// Path whose probe is under way.
    under_way: Option<IpAddr>,
}

impl PathProber {
    /// Replaces the set of probed paths, with the ports of the servers' agents. If several names
    /// probe a path, the settings with the shortest interval of the day count.
    pub fn follow(
        &mut self,
        wanted: impl IntoIterator<Item = (IpAddr, u16, PathProbing)>,
        now: ClockReading,
    ) {
        let now_ms = now.now_ms;
        let mut before = core::mem::take(&mut self.all);
        for (address, port, probing) in wanted {
            let shorter =
                |path: &ProbedPath| path.probing.interval.shortest_ms() <= probing.interval.shortest_ms();
            if self.all.get(&address).is_some_and(shorter) {
                continue;
            }
            let known = self.all.remove(&address).or_else(|| before.remove(&address));
            let mut path = known.unwrap_or_else(|| ProbedPath {
                port,
                probing: probing.clone(),
                due_ms: now_ms,
                interval_ms: 0,
                found: None,
                fails: false,
            });
            if path.probing.mode != probing.mode {
                path.found = None;
            }
            path.due_ms = path.due_ms.min(now_ms.saturating_add(probing.interval.wait_ms(now)));
            (path.port, path.probing) = (port, probing);
            self.all.insert(address, path);
        }
    }

    /// Returns the path to probe now; `None` if no probe is due or one is under way.
    pub fn poll(&mut self, now: ClockReading) -> Option<PathOrder> {
        let now_ms = now.now_ms;
        if self.under_way.is_some() {
            return None;
        }
        let (address, path) = self
            .all
            .iter_mut()
            .filter(|(_, path)| path.due_ms <= now_ms)
            .min_by_key(|(_, path)| path.due_ms)?;
        path.due_ms = now_ms.saturating_add(path.probing.interval.wait_ms(now));
        path.interval_ms = path.probing.interval.ms_at(now.second_of_day);
        self.under_way = Some(*address);
        Some(PathOrder { to: SocketAddr::new(*address, path.port), mode: path.probing.mode })
    }

    /// Applies the result of a probe.
    pub fn probed(
        &mut self,
        address: IpAddr,
        result: Result<MeasuredPath, String>,
        now_ms: u64,
    ) -> PathChange {
        self.under_way = self.under_way.filter(|under_way| *under_way != address);
        // A reload may have removed the path.
        let Some(path) = self.all.get_mut(&address) else { return PathChange::default() };
        let before = path.found.map(|(found, ..)| found);
        match result {
            Ok(found) => {
                path.found = Some((found, now_ms, path.interval_ms.saturating_mul(KEPT_INTERVALS)));
                let turned = core::mem::take(&mut path.fails).then_some(None);
                PathChange { is_news: before != Some(found), turned }
            }
            Err(why) => {
                let is_old =
                    path.found.is_some_and(|(_, at_ms, kept_ms)| now_ms.saturating_sub(at_ms) >= kept_ms);
                if is_old {
                    path.found = None;
                }
                let turned = (!core::mem::replace(&mut path.fails, true)).then_some(Some(why));
                PathChange { is_news: is_old, turned }
            }
        }
    }

    /// Returns the measured path to a server, with the age of the measurement in milliseconds.
    /// `None` if there is no valid result.
    pub fn of(&self, address: IpAddr, now_ms: u64) -> Option<(MeasuredPath, u64)> {
        let path = self.all.get(&address)?;
        let (found, at_ms, kept_ms) = path.found?;
        let age_ms = now_ms.saturating_sub(at_ms);
        (age_ms < kept_ms).then_some((found, age_ms))
    }

    /// Fills in bandwidths that a server's report lacks. Bandwidths in the report come from
    /// clients' traffic and take precedence. Returns the age of the probe's result in milliseconds,
    /// if the result was used.
    pub fn complete(&self, report: &mut Report, address: IpAddr, now_ms: u64) -> Option<u64> {
        let (found, age_ms) = self.of(address, now_ms)?;
        let is_unknown = report.bottleneck_bps.is_none() || report.available_bps.is_none();
        report.bottleneck_bps = report.bottleneck_bps.or(Some(found.bottleneck_bps));
        report.available_bps = report.available_bps.or(found.available_bps);
        is_unknown.then_some(age_ms)
    }

    /// Time of the next probe, in milliseconds.
    pub fn next_at(&self) -> u64 {
        match self.under_way {
            Some(_) => u64::MAX,
            None => self.all.values().map(|path| path.due_ms).min().unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;

    fn probing(interval_ms: u64) -> PathProbing {
        PathProbing { mode: PathMode::Udp, interval: Period::always(interval_ms) }
    }

    const FOUND: MeasuredPath = MeasuredPath { bottleneck_bps: 4_000_000, available_bps: Some(2_000_000) };

    fn server(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    fn paths(servers: u8, now_ms: u64) -> PathProber {
        let mut paths = PathProber::default();
        paths.follow(
            (1..=servers).map(|number| (server(number), 9_183, probing(1_000))),
            ClockReading::at(now_ms),
        );
        paths
    }

    #[test]
    fn paths_are_probed_one_at_a_time_once_per_interval() {
        let mut paths = paths(2, 500);
        let first = paths.poll(ClockReading::at(500)).unwrap();
        assert_eq!(first, PathOrder { to: (server(1), 9_183).into(), mode: PathMode::Udp });
        assert_eq!((paths.poll(ClockReading::at(500)), paths.next_at()), (None, u64::MAX));
        assert!(paths.probed(server(1), Ok(FOUND), 700).is_news);
        assert_eq!(paths.poll(ClockReading::at(700)).map(|order| order.to.ip()), Some(server(2)));
        assert!(paths.probed(server(2), Ok(FOUND), 900).is_news);
        assert_eq!((paths.poll(ClockReading::at(900)), paths.next_at()), (None, 1_500));
        assert_eq!(paths.poll(ClockReading::at(1_500)).map(|order| order.to.ip()), Some(server(1)));
        assert!(!paths.probed(server(1), Ok(FOUND), 1_600).is_news, "as before");
        assert_eq!(paths.of(server(1), 1_700), Some((FOUND, 100)));
    }

    #[test]
    fn path_result_lasts_three_intervals_and_failure_is_reported_once() {
        let mut paths = paths(1, 0);
        paths.poll(ClockReading::at(0));
        paths.probed(server(1), Ok(FOUND), 0);
        let fail = |paths: &mut PathProber, at_ms: u64| {
            paths.poll(ClockReading::at(at_ms));
            paths.probed(server(1), Err("nobody answers".to_owned()), at_ms)
        };
        let change = PathChange { is_news: false, turned: Some(Some("nobody answers".to_owned())) };
        assert_eq!(fail(&mut paths, 1_000), change);
        assert_eq!(fail(&mut paths, 2_000), PathChange::default());
        assert_eq!((paths.of(server(1), 2_999).is_some(), paths.of(server(1), 3_000)), (true, None));
        assert_eq!(fail(&mut paths, 3_000), PathChange { is_news: true, turned: None });
        let change = paths.probed(server(1), Ok(FOUND), 4_000);
        assert_eq!(change, PathChange { is_news: true, turned: Some(None) });
    }

    #[test]
    fn paths_are_probed_by_time_of_day() {
        let interval = Period::new([(0, 600_000), (8 * 3_600, 60_000)]);
        let mut paths = PathProber::default();
        let night = ClockReading { second_of_day: 8 * 3_600 - 700, ..ClockReading::default() };
        paths.follow([(server(1), 9_183, PathProbing { mode: PathMode::Udp, interval })], night);
        let mut probed = alloc::vec::Vec::new();
        for second in 0..1_000 {
            let second_of_day = night.second_of_day + second;
            let now_ms = u64::from(second) * 1_000;
            if paths.poll(ClockReading { now_ms, second_of_day, unix_ms: 0 }).is_some() {
                probed.push(second);
                paths.probed(server(1), Ok(FOUND), now_ms);
            }
            assert!(paths.of(server(1), now_ms).is_some(), "a result of the night is valid in the day");
        }
        assert_eq!(probed, [0, 600, 700, 760, 820, 880, 940]);
    }

    #[test]
    fn reload_keeps_known_paths_and_drops_removed_ones() {
        let mut paths = paths(2, 0);
        paths.poll(ClockReading::at(0));
        paths.follow([(server(2), 9_183, probing(1_000))], ClockReading::at(100));
        assert_eq!(paths.probed(server(1), Ok(FOUND), 200), PathChange::default());
        assert_eq!(
            paths.poll(ClockReading::at(200)).map(|order| order.to.ip()),
            Some(server(2)),
            "the other has ended"
        );
        paths.probed(server(2), Ok(FOUND), 300);
        paths.follow(
            [(server(2), 9_183, probing(1_000)), (server(2), 9_183, probing(1_000))],
            ClockReading::at(400),
        );
        assert!(paths.of(server(2), 400).is_some());
        let echoes = PathProbing { mode: PathMode::Paper, ..probing(1_000) };
        paths.follow([(server(2), 9_183, echoes)], ClockReading::at(500));
        assert_eq!(paths.of(server(2), 500), None, "another way to measure finds something else");
        assert!(paths.next_at() <= 1_500);
    }

    #[test]
    fn clients_count_before_probes() {
        let mut paths = paths(1, 0);
        paths.poll(ClockReading::at(0));
        paths.probed(server(1), Ok(FOUND), 0);
        let complete = |mut report: Report| (paths.complete(&mut report, server(1), 100), report);
        let (age_ms, report) = complete(Report::default());
        assert_eq!(
            (age_ms, report.bottleneck_bps, report.available_bps),
            (Some(100), Some(4_000_000), Some(2_000_000))
        );
        let shown = Report { available_bps: Some(7), bottleneck_bps: Some(9), ..Report::default() };
        assert_eq!(complete(shown), (None, shown));
    }
}
