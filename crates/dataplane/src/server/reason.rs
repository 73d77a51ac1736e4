//! Checks the sizes of the records of `bpf/server/server.h`.

/// Generated; its names are C's.
#[allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    non_camel_case_types,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::undocumented_unsafe_blocks
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/server.skel.rs"));
}

// Where C and Rust differ, the build ends here.
const _: () = {
    use super::connections::{CONNECTION_LEN, EXPECTATION_LEN};
    use super::socket_snapshot::SocketSnapshot;
    use generated::types::{connection, expectation, offer, own_service, sip_key, socket_snapshot};
    assert!(size_of::<own_service>() == super::program::SERVICE_KEY_LEN);
    assert!(size_of::<offer>() == super::program::OFFER_LEN);
    assert!(size_of::<connection>() == CONNECTION_LEN);
    assert!(size_of::<expectation>() == EXPECTATION_LEN);
    assert!(size_of::<socket_snapshot>() == size_of::<SocketSnapshot>());
    assert!(size_of::<sip_key>() == size_of::<evener_core::path::seed::Seed>());
};
