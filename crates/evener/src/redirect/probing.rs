//! Whether a member does what its clients want of it: asked by this host's own stack, as clients ask.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use evener_core::director::{ProbePath, Target};
use evener_core::farm::health::Failure;
use evener_core::farm::{Health, HealthKind};
use evener_core::net::http::Url;
use tokio::net::lookup_host;

use crate::io::probe::probe;

/// Probes a member once: how long a good answer took, in microseconds. `own` is where this director answers: a member there would be
/// itself under another name, and its clients would be sent to and fro.
///
/// # Errors
/// Why it does not work.
pub(crate) async fn probe_member(url: &Url, health: &Health, own: &[SocketAddr]) -> Result<u64, Failure> {
    let timeout = Duration::from_millis(health.timeout_ms);
    let begun = Instant::now();
    let found = tokio::time::timeout(timeout, address(url)).await;
    let address = found.map_err(|_| Failure::Other("its name was not resolved in time".to_owned()))?;
    if let Ok(address) = &address
        && is_own(*address, own)
    {
        return Err(Failure::Other(format!("{address} is this director itself")));
    }
    if health.kind == HealthKind::None {
        return Ok(0);
    }
    let mut address = address?;
    address.set_port(health.port.unwrap_or(url.port()));
    let target = Target { destination: address, way: ProbePath::Direct { to: address } };
    let left = timeout.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
    probe(&target, None, &kind(url, health), left).await
}

/// What is asked of a member: below its URL, and by its own name. One that wants TLS is seen to listen, since probes don't speak it.
fn kind(url: &Url, health: &Health) -> HealthKind {
    match &health.kind {
        HealthKind::Http { .. } if url.is_secure() && health.port.is_none() => HealthKind::Tcp,
        HealthKind::Http { path, host, status, body } => HealthKind::Http {
            path: format!("{}{path}", url.path()),
            host: Some(host.clone().unwrap_or_else(|| url.authority().to_owned())),
            status: status.clone(),
            body: body.clone(),
        },
        other => other.clone(),
    }
}

/// Whether one of our sockets listens there.
fn is_own(address: SocketAddr, own: &[SocketAddr]) -> bool {
    let ip = address.ip().to_canonical();
    let listens = |at: &SocketAddr| match at.ip() {
        any if any.is_unspecified() => any.is_ipv4() == ip.is_ipv4() && is_local(ip),
        at => at.to_canonical() == ip,
    };
    own.iter().filter(|at| at.port() == address.port()).any(listens)
}

/// Whether an address is one of this host's: the kernel sends from it to itself. Nothing is sent here.
fn is_local(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    ip.is_loopback() || from.is_ok_and(|from| from.ip() == ip)
}

async fn address(url: &Url) -> Result<SocketAddr, Failure> {
    let found = lookup_host((url.host(), url.port())).await;
    let first = found.map(|mut addresses| addresses.next());
    match first {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(Failure::Other(format!("{} has no address", url.host()))),
        Err(error) => Err(Failure::Other(format!("{} can't be resolved: {error}", url.host()))),
    }
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
