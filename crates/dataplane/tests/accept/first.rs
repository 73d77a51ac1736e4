//! First data segments, and segments that resemble them.

use std::io::{Read, Write};

use evener_core::net::wire::{TCP_ACK, TCP_FIN, TCP_RST};
use evener_core::path::cookie::Keys;
use evener_dataplane::server::Reason;

use crate::call::{Call, Offered};
use crate::hosts::NEVER;
use crate::skipped;
use crate::world::{FAMILIES, PORT, REQUEST, accept, knowledge, listen, on_a_server, sockets, wait_for};

#[test]
fn a_first_segment_becomes_a_connection() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let call = world.call(v6, 40_000);
            let mut stream = world.open(&call, &listener);
            world.reply(&call, &mut stream, b"hello");
            // The stack handles the client's later segments without the programs, until the
            // connection ends.
            let at = 1 + REQUEST.len() as u32;
            world.send(&call, &call.segment((at, 6), TCP_ACK, b"more"));
            let mut more = [0; 4];
            stream.read_exact(&mut more).unwrap();
            assert_eq!(&more, b"more");
            world.send(&call, &call.segment((at + 4, 6), TCP_ACK | TCP_FIN, &[]));
            assert_eq!(stream.read(&mut more).unwrap(), 0);
            drop(stream);
            assert_eq!(world.receive_flags(&call, TCP_FIN).seq, 6);
            assert!(accept(&listener, NEVER).is_none(), "one connection");
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 2)]);
    });
}

#[test]
fn accepted_connection_has_negotiated_options() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let largest = if v6 { 1440 } else { 1460 };
            let least = if v6 { 1220 } else { 536 };
            for (number, (mss, scale, timestamps)) in [
                (9000, Some(9), true),
                (9000, Some(9), false),
                (9000, Some(0), true),
                (9000, Some(14), false),
                (1300, None, true),
                (100, None, false),
            ]
            .into_iter()
            .enumerate()
            {
                let port = 41_000 + number as u16;
                let mut call = world.call_with(v6, port, 77, Offered { mss, scale });
                if timestamps {
                    call = call.at(5_000, 900);
                }
                let mut stream = world.open(&call, &listener);
                let known = knowledge();
                let has = |word: &str| known.split_whitespace().any(|there| there == word);
                assert_eq!(has("ts"), timestamps, "{known}");
                assert_eq!(has("sack"), scale.is_some(), "{known}");
                let scales = scale.map(|scale| format!("wscale:{scale},7"));
                assert_eq!(scales.is_some(), known.contains("wscale:"), "{known}");
                assert!(scales.is_none_or(|scales| has(&scales)), "{known}");
                let mss = match mss {
                    9000 => largest,
                    100 => least,
                    other => other,
                };
                let option = if timestamps { 12 } else { 0 };
                assert!(has(&format!("mss:{}", mss - option)), "{known}");

                stream.write_all(b"hello").unwrap();
                let received = world.receive_data(&call);
                let since = |server: u32| server.wrapping_sub(call.clock.wrapping_add(900));
                let clock = received.timestamps.map(|(server, client)| (since(server), client));
                // The server's timestamps continue the director's, in milliseconds.
                assert!(
                    clock.is_none_or(|(since, client)| since < 60_000 && client == 5_000),
                    "{received:?}"
                );
                assert_eq!(clock.is_some(), timestamps);
                world.send(&call, &call.segment((1 + REQUEST.len() as u32, 6), TCP_RST | TCP_ACK, &[]));
                wait_for("established", 0);
            }
        }
    });
}

#[test]
fn segment_without_director_cookie_is_reset() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let call = world.call(v6, 40_000);
            let forged = [1, 1 << 8, 1 << 31].map(|bit| Call { cookie: call.cookie ^ bit, ..call });
            for call in forged {
                world.is_reset(&call, &call.first(REQUEST), &listener);
            }
            // A valid cookie with the address of another client.
            let other = Call { ends: world.call(v6, 40_001).ends, ..call };
            world.is_reset(&other, &other.first(REQUEST), &listener);
            // Sequence or acknowledgment numbers from the middle of a connection.
            world.is_reset(&call, &call.segment((1_000, 1), TCP_ACK, REQUEST), &listener);
            world.is_reset(&call, &call.segment((1, 1_000), TCP_ACK, REQUEST), &listener);
            assert_eq!(world.count(Reason::BadCookie), 6 * (1 + u64::from(v6)));
            // A segment without data opens no connection: only the stack handles it.
            world.is_reset(&call, &call.segment((1, 1), TCP_ACK, &[]), &listener);
            world.is_reset(&call, &call.segment((1, 1), TCP_ACK | TCP_FIN, &[]), &listener);
            world.send(&call, &call.segment((1, 1), TCP_ACK | TCP_RST, REQUEST));
            assert_eq!(world.receive(&call, NEVER), None);
            assert!(accept(&listener, NEVER).is_none());
        }
        assert_eq!(world.counts(), [(Reason::BadCookie, 12)]);
    });
}

#[test]
fn a_cookie_is_believed_as_long_as_its_key_is_there() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let listener = listen(false, PORT);
        let call = world.call(false, 40_000);
        world.believe(&Keys::NONE);
        world.is_reset(&call, &call.first(REQUEST), &listener);
        // A cookie made with an all-zero key, which any client could make.
        world.is_reset(&call, &Call { cookie: 0, ..call }.first(REQUEST), &listener);
        assert_eq!(world.counts(), [(Reason::BadCookie, 2)]);
        world.believe(&world.keys);
        world.open(&call, &listener);
    });
}

#[test]
fn other_services_and_broken_frames_are_left_to_the_stack() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let listener = listen(false, PORT);
        let call = world.call(false, 40_000);
        // The stack drops a segment with a wrong checksum before a socket is created.
        let mut broken = call.first(REQUEST);
        *broken.last_mut().unwrap() ^= 1;
        world.send(&call, &broken);
        assert_eq!(world.receive(&call, NEVER), None);
        assert!(accept(&listener, NEVER).is_none());
        assert_eq!(sockets("established"), 0);

        world.serve(None);
        world.is_reset(&call, &call.first(REQUEST), &listener);
        world.serve(Some(PORT));
        world.open(&call, &listener);
    });
}
