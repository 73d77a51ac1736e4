//! Common parts of the tests: messages of every command, and two nodes.

mod corpus;
mod dissector;
mod document;
mod format;
mod talk;
mod transfer;

use core::net::IpAddr;
use std::vec::Vec;

use super::wire::{Addresses, LccpMessage};
use super::*;
use crate::node::association::Numbers;
use crate::node::secret::Secret;

/// A time in the second half of hour 500,000.
const NOW_S: u64 = 500_000 * EPOCH_S + EPOCH_S / 2;

fn secret() -> Secret {
    Secret::new(core::array::from_fn(|i| i as u8))
}

fn keys() -> HourlyKeys {
    HourlyKeys::at(&secret(), NOW_S)
}

fn address(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

/// Addresses of messages from node 11 to node 12.
fn there() -> Addresses {
    Addresses { source: address(11), destination: address(12) }
}

fn socket(ipv6: bool) -> SocketId {
    let (client, server) = match ipv6 {
        false => ("203.0.113.7:40000", "192.0.2.100:80"),
        true => ("[2001:db8::7]:40000", "[2001:db8:1::100]:443"),
    };
    SocketId::new(client.parse().unwrap(), server.parse().unwrap()).unwrap()
}

fn state() -> TcpState {
    TcpState {
        snd_una: 1_000,
        snd_nxt: 1_000,
        rcv_nxt: 5_018,
        mss: 1_448,
        scales: Some(Scales { snd: 8, rcv: 7 }),
        sack: true,
        timestamp: Some(123_456_789),
        window: TcpWindow {
            snd_wl1: 5_000,
            snd_wnd: 64_256,
            max_window: 64_256,
            rcv_wnd: 65_160,
            rcv_wup: 5_018,
        },
        send_len: 0,
        receive_len: 18,
    }
}

/// Returns the state of [`state`] with empty queues.
fn at_rest() -> TcpState {
    TcpState { rcv_nxt: 5_000, receive_len: 0, ..state() }
}

fn message(receptor: Receptor, body: MessageBody) -> LccpMessage {
    LccpMessage {
        numbers: Numbers { incarnation: 0x1111_2222_3333_4444, sequence: 7 },
        echo: Numbers { incarnation: 0x5555_6666_7777_8888, sequence: 0 },
        receptor,
        body,
    }
}

/// Returns one message of each command, for connections of this address family.
fn samples(ipv6: bool) -> Vec<LccpMessage> {
    let socket = socket(ipv6);
    let server = if ipv6 { "[2001:db8:2::5]:8443" } else { "192.0.2.21:80" }.parse().unwrap();
    let components = Components::new(&[Receptor::Distributor, Receptor::Forwarder]);
    let content = ClientRequest::new(b"www.example.com", b"GET", b"/img/a.png").unwrap();
    let piece =
        TransferImage::new(state(), b"", b"GET / HTTP/1.0\r\n\r\n").unwrap().pieces(0).next().unwrap();
    let error =
        |socket| message(Receptor::Distributor, MessageBody::Error { socket, code: ErrorCode::NoCapacity });
    [
        message(Receptor::Agent, MessageBody::Init { components }),
        message(Receptor::Agent, MessageBody::InitAck { components }),
        message(Receptor::Dispatcher, MessageBody::DispatchRequest { socket, content }),
        message(Receptor::Distributor, MessageBody::DispatchReply { socket, route: 3, server }),
        message(Receptor::Distributor, MessageBody::Handoff { socket, piece }),
        message(Receptor::Distributor, MessageBody::HandoffAck { socket, missing: 18 }),
        message(Receptor::Forwarder, MessageBody::Forward { socket, server }),
        message(Receptor::Distributor, MessageBody::ForwardAck { socket }),
        message(Receptor::Forwarder, MessageBody::Close { socket }),
        message(Receptor::Distributor, MessageBody::Release { socket, rcv_nxt: 5_000, snd_nxt: 1_000 }),
        message(Receptor::Distributor, MessageBody::Released { socket, state: at_rest() }),
        error(Some(socket)),
        error(None),
    ]
    .into()
}
