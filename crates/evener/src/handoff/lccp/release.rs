//! Releases an open connection, so that another server can have it for a later request.
//!
//! Only an idle connection is released: each request has its whole response, and the director holds
//! the next request. A reset in the client's name is injected into this host's stack, which closes
//! the server program's socket. The client notices nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evener_core::node::lccp::wire::LccpMessage;
use evener_core::node::lccp::{
    ErrorCode, MessageBody, Receptor, ReleaseAction, ResumePoint, SocketId, TcpState,
};
use evener_dataplane::repair;
use evener_dataplane::server::{ConnectionState, Connections};

use super::state::at_rest;
use super::take::HandoffReceiver;
use super::{AddressPair, LccpState, now_ms};

/// Pauses between checks if a connection is gone, in milliseconds.
const LOOKS_MS: [u64; 8] = [0, 1, 2, 5, 10, 20, 40, 80];

impl LccpState {
    /// Releases a connection, and sends the answer.
    pub(super) fn release(
        self: &Arc<Self>,
        way: AddressPair,
        message: LccpMessage,
        socket: SocketId,
        place: ResumePoint,
    ) {
        let answer = move |shared: &LccpState, result: Result<TcpState, ErrorCode>| {
            let body = match result {
                Ok(state) => MessageBody::Released { socket, state },
                Err(code) => MessageBody::Error { socket: Some(socket), code },
            };
            shared.answer(way, &message, Receptor::Distributor, body);
        };
        let receiver = self.receiver.as_ref();
        let Some((receiver, connections)) =
            receiver.and_then(|receiver| Some((receiver, receiver.connections()?)))
        else {
            return answer(self, Err(ErrorCode::NotRestored));
        };
        if !receiver.serves(socket.server()) {
            return answer(self, Err(ErrorCode::NoServer));
        }
        match receiver.releases().begin(way.node, socket, place, now_ms()) {
            ReleaseAction::Answer(result) => return answer(self, result),
            ReleaseAction::Wait => return,
            ReleaseAction::Grant => {}
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let Some(receiver) = &shared.receiver else { return };
            let result = receiver.grant(&connections, socket, place).await;
            // A node that got no answer asks again.
            let Some(result) = receiver.releases().end(way.node, socket, place, result) else { return };
            shared.counts.grant.fetch_add(result.is_ok().into(), Relaxed);
            answer(&shared, result);
        });
    }
}

impl HandoffReceiver {
    /// Ends a connection if it is idle at this point of its streams. Returns the connection's
    /// state, or the reason of a refusal. `None` if the state can't be read, or if the connection
    /// does not end in time.
    async fn grant(
        &self,
        connections: &Connections,
        socket: SocketId,
        place: ResumePoint,
    ) -> Option<Result<TcpState, ErrorCode>> {
        let (client, service) = (socket.client(), socket.server());
        let look = || {
            connections.state(client, service).inspect_err(|error| {
                tracing::warn!(%error, "failed to read whether a connection is idle");
            })
        };
        let idle = match look().ok()? {
            ConnectionState::Gone => return Some(Err(ErrorCode::Unknown)),
            ConnectionState::Unclear => return Some(Err(ErrorCode::NotRestored)),
            ConnectionState::Idle(idle)
                if (idle.receive_next, idle.send_next) == (place.rcv_nxt, place.snd_nxt) =>
            {
                idle
            }
            // An earlier segment is missing, or data is in flight.
            ConnectionState::Idle(_) | ConnectionState::Busy => return Some(Err(ErrorCode::Busy)),
        };
        self.inject(&repair::reset(client, service, idle.receive_next));
        for after_ms in LOOKS_MS {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            // If the server program has sent nothing since the check, the client has received all
            // bytes.
            if let Some(silent) = connections.ended_in_silence(client, service, &idle).ok()? {
                return Some(if silent { Ok(at_rest(&idle)) } else { Err(ErrorCode::NotRestored) });
            }
        }
        None
    }
}
