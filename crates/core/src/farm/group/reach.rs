//! Addresses to which a director opens connections for a member that joined by itself. A joining
//! member must not make the director connect to third parties. Such parties are the director's own
//! services, other services of its host, and hosts in a network that only the director can reach.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;

use super::model::Group;
use crate::net::prefix::Prefix;

/// Allowed addresses of one member that joined by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Networks configured by the operator. If empty, `addresses` and `hosts` decide.
    allow: Vec<Prefix>,
    /// Source address of the member's messages, and addresses of listed members.
    addresses: Vec<IpAddr>,
    /// Hosts in the URLs of listed members, and hosts that the member's credential names.
    hosts: Vec<String>,
}

/// Origin of a member's message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageOrigin {
    /// Source address; `None` if the message did not come from the network.
    pub from: Option<IpAddr>,
    /// Hosts that the credential names; empty if the credential is valid for all hosts.
    pub hosts: Vec<String>,
    /// True if the operator sent the message, which needs no credential.
    pub is_operator: bool,
}

/// Reason why connections to an address are forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// No single host has the address.
    #[error("{0} is not the address of a host")]
    NoHost(IpAddr),
    /// Loopback or link-local address.
    #[error("{0} is a loopback or link-local address that the group's `allow` does not list")]
    Local(IpAddr),
    /// An address outside of the configured networks.
    #[error("{0} is not in the networks of the group's `allow`")]
    NotAllowed(IpAddr),
    /// No `allow` network is configured, and the address belongs neither to the member's origin nor
    /// to a listed member.
    #[error(
        "{0} is neither the address that the member joined from, nor in its credential, nor a listed member: add its network to `allow` in [service.group]"
    )]
    Elsewhere(IpAddr),
}

impl Reach {
    /// Returns the addresses to which connections for a member with this origin may go.
    pub(super) fn new(group: &Group, origin: &MessageOrigin) -> Reach {
        let listed = || group.members.iter().map(|member| &member.url);
        Reach {
            allow: group.allow.clone(),
            addresses: listed().filter_map(|url| url.address()).chain(origin.from).map(canonical).collect(),
            hosts: listed().map(|url| url.host().to_string()).chain(origin.hosts.iter().cloned()).collect(),
        }
    }

    /// Checks if a connection may be opened to `address`. The caller has resolved `host`, the host
    /// of a URL, to this address for this connection.
    ///
    /// # Errors
    /// The address is forbidden, for the returned reason.
    pub fn permits(&self, host: &str, address: IpAddr) -> Result<(), ReachError> {
        let at = canonical(address);
        let is_broadcast = matches!(at, IpAddr::V4(v4) if v4.is_broadcast());
        if at.is_unspecified() || at.is_multicast() || is_broadcast {
            return Err(ReachError::NoHost(at));
        }
        let covers = |prefix: &&Prefix| prefix.contains(at);
        if is_local(at) {
            // A prefix such as 0.0.0.0/0 covers local addresses, too, but does not name them.
            let named = self.allow.iter().filter(covers).any(|prefix| is_local(prefix.address()));
            return if named { Ok(()) } else { Err(ReachError::Local(at)) };
        }
        if self.allow.is_empty() {
            let known = self.addresses.contains(&at) || self.hosts.iter().any(|named| named == host);
            return if known { Ok(()) } else { Err(ReachError::Elsewhere(at)) };
        }
        self.allow.iter().any(|prefix| covers(&prefix)).then_some(()).ok_or(ReachError::NotAllowed(at))
    }
}

fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// True if routers do not forward packets to the address.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn reach(allow: &[&str]) -> Reach {
        Reach {
            allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
            addresses: vec![at("192.0.2.31"), at("127.0.0.1")],
            hosts: vec!["m1.example".into(), "::1".into()],
        }
    }

    #[test]
    fn member_address_is_its_source_or_allowed_name() {
        let reach = reach(&[]);
        for host in ["192.0.2.31", "any.example"] {
            assert_eq!(reach.permits(host, at("192.0.2.31")), Ok(()));
        }
        assert_eq!(reach.permits("m1.example", at("198.51.100.1")), Ok(()));
        assert_eq!(reach.permits("m1.example", at("::ffff:192.0.2.31")), Ok(()));
        let elsewhere = at("198.51.100.1");
        assert_eq!(reach.permits("any.example", elsewhere), Err(ReachError::Elsewhere(elsewhere)));
    }

    #[test]
    fn an_allow_takes_the_place_of_that() {
        let reach = reach(&["198.51.100.0/24"]);
        assert_eq!(reach.permits("any.example", at("198.51.100.1")), Ok(()));
        for host in ["m1.example", "192.0.2.31"] {
            assert_eq!(reach.permits(host, at("192.0.2.31")), Err(ReachError::NotAllowed(at("192.0.2.31"))));
        }
    }

    #[test]
    fn loopback_and_link_local_want_to_be_named() {
        let local = ["127.0.0.1", "127.8.9.1", "169.254.169.254", "::1", "fe80::1", "::ffff:127.0.0.1"];
        for address in local.map(at) {
            for allow in [&[][..], &["0.0.0.0/0", "::/0"], &["192.0.2.0/24"]] {
                let refused = reach(allow).permits("m1.example", address);
                assert_eq!(refused, Err(ReachError::Local(address.to_canonical())), "{allow:?}");
            }
        }
        let named = reach(&["127.0.0.0/8", "fe80::/10"]);
        assert_eq!(named.permits("m1.example", at("127.0.0.1")), Ok(()));
        assert_eq!(named.permits("m1.example", at("fe80::1")), Ok(()));
        assert_eq!(named.permits("m1.example", at("::1")), Err(ReachError::Local(at("::1"))));
    }

    #[test]
    fn non_host_addresses_are_never_contacted() {
        for address in ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1", "::ffff:0.0.0.0"].map(at)
        {
            let refused = reach(&["0.0.0.0/0", "::/0"]).permits("m1.example", address);
            assert_eq!(refused, Err(ReachError::NoHost(address.to_canonical())));
        }
    }
}
