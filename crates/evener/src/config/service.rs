//! `[[service]]`: an address, its four choices, and its servers.

use std::net::SocketAddr;

use evener_core::farm::{Announce, Discover, Placement, Service, Timeouts};
use evener_core::net::Protocol;
use evener_core::pool::HealthKind;
use toml::Spanned;
use toml::de::DeValue;

use super::keys::ConfigKey;
use super::keys::tables::{service as keys, timeouts};
use super::method::MethodConfig;
use super::placement::{self, PublishedAddress};
use super::problems::{Problem, Span};
use super::route::RouteTargets;
use super::section::{Complaint, Section};
use super::server::ServersReader;
use super::{addresses, affinity, health, report, route, values};

pub(super) const PROTOCOLS: [(&str, Protocol); 2] = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
pub(super) const DISCOVER: [(&str, Discover); 1] = [("arp", Discover::Arp)];

/// A service with the positions of its name and addresses in the file, for checks between services.
pub(super) struct ServiceEntry {
    pub(super) service: Service,
    pub(super) name: Span,
    pub(super) addresses: Vec<Spanned<SocketAddr>>,
    /// Addresses that hosts own.
    pub(super) published: Vec<PublishedAddress>,
    /// Positions of its routes, in their order.
    pub(super) routes: Vec<Span>,
}

/// Reads one service. `None` if it has no address, which is then reported.
pub(super) fn read(section: &mut Section<'_>) -> Option<ServiceEntry> {
    let name = section.get(&keys::NAME, values::name);
    let mut addresses = service_addresses(section, addresses::service_address);
    let protocol = section.word(&keys::PROTOCOL, &PROTOCOLS);
    let placement = placement::read(section);
    let reach = MethodConfig::read(section, &addresses, protocol, placement);
    let by = placement.consumer();
    let policy = section.or(&keys::POLICY, values::policy(by), by.default_policy());
    let stateless = placement::stateless(section, placement, policy.name);
    let affinity = affinity::read(section, reach.method(), placement, policy.name);
    let slow_start_ms = section.time_or(&keys::SLOW_START);
    let discovery = Discovery::read(section, &reach);
    moved_address(section, &reach, placement, discovery.announce);
    let listed = ServersReader::new(&addresses, &reach).read(section, discovery.wanted);
    let names = listed.servers.iter().map(|server| server.name.as_str()).collect();
    let routes = route::read(section, &RouteTargets { names, whole: listed.whole });
    placement::join(&mut addresses, &listed.published);
    let keep_last = section.flag(&keys::KEEP_LAST);
    let panic_percent = panic_percent(section, keep_last);
    let health = section.section(&keys::HEALTH, |section| {
        health::read(section, protocol, reach.routed(placement).as_deref(), false)
    });
    let passive_checks = passive_checks(section, &health.kind);
    let report = report::read(section, &keys::REPORT);
    if stateless {
        placement::check_stateless(section, &listed.servers);
    }
    let report_gain_percent = section.factor(&keys::REPORT_GAIN);
    report::wanted(section, by, policy, report.as_ref());
    let timeouts = section.section(&keys::TIMEOUTS, timeouts);

    let first = addresses.first()?;
    let route_spans = routes.iter().map(Spanned::span).collect();
    Some(ServiceEntry {
        name: name.as_ref().map_or(first.span(), Spanned::span),
        service: Service {
            name: name.map_or_else(|| first.get_ref().to_string(), Spanned::into_inner),
            addresses: addresses.iter().map(|address| *address.get_ref()).collect(),
            protocol,
            method: reach.method(),
            source_nat: reach.source_nat,
            encapsulation: reach.encapsulation,
            tunnel_mtu: reach.tunnel_mtu,
            clamp_mss: reach.clamp_mss,
            later_requests: reach.later_requests,
            proxy_protocol_port: reach.proxy_protocol_port,
            placement,
            stateless,
            policy: policy.name,
            affinity,
            slow_start_ms,
            discover: discovery.how,
            discover_interval_ms: discovery.interval_ms,
            discover_rounds: discovery.rounds,
            announce: discovery.announce,
            allow: discovery.allow,
            servers_max: discovery.servers_max,
            servers: listed.servers,
            routes: routes.into_iter().map(Spanned::into_inner).collect::<Vec<_>>().into(),
            health,
            passive_checks,
            report,
            report_gain_percent,
            timeouts,
            keep_last,
            panic_percent,
        },
        addresses,
        published: listed.published,
        routes: route_spans,
    })
}

/// Reads the share of working servers below which probes are ignored, in percent.
fn panic_percent(section: &Section<'_>, keep_last: bool) -> u8 {
    let percent = section.get(&keys::PANIC_THRESHOLD, values::share);
    let Some(span) = percent.as_ref().map(Spanned::span) else { return 0 };
    if !keep_last && percent.as_ref().is_some_and(|percent| *percent.get_ref() > 0) {
        let message =
            "`panic_threshold` uses all servers where none works, and `keep_last` = false none of them";
        let help = "remove one of the two: without `panic_threshold`, no server that fails is used";
        let problem = Problem::new(span, message, help);
        let other = section.key_span("keep_last").map(|span| problem.clone().also(span, "the other"));
        section.problem(other.unwrap_or(problem));
    }
    percent.map_or(0, Spanned::into_inner)
}

