//! Locates a member before each connection to it, since a name's owner may change its addresses at
//! any time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use evener_core::farm::group::{Reach, ReachError};
use evener_core::net::http::Url;
use evener_core::pool::health::Failure;
use tokio::net::lookup_host;

/// Reason not to open a connection to a member.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocateError {
    #[error("{0} has no address")]
    NoAddress(String),
    /// The name is unknown, or no resolver answered.
    #[error("{0} can't be resolved: {1}")]
    Unresolved(String, io::Error),
    /// The address belongs to this daemon.
    #[error("{0} is an address of this director")]
    Own(SocketAddr),
    /// The address is not allowed for members.
    #[error(transparent)]
    Outside(#[from] ReachError),
}

impl From<LocateError> for Failure {
    fn from(unreachable: LocateError) -> Failure {
        match unreachable {
            LocateError::NoAddress(_) | LocateError::Unresolved(..) => {
                Failure::Other(unreachable.to_string())
            }
            LocateError::Own(_) | LocateError::Outside(_) => Failure::Forbidden(unreachable.to_string()),
        }
    }
}

/// Returns the address of a member. All addresses of its name must be permitted, since clients may
/// use any of them.
///
/// # Errors
/// If no connection is allowed, or the name can't be resolved.
pub(crate) async fn locate(
    url: &Url,
    reach: Option<&Reach>,
    own: &[SocketAddr],
) -> Result<SocketAddr, LocateError> {
    locate_port(url, url.port(), reach, own).await
}

/// Like [`locate`], for another port of the member's host.
pub(crate) async fn locate_port(
    url: &Url,
    port: u16,
    reach: Option<&Reach>,
    own: &[SocketAddr],
) -> Result<SocketAddr, LocateError> {
    let found: Vec<SocketAddr> = match url.address() {
        Some(address) => vec![SocketAddr::new(address, port)],
        None => match lookup_host((url.host(), port)).await {
            Ok(found) => found.collect(),
            Err(error) => return Err(LocateError::Unresolved(url.host().to_owned(), error)),
        },
    };
    for address in &found {
        if is_own(*address, own) {
            return Err(LocateError::Own(*address));
        }
        if let Some(reach) = reach {
            reach.permits(url.host(), address.ip())?;
        }
    }
    found.first().copied().ok_or_else(|| LocateError::NoAddress(url.host().to_owned()))
}

/// True if a socket of this daemon listens at the address.
fn is_own(address: SocketAddr, own: &[SocketAddr]) -> bool {
    let ip = address.ip().to_canonical();
    let listens = |at: &SocketAddr| match at.ip() {
        any if any.is_unspecified() => any.is_ipv4() == ip.is_ipv4() && is_local(ip),
        at => at.to_canonical() == ip,
    };
    own.iter().filter(|at| at.port() == address.port()).any(listens)
}

/// True if an address belongs to this host: the kernel then selects it as source. No packet is
/// sent.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    // The kernel treats the unspecified destination as this host.
    ip.is_loopback() || ip.is_unspecified() || from.is_ok_and(|from| from.ip() == ip)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_this_director_is_known_by_its_address() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (address, own, is) in [
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("127.0.0.1:81", "0.0.0.0:80", false),
            ("0.0.0.0:80", "0.0.0.0:80", true),
            ("[::1]:80", "0.0.0.0:80", false),
            ("[::1]:80", "[::]:80", true),
            ("192.0.2.1:80", "0.0.0.0:80", false),
            ("192.0.2.1:80", "192.0.2.1:80", true),
            ("[::ffff:192.0.2.1]:80", "192.0.2.1:80", true),
        ] {
            assert_eq!(is_own(at(address), &[at(own)]), is, "{address} {own}");
        }
    }
}
