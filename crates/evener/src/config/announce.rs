//! `[announce]`: host routes of addresses that a routing daemon announces.

use serde::{Deserialize, Serialize};

use super::keys::tables::announce as keys;
use super::problems::Problem;
use super::section::Section;

/// Table of the kernel's own routes to this host's addresses (rtnetlink(7)).
const LOCAL_TABLE: u32 = 255;
/// Protocol numbers of routing daemons (rtnetlink.h). A daemon ignores or removes routes with its
/// own number.
const DAEMONS: [(&str, std::ops::RangeInclusive<u8>); 8] = [
    ("the kernel", 9..=9),
    ("FRR", 11..=11),
    ("BIRD", 12..=12),
    ("DHCP", 16..=16),
    ("keepalived", 18..=18),
    ("Babel", 42..=42),
    ("Open/R", 99..=99),
    ("FRR", 186..=197),
];

/// Host routes of ready addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnounceConfig {
    /// Number of the kernel's routing table.
    pub table: u32,
    /// Protocol number of the routes, by which they are known as Evener's.
    pub protocol: u8,
    /// Metric of an address that is ready.
    pub metric: u32,
    /// Metric of an address that another director should rather serve.
    pub raised_metric: u32,
    pub drained: WhenDrained,
    /// Time for which an address must be ready again before its route returns, in milliseconds.
    pub hold_ms: u64,
}

/// Route of an address while the director is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenDrained {
    /// The route has the raised metric.
    Raise,
    /// There is no route.
    Withdraw,
}

pub(super) const DRAINED: [(&str, WhenDrained); 2] =
    [("raise", WhenDrained::Raise), ("withdraw", WhenDrained::Withdraw)];

pub(super) fn read(section: &Section<'_>) -> AnnounceConfig {
    let config = AnnounceConfig {
        table: section.number_or(&keys::TABLE),
        protocol: section.number_or(&keys::PROTOCOL),
        metric: section.number_or(&keys::METRIC),
        raised_metric: section.number_or(&keys::RAISED_METRIC),
        drained: section.word(&keys::DRAINED, &DRAINED),
        hold_ms: section.time_or(&keys::HOLD),
    };
    if let Some(span) = section.key_span("table").filter(|_| config.table == LOCAL_TABLE) {
        let message = "`table` 255 is the kernel's own: routes there make addresses this host's own";
        section.problem(Problem::new(span, message, "write 254, the main table, or a number of your own"));
    }
    let taken = DAEMONS.iter().find(|(_, numbers)| numbers.contains(&config.protocol));
    if let (Some(span), Some((daemon, _))) = (section.key_span("protocol"), taken) {
        let message =
            format!("`protocol` {} is {daemon}'s: it ignores or removes such routes", config.protocol);
        section.problem(Problem::new(span, message, "remove `protocol`, or write another number"));
    }
    let written = section.key_span("raised_metric").or(section.key_span("metric"));
    if let Some(span) = written.filter(|_| config.raised_metric <= config.metric) {
        let message = format!(
            "`raised_metric` ({}) isn't higher than `metric` ({})",
            config.raised_metric, config.metric
        );
        section.problem(Problem::new(span, message, "write a higher `raised_metric`"));
    }
    config
}
