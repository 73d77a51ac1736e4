//! Servers and their state. Services, server groups and balanced names use the same state machine.
//!
//! A [`Pool`] holds servers. The state of a [`PoolServer`] depends on the operator, on its probes
//! ([`health`]), on its load [`reports`] and on a slow start. The pool's [`PoolSettings`] are the
//! settings of all its servers. [`signals`] are measurements of the load, a [`policy`] selects a
//! server, and [`shares`] computes each server's share of new clients from the load.

mod change;
mod check_history;
mod clock;
pub mod health;
mod period;
pub mod policy;
pub mod reply;
pub mod report;
pub mod reports;
mod server;
mod servers;
pub mod serving;
mod settings;
pub mod shares;
pub mod signals;
mod slow_start;

use health::HealthState;

pub use change::{Effect, ServerChange, ServerEvent};
pub use check_history::{CHECKS_MAX, CheckHistory};
pub use clock::ClockReading;
pub use period::{Period, PeriodStep};
pub use server::{DueChecks, Fact, PoolServer, PoolSettings};
pub use servers::{Pool, PoolEntry};
pub use settings::{HealthCheck, HealthKind, ProbeTls, ReportKind, Reporting};

/// Default TCP port of agents' load reports, and default UDP port of their path measurements.
pub const LOAD_PORT: u16 = 9183;
/// Whole of a configured weight, in tenths. Slow start and reports can reduce a server to fewer
/// tenths.
pub const FULL_WEIGHT: u16 = 10;

/// State of a server as set by the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperatorState {
    /// The server is selected by its weight, probes and reports.
    #[default]
    Ready,
    /// The server receives no new sessions.
    Drain,
    /// The server receives neither new sessions nor probes nor report queries.
    Maintenance,
}

impl OperatorState {
    /// Name in requests to the daemon and in stored records.
    pub const fn name(self) -> &'static str {
        match self {
            OperatorState::Ready => "ready",
            OperatorState::Drain => "drain",
            OperatorState::Maintenance => "maintenance",
        }
    }

    /// True if the server must receive no new sessions.
    pub const fn is_drained(self) -> bool {
        !matches!(self, OperatorState::Ready)
    }

    /// True if probes and report queries are suspended.
    pub const fn is_suspended(self) -> bool {
        matches!(self, OperatorState::Maintenance)
    }

    /// Returns the state with this name.
    pub fn of(name: &str) -> Option<OperatorState> {
        let all = [OperatorState::Ready, OperatorState::Drain, OperatorState::Maintenance];
        all.into_iter().find(|state| state.name() == name)
    }
}

/// State of a server, which follows from the operator, the probes, the weight and the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// The server receives new sessions.
    Up,
    /// The server fails its probes, or has no probe result yet.
    Down,
    /// The server keeps its sessions and receives no new sessions. The operator, weight 0 or its
    /// own report drains the server.
    Draining,
    /// The operator has drained the server and suspended probes and report queries.
    Maintenance,
    /// The server is up but has sent no report for too long, and reports are configured.
    Silent,
}

impl ServerState {
    /// Returns the state for status output. Maintenance comes first, since probes are suspended
    /// then. Failed probes come before a drain.
    pub const fn shown(is_in_maintenance: bool, health: HealthState, is_drained: bool) -> ServerState {
        match (health, is_drained) {
            _ if is_in_maintenance => ServerState::Maintenance,
            (HealthState::Down, _) => ServerState::Down,
            (_, true) => ServerState::Draining,
            (HealthState::Up, false) => ServerState::Up,
            (HealthState::Unknown, false) => ServerState::Down,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            ServerState::Up => "up",
            ServerState::Down => "down",
            ServerState::Draining => "draining",
            ServerState::Maintenance => "maintenance",
            ServerState::Silent => "silent",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn views_name_each_state_by_its_own_word() {
        use ServerState::{Down, Draining, Maintenance, Silent, Up};
        let names = [Up, Down, Draining, Maintenance, Silent].map(ServerState::name);
        assert_eq!(names, ["up", "down", "draining", "maintenance", "silent"]);
    }

    #[test]
    fn only_reports_with_a_load_tell_how_loaded_a_server_is() {
        let page = || String::from("/load");
        assert!(ReportKind::Http(page()).reports_load() && ReportKind::ModStatus(page()).reports_load());
        assert!(!ReportKind::AgentCheck.reports_load());
    }
}
