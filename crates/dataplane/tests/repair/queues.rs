//! The saved and restored parts of a connection's queues.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use evener_dataplane::repair::{AgreedOptions, Saved, Window, replay, save};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBufForce, SndBufForce};
use socket2::SockRef;

use crate::farm::{Farm, data, drop_resets, finish, pass};
use crate::skipped;

/// Waits until `done` returns true. Fails after some time.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("in vain: {what}");
}

/// Returns the number of readable bytes, up to `most`. A socket with a timeout does not restart
/// interrupted calls (signal(7)).
fn arrived(socket: &TcpStream, most: usize) -> usize {
    match socket.peek(&mut vec![0; most]) {
        Err(error) if error.kind() == ErrorKind::Interrupted => 0,
        arrived => arrived.unwrap(),
    }
}

#[test]
fn unread_bytes_are_saved_after_read_ones() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client, mut server) = farm.connection();
    let request = b"GET /img/1 HTTP/1.1\r\nHost: img.example.com\r\n\r\n";
    (&client).write_all(request).unwrap();
    until("the request", || arrived(&server, request.len()) == request.len());
    let mut head = [0; 20];
    server.read_exact(&mut head).unwrap();
    farm.hold();
    let saved = save(server, &head).unwrap();
    assert_eq!(saved.unread, request);
    assert_eq!((saved.unacked.len(), saved.unsent), (0, 0));
    assert_eq!(saved.client, client.local_addr().unwrap());
    assert_eq!(saved.service, farm.service());
    let [packet] = replay(&saved, saved.terms.mss).try_into().unwrap();
    assert!(packet.ends_with(request));
    let mut server = farm.restore(&saved, 0);
    let mut read = vec![0; request.len()];
    server.read_exact(&mut read).unwrap();
    assert_eq!(read, request, "all of it, from its first byte on");
    finish(client, server);
}

#[test]
fn long_queues_are_moved_whole() {
    if skipped() {
        return;
    }
    const LEN: usize = 3 << 20;
    let farm = Farm::set_up(false);
    // Limit of automatic buffer growth.
    farm.set("tcp_rmem", "4096 65536 262144");
    setsockopt(&farm.listener, RcvBufForce, &(4 * LEN)).unwrap();
    setsockopt(&farm.listener, SndBufForce, &(2 * LEN)).unwrap();
    let (client, server) = farm.connection();
    let [question, answer] = [5, 6].map(|seed| data(LEN, seed));
    (&client).write_all(&question).unwrap();
    until("the question", || arrived(&server, LEN) == LEN);
    // The client reads nothing yet, so most of the response finds no room there.
    (&server).write_all(&answer).unwrap();
    farm.hold();
    let saved = save(server, &[]).unwrap();
    assert!(saved.unread == question);
    assert!(answer.ends_with(&saved.unacked));
    assert!(0 < saved.unsent && saved.unsent <= saved.unacked.len());
    let mut server = farm.restore(&saved, 1);
    let mut received = vec![0; LEN];
    server.read_exact(&mut received).unwrap();
    assert!(received == question);
    (&client).read_exact(&mut received).unwrap();
    assert!(received == answer);
    finish(client, server);
}

/// Reading a long queue takes long. The client must be held meanwhile, because further segments
/// would change the connection's state.
#[test]
fn a_client_that_goes_on_sending_is_held_while_its_connection_is_read() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    setsockopt(&farm.listener, RcvBufForce, &(64 << 20)).unwrap();
    let (client, server) = farm.connection();
    drop_resets(&client);
    let (piece, moved) = (data(1000, 9), AtomicBool::new(false));
    let (mut server, pieces) = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let send = || (&client).write_all(&piece).unwrap();
            std::iter::repeat_with(send).take_while(|()| !moved.load(Relaxed)).count() + 1
        });
        let mut server = server;
        for round in 1..=6 {
            let long = (1 << 20) + (round << 18);
            until("a long queue", || arrived(&server, long) == long);
            let saved = save(server, &[]).inspect_err(|_| moved.store(true, Relaxed));
            server = farm.restore(&saved.unwrap(), round % 2);
        }
        moved.store(true, Relaxed);
        (server, sender.join().unwrap())
    });
    let mut received = vec![0; pieces * piece.len()];
    server.read_exact(&mut received).unwrap();
    assert!(received == piece.repeat(pieces));
    finish(client, server);
}

