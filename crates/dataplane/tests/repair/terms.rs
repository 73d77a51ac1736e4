//! Options agreed in the handshake, which a restored socket must keep.

use std::thread;
use std::time::{Duration, Instant};

use evener_dataplane::repair::{AgreedOptions, save};
use socket2::SockRef;

use crate::farm::{Farm, finish, pass};
use crate::skipped;

/// Saves and restores a connection twice, with these sysctls. Returns the agreed options of both
/// saves.
fn terms(v6: bool, settings: &[(&str, &str)]) -> [AgreedOptions; 2] {
    let farm = Farm::set_up(v6);
    for (setting, value) in settings {
        farm.set(setting, value);
    }
    let (client, server) = farm.connection();
    pass(&client, &server, b"a question");
    let before = SockRef::from(&server).tcp_mss().unwrap();
    farm.hold();
    let first = save(server, &[]).unwrap();
    let server = farm.restore(&first, 1);
    assert_eq!(SockRef::from(&server).tcp_mss().unwrap(), before, "segments are as long as before");
    farm.hold();
    let second = save(server, &[]).unwrap();
    assert_eq!((first.receive_next, first.send_next), (second.receive_next, second.send_next));
    assert_eq!(first.window, second.window);
    let server = farm.restore(&second, 0);
    finish(client, server);
    [first.terms, second.terms]
}

#[test]
fn the_terms_are_those_of_the_handshake() {
    if skipped() {
        return;
    }
    for (v6, mss) in [(false, 1460), (true, 1440)] {
        let [first, second] = terms(v6, &[]);
        assert_eq!((first.mss, first.sack), (mss, true));
        assert!(first.window_scales.is_some_and(|(send, receive)| send > 0 && receive > 0));
        let (before, after) = (first.timestamp.unwrap(), second.timestamp.unwrap());
        assert!(after.wrapping_sub(before) < 1 << 31, "our clock never goes back");
        assert_eq!(AgreedOptions { timestamp: first.timestamp, ..second }, first);
    }
}

/// Since Linux 6.7, the lowest bit of TCP_TIMESTAMP has a second meaning.
#[test]
fn restored_timestamp_clock_runs_by_milliseconds() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up(false);
    let (client, server) = farm.connection();
    pass(&client, &server, b"a question");
    farm.hold();
    let mut saved = save(server, &[]).unwrap();
    let odd = saved.terms.timestamp.unwrap() | 1;
    saved.terms.timestamp = Some(odd);
    let started = Instant::now();
    let server = farm.restore(&saved, 1);
    // 20 ticks with a clock in milliseconds, but 20,000 with a clock in microseconds.
    thread::sleep(Duration::from_millis(20));
    farm.hold();
    let again = save(server, &[]).unwrap();
    let since = again.terms.timestamp.unwrap().wrapping_sub(odd);
    assert!((20..started.elapsed().as_millis() as u32 + 8).contains(&since), "{since}");
    finish(client, farm.restore(&again, 0));
}

#[test]
fn options_not_negotiated_are_not_used() {
    if skipped() {
        return;
    }
    let off = [("tcp_timestamps", "0"), ("tcp_sack", "0"), ("tcp_window_scaling", "0")];
    let [first, second] = terms(false, &off);
    assert_eq!((first.timestamp, first.sack, first.window_scales), (None, false, None));
    // The announced window is not scaled either, whatever scale this host would have chosen.
    assert_eq!(second.window_scales.unwrap_or_default(), (0, 0));
    assert_eq!((second.timestamp, second.sack), (None, false));
}
