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
