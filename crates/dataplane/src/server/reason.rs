//! Where the reasons and records of `bpf/server/server.h` are held against those of `evener_core::server`.

use super::Reason;

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
    use super::looked::Looked;
    use generated::types::{
        connection, expectation, looked, offer, own_service, server_reason as c, sip_key,
    };
    assert!(c::SERVER_REASON_MAX.0 as usize == Reason::ALL.len());
    assert!(c::SERVER_DECAPSULATED.0 == Reason::Decapsulated as u32);
    assert!(c::SERVER_CLAMPED.0 == Reason::Clamped as u32);
    assert!(c::SERVER_UNLISTED_SOURCE.0 == Reason::UnlistedSource as u32);
    assert!(c::SERVER_NOT_OWN_SERVICE.0 == Reason::NotOwnService as u32);
    assert!(c::SERVER_INNER_MARTIAN.0 == Reason::InnerMartian as u32);
    assert!(c::SERVER_NESTED.0 == Reason::Nested as u32);
    assert!(c::SERVER_MALFORMED.0 == Reason::Malformed as u32);
    assert!(c::SERVER_GUE_HEADER.0 == Reason::GueHeader as u32);
    assert!(c::SERVER_OUTER_FRAGMENT.0 == Reason::OuterFragment as u32);
    assert!(c::SERVER_CONGESTION.0 == Reason::Congestion as u32);
    assert!(c::SERVER_NOT_SHRUNK.0 == Reason::NotShrunk as u32);
    assert!(c::SERVER_ACCEPTED.0 == Reason::Accepted as u32);
    assert!(c::SERVER_NO_LISTENER.0 == Reason::NoListener as u32);
    assert!(c::SERVER_BAD_COOKIE.0 == Reason::BadCookie as u32);
    assert!(c::SERVER_REFUSED.0 == Reason::Refused as u32);
    assert!(c::SERVER_TIME_WAIT_CLEARED.0 == Reason::TimeWaitCleared as u32);
    assert!(c::SERVER_STALE_CLEARED.0 == Reason::StaleCleared as u32);
    assert!(c::SERVER_NOT_CLEARED.0 == Reason::NotCleared as u32);
    assert!(c::SERVER_RESET_HELD.0 == Reason::ResetHeld as u32);
    assert!(c::SERVER_FORGED_MARK.0 == Reason::ForgedMark as u32);
    assert!(size_of::<own_service>() == super::program::SERVICE_KEY_LEN);
    assert!(size_of::<offer>() == super::program::OFFER_LEN);
    assert!(size_of::<connection>() == CONNECTION_LEN);
    assert!(size_of::<expectation>() == EXPECTATION_LEN);
    assert!(size_of::<looked>() == size_of::<Looked>());
    assert!(size_of::<sip_key>() == size_of::<evener_core::path::sessions::Seed>());
};
