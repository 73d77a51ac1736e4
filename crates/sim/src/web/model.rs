//! File of a farm with a group and names: a service whose servers report, an optional second
//! service, a group, and balanced names.

use std::net::SocketAddr;
use std::sync::Arc;

use evener_core::dns::{
    AddressesFrom, BalancedName, EmptyPool, Name, NameSettings, OwnServer, ServerList, Zone, rtype,
};
use evener_core::farm::group::{Claims, Group, GroupMember, Joining, LoadReading};
use evener_core::farm::{Farm, RouteList};
use evener_core::net::http::{RedirectStatus, Url};
use evener_core::pool::Period;
use evener_core::pool::policy::{self, Policy};
use evener_core::pool::{self, HealthCheck, ReportKind, Reporting};

use crate::farms::{self, SERVERS, VIPS};

pub(crate) const GROUP: &str = "shop";
/// Names. In order: with the servers of a service, with own servers and their reports, with
/// external ranks, and with the first name's servers by round robin.
pub(crate) const NAMES: [&str; 4] =
    ["www.example.com", "own.example.com", "ranked.example.com", "turns.example.com"];
/// Indexes of the names with the servers of a service, and of the one with round robin.
pub(crate) const OF_SERVICE: [usize; 2] = [0, TURNS];
pub(crate) const TURNS: usize = 3;
/// File with the ranks of the name with external ranks.
const RANKS: &str = "ranks";
/// Number of servers that the file lists as members. All other members join by themselves, and so
/// does the last listed member.
pub(crate) const LISTED: usize = 2;
/// Interval of members' reports, silence after which a member is queried, and silence after which
/// it is removed, in milliseconds.
pub(crate) const REPORT_MS: u64 = 1_000;
const QUERY_MS: u64 = 3_000;
const REMOVE_MS: u64 = 5_000;
/// Duration of a slow start in milliseconds.
pub(crate) const SLOW_START_MS: u64 = 4_000;
/// Lifetime of ranks in milliseconds.
const PERIOD_MS: u64 = 2_000;

/// Optional parts of a file, by its bits.
#[derive(Clone, Copy)]
pub(crate) struct File(pub(crate) u8);

impl File {
    pub(crate) fn lists(self, server: usize) -> bool {
        self.0 >> server & 1 == 1
    }

    pub(crate) fn has_second(self) -> bool {
        self.0 >> 4 & 1 == 1
    }

    pub(crate) fn has_group(self) -> bool {
        self.0 >> 5 & 1 == 1
    }

    /// True if the file has the names with own servers.
    pub(crate) fn has_own(self) -> bool {
        self.0 >> 6 & 1 == 1
    }

    /// True if the first name has the servers of the second service.
    pub(crate) fn is_of_second(self) -> bool {
        self.0 >> 7 & 1 == 0 && self.has_second()
    }
}

/// Interval of each consumer's load queries to a server, in milliseconds.
const ASK_MS: u64 = 2_000;

/// True if a file has this service.
pub(crate) fn has_service(bits: u8, service: &str) -> bool {
    service == farms::service(0) || File(bits).has_second()
}

/// Settings of load queries.
fn reporting() -> Reporting {
    Reporting {
        kind: ReportKind::Http("/load".into()),
        port: 9,
        interval: Period::always(ASK_MS),
        timeout_ms: 400,
    }
}

pub(crate) fn url(server: usize) -> Option<Url> {
    Url::parse(&format!("http://{}", farms::server(server).0)).ok()
}

/// Adds the parts that these bits select to a director's farm.
pub(crate) fn extend(farm: &mut Farm, bits: u8) {
    let file = File(bits);
    let [first, second] = &mut farm.services[..] else { return };
    // Services have no slow start here: hash tables for each step of each weight would take most of
    // the run's time. For the same reason only some files use two choices.
    (first.report, second.report) = (Some(reporting()), Some(reporting()));
    if file.is_of_second() {
        second.policy = "utilisation";
    }
    let check = HealthCheck { interval_ms: ASK_MS, ..first.health.clone() };
    if !file.has_second() {
        farm.services.truncate(1);
    }
    farm.groups = file.has_group().then(|| Arc::new(group(file, &check))).into_iter().collect();
    farm.names = names(file, &check);
}

