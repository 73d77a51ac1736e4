//! Runs the director's programs on a frame without a network.

use evener_core::path::decide::Verdict;

use super::attach::Hook;
use super::program::Program;
use crate::EngineError;
use crate::test_run::{TestRun, run};

const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
/// Index of the loopback interface, on which test runs receive frames.
const LOOPBACK: u32 = 1;

/// TC verdicts (linux/pkt_cls.h): pass to the stack; run the next program, which in test runs also
/// leads to the stack.
const TC_PASS: u32 = 0;
const TC_NEXT: u32 = u32::MAX;
const TC_REDIRECT: u32 = 7;

/// Runs a frame through the program for `hook`.
pub(super) fn director(
    program: &Program,
    hook: Hook,
    frame: &[u8],
) -> Result<(Verdict, Vec<u8>), EngineError> {
    let fd = program.deciding(hook)?;
    let mut out = vec![0u8; frame.len() + 256];
    let TestRun { verdict, len } = run(fd, frame, &mut out)
        .map_err(|error| EngineError::system("running a program on a frame", "CAP_BPF", error))?;
    out.truncate(len);
    let verdict = match (hook, verdict) {
        (Hook::Xdp, XDP_TX) => Verdict::Forward { ifindex: LOOPBACK },
        // A test run doesn't report the egress interface; the frame's new source MAC identifies it.
        (Hook::Xdp, XDP_REDIRECT) | (Hook::Tc, TC_REDIRECT) => Verdict::Forward { ifindex: 0 },
        (Hook::Xdp, XDP_PASS) | (Hook::Tc, TC_PASS | TC_NEXT) => Verdict::Pass,
        _ => Verdict::Drop,
    };
    Ok((verdict, out))
}
