//! Access logs of web servers (common and combined format), read as a stream: requests with their
//! clients and times, and what a policy's ring would make of them.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, bail, ensure};
use evener_core::path::seed::Seed;
use evener_core::path::select::{Counts, select};
use evener_core::path::sessions::SessionKey;
use evener_core::path::tables::{HASH_SLOTS, Pick, Ring, Tables};
use evener_core::pool::policy::{self, Weighted, maglev, second_candidates};

/// Request of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub client: IpAddr,
    /// Seconds since the log's day began, in the log's own time.
    pub second: u32,
    pub path: String,
    /// Length of the reply in bytes, if it was logged.
    pub len: Option<u64>,
}

/// Numbers of a log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    pub requests: u64,
    /// Lines that aren't of the format.
    pub unread: u64,
}

/// Longest line in bytes. What is longer is skipped, and counted as unread.
const LINE_MAX: usize = 16 * 1024;
/// Number of first lines of which one must be readable.
const TRIED_MAX: u64 = 1_000;

/// Reads a log line by line. A log without a readable line among the first thousand is refused.
pub fn read(mut log: impl BufRead, mut each: impl FnMut(Logged)) -> Result<LogCounts> {
    let mut counts = LogCounts::default();
    let mut line = Vec::new();
    while next_line(&mut log, &mut line).context("Reading the log failed")? {
        match std::str::from_utf8(&line).ok().and_then(parse) {
            Some(logged) => {
                counts.requests += 1;
                each(logged);
            }
            None => counts.unread += 1,
        }
        if counts.requests == 0 && counts.unread >= TRIED_MAX {
            bail!("None of the first {TRIED_MAX} lines is of an access log in common or combined format");
        }
    }
    if counts.requests == 0 {
        bail!("The log has no request: {} lines are not of common or combined format", counts.unread);
    }
    Ok(counts)
}

