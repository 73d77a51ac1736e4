//! Parses addresses, ports and times in the notations of other programs.

pub(super) use crate::config::{affinity_limits_ms, idle_limits_ms, interval_limits_ms};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Common names of ports (services(5)).
const PORTS: [(&str, u16); 14] = [
    ("ftp", 21),
    ("ssh", 22),
    ("smtp", 25),
    ("domain", 53),
    ("http", 80),
    ("www", 80),
    ("pop3", 110),
    ("ntp", 123),
    ("imap", 143),
    ("imap2", 143),
    ("ldap", 389),
    ("https", 443),
    ("mysql", 3306),
    ("postgresql", 5432),
];

/// Part of an endpoint before its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndpointHost {
    /// An address that servers and services can have.
    Address(IpAddr),
    /// All addresses of the host.
    Any { is_v6: bool },
    /// A name, a loopback or multicast address, or a socket, as in the source.
    Other(String),
}

/// A host with an optional port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: EndpointHost,
    pub(super) port: Option<u16>,
}

/// Parses a port as a number or a name.
pub(super) fn port(text: &str) -> Option<u16> {
    let named = || PORTS.iter().find(|(name, _)| *name == text).map(|(_, port)| *port);
    // A sign is no digit: `+1000` is an offset in HAProxy.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).or_else(named).filter(|port| *port > 0)
}

/// Parses `ADDRESS:PORT`, `[ADDRESS]:PORT`, `*:PORT`, `:PORT` or `NAME:PORT`. The port may be
/// missing.
pub(super) fn endpoint(text: &str) -> Endpoint {
    let text = without_family(text);
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Endpoint { host: host(&address.to_string()), port: None };
    }
    match text.rsplit_once(':') {
        Some((before, last)) if !text.starts_with("unix:") && !text.starts_with('/') => {
            match (port(last), last.is_empty()) {
                (Some(port), _) => Endpoint { host: host(before), port: Some(port) },
                (None, true) => Endpoint { host: host(before), port: None },
                (None, false) => Endpoint { host: EndpointHost::Other(text.to_owned()), port: None },
            }
        }
        _ => Endpoint { host: host(text), port: None },
    }
}

/// Parses an endpoint like HAProxy: the port comes after the last colon, even with IPv6 without
/// brackets.
pub(super) fn haproxy_endpoint(text: &str) -> Endpoint {
    let bare = without_family(text);
    match bare.rsplit_once(':') {
        Some((before, last)) if !bare.starts_with('[') && before.parse::<Ipv6Addr>().is_ok() => {
            match port(last) {
                Some(port) => Endpoint { host: host(before), port: Some(port) },
                None if last.is_empty() => Endpoint { host: host(before), port: None },
                None => Endpoint { host: EndpointHost::Other(bare.to_owned()), port: None },
            }
        }
        _ => endpoint(text),
    }
}

/// True if the port is an offset from the port that the client connects to.
pub(super) fn has_port_offset(text: &str) -> bool {
    let offset = text.rsplit_once(':').and_then(|(_, last)| last.strip_prefix(['+', '-']));
    offset.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// True if the text has a range of ports.
pub(super) fn has_port_range(text: &str) -> bool {
    let ports = text.rsplit(':').next().and_then(|ports| ports.split_once('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    ports.is_some_and(|(low, high)| is_number(low) && is_number(high))
}

fn without_family(text: &str) -> &str {
    let families = ["ipv4@", "ipv6@", "tcp@", "tcp4@", "tcp6@", "udp@", "udp4@", "udp6@"];
    families.iter().find_map(|family| text.strip_prefix(family)).unwrap_or(text)
}

fn host(text: &str) -> EndpointHost {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    match bare {
        "" | "*" => return EndpointHost::Any { is_v6: false },
        "::" => return EndpointHost::Any { is_v6: true },
        _ => {}
    }
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => EndpointHost::Any { is_v6: false },
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => EndpointHost::Any { is_v6: true },
        Ok(address) if !address.is_loopback() && !address.is_multicast() => EndpointHost::Address(address),
        _ => EndpointHost::Other(text.to_owned()),
    }
}

/// Parses a time as milliseconds. A number without a suffix is in `unit`.
/// HAProxy and nginx have the same units. nginx also allows several in a row.
pub(super) fn time_ms(text: &str, unit: u64) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let ms = match rest.get(..letters)? {
            "" => number.checked_mul(unit)?,
            "us" => number / 1_000,
            "ms" => number,
            "s" => number.checked_mul(1_000)?,
            "m" => number.checked_mul(60_000)?,
            "h" => number.checked_mul(3_600_000)?,
            "d" => number.checked_mul(86_400_000)?,
            _ => return None,
        };
        sum = sum.checked_add(ms)?;
        rest = rest.get(letters..)?;
    }
    Some(sum)
}

