//! Names that clients resolve for each connection, as in WebStone 2.5 (LBA paper, section 3).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Name, Rtype};
use domain::rdata::{A, Aaaa};

use crate::network::family::Family;

/// Name of a server, and the DNS server that knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    pub name: String,
    pub resolver: SocketAddr,
    /// Family of the wanted address.
    pub family: Family,
}

/// Number of attempts of a query.
const TRIES: u32 = 3;

impl ServerName {
    /// Returns the first address of the answer (RFC 1035, section 4.1), from the caller's network
    /// namespace.
    pub fn resolve(&self, timeout: Duration) -> Result<IpAddr> {
        let name: Name<Vec<u8>> = self.name.parse().context("That isn't a name")?;
        let socket = UdpSocket::bind(SocketAddr::new(Family::of(self.resolver.ip()).any(), 0))?;
        socket.connect(self.resolver)?;
        socket.set_read_timeout(Some(timeout / TRIES))?;
        let mut query = MessageBuilder::new_vec();
        // each query has a socket of its own
        query.header_mut().set_id(socket.local_addr()?.port());
        query.header_mut().set_rd(true);
        let mut query = query.question();
        let kind = if self.family == Family::V4 { Rtype::A } else { Rtype::AAAA };
        query.push((name, kind)).context("The query has no room for the name")?;
        let query = query.finish();
        let mut buffer = [0; 4_096];
        let mut query_once = || -> std::io::Result<usize> {
            socket.send(&query)?;
            socket.recv(&mut buffer)
        };
        let len = (0..TRIES).find_map(|_| query_once().ok()).context("The resolver did not answer")?;
        let answer = Message::from_octets(buffer.get(..len).unwrap_or_default())?;
        ensure!(query.starts_with(&answer.header().id().to_be_bytes()), "Another query was answered");
        ensure!(answer.header().rcode() == Rcode::NOERROR, "The answer is {}", answer.header().rcode());
        let records = answer.answer()?;
        let four = records.limit_to::<A>().flatten().map(|record| IpAddr::V4(record.data().addr()));
        let six =
            answer.answer()?.limit_to::<Aaaa>().flatten().map(|record| IpAddr::V6(record.data().addr()));
        four.chain(six).next().context("The answer has no address")
    }
}
