//! Servers that work again, or are new, take their share of new sessions little by little: their caches are cold.

use alloc::collections::{BTreeMap, BTreeSet};

use super::Director;
use crate::farm::plan::ServerName;
use crate::pool::WHOLE;
use crate::pool::health::{State, Transition};

/// Who is on the way to its whole weight.
#[derive(Clone, Debug, Default)]
pub(super) struct Rising {
    servers: BTreeMap<ServerName, Rise>,
    /// Who came to a farm that was in force, and hasn't worked yet.
    newcomers: BTreeSet<ServerName>,
}

#[derive(Clone, Copy, Debug)]
struct Rise {
    since_ms: u64,
    tenths: u16,
}

impl Rising {
    /// A server has come to a farm that is in force.
    pub(super) fn joined(&mut self, server: ServerName) {
        self.newcomers.insert(server);
    }

    /// Others are forgotten.
    pub(super) fn keep(&mut self, is_here: impl Fn(&ServerName) -> bool) {
        self.newcomers.retain(&is_here);
        self.servers.retain(|server, _| is_here(server));
    }

    /// Of its weight, how many tenths a server has now.
    pub(super) fn tenths(&self, server: &ServerName) -> u16 {
        self.servers.get(server).map_or(WHOLE, |rise| rise.tenths)
    }

    /// What probes have found. Servers that work when the farm begins have worked before: it is only the director that is new.
    pub(super) fn changed(&mut self, server: &ServerName, transition: &Transition, now_ms: u64) {
        let is_new = self.newcomers.remove(server);
        match (transition.from, transition.to) {
            (State::Down, State::Up) => self.begin(server, now_ms),
            (_, State::Up) if is_new => self.begin(server, now_ms),
            _ => drop(self.servers.remove(server)),
        }
    }

    fn begin(&mut self, server: &ServerName, now_ms: u64) {
        self.servers.insert(server.clone(), Rise { since_ms: now_ms, tenths: 1 });
    }
}

impl Director {
    /// Gives those who rise what is theirs by now.
    pub(super) fn raise_weights(&mut self, now_ms: u64) {
        let farm = &self.farm;
        let mut has_changed = false;
        self.rising.servers.retain(|server, rise| {
            let whole_ms = farm.service(&server.service).map_or(0, |service| service.slow_start_ms);
            let tenths =
                now_ms.saturating_sub(rise.since_ms).saturating_mul(u64::from(WHOLE)).checked_div(whole_ms);
            let tenths =
                tenths.map_or(WHOLE, |tenths| u16::try_from(tenths).unwrap_or(WHOLE)).clamp(1, WHOLE);
            has_changed |= tenths != rise.tenths;
            rise.tenths = tenths;
            tenths < WHOLE
        });
        self.replan_wanted |= has_changed;
    }

    /// When somebody rises next, in milliseconds.
    pub(super) fn next_rise_at(&self) -> u64 {
        let next = |(server, rise): (&ServerName, &Rise)| {
            let whole_ms = self.farm.service(&server.service).map_or(0, |service| service.slow_start_ms);
            rise.since_ms + (u64::from(rise.tenths + 1) * whole_ms).div_ceil(u64::from(WHOLE))
        };
        self.rising.servers.iter().map(next).min().unwrap_or(u64::MAX)
    }
}
