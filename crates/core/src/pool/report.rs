//! Servers' reports of their own load. A report is unverified. So its numbers are checked, it
//! expires, and it never brings up a server that fails its probes.

/// A server's report. Missing fields are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Utilisation in thousandths. It is the application's own value if it reports one, otherwise
    /// that of the processors.
    pub utilisation_permille: Option<u64>,
    /// The papers' load, 10 (r + m) for r requests per second and a run queue of m, in thousandths.
    pub load_milli: Option<u64>,
    /// Requests per second, in thousandths.
    pub requests_milli: Option<u64>,
    /// Failed requests per second, in thousandths.
    pub errors_milli: Option<u64>,
    /// Number of bytes that are queued for sending.
    pub bytes_to_send: Option<u64>,
    /// Time that the server needs to send the queued bytes, in microseconds.
    pub delay_us: Option<u64>,
    /// Median available bandwidth to one client, in bits per second.
    pub available_bps: Option<u64>,
    /// Median bottleneck bandwidth of the path to one client, without other traffic, in bits per
    /// second.
    pub bottleneck_bps: Option<u64>,
    /// Percentage of its configured weight that the server requests, at most 100.
    pub percent: Option<u16>,
    /// State that the server requests.
    pub claim: Option<AdminState>,
}

/// State that a server requests for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminState {
    /// The server takes new sessions, if its probes succeed.
    Ready,
    /// The server takes no new sessions.
    Drain,
}

/// Reason why a report was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BadReport {
    /// No report arrived within the timeout.
    Silent,
    /// The report is malformed.
    Unreadable,
    /// A number is malformed, infinite or negative.
    NotANumber,
    /// A number exceeds its limit.
    Absurd,
    /// The report says that fewer bytes are queued than the server's kernel has counted.
    Odd,
}

impl BadReport {
    pub fn name(self) -> &'static str {
        match self {
            BadReport::Silent => "silent",
            BadReport::Unreadable => "unreadable",
            BadReport::NotANumber => "not_a_number",
            BadReport::Absurd => "absurd",
            BadReport::Odd => "odd",
        }
    }

    /// Reason as a sentence, for status output and logs.
    pub fn sentence(self) -> &'static str {
        match self {
            BadReport::Silent => "no report came",
            BadReport::Unreadable => "its report can't be read",
            BadReport::NotANumber => "its report has no number where one is expected",
            BadReport::Absurd => "its report has a number that no server comes to",
            BadReport::Odd => "its report has fewer bytes to send than the kernel holds of them",
        }
    }
}

/// Limit of utilisation: a hundred times full, in thousandths.
pub const UTILISATION_MAX: u64 = 100_000;
/// Limit of load and of requests per second: a hundred million, in thousandths.
pub const LOAD_MAX: u64 = 100_000_000_000;
/// Limit of a delay: one day, in microseconds.
pub const DELAY_MAX: u64 = 86_400_000_000;
/// Limit of a bandwidth: ten terabits per second.
pub const BANDWIDTH_MAX: u64 = 10_000_000_000_000;
/// Limit of the number of Apache workers.
const WORKERS_MAX: u64 = 10_000_000;
/// Limit of queued bytes: one pebibyte.
pub const BYTES_MAX: u64 = 1 << 50;

/// Converts a number of a report to an integer in `1 / parts` of its unit.
///
/// # Errors
/// The number is not finite, negative, or more than `max`.
pub fn number(value: f64, parts: u32, max: u64) -> Result<u64, BadReport> {
    if !value.is_finite() || value < 0.0 {
        return Err(BadReport::NotANumber);
    }
    // The conversion saturates. Doubles are exact up to 2^53, which is far above a day in
    // microseconds.
    let parts = (value * f64::from(parts) + 0.5) as u64;
    if parts > max { Err(BadReport::Absurd) } else { Ok(parts) }
}

/// Returns the first line that is not blank. `None` until the end of the line was received.
pub fn agent_line(bytes: &[u8]) -> Option<&[u8]> {
    let start = bytes.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let line = bytes.get(start..)?;
    line.iter().position(|byte| matches!(byte, b'\r' | b'\n')).and_then(|end| line.get(..end))
}

