//! Parsers of network addresses.

use std::net::{IpAddr, SocketAddr};

use evener_core::farm::Allow;
use evener_core::net::prefix::{Prefix, PrefixError};
use evener_core::net::wire::Mac;
use toml::de::DeValue;

use super::section::Complaint;
use super::values::text;

const SERVICE_HELP: &str = "write address and port, such as \"192.0.2.100:80\" or \"[2001:db8::100]:80\"";
const SERVER_HELP: &str = "write the server's own address, such as \"192.0.2.11\" or \"2001:db8::11\"";
const PUBLISHED_HELP: &str = "write a service address, such as \"192.0.2.101\" or \"2001:db8::101\"";
const DIRECTOR_HELP: &str = "write a director's own address, such as \"192.0.2.2\" or \"2001:db8::2\"";

/// Parses the address and port that clients connect to.
pub(super) fn service_address(value: &DeValue<'_>) -> Result<SocketAddr, Complaint> {
    let text = text(value)?;
    let Ok(address) = text.parse::<SocketAddr>() else {
        return portless(&text);
    };
    if address.port() == 0 {
        return Complaint::new(format!("has port 0: {text:?}"), "write a port from 1 to 65535");
    }
    let ip = unicast(address.ip(), SERVICE_HELP)?;
    Ok(SocketAddr::new(ip, address.port()))
}

/// Parses an address and port to listen on: any address of this host, loopback included, or all of
/// them.
pub(super) fn listening(value: &DeValue<'_>) -> Result<SocketAddr, Complaint> {
    let text = text(value)?;
    let Ok(address) = text.parse::<SocketAddr>() else { return portless(&text) };
    match address {
        address if address.port() == 0 => {
            Complaint::new(format!("has port 0: {text:?}"), "write a port from 1 to 65535")
        }
        address if address.ip().is_multicast() => {
            Complaint::new(format!("is a multicast address: {}", address.ip()), SERVICE_HELP)
        }
        address => Ok(address),
    }
}

/// Returns the complaint about an address that should have a port.
fn portless<T>(text: &str) -> Result<T, Complaint> {
    let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() else {
        return not_an_address(text, SERVICE_HELP);
    };
    let (http, https) = (SocketAddr::new(address, 80), SocketAddr::new(address, 443));
    Complaint::new(
        format!("has no port: {text:?}"),
        format!("add the port: \"{http}\" for HTTP, \"{https}\" for HTTPS"),
    )
}

/// Parses an address of a host, without a port.
pub(super) fn address(value: &DeValue<'_>) -> Result<IpAddr, Complaint> {
    host(&text(value)?, SERVER_HELP)
}

/// Parses a server's own address, with an optional port.
pub(super) fn server_address(value: &DeValue<'_>) -> Result<(IpAddr, Option<u16>), Complaint> {
    let text = text(value)?;
    if let Ok(address) = text.parse::<SocketAddr>() {
        if address.port() == 0 {
            return Complaint::new(format!("has port 0: {text:?}"), "write a port from 1 to 65535");
        }
        return Ok((unicast(address.ip(), SERVER_HELP)?, Some(address.port())));
    }
    Ok((host(&text, SERVER_HELP)?, None))
}

/// Parses a service address that a host publishes. The port of the address is the service's port.
pub(super) fn published(value: &DeValue<'_>) -> Result<IpAddr, Complaint> {
    host(&text(value)?, PUBLISHED_HELP)
}

/// Parses a director's own address, without a port.
pub(super) fn director_address(value: &DeValue<'_>) -> Result<IpAddr, Complaint> {
    host(&text(value)?, DIRECTOR_HELP)
}

fn host(text: &str, help: &str) -> Result<IpAddr, Complaint> {
    if let Ok(address) = text.parse() {
        return unicast(address, help);
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        let help = format!("write it without brackets: \"{address}\"");
        return Complaint::new(format!("has brackets, but no port: {text:?}"), help);
    }
    match text.parse::<SocketAddr>() {
        Ok(address) => {
            Complaint::new(format!("has a port: {text:?}"), format!("write it without: \"{}\"", address.ip()))
        }
        Err(_) => not_an_address(text, help),
    }
}

/// Parses a unicast MAC address.
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

/// Parses a MAC or IP address of a server that may be discovered.
pub(super) fn allow(value: &DeValue<'_>) -> Result<Allow, Complaint> {
    let text = text(value)?;
    if let Ok(address) = text.parse() {
        return unicast(address, SERVER_HELP).map(Allow::Address);
    }
    if text.parse::<Mac>().is_ok() {
        return mac(value).map(Allow::Mac);
    }
    Complaint::new(
        format!("has neither a MAC nor an IP address in {text:?}"),
        "write for example \"02:00:5e:10:00:01\", \"192.0.2.11\" or \"2001:db8::11\"",
    )
}

/// Parses a network, or a single address.
pub(super) fn prefix(value: &DeValue<'_>) -> Result<Prefix, Complaint> {
    let text = text(value)?;
    text.parse().or_else(|error: PrefixError| {
        Complaint::new(
            format!("is no network: {text:?}"),
            format!("{error}; write for example \"192.0.2.0/24\" or \"2001:db8::11\""),
        )
    })
}

fn unicast(address: IpAddr, help: &str) -> Result<IpAddr, Complaint> {
    let wrong = match address {
        a if a.is_multicast() => "a multicast address",
        IpAddr::V4(a) if a.is_broadcast() => "the broadcast address",
        a if a.is_unspecified() => "the unspecified address",
        a if a.is_loopback() => "a loopback address",
        IpAddr::V6(a) if a.is_unicast_link_local() => "a link-local address, which no router passes on",
        IpAddr::V6(a) if a.to_ipv4_mapped().is_some() => "an IPv4 address in the form of IPv6",
        _ => return Ok(address),
    };
    Complaint::new(format!("is {wrong}: {address}"), help)
}

/// Returns the complaint about a text that should be an address.
fn not_an_address<T>(text: &str, help: &str) -> Result<T, Complaint> {
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let help = if host.parse::<IpAddr>().is_ok() || host.parse::<SocketAddr>().is_ok() {
            format!("omit the text around {host}; {help}")
        } else {
            help.to_owned()
        };
        return Complaint::new(format!("is a URL: {text:?}"), help);
    }
    let is_host = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if let Some((_, port)) = text.rsplit_once(':').filter(|(host, _)| is_host(host)) {
        return Complaint::new(format!("has no good port: {port:?}"), "write a port from 1 to 65535");
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    if text.bytes().all(is_name)
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !text.contains("::")
    {
        return Complaint::new(format!("is a name, not an IP address: {text:?}"), help);
    }
    Complaint::new(format!("is not an IP address: {text:?}"), help)
}
