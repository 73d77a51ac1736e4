//! Views that the test's daemon always returns.

use std::collections::BTreeMap;

use evener::board::request::{ExplainSubject, FlowQuery};
use evener::record::{AccessLog, DecisionLatency};
use evener::views::{
    AffinityView, DirectorView, DirectorsView, DispatchExplanation, Dispatcher, Explanation, HandshakesView,
    HostView, InstalledPart, NameView, NodeRefusal, ServerView, ServiceView, SessionView, StatusView,
};

pub fn status() -> StatusView {
    let counts = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
        pairs.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
    };
    StatusView {
        version: "0.1.0".into(),
        pid: 4711,
        uptime_seconds: 93_784,
        engine: "xdp".into(),
        engine_detail: "generic on eth0".into(),
        adopted: true,
        drained: true,
        directors: vec!["192.0.2.4 is silent".into()],
        config: "/etc/evener/evener.toml".into(),
        generation: 17,
        generation_wanted: 18,
        reloads: 3,
        reloads_refused: 2,
        reload_pending: false,
        reload_error: Some("evener.toml: 2 errors\nsecond line".into()),
        restart_needed_for: Some("[engine] sessions_max".into()),
        config_loaded_seconds: 1_700_000_060.5,
        sessions: 12_345,
        sessions_assured: 12_300,
        sessions_embryonic: 45,
        sessions_max: 1_000_000,
        session_slots: 2_097_152,
        session_slots_max: 2_097_152,
        sessions_resizing: false,
        packets: counts(&[("forwarded", 1_234_567), ("fragment", 0), ("no_server", 7)]),
        refused: counts(&[("own_mac", 2)]),
        events: counts(&[("server_down", 4)]),
        events_lost: 5,
        interfaces: vec!["eth0".into()],
        installed: vec![
            part("program", "eth0", None),
            part("guard", "table netdev evener", Some("nft: Operation not permitted")),
        ],
        peers: counts(&[("accepted", 77), ("forged", 3)]),
        tunnels: counts(&[("decapsulated", 9), ("forged_mark", 4)]),
        punted: counts(&[("handed_off", 5)]),
        access_log: AccessLog { path: Some("/var/log/evener/access.log".into()), written: 12, lost: 1 },
        traces: 2,
        decision_latency: [("kernel".to_owned(), decision_latency())].into(),
        lccp: counts(&[("handoffs_acknowledged", 5), ("replayed", 1)]),
        nodes: [("192.0.2.11", "known"), ("192.0.2.12", "silent")]
            .map(|(node, state)| (node.to_owned(), state.to_owned()))
            .into(),
        nodes_refused: [("192.0.2.12".to_owned(), refused("key", "its clock\x1b is wrong; set it"))].into(),
        dispatcher: Some(Dispatcher { address: "192.0.2.3".into(), responding: false }),
        dns: BTreeMap::from([("noerror".to_owned(), 12), ("queries_udp".to_owned(), 13)]),
    }
}

fn part(kind: &str, location: &str, missing: Option<&str>) -> InstalledPart {
    InstalledPart { kind: kind.into(), location: location.into(), missing: missing.map(str::to_owned) }
}

fn refused(reason: &str, text: &str) -> NodeRefusal {
    NodeRefusal { reason: reason.into(), text: text.into() }
}

fn decision_latency() -> DecisionLatency {
    DecisionLatency { count: 5, seconds: 0.25, buckets: vec![(Some(1e-6), 3), (Some(0.1), 1), (None, 1)] }
}

pub fn services() -> Vec<ServiceView> {
    vec![ServiceView {
        name: "web".into(),
        addresses: vec!["192.0.2.100:80".into()],
        protocol: "tcp".into(),
        method: "l2".into(),
        placement: "director".into(),
        policy: "round-robin".into(),
        servers: 3,
        servers_up: 1,
        state: "partial".into(),
        degraded: false,
        sessions: 42,
        connections: 400,
        packets: 1_234_567,
        bytes: 987_654_321,
        cookies_bad: 7,
        cookies_unchecked: 5,
        affinity_entries: 11,
        affinity_evicted: 2,
        overrides: Vec::new(),
        requests: [("redirected".to_owned(), 6)].into(),
    }]
}

fn server(name: &str, state: &str, connections: u64) -> ServerView {
    ServerView {
        service: "web".into(),
        name: name.into(),
        address: name.into(),
        state: state.into(),
        reason: None,
        weight: 1,
        backup: false,
        effective_weight: 1.0,
        cause: None,
        score: 0,
        report: None,
        max_connections: 0,
        sessions: 21,
        connections,
        packets: 1_000,
        bytes: 2_500_000,
        mac: Some("02:00:00:00:00:0a".into()),
        interface: Some("eth0".into()),
        source: "discovered".into(),
        local: false,
        forwarding: "link".into(),
        probe_seconds: None,
        probe_error: None,
        probe_failures: 0,
        state_changes: 1,
        state_since_seconds: Some(1_700_000_000.0),
        handshakes: None,
        checks: "..x.".into(),
        overrides: Vec::new(),
        member: None,
    }
}

