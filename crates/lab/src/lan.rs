//! The networks of a farm, and who has which address in them.

use std::net::Ipv4Addr;

/// A network of a farm: a bridge in the switch, and a /24 of the documentation ranges (RFC 5737).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lan {
    /// Where the clients are.
    Clients,
    /// One of the networks that servers are on.
    Servers(u8),
}

impl Lan {
    /// The name of its bridge.
    pub(crate) fn bridge(self) -> String {
        match self {
            Lan::Clients => "clients".to_owned(),
            Lan::Servers(number) => format!("lan{number}"),
        }
    }

    /// An address in it.
    pub(crate) fn address(self, host: u8) -> Ipv4Addr {
        match self {
            Lan::Clients => Ipv4Addr::new(203, 0, 113, host),
            Lan::Servers(0) => Ipv4Addr::new(192, 0, 2, host),
            Lan::Servers(1) => Ipv4Addr::new(198, 51, 100, host),
            Lan::Servers(number) => Ipv4Addr::new(10, 0, number, host),
        }
    }

    /// The router's address in it.
    pub(crate) fn router(self) -> Ipv4Addr {
        self.address(1)
    }

    /// The address of a director, counted from 0; eight are the most.
    pub(crate) fn director(self, number: u8) -> Ipv4Addr {
        self.address(2 + number)
    }

    /// The address of a server or a client, counted from 0.
    pub(crate) fn host(self, number: u8) -> Ipv4Addr {
        self.address(11 + number)
    }
}

/// A service address, counted from 0: in the first servers' network, above its hosts.
pub(crate) fn vip(number: u8) -> Ipv4Addr {
    Lan::Servers(0).address(100 + number)
}

/// A MAC address that shows whose it is: locally administered, then the bytes of an IPv4 address.
pub(crate) fn mac(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_macs() {
        assert_eq!(Lan::Servers(0).host(0), Ipv4Addr::new(192, 0, 2, 11));
        assert_eq!(Lan::Servers(1).director(1), Ipv4Addr::new(198, 51, 100, 3));
        assert_eq!(mac(vip(0)), "02:00:c0:00:02:64");
    }
}
