//! Limits the instructions that the kernel's verifier processes per program. The verifier gives up
//! at a million instructions, and other kernels count more. A starting daemon waits for the
//! verifier, and a host with the packet engine forwards no packets meanwhile.

use std::collections::BTreeMap;

use evener_dataplane::server::{Hook, Tables};
use libbpf_rs::query::ProgInfoIter;

use crate::server::Programs;
use crate::{HOOKS, Kernel};

/// Limit of each program, slightly above its current number.
const MOST: [(&str, u32); 6] = [
    ("director", 93_500),
    ("director_tc", 96_500),
    ("decap_xdp", 25_000),
    ("decap_tc", 25_000),
    ("outgoing", 8_000),
    ("accept", 12_000),
];
/// Any frame loads a program: programs are loaded on first use.
const FRAME: [u8; 60] = [0; 60];

#[test]
fn the_verifier_is_far_from_giving_up() {
    let Some(director) = Kernel::start(HOOKS[0]) else { return };
    let Some(server) = Programs::start_handing_over(&Tables::default()) else { return };
    HOOKS.iter().for_each(|hook| drop(director.engine.test_run(*hook, &FRAME).unwrap()));
    for hook in [Hook::Native, Hook::Tc, Hook::Egress, Hook::Accept] {
        server.run(hook, &FRAME).unwrap();
    }
    // Programs of tests that run at the same time are identical.
    let verified: BTreeMap<String, u32> = ProgInfoIter::default()
        .map(|program| (program.name.to_string_lossy().into_owned(), program.verified_insns))
        .collect();
    for (name, most) in MOST {
        let found = verified.get(name).unwrap_or_else(|| panic!("{name} isn't among {verified:?}"));
        println!("{name}: {found} instructions");
        assert!((1..=most).contains(found), "{name}: {found} of {most}");
    }
}
