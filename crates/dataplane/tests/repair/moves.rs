//! Connections that move between hosts while both directions carry data.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use evener_dataplane::repair::save;

use crate::farm::{Farm, data, drop_resets, finish, pass};
use crate::skipped;

const LEN: usize = 1 << 20;
const ROUNDS: usize = 100;

/// Sends a megabyte each way in a hundred pieces, with a move between two pieces: with nothing in
/// flight, with an unread request, or, more rarely, with an unacknowledged response. The last case
/// waits for the kernel's retransmission.
fn a_hundred_moves(v6: bool) {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(v6);
    let (client, mut server) = farm.connection();
    let ([questions, answers], piece) = ([1, 2].map(|seed| data(LEN, seed)), LEN.div_ceil(ROUNDS));
    for (round, (question, answer)) in questions.chunks(piece).zip(answers.chunks(piece)).enumerate() {
        let there = (round + 1) % 2;
        let mut read = vec![0; question.len()];
        (&client).write_all(question).unwrap();
        if round % 3 == 0 {
            (&server).read_exact(&mut read).unwrap();
            pass(&server, &client, answer);
            server = farm.give(server, &[], there);
        } else if round % 25 == 1 {
            (&server).read_exact(&mut read[..7]).unwrap();
            farm.hold();
            (&server).write_all(answer).unwrap();
            server = farm.give(server, &question[..7], there);
            (&server).read_exact(&mut read).unwrap();
            let mut received = vec![0; answer.len()];
            (&client).read_exact(&mut received).unwrap();
            assert!(received == answer, "the answer of round {round}");
        } else {
            server = farm.give(server, &[], there);
            (&server).read_exact(&mut read).unwrap();
            pass(&server, &client, answer);
        }
        assert!(read == question, "the question of round {round}");
    }
    finish(client, server);
}

#[test]
fn a_connection_is_moved_a_hundred_times_over_ipv4() {
    a_hundred_moves(false);
}

#[test]
fn a_connection_is_moved_a_hundred_times_over_ipv6() {
    a_hundred_moves(true);
}

/// Receives and sends whatever is possible without a long wait. Returns the number of bytes sent.
fn serve(mut server: &TcpStream, received: &mut Vec<u8>, mut to_send: &[u8]) -> usize {
    let mut buffer = [0; 1 << 14];
    server.set_nonblocking(true).unwrap();
    let mut sent = 0;
    for _ in 0..4 {
        match server.read(&mut buffer) {
            Ok(len) => received.extend_from_slice(&buffer[..len]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        match server.write(&to_send[..to_send.len().min(1 << 14)]) {
            Ok(len) => {
                sent += len;
                to_send = &to_send[len..];
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    server.set_nonblocking(false).unwrap();
    thread::sleep(Duration::from_micros(200));
    sent
}

/// The client sends and receives at full speed while the server's end moves.
fn moves_in_full_flow(farm: &Farm, give: impl Fn(TcpStream, usize) -> TcpStream) {
    let (client, server) = farm.connection();
    drop_resets(&client);
    let [up, down] = [3, 4].map(|seed| data(LEN, seed));
    let server = thread::scope(|scope| {
        let mut server = server;
        scope.spawn(|| (&client).write_all(&up).unwrap());
        let received = scope.spawn(|| {
            let mut received = vec![0; LEN];
            (&client).read_exact(&mut received).unwrap();
            received
        });
        let (mut uploaded, mut sent, mut moves) = (Vec::new(), 0, 0);
        while uploaded.len() < LEN || sent < LEN {
            sent += serve(&server, &mut uploaded, &down[sent..]);
            if moves < 4 && uploaded.len().max(sent) > (moves + 1) * LEN / 6 {
                moves += 1;
                server = give(server, moves % 2);
            }
        }
        assert_eq!(moves, 4);
        assert!(uploaded == up, "what the client sent");
        assert!(received.join().unwrap() == down, "what the server sent");
        server
    });
    finish(client, server);
}

#[test]
fn a_connection_is_moved_in_full_flow() {
    for v6 in [false, true] {
        if skipped() {
            return;
        }
        let farm = Farm::set_up(v6);
        moves_in_full_flow(&farm, |server, there| farm.give(server, &[], there));
    }
}

#[test]
fn busy_connection_is_repaired_without_loss() {
    for v6 in [false, true] {
        if skipped() {
            return;
        }
        let farm = Farm::set_up(v6);
        moves_in_full_flow(&farm, |server, there| farm.restore(&save(server, &[]).unwrap(), there));
    }
}

#[test]
fn a_connection_with_few_options_is_moved_in_full_flow() {
    for setting in ["tcp_timestamps", "tcp_window_scaling", "tcp_sack"] {
        if skipped() {
            return;
        }
        let farm = Farm::set_up(false);
        farm.set(setting, "0");
        moves_in_full_flow(&farm, |server, there| farm.give(server, &[], there));
    }
}

#[test]
fn client_fin_after_move_reaches_server() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client, server) = farm.connection();
    let mut server = farm.give(server, &[], 1);
    (&client).write_all(b"the last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"the last words");
    drop(server);
    assert_eq!((&client).read(&mut [0; 8]).unwrap(), 0);
}
