//! Reads this host's counters: /proc, its sockets, and the status page of its server program.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evener_core::net::http::Url;
use evener_dataplane::pending::PendingPrograms;
use nix::time::{ClockId, clock_gettime};
use tokio::net::lookup_host;

use super::bandwidth::{Bandwidth, PathBandwidth};
use super::delay::Delay;
use super::measure::{HostCounters, RequestCount, ToSend};
use super::running::Processes;
use crate::http::client::{self, Destination};
use crate::io::diag::{self, Sending};

/// Timeout of the status page, and maximum size of its response in bytes.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);
const STATUS_MAX: usize = 64 * 1024;

/// Inverse of the processor share that dumps may use.
/// A dump of ten thousand sockets takes some twenty milliseconds. The interval of dumps grows with
/// their duration.
const SHARE_OF_TIME: u32 = 100;
const RAREST: Duration = Duration::from_secs(10);

/// A reading that takes longer than this time is repeated. READINGS is the maximum number of
/// readings.
const PROMPT: Duration = Duration::from_millis(2);
const READINGS: u32 = 4;

/// Number of this program's own requests to the server, which the server's page counts, too.
static OWN_REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Counts a request of this program to the server.
pub(in crate::agent) fn count_own_request() {
    OWN_REQUESTS.fetch_add(1, Relaxed);
}

/// Reader of the sockets' outstanding bytes, rate-limited by its duration, and of running
/// processes.
pub(super) struct Sockets {
    processes: Processes,
    /// True if a failure to read the control group was logged.
    was_logged: bool,
    ports: BTreeSet<u16>,
    /// Programs that track requests to these ports, if the kernel allows them.
    following: Option<Arc<PendingPrograms>>,
    last: Option<ToSend>,
    bandwidth: Bandwidth,
    pub(super) delay: Delay,
    began: Instant,
    due: Instant,
}

impl Sockets {
    pub(super) fn new(
        ports: BTreeSet<u16>,
        following: Option<Arc<PendingPrograms>>,
        processes: Processes,
        delay: Delay,
    ) -> Sockets {
        let now = Instant::now();
        Sockets {
            processes,
            was_logged: false,
            ports,
            following,
            last: None,
            bandwidth: Bandwidth::default(),
            delay,
            began: now,
            due: now,
        }
    }

    /// Returns the number of running or runnable processes. If the control group can't be read, the
    /// machine's number is used.
    fn running(&mut self, of_machine: Option<u64>) -> Option<u64> {
        let found = self.processes.running(of_machine);
        if found.is_none() && !self.was_logged {
            tracing::warn!("failed to read {}: the load counts all processes of the machine", self.processes);
            self.was_logged = true;
        }
        found.or(of_machine)
    }

    /// Returns the number of requests by the kernel programs. `None` if the kernel refuses them.
    fn requests(&self) -> Option<RequestCount> {
        let programs = self.following.as_deref()?;
        Some(RequestCount::Kernel { requests: programs.seen(), unread: programs.unread() })
    }

    /// Returns the outstanding bytes of connections, and the bandwidth of their paths.
    fn read(&mut self) -> (Option<ToSend>, Option<PathBandwidth>) {
        (self.refresh(), self.bandwidth.paths())
    }

    /// Returns the current outstanding bytes of connections.
    pub(super) fn refresh(&mut self) -> Option<ToSend> {
        if let Some(sending) = self.sample() {
            let following = self.following.as_deref();
            let began = self.began;
            let (sent, at) =
                promptly(|| began.elapsed(), || following.map(PendingPrograms::sent).or_else(sent));
            self.delay.add_sample(&sending, sent, at);
            let delay_seconds = self.delay.seconds(&sending, monotonic_ns());
            let unfollowed = following.map(PendingPrograms::unfollowed);
            self.last = Some(ToSend { delay_seconds, unfollowed, ..to_send(&sending) });
            self.bandwidth.add_sample(sending.rates.into_values().collect(), at);
        }
        self.last
    }

