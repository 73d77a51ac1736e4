//! The PROXY protocol, version 2: sends the client's address to the server of a spliced connection
//! (HAProxy's proxy-protocol.txt, section 2.2).

use std::net::IpAddr;

use super::FourTuple;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_PROXY: u8 = 0x21;
/// TCP over IPv4 and IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Returns the header to send before the client's first byte.
pub(super) fn header(ends: &FourTuple) -> Vec<u8> {
    let (family, addresses) = match (ends.client.ip(), ends.service.ip()) {
        (IpAddr::V4(client), IpAddr::V4(service)) => (TCP4, [client.octets(), service.octets()].concat()),
        (client, service) => (TCP6, [client, service].map(octets6).concat()),
    };
    let ports = [ends.client.port(), ends.service.port()].map(u16::to_be_bytes).concat();
    let len = (addresses.len() + ports.len()) as u16;
    [&SIGNATURE[..], &[VERSION_PROXY, family], &len.to_be_bytes(), &addresses, &ports].concat()
}

fn octets6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn proxy_header_names_both_ends() {
        let ends = |client: &str, service: &str| FourTuple {
            client: client.parse().unwrap(),
            service: service.parse().unwrap(),
        };
        let header4 = header(&ends("203.0.113.7:258", "192.0.2.100:80"));
        assert_eq!(header4[..12], *b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a");
        assert_eq!(header4[12..16], [0x21, 0x11, 0, 12]);
        assert_eq!(header4[16..], [203, 0, 113, 7, 192, 0, 2, 100, 1, 2, 0, 80]);
        let header6 = header(&ends("[2001:db8::7]:258", "[2001:db8::100]:80"));
        assert_eq!((header6.len(), &header6[12..16]), (16 + 36, &[0x21, 0x21, 0, 36][..]));
        assert_eq!((header6[31], header6[47], &header6[48..]), (7, 0, &[1, 2, 0, 80][..]));
    }
}
