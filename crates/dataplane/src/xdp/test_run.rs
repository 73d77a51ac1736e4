//! Running a program on a frame without a network (BPF_PROG_TEST_RUN).

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use evener_core::decide::Verdict;
use libbpf_rs::libbpf_sys as sys;

use super::attach::Hook;
use super::program::Program;
use crate::EngineError;

/// XDP verdicts (linux/bpf.h).
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
/// The loopback interface, which test runs come in by.
const LOOPBACK: u32 = 1;

/// TC verdicts (linux/pkt_cls.h): up the stack, and whatever comes next, which here is the stack too.
const TC_PASS: u32 = 0;
const TC_NEXT: u32 = u32::MAX;
const TC_REDIRECT: u32 = 7;

/// Runs a frame through the program that such a hook wants.
pub(super) fn director(
    program: &Program,
    hook: Hook,
    frame: &[u8],
) -> Result<(Verdict, Vec<u8>), EngineError> {
    let fd = match hook {
        Hook::Xdp => program.fd("director")?,
        Hook::Tc => program.tc_fd()?,
    };
    let mut out = vec![0u8; frame.len() + 256];
    let (verdict, len, _) = run(fd.as_raw_fd(), frame, &mut out, 1)?;
    out.truncate(len);
    let verdict = match (hook, verdict) {
        (Hook::Xdp, XDP_TX) => Verdict::Forward { ifindex: LOOPBACK },
        // The target is not told; the frame's new source MAC is that interface's own.
        (Hook::Xdp, XDP_REDIRECT) | (Hook::Tc, TC_REDIRECT) => Verdict::Forward { ifindex: 0 },
        (Hook::Xdp, XDP_PASS) | (Hook::Tc, TC_PASS | TC_NEXT) => Verdict::Pass,
        _ => Verdict::Drop,
    };
    Ok((verdict, out))
}

pub(super) fn run(
    program: i32,
    frame: &[u8],
    out: &mut [u8],
    repeat: u32,
) -> Result<(u32, usize, Duration), EngineError> {
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: repeat as i32,
        ..Default::default()
    };
    // SAFETY: the pointers are to slices of the lengths given, which live through the call.
    let answer = unsafe { sys::bpf_prog_test_run_opts(program, &raw mut options) };
    if answer < 0 {
        let error = io::Error::from_raw_os_error(-answer);
        return Err(EngineError::system("running a program on a frame", "CAP_BPF", error));
    }
    Ok((options.retval, options.data_size_out as usize, Duration::from_nanos(options.duration.into())))
}
