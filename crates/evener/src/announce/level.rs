//! Decides which addresses have a route, and with which metric.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::routes::HostRoute;
use crate::config::{AnnounceConfig, WhenDrained};
use crate::ready::RoutedState;

/// Preference with which an address is announced, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// There is no route.
    Withdrawn,
    /// The route has the raised metric: other directors are preferred.
    Raised,
    Announced,
}

impl Level {
    /// Returns the best level of an address in this state.
    fn of(state: &RoutedState, settings: &AnnounceConfig) -> Level {
        match (state, settings.drained) {
            (RoutedState::Ready, _) => Level::Announced,
            (RoutedState::Orphaned, _) | (RoutedState::Drained(_), WhenDrained::Raise) => Level::Raised,
            (RoutedState::Drained(_), WhenDrained::Withdraw) | (RoutedState::NotReady(_), _) => {
                Level::Withdrawn
            }
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Level::Withdrawn => "withdrawn",
            Level::Raised => "raised",
            Level::Announced => "announced",
        }
    }

    pub(super) fn metric(self, settings: &AnnounceConfig) -> Option<u32> {
        match self {
            Level::Withdrawn => None,
            Level::Raised => Some(settings.raised_metric),
            Level::Announced => Some(settings.metric),
        }
    }
}

/// Level of an address. A worse level takes effect at once, and a better one when the address's
/// state has allowed it for the hold time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressLevel {
    pub(super) level: Level,
    /// Reason in words why the level is not the best. Empty if it is.
    pub(super) reason: String,
    /// Times since when the state has allowed each level, in milliseconds.
    allowed_since_ms: BTreeMap<Level, u64>,
}

impl AddressLevel {
    fn step(&mut self, now_ms: u64, state: &RoutedState, settings: &AnnounceConfig) {
        let allowed = Level::of(state, settings);
        self.allowed_since_ms.retain(|level, _| *level <= allowed);
        for level in [Level::Raised, Level::Announced].into_iter().filter(|level| *level <= allowed) {
            self.allowed_since_ms.entry(level).or_insert(now_ms);
        }
        let has_lasted = |since_ms: u64| now_ms.saturating_sub(since_ms) >= settings.hold_ms;
        let lasting = self.allowed_since_ms.iter().rev().find(|(_, since_ms)| has_lasted(**since_ms));
        let lasting = lasting.map_or(Level::Withdrawn, |(level, _)| *level);
        self.level = allowed.min(self.level.max(lasting));
        self.reason = match state {
            RoutedState::NotReady(reason) | RoutedState::Drained(reason) => reason.clone(),
            RoutedState::Orphaned => "the daemon is silent, and the kernel engine forwards on".to_owned(),
            RoutedState::Ready if self.level < allowed => {
                format!("it is ready again, and must stay so for {} s", settings.hold_ms.div_ceil(1_000))
            }
            RoutedState::Ready => String::new(),
        };
    }

    /// Returns the time at which a better level takes effect unless the state changes.
    fn due_ms(&self, hold_ms: u64) -> Option<u64> {
        let better = self.allowed_since_ms.iter().filter(|(level, _)| **level > self.level);
        better.map(|(_, since_ms)| since_ms + hold_ms).min()
    }
}

/// Change of an address's level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LevelChange {
    pub(super) address: IpAddr,
    pub(super) to: Level,
    pub(super) reason: String,
}

/// Levels of all addresses that need routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressLevels {
    pub(super) addresses: BTreeMap<IpAddr, AddressLevel>,
    /// Levels that the last announcer has left.
    known: BTreeMap<IpAddr, Level>,
}

impl AddressLevels {
    /// Returns the levels after an announcer that has left these.
    pub(super) fn after(known: BTreeMap<IpAddr, Level>) -> AddressLevels {
        AddressLevels { addresses: BTreeMap::new(), known }
    }

    /// Follows the states of the addresses. An address that is new here begins with the level of
    /// its routes that are `present` already, so that a restart changes no route.
    pub(super) fn step(
        &mut self,
        now_ms: u64,
        states: &BTreeMap<IpAddr, RoutedState>,
        settings: &AnnounceConfig,
        present: &BTreeSet<HostRoute>,
    ) -> Vec<LevelChange> {
        let mut changes = Vec::new();
        self.addresses.retain(|address, was| {
            let stays = states.contains_key(address);
            if !stays && was.level > Level::Withdrawn {
                let reason = "no service has it any more".to_owned();
                changes.push(LevelChange { address: *address, to: Level::Withdrawn, reason });
            }
            stays
        });
        for (address, state) in states {
            let one = self.addresses.entry(*address).or_insert_with(|| AddressLevel {
                level: level_of(*address, settings, present, &self.known),
                reason: String::new(),
                allowed_since_ms: BTreeMap::new(),
            });
            let before = one.level;
            one.step(now_ms, state, settings);
            if one.level != before {
                let (to, reason) = (one.level, one.reason.clone());
                changes.push(LevelChange { address: *address, to, reason });
            }
        }
        changes
    }

    /// Returns the routes that the kernel should have.
    pub(super) fn routes(&self, settings: &AnnounceConfig) -> BTreeSet<HostRoute> {
        let of = |(address, one): (&IpAddr, &AddressLevel)| {
            let metric = one.level.metric(settings)?;
            let AnnounceConfig { table, protocol, .. } = *settings;
            Some(HostRoute { address: *address, table, protocol, metric, is_blackhole: true })
        };
        self.addresses.iter().filter_map(of).collect()
    }

