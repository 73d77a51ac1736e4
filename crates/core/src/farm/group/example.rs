//! A plain group for tests. A test changes only the fields that it needs.

use alloc::vec;

use super::claims::Claims;
use super::model::{Group, Joining, LoadReading};
use crate::farm::RouteList;
use crate::net::http::RedirectStatus;
use crate::pool::policy::Consumer;
use crate::pool::policy::score::GAIN_PERCENT;
use crate::pool::{HealthCheck, HealthKind};

/// Returns a group without members that any host may join. Its policy is least-load with reports as
/// in the paper, and it has no probes.
pub(crate) fn group() -> Group {
    Group {
        name: "shop".into(),
        addresses: vec!["192.0.2.120:80".parse().unwrap()],
        status: RedirectStatus::Found,
        policy: Consumer::Redirect.default_policy(),
        load: LoadReading::Paper,
        report_gain_percent: GAIN_PERCENT,
        report: None,
        slow_start_ms: 0,
        panic_percent: 0,
        joining: Joining {
            insecure: true,
            report_ms: 15_000,
            query_after_ms: 45_000,
            remove_after_ms: 60_000,
        },
        claims: Claims::default(),
        allow: vec![],
        members: vec![],
        routes: RouteList::default(),
        health: HealthCheck { kind: HealthKind::None, ..HealthCheck::default() },
    }
}
