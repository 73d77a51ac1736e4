//! A client and a server that exchange requests and responses, and the observed connection state.

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

/// The observed states of a connection.
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
    /// Bytes sent by the client.
    pub sent: u32,
    /// Bytes written by the server.
    pub sequence: u32,
    /// Bytes acknowledged by the client through [`Talk::receive_rest`].
    received: u32,
    last: Vec<u8>,
}

/// Runs `work` on a server whose programs track request and response.
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
    /// Opens a connection with a request, which the server reads.
    pub fn begin(world: &'a World, listener: &TcpListener, call: Call, request: &[u8]) -> Talk<'a> {
        let last = call.first(request);
        world.send(&call, &last);
        let (mut stream, _) = accept(listener, SOON).expect("a connection");
        // Without Nagle's algorithm, each write leaves at once in segments of its own.
        stream.set_nodelay(true).unwrap();
        assert_eq!(read(&mut stream, request.len()), request);
        let sent = request.len() as u32;
        let connections = world.server.connections().unwrap();
        Talk { world, connections, call, stream, sent, sequence: 0, received: 0, last }
    }

    /// Sends a request that acknowledges all bytes of the server. The server reads the request.
    pub fn send_request(&mut self, request: &[u8]) {
        self.send_unread(request, self.sequence);
        assert_eq!(read(&mut self.stream, request.len()), request);
    }

    /// Sends a request that acknowledges `received` bytes. The server does not read the request.
    pub fn send_unread(&mut self, request: &[u8], received: u32) {
        self.last = self.call.segment((1 + self.sent, 1 + received), TCP_ACK, request);
        self.world.send(&self.call, &self.last);
        self.sent += request.len() as u32;
    }

    /// Repeats the client's last request.
    pub fn again(&self) {
        self.world.send(&self.call, &self.last);
    }

    pub fn send(&mut self, text: &[u8]) {
        self.stream.write_all(text).unwrap();
        self.sequence += text.len() as u32;
    }

    /// Acknowledges all bytes that the server wrote.
    pub fn acknowledge(&self) {
        let segment = self.call.segment((1 + self.sent, 1 + self.sequence), TCP_ACK, &[]);
        self.world.send(&self.call, &segment);
    }

    /// Receives and acknowledges all bytes that the server wrote.
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

    /// Waits for a state: the client's segments need some time to arrive.
    pub fn comes_to(&self, wanted: Seen) {
        let end = Instant::now() + SOON;
        while self.seen() != wanted {
            assert!(Instant::now() < end, "{:?} and not {wanted:?}", self.seen());
            thread::sleep(Duration::from_millis(1));
        }
    }
}
