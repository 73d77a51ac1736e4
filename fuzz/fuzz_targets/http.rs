//! No bytes are too odd for who reads requests of a group's clients, and whoever is sent on is sent
//! below the member's URL.
#![no_main]

use evener_core::net::http::{HeadParse, RedirectStatus, Response, host_of, normal_path, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let HeadParse::Request(request) = read(bytes) else { return };
    assert!(request.len <= bytes.len() && host_of(request.host).is_ok());
    let _ = normal_path(request.target);
    let status = RedirectStatus::Found.keeping(request.method);
    let response = Response::redirect(status, "http://m1", request.target);
    let mut locations = response.fields.iter().filter(|(name, _)| *name == "Location");
    let rest = locations.next().and_then(|(_, to)| to.strip_prefix("http://m1/"));
    assert!(rest.is_some_and(|rest| rest.is_ascii() && !rest.starts_with(['/', '\\'])));
    assert!(locations.next().is_none());
});
