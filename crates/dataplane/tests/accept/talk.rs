//! A client and a server that talk in turns, and whoever looks whether they have done.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use evener_core::net::wire::TCP_ACK;
use evener_dataplane::server::{ConnectionState, Connections};

use crate::call::Call;
use crate::hosts::SOON;
use crate::skipped;
use crate::world::{PORT, World, accept, on_a_server, read};

pub const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n";
pub const OTHER: &[u8] = b"GET /other HTTP/1.1\r\nHost: www.example.com\r\n\r\n";
pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// The states seen of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Gone,
    Busy,
    Unclear,
    Idle,
}

pub struct Talk<'a> {
    world: &'a World,
    connections: Connections,
    pub call: Call,
    pub stream: TcpStream,
    /// Bytes that the client has sent.
    pub sent: u32,
    /// Bytes that the server has written.
    pub sequence: u32,
    /// Bytes that the client has heard of, where it listens.
    received: u32,
    last: Vec<u8>,
}

/// Does `work` on a server where turns are followed.
pub fn where_turns_are_followed(work: impl FnOnce(&mut World) + Send) {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        world.follow();
        work(world);
    });
}

impl<'a> Talk<'a> {
    /// Opens a connection by a request, which the server reads.
    pub fn begin(world: &'a World, listener: &TcpListener, call: Call, request: &[u8]) -> Talk<'a> {
        let last = call.first(request);
        world.send(&call, &last);
        let (mut stream, _) = accept(listener, SOON).expect("a connection");
        // Each write leaves at once, in segments of its own.
        stream.set_nodelay(true).unwrap();
        assert_eq!(read(&mut stream, request.len()), request);
        let sent = request.len() as u32;
        let connections = world.server.connections().unwrap();
        Talk { world, connections, call, stream, sent, sequence: 0, received: 0, last }
    }

    /// The client asks something, and in doing so says what it has heard: all.
    pub fn send_request(&mut self, request: &[u8]) {
        self.send_unread(request, self.sequence);
        assert_eq!(read(&mut self.stream, request.len()), request);
    }

    /// It has heard `heard` bytes. The server doesn't read.
    pub fn send_unread(&mut self, request: &[u8], received: u32) {
        self.last = self.call.segment((1 + self.sent, 1 + received), TCP_ACK, request);
        self.world.send(&self.call, &self.last);
        self.sent += request.len() as u32;
    }

    /// The client's last request comes again.
    pub fn again(&self) {
        self.world.send(&self.call, &self.last);
    }

    pub fn send(&mut self, text: &[u8]) {
        self.stream.write_all(text).unwrap();
        self.sequence += text.len() as u32;
    }

    /// The client says that it has heard all.
    pub fn acknowledge(&self) {
        let segment = self.call.segment((1 + self.sent, 1 + self.sequence), TCP_ACK, &[]);
        self.world.send(&self.call, &segment);
    }

    /// It listens to all that is written, and says so.
    pub fn receive_rest(&mut self) {
        while self.received < self.sequence {
            let data = self.world.receive_data(&self.call);
            self.received = self.received.max(data.seq - 1 + data.data.len() as u32);
            let segment = self.call.segment((1 + self.sent, 1 + self.received), TCP_ACK, &[]);
            self.world.send(&self.call, &segment);
        }
    }

    pub fn look(&self) -> ConnectionState {
        self.connections.state(self.call.ends.client, self.call.ends.service).unwrap()
    }

    pub fn seen(&self) -> Seen {
        match self.look() {
            ConnectionState::Gone => Seen::Gone,
            ConnectionState::Busy => Seen::Busy,
            ConnectionState::Unclear => Seen::Unclear,
            ConnectionState::Idle(idle) => {
                let ends = [self.call.isn + 1 + self.sent, self.call.cookie.wrapping_add(1 + self.sequence)];
                assert_eq!([idle.receive_next, idle.send_next], ends);
                Seen::Idle
            }
        }
    }

    /// Waits until this is seen: what the client sends is on its way for a while.
    pub fn comes_to(&self, wanted: Seen) {
        let end = Instant::now() + SOON;
        while self.seen() != wanted {
            assert!(Instant::now() < end, "{:?} and not {wanted:?}", self.seen());
            thread::sleep(Duration::from_millis(1));
        }
    }
}
