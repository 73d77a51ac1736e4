//! Encoding and decoding: a decoder accepts exactly the bytes that the encoder writes.

use core::net::{IpAddr, SocketAddr};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::super::wire::{Addresses, LEN_MAX, LEN_MIN, LccpMessage, ReadError, seal};
use super::*;
use crate::node::secret::TAG_LEN;

fn read(bytes: &[u8]) -> Result<LccpMessage, ReadError> {
    LccpMessage::read(bytes, there(), &keys())
}

#[test]
fn the_layout_is_the_documented_one() {
    assert_eq!((LEN_MIN, LEN_MAX), (174, 1_198));
    let bytes = samples(false)[4].write(there(), &keys());
    assert_eq!(bytes.len(), LEN_MIN + 18);
    assert_eq!(bytes[..12], *b"LCCP\x01\x00\x00\xc0\x00\x07\xa1\x20");
    assert_eq!(bytes[44..56], [0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0]);
    assert_eq!(bytes[56..68], [203, 0, 113, 7, 0x9c, 0x40, 192, 0, 2, 100, 0, 80]);
    assert_eq!(bytes[68..72], 1_000u32.to_be_bytes());
    assert_eq!(bytes[112..118], [0x05, 0xa8, 7, 8, 7, 0]);
    assert!(bytes[118..158].iter().all(|byte| *byte == 0));
    assert_eq!(bytes[158..176], *b"GET / HTTP/1.0\r\n\r\n");

    let bytes = samples(true)[4].write(there(), &keys());
    assert_eq!(bytes[5], 1);
    assert_eq!(bytes[56..68], [0, 0, 0, 0, 0x9c, 0x40, 0, 0, 0, 0, 443u16.to_be_bytes()[0], 187]);
    assert_eq!(bytes[118..122], [0x20, 0x01, 0x0d, 0xb8]);
    assert_eq!(bytes[149], 0, "the server's address ends before what is reserved");
}

