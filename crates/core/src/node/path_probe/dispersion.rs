//! Bandwidth estimates from packets' arrival times.
//!
//! Two packets sent back to back leave the bottleneck link one transmission time apart (Keshav
//! 1991; bprobe of Carter and Crovella). A train of packets that is slightly faster than the
//! bottleneck link keeps the link's queue filled. Then cross traffic makes the train longer by the
//! transmission time of the cross traffic. So the available bandwidth is the link's rate less the
//! rate of the cross traffic (as in IGI, Hu and Steenkiste 2003).

use alloc::vec::Vec;

use super::PACKET_BITS;

/// Maximum difference between two gaps that count as similar, in percent.
const ALIKE_PERCENT: u64 = 15;
/// Minimum number of gaps for a result.
const GAPS_MIN: usize = 4;
/// Maximum loss of a train, in percent.
const LOST_PERCENT: usize = 10;
/// A train is discarded if its sender took longer than the nominal time by more than this
/// percentage.
const LATE_PERCENT: u64 = 30;
/// Maximum plausible cross traffic, in percent of the link's rate. A higher estimate shows that the
/// path has a token bucket.
const BURST_PERCENT: u128 = 110;

/// A received packet of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeArrival {
    /// Index in the train.
    pub index: u8,
    /// Time of sending by the sender's clock, in nanoseconds.
    pub sent_ns: u64,
    /// Time of arrival in the kernel by this host's clock, in nanoseconds.
    pub arrived_ns: u64,
}

/// Returns the rate of the bottleneck link in bits per second, from a train sent back to back.
/// `None` if too few packets arrived.
///
/// Only one cluster of similar gaps counts: the cluster that takes most of the train's time. A
/// token bucket passes some packets at once, with gaps of almost zero. Cross traffic between two
/// packets makes single gaps longer.
pub fn bottleneck_bps(train: &[ProbeArrival]) -> Option<u64> {
    let mut gaps: Vec<u64> =
        neighbours(train).map(|(one, next)| next.arrived_ns.saturating_sub(one.arrived_ns)).collect();
    if gaps.len() < GAPS_MIN {
        return None;
    }
    gaps.sort_unstable();
    let alike = |from: usize| {
        let most = gaps[from].saturating_mul(100 + ALIKE_PERCENT) / 100;
        let cluster = &gaps[from..];
        &cluster[..cluster.partition_point(|gap| *gap <= most)]
    };
    let clusters = (0..gaps.len()).map(alike).filter(|cluster| cluster.len() >= GAPS_MIN);
    let cluster = clusters.max_by_key(|cluster| cluster.iter().sum::<u64>());
    // On a very fast link no gaps are similar, or all gaps are zero. Then all gaps count.
    let cluster = cluster.filter(|cluster| cluster.iter().sum::<u64>() > 0).unwrap_or(&gaps);
    rate(cluster.len() as u64, cluster.iter().sum())
}

/// Returns pairs of successive packets of the train without a missing packet between them.
fn neighbours(train: &[ProbeArrival]) -> impl Iterator<Item = (&ProbeArrival, &ProbeArrival)> {
    train.iter().zip(train.iter().skip(1)).filter(|(one, next)| next.index == one.index.wrapping_add(1))
}

fn rate(packets: u64, time_ns: u64) -> Option<u64> {
    (packets * PACKET_BITS * 1_000_000_000).checked_div(time_ns)
}

