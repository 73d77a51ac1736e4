//! Measures the memory of sessions, and the maximum fill of the table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicU64;

use evener_core::path::seed::Seed;
use evener_core::path::sessions::{
    BUCKET_SESSIONS, Bucket4, Bucket6, Counted, SessionKey, Sessions, State, Value, buckets_for,
};
use serde::Serialize;

use crate::harness::table::{Table, thousands};
use crate::network::family::Family;

const SESSIONS_MAX: usize = 4_000_000;
/// Fills at which the share of refused inserts is reported, in percent of all slots.
const FILLS: [usize; 9] = [25, 50, 60, 70, 75, 80, 85, 90, 95];

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    sessions_max: usize,
    tables: Vec<Filled>,
}

/// Results of a table at each fill.
#[derive(Debug, Serialize)]
struct Filled {
    family: String,
    slots: usize,
    session_bytes: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    fill_percent: usize,
    sessions: usize,
    bytes_per_session: f64,
    /// Share of refused inserts among the inserts since the last row.
    refused: f64,
}

/// Fills tables for four million sessions, slot by slot, with realistic clients: many hosts with
/// consecutive ports.
pub(super) fn run() -> Outcome {
    let buckets = buckets_for(SESSIONS_MAX);
    let (few4, few6) = ([Bucket4::default()], [Bucket6::default()]);
    let four: Vec<Bucket4> = (0..buckets).map(|_| Bucket4::default()).collect();
    let v4 = fill(Family::V4, (&four, &few6), size_of::<Bucket4>());
    drop(four);
    let six: Vec<Bucket6> = (0..buckets).map(|_| Bucket6::default()).collect();
    let v6 = fill(Family::V6, (&few4, &six), size_of::<Bucket6>());
    Outcome { sessions_max: SESSIONS_MAX, tables: vec![v4, v6] }
}

fn fill(family: Family, (four, six): (&[Bucket4], &[Bucket6]), bucket_bytes: usize) -> Filled {
    let active: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    // No VIP has a share, and all sessions are assured, so no session is evicted.
    let sessions = Sessions::new(four, six, Counted { active: &active, ..Counted::NOTHING });
    let buckets = four.len().max(six.len());
    let slots = buckets * BUCKET_SESSIONS;
    let seed = Seed(0x5eed_0000_dead_beef, 0x0123_4567_89ab_cdef);
    let (mut next, mut held) = (0u32, 0usize);
    let mut rows = Vec::new();
    for fill_percent in FILLS {
        let (mut tried, mut refused) = (0usize, 0usize);
        while held < slots * fill_percent / 100 {
            let key =
                SessionKey { client: client(family, next / 50), port: 32_768 + (next % 50) as u16, vip: 1 };
            next += 1;
            tried += 1;
            let value = Value::new(1, State::Established, 1_000_000);
            match sessions.insert(key, key.hash(seed), value, 1) {
                Ok(()) => held += 1,
                Err(_) => refused += 1,
            }
        }
        rows.push(Row {
            fill_percent,
            sessions: held,
            bytes_per_session: (bucket_bytes * buckets) as f64 / held as f64,
            refused: refused as f64 / tried.max(1) as f64,
        });
    }
    let session_bytes = bucket_bytes / BUCKET_SESSIONS;
    Filled { family: family.to_string(), slots, session_bytes, rows }
}

fn client(family: Family, number: u32) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(0x0a00_0000 + number).into(),
        Family::V6 => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number) << 64 | 1).into(),
    }
}

impl Outcome {
    pub(super) fn print(&self) {
        for Filled { family, slots, session_bytes, rows } in &self.tables {
            println!(
                "The {family} session table, made for {} sessions: {} slots of {session_bytes} bytes, nothing besides:",
                thousands(self.sessions_max as u64),
                thousands(*slots as u64),
            );
            let mut table = Table::new(&["fill", "sessions", "bytes a session", "inserts without room"]);
            for row in rows {
                table.row([
                    format!("{} %", row.fill_percent),
                    thousands(row.sessions as u64),
                    format!("{:.1}", row.bytes_per_session),
                    format!("{:.5} %", row.refused * 100.0),
                ]);
            }
            println!("{table}");
        }
    }
}
