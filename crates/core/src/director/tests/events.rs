//! Level, name, subject and text of events.

use super::*;
use crate::dns::BadRanks;
use crate::farm::group::MemberChange;
use crate::farm::membership::{self, LinkAddress, Removal};
use crate::node::peers;
use crate::pool::health::Transition;
use crate::pool::report::BadReport;

fn server() -> ServerName {
    ServerName { service: "web".into(), server: "a".into() }
}

fn health(to: HealthState) -> Event {
    let reason = (to == HealthState::Down).then_some(Failure::Refused);
    Event::Health { server: server(), transition: Transition { from: HealthState::Unknown, to, reason } }
}

fn member(change: MemberChange) -> Event {
    Event::Member { member: server(), change }
}

fn of_members(event: membership::MembershipEvent) -> Event {
    let notice = membership::ServiceNotice { service: Some("web".into()), event };
    Event::Membership { notice, text: "a moved".into() }
}

fn place() -> LinkAddress {
    LinkAddress { mac: Mac([2, 0, 0, 0, 1, 11]), ifindex: 2 }
}

fn address() -> IpAddr {
    IpAddr::from([192, 0, 2, 99])
}

/// Events of one server, with their levels, names and texts.
fn of_a_server() -> [(Event, Level, &'static str, &'static str); 21] {
    let drained = |drain| Event::Drained { server: server(), drain };
    let wished = |refuses| Event::RefusalReported { server: server(), refuses };
    let reports = |error| Event::Reports { server: server(), error };
    [
        (health(HealthState::Up), Level::Info, "server_up", "server is up"),
        (health(HealthState::Down), Level::Warning, "server_down", "server is down"),
        (health(HealthState::Unknown), Level::Info, "server_unknown", "server is unknown"),
        (
            Event::NotFound { server: server(), why: "no answer".into() },
            Level::Warning,
            "server_not_found",
            "server can't be found: no answer",
        ),
        (Event::Found { server: server() }, Level::Info, "server_found", "server is found"),
        (
            Event::SlotsExhausted { server: server() },
            Level::Warning,
            "server_slots_exhausted",
            "no room for this server: the farm is full",
        ),
        (
            drained(true),
            Level::Info,
            "server_drained",
            "drained by the operator: it keeps its sessions and gets no new ones",
        ),
        (
            drained(false),
            Level::Info,
            "server_undrained",
            "the operator ended the drain or maintenance: it gets new sessions again",
        ),
        (
            wished(true),
            Level::Info,
            "server_refuses",
            "drained by its own report: it keeps its sessions and gets no new ones",
        ),
        (
            wished(false),
            Level::Info,
            "server_takes",
            "its own report ended the drain: it gets new sessions again",
        ),
        (
            reports(Some(BadReport::Silent)),
            Level::Warning,
            "reports_fail",
            "its load isn't known: no report came",
        ),
        (reports(None), Level::Info, "reports_come", "its load reports are valid again"),
        (member(MemberChange::Joined), Level::Info, "member_joined", "web: a: joined"),
        (member(MemberChange::Left), Level::Info, "member_left", "web: a: left"),
        (
            member(MemberChange::Silent),
            Level::Warning,
            "member_silent",
            "web: a: no load report in time: the director asks for one",
        ),
        (
            member(MemberChange::Removed),
            Level::Warning,
            "member_removed",
            "web: a: removed: no load report for too long (`evener agent` joins again by itself)",
        ),
        (
            member(MemberChange::Refused),
            Level::Warning,
            "member_removed",
            "web: a: removed: no load report in time, and the request for one failed (`evener agent` joins again by itself)",
        ),
        (member(MemberChange::Up), Level::Info, "member_up", "web: a: up"),
        (
            member(MemberChange::Down(Failure::Refused)),
            Level::Warning,
            "member_down",
            "web: a: down: connection refused",
        ),
        (member(MemberChange::Drained), Level::Info, "member_drained", "web: a: drained"),
        (member(MemberChange::Undrained), Level::Info, "member_undrained", "web: a: no longer drained"),
    ]
}