fn group(file: File, check: &HealthCheck) -> Group {
    let listed = (0..LISTED).filter(|server| file.lists(*server));
    let member = |server: usize| {
        let (name, url) = (farms::name(server), url(server)?);
        Some(GroupMember {
            name,
            url,
            weight: 1,
            backup: false,
            health_address: None,
            anonymous: false,
            control: None,
        })
    };
    Group {
        name: GROUP.into(),
        addresses: vec![SocketAddr::new(VIPS[0], 8_080)],
        status: RedirectStatus::Found,
        policy: row("least-load"),
        load: LoadReading::Aged,
        report_gain_percent: 150,
        report: None,
        slow_start_ms: SLOW_START_MS,
        panic_percent: 0,
        joining: Joining {
            insecure: true,
            report_ms: REPORT_MS,
            query_after_ms: QUERY_MS,
            remove_after_ms: REMOVE_MS,
        },
        claims: Claims::default(),
        allow: Vec::new(),
        members: listed.filter_map(member).collect(),
        routes: RouteList::default(),
        health: check.clone(),
    }
}

/// Returns a policy by name; a default if the name is unknown, which a test would notice.
fn row(name: &str) -> &'static Policy {
    policy::by_name(name).unwrap_or(&policy::rank::PAPER)
}

fn names(file: File, check: &HealthCheck) -> Vec<Arc<BalancedName>> {
    let service = farms::service(usize::from(file.is_of_second()));
    let of_service = || AddressesFrom::Services { names: vec![service.clone()], own: false };
    let settings =
        |report: Option<Reporting>| Arc::new(pool::PoolSettings::of(check, report.as_ref(), SLOW_START_MS));
    let own = |report| {
        let listed = (0..SERVERS).filter(|server| file.lists(*server));
        let server = |server: usize| OwnServer {
            name: Some(farms::name(server).into()),
            address: SocketAddr::new(farms::server(server).0, 80),
            weight: 1,
            backup: false,
            health_address: None,
        };
        AddressesFrom::Servers(ServerList {
            servers: listed.map(server).collect(),
            settings: settings(report),
        })
    };
    let mut names = vec![name(0, "random", of_service())];
    if file.has_own() {
        names.extend([name(1, "utilisation", own(Some(reporting()))), name(2, "failover", own(None))]);
    }
    names.push(name(TURNS, "round-robin", of_service()));
    names.into_iter().flatten().map(Arc::new).collect()
}

fn name(number: usize, policy: &str, from: AddressesFrom) -> Option<BalancedName> {
    let policy = row(policy);
    let settings = NameSettings {
        name: Name::parse(NAMES.get(number)?).ok()?,
        ttl_s: 5,
        top: if number == 2 { 1 } else { SERVERS },
        draw: policy.names?.draw,
        empty_pool: EmptyPool::All,
    };
    Some(BalancedName {
        settings: Arc::new(settings),
        policy,
        period: if number == 1 {
            Period::new([(0, PERIOD_MS), (43_200, PERIOD_MS / 2)])
        } else {
            Period::always(PERIOD_MS)
        },
        report_gain_percent: 150,
        rank_from: (number == 2).then(|| RANKS.to_owned()),
        probe: None,
        from,
    })
}

/// Removes the slow start of the farm's groups.
pub(crate) fn start_at_once(farm: &mut Farm) {
    farm.groups.iter_mut().for_each(|group| Arc::make_mut(group).slow_start_ms = 0);
}

/// Returns the zone with all names of a farm.
pub(crate) fn zone(farm: &Farm) -> Option<Zone> {
    let apex = Name::parse("example.com").ok()?;
    let host = Name::parse("ns.example.com").ok()?;
    let numbers = [1_u32, 3_600, 600, 604_800, 60].map(u32::to_be_bytes).concat();
    let soa = [host.as_wire(), host.as_wire(), &numbers].concat();
    let records =
        [(apex.clone(), rtype::SOA, 300, soa), (apex.clone(), rtype::NS, 300, host.as_wire().to_vec())];
    let mut zone = Zone::new(apex, records).ok()?;
    for (number, name) in farm.names.iter().enumerate() {
        zone.balance(&name.settings.name, number).ok()?;
    }
    Some(zone)
}
