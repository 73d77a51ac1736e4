//! The instructions that the kernel's verifier has to go through before a program is loaded. It
//! gives up at a million instructions, other kernels count more than this one, and a daemon that
//! starts waits for it: a host of the packet engine answers nobody meanwhile.

use std::collections::BTreeMap;

use evener_dataplane::server::{Hook, Tables};
use libbpf_rs::query::ProgInfoIter;

use crate::server::Programs;
use crate::{HOOKS, Kernel};

/// Most of them for each program, in instructions: a little more than it takes.
const MOST: [(&str, u32); 6] = [
    ("director", 89_000),
    ("director_tc", 92_000),
    ("decap_xdp", 25_000),
    ("decap_tc", 25_000),
    ("outgoing", 8_000),
    ("accept", 12_000),
];
/// Programs are loaded when they are first wanted: by any frame.
const FRAME: [u8; 60] = [0; 60];

#[test]
fn the_verifier_is_far_from_giving_up() {
    let Some(director) = Kernel::start(HOOKS[0]) else { return };
    let Some(server) = Programs::start_handing_over(&Tables::default()) else { return };
    HOOKS.iter().for_each(|hook| drop(director.engine.test_run(*hook, &FRAME).unwrap()));
    for hook in [Hook::Native, Hook::Tc, Hook::Egress, Hook::Accept] {
        server.run(hook, &FRAME).unwrap();
    }
    // Those of other tests that run beside this one are the same.
    let verified: BTreeMap<String, u32> = ProgInfoIter::default()
        .map(|program| (program.name.to_string_lossy().into_owned(), program.verified_insns))
        .collect();
    for (name, most) in MOST {
        let found = verified.get(name).unwrap_or_else(|| panic!("{name} isn't among {verified:?}"));
        println!("{name}: {found} instructions");
        assert!((1..=most).contains(found), "{name}: {found} of {most}");
    }
}
