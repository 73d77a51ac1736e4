//! Lock that allows one data plane of each role per network namespace.
//!
//! The lock is a packet socket, which the kernel closes whenever the process ends. A lock file
//! would belong to a folder and not to the namespace. Any process can take an address or a port of
//! a Unix, TCP or netlink socket. A packet socket requires CAP_NET_RAW in the namespace.

use std::io;
use std::os::fd::AsFd;

use socket2::Socket;

use crate::link::{self, EtherType, set_option_with};

/// Role of a data plane. A namespace has at most one data plane of each role.
///
/// The value is the EtherType of the lock's socket and the id of its fanout group. An EtherType
/// below 1,536 is a length (IEEE 802.3, 3.2.6). Linux defines no protocol with these values, so the
/// socket never receives a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The director's data plane, which chooses servers for packets.
    Director = 0x05fe,
    /// The agent's data plane, on a server.
    Agent = 0x05fd,
}

/// Exclusive claim to a role in the network namespace. Dropping the claim releases the role.
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
    /// Claims the role. Returns `None` if another process holds the claim.
    ///
    /// The lock is a fanout group of packet(7), which belongs to a namespace. The group's limit is
    /// one member.
    ///
    /// # Errors
    /// Fails without CAP_NET_RAW.
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