    /// Dumps the kernel's sockets, unless the last dump was recent. If the kernel refuses, the last
    /// result is dropped.
    fn sample(&mut self) -> Option<Sending> {
        let began = Instant::now();
        if began < self.due {
            return None;
        }
        let before = processor_time();
        let sending =
            diag::sending(&self.ports, self.following.as_deref().and_then(PendingPrograms::requests));
        // Processor time, not wall clock time: on a busy server most of the latter belongs to other
        // processes.
        let elapsed = processor_time().saturating_sub(before);
        self.due = began + (elapsed * SHARE_OF_TIME).min(RAREST);
        if let Err(error) = &sending {
            tracing::debug!(%error, "failed to list the kernel's sockets");
            self.last = None;
        }
        sending.ok()
    }
}

/// Returns a value and the time of its reading. If the thread was preempted between the two, the
/// bytes sent meanwhile would count as speed. The reading is then repeated.
fn promptly<T>(clock: impl Fn() -> Duration, read: impl Fn() -> T) -> (T, Duration) {
    for _ in 1..READINGS {
        let (before, value, after) = (clock(), read(), clock());
        if after.saturating_sub(before) <= PROMPT {
            return (value, after);
        }
    }
    (read(), clock())
}

/// Returns the sums over all connections.
fn to_send(sending: &Sending) -> ToSend {
    let left = sending.open.iter().map(|one| one.left());
    let (bytes, is_exact) =
        left.fold((0u64, true), |(sum, all), (left, exact)| (sum.saturating_add(left), all && exact));
    ToSend {
        connections: sending.connections,
        // The kernel counts the end of a connection (FIN) as a byte, which is no part of a
        // response.
        bytes: bytes.max(sending.bytes),
        lower_bound: sending.bytes,
        is_exact,
        ..ToSend::default()
    }
}

/// Returns the time of the clock that request tracking uses.
pub(in crate::agent) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    now.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Returns the processor time of this thread. Zero if unknown.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Reads the host's counters. `status` is the number of requests of the server program's status
/// page; the outer `None` if no page is configured.
pub(super) fn read(sockets: &mut Sockets, status: Option<Option<u64>>) -> HostCounters {
    let stat = text("/proc/stat");
    let running = sockets.running(running(&stat));
    let requests_read = sockets.requests();
    let (sockets, paths) = sockets.read();
    HostCounters {
        running,
        busy: busy(&stat),
        memory: memory(&text("/proc/meminfo")),
        sockets,
        paths,
        requests: match status {
            Some(all) => all.map(|all| RequestCount::Page { all, own: OWN_REQUESTS.load(Relaxed) }),
            None => requests_read,
        },
    }
}

/// Returns the number of running or runnable processes, without this process.
fn running(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("procs_running "))?;
    Some(line.trim().parse::<u64>().ok()?.saturating_sub(1))
}

/// Returns the busy and the total processor time (proc_stat(5)). Idle and iowait are not busy.
/// Guests' time is included in `user`.
fn busy(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<u64> = line.split_whitespace().map_while(|time| time.parse().ok()).take(8).collect();
    let all = times.iter().fold(0u64, |sum, time| sum.saturating_add(*time));
    let idle = times.get(3)?.saturating_add(*times.get(4)?);
    Some((all.saturating_sub(idle), all))
}

/// Returns the available and the total memory, in kB.
fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some((of("MemAvailable:")?, of("MemTotal:")?))
}

/// Returns the number of bytes sent over IPv4 and IPv6.
fn sent() -> Option<u64> {
    octets_out(&text("/proc/net/netstat"), &text("/proc/net/snmp6"))
}

fn octets_out(netstat: &str, snmp6: &str) -> Option<u64> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|name| name == "OutOctets")?;
    let four: u64 = values.split_whitespace().nth(at)?.parse().ok()?;
    let six = snmp6.lines().find_map(|line| line.strip_prefix("Ip6OutOctets"));
    let six: u64 = six.and_then(|value| value.trim().parse().ok()).unwrap_or_default();
    Some(four.saturating_add(six))
}

/// Returns the number of requests that the server program has answered, from its status page.
pub(super) async fn requests(url: &Url) -> Option<u64> {
    count_own_request();
    let fetched = async {
        let mut answer = None;
        for to in lookup_host((url.host(), url.port())).await.ok()? {
            let request = client::request("GET", url.path(), url.authority()).ok()?;
            answer = client::send(&Destination::plain(to), request, STATUS_MAX).await.ok();
            if answer.is_some() {
                break;
            }
        }
        answer.filter(|answer| answer.status == 200)
    };
    let page = tokio::time::timeout(STATUS_TIMEOUT, fetched).await.ok()??;
    counted(&String::from_utf8_lossy(&page.body))
}

