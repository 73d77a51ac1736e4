//! Readers of network addresses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use evener_core::farm::Allow;
use evener_core::wire::Mac;
use toml::de::DeValue;

use super::section::Complaint;
use super::values::text;

const SERVICE_HELP: &str = "write address and port, such as \"192.0.2.100:80\"";
const SERVER_HELP: &str = "write the server's own IPv4 address, such as \"192.0.2.11\"";

/// The address and port that clients connect to.
pub(super) fn service_address(value: &DeValue<'_>) -> Result<SocketAddrV4, Complaint> {
    let text = text(value)?;
    let address = match text.parse() {
        Ok(SocketAddr::V4(address)) => address,
        Ok(SocketAddr::V6(_)) => return ipv6(&text, SERVICE_HELP),
        Err(_) => return portless(&text),
    };
    if address.port() == 0 {
        return Complaint::new(format!("has port 0: {text:?}"), "write a port from 1 to 65535");
    }
    unicast(*address.ip(), SERVICE_HELP)?;
    Ok(address)
}

/// Tells apart the ways of getting an address with port wrong.
fn portless<T>(text: &str) -> Result<T, Complaint> {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Complaint::new(
            format!("has no port: {text:?}"),
            format!("add the port: \"{address}:80\" for HTTP, \"{address}:443\" for HTTPS"),
        );
    }
    if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return ipv6(text, SERVICE_HELP);
    }
    not_an_address(text, SERVICE_HELP)
}

/// A server's own address.
pub(super) fn server_address(value: &DeValue<'_>) -> Result<Ipv4Addr, Complaint> {
    let text = text(value)?;
    match text.parse() {
        Ok(IpAddr::V4(address)) => unicast(address, SERVER_HELP),
        Ok(IpAddr::V6(_)) => ipv6(&text, SERVER_HELP),
        Err(_) => match text.parse::<SocketAddr>() {
            Ok(SocketAddr::V4(address)) => Complaint::new(
                format!("has a port: {text:?}"),
                format!("write \"{}\": method \"l2\" keeps the port that the client asked for", address.ip()),
            ),
            Ok(SocketAddr::V6(_)) => ipv6(&text, SERVER_HELP),
            Err(_) => not_an_address(&text, SERVER_HELP),
        },
    }
}

/// The MAC address of one station.
pub(super) fn mac(value: &DeValue<'_>) -> Result<Mac, Complaint> {
    let text = text(value)?;
    match text.parse::<Mac>() {
        Ok(mac) if mac.is_unicast() => Ok(mac),
        Ok(_) => Complaint::new(
            format!("is not the address of one station: {text:?}"),
            "write the MAC address of the server's interface; its first byte is even",
        ),
        Err(_) => Complaint::new(
            format!("is not a MAC address: {text:?}"),
            "write six pairs of hex digits, as in \"02:00:5e:10:00:01\"",
        ),
    }
}

/// Who may be discovered: a MAC address or an IPv4 address.
pub(super) fn allow(value: &DeValue<'_>) -> Result<Allow, Complaint> {
    let text = text(value)?;
    if let Ok(address) = text.parse() {
        return unicast(address, SERVER_HELP).map(Allow::Address);
    }
    if text.parse::<Mac>().is_ok() {
        return mac(value).map(Allow::Mac);
    }
    Complaint::new(
        format!("has neither a MAC nor an IPv4 address in {text:?}"),
        "write for example \"02:00:5e:10:00:01\" or \"192.0.2.11\"",
    )
}

fn unicast(address: Ipv4Addr, help: &str) -> Result<Ipv4Addr, Complaint> {
    let wrong = match address {
        a if a.is_multicast() => "a multicast address",
        a if a.is_broadcast() => "the broadcast address",
        a if a.is_unspecified() => "the unspecified address",
        a if a.is_loopback() => "a loopback address",
        _ => return Ok(address),
    };
    Complaint::new(format!("is {wrong}: {address}"), help)
}

fn ipv6<T>(text: &str, help: &str) -> Result<T, Complaint> {
    Complaint::new(
        format!("is an IPv6 address: {text:?}"),
        format!("this version of Evener is IPv4 only; {help}"),
    )
}

fn not_an_address<T>(text: &str, help: &str) -> Result<T, Complaint> {
    Complaint::new(format!("is not an IPv4 address: {text:?}"), help)
}
