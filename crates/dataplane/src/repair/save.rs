//! Saves a connection from the kernel.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, recv};
use socket2::{SockFilter, SockRef};

use super::options::{self, Queue, TcpInfo};
use super::{NotSaved, RepairError, Saved};

/// Maximum number of reads of a connection that changes meanwhile. Two are enough once its packets
/// are dropped.
const ATTEMPTS: usize = 4;

/// Removes a connection from the kernel, without a packet to the client. `already_read` holds bytes
/// that the caller has read and the new owner has to read again; they directly precede the bytes in
/// the receive queue.
///
/// Copies of the descriptor then refer to a disconnected socket.
///
/// # Errors
/// Fails without CAP_NET_ADMIN, or if the connection is not fully open. The connection then
/// continues unchanged.
pub fn save(socket: TcpStream, already_read: &[u8]) -> Result<Saved, NotSaved> {
    match read_out(&socket, already_read) {
        Ok(saved) => Ok(saved),
        Err(error) => Err(NotSaved { socket, error }),
    }
}

fn read_out(socket: &TcpStream, already_read: &[u8]) -> Result<Saved, RepairError> {
    TcpInfo::of(socket.as_fd())?.require_open()?;
    let before = SavedOptions::of(socket).map_err(RepairError::system("reading the socket's options"))?;
    options::enter(socket.as_fd())?;
    let saved = freeze(socket).and_then(|()| settled(socket, already_read));
    let saved = saved.and_then(|saved| options::disconnect(socket.as_fd()).map(|()| saved));
    if saved.is_err() {
        before.again(socket);
    }
    saved
}

/// Socket options that change while the socket is read.
struct SavedOptions {
    reuse: bool,
    urgent_inline: bool,
}

impl SavedOptions {
    fn of(socket: &TcpStream) -> io::Result<SavedOptions> {
        let socket = SockRef::from(socket);
        Ok(SavedOptions { reuse: socket.reuse_address()?, urgent_inline: socket.out_of_band_inline()? })
    }

    /// Restores the socket. An option that could be set can be set back.
    fn again(&self, socket: &TcpStream) {
        let _ = options::leave_repair_mode(socket.as_fd());
        let socket = SockRef::from(socket);
        let _ = socket.set_reuse_address(self.reuse);
        let _ = socket.set_out_of_band_inline(self.urgent_inline);
        // No filter exists if attaching it failed.
        let _ = socket.detach_filter();
    }
}

/// Drops the client's segments from now on, before the kernel acknowledges them. The client
/// retransmits them.
fn freeze(socket: &TcpStream) -> Result<(), RepairError> {
    let socket = SockRef::from(socket);
    let drop_all = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    socket.attach_filter(&[drop_all]).map_err(RepairError::system("SO_ATTACH_FILTER"))?;
    // Without the option the queue length would end at an urgent byte, and later bytes would be
    // lost.
    socket.set_out_of_band_inline(true).map_err(RepairError::system("SO_OOBINLINE"))
}

/// Reads the connection until it is equal before and after. A segment may have passed on another
/// processor just before the filter was attached.
fn settled(socket: &TcpStream, already_read: &[u8]) -> Result<Saved, RepairError> {
    for _ in 0..ATTEMPTS {
        let place = QueuePositions::of(socket.as_fd())?;
        let saved = copy(socket, place, already_read)?;
        let same = QueuePositions::of(socket.as_fd())? == place;
        // A FIN is a state and not data.
        TcpInfo::of(socket.as_fd())?.require_open()?;
        match saved {
            Some(saved) if same => return Ok(saved),
            // A read stops before an urgent byte.
            None if same => return Err(RepairError::Urgent),
            _ => {}
        }
    }
    Err(RepairError::Unsettled)
}

/// Positions of both queues. Reading them leaves the send queue selected; the kernel sends nothing
/// from it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
struct QueuePositions {
    receive_next: u32,
    unread: usize,
    send_next: u32,
    unacked: usize,
    unsent: usize,
}

impl QueuePositions {
    fn of(socket: BorrowedFd<'_>) -> Result<QueuePositions, RepairError> {
        options::select(socket, Queue::Receive)?;
        let (receive_next, unread) = (options::sequence(socket)?, options::unread_len(socket)?);
        options::select(socket, Queue::Send)?;
        let send_next = options::sequence(socket)?;
        let (unacked, unsent) = (options::unacked_len(socket)?, options::unsent_len(socket)?);
        Ok(QueuePositions { receive_next, unread, send_next, unacked, unsent })
    }
}

/// Copies the connection. Returns `None` if a queue can't be read up to its position.
fn copy(
    socket: &TcpStream,
    place: QueuePositions,
    already_read: &[u8],
) -> Result<Option<Saved>, RepairError> {
    let fd = socket.as_fd();
    let unacked = peek(fd, Queue::Send, place.unacked)?;
    let received = peek(fd, Queue::Receive, place.unread)?;
    let (Some(unacked), Some(received)) = (unacked, received) else { return Ok(None) };
    let address = RepairError::system("the connection's addresses");
    Ok(Some(Saved {
        client: canonical(socket.peer_addr().map_err(&address)?),
        service: canonical(socket.local_addr().map_err(&address)?),
        receive_next: place.receive_next,
        send_next: place.send_next,
        unacked,
        unsent: place.unsent,
        unread: [already_read, &received].concat(),
        terms: TcpInfo::of(fd)?.terms(fd)?,
        window: options::window(fd)?,
    }))
}

/// Reads a queue of this length; `None` if it holds fewer bytes. One call reads all bytes, because
/// in repair mode a send queue can't be peeked in parts.
fn peek(socket: BorrowedFd<'_>, queue: Queue, len: usize) -> Result<Option<Vec<u8>>, RepairError> {
    if len == 0 {
        return Ok(Some(Vec::new()));
    }
    options::select(socket, queue)?;
    let mut bytes = vec![0; len];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    match recv(socket.as_raw_fd(), &mut bytes, flags) {
        Ok(read) if read == len => Ok(Some(bytes)),
        // For a send queue the kernel returns EFAULT if the length is wrong.
        Ok(_) | Err(nix::Error::EFAULT | nix::Error::EAGAIN) => Ok(None),
        Err(error) => Err(RepairError::system("reading a queue")(error.into())),
    }
}

/// Returns IPv4 peers of a dual-stack socket with their IPv4 address instead of the mapped one (RFC
/// 4291, section 2.5.5.2).
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        _ => address,
    }
}
