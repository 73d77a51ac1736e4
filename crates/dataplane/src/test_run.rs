//! Runs a BPF program on a frame without a network (BPF_PROG_TEST_RUN).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::libbpf_sys as sys;

pub(crate) struct TestRun {
    /// Return value of the program.
    pub(crate) verdict: u32,
    /// Length of the resulting frame in `out`.
    pub(crate) len: usize,
}

/// Returns the id of a program.
pub(crate) fn id(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = sys::bpf_prog_info::default();
    let mut len = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: the pointers are to a struct of that length, which refers to no other memory.
    let answer =
        unsafe { sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &raw mut len) };
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    Ok(info.id)
}

pub(crate) fn run(program: BorrowedFd<'_>, frame: &[u8], out: &mut [u8]) -> io::Result<TestRun> {
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: the pointers are to slices of the lengths given, which live through the call.
    let answer = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    Ok(TestRun { verdict: options.retval, len: options.data_size_out as usize })
}
