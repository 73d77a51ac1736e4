//! What one packet costs in the kernel engine, beside a balancer of the usual design on the same frames.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use evener_core::farm::Protocol;
use evener_core::policy::{self, Weighted};
use evener_core::sessions::ticks;
use evener_core::tables::{HASH_SLOTS, IdleTicks, Pick, Ring, ServerEntry, Tables, Vip, VipKey};
use evener_core::wire::Mac;
use evener_dataplane::xdp::{Bench, Subject};
use serde::Serialize;

use crate::table::Table;

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);
const SESSIONS_MAX: usize = 2 << 20;
const FLOWS: [u32; 4] = [1, 1 << 10, 1 << 16, 1 << 20];
const NEW: u32 = 1 << 16;

/// Costs by number of flows.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    rows: Vec<Row>,
}

/// Nanoseconds a packet, medians, the wrapper's own included.
#[derive(Debug, Serialize)]
struct Row {
    flows: u32,
    wrapper: u64,
    pass: Cost,
    established: Cost,
    new_session: Cost,
}

/// The director beside the yardstick.
#[derive(Debug, Serialize)]
struct Cost {
    l2: u64,
    yardstick: u64,
}

impl Cost {
    fn ratio(&self) -> f64 {
        self.l2 as f64 / self.yardstick.max(1) as f64
    }
}

/// Measures with `rounds` rounds for each figure, in turn, so that both meet the same noise.
pub(super) fn run(rounds: usize) -> Result<Outcome> {
    let tables = Arc::new(tables());
    let mut rows = Vec::new();
    for flows in FLOWS {
        eprintln!("  packets of {flows} flows");
        let bench = Bench::new(SESSIONS_MAX, &tables, VIP)?;
        rows.push(row(&bench, flows, rounds)?);
    }
    Ok(Outcome { rows })
}

fn row(bench: &Bench, flows: u32, rounds: usize) -> Result<Row> {
    let packets = 2_000_000;
    for subject in [Subject::L2, Subject::Yardstick] {
        bench.open(subject, flows)?;
    }
    let mut round = 0;
    let mut new_session = |subject| {
        round += 1;
        bench.new_sessions(subject, round, NEW)
    };
    Ok(Row {
        flows,
        wrapper: median(rounds, || bench.established(Subject::Wrapper, flows, packets))?,
        pass: pair(rounds, |subject| bench.pass(subject, packets))?,
        established: pair(rounds, |subject| bench.established(subject, flows, packets))?,
        new_session: pair(rounds, &mut new_session)?,
    })
}

fn pair<E>(rounds: usize, mut measure: impl FnMut(Subject) -> Result<u64, E>) -> Result<Cost, E> {
    let (mut l2, mut yardstick) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        l2.push(measure(Subject::L2)?);
        yardstick.push(measure(Subject::Yardstick)?);
    }
    Ok(Cost { l2: middle(l2), yardstick: middle(yardstick) })
}

fn median<E>(rounds: usize, mut measure: impl FnMut() -> Result<u64, E>) -> Result<u64, E> {
    (0..rounds).map(|_| measure()).collect::<Result<Vec<_>, E>>().map(middle)
}

fn middle(mut figures: Vec<u64>) -> u64 {
    figures.sort_unstable();
    figures[figures.len() / 2]
}

/// One service, round-robin over eight servers, on the interface that test runs come in by.
fn tables() -> Tables {
    let mut tables = Tables::default();
    tables.interfaces.insert(1, Mac([2, 0, 0, 0, 0, 1]));
    for slot in 1..=8u16 {
        let mac = Mac([2, 0, 0, 0, 1, slot as u8]);
        let server =
            ServerEntry { identity: slot.into(), mac, ifindex: 1, weight: 1, up: true, local: false };
        tables.servers.insert(slot, server);
    }
    let members: Vec<_> =
        (1..=8).map(|slot| Weighted { slot, weight: 1, seed: u64::from(slot) << 32 | 7 }).collect();
    let idle =
        IdleTicks { syn: ticks(900_000), tcp: ticks(900_000), closing: ticks(10_000), udp: ticks(60_000) };
    let vip = Vip { id: 1, service: 0, announce: true, pick: Pick::Cursor, idle };
    tables.vips.insert(VipKey { address: VIP, port: 80, protocol: Protocol::Tcp }, vip);
    let hash = policy::maglev(&members, HASH_SLOTS);
    tables.rings.insert(0, Arc::new(Ring { order: (1..=8).collect(), hash }));
    tables
}

impl Outcome {
    /// The table.
    pub(super) fn print(&self) {
        println!(
            "One packet in the kernel engine, in nanoseconds (BPF_PROG_TEST_RUN, the wrapper's cost included;"
        );
        println!("beside it an IPIP balancer with an LRU map of flows, on the same frames):");
        let mut table = Table::new(&["flows", "wrapper", "pass", "established", "new session"]);
        for row in &self.rows {
            let cost = |cost: &Cost| format!("{} / {} = {:.2}x", cost.l2, cost.yardstick, cost.ratio());
            table.row([
                row.flows.to_string(),
                row.wrapper.to_string(),
                cost(&row.pass),
                cost(&row.established),
                cost(&row.new_session),
            ]);
        }
        println!("{table}");
    }
}