/// Reads a line into `line`, at most [`LINE_MAX`] bytes of it. Returns false at the end.
fn next_line(log: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let buffer = log.fill_buf()?;
        if buffer.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let part = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or_default();
        let space = LINE_MAX.saturating_sub(line.len());
        line.extend_from_slice(part.get(..space.min(part.len())).unwrap_or_default());
        let used = end.map_or(buffer.len(), |end| end + 1);
        log.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Reads a line: `192.0.2.9 - - [31/Jan/2026:12:00:01 +0000] "GET /a HTTP/1.1" 200 512 ...`.
fn parse(line: &str) -> Option<Logged> {
    let (client, rest) = line.split_once(' ')?;
    let (_, rest) = rest.split_once('[')?;
    let (time, rest) = rest.split_once(']')?;
    let mut clock = time.split(' ').next()?.split(':').skip(1).map(|part| part.parse::<u32>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (_, rest) = rest.split_once('"')?;
    let (request, rest) = rest.split_once('"')?;
    let path = request.split(' ').nth(1)?;
    let mut numbers = rest.split_whitespace();
    let _status: u16 = numbers.next()?.parse().ok()?;
    let len = numbers.next().and_then(|len| len.parse().ok());
    let second = hour * 3_600 + minute * 60 + second;
    Some(Logged { client: client.parse().ok()?, second, path: path.to_owned(), len })
}

/// Ring of equal servers that a policy fills, for the requests of a log. Requests of the same
/// second count as active sessions. There is no load but that, and no request has failed.
#[derive(Debug)]
pub struct LogRing {
    tables: Tables,
    pick: Pick,
    cursor: [AtomicU64; 1],
    active: Vec<AtomicU64>,
    second: u32,
    requests: u16,
    hits: Hits,
}

/// Seed of the hash, the same in every run. Daemons take a secret one.
const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
/// Number of the only service.
const SERVICE: u16 = 0;

impl LogRing {
    /// Returns the ring of a number of servers, at most 1,024.
    pub fn new(policy: &str, servers: u16) -> Result<LogRing> {
        ensure!((1..=1_024).contains(&servers), "A ring has 1 to 1,024 servers");
        let policy = policy::for_packets(policy).with_context(|| {
            let names: Vec<_> = policy::names_for_packets().collect();
            format!("{policy:?} is no policy for packets; there are {}", names.join(", "))
        })?;
        let members: Vec<Weighted> = (0..servers)
            .map(|slot| Weighted { slot, weight: 1, seed: (u64::from(slot) + 1).wrapping_mul(SEED.0) })
            .collect();
        let hash: Arc<[u16]> = maglev(&members, HASH_SLOTS).into();
        let second = if policy.pick == Pick::Two { second_candidates(&hash) } else { Arc::default() };
        let ring = Ring { order: (policy.order)(&members), hash, second, previous: Arc::default() };
        let tables = Tables { rings: BTreeMap::from([(SERVICE, Arc::new(ring))]), ..Tables::default() };
        let active = members.iter().map(|_| AtomicU64::new(0)).collect();
        let cursor = [AtomicU64::new(0)];
        Ok(LogRing {
            tables,
            pick: policy.pick,
            cursor,
            active,
            second: 0,
            requests: 0,
            hits: Hits::default(),
        })
    }

    /// Sends a request of the log to its server. Each has a connection and a port of its own.
    pub fn send(&mut self, logged: &Logged) {
        if logged.second != self.second {
            self.active.iter().for_each(|active| active.store(0, Relaxed));
            self.second = logged.second;
        }
        self.requests = self.requests.wrapping_add(1);
        let key = SessionKey { client: logged.client, port: self.requests, vip: SERVICE };
        let counts = Counts { cursors: &self.cursor, active: &self.active, scores: &[], limits: &[] };
        let server = select(&self.tables, counts, SERVICE, self.pick, key.ring_hash(SEED));
        if let Some(active) = self.active.get(usize::from(server)) {
            active.fetch_add(1, Relaxed);
            self.hits.add(logged, server);
        }
    }

    pub fn hits(&self) -> &Hits {
        &self.hits
    }
}

/// Hits of each server by minute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Numbers of requests by minute of the day and server.
    pub by_minute: BTreeMap<(u32, u16), u64>,
}

impl Hits {
    fn add(&mut self, logged: &Logged, server: u16) {
        *self.by_minute.entry((logged.second / 60, server)).or_default() += 1;
    }

    /// Returns the number of each server that has hits.
    pub fn totals(&self) -> BTreeMap<u16, u64> {
        let mut totals = BTreeMap::new();
        for ((_, server), count) in &self.by_minute {
            *totals.entry(*server).or_default() += count;
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "192.0.2.9 - - [31/Jan/2026:12:01:02 +0000] \"GET /a?b HTTP/1.1\" 200 512 \"-\" \"x\"\n";

    fn counted(text: &[u8]) -> Result<LogCounts> {
        read(text, |_| ())
    }

    #[test]
    fn lines_of_both_formats_and_families_are_read() -> Result<()> {
        let six = "2001:db8::9 - joe [31/Jan/2026:00:00:59 +0100] \"POST /up HTTP/1.0\" 302 -\n";
        let mut all = Vec::new();
        let counts = read([LINE, six].concat().as_bytes(), |logged| all.push(logged))?;
        assert_eq!(counts, LogCounts { requests: 2, unread: 0 });
        let expected = Logged {
            client: "192.0.2.9".parse()?,
            second: 12 * 3_600 + 62,
            path: "/a?b".to_owned(),
            len: Some(512),
        };
        assert_eq!(all[0], expected);
        assert_eq!((all[1].second, all[1].len), (59, None));
        Ok(())
    }

    #[test]
    fn other_lines_are_counted_and_no_log_is_refused() -> Result<()> {
        let long = [&[b'x'; 100_000][..], b"\n"].concat();
        let mixed = [LINE.as_bytes(), b"\xff\xfe\n\n[]\"\n", &long, LINE.trim_end().as_bytes()].concat();
        assert_eq!(counted(&mixed)?, LogCounts { requests: 2, unread: 4 });
        for no_log in [&b""[..], b"{\"a\": 1}\n", &b"no\n".repeat(5_000)] {
            assert!(counted(no_log).is_err());
        }
        Ok(())
    }

    fn hits(policy: &str, requests: usize) -> Result<Hits> {
        let mut ring = LogRing::new(policy, 4)?;
        read(LINE.repeat(requests).as_bytes(), |logged| ring.send(&logged))?;
        Ok(ring.hits().clone())
    }

    #[test]
    fn hits_are_those_of_the_policys_ring() -> Result<()> {
        let turns = hits("round-robin", 8)?;
        assert_eq!(turns.by_minute, (0..4).map(|server| ((721, server), 2)).collect());
        // one client with many ports comes to all servers, about equally
        let totals = hits("hash", 4_000)?.totals();
        assert!(totals.len() == 4 && totals.values().all(|hits| (900..1_100).contains(hits)), "{totals:?}");
        assert_eq!(hits("hash", 4_000)?.totals(), totals);
        let even = hits("power-of-two", 4_000)?.totals();
        assert!(even.values().all(|hits| (950..1_050).contains(hits)), "{even:?}");
        assert!(LogRing::new("none", 4).is_err() && LogRing::new("hash", 0).is_err());
        Ok(())
    }
}
