//! A connection out of the kernel.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, recv};
use socket2::{SockFilter, SockRef};

use super::options::{self, Queue, TcpInfo};
use super::{NotSaved, RepairError, Saved};

/// How often a connection is read anew that changed meanwhile. Twice is enough once its packets are
/// held.
const ATTEMPTS: usize = 4;

/// Takes a connection out of the kernel, without a packet to the client. `already_read` is what the
/// caller has read of it and whoever gets the connection is to read again; the last of it is the
/// byte before those that are still in the receive queue.
///
/// Copies of the descriptor are left with a socket that isn't connected.
///
/// # Errors
/// Without CAP_NET_ADMIN; when the connection is not wholly open. It then goes on as it was.
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

/// The options that are changed of a socket in order to read it.
struct SavedOptions {
    reuse: bool,
    urgent_inline: bool,
}

impl SavedOptions {
    fn of(socket: &TcpStream) -> io::Result<SavedOptions> {
        let socket = SockRef::from(socket);
        Ok(SavedOptions { reuse: socket.reuse_address()?, urgent_inline: socket.out_of_band_inline()? })
    }

    /// Makes the socket as it was. An option that could be set can be set back.
    fn again(&self, socket: &TcpStream) {
        let _ = options::leave_repair_mode(socket.as_fd());
        let socket = SockRef::from(socket);
        let _ = socket.set_reuse_address(self.reuse);
        let _ = socket.set_out_of_band_inline(self.urgent_inline);
        // There may be none, if that was what failed.
        let _ = socket.detach_filter();
    }
}

/// From here on the client's segments are dropped before anything is acknowledged. It will send
/// them again.
fn freeze(socket: &TcpStream) -> Result<(), RepairError> {
    let socket = SockRef::from(socket);
    let drop_all = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    socket.attach_filter(&[drop_all]).map_err(RepairError::system("SO_ATTACH_FILTER"))?;
    // Else the queue's length would be told only as far as to an urgent byte, and what is behind it
    // would be lost.
    socket.set_out_of_band_inline(true).map_err(RepairError::system("SO_OOBINLINE"))
}

/// Reads the connection until it was the same before and after: a segment may have passed the
/// filter on another processor just before it was there.
fn settled(socket: &TcpStream, already_read: &[u8]) -> Result<Saved, RepairError> {
    for _ in 0..ATTEMPTS {
        let place = QueuePositions::of(socket.as_fd())?;
        let saved = copy(socket, place, already_read)?;
        let same = QueuePositions::of(socket.as_fd())? == place;
        // An end that came in is a state, not data.
        TcpInfo::of(socket.as_fd())?.require_open()?;
        match saved {
            Some(saved) if same => return Ok(saved),
            // Reading ends before an urgent byte.
            None if same => return Err(RepairError::Urgent),
            _ => {}
        }
    }
    Err(RepairError::Unsettled)
}

/// Where a connection is. It leaves the send queue selected, of which the kernel sends nothing
/// while it is.
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

/// All of a connection; nothing if its queues can't be read as far as to that place.
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

/// A queue of this length; nothing if so much can't be read. One call copies all of it, however
/// long: in repair a send queue can't be peeked at in parts at all.
fn peek(socket: BorrowedFd<'_>, queue: Queue, len: usize) -> Result<Option<Vec<u8>>, RepairError> {
    if len == 0 {
        return Ok(Some(Vec::new()));
    }
    options::select(socket, queue)?;
    let mut bytes = vec![0; len];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    match recv(socket.as_raw_fd(), &mut bytes, flags) {
        Ok(read) if read == len => Ok(Some(bytes)),
        // A length beyond the buffer is a bad address to the kernel, in a send queue.
        Ok(_) | Err(nix::Error::EFAULT | nix::Error::EAGAIN) => Ok(None),
        Err(error) => Err(RepairError::system("reading a queue")(error.into())),
    }
}

/// A socket of both families has its IPv4 peers at mapped addresses (RFC 4291, section 2.5.5.2).
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        _ => address,
    }
}
