//! Whether the kernel forwards packets that come by an interface: a FIB lookup from a kernel program says no
//! where it doesn't.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// IPv4 or IPv6: each is switched by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6. An interface that forwards takes router advertisements no longer, unless its `accept_ra` is 2.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// Whether packets that come by this interface are forwarded, in the calling thread's network namespace.
///
/// # Errors
/// When there is no such interface, or it has no such family.
pub fn get(interface: &str, family: Family) -> io::Result<bool> {
    let text = fs::read_to_string(path(interface, family)?)?;
    Ok(text.trim() != "0")
}

/// Switches forwarding on or off; what it was, so that it can be restored.
///
/// # Errors
/// Without CAP_NET_ADMIN, or with `/proc/sys` mounted read-only, unless it is so already; otherwise as [`get`].
pub fn set(interface: &str, family: Family, on: bool) -> io::Result<bool> {
    let was = get(interface, family)?;
    if was != on {
        fs::write(path(interface, family)?, if on { "1" } else { "0" })?;
    }
    Ok(was)
}

fn path(interface: &str, family: Family) -> io::Result<PathBuf> {
    // "all" and "default" are no interfaces, but switches of every one.
    if interface.contains('/') || matches!(interface, "" | "." | ".." | "all" | "default") {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{interface:?} is not an interface"),
        ));
    }
    let family = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    Ok(PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/forwarding")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_interfaces_are_switched() {
        for odd in ["all", "default", "", ".", "..", "../all"] {
            assert_eq!(get(odd, Family::V4).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{odd}");
        }
        assert_eq!(set("no-such-one", Family::V6, true).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_already_so_is_left_alone() {
        let was = get("lo", Family::V4).unwrap();
        assert_eq!(set("lo", Family::V4, was).unwrap(), was);
    }
}