    /// Returns the next time at which a level changes unless a state does.
    pub(super) fn due_ms(&self, hold_ms: u64) -> Option<u64> {
        self.addresses.values().filter_map(|one| one.due_ms(hold_ms)).min()
    }
}

/// Returns the level of an address that has these routes: the one that the last announcer has left,
/// since settings may have changed, or else the one of the metric.
fn level_of(
    address: IpAddr,
    settings: &AnnounceConfig,
    present: &BTreeSet<HostRoute>,
    known: &BTreeMap<IpAddr, Level>,
) -> Level {
    let by_metric =
        |route: &HostRoute| if route.metric == settings.metric { Level::Announced } else { Level::Raised };
    let of_routes = present.iter().filter(|route| route.address == address).map(by_metric).max();
    of_routes.map_or(Level::Withdrawn, |level| known.get(&address).copied().unwrap_or(level))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SETTINGS: AnnounceConfig = AnnounceConfig {
        table: 254,
        protocol: 91,
        metric: 100,
        raised_metric: 1_000,
        drained: WhenDrained::Withdraw,
        hold_ms: 10_000,
    };

    fn address() -> IpAddr {
        "192.0.2.100".parse().unwrap()
    }

    fn route(metric: u32) -> HostRoute {
        HostRoute { address: address(), table: 254, protocol: 91, metric, is_blackhole: true }
    }

    fn bad() -> RoutedState {
        RoutedState::NotReady("web: no server works".to_owned())
    }

    /// Follows the states of one address, each with its time, and returns the metric after each.
    fn metrics<const N: usize>(
        settings: &AnnounceConfig,
        present: &[HostRoute],
        states: [(u64, RoutedState); N],
    ) -> [Option<u32>; N] {
        let (mut levels, present) = (AddressLevels::default(), present.iter().copied().collect());
        states.map(|(now_ms, state)| {
            levels.step(now_ms, &BTreeMap::from([(address(), state)]), settings, &present);
            levels.routes(settings).first().map(|route| route.metric)
        })
    }

    #[test]
    fn better_level_waits_for_hold_and_worse_one_does_not() {
        let (ready, full, raised) = (RoutedState::Ready, Some(100), Some(1_000));
        let steps = [
            (0, ready.clone()),
            (9_999, ready.clone()),
            (10_000, ready.clone()),
            (10_001, RoutedState::Orphaned),
            (10_002, ready.clone()),
            (20_001, ready.clone()),
            (20_002, ready.clone()),
            (20_003, bad()),
            (20_004, RoutedState::Orphaned),
            (25_000, ready.clone()),
            (30_004, ready.clone()),
            (35_000, ready),
        ];
        let expected = [None, None, full, raised, raised, raised, full, None, None, None, raised, full];
        assert_eq!(metrics(&SETTINGS, &[], steps), expected);
    }

    #[test]
    fn short_interruption_begins_hold_anew() {
        let steps = [
            (0, RoutedState::Ready),
            (9_000, bad()),
            (9_001, RoutedState::Ready),
            (19_000, RoutedState::Ready),
            (19_001, RoutedState::Ready),
        ];
        assert_eq!(metrics(&SETTINGS, &[], steps), [None, None, None, None, Some(100)]);
    }

    #[test]
    fn drained_director_withdraws_or_raises() {
        let steps = || [(0, RoutedState::Ready), (1, RoutedState::Drained("drained".to_owned()))];
        let no_hold = AnnounceConfig { hold_ms: 0, ..SETTINGS };
        assert_eq!(metrics(&no_hold, &[], steps()), [Some(100), None]);
        let raising = AnnounceConfig { drained: WhenDrained::Raise, ..no_hold };
        assert_eq!(metrics(&raising, &[], steps()), [Some(100), Some(1_000)]);
    }

    #[test]
    fn present_routes_stay_over_restart() {
        let ready = || [(0, RoutedState::Ready)];
        assert_eq!(metrics(&SETTINGS, &[route(100)], ready()), [Some(100)]);
        assert_eq!(metrics(&SETTINGS, &[route(1_000)], ready()), [Some(1_000)]);
        assert_eq!(metrics(&SETTINGS, &[route(100)], [(0, bad())]), [None]);
        // Settings may change while no announcer runs.
        let mut levels = AddressLevels::after(BTreeMap::from([(address(), Level::Announced)]));
        let states = BTreeMap::from([(address(), RoutedState::Ready)]);
        let present = BTreeSet::from([HostRoute { protocol: 92, ..route(7) }]);
        assert_eq!(levels.step(0, &states, &SETTINGS, &present), []);
        assert_eq!(levels.routes(&SETTINGS), BTreeSet::from([route(100)]));
    }

    #[test]
    fn due_time_is_the_end_of_hold() {
        let mut levels = AddressLevels::default();
        let states = BTreeMap::from([(address(), RoutedState::Ready)]);
        levels.step(500, &states, &SETTINGS, &BTreeSet::new());
        assert_eq!(levels.due_ms(SETTINGS.hold_ms), Some(10_500));
        let changes = levels.step(10_500, &states, &SETTINGS, &BTreeSet::new());
        let change = LevelChange { address: address(), to: Level::Announced, reason: String::new() };
        assert_eq!((changes, levels.due_ms(SETTINGS.hold_ms)), (vec![change], None));
        let gone = levels.step(10_501, &BTreeMap::new(), &SETTINGS, &BTreeSet::new());
        assert_eq!(gone[0].to, Level::Withdrawn);
        assert!(levels.routes(&SETTINGS).is_empty());
    }
}