/// Reads a line of HAProxy's agent-check: words separated by blanks, tabs or commas, such as `75%`,
/// up to the end of the line or of the bytes. Leading blank lines are skipped.
///
/// Each line is a complete report, so earlier lines have no effect. More than 100 % counts as 100
/// %. The word `maxconn` is ignored.
///
/// # Errors
/// The line is empty, or has an unknown word.
pub fn agent_check(bytes: &[u8]) -> Result<Report, BadReport> {
    let line = agent_line(bytes).unwrap_or(bytes.trim_ascii());
    let line = core::str::from_utf8(line).map_err(|_| BadReport::Unreadable)?;
    let (words, _description) = line.split_once('#').unwrap_or((line, ""));
    let mut report = Report::default();
    let mut is_empty = true;
    for word in words.split([' ', '\t', ',']).filter(|word| !word.is_empty()) {
        is_empty = false;
        if let Some(percent) = word.strip_suffix('%') {
            report.percent = Some(percents(percent)?);
        } else if let Some(claim) = claim(word) {
            // A report with both `ready` and a drain state drains.
            let refuses = report.claim == Some(AdminState::Drain);
            report.claim = Some(if refuses { AdminState::Drain } else { claim });
        } else if !word.to_ascii_lowercase().starts_with("maxconn:") {
            return Err(BadReport::Unreadable);
        }
    }
    if is_empty { Err(BadReport::Unreadable) } else { Ok(report) }
}

/// Reads the page of Apache's mod_status in its form for programs (`?auto`). Busy workers count as
/// running processes, and their share of all workers is the utilisation. The request rate stays
/// unknown, since `ReqPerSec` is an average since the server's start.
///
/// # Errors
/// The page has another format, or its numbers are malformed.
pub fn mod_status(page: &[u8]) -> Result<Report, BadReport> {
    let page = core::str::from_utf8(page).map_err(|_| BadReport::Unreadable)?;
    let workers = |name: &str| -> Result<u64, BadReport> {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = line.ok_or(BadReport::Unreadable)?.trim().parse().map_err(|_| BadReport::NotANumber)?;
        if number > WORKERS_MAX { Err(BadReport::Absurd) } else { Ok(number) }
    };
    let (busy, idle) = (workers("BusyWorkers")?, workers("IdleWorkers")?);
    Ok(Report {
        // A server without any worker cannot have sent this page.
        utilisation_permille: (busy * 1_000).checked_div(busy + idle),
        // The worker that answers this query does not count.
        load_milli: Some(busy.saturating_sub(1) * 10_000),
        ..Report::default()
    })
}

/// Parses a percentage. A fraction is rounded.
fn percents(digits: &str) -> Result<u16, BadReport> {
    if let Some((whole, parts)) = digits.split_once('.') {
        let is_up = matches!(parts.bytes().next(), Some(b'5'..=b'9'));
        return match parts.bytes().all(|byte| byte.is_ascii_digit()) && !parts.is_empty() {
            true => Ok((percents(whole)? + u16::from(is_up)).min(100)),
            false => Err(BadReport::NotANumber),
        };
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadReport::NotANumber);
    }
    digits.parse().map(|percent: u16| percent.min(100)).map_err(|_| BadReport::Absurd)
}

