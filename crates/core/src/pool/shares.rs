//! Shares: the parts of a name's or a server group's clients that servers get, by load.
//!
//! The paper (Chow and Semwal, *Web Load Balancing Through More Accurate Server Report*) selects
//! only the best server, which then gets all clients until the next report. Here the share of a
//! server falls as its load rises, so that no server is flooded between two reports.

use alloc::vec::Vec;

use super::policy::Weighing;
use super::signals::{Signal, Signals};

/// Least part of its weight that a working server has, in thousandths. So no report removes a
/// server altogether.
pub const LEAST_PERMILLE: u64 = 30;
/// Full weight, in thousandths.
pub(crate) const PERMILLE: u64 = 1_000;

/// Input for the share of one server.
#[derive(Clone, Copy, Debug)]
pub struct PoolMember {
    /// Configured weight, relative to the other servers.
    pub weight: u16,
    /// Part of the weight after slow start and report, in tenths.
    pub tenths: u16,
    pub signals: Signals,
}

/// Share of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberShare {
    /// Share relative to the other servers.
    pub share: u16,
    /// Part of its weight that the server has because of load and slow start, in thousandths.
    pub permille: u64,
    /// True if the server's load is known. Otherwise the median of the other servers counts.
    pub is_known: bool,
    /// Load from which the share is computed; `None` if the policy has no [`Weighing`].
    pub load: Option<u64>,
}

/// Returns the shares of servers, in the order of `servers`. A share is the server's weight,
/// reduced by load if `weighing` is given. Reports raise no server's share above `gain_percent` of
/// its share by weight alone.
pub fn shares(weighing: Option<&Weighing>, gain_percent: u64, servers: &[PoolMember]) -> Vec<MemberShare> {
    let mut signals: Vec<Signals> = servers.iter().map(|server| server.signals).collect();
    if let Some(complete) = weighing.and_then(|weighing| weighing.complete) {
        complete(&mut signals);
    }
    let loads: Vec<Option<u64>> = signals.iter().map(|signals| (weighing?.load)(signals)).collect();
    let mut known: Vec<u64> = loads.iter().copied().flatten().collect();
    known.sort_unstable();
    let (least, median) = (known.first().copied().unwrap_or(1).max(1), known.get(known.len() / 2).copied());
    let heaviest = servers.iter().map(|server| u64::from(server.weight)).max().unwrap_or(1).max(1);
    // Without load and slow start, shares are the weights of the file. Otherwise the shares are
    // scaled so that the largest one is at most a thousand.
    let is_plain = weighing.is_none() && servers.iter().all(|server| server.tenths >= 10);
    let share_of = |server: &PoolMember, permille: u64| match u64::from(server.weight) {
        weight if is_plain => weight,
        weight => (weight * permille / heaviest).max(u64::from(weight > 0)),
    };
    let permille_by_load = |load: &Option<u64>| {
        load.or(median).map_or(PERMILLE, |load| permille_of(least, load).max(LEAST_PERMILLE))
    };
    let by_load: Vec<(u16, u64)> =
        servers.iter().zip(&loads).map(|(server, load)| (server.weight, permille_by_load(load))).collect();
    let is_reported = weighing.is_some_and(|weighing| weighing.needs.contains(&Signal::Load));
    let most = if is_reported { most_permille(&by_load, gain_percent) } else { PERMILLE };
    let servers = servers.iter().zip(loads).zip(by_load);
    servers
        .map(|((server, load), (_, of_load))| {
            let is_known = load.is_some();
            let load = load.or(median);
            let permille = of_load.min(most) * u64::from(server.tenths.min(10)) / 10;
            let share = u16::try_from(share_of(server, permille)).unwrap_or(u16::MAX);
            MemberShare { share, permille, is_known, load }
        })
        .collect()
}

/// Returns the largest part of its weight that a server may have, in thousandths, so that no server
/// gains more than `gain_percent` of its fair share. Cutting one server reduces the total, so the
/// limit is found by iteration.
pub(crate) fn most_permille(servers: &[(u16, u64)], gain_percent: u64) -> u64 {
    let weight: u128 = servers.iter().map(|(weight, _)| u128::from(*weight)).sum();
    let mut most = PERMILLE;
    loop {
        let whole: u128 = servers
            .iter()
            .map(|(weight, permille)| u128::from(*weight) * u128::from(*permille.min(&most)))
            .sum();
        let bound = (whole * u128::from(gain_percent)).checked_div(weight * 100);
        match bound.and_then(|bound| u64::try_from(bound).ok()).filter(|bound| *bound < most) {
            Some(bound) => most = bound,
            None => return most,
        }
    }
}

