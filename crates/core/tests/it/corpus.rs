//! Inputs that fuzzing has found interesting are tried again, on every way to a server: nothing
//! panics, and one that is not sent on is left as it was.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::world::{DIRECTOR, World, ways};
use evener_core::net::packet::Checksum;
use evener_core::node::peers::wire::LEN;
use evener_core::node::peers::{HostSetting, PeerSettings, Peers};
use evener_core::node::secret::{Key, Secret, TAG_LEN};
use evener_core::path::content::{
    ContentParse, HashKey, HostPattern, PathPattern, PuntReason, RequestClass, RequestKey, RouteIndex,
    RouteMatch, RoutePattern, read,
};
use evener_core::path::decide::Verdict;
use evener_core::path::seed::Seed;
use evener_core::server;

/// The address and port that the frame is for, if it looks like IP, so that it gets as far as it
/// can.
fn destination(frame: &[u8]) -> SocketAddr {
    let v6 = frame.get(12..14) == Some(&[0x86, 0xdd]);
    let (address, port) = if v6 { (38..54, 56..58) } else { (30..34, 36..38) };
    let port = frame.get(port).map_or(80, |bytes| u16::from_be_bytes(bytes.try_into().unwrap()));
    let address = match frame.get(address) {
        Some(bytes) if v6 => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
        Some(bytes) => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        None => [192, 0, 2, 100].into(),
    };
    SocketAddr::new(address, port)
}

#[test]
fn the_corpora_of_frames_are_decided_without_harm() {
    let (mut files, mut forwarded) = (0, 0);
    for corpus in ["parse", "decide"] {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(corpus);
        for entry in fs::read_dir(corpus).unwrap() {
            let frame = fs::read(entry.unwrap().path()).unwrap();
            let vip = destination(&frame);
            for way in ways(vip.is_ipv6()) {
                for mut world in [World::new(vip, way), World::among_hosts(vip, way)] {
                    if let Some(own) = frame.first_chunk() {
                        world.tables.interfaces.insert(1, evener_core::net::wire::Mac(*own));
                    }
                    let (decision, after) = world.decide(&frame, Checksum::Whole, 7);
                    match decision.verdict {
                        Verdict::Forward { .. } => forwarded += 1,
                        Verdict::HostStack { .. } => {}
                        _ => assert_eq!(after, frame, "{decision:?} leaves the frame alone"),
                    }
                }
            }
            files += 1;
        }
    }
    assert!(files >= 10 && forwarded > 0, "{files} files, {forwarded} of them forwarded: the corpus is thin");
    assert_ne!(DIRECTOR.0, [0; 6]);
}

#[test]
fn the_corpus_of_tunnel_packets_is_opened_without_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/open");
    let mut met = BTreeMap::<Option<server::Reason>, u32>::new();
    for entry in fs::read_dir(&corpus).unwrap() {
        let frame = fs::read(entry.unwrap().path()).unwrap();
        *met.entry(super::tunnels::open_and_check(&frame)).or_default() += 1;
    }
    let fates = [
        ("six-extensions", Some(server::Reason::Decapsulated)),
        ("seven-extensions", Some(server::Reason::Malformed)),
        // Its ports stand behind its end.
        ("short-inside", Some(server::Reason::Malformed)),
        // IPv4 addresses in IPv6 headers, as no router would have let them through.
        ("mapped", Some(server::Reason::NotOwnService)),
        ("mapped-outer", None),
    ];
    for (file, outcome) in fates {
        assert_eq!(super::tunnels::open_and_check(&fs::read(corpus.join(file)).unwrap()), outcome, "{file}");
    }
    // None, and all that can become of a tunnel packet where frames can be shortened.
    assert!(met.len() == 11 && met[&None] > 1, "{met:?}: the corpus is thin");
}

#[test]
fn the_corpus_of_queries_is_answered_without_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/names");
    let mut met = BTreeMap::<String, u32>::new();
    for entry in fs::read_dir(corpus).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        *met.entry(super::queries::answer_and_check(&bytes)).or_default() += 1;
        for len in 0..bytes.len() {
            super::queries::answer_and_check(&bytes[..len]);
        }
    }
    let wanted = [
        "unanswered",
        "noerror",
        "noerror, truncated",
        "noerror, limited",
        "formerr",
        "servfail",
        "nxdomain",
        "notimp",
        "refused",
        "badvers",
    ];
    let missing: Vec<_> = wanted.iter().filter(|outcome| !met.contains_key(**outcome)).collect();
    assert!(missing.is_empty(), "never met {missing:?}: {met:?}");
}

#[test]
fn the_corpus_of_segments_is_met_without_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/segments");
    let mut met = BTreeMap::<String, u32>::new();
    for entry in fs::read_dir(corpus).unwrap() {
        let frame = fs::read(entry.unwrap().path()).unwrap();
        *met.entry(super::segments::meet_and_check(&frame)).or_default() += 1;
    }
    let wanted = [
        "none",
        "Known",
        "Straggler",
        "Nothing(NoListener)",
        "Nothing(BadCookie)",
        "Connection(",
        "TimeWaitEvicted",
    ];
    let wanted = wanted.into_iter().chain([
        "StaleEvicted",
        "leaves, Some(Clamped)",
        "leaves, None, true",
        "leaves, None, false",
    ]);
    let missing: Vec<_> = wanted.filter(|outcome| !met.keys().any(|one| one.starts_with(outcome))).collect();
    assert!(missing.is_empty(), "never met {missing:?}: {met:?}");
}

