//! Conversion between a saved connection and the protocol's messages.

use evener_core::node::lccp::{ReceivedConnection, Scales, SocketId, TcpState, TcpWindow, TransferImage};
use evener_dataplane::repair::{AgreedOptions, Saved, Window};
use evener_dataplane::server::Idle;

/// Returns a connection's identity and image. `None` if its state can't be encoded.
pub(crate) fn transfer(saved: &Saved) -> Option<(SocketId, TransferImage)> {
    let socket = SocketId::new(saved.client, saved.service)?;
    let state = TcpState {
        snd_una: saved.send_next.wrapping_sub(saved.unacked.len() as u32),
        snd_nxt: saved.send_next.wrapping_sub(saved.unsent as u32),
        rcv_nxt: saved.receive_next,
        mss: saved.terms.mss,
        scales: scales(saved.terms.window_scales),
        sack: saved.terms.sack,
        timestamp: saved.terms.timestamp,
        window: window(&saved.window),
        send_len: u32::try_from(saved.unacked.len()).ok()?,
        receive_len: u32::try_from(saved.unread.len()).ok()?,
    };
    Some((socket, TransferImage::new(state, &saved.unacked, &saved.unread)?))
}

/// Returns the state of an idle connection, whose queues are empty. The state records if there are
/// timestamps, but not their value.
pub(super) fn at_rest(idle: &Idle) -> TcpState {
    TcpState {
        snd_una: idle.send_next,
        snd_nxt: idle.send_next,
        rcv_nxt: idle.receive_next,
        mss: idle.mss,
        scales: scales(idle.window_scales),
        sack: idle.sack,
        timestamp: idle.timestamps.then_some(0),
        window: window(&idle.window),
        send_len: 0,
        receive_len: 0,
    }
}

fn scales(scales: Option<(u8, u8)>) -> Option<Scales> {
    scales.map(|(snd, rcv)| Scales { snd, rcv })
}

fn window(window: &Window) -> TcpWindow {
    TcpWindow {
        snd_wl1: window.send_update,
        snd_wnd: window.send,
        max_window: window.send_max,
        rcv_wnd: window.receive,
        rcv_wup: window.receive_update,
    }
}

/// Returns the connection that was handed off to this host.
pub(crate) fn saved(socket: SocketId, handed: ReceivedConnection) -> Saved {
    let ReceivedConnection { state, send, receive } = handed;
    let send_next = state.snd_una.wrapping_add(state.send_len);
    Saved {
        client: socket.client(),
        service: socket.server(),
        receive_next: state.rcv_nxt,
        send_next,
        unacked: send,
        unsent: send_next.wrapping_sub(state.snd_nxt) as usize,
        unread: receive,
        terms: AgreedOptions {
            mss: state.mss,
            window_scales: state.scales.map(|scales| (scales.snd, scales.rcv)),
            sack: state.sack,
            timestamp: state.timestamp,
        },
        window: Window {
            send_update: state.window.snd_wl1,
            send: state.window.snd_wnd,
            send_max: state.window.max_window,
            receive: state.window.rcv_wnd,
            receive_update: state.window.rcv_wup,
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use evener_core::node::lccp::Assembly;

    use super::*;

    #[test]
    fn a_connection_is_the_same_behind_the_wire() {
        let ends = [("203.0.113.7:40000", "192.0.2.100:80"), ("[2001:db8::7]:40000", "[2001:db8::100]:80")];
        for ((client, service), (unacked, unsent, unread)) in ends
            .into_iter()
            .flat_map(|ends| [(0, 0, 18), (0, 0, 40_000), (3_000, 2_000, 1)].map(|lens| (ends, lens)))
        {
            let before = Saved {
                client: client.parse().unwrap(),
                service: service.parse().unwrap(),
                receive_next: 5_018,
                // The bytes span the wrap of sequence numbers.
                send_next: 100,
                unacked: vec![1; unacked],
                unsent,
                unread: (0..unread).map(|n| (n % 251) as u8).collect(),
                terms: AgreedOptions {
                    mss: 1_448,
                    window_scales: Some((8, 7)),
                    sack: true,
                    timestamp: Some(9),
                },
                window: Window { send_update: 1, send: 2, send_max: 3, receive: 4, receive_update: 5 },
            };
            let (socket, transfer) = transfer(&before).unwrap();
            let mut pieces = transfer.pieces(0);
            let mut assembly = Assembly::new(pieces.next().unwrap());
            assert!(pieces.all(|piece| assembly.add(piece)));
            assert_eq!(assembly.missing(), transfer.queued_len());
            assert_eq!(saved(socket, assembly.handed().unwrap()), before);
        }
    }
}
