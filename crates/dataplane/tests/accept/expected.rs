//! Connections that another host opened and that the agent announced before their first segment.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use evener_core::net::wire::TCP_RST;
use evener_dataplane::repair::{AgreedOptions, Saved, Window};
use evener_dataplane::server::{Connections, Reason};
use socket2::{Domain, SockRef, Socket, Type};

use crate::again::later;
use crate::call::Call;
use crate::skipped;
use crate::talk::{ANSWER, Seen, Talk, where_turns_are_followed};
use crate::world::{FAMILIES, PORT, REQUEST, World, knowledge, listen, on_a_server, until, vip, wait_for};

const REQUEST_LEN: u32 = REQUEST.len() as u32;
pub const TERMS: AgreedOptions =
    AgreedOptions { mss: 1400, window_scales: Some((9, 7)), sack: true, timestamp: None };

/// Returns a call whose cookie is invalid.
pub fn stranger(world: &World, v6: bool, port: u16) -> Call {
    let call = world.call(v6, port);
    Call { cookie: call.cookie ^ 1 << 31, ..call }
}

/// Returns the saved state of a connection before its first segment at this server, which is
/// REQUEST.
pub fn saved(call: &Call, terms: AgreedOptions) -> Saved {
    Saved {
        client: call.ends.client,
        service: call.ends.service,
        receive_next: call.isn.wrapping_add(1 + REQUEST_LEN),
        send_next: call.cookie.wrapping_add(1 + 3),
        unacked: b"abc".to_vec(),
        unsent: 0,
        unread: REQUEST.to_vec(),
        terms,
        window: Window::default(),
    }
}

/// Runs `work` on a server, with the handle that announces connections.
fn where_they_are_announced(work: impl FnOnce(&mut World, &Connections) + Send) {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let connections = world.server.connections().unwrap();
        work(world, &connections);
    });
}

/// Returns a listener with a backlog of one.
fn listen_for_few(port: u16) -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(vip(false), port).into()).unwrap();
    socket.listen(1).unwrap();
    socket.into()
}

#[test]
fn an_expected_segment_becomes_a_connection_as_was_agreed_on() {
    where_they_are_announced(|world, connections| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let terms = [
                TERMS,
                AgreedOptions { mss: 1250, window_scales: Some((0, 3)), timestamp: Some(7), ..TERMS },
                AgreedOptions { window_scales: Some((14, 0)), sack: false, ..TERMS },
                AgreedOptions { window_scales: None, sack: true, ..TERMS },
                AgreedOptions { window_scales: None, sack: false, timestamp: Some(7), ..TERMS },
            ];
            for (number, (terms, segment_has_them)) in
                terms.into_iter().flat_map(|terms| [(terms, true), (terms, false)]).enumerate()
            {
                let mut call = stranger(world, v6, 41_000 + number as u16);
                if segment_has_them {
                    call = call.at(5_000, 900_000);
                }
                connections.expect(&saved(&call, terms)).unwrap();
                let mut stream = world.open(&call, &listener);
                let known = knowledge();
                let has = |word: &str| known.split_whitespace().any(|there| there == word);
                let timestamps = terms.timestamp.is_some() && segment_has_them;
                assert_eq!(has("ts"), timestamps, "{known}");
                assert_eq!(has("sack"), terms.sack, "{known}");
                assert_eq!(terms.window_scales.is_some(), known.contains("wscale:"), "{known}");
                let scales = terms.window_scales.map(|(send, receive)| format!("wscale:{send},{receive}"));
                assert!(scales.is_none_or(|scales| has(&scales)), "{known}");
                let option = if timestamps { 12 } else { 0 };
                assert!(has(&format!("mss:{}", terms.mss - option)), "{known}");
                world.reply(&call, &mut stream, b"hello");
                world.send(&call, &call.segment((1 + REQUEST_LEN, 6), TCP_RST, &[]));
                wait_for("established", 0);
            }
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 20)]);
    });
}

#[test]
fn only_expected_segment_becomes_connection() {
    where_they_are_announced(|world, connections| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let call = stranger(world, v6, 40_000);
            connections.expect(&saved(&call, TERMS)).unwrap();
            let others = [
                Call { isn: call.isn + 1, ..call },
                Call { isn: call.isn - 1, ..call },
                Call { cookie: call.cookie ^ 1, ..call },
                Call { cookie: call.cookie ^ 1 << 30, ..call },
                Call { ends: world.call(v6, 40_001).ends, ..call },
            ];
            for other in others {
                world.is_reset(&other, &other.first(REQUEST), &listener);
            }
            world.open(&call, &listener);
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 2), (Reason::BadCookie, 10)]);
    });
}

