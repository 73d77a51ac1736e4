//! What sessions cost in memory, and how full the table can get.

use std::sync::atomic::AtomicU64;

use evener_core::sessions::{
    Bucket, FlowHash, SESSION_BYTES, Seed, SessionKey, Sessions, State, Value, buckets_for,
};
use serde::Serialize;

use crate::table::{Table, thousands};

const SESSIONS_MAX: usize = 4_000_000;
/// Fills at which the share of refused inserts is told, in percent of all slots.
const FILLS: [usize; 9] = [25, 50, 60, 70, 75, 80, 85, 90, 95];

/// The table at each fill.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    sessions_max: usize,
    slots: usize,
    session_bytes: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    fill_percent: usize,
    sessions: usize,
    bytes_per_session: f64,
    /// Share of the inserts since the last row that found no room.
    refused: f64,
}

/// Fills a table for four million sessions, slot by slot, with clients as they come: many hosts, ports in
/// sequence.
pub(super) fn run() -> Outcome {
    let buckets: Vec<Bucket> = (0..buckets_for(SESSIONS_MAX)).map(|_| Bucket::default()).collect();
    let active: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    let sessions = Sessions::new(&buckets, &active);
    let slots = sessions.capacity();
    let seed = Seed(0x5eed_0000_dead_beef, 0x0123_4567_89ab_cdef);
    let (mut next, mut held) = (0u32, 0usize);
    let mut rows = Vec::new();
    for fill_percent in FILLS {
        let (mut tried, mut refused) = (0usize, 0usize);
        while held < slots * fill_percent / 100 {
            let key = SessionKey::new(0x0a00_0000 + next / 50, 32_768 + (next % 50) as u16, 1);
            next += 1;
            tried += 1;
            let value = Value::new(1, State::New, 1_000_000);
            match sessions.insert(key, FlowHash::of(key, seed), value, 1) {
                Ok(()) => held += 1,
                Err(_) => refused += 1,
            }
        }
        rows.push(Row {
            fill_percent,
            sessions: held,
            bytes_per_session: (size_of::<Bucket>() * buckets.len()) as f64 / held as f64,
            refused: refused as f64 / tried.max(1) as f64,
        });
    }
    Outcome { sessions_max: SESSIONS_MAX, slots, session_bytes: SESSION_BYTES, rows }
}

impl Outcome {
    /// The table.
    pub(super) fn print(&self) {
        println!(
            "The session table, made for {} sessions: {} slots of {} bytes, nothing besides:",
            thousands(self.sessions_max as u64),
            thousands(self.slots as u64),
            self.session_bytes
        );
        let mut table = Table::new(&["fill", "sessions", "bytes a session", "inserts without room"]);
        for row in &self.rows {
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
