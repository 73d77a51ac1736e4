//! Networks in text form: an address, or an address prefix with its length in bits.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// Lengths of the prefixes whose addresses count as one client for limits.
const CLIENT_PREFIX4: u8 = 24;
const CLIENT_PREFIX6: u8 = 56;

/// Returns the first address of the client's network. Limits count a network as one client, since a
/// client may have many addresses.
pub fn client_network(client: IpAddr) -> IpAddr {
    client_prefix(client).address()
}

/// Returns the client's network for limits and statistics.
pub fn client_prefix(client: IpAddr) -> Prefix {
    let client = client.to_canonical();
    let len = if client.is_ipv4() { CLIENT_PREFIX4 } else { CLIENT_PREFIX6 };
    Prefix::of(client, len)
}

/// A network: all addresses with the same leading bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// First address; bits after the prefix are zero.
    address: IpAddr,
    len: u8,
}

/// Reason why a text is not a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    #[error("a network is an address or a prefix, such as 192.0.2.0/24")]
    Address,
    #[error("the length of a prefix is a number of bits: at most 32 for IPv4 and 128 for IPv6")]
    Length,
    /// Bits after the prefix are set.
    #[error("the address has bits set after the prefix: write {0}, or another length")]
    Host(Prefix),
}

impl Prefix {
    /// Returns the network of an address with this prefix length. Lengths beyond that of the
    /// address count as its full length.
    pub fn of(address: IpAddr, len: u8) -> Prefix {
        let masked = |bits: u128, width: u8| {
            let behind = u32::from(width.saturating_sub(len));
            bits.checked_shr(behind).and_then(|bits| bits.checked_shl(behind)).unwrap_or_default()
        };
        match address {
            IpAddr::V4(v4) => {
                let bits = u32::try_from(masked(u128::from(v4.to_bits()), 32)).unwrap_or_default();
                Prefix { address: IpAddr::V4(bits.into()), len: len.min(32) }
            }
            IpAddr::V6(v6) => {
                Prefix { address: IpAddr::V6(masked(v6.to_bits(), 128).into()), len: len.min(128) }
            }
        }
    }

    /// First address of the network.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Prefix length in bits.
    pub fn length(&self) -> u8 {
        self.len
    }

    /// True if the network contains this address. False for addresses of the other IP version.
    pub fn contains(&self, address: IpAddr) -> bool {
        Prefix::of(address, self.len) == *self && address.is_ipv4() == self.address.is_ipv4()
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Address)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let digits = |len: &&str| !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit());
        let len = match len {
            None => width,
            Some(len) => {
                let len = Some(len).filter(digits).and_then(|len| len.parse().ok());
                len.filter(|len| *len <= width).ok_or(PrefixError::Length)?
            }
        };
        match Prefix::of(address, len) {
            prefix if prefix.address == address => Ok(prefix),
            prefix => Err(PrefixError::Host(prefix)),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn prefix_contains_addresses_with_same_bits() {
        for (network, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "255.255.255.255", "::"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::/0", "2001:db8::1", "0.0.0.0"),
        ] {
            let contains = |address: &str| prefix(network).contains(address.parse().unwrap());
            assert!(contains(inside) && !contains(outside), "{network}");
        }
        assert_eq!(prefix("192.0.2.7").to_string(), "192.0.2.7/32");
    }

    #[test]
    fn texts_that_are_no_networks_are_refused() {
        for (text, error) in [
            ("shop.example", PrefixError::Address),
            ("", PrefixError::Address),
            ("192.0.2", PrefixError::Address),
            ("192.0.2.0/33", PrefixError::Length),
            ("192.0.2.0/", PrefixError::Length),
            ("192.0.2.0/+8", PrefixError::Length),
            ("192.0.2.0/24/1", PrefixError::Length),
            ("192.0.2.1/24", PrefixError::Host(prefix("192.0.2.0/24"))),
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(error), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_in_each_of_its_networks(bits: u128, is_v4: bool, len in 0u8..=128) {
            let address = match is_v4 {
                true => IpAddr::V4(((bits & 0xffff_ffff) as u32).into()),
                false => IpAddr::V6(bits.into()),
            };
            let network = Prefix::of(address, len);
            prop_assert!(network.contains(address));
            prop_assert_eq!(network.to_string().parse(), Ok(network));
        }
    }
}