#[test]
fn last_expectation_of_connection_counts() {
    where_they_are_announced(|world, connections| {
        let listener = listen(false, PORT);
        let first = stranger(world, false, 40_000);
        let second = Call { isn: first.isn + 500, cookie: first.cookie.wrapping_add(500), ..first };
        connections.expect(&saved(&first, TERMS)).unwrap();
        connections.clone().expect(&saved(&second, TERMS)).unwrap();
        world.is_reset(&first, &first.first(REQUEST), &listener);
        world.open(&second, &listener);
    });
}

/// A server that responds and resets at once leaves no socket that could reveal a used expectation.
#[test]
fn used_expectation_makes_no_second_connection() {
    where_they_are_announced(|world, connections| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            // One call with an invalid cookie and one with a valid cookie.
            for call in [stranger(world, v6, 40_000), world.call(v6, 40_001)] {
                let announced = saved(&call, TERMS);
                connections.expect(&announced).unwrap();
                assert!(!connections.was_made(&announced).unwrap());
                let stream = world.open(&call, &listener);
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                drop(stream);
                world.receive_flags(&call, TCP_RST);
                wait_for("established", 0);
                assert!(connections.was_made(&announced).unwrap());
                // A second announcement of the same connection creates no second socket.
                connections.expect(&announced).unwrap();
                world.is_reset(&call, &call.first(REQUEST), &listener);
                // A later connection between the same addresses and ports is a different
                // connection.
                let next =
                    Call { isn: call.isn + 500, cookie: call.cookie.wrapping_add(500) ^ 1 << 31, ..call };
                assert!(!connections.was_made(&saved(&next, TERMS)).unwrap());
            }
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 4), (Reason::BadCookie, 4)]);
    });
}

/// A segment that the stack drops does not use up the expectation.
#[test]
fn a_segment_that_finds_no_room_may_come_again() {
    where_they_are_announced(|world, connections| {
        let listener = listen_for_few(PORT);
        let calls: Vec<Call> = (40_000..40_004).map(|port| stranger(world, false, port)).collect();
        let send = |call: &Call, count: u64| {
            world.send(call, &call.first(REQUEST));
            until(|| world.count(Reason::Accepted) == count);
            connections.was_made(&saved(call, TERMS)).unwrap()
        };
        for call in &calls {
            connections.expect(&saved(call, TERMS)).unwrap();
        }
        let made: Vec<bool> = calls.iter().zip(1..).map(|(call, count)| send(call, count)).collect();
        assert_eq!(made, [true, true, false, false], "a backlog of one has room for two");
        let _taken: Vec<_> = (0..2).map(|_| listener.accept().unwrap()).collect();
        assert!(calls[2..].iter().zip(5..).all(|(call, count)| send(call, count)));
    });
}

#[test]
fn segment_the_kernel_rejects_is_refused() {
    where_they_are_announced(|world, connections| {
        for (v6, mss) in [(false, 500), (true, 1200)] {
            let call = stranger(world, v6, 40_000);
            let error = connections.expect(&saved(&call, AgreedOptions { mss, ..TERMS })).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
            world.is_reset(&call, &call.first(REQUEST), &listen(v6, PORT));
        }
    });
}

#[test]
fn more_than_there_is_room_for_do_no_harm() {
    where_they_are_announced(|world, connections| {
        let listener = listen(false, PORT);
        for port in 10_000..30_000 {
            connections.expect(&saved(&stranger(world, false, port), TERMS)).unwrap();
        }
        let call = stranger(world, false, 29_999);
        world.open(&call, &listener);
        let call = stranger(world, false, 10_000);
        world.is_reset(&call, &call.first(REQUEST), &listener);
    });
}

#[test]
fn an_expected_connection_clears_its_way_as_a_new_one_does() {
    where_they_are_announced(|world, connections| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let first = world.call(v6, 40_000);
            let mut old = world.open(&first, &listener);
            world.reply(&first, &mut old, b"hello");
            let second = later(world, &first, 1_000_000);
            let second = Call { cookie: second.cookie ^ 1 << 31, ..second };
            connections.expect(&saved(&second, TERMS)).unwrap();
            let mut new = world.open(&second, &listener);
            world.reply(&second, &mut new, b"hello again");
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 4), (Reason::StaleEvicted, 2)]);
    });
}

#[test]
fn turns_are_followed_from_there_on() {
    where_turns_are_followed(|world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let call = stranger(world, v6, 40_000);
            world.server.connections().unwrap().expect(&saved(&call, TERMS)).unwrap();
            let mut talk = Talk::begin(world, &listener, call, REQUEST);
            assert_eq!(talk.seen(), Seen::Busy);
            talk.send(ANSWER);
            assert_eq!(talk.seen(), Seen::Idle);
            talk.send_request(REQUEST);
            talk.send(ANSWER);
            assert_eq!(talk.seen(), Seen::Idle);
        }
    });
}