/// Returns the available bandwidth of a link of rate `bottleneck_bps`, in bits per second. `train`
/// is what arrived of a train of `packets` packets, sent `gap_ns` apart, which is slightly faster
/// than the link. `None` if too many packets are missing, or if the sender was late.
pub fn available_bps(train: &[ProbeArrival], packets: u8, gap_ns: u32, bottleneck_bps: u64) -> Option<u64> {
    let (first, last) = (train.first()?, train.last()?);
    let lost = usize::from(packets).saturating_sub(train.len());
    let between = u64::from(last.index.checked_sub(first.index).filter(|between| *between > 0)?);
    let sent_ns = last.sent_ns.checked_sub(first.sent_ns)?;
    let is_late = sent_ns > between * u64::from(gap_ns) * (100 + LATE_PERCENT) / 100;
    if lost * 100 > usize::from(packets) * LOST_PERCENT || is_late || sent_ns == 0 {
        return None;
    }
    let arrived_ns = last.arrived_ns.checked_sub(first.arrived_ns)?;
    // In the time of the train's arrival, the link carried the train and the cross traffic that
    // came while the train was sent.
    let carried = u128::from(bottleneck_bps) * u128::from(arrived_ns) / 1_000_000_000;
    let ours = u128::from(between * PACKET_BITS) * train.len() as u128 / u128::from(packets.max(1));
    let others_bps = carried.saturating_sub(ours) * 1_000_000_000 / u128::from(sent_ns);
    Some(bottleneck_bps.saturating_sub(u64::try_from(others_bps).unwrap_or(u64::MAX)))
}

/// True if a paced train arrived so slowly that the estimate of cross traffic exceeds the link's
/// rate. Then `bottleneck_bps` is only the rate of a burst that passed a token bucket, and both
/// bandwidths are unknown.
pub fn is_burst(train: &[ProbeArrival], bottleneck_bps: u64) -> bool {
    let (Some(first), Some(last)) = (train.first(), train.last()) else { return false };
    let sent_ns = last.sent_ns.saturating_sub(first.sent_ns);
    let arrived_ns = last.arrived_ns.saturating_sub(first.arrived_ns);
    let ours = u64::from(last.index.saturating_sub(first.index)) * PACKET_BITS;
    let ours_ns = u128::from(ours) * 1_000_000_000 / u128::from(bottleneck_bps.max(1));
    u128::from(arrived_ns).saturating_sub(ours_ns) * 100 > u128::from(sent_ns) * BURST_PERCENT
}

/// Returns the rate of the bottleneck link in bits per second, from a long train (`first`) and
/// shorter trains right after it (`behind`). If the shorter trains are less than half as fast, the
/// first train passed a token bucket. Then the last two trains give the link's rate, if they agree.
pub fn settled_bottleneck_bps(first: &[ProbeArrival], behind: &[Vec<ProbeArrival>]) -> Option<u64> {
    let first = bottleneck_bps(first)?;
    let behind: Vec<u64> = behind.iter().filter_map(|train| bottleneck_bps(train)).collect();
    let mut sorted = behind.clone();
    sorted.sort_unstable();
    match (sorted.get(sorted.len() / 2), &behind[..]) {
        (Some(middle), [.., one, other]) if middle.saturating_mul(2) < first => {
            let (less, more) = (one.min(other), one.max(other));
            (*more <= less.saturating_mul(100 + ALIKE_PERCENT) / 100).then_some(*less)
        }
        _ => Some(first),
    }
}

