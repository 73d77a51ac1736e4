//! No bytes are too odd for who reads requests of a group's clients, and whoever is sent on is sent
//! below the member's URL.
#![no_main]

use evener_core::net::http::{Frame, Reading, Status, host_of, normal_path, read, redirect};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Reading::Request(request) = read(bytes) else { return };
    assert!(request.len <= bytes.len() && host_of(request.host).is_ok());
    let _ = normal_path(request.target);
    let frame = Frame { date: "", is_head: request.method == "HEAD", closes: false, says_kept: request.is_old };
    let mut out = Vec::new();
    redirect(&mut out, &frame, Status::Found.keeping(request.method), "http://m1", request.target);
    let text = String::from_utf8(out).expect("all of it is ASCII");
    let mut locations = text.lines().filter_map(|line| line.strip_prefix("Location: http://m1/"));
    assert!(locations.next().is_some_and(|rest| !rest.starts_with(['/', '\\'])) && locations.next().is_none());
});
