//! Policy by reported utilisation times sessions. A server's load grows with its error rate (gRPC
//! proposal A58 has the same signals).

use alloc::format;
use alloc::string::String;

use super::two::by_load;
use super::{Policy, Weighing};
use crate::pool::signals::{Signal, Signals};

/// Minimum utilisation in thousandths. A smaller utilisation counts as this value, since the server
/// is nearly idle.
const FLOOR: u64 = 100;

/// Selects of two servers the one with the smaller product of utilisation and sessions.
pub(super) static UTILISATION: Policy = by_load(
    "utilisation",
    "of two servers that the flow's hash names, the one with less reported utilisation for its sessions; for servers with other work, too",
    &Weighing { needs: &[Signal::Load], load, describe, complete: None },
);

fn load(signals: &Signals) -> Option<u64> {
    let report = &signals.report;
    let load = report.utilisation_permille?.max(FLOOR);
    // The load grows by the part of failed requests. Without this, a server that fails requests
    // would look idle, since errors cost little work.
    let failing = report.errors_milli.zip(report.requests_milli.filter(|requests| *requests > 0));
    Some(load + failing.map_or(0, |(errors, requests)| load.saturating_mul(errors.min(requests)) / requests))
}

fn describe(signals: &Signals) -> Option<String> {
    signals.report.utilisation_permille.map(|permille| format!("reported {:.2}", permille as f64 / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::report::Report;

    #[test]
    fn errors_are_work_that_is_left() {
        let report = Report { utilisation_permille: Some(300), ..Report::default() };
        let of = |report| load(&Signals { report, ..Signals::default() });
        assert_eq!(of(report), Some(300));
        let failing = Report { requests_milli: Some(4_000), errors_milli: Some(2_000), ..report };
        assert_eq!(of(failing), Some(450));
        assert_eq!(of(Report { requests_milli: Some(0), ..failing }), Some(300));
        assert_eq!(of(Report { utilisation_permille: Some(0), ..failing }), Some(150));
        assert_eq!(of(Report::default()), None);
    }
}
