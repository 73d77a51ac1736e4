//! Queries and answers by UDP. All queued queries are handled at once, since a system call costs
//! more than an answer.

use std::array;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use evener_core::dns::UDP_MAX;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

/// Maximum length of a query.
const QUERY_MAX: usize = 4_096;
/// Maximum number of queries per read.
const BATCH: usize = 32;

/// Buffers for queries, answers and clients' addresses.
pub(super) struct Datagrams {
    queries: Box<[[u8; QUERY_MAX]; BATCH]>,
    answers: Box<[[u8; UDP_MAX]; BATCH]>,
    /// Length and source of each query.
    came: [(usize, Option<SockaddrStorage>); BATCH],
    /// Length of each answer.
    lens: [usize; BATCH],
    /// Destination of each answer.
    to: [Option<SockaddrStorage>; BATCH],
    /// Message headers for the system calls. Receiving writes addresses through them, and sending
    /// reads addresses.
    received: MultiHeaders<SockaddrStorage>,
    sent: MultiHeaders<SockaddrStorage>,
}

impl Datagrams {
    pub(super) fn new() -> Datagrams {
        Datagrams {
            queries: Box::new([[0; QUERY_MAX]; BATCH]),
            answers: Box::new([[0; UDP_MAX]; BATCH]),
            came: [(0, None); BATCH],
            lens: [0; BATCH],
            to: [None; BATCH],
            received: MultiHeaders::preallocate(BATCH, None),
            sent: MultiHeaders::preallocate(BATCH, None),
        }
    }

    /// Waits for queries, at most for the socket's timeout, and sends the answers that `answer`
    /// writes. `answer` gets a query and its client's address, and returns the answer's length, or
    /// `None`.
    ///
    /// # Errors
    /// If no query arrived.
    pub(super) fn answer(
        &mut self,
        socket: &UdpSocket,
        mut answer: impl FnMut(&[u8], IpAddr, &mut [u8]) -> Option<usize>,
    ) -> io::Result<()> {
        let count = self.receive(socket)?;
        let mut answered = 0;
        for (query, (len, from)) in self.queries.iter().zip(&self.came).take(count) {
            let (Some(query), Some(client)) = (query.get(..*len), from.as_ref().and_then(address)) else {
                continue;
            };
            let places = self.answers.get_mut(answered).zip(self.lens.get_mut(answered));
            let Some(((buffer, len), to)) = places.zip(self.to.get_mut(answered)) else { break };
            if let Some(written) = answer(query, client, buffer) {
                (*len, *to) = (written.min(UDP_MAX), *from);
                answered += 1;
            }
        }
        self.send(socket, answered);
        Ok(())
    }

    /// Receives queries. Returns their number.
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        let mut rooms = self.queries.each_mut().map(|query| [IoSliceMut::new(query)]);
        // Waits for the first query, and reads further queries that are queued.
        let flags = MsgFlags::MSG_WAITFORONE;
        let came = recvmmsg(socket.as_raw_fd(), &mut self.received, rooms.iter_mut(), flags, None)?;
        let mut count = 0;
        for (place, message) in self.came.iter_mut().zip(came) {
            *place = (message.bytes, message.address);
            count += 1;
        }
        Ok(count)
    }

    fn send(&mut self, socket: &UdpSocket, count: usize) {
        let (answers, lens) = (&self.answers, &self.lens);
        let all: [_; BATCH] = array::from_fn(|at| {
            let answer = answers.get(at).zip(lens.get(at)).and_then(|(answer, len)| answer.get(..*len));
            [IoSlice::new(answer.unwrap_or_default())]
        });
        let mut from = 0;
        while let (Some(answers), Some(to)) = (all.get(from..count), self.to.get(from..count)) {
            if answers.is_empty() {
                return;
            }
            let sent = sendmmsg(socket.as_raw_fd(), &mut self.sent, answers, to, [], MsgFlags::empty());
            from += match sent {
                Ok(sent) => sent.count().max(1),
                // The first answer can't be sent: its client is unreachable.
                Err(error) => {
                    tracing::debug!(%error, "failed to send an answer");
                    1
                }
            };
        }
    }
}

fn address(from: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = from.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| from.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}