/// Returns the ratio of the least load to a load, in thousandths. Loads may be any numbers.
fn permille_of(least: u64, load: u64) -> u64 {
    let part = u128::from(PERMILLE) * u128::from(least) / u128::from(load.max(least));
    u64::try_from(part).unwrap_or(PERMILLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::policy::by_name;
    use crate::pool::report::Report;

    fn weighing() -> Option<&'static Weighing> {
        by_name("utilisation").unwrap().names.unwrap().weighing
    }

    fn server(weight: u16, tenths: u16, load: Option<u64>) -> PoolMember {
        let report = Report { utilisation_permille: load, ..Report::default() };
        PoolMember { weight, tenths, signals: Signals { report, ..Signals::default() } }
    }

    fn given(gain_percent: u64, servers: &[PoolMember]) -> Vec<u16> {
        shares(weighing(), gain_percent, servers).into_iter().map(|one| one.share).collect()
    }

    #[test]
    fn servers_without_loads_have_shares_by_weight() {
        let weights = |servers: &[PoolMember]| -> Vec<(u16, u64)> {
            shares(None, 150, servers).into_iter().map(|one| (one.share, one.permille)).collect()
        };
        let (one, three) = (server(1, 10, None), server(3, 10, Some(900)));
        assert_eq!(weights(&[one, three, server(0, 10, None)]), [(1, 1_000), (3, 1_000), (0, 1_000)]);
        // While one of the servers starts slowly, the heaviest server has a share of a thousand.
        assert_eq!(weights(&[server(2, 3, None), server(4, 10, None)]), [(150, 300), (1_000, 1_000)]);
        assert_eq!(weights(&[server(2, 30, None), server(4, 10, None)]), [(2, 1_000), (4, 1_000)]);
        assert!(weights(&[]).is_empty());
    }

    #[test]
    fn a_server_with_twice_the_load_has_half_of_its_weight() {
        let all = [server(1, 10, Some(200)), server(1, 10, Some(400)), server(2, 10, Some(400))];
        assert_eq!(given(10_000, &all), [500, 250, 500]);
        assert_eq!(given(10_000, &[server(1, 5, Some(200)), server(1, 10, Some(400))]), [500, 500]);
    }

    #[test]
    fn server_without_report_has_median_load() {
        let all = [Some(200), None, Some(400), Some(800)].map(|load| server(1, 10, load));
        let shares = shares(weighing(), 10_000, &all);
        let known: Vec<_> = shares.iter().map(|one| (one.share, one.is_known, one.load)).collect();
        let expected = [
            (1_000, true, Some(200)),
            (500, false, Some(400)),
            (500, true, Some(400)),
            (250, true, Some(800)),
        ];
        assert_eq!(known, expected);
        let nobody = [server(1, 10, None), server(3, 10, None)];
        assert_eq!(given(10_000, &nobody), [333, 1_000], "weights alone");
    }

    #[test]
    fn most_loaded_server_keeps_a_share() {
        assert_eq!(given(10_000, &[server(1, 10, Some(100)), server(1, 10, Some(100_000))]), [1_000, 30]);
        let light = [server(1, 10, Some(100_000)), server(1_000, 10, Some(100))];
        assert_eq!(given(10_000, &light), [1, 1_000], "however light it is");
        assert_eq!(given(10_000, &[server(0, 10, Some(100)), server(1, 10, Some(100))]), [0, 1_000]);
    }

    #[test]
    fn no_server_gains_more_than_report_gain() {
        for (gain_percent, loads) in
            [(150, [100, 900, 900, 900]), (110, [100, 100, 100, 900]), (150, [100, 400, 500, 600])]
        {
            let all = loads.map(|load| server(1, 10, Some(load)));
            let given = given(gain_percent, &all);
            let whole: u64 = given.iter().map(|share| u64::from(*share)).sum();
            let most = u64::from(*given.iter().max().unwrap());
            let (part, allowed) = (most * 4 * 100 / whole, gain_percent);
            assert!(
                part <= allowed + 1 && part + 3 >= allowed,
                "{given:?}: {part} % of a fair share, of {allowed}"
            );
        }
        // Latency is measured by Evener itself, so its gain has no limit.
        let probed = |latency_us| {
            let signals = Signals { latency_us: Some(latency_us), ..Signals::default() };
            PoolMember { weight: 1, tenths: 10, signals }
        };
        let weighing = by_name("peak-ewma").unwrap().names.unwrap().weighing;
        let shares = shares(weighing, 100, &[probed(2_000), probed(8_000)]);
        assert_eq!(shares.iter().map(|one| one.share).collect::<Vec<_>>(), [1_000, 250]);
    }
}
