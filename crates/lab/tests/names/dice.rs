//! Random zones and queries, generated from a seed.

use std::collections::{BTreeMap, BTreeSet};

/// Pseudo-random numbers (Marsaglia's xorshift).
pub(crate) struct Dice(pub(crate) u64);

const LABELS: [&str; 5] = ["a", "b", "www", "x1", "*"];
const TYPES: [&str; 7] = ["A", "A", "AAAA", "TXT", "CNAME", "NS", "MX"];
/// A, NS, CNAME, SOA, MX, TXT, AAAA, SRV, DS, ANY.
const ASKED: [u16; 12] = [1, 1, 1, 2, 5, 6, 15, 16, 28, 33, 43, 255];

impl Dice {
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.number() >> 16) as usize % count
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// Returns the name, in one third of the cases with random case.
    fn letters(&mut self, name: &str) -> String {
        if self.below(3) > 0 {
            return name.to_owned();
        }
        let change = |letter: char| if self.below(2) > 0 { letter.to_ascii_uppercase() } else { letter };
        name.chars().map(change).collect()
    }

    /// Returns a name below another by up to `labels` labels. Only the first label can be an
    /// asterisk.
    fn name(&mut self, zone: &str, labels: usize) -> String {
        let count = self.below(labels + 1);
        (0..count).fold(zone.to_owned(), |name, at| {
            let labels = if at + 1 == count { &LABELS[..] } else { &LABELS[..4] };
            format!("{}.{name}", self.pick(labels))
        })
    }

    fn target(&mut self, zone: &str) -> String {
        let target = match self.below(6) {
            0 => "elsewhere.example.org.".to_owned(),
            _ => self.name(zone, 3).replace("*.", "b."),
        };
        self.letters(&target)
    }

    /// Returns a zone's name and file.
    pub(crate) fn zone(&mut self, number: usize) -> (String, String) {
        let zone = format!("z{number}.test.");
        let mut text = format!(
            "$TTL 5m\n@ SOA ns hostmaster ( {number} 1h 15m\n 1w 1m )\n@ NS {}\n",
            self.target(&zone)
        );
        let mut types: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for _ in 0..3 + self.below(8) {
            let (name, rtype) = (self.name(&zone, 3), self.pick(&TYPES));
            let known = types.entry(name.clone()).or_default();
            // A name with a CNAME record has no other records, and a wildcard has no NS records
            // (RFC 4592, section 4.2).
            let is_apex = name == zone;
            let speaks_against = match rtype {
                "CNAME" => is_apex || !known.is_empty(),
                "NS" => is_apex || name.starts_with('*') || known.contains("CNAME"),
                _ => known.contains("CNAME"),
            };
            if speaks_against {
                continue;
            }
            known.insert(rtype);
            let data = match rtype {
                "A" => format!("192.0.2.{}", self.below(250)),
                "AAAA" => format!("2001:db8::{:x}", self.below(250)),
                "TXT" => format!("\"text {}\"", self.below(9)),
                "MX" => format!("10 {}", self.target(&zone)),
                _ => self.target(&zone),
            };
            text += &format!("{} {rtype} {data}\n", self.letters(&name));
        }
        (zone, text)
    }

    /// Returns a query for a name of the zone's file, for a name below it, or for any name.
    pub(crate) fn query(&mut self, zone: &str, text: &str) -> (String, u16) {
        let names: Vec<&str> =
            text.split_whitespace().filter(|word| word.to_ascii_lowercase().ends_with(zone)).collect();
        let name = match self.below(4) {
            0 => self.name(zone, 4),
            1 if !names.is_empty() => format!("{}.{}", self.pick(&LABELS[..4]), self.pick(&names)),
            _ if !names.is_empty() => self.pick(&names).to_owned(),
            _ => zone.to_owned(),
        };
        (self.letters(&name), ASKED[self.below(ASKED.len())])
    }
}
