//! Servers and what is known of them: one machine for packets, HTTP and names.
//!
//! A [`Pool`] has servers, each of them one machine ([`PoolServer`]) of its [`health`], its
//! [`reports`] and a slow start, by the pool's [`PoolSettings`]. [`signals`] are what is known of
//! their load, [`policy`] who of them is chosen, and [`shares`] how much of it each is given.

mod change;
mod check_history;
pub mod health;
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
pub use server::{DueChecks, Fact, PoolServer, PoolSettings};
pub use servers::{Pool, PoolEntry};
pub use settings::{HealthCheck, HealthKind, ProbeTls, ReportKind, Reporting};

/// The TCP port at which agents say servers' load, and the UDP port at which they measure paths,
/// where nobody says another.
pub const LOAD_PORT: u16 = 9183;
/// The whole of a server's weight, in tenths.
pub const FULL_WEIGHT: u16 = 10;

/// The operator's word on a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperatorState {
    /// It is chosen as its weight and its probes have it.
    #[default]
    Ready,
    /// It gets no new sessions.
    Drain,
    /// The same, and it is neither probed nor asked for its load.
    Maintenance,
}

impl OperatorState {
    /// Its name in requests and records.
    pub const fn name(self) -> &'static str {
        match self {
            OperatorState::Ready => "ready",
            OperatorState::Drain => "drain",
            OperatorState::Maintenance => "maintenance",
        }
    }

    /// Whether the server is to take no new sessions.
    pub const fn is_drained(self) -> bool {
        !matches!(self, OperatorState::Ready)
    }

    /// Whether the server is neither probed nor asked for its load.
    pub const fn is_suspended(self) -> bool {
        matches!(self, OperatorState::Maintenance)
    }

    /// The one of this name.
    pub fn of(name: &str) -> Option<OperatorState> {
        let all = [OperatorState::Ready, OperatorState::Drain, OperatorState::Maintenance];
        all.into_iter().find(|state| state.name() == name)
    }
}

/// How a server is, for whoever chooses, and for whoever looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It takes new sessions.
    Up,
    /// It can't: it fails its probes, or was never probed.
    Down,
    /// It is to take none, and keeps those it has: by its operator, by its weight, or by itself.
    Draining,
    /// The same by its operator, and it is neither probed nor asked for its load.
    Maintenance,
    /// It works, and has not reported for so long that it was asked to.
    Silent,
}

impl ServerState {
    /// The state to show: what a server can't do counts before what it is to do, and both behind
    /// maintenance, in which nobody asks.
    pub const fn shown(is_in_maintenance: bool, health: HealthState, is_drained: bool) -> ServerState {
        match (health, is_drained) {
            _ if is_in_maintenance => ServerState::Maintenance,
            (HealthState::Down, _) => ServerState::Down,
            (_, true) => ServerState::Draining,
            (HealthState::Up, false) => ServerState::Up,
            (HealthState::Unknown, false) => ServerState::Down,
        }
    }

    /// Its name in views.
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