fn claim(word: &str) -> Option<AdminState> {
    let is = |names: &[&str]| names.iter().any(|name| word.eq_ignore_ascii_case(name));
    if is(&["up", "ready"]) {
        Some(AdminState::Ready)
    } else if is(&["drain", "maint", "down", "fail", "failed", "stopped"]) {
        Some(AdminState::Drain)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(line: &str) -> Result<(Option<u16>, Option<AdminState>), BadReport> {
        agent_check(line.as_bytes()).map(|report| (report.percent, report.claim))
    }

    #[test]
    fn lines_of_agents() {
        assert_eq!(read("75%\n"), Ok((Some(75), None)));
        assert_eq!(read("UP 75%\r\nand more"), Ok((Some(75), Some(AdminState::Ready))));
        assert_eq!(read("ready,100%,maxconn:30"), Ok((Some(100), Some(AdminState::Ready))));
        assert_eq!(read("drain"), Ok((None, Some(AdminState::Drain))));
        assert_eq!(read("up drain"), Ok((None, Some(AdminState::Drain))));
        assert_eq!(read("drain up"), Ok((None, Some(AdminState::Drain))));
        assert_eq!(read("down # the disk is full, 5%"), Ok((None, Some(AdminState::Drain))));
        assert_eq!(read("250%"), Ok((Some(100), None)));
        assert_eq!(read("0%"), Ok((Some(0), None)));
        assert_eq!(read("fail#the disk is full, 5%"), Ok((None, Some(AdminState::Drain))));
        assert_eq!(read("\r\n \n75%\nup"), Ok((Some(75), None)));
        assert_eq!(read("up 33.5%"), Ok((Some(34), Some(AdminState::Ready))));
        assert_eq!(
            [read("33.49%"), read("99.9%"), read("0.4%")].map(|read| read.unwrap().0),
            [33, 100, 0].map(Some)
        );
        for silent in ["", "\n", "   ", "# nothing", "\n# nothing\n75%"] {
            assert_eq!(read(silent), Err(BadReport::Unreadable), "{silent:?}");
        }
        for (line, bad) in [
            ("99999999%", BadReport::Absurd),
            ("-5%", BadReport::NotANumber),
            ("%", BadReport::NotANumber),
            (".5%", BadReport::NotANumber),
            ("5.%", BadReport::NotANumber),
            ("5.5.5%", BadReport::NotANumber),
            ("1e2%", BadReport::NotANumber),
            ("fine", BadReport::Unreadable),
        ] {
            assert_eq!(read(line), Err(bad), "{line}");
        }
        assert_eq!(agent_check(b"\xff75%"), Err(BadReport::Unreadable));
    }

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(number(0.9345, 1_000, UTILISATION_MAX), Ok(935));
        assert_eq!(number(0.0, 1_000, 5), Ok(0));
        assert_eq!(number(f64::NAN, 1_000, 5), Err(BadReport::NotANumber));
        assert_eq!(number(f64::INFINITY, 1, u64::MAX), Err(BadReport::NotANumber));
        assert_eq!(number(-0.001, 1_000, 5), Err(BadReport::NotANumber));
        assert_eq!(number(1e300, 1_000, LOAD_MAX), Err(BadReport::Absurd));
    }

    proptest! {
        #[test]
        fn arbitrary_report_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(report) = agent_check(&bytes) {
                prop_assert!(report.percent.is_none_or(|percent| percent <= 100));
            }
        }

        #[test]
        fn numbers_stay_within_bounds(value: f64, parts in 1u32..=1_000_000, max: u64) {
            if let Ok(number) = number(value, parts, max) {
                prop_assert!(number <= max);
            }
        }
    }

    #[test]
    fn workers_of_apache_are_its_load() {
        let page = b"localhost\nServerMPM: event\nTotal Accesses: 7\nReqPerSec: .05\nBusyWorkers: 3\nIdleWorkers: 9\nScoreboard: __W\n";
        let report = mod_status(page).unwrap();
        assert_eq!((report.utilisation_permille, report.load_milli), (Some(250), Some(20_000)));
        for (page, why) in [
            (&b"<html>"[..], BadReport::Unreadable),
            (b"BusyWorkers: 3\n", BadReport::Unreadable),
            (b"BusyWorkers: -3\nIdleWorkers: 1\n", BadReport::NotANumber),
            (b"BusyWorkers: 1000000000000000000000000000000\nIdleWorkers: 1\n", BadReport::NotANumber),
            (b"BusyWorkers: 99999999\nIdleWorkers: 1\n", BadReport::Absurd),
            (b"\xff", BadReport::Unreadable),
        ] {
            assert_eq!(mod_status(page), Err(why));
        }
        assert_eq!(mod_status(b"BusyWorkers: 0\nIdleWorkers: 0").unwrap().utilisation_permille, None);
    }

    #[test]
    fn numbers_are_rounded_and_their_bound_still_counts() {
        assert_eq!((number(0.0004, 1_000, 5), number(0.0005, 1_000, 5)), (Ok(0), Ok(1)));
        assert_eq!((number(0.005, 1_000, 5), number(0.006, 1_000, 5)), (Ok(5), Err(BadReport::Absurd)));
    }

    #[test]
    fn a_farm_of_workers_as_large_as_they_come_is_believed() {
        let page = |busy: u64, idle: u64| {
            mod_status(std::format!("BusyWorkers: {busy}\nIdleWorkers: {idle}\n").as_bytes())
        };
        let most = page(WORKERS_MAX, WORKERS_MAX).unwrap();
        assert_eq!(most.utilisation_permille, Some(500));
        assert_eq!(most.load_milli, Some((WORKERS_MAX - 1) * 10_000));
        assert_eq!(page(WORKERS_MAX + 1, 1), Err(BadReport::Absurd));
        assert_eq!(
            page(1, 0).unwrap().load_milli,
            Some(0),
            "the one that answers this is none of the clients'"
        );
        assert_eq!(page(0, 4).unwrap().utilisation_permille, Some(0));
    }

    #[test]
    fn words_of_agents_have_either_case_and_mean_one_of_two_things() {
        for takes in ["up", "READY", "Up"] {
            assert_eq!(read(takes), Ok((None, Some(AdminState::Ready))), "{takes}");
        }
        for refuses in ["drain", "MAINT", "down", "FAIL", "failed", "Stopped"] {
            assert_eq!(read(refuses), Ok((None, Some(AdminState::Drain))), "{refuses}");
        }
        assert_eq!(read("MaxConn:30"), Ok((None, None)), "others' business");
    }

    #[test]
    fn each_reason_not_to_believe_a_report_has_its_own_name_and_words() {
        let all = [
            (BadReport::Silent, "silent", "no report came"),
            (BadReport::Unreadable, "unreadable", "its report can't be read"),
            (BadReport::NotANumber, "not_a_number", "its report has no number where one is expected"),
            (BadReport::Absurd, "absurd", "its report has a number that no server comes to"),
            (BadReport::Odd, "odd", "its report has fewer bytes to send than the kernel holds of them"),
        ];
        for (bad, name, words) in all {
            assert_eq!((bad.name(), bad.sentence()), (name, words));
        }
    }
}