/// Reads whether failed client connections count against a server, in addition to probes. This
/// requires that this host sees the servers' replies.
fn passive_checks(section: &Section<'_>, probes: &HealthKind) -> bool {
    let wanted = section.flag(&keys::PASSIVE_CHECKS);
    if let Some(span) = section.key_span("passive_checks").filter(|_| wanted && *probes == HealthKind::None) {
        let message =
            "`passive_checks` takes servers out of service until their probes succeed, and there are none";
        section.problem(Problem::new(
            span,
            message,
            "write another kind in [service.health], such as \"tcp\"",
        ));
    }
    wanted
}

/// Reads `address` or `addresses`: exactly one of the two.
pub(super) fn service_addresses(
    section: &Section<'_>,
    read: fn(&DeValue<'_>) -> Result<SocketAddr, Complaint>,
) -> Vec<Spanned<SocketAddr>> {
    let help = "add for example address = \"192.0.2.100:80\"";
    let one = section.get(&keys::ADDRESS, read);
    let several = section.list(&keys::ADDRESSES, read);
    match (section.key_span("address"), section.key_span("addresses")) {
        (Some(address), Some(addresses)) => section.problem(
            Problem::new(
                addresses,
                "a service has either `address` or `addresses`",
                "put all of them into `addresses` and remove `address`",
            )
            .also(address, "and here is `address`"),
        ),
        (None, Some(addresses)) if !section.has("addresses") => section.problem(Problem::new(
            addresses,
            "`addresses` is empty, so this service has no address",
            help,
        )),
        (None, None) => section.missing("address", "this service has no address", help),
        (None, Some(_)) | (Some(_), None) => {}
    }
    one.into_iter().chain(several).collect()
}

/// Reports an address that another program shall move between hosts, if the method or placement
/// gives it to this host itself.
fn moved_address(section: &Section<'_>, reach: &MethodConfig, placement: Placement, announce: Announce) {
    let is_moved = matches!(announce, Announce::Host | Announce::Route);
    let Some(span) = section.key_span("announce").filter(|_| is_moved) else { return };
    let why = match placement {
        Placement::EveryHost => "hosts of placement \"every-host\" move their addresses themselves",
        Placement::Director if reach.method().hands_over() && announce == Announce::Host => {
            "with method \"handoff\" each director has the address, to read what clients ask for"
        }
        Placement::Director => return,
    };
    let message = format!("{why}, so no other program can move them");
    section.problem(Problem::new(span, message, "remove `announce`, or write announce = false"));
}

/// Discovery of unlisted servers, and whether the director announces the address.
struct Discovery {
    /// True if the file enables discovery, even if the setting is invalid.
    wanted: bool,
    how: Option<Discover>,
    interval_ms: u64,
    rounds: u32,
    announce: Announce,
    allow: Vec<evener_core::farm::Allow>,
    servers_max: usize,
}

impl Discovery {
    fn read(section: &Section<'_>, reach: &MethodConfig) -> Self {
        let how = section.get(&keys::DISCOVER, values::choice(&DISCOVER, &[]));
        let wanted = section.key_span("discover").is_some();
        let announce = section.get(&keys::ANNOUNCE, values::announce);
        let unwritten = if wanted { Announce::Never } else { Announce::Director };
        let allow = section.list(&keys::ALLOW, addresses::allow);
        let discovery = Discovery {
            wanted,
            how: how.as_ref().map(|how| *how.get_ref()),
            interval_ms: section.time_or(&keys::DISCOVER_INTERVAL),
            rounds: section.number_or(&keys::DISCOVER_ROUNDS),
            announce: announce.as_ref().map_or(unwritten, |announce| *announce.get_ref()),
            allow: allow.into_iter().map(Spanned::into_inner).collect(),
            servers_max: section.number_or(&keys::SERVERS_MAX),
        };
        if let (Some(how), Some(announce)) = (how, announce.filter(|one| *one.get_ref() != Announce::Never)) {
            section.problem(
                Problem::new(
                    announce.span(),
                    "with discover = \"arp\" the servers answer ARP for the address, so the director must not",
                    "remove `announce` or `discover`",
                )
                .also(how.span(), "discovery is asked for here"),
            );
        }
        if let Some(span) = section.key_span("discover")
            && let Some(method) = reach.written.filter(|method| !method.needs_link_layer())
        {
            let message = format!("`discover` is only for method \"l2\"; this service has \"{method}\"");
            let help =
                "list the servers: servers of other methods don't have the address on a link of the director";
            section.problem(Problem::new(span, message, help));
        }
        if let Some(span) = section.key_span("allow").filter(|_| !section.has("allow")) {
            let help = "list the permitted addresses, or omit it to permit all hosts that answer";
            section.problem(Problem::new(span, "`allow` is empty, so no server could be discovered", help));
        }
        discovery
    }
}

fn timeouts(section: &mut Section<'_>) -> Timeouts {
    let default = Timeouts::default();
    let or = |key: &ConfigKey, default_ms| section.time(key).map_or(default_ms, Spanned::into_inner);
    Timeouts {
        syn_ms: or(&timeouts::SYN, default.syn_ms),
        tcp_ms: or(&timeouts::TCP, default.tcp_ms),
        half_closed_ms: or(&timeouts::HALF_CLOSED, default.half_closed_ms),
        closing_ms: or(&timeouts::CLOSING, default.closing_ms),
        udp_ms: or(&timeouts::UDP, default.udp_ms),
    }
}
