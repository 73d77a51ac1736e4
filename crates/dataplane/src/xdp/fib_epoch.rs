//! Watches the host's routes and neighbours. A change invalidates the route cache of the kernel's
//! programs. Without a daemon cache entries expire within a second.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering::Release};
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType};
use socket2::Socket;

use super::program::Program;
use crate::EngineError;
use crate::shared::Shared;

/// Groups of rtnetlink(7) as bits: links, neighbours, IPv4 addresses, routes and rules, and
/// next-hop objects (RTNLGRP_NEXTHOP).
const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_NEIGH
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV4_RULE) as u32
    | 1 << (32 - 1);

/// Monitor thread; dropping the value stops it.
pub(super) struct FibEpoch {
    /// Closing the pipe wakes the thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl FibEpoch {
    /// Starts the monitor in the network namespace of the calling thread, and invalidates earlier
    /// cache entries.
    pub(super) fn start(program: &Program) -> Result<FibEpoch, EngineError> {
        let failed = |error| EngineError::system("listening for changes of routes", "CAP_NET_ADMIN", error);
        let (woken, wake) = io::pipe().map_err(failed)?;
        let listener =
            RouteMonitor { socket: open().map_err(failed)?, woken, epoch: program.second_fib_epoch()? };
        listener.change();
        let thread = thread::Builder::new().name("routes".into());
        let thread = thread.spawn(move || listener.run()).map_err(failed)?;
        Ok(FibEpoch { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for FibEpoch {
    fn drop(&mut self) {
        self.wake = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that watches routes has panicked");
        }
    }
}

fn open() -> io::Result<Socket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    socket::bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    Ok(socket.into())
}

struct RouteMonitor {
    socket: Socket,
    woken: PipeReader,
    epoch: Shared<AtomicU64>,
}

impl RouteMonitor {
    fn run(mut self) {
        loop {
            let mut fds = [
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
            ];
            let _ = poll(&mut fds, PollTimeout::NONE);
            if fds[1].revents().is_some_and(|events| !events.is_empty()) {
                return;
            }
            self.receive();
        }
    }

    /// Reads all messages. Every message means a change, and so does an overflow of the socket's
    /// buffer.
    fn receive(&mut self) {
        let mut message = [0; 8192];
        loop {
            match self.socket.read(&mut message) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => self.change(),
            }
        }
    }

    fn change(&self) {
        self.epoch[0].fetch_add(1, Release);
    }
}
