//! The numbers of the headers that C and Rust share. Here they come from the headers: one that Rust
//! doesn't use fails the build, as does one that C lacks.

/// Of `bpf/abi.h`.
#[deny(dead_code)]
#[allow(unused_parens)]
pub(crate) mod abi {
    include!(concat!(env!("OUT_DIR"), "/abi.rs"));
}

/// Of `bpf/server/server.h`.
#[deny(dead_code)]
pub(crate) mod server {
    include!(concat!(env!("OUT_DIR"), "/server.rs"));
}

/// Of `bpf/server/pending_abi.h`.
#[deny(dead_code)]
pub(crate) mod pending {
    include!(concat!(env!("OUT_DIR"), "/pending.rs"));
}

/// Whether C has a reason of this name at this place; names differ in case alone.
pub(crate) const fn is_reason(listed: &[(&str, usize)], number: usize, name: &str) -> bool {
    let (their_name, their_number) = listed[number];
    let (theirs, name) = (their_name.as_bytes(), name.as_bytes());
    let mut at = 0;
    while at < name.len() && at < theirs.len() && theirs[at].eq_ignore_ascii_case(&name[at]) {
        at += 1;
    }
    their_number == number && at == name.len() && at == theirs.len()
}
