//! Later requests for another server: every engine passes the complete request to the rehandoff
//! task.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use evener_core::net::checksum;
use evener_core::net::wire::Mac;
use evener_core::path::content::{HashKey, PathPattern, RouteIndex, RoutePattern};
use evener_core::path::cookie::{Keys, Schedule};
use evener_core::path::decide::Reason;
use evener_core::path::parse::{Parsed, TcpHeader, parse};
use evener_core::path::seed::Seed;
use evener_core::path::sessions::{SessionKey, State, Value, ticks};
use evener_core::path::tables::{Handoff, NO_SERVER, RehandoffMode, Ring, Tables};
use evener_dataplane::{Engine, RehandoffSegment, RehandoffSink};

use crate::handoff::on_every_engine;
use crate::hosts::{CLIENT, Host, SOON, VIP, index_of, mac_of};
use crate::{count, key, server, skipped, tables};

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// Returns tables that route requests under /img to the second server and others to the first.
fn moving() -> Tables {
    let inside = (index_of("in0"), mac_of("in0"));
    let mut tables = tables(&[inside], &[server(OWN, inside.0), server(OTHER, inside.0)], false);
    let handoff = Handoff { mss: 1460, punt: NO_SERVER, held: NO_SERVER, later: RehandoffMode::Rehandoff };
    tables.vips.values_mut().for_each(|vip| vip.handoff = Some(handoff));
    for (ring, slot) in [(0, 1), (1, 2)] {
        tables.rings.insert(
            ring,
            Arc::new(Ring { order: vec![slot], hash: [].into(), previous: [].into(), second: [].into() }),
        );
        tables.pools.insert(slot, 1 << ring);
    }
    let path = Some(PathPattern::parse("/img/*").unwrap());
    let route = RoutePattern { host: None, path, methods: vec![], ring: 1 };
    tables.routes.insert(0, Arc::new(RouteIndex::compile(&[route], 0, HashKey::new(Seed(1, 2)))));
    tables
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x.y\r\n\r\n")
}

/// Interface, server and frame.
type Given = (u32, u16, Vec<u8>);

/// Returns a rehandoff sink and the receiver of its segments.
fn mover() -> (RehandoffSink, Receiver<Given>) {
    let (sender, given) = channel();
    let mover = move |RehandoffSegment { reason, ifindex, server, frame, is_whole }: RehandoffSegment<'_>| {
        assert!(is_whole);
        assert_eq!(reason, Reason::Rehandoff);
        sender.send((ifindex, server, frame.to_vec())).unwrap_or_default();
    };
    (Arc::new(mover), given)
}

/// Opens a client's connection with the first server. A new cookie key makes its next segment a
/// later one. Each connection has a new key, so retransmissions of an earlier connection are not
/// first segments either.
fn connection(client: &Host, engine: &dyn Engine) -> TcpStream {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let memory = engine.memory();
    let seed = Seed(15, MADE.fetch_add(1, Relaxed));
    memory.cookies.set(&Schedule::fixed(&Keys { key: seed, epoch: 15 }, engine.now()));
    let stream = client.enter(|| {
        let to = SocketAddr::new(VIP.into(), key().port);
        TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap()
    });
    memory.cookies.set(&Schedule::fixed(&Keys { key: Seed(16, 17), epoch: 15 }, engine.now()));
    let session = SessionKey { client: CLIENT.into(), port: stream.local_addr().unwrap().port(), vip: 1 };
    let value = Value::new(1, State::Established, engine.now().wrapping_add(ticks(900_000)));
    memory.sessions.insert(session, session.hash(memory.seed), value, engine.now()).unwrap();
    stream
}

/// Returns the next segment with a request for `path`.
fn next(given: &Receiver<Given>, path: &str) -> Given {
    let requests = |(_, _, frame): &Given| frame.ends_with(request(path).as_bytes());
    let end = Instant::now() + SOON;
    loop {
        let given = given.recv_timeout(end.saturating_duration_since(Instant::now()));
        match given.expect("what is lost comes again") {
            given if requests(&given) => return given,
            _ => {}
        }
    }
}

/// Checks that the frame is exactly the client's request, with correct checksums.
fn check(given: &Given, client_mac: Mac, path: &str) {
    let (ifindex, server, frame) = given;
    assert_eq!((*ifindex, *server), (index_of("in0"), 1));
    assert_eq!((&frame[..6], &frame[6..12]), (&mac_of("in0").0[..], &client_mac.0[..]));
    let Parsed::Segment(segment) = parse(frame, Some(mac_of("in0"))) else { panic!("{frame:02x?}") };
    assert_eq!(TcpHeader::payload(frame, &segment.at), request(path).as_bytes());
    let tcp = &frame[segment.at.l4..segment.at.l3 + segment.at.len];
    let pseudo = checksum::pseudo_header(CLIENT.into(), VIP.into(), 6, tcp.len());
    assert_eq!(checksum::finish(checksum::add(pseudo, tcp)), 0, "the checksum is right");
}

fn play(engine: &mut dyn Engine, client: &Host) {
    let client_mac = client.enter(|| mac_of("in1"));
    let mut stream = connection(client, engine);
    // Without a rehandoff task, the request is dropped, and the client retransmits it.
    stream.write_all(request("/img/1").as_bytes()).unwrap();
    let end = Instant::now() + SOON;
    while count(engine, Reason::Rehandoff) == 0 {
        assert!(Instant::now() < end, "it doesn't come");
        thread::sleep(Duration::from_millis(5));
    }
    let (first, given) = mover();
    engine.moves(first);
    check(&next(&given, "/img/1"), client_mac, "/img/1");

    // A second sink replaces the first and stays when the tables change.
    let (second, given_later) = mover();
    engine.moves(second);
    let tables = moving();
    engine.apply(&Arc::new(tables)).unwrap();
    let mut other = connection(client, engine);
    other.write_all(request("/img/2").as_bytes()).unwrap();
    check(&next(&given_later, "/img/2"), client_mac, "/img/2");
    assert!(given.try_iter().all(|(_, _, frame)| !frame.ends_with(request("/img/2").as_bytes())));
    let sessions = engine.memory().sessions.list(engine.now());
    let all: Vec<_> = sessions.map(|session| (session.value.server(), session.value.state())).collect();
    assert_eq!(all, [(1, State::Established); 2], "all is as it was");
}

#[test]
fn every_engine_hands_over_rehandoff_segment_with_checksum() {
    if skipped() {
        return;
    }
    on_every_engine(moving, play);
}
