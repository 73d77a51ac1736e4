//! Fault injection for tests: system calls fail, or the process is killed before a call. Tests
//! check that a refused call or a killed daemon leaves the engine's state in force. Evener never
//! uses this module.
//!
//! A seccomp filter (seccomp(2), seccomp_unotify(2), Linux 5.5) notifies a thread of this process
//! about each call.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Fault injection for one thread and for the threads and programs that it starts.
#[derive(Debug)]
pub struct Refusals {
    shared: Arc<InjectedRefusals>,
}

#[derive(Debug, Default)]
struct InjectedRefusals {
    seen: AtomicU64,
    /// Number of the call to refuse, from 1 on; 0 refuses none.
    refused: AtomicU64,
    errno: AtomicI32,
    /// True to kill the process before the call instead of returning an error.
    kills: AtomicBool,
}

impl Refusals {
    /// Counts the calling thread's system calls with these numbers until the thread ends.
    /// Refuses none yet.
    ///
    /// # Errors
    /// Fails without CAP_SYS_ADMIN, or on a kernel without seccomp.
    pub fn of(calls: &[libc::c_long]) -> io::Result<Refusals> {
        let shared = Arc::new(InjectedRefusals::default());
        let (give, take) = mpsc::channel();
        let judge = Arc::clone(&shared);
        // Started before the filter exists, so the filter does not apply to this thread. The thread
        // ends with the last filtered thread.
        thread::Builder::new().name("refusals".into()).spawn(move || {
            if let Ok(listener) = take.recv() {
                judge.serve(&listener);
            }
        })?;
        // The other thread owns the receiver and waits, so sending can't fail.
        let _ = give.send(install(calls)?);
        Ok(Refusals { shared })
    }

    /// Makes the `number`th call from now on, counted from 1, fail with this error. All other calls
    /// succeed.
    pub fn refuse(&self, number: u64, errno: i32) {
        self.shared.errno.store(errno, SeqCst);
        self.shared.seen.store(0, SeqCst);
        self.shared.refused.store(number, SeqCst);
    }

    /// Kills the process (SIGKILL) before the `number`th call from now on, counted from 1.
    pub fn kill_at(&self, number: u64) {
        self.shared.kills.store(true, SeqCst);
        self.refuse(number, libc::EPERM);
    }

    /// Stops refusing. Returns true if the call that was to be refused has happened.
    pub fn relent(&self) -> bool {
        let refused = self.shared.refused.swap(0, SeqCst);
        self.shared.seen.load(SeqCst) >= refused
    }
}

impl InjectedRefusals {
    fn serve(&self, listener: &OwnedFd) {
        loop {
            // SAFETY: plain numbers, for which all zeros are valid; the kernel requires zeros.
            let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            let receive = libc::SECCOMP_IOCTL_NOTIF_RECV;
            // SAFETY: the kernel writes a struct seccomp_notif to `call`.
            if unsafe { libc::ioctl(listener.as_raw_fd(), receive, &raw mut call) } < 0 {
                match io::Error::last_os_error().raw_os_error() {
                    // The caller is dead already, or this thread was interrupted.
                    Some(libc::EINTR) => continue,
                    Some(libc::ENOENT) if has_data(listener) => continue,
                    _ => return,
                }
            }
            let number = self.seen.fetch_add(1, SeqCst) + 1;
            if number == self.refused.load(SeqCst) && self.kills.load(SeqCst) {
                // A process may always signal itself.
                let _ = kill(Pid::this(), Signal::SIGKILL);
            }
            // SAFETY: as above.
            let mut answer: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
            answer.id = call.id;
            match number == self.refused.load(SeqCst) {
                true => answer.error = -self.errno.load(SeqCst),
                false => answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            }
            let send = libc::SECCOMP_IOCTL_NOTIF_SEND;
            // SAFETY: the kernel reads a struct seccomp_notif_resp. The caller may have been killed
            // meanwhile.
            unsafe { libc::ioctl(listener.as_raw_fd(), send, &raw mut answer) };
        }
    }
}

/// True if a filtered thread is still alive.
fn has_data(listener: &OwnedFd) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    polled.is_ok() && !fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

/// Installs a filter that notifies about the calling thread's calls of these numbers.
fn install(calls: &[libc::c_long]) -> io::Result<OwnedFd> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The first word of struct seccomp_data is the call's number.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for call in calls {
        let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter { code: equal, jt: 0, jf: 1, k: *call as u32 });
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: the program is `len` instructions long and lives through the call.
    let fd =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