#[test]
fn the_corpus_of_turns_is_followed_without_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/exchange");
    let follow = |file: &str| super::turns::follow_and_check(&fs::read(corpus.join(file)).unwrap());
    for entry in fs::read_dir(&corpus).unwrap() {
        super::turns::follow_and_check(&fs::read(entry.unwrap().path()).unwrap());
    }
    let seen = |requests, answers, chunked, doubts| super::turns::Seen { requests, answers, chunked, doubts };
    for (file, wanted) in [
        ("turns", seen(3, 2, 0, 0)),
        ("split", seen(2, 1, 0, 0)),
        ("chunks", seen(2, 2, 2, 0)),
        ("chunk-by-byte", seen(2, 2, 2, 0)),
        ("again", seen(2, 1, 0, 0)),
        ("huge", seen(1, 1, 0, 0)),
        ("too-huge", seen(1, 0, 0, 1)),
        ("bare-cr", seen(1, 0, 0, 1)),
        ("too-early", seen(1, 0, 0, 1)),
    ] {
        assert_eq!(follow(file), wanted, "{file}");
    }
}

/// The host that the corpus of datagrams is addressed to.
fn peers(key: Key) -> Peers {
    let host = |name: &str, last| HostSetting { name: name.into(), address: [10, 0, 0, last].into() };
    let settings = PeerSettings {
        name: "web1".into(),
        hosts: vec![host("web1", 1), host("web2", 2)],
        services: vec!["web".into()],
        addresses: vec![],
        generation: 1,
        interval_ms: 500,
        silence_ms: 3_000,
        key,
    };
    Peers::new(settings, 1, 0)
}

#[test]
fn the_corpus_of_datagrams_is_taken_in_without_harm() {
    let key = Key([9; 32]);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/peers");
    let (mut files, mut hellos, mut accepted) = (0, 0, 0);
    for entry in fs::read_dir(corpus).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let _ = std::str::from_utf8(&bytes).map(Secret::parse);
        let mut peers = peers(key);
        for (now_ms, datagram) in (0..).step_by(500).zip(bytes.chunks(LEN - TAG_LEN)) {
            peers.tick(now_ms);
            let before = peers.hosts();
            peers.receive(now_ms, datagram);
            assert_eq!(peers.hosts(), before, "without its tag it says nothing");
            peers.receive(now_ms, &key.seal(&[], datagram.to_vec()));
        }
        hellos += peers.counters().hellos;
        accepted += peers.counters().accepted;
        files += 1;
    }
    assert!(files >= 5 && hellos > 0 && accepted > 0, "{files} files, {hellos} hellos, {accepted} accepted");
}

/// Where a request goes among three routes, of which the last is complex.
fn routes() -> RouteIndex {
    let route = |ring, host, path| RoutePattern {
        host: HostPattern::parse(host).ok(),
        path: PathPattern::parse(path).ok(),
        methods: vec![],
        ring,
    };
    let routes = [route(1, "img.example.com", ""), route(2, "*.example.com", "/"), route(3, "", "/*.png")];
    RouteIndex::compile(&routes, 0, HashKey::new(Seed(1, 2)))
}

#[test]
fn the_corpus_of_requests_is_read_without_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/request");
    let (routes, mut requests, mut hellos, mut incomplete, mut odd) = (routes(), 0, 0, 0, 0);
    for entry in fs::read_dir(corpus).unwrap() {
        let payload = fs::read(entry.unwrap().path()).unwrap();
        let reading = read(&payload);
        for len in 0..payload.len() {
            let before = read(&payload[..len]);
            assert!(
                before == reading || before == ContentParse::Punt(PuntReason::Incomplete),
                "{before:?}, {reading:?}"
            );
        }
        let key = match reading {
            ContentParse::Request(key @ RequestKey { class: RequestClass::Hello, .. }) => {
                hellos += 1;
                key
            }
            ContentParse::Request(key) => {
                requests += 1;
                key
            }
            ContentParse::Punt(PuntReason::Incomplete) => {
                incomplete += 1;
                continue;
            }
            ContentParse::Punt(PuntReason::Odd | PuntReason::Split) => {
                odd += 1;
                continue;
            }
        };
        let (route, ring) = routes.find_all(&key);
        match routes.find(&key) {
            RouteMatch::Ring { route: found, ring: its_ring } => {
                assert_eq!((Some(found), its_ring), (route, ring))
            }
            RouteMatch::Punt => assert!(route.is_none_or(|route| route == routes.complex_from)),
        }
    }
    let counts = [requests, hellos, incomplete, odd];
    assert!(counts.iter().all(|count| *count >= 2), "{counts:?}: the corpus is thin");
}

#[test]
fn hellos_of_a_real_client_are_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/request");
    let names =
        [("hello-tls12", "img.example.com"), ("hello-tls13", "www.example.com"), ("hello-without-name", "")];
    for (file, name) in names {
        let hello = fs::read(corpus.join(file)).unwrap();
        let wanted = RequestKey { class: RequestClass::Hello, host: name.as_bytes(), path: b"", method: b"" };
        assert_eq!(read(&hello), ContentParse::Request(wanted), "{file}");
        assert_eq!(read(&hello[..hello.len() - 1]), ContentParse::Punt(PuntReason::Incomplete), "{file}");
    }
}
