//! Constants that C and Rust share, generated from the C headers. A constant that Rust does not use
//! fails the build, and so does a constant that C lacks.

#[deny(dead_code)]
#[allow(unused_parens)]
pub(crate) mod abi {
    include!(concat!(env!("OUT_DIR"), "/abi.rs"));
}

#[deny(dead_code)]
pub(crate) mod server {
    include!(concat!(env!("OUT_DIR"), "/server.rs"));
}

#[deny(dead_code)]
pub(crate) mod pending {
    include!(concat!(env!("OUT_DIR"), "/pending.rs"));
}
