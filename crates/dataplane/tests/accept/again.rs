//! Reuse of a client port, and repeated segments.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use evener_core::net::wire::{TCP_ACK, TCP_FIN, TCP_RST};
use evener_dataplane::server::Reason;
use socket2::SockRef;

use crate::call::Call;
use crate::hosts::{NEVER, SOON};
use crate::skipped;
use crate::world::{
    FAMILIES, PORT, REQUEST, USUAL, World, accept, listen, on_a_server, read, set, sockets, wait_for,
};

const REQUEST_LEN: u32 = REQUEST.len() as u32;

/// Opens a connection and closes it on the server first, so that the server's socket goes to
/// TIME_WAIT.
pub fn call_to_the_end(world: &World, call: &Call, listener: &TcpListener) {
    let waiting = sockets("time-wait");
    let mut stream = world.open(call, listener);
    world.reply(call, &mut stream, b"bye");
    drop(stream);
    assert_eq!(world.receive_flags(call, TCP_FIN).flags & TCP_RST, 0);
    world.send(call, &call.last(REQUEST_LEN, 4));
    wait_for("time-wait", waiting + 1);
}

/// Returns the client's next connection from the same port, with an initial sequence number larger
/// by `by`.
pub fn later(world: &World, call: &Call, by: u32) -> Call {
    let port = call.ends.client.port();
    world.call_with(call.ends.client.is_ipv6(), port, call.isn.wrapping_add(by), USUAL)
}

/// True if no data, end of stream or reset arrives on the connection before the read timeout.
fn nothing_comes(stream: &mut TcpStream) -> bool {
    loop {
        match stream.read(&mut [0]) {
            // Interrupted by a signal, for example while the process is stopped.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        }
    }
}

#[test]
fn a_port_in_time_wait_is_free_for_a_new_connection() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        for (v6, with_timestamps) in FAMILIES.into_iter().flat_map(|v6| [(v6, false), (v6, true)]) {
            let listener = listen(v6, PORT);
            let time = |call: Call, client: u32| if with_timestamps { call.at(client, 7) } else { call };
            let first = time(world.call(v6, 40_000), 5_000);
            call_to_the_end(world, &first, &listener);
            // Without timestamps, the new connection needs larger sequence numbers than the old
            // connection in TIME_WAIT. With timestamps, a later timestamp is enough.
            let by = if with_timestamps { 0u32.wrapping_sub(1_000_000) } else { 1_000_000 };
            let second = time(later(world, &first, by), 5_001);
            let mut stream = world.open(&second, &listener);
            world.reply(&second, &mut stream, b"hello again");
            assert_eq!(sockets("time-wait"), 0);
            world.send(&second, &second.segment((1 + REQUEST_LEN, 12), TCP_RST, &[]));
            wait_for("established", 0);
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 8), (Reason::TimeWaitEvicted, 4)]);
    });
}

#[test]
fn half_closed_port_is_cleared_for_new_connection() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let listener = listen(false, PORT);
        let first = world.call(false, 40_000);
        let mut stream = world.open(&first, &listener);
        world.reply(&first, &mut stream, b"bye");
        drop(stream);
        world.receive_flags(&first, TCP_FIN);
        world.send(&first, &first.segment((1 + REQUEST_LEN, 5), TCP_ACK, &[]));
        wait_for("fin-wait-2", 1);
        let second = later(world, &first, 1_000_000);
        world.open(&second, &listener);
        assert_eq!(world.count(Reason::Accepted), 2);
    });
}

/// Sends `count` back-to-back segments of a new connection while the old socket is in TIME_WAIT.
fn burst_over(world: &World, old: &Call, listener: &TcpListener, count: u32) {
    const LEN: u32 = 1_000;
    let second = later(world, old, 1_000_000);
    let more = vec![b'm'; LEN as usize];
    // On two CPUs, the ACK of the handshake can arrive after the data.
    let ack = second.segment((1, 1), TCP_ACK, &[]);
    let end = 1 + REQUEST_LEN;
    let rest = (1..count).map(|number| second.segment((end + (number - 1) * LEN, 1), TCP_ACK, &more));
    world.send_all(&second, &[vec![second.first(REQUEST), ack], rest.collect()].concat());
    let (mut stream, _) = accept(listener, SOON).expect("a connection");
    let whole = read(&mut stream, REQUEST.len() + ((count - 1) * LEN) as usize);
    assert!(whole.starts_with(REQUEST) && whole[REQUEST.len()..].iter().all(|byte| *byte == b'm'));
    stream.write_all(b"well").unwrap();
    let received = world.receive_data(&second);
    assert_eq!(received.data, b"well", "what else is said must not be reset");
    world.send(&second, &second.segment((end + (count - 1) * LEN, 5), TCP_RST, &[]));
    wait_for("established", 0);
}

