//! The gain of a server by a report that nothing bears out.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

use evener_core::net::wire::Mac;
use evener_core::path::seed::Seed;
use evener_core::path::select::{Counts, Score, select};
use evener_core::path::sessions::SessionKey;
use evener_core::path::tables::{Forwarding, HASH_SLOTS, Pick, Ring, SERVER_SLOTS, ServerEntry, Tables};
use evener_core::pool::policy::score::{GAIN_PERCENT, gains, scores};
use evener_core::pool::policy::{Weighted, maglev, second_candidates};

/// The tables of one service whose servers, numbered from 0, have these weights.
fn tables(weights: &[u16]) -> Tables {
    let mut tables = Tables::default();
    let members: Vec<Weighted> = (0..)
        .zip(weights)
        .map(|(slot, weight)| Weighted {
            slot,
            weight: *weight,
            seed: 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(slot) + 1),
        })
        .collect();
    for Weighted { slot, weight, seed } in &members {
        let entry = ServerEntry {
            identity: *seed,
            mac: Mac::default(),
            ifindex: 1,
            weight: *weight,
            up: true,
            local: false,
            forwarding: Forwarding::Link,
        };
        tables.servers.insert(*slot, entry);
    }
    let hash: Arc<[u16]> = maglev(&members, HASH_SLOTS).into();
    let second = second_candidates(&hash);
    tables.rings.insert(0, Arc::new(Ring { order: Vec::new(), hash, second, previous: Arc::default() }));
    tables
}

/// Of a thousand new sessions, of which so many are open at a time, how many the first of servers
/// with these weights has, which reports that it has nothing to do, while the others report that
/// they have much.
fn share_of_a_liar(weights: &[u16], open: usize, gain_percent: u64) -> u64 {
    const FLOWS: u32 = 40_000;
    let tables = tables(weights);
    let loads: Vec<Option<u64>> =
        (0..weights.len()).map(|number| Some(if number == 0 { 1 } else { 1_000 })).collect();
    let loads = scores(&loads);
    let known: Vec<(u16, u64)> = weights.iter().copied().zip(loads.iter().copied().map(u64::from)).collect();
    let gains = gains(&known, gain_percent);
    let scores: Vec<(u16, Score)> = (0..)
        .zip(loads.iter().zip(gains))
        .map(|(slot, (load, gain))| (slot, Score { load: *load, gain }))
        .collect();
    let active: Vec<AtomicU64> = (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect();
    let places: Vec<AtomicU16> = (0..SERVER_SLOTS).map(|_| AtomicU16::new(0)).collect();
    let counts = Counts { cursors: &[], active: &active, scores: &places, limits: &[] };
    counts.score(&scores);
    let (mut opened, mut given) = (VecDeque::new(), BTreeMap::new());
    for number in 0..FLOWS {
        let key =
            SessionKey { client: std::net::Ipv4Addr::from_bits(number * 7).into(), port: 1_024, vip: 0 };
        let slot = select(
            &tables,
            counts,
            0,
            Pick::Two,
            key.hash(Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f)),
        );
        *given.entry(slot).or_insert(0_u64) += 1;
        active[usize::from(slot)].fetch_add(1, Relaxed);
        opened.push_back(slot);
        if opened.len() > open {
            let over = opened.pop_front().unwrap();
            active[usize::from(over)].fetch_sub(1, Relaxed);
        }
    }
    given.get(&0).copied().unwrap_or_default() * 1_000 / u64::from(FLOWS)
}

#[test]
fn a_report_gains_half_again_of_a_fair_share_at_the_most() {
    for open in [0, 3, 40, 2_000] {
        for weights in [&[1, 1, 1, 1][..], &[1, 1], &[1, 1, 1], &[1, 3], &[3, 1], &[2, 1, 1, 5], &[1; 40]] {
            let all: u64 = weights.iter().copied().map(u64::from).sum();
            // Where few are open, sessions alone draw more than that to whoever has none at the
            // moment.
            if open == 3 && weights.iter().any(|weight| *weight != weights[0]) {
                continue;
            }
            let fair = u64::from(weights[0]) * 1_000 / all;
            let share = share_of_a_liar(weights, open, GAIN_PERCENT);
            assert!(share <= fair * GAIN_PERCENT / 100 + 30, "{share} of 1000 by {weights:?}, {open} open");
        }
        let share = share_of_a_liar(&[1, 1, 1, 1], open, GAIN_PERCENT);
        assert!(share >= 300, "and some of it: {share} of 1000, {open} open");
        let share = share_of_a_liar(&[1, 1, 1, 1], open, 3_200);
        assert!(
            share > 405,
            "as much as two candidates give, if the file says so: {share} of 1000, {open} open"
        );
    }
}
