//! Speed of the server program, before responses to clients have shown it. The paper proposes one
//! request at the start (its section 4).

use std::net::SocketAddr;
use std::time::Duration;

use evener_core::farm::Service;
use evener_core::net::Protocol;
use evener_core::pool::HealthKind;

use super::host::count_own_request;
use crate::config::Config;
use crate::http::client::{self, Destination, RequestError};
use crate::io::locating::is_local;
use crate::io::network::Network;

/// Timeout of the request, and maximum number of bytes read.
const TIMEOUT: Duration = Duration::from_secs(2);
const BYTES_MAX: usize = 1 << 20;

/// Request to this host's server program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FirstRequest {
    to: SocketAddr,
    path: String,
    host: String,
}

/// Returns a request for each address in the file at which a server program of this host may
/// listen.
pub(super) fn first_requests(config: &Config, network: &Network) -> Vec<FirstRequest> {
    let services = config.services.iter().filter(|service| service.protocol == Protocol::Tcp);
    // Iterated lazily: there may be hundreds of thousands of members.
    let members = config.members().filter_map(|member| Some(SocketAddr::new(member.address?, member.port)));
    let members = members.filter(|to| network.is_local(to.ip()));
    let of_members = members.map(|to| FirstRequest { to, path: "/".to_owned(), host: to.to_string() });
    services.flat_map(|service| requests_of(service, network)).chain(of_members).collect()
}

/// Returns requests to this host's own addresses among the service's servers, and to the service's
/// addresses that this host holds.
fn requests_of(service: &Service, network: &Network) -> Vec<FirstRequest> {
    let port = service.addresses.first().map_or(80, SocketAddr::port);
    let servers = service.servers.iter().filter(|server| network.is_local(server.address));
    let own = servers.map(|server| SocketAddr::new(server.address, server.port.unwrap_or(port)));
    // The address may have been added since the network was read.
    let shared = service.addresses.iter().copied().filter(|address| is_local(address.ip()));
    let (path, host) = match &service.health.kind {
        HealthKind::Http { path, host, .. } => (path.clone(), host.clone()),
        _ => ("/".to_owned(), None),
    };
    let request = |to: SocketAddr| FirstRequest {
        to,
        path: path.clone(),
        host: host.clone().unwrap_or_else(|| to.to_string()),
    };
    own.chain(shared).map(request).collect()
}

/// Returns the speed of the first request that is answered, in bytes per second: length of the
/// response divided by the time since the request. `None` if no request is answered.
pub(super) async fn measure(requests: &[FirstRequest]) -> Option<f64> {
    for request in requests {
        match tokio::time::timeout(TIMEOUT, bytes_and_time(request)).await {
            Ok(Ok((bytes, time))) if bytes > 0 => return Some(bytes as f64 / time.as_secs_f64().max(1e-6)),
            outcome => tracing::debug!(to = %request.to, ?outcome, "failed to measure the initial bandwidth"),
        }
    }
    None
}

async fn bytes_and_time(first: &FirstRequest) -> Result<(usize, Duration), RequestError> {
    let FirstRequest { to, path, host } = first;
    let request = client::request("GET", path, host)?;
    count_own_request();
    let answer = client::send(&Destination::plain(*to), request, BYTES_MAX).await?;
    Ok((answer.body.len(), answer.duration))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_first_that_answers_gives_the_speed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let request = |to| FirstRequest { to, path: "/page".to_owned(), host: "a".to_owned() };
        let (free, there) = ("127.0.0.1:9".parse().unwrap(), listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let len = stream.read(&mut head).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            stream.write_all(&[b'x'; 100_000]).unwrap();
            String::from_utf8_lossy(&head[..len]).into_owned()
        });
        let speed = measure(&[request(free), request(there)]).await.unwrap();
        assert!(speed > 100_000.0 / TIMEOUT.as_secs_f64(), "{speed}");
        assert!(server.join().unwrap().starts_with("GET /page HTTP/1.1\r\nHost: a\r\n"));
        assert_eq!(measure(&[request(free)]).await, None);
    }
}
