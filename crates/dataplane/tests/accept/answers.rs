//! HTTP responses of all kinds: the programs must know when a response is complete, or report
//! doubt.

use std::net::{Shutdown, TcpListener};

use evener_core::net::wire::{TCP_ACK, TCP_FIN, TCP_RST};

use crate::talk::{ANSWER, GET, OTHER, Seen, Talk, where_turns_are_followed};
use crate::world::{FAMILIES, PORT, World, listen};

/// Responses with a known length. Each response is a list of the writes that send it.
const PLAIN: [&[&str]; 22] = [
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "hello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", "l", "lo"],
    &["HTTP/1.1 200 OK\r\ncontent-length:5\r\nx: y\r\n\r\nhello"],
    &["HTTP/1.1 404 Not Found\r\nServer: x\r\nCONTENT-LENGTH: \t 0\r\n\r\n"],
    &["HTTP/1.1 503 \r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nX-Content-Length: 9\r\nContent-Length: 00002\r\nContent-Lengthy: 7\r\n\r\nxy"],
    &["HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n"],
    &["HTTP/1.1 304 Not Modified\r\nContent-Length: 5000\r\nETag: \"x\"\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\ntransfer-encoding:chunked\r\n\r\n", "0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\n", "hello", "\r\n", "0\r\n", "\r\n"],
    &[
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r",
        "\n",
        "1",
        "0\r\n0123456789abcdef\r\n",
        "0",
        "\r",
        "\n",
        "\r",
        "\n",
    ],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n0\r\n", "\r\nab\r\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\na0\r\n\r\n", "\r\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "\r\nhello"],
    &["H", "TTP/1.", "1 200 OK\r", "\n", "Content-", "Length: 5\r\n", "\r\n", "hello"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r", "\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r", "\n", "0", "\r\n", "\r", "\n"],
    &["HTTP/1.1 200 OK\r\nConnection: Keep-Alive, x\r\nContent-Length: 1\r\nDate: close\r\n\r\n."],
];

/// Responses whose length the programs cannot know for certain.
const DOUBTFUL: [&[&str]; 26] = [
    &["HTTP/1.1 200 OK\r\nServer: x\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551621\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "hello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\nconnection: x, Close\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n folded\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "more"],
    &["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"],
    &["HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"],
    &["HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "\nhello"],
    &["HTTP/1.1 200 OK\r\n", "Content-Length: 5\r\n", "Content-Length: 5\r\n\r\n", "hello"],
    &["HTT", "P/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
    &["HTTp"],
    &["\x16\x03\x03\x00\x04abcd"],
    &["hello"],
];

fn begin<'a>(world: &'a World, listener: &TcpListener, v6: bool, number: usize) -> Talk<'a> {
    let talk = Talk::begin(world, listener, world.call(v6, 40_000 + number as u16), GET);
    assert_eq!(talk.seen(), Seen::Busy, "nothing was said yet");
    talk
}

#[test]
fn a_connection_rests_when_the_answer_is_whole() {
    where_turns_are_followed(|world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            for (number, parts) in PLAIN.iter().enumerate() {
                let mut talk = begin(world, &listener, v6, number);
                for turn in 0..2 {
                    for (at, part) in parts.iter().enumerate() {
                        assert_eq!(talk.seen(), Seen::Busy, "{parts:?}, before {at}, in turn {turn}");
                        talk.send(part.as_bytes());
                        talk.acknowledge();
                    }
                    assert_eq!(talk.seen(), Seen::Idle, "{parts:?}, in turn {turn}");
                    talk.send_request(OTHER);
                }
                assert_eq!(talk.seen(), Seen::Busy, "{parts:?}, asked again");
            }
        }
    });
}

#[test]
fn unclear_exchange_never_rests() {
    where_turns_are_followed(|world| {
        let listener = listen(false, PORT);
        let heads = ["HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: ", &"x".repeat(2_100), "\r\n\r\nhello"];
        let huge = heads.concat();
        for (number, parts) in DOUBTFUL.iter().copied().chain([[huge.as_str()].as_slice()]).enumerate() {
            let mut talk = begin(world, &listener, false, number);
            for part in parts {
                talk.send(part.as_bytes());
            }
            assert_eq!(talk.seen(), Seen::Unclear, "{parts:?}");
            // A connection stays unclear, even after a plain request and response.
            talk.send_request(OTHER);
            talk.send(ANSWER);
            assert_eq!(talk.seen(), Seen::Unclear, "{parts:?}");
        }
    });
}

#[test]
fn a_long_head_is_read_as_far_as_most_are() {
    where_turns_are_followed(|world| {
        let listener = listen(false, PORT);
        let mut talk = begin(world, &listener, false, 0);
        let head =
            ["HTTP/1.1 200 OK\r\nX: ", &"x".repeat(1_900), "\r\nContent-Length: 5000\r\n\r\n"].concat();
        talk.send(&[head.as_bytes(), &[b'x'; 5_000]].concat());
        assert_eq!(talk.seen(), Seen::Idle);
    });
}

#[test]
fn connection_rests_only_when_all_is_sent() {
    where_turns_are_followed(|world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let heads = ["Content-Length: 20005\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n4e20\r\n"];
            let ends: [&[u8]; 2] = [b"hello", b"\r\n0\r\n\r\n"];
            for (port, (head, end)) in (40_000..).zip(heads.into_iter().zip(ends)) {
                let mut talk = Talk::begin(world, &listener, world.call(v6, port), GET);
                // Sends more than the congestion window holds before the first acknowledgment.
                talk.send(&[b"HTTP/1.1 200 OK\r\n".as_slice(), head.as_bytes(), &[b'x'; 20_000]].concat());
                assert_eq!(talk.seen(), Seen::Busy);
                talk.receive_rest();
                assert_eq!(talk.seen(), Seen::Busy);
                talk.send(end);
                talk.receive_rest();
                assert_eq!(talk.seen(), Seen::Idle);
            }
        }
    });
}

#[test]
fn closed_connection_is_gone() {
    where_turns_are_followed(|world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let idle = |number| {
                let mut talk = begin(world, &listener, v6, number);
                talk.send(ANSWER);
                assert_eq!(talk.seen(), Seen::Idle);
                talk
            };
            let talk = idle(0);
            talk.stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(talk.seen(), Seen::Gone);
            for (number, flags) in [(1, TCP_ACK | TCP_FIN), (2, TCP_RST)] {
                let talk = idle(number);
                let at = (1 + talk.sent, 1 + talk.sequence);
                world.send(&talk.call, &talk.call.segment(at, flags, &[]));
                talk.comes_to(Seen::Gone);
            }
            let connections = world.server.connections().unwrap();
            let nobody = world.call(v6, 50_000).ends;
            let look = connections.state(nobody.client, nobody.service).unwrap();
            assert_eq!(look, evener_dataplane::server::ConnectionState::Gone);
        }
    });
}
