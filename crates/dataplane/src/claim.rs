//! One data plane for each network namespace: who has it says so by a socket, which the kernel
//! closes when the process ends, however it ends. A file would be the folder's, not the
//! namespace's, and an address or a port of a Unix, TCP or netlink socket can be taken by anybody.
//! A packet socket takes CAP_NET_RAW in the namespace.

use std::io;
use std::os::fd::AsFd;

use socket2::Socket;

use crate::link::{self, EtherType, set_option_with};

/// The lock on a data plane: a namespace has one of each at most.
///
/// Each has its number, by which the sockets receive and their groups are told apart. An EtherType
/// below 1,536 is a length (IEEE 802.3, 3.2.6), and these are none that Linux has given a meaning
/// of its own: no frame ever reaches the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It decides.
    Director = 0x05fe,
    /// It serves.
    Agent = 0x05fd,
}

/// The namespace's data plane, for as long as this lives.
#[derive(Debug)]
pub struct Claim {
    #[allow(dead_code, reason = "it holds by being there")]
    socket: Socket,
}

/// `struct fanout_args` of linux/if_packet.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct FanoutArgs {
    id: u16,
    type_flags: u16,
    max_num_members: u32,
}

impl Claim {
    /// Takes the place, if it is free.
    ///
    /// A fanout group of packet(7) belongs to a namespace and has a number and a limit of members,
    /// here one.
    ///
    /// # Errors
    /// Without CAP_NET_RAW. `None` where somebody else has it.
    pub fn acquire(role: Role) -> io::Result<Option<Claim>> {
        let socket = link::packet_socket()?;
        link::bind(&socket, 0, EtherType::Only(role as u16))?;
        let args =
            FanoutArgs { id: role as u16, type_flags: libc::PACKET_FANOUT_LB as u16, max_num_members: 1 };
        match set_option_with(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, &args) {
            Ok(()) => Ok(Some(Claim { socket })),
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn a_namespace_gives_each_role_to_one() {
        let in_a_namespace_of_its_own = || {
            if unshare(CloneFlags::CLONE_NEWNET).is_err() {
                println!("skipped: needs root");
                return;
            }
            let first = Claim::acquire(Role::Director).unwrap();
            assert!(first.is_some());
            assert!(Claim::acquire(Role::Director).unwrap().is_none());
            assert!(Claim::acquire(Role::Agent).unwrap().is_some(), "a host has both");
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            assert!(Claim::acquire(Role::Director).unwrap().is_some(), "each namespace has its own");
            drop(first);
        };
        std::thread::spawn(in_a_namespace_of_its_own).join().unwrap();
    }
}
