//! HTTP requests of all kinds: the programs must recognise a plain request, or report doubt.

use std::thread;

use evener_core::net::wire::TCP_ACK;
use evener_dataplane::server::ConnectionState;

use crate::call::{Call, Offered};
use crate::skipped;
use crate::talk::{ANSWER, GET, OTHER, Seen, Talk, where_turns_are_followed};
use crate::world::{FAMILIES, PORT, listen, on_a_server, read};

/// Requests that are not plain: they can have a body, be incomplete, or be more than one request.
const DOUBTFUL: [&[u8]; 12] = [
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
    b"GET / HTTP/1.1\r\nHost: a\r\ncontent-length: 2\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03",
];

#[test]
fn unusual_request_makes_exchange_unclear() {
    where_turns_are_followed(|world| {
        let listener = listen(false, PORT);
        for (number, doubtful) in DOUBTFUL.iter().enumerate() {
            let port = 40_000 + 2 * number as u16;
            let mut talk = Talk::begin(world, &listener, world.call(false, port), doubtful);
            assert_eq!(talk.seen(), Seen::Unclear, "{}", doubtful.escape_ascii());
            talk.send(ANSWER);
            talk.send_request(GET);
            talk.send(ANSWER);
            assert_eq!(talk.seen(), Seen::Unclear, "{}", doubtful.escape_ascii());

            let mut talk = Talk::begin(world, &listener, world.call(false, port + 1), GET);
            talk.send(ANSWER);
            assert_eq!(talk.seen(), Seen::Idle);
            talk.send_request(doubtful);
            assert_eq!(talk.seen(), Seen::Unclear, "{}", doubtful.escape_ascii());
        }
    });
}

/// Servers ignore empty lines before a request (RFC 9112, section 2.2).
#[test]
fn an_empty_line_between_requests_leaves_no_doubt() {
    where_turns_are_followed(|world| {
        let listener = listen(false, PORT);
        let mut talk = Talk::begin(world, &listener, world.call(false, 40_000), GET);
        talk.send(ANSWER);
        for _ in 0..2 {
            talk.send_request(b"\r\n");
            assert_eq!(talk.seen(), Seen::Idle);
            talk.send_request(GET);
            talk.send(ANSWER);
            assert_eq!(talk.seen(), Seen::Idle);
        }
    });
}

#[test]
fn a_request_before_its_turn_leaves_a_doubt() {
    where_turns_are_followed(|world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            // A second request before the response, during the response, and before its
            // acknowledgment.
            let mut talk = Talk::begin(world, &listener, world.call(v6, 40_000), GET);
            talk.send_request(OTHER);
            assert_eq!(talk.seen(), Seen::Unclear);
            let mut talk = Talk::begin(world, &listener, world.call(v6, 40_001), GET);
            let (half, rest) = ANSWER.split_at(ANSWER.len() - 2);
            talk.send(half);
            talk.send_request(OTHER);
            talk.send(rest);
            assert_eq!(talk.seen(), Seen::Unclear);
            let mut talk = Talk::begin(world, &listener, world.call(v6, 40_002), GET);
            talk.send(ANSWER);
            talk.send_unread(OTHER, half.len() as u32);
            assert_eq!(read(&mut talk.stream, OTHER.len()), OTHER);
            assert_eq!(talk.seen(), Seen::Unclear);
            // A request in two segments leaves doubt.
            let mut talk = Talk::begin(world, &listener, world.call(v6, 40_003), GET);
            talk.send(ANSWER);
            let (head, rest) = OTHER.split_at(20);
            talk.send_request(head);
            talk.send_request(rest);
            assert_eq!(talk.seen(), Seen::Unclear);
        }
    });
}

#[test]
fn a_request_that_is_not_read_yet_is_the_servers_turn() {
    where_turns_are_followed(|world| {
        let listener = listen(false, PORT);
        let mut talk = Talk::begin(world, &listener, world.call(false, 40_000), GET);
        talk.send(ANSWER);
        assert_eq!(talk.seen(), Seen::Idle);
        talk.send_unread(OTHER, talk.sequence);
        talk.comes_to(Seen::Busy);
        assert_eq!(talk.stream.peek(&mut [0; 3]).unwrap(), 3);
        assert_eq!(talk.seen(), Seen::Busy);
    });
}

#[test]
fn retransmission_changes_no_exchange() {
    where_turns_are_followed(|world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let mut talk = Talk::begin(world, &listener, world.call(v6, 40_000), GET);
            for request in [GET, OTHER, GET] {
                talk.again();
                talk.send(ANSWER);
                talk.again();
                // A TCP keepalive segment (RFC 9293, section 3.8.4).
                world.send(&talk.call, &talk.call.segment((talk.sent, 1), TCP_ACK, &[0]));
                talk.send_request(request);
                assert_eq!(talk.seen(), Seen::Busy);
            }
            talk.send(ANSWER);
            assert_eq!(talk.seen(), Seen::Idle);
        }
    });
}

#[test]
fn oversized_head_is_no_plain_request() {
    where_turns_are_followed(|world| {
        world.widen();
        let listener = listen(false, PORT);
        let request = |len: usize| {
            let head = b"GET / HTTP/1.1\r\nCookie: ";
            let cookie = vec![b'x'; len - head.len() - 4];
            [head.as_slice(), &cookie, b"\r\n\r\n"].concat()
        };
        for (number, (len, seen)) in
            [(4_096, Seen::Idle), (4_097, Seen::Unclear), (8_000, Seen::Unclear)].into_iter().enumerate()
        {
            let call = world.call(false, 40_000 + number as u16);
            let mut talk = Talk::begin(world, &listener, call, &request(len));
            talk.send(ANSWER);
            assert_eq!(talk.seen(), seen, "{len}");
        }
    });
}

#[test]
fn resting_connection_reports_negotiated_options() {
    where_turns_are_followed(|world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let largest = if v6 { 1440 } else { 1460 };
            for (number, (scale, timestamps)) in
                [(Some(9), None), (Some(0), Some((5_000, 7))), (None, None), (None, Some((5_000, 7)))]
                    .into_iter()
                    .enumerate()
            {
                let call =
                    world.call_with(v6, 40_000 + number as u16, 1_000, Offered { mss: largest, scale });
                let call = Call { timestamps, ..call };
                let mut talk = Talk::begin(world, &listener, call, GET);
                talk.send(ANSWER);
                // Queries the state from a thread that did not load the programs.
                let connections = world.server.connections().unwrap();
                let ends = call.ends;
                let look =
                    thread::spawn(move || connections.state(ends.client, ends.service).unwrap()).join();
                let ConnectionState::Idle(idle) = look.unwrap() else { panic!("it rests") };
                assert_eq!((idle.mss, idle.window_scales), (largest, scale.map(|scale| (scale, 7))));
                assert_eq!((idle.sack, idle.timestamps), (scale.is_some(), timestamps.is_some()));
                assert_eq!(idle.window.send, 30_000 << scale.unwrap_or_default());
                assert_eq!(idle.window.send_max, idle.window.send);
                assert_eq!(idle.window.receive_update, call.isn + 1 + talk.sent);
                assert!(idle.window.receive > 0);
            }
        }
    });
}

#[test]
fn unfollowed_connection_has_no_exchange() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let listener = listen(false, PORT);
        let call = world.call(false, 40_000);
        let mut stream = world.open(&call, &listener);
        world.follow();
        world.reply(&call, &mut stream, ANSWER);
        let connections = world.server.connections().unwrap();
        assert_eq!(connections.state(call.ends.client, call.ends.service).unwrap(), ConnectionState::Unclear);
    });
}
