//! Networks of a farm, and the addresses of hosts in them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::family::Family;

/// Network of a farm: a bridge in the switch, a /24 of the documentation ranges (RFC 5737) and a
/// /64 of their IPv6 counterpart (RFC 3849). Hosts have the same number in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lan {
    /// Network of the clients.
    Clients,
    /// Network of directors and servers.
    Servers(u8),
}

impl Lan {
    pub(crate) fn bridge(self) -> String {
        match self {
            Lan::Clients => "clients".to_owned(),
            Lan::Servers(number) => format!("lan{number}"),
        }
    }

    /// Returns the IPv4 address of a host.
    pub(crate) fn address(self, host: u8) -> Ipv4Addr {
        match self {
            Lan::Clients => Ipv4Addr::new(203, 0, 113, host),
            Lan::Servers(0) => Ipv4Addr::new(192, 0, 2, host),
            Lan::Servers(1) => Ipv4Addr::new(198, 51, 100, host),
            Lan::Servers(number) => Ipv4Addr::new(10, 0, number, host),
        }
    }

    /// Returns the IPv6 address of a host. Its last group reads like the IPv4 address: host 11 is
    /// `::11`.
    pub(crate) fn address6(self, host: u8) -> Ipv6Addr {
        let network = match self {
            Lan::Clients => 0xc,
            Lan::Servers(number) => u16::from(number),
        };
        Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, digits(host))
    }

    /// Returns the prefix of the network.
    pub(crate) fn prefix(self, family: Family) -> String {
        match family {
            Family::V4 => format!("{}/24", self.address(0)),
            Family::V6 => format!("{}/64", self.address6(0)),
        }
    }

    /// Returns the address of a host in a family.
    pub(crate) fn address_in(self, family: Family, host: u8) -> IpAddr {
        match family {
            Family::V4 => self.address(host).into(),
            Family::V6 => self.address6(host).into(),
        }
    }

    /// Returns the network of an address.
    pub(crate) fn of(address: Ipv4Addr) -> Lan {
        let [a, b, number, _] = address.octets();
        match (a, b, number) {
            (203, 0, 113) => Lan::Clients,
            (192, 0, 2) => Lan::Servers(0),
            (198, 51, 100) => Lan::Servers(1),
            _ => Lan::Servers(number),
        }
    }
}

/// Numbers of hosts in every network.
pub(crate) mod number {
    pub(crate) const ROUTER: u8 = 1;

    /// Number of a server's second link; one server of a farm may have one.
    pub(crate) const SECOND_LINK: u8 = 250;

    /// Returns the number of a director, counted from 0; at most eight.
    pub(crate) const fn director(number: u8) -> u8 {
        2 + number
    }

    /// Returns the number of a server or client, counted from 0.
    pub(crate) const fn host(number: u8) -> u8 {
        11 + number
    }

    /// Returns the number of a service address, counted from 0, above the hosts.
    pub(crate) const fn vip(number: u8) -> u8 {
        100 + number
    }
}

/// Returns a service address, counted from 0, in the first network of servers.
pub(crate) fn vip(family: Family, number: u8) -> IpAddr {
    Lan::Servers(0).address_in(family, number::vip(number))
}

/// Returns the MAC of the host with this address: a locally administered prefix, then the bytes of
/// the address.
pub(crate) fn mac(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Returns a number whose hexadecimal digits are the decimal digits of `number`.
fn digits(number: u8) -> u16 {
    let number = u16::from(number);
    (number / 100) << 8 | (number / 10 % 10) << 4 | (number % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_macs() {
        assert_eq!(Lan::Servers(0).address(number::host(0)), Ipv4Addr::new(192, 0, 2, 11));
        assert_eq!(Lan::Servers(1).address(number::director(1)), Ipv4Addr::new(198, 51, 100, 3));
        assert_eq!(Lan::Servers(1).address6(number::host(9)).to_string(), "2001:db8:1::20");
        assert_eq!(vip(Family::V6, 0).to_string(), "2001:db8::100");
        assert_eq!(mac(Lan::Servers(0).address(100)), "02:00:c0:00:02:64");
        for lan in [Lan::Clients, Lan::Servers(0), Lan::Servers(1), Lan::Servers(7)] {
            assert_eq!(Lan::of(lan.address(5)), lan);
        }
    }
}