#[test]
fn server_events_have_level_and_server_name() {
    for (event, level, name, text) in of_a_server() {
        assert_eq!((event.level(), event.name()), (level, name), "{event:?}");
        assert_eq!((event.server(), event.service()), (Some(&server()), Some("web")), "{event:?}");
        let about = event.about();
        assert_eq!((about.service, about.server), (Some("web"), Some("a")), "{event:?}");
        assert_eq!(event.to_string(), text);
    }
    assert_eq!(health(HealthState::Down).about().reason.as_deref(), Some("connection refused"));
    assert_eq!(health(HealthState::Up).about().reason, None);
}

#[test]
fn service_events_have_level_and_service_name() {
    let service = || "web".into();
    for (event, level, name, text) in [
        (
            Event::NoServers { service: service() },
            Level::Warning,
            "service_without_servers",
            "no server accepts new sessions: new connections are dropped",
        ),
        (
            Event::ServersAgain { service: service() },
            Level::Info,
            "service_with_servers",
            "servers accept new sessions again",
        ),
        (
            Event::Degraded { service: service() },
            Level::Warning,
            "service_degraded",
            "too few servers work and accept new sessions: servers that are down or refuse them get some too",
        ),
        (Event::Recovered { service: service() }, Level::Info, "service_recovered", "servers work again"),
    ] {
        assert_eq!((event.level(), event.name()), (level, name));
        assert_eq!((event.service(), event.server()), (Some("web"), None), "{event:?}");
        assert_eq!(event.about().service, Some("web"));
        assert_eq!(event.to_string(), text);
    }
}

#[test]
fn answers_to_arp_that_may_be_an_attack_or_a_fault_are_warnings() {
    let server = || String::from("a");
    let (from, to) = (place(), place());
    for (event, level, name) in [
        (membership::MembershipEvent::Joined { server: server(), place: to }, Level::Info, "server_joined"),
        (membership::MembershipEvent::Silent { server: server() }, Level::Warning, "server_silent"),
        (membership::MembershipEvent::Returned { server: server() }, Level::Info, "server_returned"),
        (
            membership::MembershipEvent::Removed { server: server(), why: Removal::Silent },
            Level::Info,
            "server_removed",
        ),
        (
            membership::MembershipEvent::AddressConflict { server: server(), from, to },
            Level::Warning,
            "server_address_conflict",
        ),
        (membership::MembershipEvent::Moved { server: server(), from, to }, Level::Info, "server_moved"),
        (
            membership::MembershipEvent::Rerouted { server: server(), from, to },
            Level::Info,
            "server_rerouted",
        ),
    ] {
        let event = of_members(event);
        assert_eq!((event.level(), event.name()), (level, name));
        let about = event.about();
        assert_eq!((about.service, about.server), (Some("web"), Some("a")), "{event:?}");
        assert_eq!(event.to_string(), "a moved");
    }
}

#[test]
fn links_that_fail_are_warnings_and_links_that_work_are_not() {
    for (now, level, name, text) in [
        (LinkState::Gone, Level::Warning, "link_removed", "the interface is gone"),
        (LinkState::Down, Level::Warning, "link_down", "the interface is switched off"),
        (
            LinkState::NoCarrier,
            Level::Warning,
            "link_no_carrier",
            "the interface has no carrier: look at the cable, or its other end",
        ),
        (LinkState::Up, Level::Info, "link_up", "the interface works again"),
    ] {
        let event = Event::Link { interface: "eth0".into(), now };
        assert_eq!((event.level(), event.name()), (level, name));
        assert_eq!((event.about().interface, event.service()), (Some("eth0"), None));
        assert_eq!(event.to_string(), text);
    }
    let attached = Event::Attached { interface: "eth1".into() };
    let refused = Event::AttachFailed { interface: "eth1".into(), error: "no programs there".into() };
    assert_eq!((attached.level(), attached.name()), (Level::Info, "link_attached"));
    assert_eq!((refused.level(), refused.name()), (Level::Warning, "link_refused"));
    assert_eq!((attached.about().interface, refused.about().interface), (Some("eth1"), Some("eth1")));
    assert_eq!(refused.to_string(), "failed to receive packets from eth1: no programs there");
}