#[test]
fn a_request_of_many_segments_goes_in_whole_while_time_wait_is_cleared() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        world.receive_on_another_cpu();
        let mut cleared = 0;
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            for (round, count) in (0..30).map(|round| (round, [1, 4, 20][usize::from(round) % 3])) {
                let call = world.call(v6, 41_000 + round);
                call_to_the_end(world, &call, &listener);
                burst_over(world, &call, &listener, count);
                cleared += 1;
            }
        }
        let counts = [(Reason::Accepted, 2 * cleared), (Reason::TimeWaitEvicted, cleared)];
        assert_eq!(world.counts(), counts);
    });
}

#[test]
fn late_segment_of_old_connection_opens_no_socket() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let listener = listen(false, PORT);
        for (port, timestamps) in [(40_000, None), (40_001, Some((5_000, 7)))] {
            let call = Call { timestamps, ..world.call(false, port) };
            call_to_the_end(world, &call, &listener);
            let waiting = sockets("time-wait");
            world.send(&call, &call.first(REQUEST));
            assert!(accept(&listener, NEVER).is_none());
            assert_eq!(sockets("time-wait"), waiting);
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 2)]);
    });
}

#[test]
fn host_keeping_time_wait_is_reported_once() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        set("ipv4/tcp_rfc1337", "1");
        let listener = listen(false, PORT);
        let first = world.call(false, 40_000);
        call_to_the_end(world, &first, &listener);
        let second = later(world, &first, 1_000_000);
        world.send(&second, &second.first(REQUEST));
        assert!(accept(&listener, NEVER).is_none());
        let counts = [(Reason::Accepted, 1), (Reason::TimeWaitEvicted, 1), (Reason::NotEvicted, 1)];
        assert_eq!(world.counts(), counts);
    });
}

#[test]
fn stale_connection_is_cleared_for_new_one() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let first = world.call(v6, 40_000);
            let mut old = world.open(&first, &listener);
            world.reply(&first, &mut old, b"hello");
            let second = later(world, &first, 1_000_000);
            let mut new = world.open(&second, &listener);
            world.reply(&second, &mut new, b"hello again");
            let error = old.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            // A late copy of the first segment of the previous connection.
            world.send(&first, &first.first(REQUEST));
            assert!(accept(&listener, NEVER).is_none());
            new.set_read_timeout(Some(NEVER)).unwrap();
            assert!(nothing_comes(&mut new));
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 4), (Reason::StaleEvicted, 2)]);
    });
}

#[test]
fn a_first_segment_that_comes_again_does_no_harm() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let call = world.call(v6, 40_000);
            let mut stream = world.open(&call, &listener);
            world.send(&call, &call.first(REQUEST));
            world.reply(&call, &mut stream, b"hello");
            world.send(&call, &call.first(REQUEST));
            let at = 1 + REQUEST_LEN;
            world.send(&call, &call.segment((at, 6), TCP_ACK, b"!"));
            let mut next = [0; 2];
            assert_eq!(stream.read(&mut next).unwrap(), 1, "once, and at once behind the request");
            assert_eq!(next[0], b'!');
            assert!(accept(&listener, NEVER).is_none());
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 2)]);
    });
}

/// A server can refuse a request with a reset while the client retransmits its first segment.
#[test]
fn repeated_first_segment_after_reset_opens_no_socket() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        for v6 in FAMILIES {
            for (port, timestamps) in [(40_000, None), (40_001, Some((5_000, 7)))] {
                let listener = listen(v6, PORT);
                let call = Call { timestamps, ..world.call(v6, port) };
                let mut stream = world.open(&call, &listener);
                world.reply(&call, &mut stream, b"no");
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                drop(stream);
                world.receive_flags(&call, TCP_RST);
                wait_for("established", 0);
                world.is_reset(&call, &call.first(REQUEST), &listener);
                // The client's next connection from this port is a new connection and must be
                // accepted.
                let next = later(world, &call, 1_000_000);
                world.open(&next, &listener);
                world.send(&next, &next.segment((1 + REQUEST_LEN, 1), TCP_RST, &[]));
                wait_for("established", 0);
            }
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 8), (Reason::BadCookie, 4)]);
    });
}