/// Returns the available bandwidth in bits per second, as cprobe defines it, from trains of echoes.
/// The rate of a train of echoes is its bits divided by the time from the first to the last echo.
/// The result is the mean rate without the fastest and the slowest train. The result lies between
/// the available bandwidth and the link's rate (Dovrolis, Ramanathan and Moore 2001).
pub fn echoes_available_bps(trains: &[Vec<ProbeArrival>]) -> Option<u64> {
    let of = |train: &Vec<ProbeArrival>| {
        let time_ns = train.last()?.arrived_ns.checked_sub(train.first()?.arrived_ns)?;
        rate(train.len() as u64 - 1, time_ns)
    };
    let mut rates: Vec<u64> = trains.iter().filter(|train| train.len() > GAPS_MIN).filter_map(of).collect();
    rates.sort_unstable();
    let middle = if rates.len() > 2 { &rates[1..rates.len() - 1] } else { &rates[..] };
    middle.iter().sum::<u64>().checked_div(middle.len() as u64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{AT_ONCE, PACED, paced_gap_ns};
    use super::*;

    /// Model of a link with a queue, a token bucket and cross traffic.
    struct Link {
        bps: u64,
        burst_bits: u64,
        others_bps: u64,
    }

    const OTHERS_BITS: u64 = 9_000;

    impl Link {
        fn of(bps: u64) -> Link {
            Link { bps, burst_bits: PACKET_BITS, others_bps: 0 }
        }

        fn carry(&self, sent_ns: &[u64]) -> Vec<ProbeArrival> {
            let others_gap = (OTHERS_BITS * 1_000_000_000).checked_div(self.others_bps);
            let end = sent_ns.last().copied().unwrap_or_default();
            let others = others_gap
                .into_iter()
                .flat_map(|gap| (0..).map(move |n| 1_000 + n * gap))
                .take_while(|at| *at <= end);
            let ours = sent_ns.iter().enumerate().map(|(index, at)| (*at, PACKET_BITS, Some(index as u8)));
            let mut all: Vec<(u64, u64, Option<u8>)> =
                ours.chain(others.map(|at| (at, OTHERS_BITS, None))).collect();
            all.sort_by_key(|(at, ..)| *at);
            let (mut free_ns, mut tokens, mut last_ns, mut out) =
                (0u64, self.burst_bits as f64, 0, Vec::new());
            for (at, bits, ours) in all {
                let start = free_ns.max(at);
                tokens =
                    (tokens + (start - last_ns) as f64 * self.bps as f64 / 1e9).min(self.burst_bits as f64);
                let wait_ns = ((bits as f64 - tokens).max(0.0) * 1e9 / self.bps as f64) as u64;
                tokens = (tokens + wait_ns as f64 * self.bps as f64 / 1e9 - bits as f64).max(0.0);
                last_ns = start + wait_ns;
                // The wire behind the token bucket is fast.
                free_ns = last_ns + 1_000;
                if let Some(index) = ours {
                    let sent_ns = sent_ns[usize::from(index)];
                    out.push(ProbeArrival { index, sent_ns, arrived_ns: free_ns });
                }
            }
            out
        }
    }

    fn at_once() -> Vec<u64> {
        (0..u64::from(AT_ONCE)).map(|index| index * 5_000).collect()
    }

    fn paced(gap_ns: u32) -> Vec<u64> {
        (0..u64::from(PACED)).map(|index| index * u64::from(gap_ns)).collect()
    }

    fn is_near(found: Option<u64>, expected: u64, percent: u64) -> bool {
        found.is_some_and(|found| found.abs_diff(expected) * 100 <= expected * percent)
    }

    #[test]
    fn the_narrowest_link_spaces_packets_that_were_sent_at_once() {
        for bps in [1_000_000, 4_000_000, 40_000_000, 400_000_000] {
            let found = bottleneck_bps(&Link::of(bps).carry(&at_once()));
            assert!(is_near(found, bps, 10), "{bps}: {found:?}");
            // A third of the train passes at once with saved tokens.
            let burst = Link { burst_bits: 6 * PACKET_BITS, ..Link::of(bps) }.carry(&at_once());
            assert!(is_near(bottleneck_bps(&burst), bps, 10), "{bps}: {:?}", bottleneck_bps(&burst));
        }
    }

    #[test]
    fn bursts_of_a_token_bucket_are_no_link() {
        for bps in [4_000_000, 40_000_000] {
            // The first train passes entirely with saved tokens. Some tokens are left for the
            // second train.
            for packets in [17, 24, 30] {
                let link = Link { burst_bits: packets * PACKET_BITS, ..Link::of(bps) };
                let found = bottleneck_bps(&link.carry(&at_once())).unwrap();
                assert!(found > 10 * bps, "{found}");
                let drained = Link { burst_bits: (packets - 16) * PACKET_BITS, ..Link::of(bps) };
                assert!(is_burst(&drained.carry(&paced(paced_gap_ns(found))), found), "{bps}, {packets}");
            }
            for others_percent in [0, 50, 95] {
                let link = Link { others_bps: bps * others_percent / 100, ..Link::of(bps) };
                assert!(!is_burst(&link.carry(&paced(paced_gap_ns(bps))), bps), "{bps}, {others_percent} %");
            }
        }
        assert!(!is_burst(&[], 1));
    }

    #[test]
    fn trains_behind_a_burst_tell_the_link() {
        let bps = 10_000_000;
        let train =
            |link: &Link, packets: u64| link.carry(&(0..packets).map(|at| at * 5_000).collect::<Vec<_>>());
        let drained = Link::of(bps);
        for burst in [1, 4, 12, 14, 24] {
            let first = Link { burst_bits: burst * PACKET_BITS, ..Link::of(bps) };
            let second = Link { burst_bits: 1.max(burst.saturating_sub(14)) * PACKET_BITS, ..Link::of(bps) };
            let behind = [train(&second, 10), train(&drained, 10), train(&drained, 10)];
            let found = settled_bottleneck_bps(&train(&first, 14), &behind);
            assert!(is_near(found, bps, 10), "a bucket of {burst} packets: {found:?}");
        }
        let first = train(&Link { burst_bits: 24 * PACKET_BITS, ..Link::of(bps) }, 14);
        let slower = train(&Link::of(bps / 2), 10);
        let unsettled = [train(&drained, 10), train(&drained, 10), slower];
        assert_eq!(settled_bottleneck_bps(&first, &unsettled), None);
        assert_eq!(settled_bottleneck_bps(&[], &unsettled), None);
        assert!(is_near(settled_bottleneck_bps(&train(&drained, 14), &[]), bps, 10));
    }

    #[test]
    fn available_bandwidth_excludes_cross_traffic() {
        for bps in [4_000_000, 40_000_000] {
            for others_percent in [0, 25, 50, 75] {
                let link = Link { others_bps: bps * others_percent / 100, ..Link::of(bps) };
                let gap_ns = paced_gap_ns(bps);
                let found = available_bps(&link.carry(&paced(gap_ns)), PACED, gap_ns, bps);
                let expected = bps - link.others_bps;
                assert!(is_near(found, expected, 25), "{bps}, {others_percent} %: {found:?} for {expected}");
            }
        }
    }

    #[test]
    fn trains_with_too_few_packets_give_no_estimate() {
        let link = Link::of(4_000_000);
        let train = link.carry(&at_once());
        assert_eq!(bottleneck_bps(&train[..GAPS_MIN]), None);
        assert_eq!(bottleneck_bps(&[]), None);
        let holes: Vec<ProbeArrival> = train.iter().copied().filter(|one| one.index % 2 == 0).collect();
        assert_eq!(bottleneck_bps(&holes), None, "no two neighbours");
        let lost: Vec<ProbeArrival> = train.iter().copied().filter(|one| one.index != 7).collect();
        assert!(is_near(bottleneck_bps(&lost), 4_000_000, 10), "one is lost");
        let gap_ns = paced_gap_ns(4_000_000);
        let train = link.carry(&paced(gap_ns));
        let of = |train: &[ProbeArrival]| available_bps(train, PACED, gap_ns, 4_000_000);
        assert!(of(&train).is_some() && of(&train[..train.len() - 2]).is_some());
        assert_eq!(of(&train[..train.len() - 3]), None);
        assert_eq!((of(&[]), of(&train[..1])), (None, None));
        let late = link.carry(&paced(gap_ns * 2));
        assert_eq!(of(&late), None, "its sender was late");
        let mut odd = train.clone();
        odd[27].arrived_ns = 0;
        assert_eq!(of(&odd), None, "a clock that was set");
    }

    #[test]
    fn echoes_give_output_rate_of_train() {
        let link = Link { others_bps: 2_000_000, ..Link::of(4_000_000) };
        let train = link.carry(&at_once());
        let found = echoes_available_bps(&[train.clone(), train.clone(), train]);
        assert!(is_near(found, 4_000_000, 10), "sent at once, it keeps others behind it: {found:?}");
        assert_eq!(echoes_available_bps(&[]), None);
    }
}