/// Parses nginx's stub_status (the third number below its heading), or Apache's mod_status with
/// `?auto`.
fn counted(page: &str) -> Option<u64> {
    let mut lines = page.lines();
    if let Some(total) = page.lines().find_map(|line| line.strip_prefix("Total Accesses:")) {
        return total.trim().parse().ok();
    }
    lines.find(|line| line.starts_with("server accepts handled requests"))?;
    lines.next()?.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::DelayKind;

    #[test]
    fn files_of_proc_are_read() {
        let stat = "cpu  100 5 45 800 50 0 3 2 9 9\ncpu0 1 2 3\nctxt 5\nprocs_running 4\nprocs_blocked 0\n";
        assert_eq!((running(stat), busy(stat)), (Some(3), Some((155, 1_005))));
        let meminfo = "MemTotal:       16384000 kB\nMemFree:  1 kB\nMemAvailable:    4096000 kB\n";
        assert_eq!(memory(meminfo), Some((4_096_000, 16_384_000)));
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InOctets OutOctets X\nIpExt: 10 20 30\n";
        assert_eq!(octets_out(netstat, "Ip6InOctets   5\nIp6OutOctets      \t7\n"), Some(27));
        assert_eq!(octets_out(netstat, ""), Some(20));
        for odd in ["", "cpu \nprocs_running x\nMemTotal: \nIpExt: OutOctets\n", "cpu 1 2 3 4\n"] {
            assert_eq!(
                (running(odd), busy(odd), memory(odd), octets_out(odd, odd)),
                (None, None, None, None),
                "{odd}"
            );
        }
    }

    #[test]
    fn reading_that_was_held_up_is_made_again() {
        let clock = std::cell::Cell::new(Duration::ZERO);
        let reads = std::cell::Cell::new(0);
        let held_up = |times: u32| {
            let read = || {
                reads.set(reads.get() + 1);
                let pause = if reads.get() <= times { 50 } else { 1 };
                clock.set(clock.get() + Duration::from_millis(pause));
                reads.get()
            };
            promptly(|| clock.get(), read)
        };
        assert_eq!(held_up(1), (2, Duration::from_millis(51)));
        reads.set(0);
        clock.set(Duration::ZERO);
        assert_eq!(held_up(9), (READINGS, Duration::from_millis(200)), "the last one has to do");
    }

    #[test]
    fn this_host_can_be_read() {
        let delay = Delay::new(DelayKind::Corrected);
        let mut sockets = Sockets::new(BTreeSet::from([1]), None, Processes::Machine, delay);
        let reading = read(&mut sockets, None);
        assert!(reading.busy.unwrap().1 > 0 && reading.memory.unwrap().1 > 0);
        let nothing = ToSend { is_exact: true, delay_seconds: Some(0.0), ..ToSend::default() };
        assert_eq!(reading.sockets, Some(nothing));
        let before = ToSend { connections: 7, ..nothing };
        sockets.last = Some(before);
        sockets.due = Instant::now() + RAREST;
        assert_eq!(read(&mut sockets, None).sockets, Some(before), "not yet again");
    }

    #[test]
    fn status_pages_are_read() {
        let nginx = "HTTP/1.1 200 OK\r\n\r\nActive connections: 2 \nserver accepts handled requests\n 11 12 4711 \nReading: 0\n";
        assert_eq!(counted(nginx), Some(4_711));
        assert_eq!(
            counted("HTTP/1.1 200 OK\r\n\r\nlocalhost\nTotal Accesses: 815\nTotal kBytes: 1\n"),
            Some(815)
        );
        assert_eq!(counted("HTTP/1.1 404 Not Found\r\n\r\n<html>"), None);
        assert_eq!(counted("server accepts handled requests\n 1 2\n"), None);
        for lie in ["-5", "1e9", "1000000000000000000000000000000", "", "<b>7</b>"] {
            let page = format!("server accepts handled requests\n 1 1 {lie} \nReading: 0\n");
            assert_eq!(counted(&page), None, "{lie}");
            assert_eq!(counted(&format!("Total Accesses: {lie}\n")), None, "{lie}");
        }
    }
}