#[test]
fn every_truncation_and_every_flipped_bit_is_refused() {
    for message in samples(false).into_iter().chain(samples(true)) {
        let bytes = message.write(there(), &keys());
        assert_eq!(read(&bytes), Ok(message.clone()));
        for len in 0..bytes.len() {
            assert_eq!(read(&bytes[..len]), Err(ReadError::Malformed), "{len} of {message:?}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped).is_err(), "bit {bit} of {message:?}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(read(&longer), Err(ReadError::Malformed));
    }
}

#[test]
fn a_message_is_good_between_its_hosts_and_with_their_secret_alone() {
    let bytes = samples(false)[4].write(there(), &keys());
    let back = Addresses { source: address(12), destination: address(11) };
    let elsewhere = Addresses { destination: address(13), ..there() };
    let spoofed = Addresses { source: address(13), ..there() };
    for addresses in [back, elsewhere, spoofed] {
        assert_eq!(LccpMessage::read(&bytes, addresses, &keys()), Err(ReadError::Forged), "{addresses:?}");
    }
    let foreign = HourlyKeys::at(&Secret::new([9; 32]), NOW_S);
    assert_eq!(LccpMessage::read(&bytes, there(), &foreign), Err(ReadError::Forged));
    let later =
        |hours| LccpMessage::read(&bytes, there(), &HourlyKeys::at(&secret(), NOW_S + hours * EPOCH_S));
    assert!(later(1).is_ok());
    assert_eq!(later(2), Err(ReadError::Key { ahead_h: -2 }));
}

/// Decodes an authentic message after this change of its bytes.
fn changed(message: &LccpMessage, change: impl FnOnce(&mut Vec<u8>)) -> Result<LccpMessage, ReadError> {
    let mut bytes = message.write(there(), &keys());
    bytes.truncate(bytes.len() - TAG_LEN);
    change(&mut bytes);
    let length = (bytes.len() + TAG_LEN) as u16;
    if let Some(place) = bytes.get_mut(6..8) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    let keys = keys();
    read(&seal(bytes, there(), keys.own().1))
}

#[test]
fn an_authentic_message_may_still_be_malformed_or_foreign() {
    let [v4, v6] = [samples(false), samples(true)];
    let set = |message: &LccpMessage, at: usize, to: u8| changed(message, |bytes| bytes[at] = to);
    let bad = [
        (set(&v4[4], 47, 0), "no such receptor"),
        (set(&v4[0], 47, 2), "a greeting is for the agent"),
        (set(&v4[4], 51, 13), "no such command"),
        (set(&v4[4], 5, 1), "addresses of the other family"),
        (set(&v6[4], 5, 0), "addresses of the other family"),
        (set(&v4[4], 5, 2), "no such flag"),
        (set(&v4[0], 55, 1), "no such component"),
        (set(&v4[0], 56, 1), "a greeting is about no connection"),
        (changed(&v4[8], |bytes| bytes[56..68].fill(0)), "which connection?"),
        (set(&v4[11], 55, 6), "no such error"),
        (set(&v4[3], 53, 1), "a route is 16 bits"),
        (set(&v4[3], 85, 0), "a server without a port"),
        (set(&v4[3], 86, 1), "behind the server"),
        (set(&v4[4], 55, 1), "between two pieces"),
        (set(&v4[4], 54, 4), "behind the last piece"),
        (set(&v4[4], 75, 0), "more was sent than is queued"),
        (changed(&v4[4], |bytes| bytes[112..114].fill(0)), "no segment size"),
        (set(&v4[4], 114, 15), "no such option"),
        (set(&v4[4], 114, 3), "a timestamp that was not agreed on"),
        (set(&v4[4], 115, 15), "a scale beyond 14"),
        (set(&v4[4], 117, 1), "behind the state"),
        (set(&v4[4], 150, 1), "behind the addresses"),
        (set(&v4[4], 108, 1), "a queue beyond the most"),
        (changed(&v4[4], |bytes| bytes.push(0)), "more than the piece"),
        (changed(&v4[4], |bytes| bytes.truncate(170)), "less than the piece"),
        (changed(&v4[8], |bytes| bytes.push(0)), "more than nothing"),
        (set(&v4[9], 113, 1), "a segment size of what is only asked for"),
        (changed(&v4[9], |bytes| bytes[68..72].fill(7)), "two places"),
        (set(&v4[10], 111, 1), "at rest, with something unread"),
        (changed(&v4[10], |bytes| bytes[112..114].fill(0)), "no segment size"),
        (set(&v4[2], 55, 11), "a path beyond the end"),
        (set(&v4[2], 55, 9), "something behind the path"),
        (changed(&v4[8], |bytes| bytes.truncate(100)), "half a header"),
    ];
    for (result, why) in bad {
        assert_eq!(result, Err(ReadError::Malformed), "{why}");
    }
    assert_eq!(set(&v4[4], 4, 9), Err(ReadError::Version(9)));
    assert_eq!(
        changed(&v4[4], |bytes| {
            bytes[4] = 2;
            bytes.truncate(44)
        }),
        Err(ReadError::Version(2))
    );
}

#[test]
fn invalid_endpoints_have_no_socket_id() {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    for (client, server) in [
        ("0.0.0.0:1", "192.0.2.1:80"),
        ("192.0.2.1:0", "192.0.2.1:80"),
        ("192.0.2.1:1", "[2001:db8::1]:80"),
        ("[2001:db8::1]:1", "[::]:80"),
    ] {
        assert_eq!(SocketId::new(at(client), at(server)), None);
    }
    let mapped = SocketId::new(at("[::ffff:192.0.2.1]:1"), at("192.0.2.2:80")).unwrap();
    assert_eq!(mapped.client(), at("192.0.2.1:1"));
    assert_eq!(ClientRequest::new(&[b'a'; 256], b"", b""), None);
    assert_eq!(ClientRequest::new(b"", &[b'A'; 256], b""), None);
    assert_eq!(ClientRequest::new(b"a", b"GET", &[b'/'; 1_021]), None);
    assert!(ClientRequest::new(b"a", b"GET", &[b'/'; 1_020]).is_some());
}

fn any_end(ipv6: bool) -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<[u8; 4]>().prop_map(IpAddr::from).boxed();
    // Global unicast addresses (RFC 4291, section 2.4), which are no mapped ones.
    let v6 = any::<[u16; 7]>().prop_map(|[a, b, c, d, e, f, g]| [0x2001, a, b, c, d, e, f, g].into()).boxed();
    let real = (if ipv6 { v6 } else { v4 }).prop_filter("an address", |ip| !ip.is_unspecified());
    (real, 1..=u16::MAX).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn any_socket() -> impl Strategy<Value = SocketId> {
    any::<bool>()
        .prop_flat_map(|ipv6| (any_end(ipv6), any_end(ipv6)))
        .prop_map(|(client, server)| SocketId::new(client, server).unwrap())
}

fn any_state() -> impl Strategy<Value = TcpState> {
    let scales = prop::option::of((0..=14u8, 0..=14u8).prop_map(|(snd, rcv)| Scales { snd, rcv }));
    let agreed = (1..=u16::MAX, scales, any::<bool>(), any::<Option<u32>>());
    let queues =
        (0..=QUEUE_MAX, 0..=QUEUE_MAX).prop_flat_map(|(send, receive)| (0..=send, Just(send), Just(receive)));
    (any::<[u32; 7]>(), agreed, queues).prop_map(
        |(numbers, (mss, scales, sack, timestamp), (sent, send_len, receive_len))| {
            let [snd_una, rcv_nxt, snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup] = numbers;
            let window = TcpWindow { snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup };
            let snd_nxt = snd_una.wrapping_add(sent);
            TcpState {
                snd_una,
                snd_nxt,
                rcv_nxt,
                mss,
                scales,
                sack,
                timestamp,
                window,
                send_len,
                receive_len,
            }
        },
    )
}

fn any_piece() -> impl Strategy<Value = Piece> {
    (any_state(), any::<u32>(), prop::collection::vec(any::<u8>(), CHUNK_LEN as usize)).prop_map(
        |(state, at, bytes)| {
            let chunks = state.queued_len().div_ceil(CHUNK_LEN).max(1);
            let offset = at % chunks * CHUNK_LEN;
            let len = (state.queued_len() - offset).min(CHUNK_LEN) as usize;
            Piece::new(state, offset, &bytes[..len]).unwrap()
        },
    )
}

fn any_content() -> impl Strategy<Value = ClientRequest> {
    let bytes = |len| prop::collection::vec(any::<u8>(), 0..=len);
    (bytes(255), bytes(255), bytes(CONTENT_MAX - 510))
        .prop_map(|(host, method, path)| ClientRequest::new(&host, &method, &path).unwrap())
}

fn any_components() -> impl Strategy<Value = Components> {
    prop::sample::subsequence(Receptor::ALL.to_vec(), 0..=4).prop_map(|some| Components::new(&some))
}

fn any_body() -> impl Strategy<Value = MessageBody> {
    let server = || any::<bool>().prop_flat_map(any_end);
    let code = prop::sample::select(ErrorCode::ALL.to_vec());
    prop_oneof![
        any_components().prop_map(|components| MessageBody::Init { components }),
        any_components().prop_map(|components| MessageBody::InitAck { components }),
        (any_socket(), any_content())
            .prop_map(|(socket, content)| MessageBody::DispatchRequest { socket, content }),
        (any_socket(), any::<u16>(), server())
            .prop_map(|(socket, route, server)| MessageBody::DispatchReply { socket, route, server }),
        (any_socket(), any_piece()).prop_map(|(socket, piece)| MessageBody::Handoff { socket, piece }),
        (any_socket(), any::<u32>())
            .prop_map(|(socket, missing)| MessageBody::HandoffAck { socket, missing }),
        (any_socket(), server()).prop_map(|(socket, server)| MessageBody::Forward { socket, server }),
        any_socket().prop_map(|socket| MessageBody::ForwardAck { socket }),
        any_socket().prop_map(|socket| MessageBody::Close { socket }),
        (any_socket(), any::<u32>(), any::<u32>())
            .prop_map(|(socket, rcv_nxt, snd_nxt)| MessageBody::Release { socket, rcv_nxt, snd_nxt }),
        (any_socket(), any_state()).prop_map(|(socket, state)| {
            let state = TcpState { snd_una: state.snd_nxt, send_len: 0, receive_len: 0, ..state };
            MessageBody::Released { socket, state }
        }),
        (prop::option::of(any_socket()), code).prop_map(|(socket, code)| MessageBody::Error { socket, code }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn messages_round_trip(
        body in any_body(), numbers in any::<[u64; 4]>(), at in 0..4usize, ends in any::<[[u8; 16]; 2]>(), v6: bool,
    ) {
        let first = matches!(body, MessageBody::Init { .. } | MessageBody::InitAck { .. });
        let message = LccpMessage {
            numbers: Numbers { incarnation: numbers[0], sequence: numbers[1] },
            echo: Numbers { incarnation: numbers[2], sequence: numbers[3] },
            receptor: if first { Receptor::Agent } else { Receptor::ALL[at] },
            body,
        };
        let [source, destination] = ends.map(IpAddr::from);
        let addresses = if v6 { Addresses { source, destination } } else { there() };
        let bytes = message.write(addresses, &keys());
        prop_assert!((LEN_MIN..=LEN_MAX).contains(&bytes.len()));
        prop_assert_eq!(LccpMessage::read(&bytes, addresses, &keys()), Ok(message));
    }

    #[test]
    fn authentic_random_bytes_round_trip_or_fail(
        body in any_body(), changes in prop::collection::vec((44usize..200, any::<u8>()), 1..4),
    ) {
        let first = matches!(body, MessageBody::Init { .. } | MessageBody::InitAck { .. });
        let receptor = if first { Receptor::Agent } else { Receptor::Dispatcher };
        let keys = keys();
        let mut bytes = message(receptor, body).write(there(), &keys);
        bytes.truncate(bytes.len() - TAG_LEN);
        for (at, to) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = to;
            }
        }
        let bytes = seal(bytes, there(), keys.own().1);
        if let Ok(message) = read(&bytes) {
            prop_assert_eq!(message.write(there(), &keys), bytes);
        }
    }
}