/// Parses seconds, with an optional fraction, as milliseconds.
pub(super) fn seconds_ms(text: &str) -> Option<u64> {
    let seconds: f64 = text.parse().ok()?;
    (0.0..=1e9).contains(&seconds).then_some((seconds * 1_000.0) as u64)
}

/// Parses a network mask of IPv4, or a prefix length of IPv6. Returns the prefix lengths of both IP
/// versions, with the default of the other.
pub(super) fn client_mask(text: &str) -> Option<[u8; 2]> {
    if let Ok(mask) = text.parse::<Ipv4Addr>() {
        let len = mask.to_bits().leading_ones();
        let is_mask = len > 0 && mask.to_bits().count_ones() == len;
        return is_mask.then_some([len as u8, 64]);
    }
    text.parse().ok().filter(|len| (1..=128).contains(len)).map(|len| [32, len])
}

/// Returns the timeout, shortened if needed to end before the next probe begins.
pub(super) fn fitting_timeout_ms(timeout_ms: u64, interval_ms: u64) -> u64 {
    timeout_ms.min(interval_ms.saturating_sub(1)).max(1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_programs_write_them() {
        let read = |text: &str| {
            let Endpoint { host, port } = endpoint(text);
            (host, port)
        };
        let at = |text: &str| EndpointHost::Address(text.parse().unwrap());
        assert_eq!(read("192.0.2.1:80"), (at("192.0.2.1"), Some(80)));
        assert_eq!(read("[2001:db8::1]:https"), (at("2001:db8::1"), Some(443)));
        assert_eq!(read("2001:db8::1"), (at("2001:db8::1"), None));
        assert_eq!(read("*:80"), (EndpointHost::Any { is_v6: false }, Some(80)));
        assert_eq!(read(":80"), (EndpointHost::Any { is_v6: false }, Some(80)));
        assert_eq!(read(":::80"), (EndpointHost::Any { is_v6: true }, Some(80)));
        assert_eq!(read("[::]:80"), (EndpointHost::Any { is_v6: true }, Some(80)));
        assert_eq!(read("127.0.0.1:80"), (EndpointHost::Other("127.0.0.1".into()), Some(80)));
        assert_eq!(read("unix:/tmp/s.sock"), (EndpointHost::Other("unix:/tmp/s.sock".into()), None));
        assert_eq!(read("web1"), (EndpointHost::Other("web1".into()), None));
    }

    #[test]
    fn haproxy_takes_the_last_colon_for_the_port() {
        let read = |text: &str| {
            let Endpoint { host, port } = haproxy_endpoint(text);
            (host, port)
        };
        let at = |text: &str| EndpointHost::Address(text.parse().unwrap());
        assert_eq!(read("2001:db8::10:80"), (at("2001:db8::10"), Some(80)));
        assert_eq!(read("ipv6@2001:db8::10:https"), (at("2001:db8::10"), Some(443)));
        assert_eq!(read("[2001:db8::10:80]"), (at("2001:db8::10:80"), None));
        assert_eq!(read("[2001:db8::10]:80"), (at("2001:db8::10"), Some(80)));
        assert_eq!(read("2001:db8::10:"), (at("2001:db8::10"), None));
        assert_eq!(read(":::80"), (EndpointHost::Any { is_v6: true }, Some(80)));
        assert_eq!(read("192.0.2.1:80"), (at("192.0.2.1"), Some(80)));
        assert_eq!(endpoint("2001:db8::10:80").host, at("2001:db8::10:80"));
    }

    #[test]
    fn ports_with_a_sign_are_offsets() {
        assert_eq!((port("+1000"), port("-1000"), port("1000"), port("")), (None, None, Some(1000), None));
        assert!(has_port_offset("192.0.2.1:+1000") && has_port_offset("[2001:db8::1]:-10"));
        assert!(!has_port_offset("192.0.2.1:1000") && !has_port_offset("unix:/x/-y"));
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time_ms("50000", 1), Some(50_000));
        assert_eq!(time_ms("30s", 1), Some(30_000));
        assert_eq!(time_ms("1m30s", 1_000), Some(90_000));
        assert_eq!(time_ms("10", 1_000), Some(10_000));
        assert_eq!(time_ms("x", 1), None);
        assert_eq!(time_ms("99999999999999999999", 1), None);
    }
}
