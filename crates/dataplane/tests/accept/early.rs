//! Segments that arrive before the first data segment. The host's stack knows no connection for
//! them yet and would reset it.

use std::thread;
use std::time::Duration;

use evener_core::net::wire::{TCP_ACK, TCP_FIN, TCP_RST};
use evener_dataplane::server::{AttachPoints, Reason};

use crate::hosts::{NEVER, SOON};
use crate::skipped;
use crate::world::{FAMILIES, PORT, REQUEST, World, accept, listen, on_a_server, read};

/// The delay before a reset is sent, plus a margin.
const PATIENCE: Duration = Duration::from_millis(3_100);

/// Runs `work` on a server whose programs delay resets.
fn on_a_patient_server(work: impl FnOnce(&mut World) + Send) {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let at = [world.ifindex];
        let places = AttachPoints { accept: at.into(), answers: at.into(), ..AttachPoints::default() };
        world.server.apply(&world.tables(Some(PORT)), &places).unwrap();
        work(world);
    });
}

#[test]
fn segment_before_first_is_not_reset() {
    on_a_patient_server(|world| {
        let end = 1 + REQUEST.len() as u32;
        for v6 in FAMILIES {
            let listener = listen(v6, PORT);
            let call = world.call(v6, 40_000);
            let overtaking = [
                call.segment((end, 1), TCP_ACK, b"more"),
                call.segment((end, 1), TCP_ACK | TCP_FIN, &[]),
                call.segment((1, 1), TCP_ACK, &[]),
            ];
            for segment in overtaking {
                world.send(&call, &segment);
                assert_eq!(world.receive(&call, NEVER), None);
            }
            world.send(&call, &call.first(REQUEST));
            let (mut stream, _) = accept(&listener, SOON).expect("a connection");
            assert_eq!(read(&mut stream, REQUEST.len()), REQUEST);
            world.reply(&call, &mut stream, b"well");
        }
        assert_eq!(world.count(Reason::ResetDelayed), 6);
    });
}

#[test]
fn repeated_unmatched_segment_is_reset() {
    on_a_patient_server(|world| {
        let listeners = FAMILIES.map(|v6| listen(v6, PORT));
        let stray = |v6| {
            let call = world.call(v6, 40_000);
            (call, call.segment((1_000, 1), TCP_ACK, b"more"))
        };
        for (call, segment) in FAMILIES.map(stray) {
            world.send(&call, &segment);
            assert_eq!(world.receive(&call, NEVER), None);
        }
        thread::sleep(PATIENCE);
        for ((call, segment), listener) in FAMILIES.map(stray).into_iter().zip(&listeners) {
            world.is_reset(&call, &segment, listener);
        }
        // A close with unread data resets the connection without delay.
        let call = world.call(false, 40_001);
        world.send(&call, &call.first(REQUEST));
        drop(accept(&listeners[0], SOON).expect("a connection"));
        assert_eq!(world.receive_flags(&call, TCP_RST).flags & TCP_ACK, TCP_ACK);
        assert_eq!(world.count(Reason::ResetDelayed), 2);
    });
}