pub fn servers() -> Vec<ServerView> {
    vec![
        ServerView {
            probe_seconds: Some(0.000_42),
            weight: 2,
            effective_weight: 0.8,
            cause: Some("slow start 40 %".into()),
            ..server("02:00:00:00:00:0a", "up", 300)
        },
        ServerView {
            address: "192.0.2.12".into(),
            reason: Some("probes fail".into()),
            probe_error: Some("no answer\x1b[2J".into()),
            source: "listed".into(),
            probe_failures: 9,
            handshakes: Some(HandshakesView {
                new: 94,
                stalled: 31,
                networks: 24,
                stalled_total: 40,
                finding: Some("31 of 94 new connections never continued".into()),
            }),
            state_changes: 3,
            ..server("web2", "down", 100)
        },
        ServerView { weight: 0, local: true, ..server("caf\u{e9} \"1\"", "draining", 0) },
    ]
}

pub fn names() -> Vec<NameView> {
    let name = |address: &str, server: &str| NameView {
        name: "www.example.com".into(),
        address: address.into(),
        server: server.into(),
        state: "up".into(),
        rank: Some(1),
        share: 1.0,
        answers: 12,
        policy: "expected-delay".into(),
        ttl_seconds: 5,
        bottleneck_bps: None,
        path_source: None,
        path_age_seconds: None,
        available_bps: None,
        delay_seconds: Some(0.25),
        age_seconds: Some(0.5),
        checks: "x...".into(),
        cause: "reported delay 0.25 s: 100 % of its weight".into(),
    };
    let down = NameView {
        state: "down".into(),
        rank: None,
        share: 0.0,
        answers: 0,
        delay_seconds: None,
        age_seconds: None,
        cause: "timed out".into(),
        ..name("192.0.2.12", "web2")
    };
    vec![name("192.0.2.11", "web1"), down]
}

pub fn hosts() -> Vec<HostView> {
    vec![HostView {
        name: "web2".into(),
        address: "192.0.2.12".into(),
        own: false,
        state: "alive".into(),
        load: 17,
        up: vec!["web".into()],
        draining: vec![],
        addresses_owned: vec!["192.0.2.102".into()],
        deferred: vec![],
        refused: Some(refused("version", "it speaks version 2")),
        last_seen_seconds: Some(0.25),
    }]
}

pub fn directors() -> DirectorsView {
    let ready = DirectorView {
        address: [192, 0, 2, 2].into(),
        own: true,
        state: "ready".into(),
        reason: None,
        release: Some("0.2.0".into()),
        differs: vec![],
        differences: vec![],
        refused: None,
        last_seen_seconds: None,
        sessions_sent: 3,
        sessions_received: 4,
        sessions_restarted: 0,
        sessions_unsent: 0,
    };
    let other = DirectorView {
        address: [192, 0, 2, 3].into(),
        own: false,
        state: "unready".into(),
        reason: Some("web: no server works: web1 is down".into()),
        release: Some("0.3.0".into()),
        differs: vec!["file".into(), "release".into()],
        differences: vec!["its file is another one".into(), "it runs release 0.3.0".into()],
        last_seen_seconds: Some(0.25),
        ..ready.clone()
    };
    let silent = DirectorView {
        address: [192, 0, 2, 4].into(),
        own: false,
        state: "silent".into(),
        refused: Some(refused("forged", "its messages have a wrong tag")),
        release: None,
        last_seen_seconds: Some(90.0),
        ..ready.clone()
    };
    DirectorsView { obstacle: None, directors: vec![ready, other, silent] }
}

pub fn sessions() -> Vec<SessionView> {
    vec![SessionView {
        service: "web".into(),
        address: "192.0.2.100:80".into(),
        client: "198.51.100.7:40000".into(),
        server: "web2".into(),
        state: "established".into(),
        idle_seconds: 3,
        expires_seconds: 897,
    }]
}

pub fn affinity() -> Vec<AffinityView> {
    vec![AffinityView {
        service: "web".into(),
        client: "198.51.100.7/32".into(),
        server: "web2".into(),
        expires_seconds: 600,
    }]
}

pub fn explanation(subject: &ExplainSubject) -> Explanation {
    let line = |flow: &FlowQuery| format!("{} {} to {}", flow.protocol, flow.client, flow.vip);
    let service = Some("web".to_owned());
    match subject {
        ExplainSubject::Flow(flow) if flow.vip.port() == 81 => {
            Explanation { service, reasons: vec![line(flow)], pending: true, ..Explanation::default() }
        }
        ExplainSubject::Flow(flow) => Explanation {
            service,
            server: Some("web2".into()),
            reasons: vec![line(flow), "so.".into()],
            ..Explanation::default()
        },
        ExplainSubject::Request { request, flow, service: named } => Explanation {
            service,
            server: flow.is_some().then(|| "web2".into()),
            reasons: vec![format!("{request} {named:?} {:?}", flow.as_ref().map(line))],
            pending: flow.is_none(),
            request: Some(DispatchExplanation {
                route: Some(2),
                pattern: Some("path /img/*".into()),
                servers: vec!["web1".into(), "web2".into()],
                punted: false,
            }),
        },
    }
}
