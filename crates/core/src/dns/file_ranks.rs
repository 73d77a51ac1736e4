//! Ranks of a name's addresses from an external file, as `rank_file` writes it. Each line is `NAME
//! ADDRESS RANK`, and the lowest rank is the best. So the load-balancing agent and the DNS server
//! of the paper can be two hosts or different programs.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::name::Name;

/// Number of periods for which ranks stay valid after the last valid file.
const PERIODS: u64 = 3;

/// Reason why a file of ranks is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRanks {
    /// The file can't be read.
    #[error("failed to read it: {0}")]
    Unread(String),
    /// The file ends within a line: it is being written, or its writer died.
    #[error(
        "the last line has no newline, so the file may be half written (write another file and rename it)"
    )]
    Cut,
    /// The file has no line for this name.
    #[error("no line is for this name")]
    Empty,
    #[error("line {0} is not `NAME ADDRESS RANK`")]
    Line(usize),
    /// An address that is no server of the name.
    #[error("{0} is not a server of this name")]
    Stranger(IpAddr),
    /// An address that occurs twice.
    #[error("address {0} is on two lines of this name: remove one of them")]
    Twice(IpAddr),
}

/// Parses the addresses of a name, in order of rank. Lines of other names are ignored.
///
/// # Errors
/// The first error of the file. A file with an error is rejected as a whole.
pub fn read_ranks(
    text: &str,
    name: &Name,
    is_server: impl Fn(IpAddr) -> bool,
) -> Result<Vec<IpAddr>, BadRanks> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(BadRanks::Cut);
    }
    let mut ranked: Vec<(u64, IpAddr)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [of, address, rank] = words[..] else { return Err(BadRanks::Line(number)) };
        let (Ok(of), Ok(address), Ok(rank)) =
            (Name::parse(of), address.parse::<IpAddr>(), rank.parse::<u64>())
        else {
            return Err(BadRanks::Line(number));
        };
        if of != *name {
            continue;
        }
        if !is_server(address) {
            return Err(BadRanks::Stranger(address));
        }
        if ranked.iter().any(|(_, known)| *known == address) {
            return Err(BadRanks::Twice(address));
        }
        ranked.push((rank, address));
    }
    if ranked.is_empty() {
        return Err(BadRanks::Empty);
    }
    // The sort is stable, so addresses with equal ranks keep the order of the file.
    ranked.sort_by_key(|(rank, _)| *rank);
    Ok(ranked.into_iter().map(|(_, address)| address).collect())
}

/// Valid ranks of one name.
#[derive(Clone, Debug, Default)]
pub struct FileRanks {
    order: Vec<IpAddr>,
    /// Expiry of the ranks, in milliseconds.
    until_ms: Option<u64>,
    bad: Option<BadRanks>,
}

/// Result of reading a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RanksChange {
    /// True if answers change.
    pub is_news: bool,
    /// `Some(Some(error))` for a new error, `Some(None)` if the file is valid again, `None` if
    /// nothing changed.
    pub turned: Option<Option<BadRanks>>,
}

impl FileRanks {
    /// Applies the text of a file. If the file is rejected, earlier ranks stay valid for a while.
    pub fn apply_read(
        &mut self,
        now_ms: u64,
        period_ms: u64,
        read: Result<Vec<IpAddr>, BadRanks>,
    ) -> RanksChange {
        let was_in_force = self.order(now_ms).is_some();
        let bad = read.as_ref().err().cloned();
        let turned = (self.bad != bad).then(|| bad.clone());
        self.bad = bad;
        let Ok(order) = read else {
            // Ranks that were valid before may have expired.
            let is_news = self.until_ms.is_some() && !was_in_force;
            if is_news {
                (self.order, self.until_ms) = (Vec::new(), None);
            }
            return RanksChange { is_news, turned };
        };
        let is_news = !was_in_force || self.order != order;
        self.until_ms = Some(now_ms.saturating_add(period_ms.saturating_mul(PERIODS)));
        self.order = order;
        RanksChange { is_news, turned }
    }

    /// Returns the addresses in order of rank. `None` if there are no valid ranks, so that weights
    /// count.
    pub fn order(&self, now_ms: u64) -> Option<&[IpAddr]> {
        self.until_ms.filter(|until_ms| now_ms <= *until_ms).map(|_| &self.order[..])
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn read(text: &str) -> Result<Vec<IpAddr>, BadRanks> {
        let name = Name::parse("www.example.com").unwrap();
        read_ranks(text, &name, |one| (1..=3).any(|last| one == address(last)))
    }

    #[test]
    fn ranks_are_read_as_they_are_written() {
        let text =
            "www.example.com. 192.0.2.2 1\nWWW.example.com 192.0.2.1 2\nother.example.com 10.0.0.1 1\n";
        assert_eq!(read(text), Ok(vec![address(2), address(1)]));
        assert_eq!(read("\nwww.example.com 192.0.2.3 7\n"), Ok(vec![address(3)]));
    }

    #[test]
    fn truncated_empty_or_malformed_rank_file_is_refused() {
        let line = "www.example.com 192.0.2.1 1\n";
        for (text, why) in [
            ("", BadRanks::Empty),
            ("\n", BadRanks::Empty),
            ("other.example.com 10.0.0.1 1\n", BadRanks::Empty),
            ("www.example.com 192.0.2.1 1", BadRanks::Cut),
            ("www.example.com 192.0.2.1\n", BadRanks::Line(1)),
            ("www.example.com 192.0.2.1 1 2\n", BadRanks::Line(1)),
            ("www.example.com 192.0.2 1\n", BadRanks::Line(1)),
            ("www.example.com 192.0.2.1 -1\n", BadRanks::Line(1)),
            ("www..com 192.0.2.1 1\n", BadRanks::Line(1)),
            ("www.example.com 192.0.2.9 1\n", BadRanks::Stranger(address(9))),
        ] {
            assert_eq!(read(text), Err(why), "{text:?}");
        }
        assert_eq!(read(&(line.to_string() + line)), Err(BadRanks::Twice(address(1))));
    }

    #[test]
    fn file_ranks_last_three_periods_and_error_is_reported_once() {
        let mut ranks = FileRanks::default();
        let none = RanksChange::default();
        let unread = || Err(BadRanks::Unread("gone".into()));
        assert_eq!(ranks.order(0), None);
        assert!(ranks.apply_read(0, 5_000, unread()).turned.is_some());
        assert_eq!(ranks.apply_read(1, 5_000, unread()), none);
        let good = RanksChange { is_news: true, turned: Some(None) };
        assert_eq!(ranks.apply_read(2, 5_000, Ok(vec![address(1)])), good);
        assert_eq!(ranks.apply_read(5_002, 5_000, Ok(vec![address(1)])), none);
        assert_eq!(ranks.order(5_002), Some(&[address(1)][..]));
        let turned = Some(Some(BadRanks::Cut));
        assert_eq!(
            ranks.apply_read(10_002, 5_000, Err(BadRanks::Cut)),
            RanksChange { is_news: false, turned }
        );
        assert_eq!(ranks.apply_read(15_002, 5_000, Err(BadRanks::Cut)), none);
        assert!(ranks.order(20_002).is_some() && ranks.order(20_003).is_none());
        assert_eq!(
            ranks.apply_read(20_003, 5_000, Err(BadRanks::Cut)),
            RanksChange { is_news: true, turned: None }
        );
        assert_eq!(ranks.apply_read(25_003, 5_000, Err(BadRanks::Cut)), none);
        assert!(ranks.apply_read(25_004, 5_000, Ok(vec![address(2)])).is_news);
    }
}