#[test]
fn hosts_that_are_lost_or_disagree_are_warnings_and_hosts_that_return_are_not() {
    use peers::PeerEvent;
    let host = || String::from("b");
    for (notice, level, name) in [
        (PeerEvent::Answers { host: host() }, Level::Info, "host_responding"),
        (PeerEvent::Silent { host: host() }, Level::Warning, "host_silent"),
        (PeerEvent::Left { host: host() }, Level::Warning, "host_left"),
        (PeerEvent::Returned { host: host() }, Level::Info, "host_returned"),
        (PeerEvent::Differs { host: host(), generation: 7 }, Level::Warning, "host_config_differs"),
        (PeerEvent::Agrees { host: host() }, Level::Info, "host_config_matches"),
    ] {
        let event = Event::Hosts(notice);
        assert_eq!((event.level(), event.name()), (level, name));
        assert_eq!(event.about().host, Some("b"), "{event:?}");
    }
    let rejoins = Event::Hosts(PeerEvent::Rejoins);
    assert_eq!((rejoins.level(), rejoins.name()), (Level::Warning, "host_rejoins"));
    let at = address();
    for (notice, level, name) in [
        (PeerEvent::Claimed { address: at }, Level::Info, "address_claimed"),
        (PeerEvent::Released { address: at, to: Some(host()) }, Level::Info, "address_released"),
        (PeerEvent::ClaimDeferred { address: at }, Level::Warning, "address_claim_deferred"),
        (PeerEvent::AddressConflict { address: at }, Level::Warning, "address_conflict"),
    ] {
        let is_given_away = matches!(notice, PeerEvent::Released { .. });
        let event = Event::Hosts(notice);
        assert_eq!((event.level(), event.name()), (level, name));
        let about = event.about();
        assert_eq!((about.address, about.host), (Some(at), is_given_away.then_some("b")), "{event:?}");
    }
    let twice =
        Event::AddressContested { mac: place().mac, notice: PeerEvent::AddressConflict { address: at } };
    assert_eq!((twice.level(), twice.name()), (Level::Warning, "address_conflict"));
    assert_eq!(twice.about().address, Some(at));
}

#[test]
fn refused_datagram_is_logged_with_source_address() {
    let refusal = crate::node::association::Refusal::Forged;
    let notice = peers::PeerEvent::Refused { host: Some("b".into()), refusal };
    let event = Event::DatagramRefused { from: SocketAddr::new(address(), 7), notice };
    assert_eq!((event.level(), event.name()), (Level::Warning, "datagram_refused"));
    let about = event.about();
    assert_eq!((about.address, about.host), (Some(address()), Some("b")));
}

#[test]
fn paths_ranks_and_changes_that_fail_are_logged_until_they_come_again() {
    let path = |error| Event::Path { address: address(), error };
    let ranks = |error| Event::Ranks { name: "www.example.com".into(), from: "ranks".into(), error };
    let at = "the path to 192.0.2.99";
    for (event, level, name, text) in [
        (
            path(Some("no port".into())),
            Level::Warning,
            "path_unknown",
            "failed to probe the path to 192.0.2.99: no port; retrying".into(),
        ),
        (path(None), Level::Info, "path_known", alloc::format!("{at} can be probed again")),
        (
            ranks(Some(BadRanks::Cut)),
            Level::Warning,
            "ranks_rejected",
            "www.example.com: ranks from ranks are invalid: the last line has no newline, so the file may be half written (write another file and rename it); the previous ranks apply for three periods, then the weights".into(),
        ),
        (ranks(None), Level::Info, "ranks_accepted", "www.example.com: ranks from ranks are valid again".into()),
        (
            Event::PathMtu { server: address(), mtu: 1_280 },
            Level::Info,
            "path_mtu",
            "a router on the path to 192.0.2.99 accepts packets of at most 1280 bytes".into(),
        ),
        (
            Event::NotApplied { error: "no room".into() },
            Level::Error,
            "change_refused",
            "no room; the previous tables stay in force; retrying".into(),
        ),
    ] {
        assert_eq!((event.level(), event.name(), event.to_string()), (level, name, text));
    }
    assert_eq!(path(None).about().address, Some(address()));
    assert_eq!(Event::PathMtu { server: address(), mtu: 9 }.about().address, Some(address()));
    assert_eq!(ranks(None).about().service, Some("www.example.com"));
    assert!(Level::Info < Level::Warning && Level::Warning < Level::Error);
}