#[test]
fn an_answer_that_was_lost_is_sent_again_by_the_other_host() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(true);
    let (client, server) = farm.connection();
    // The acknowledgment is lost, so the server still considers the response unacknowledged.
    farm.hold();
    let answer = data(5000, 7);
    (&server).write_all(&answer).unwrap();
    let saved = save(server, &[]).unwrap();
    assert_eq!((saved.unacked == answer, saved.unsent), (true, 0));
    let server = farm.restore(&saved, 1);
    let mut received = vec![0; answer.len()];
    (&client).read_exact(&mut received).unwrap();
    assert!(received == answer);
    finish(client, server);
}

#[test]
fn sequence_numbers_that_begin_anew_within_a_queue_are_kept() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client_next, server_next) = (u32::MAX - 10, u32::MAX - 20);
    // Creates both ends by restoring them: a handshake would choose random sequence numbers.
    let half = |client, service, receive_next: u32, send_next| Saved {
        client,
        service,
        receive_next,
        send_next,
        unacked: vec![],
        unsent: 0,
        unread: vec![],
        terms: AgreedOptions {
            mss: 1460,
            window_scales: Some((7, 7)),
            sack: true,
            timestamp: Some(u32::MAX - 1),
        },
        window: Window {
            send_update: receive_next,
            send: 60_000,
            send_max: 60_000,
            receive: 60_000,
            receive_update: receive_next,
        },
    };
    let there = half(farm.service(), farm.client_address(), server_next, client_next);
    let here = half(farm.client_address(), farm.service(), client_next, server_next);
    let client = farm.client.enter(|| evener_dataplane::repair::restore(&there).unwrap());
    let server = farm.restore(&here, 0);
    let question = data(100, 8);
    (&client).write_all(&question).unwrap();
    until("the question", || arrived(&server, 100) == 100);
    farm.hold();
    (&server).write_all(&question).unwrap();
    let saved = save(server, &[]).unwrap();
    assert_eq!(saved.receive_next, client_next.wrapping_add(100));
    assert_eq!(saved.send_next, server_next.wrapping_add(100));
    assert!(saved.unread == question && saved.unacked == question);
    let mut server = farm.restore(&saved, 1);
    let mut received = vec![0; 100];
    server.read_exact(&mut received).unwrap();
    assert!(received == question);
    (&client).read_exact(&mut received).unwrap();
    assert!(received == question);
    pass(&server, &client, &question);
    finish(client, server);
}

#[test]
fn a_listener_can_be_started_beside_a_connection_that_came() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client, server) = farm.connection();
    let server = farm.give(server, &[], 1);
    assert!(SockRef::from(&server).reuse_address().unwrap());
    let listener = farm.server(1).enter(|| TcpListener::bind(farm.service()).unwrap());
    let (second_client, second_server) = farm.connection_to(farm.service(), &listener);
    finish(second_client, second_server);
    finish(client, server);
}

#[test]
fn a_client_at_a_mapped_address_is_one_of_ipv4() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let listener = farm.server(0).enter(|| TcpListener::bind("[::]:8080").unwrap());
    let service = SocketAddr::new(farm.service().ip(), 8080);
    let (client, server) = farm.connection_to(service, &listener);
    assert!(server.peer_addr().unwrap().is_ipv6());
    farm.hold();
    let saved = save(server, &[]).unwrap();
    assert_eq!((saved.client, saved.service), (client.local_addr().unwrap(), service));
    finish(client, farm.restore(&saved, 1));
}
