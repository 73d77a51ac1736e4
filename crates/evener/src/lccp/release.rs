//! Having a server let an open connection go, so that another one can have it: a later request is for other servers.
//!
//! Only one that rests is let go: each request on it has its whole answer, and the next is the one that the director holds. The
//! server's own program is told by a reset of the client's, which goes into its host's stack; the client notices nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evener_core::node::lccp::wire::Message;
use evener_core::node::lccp::{Body, ErrorCode, Handed, Receptor, SocketId, TcpState};
use evener_dataplane::repair::{self, Saved};
use evener_dataplane::server::{Connections, Look};

use super::state::{at_rest, saved};
use super::take::Taker;
use super::{Association, Shared, Speaker};
use crate::handoff::FourTuple;

/// What isn't answered is asked again after these times, in milliseconds; after the last it is given up.
const REPEATS_MS: [u64; 5] = [20, 40, 140, 400, 800];
/// When it is looked whether a connection is gone, in milliseconds since the look before.
const LOOKS_MS: [u64; 8] = [0, 1, 2, 5, 10, 20, 40, 80];
/// How often a connection may be at work at the same place. The client's segment comes again after a fifth of a second, and each
/// time after twice as long.
const BUSY_MAX: u32 = 5;
/// Connections that are being let go, or were a moment ago, some 150 bytes each. They are remembered for ten seconds, so this
/// bounds how many move in that time.
const RELEASES_MAX: usize = 65_536;

/// What a server says of a connection.
#[derive(Debug)]
pub(crate) enum Release {
    /// It is no more there; so it was, at rest. What its timestamps say is in the client's own segment.
    Released(Saved),
    /// It is at work, and may rest later.
    Busy,
    /// It can't be had from there.
    Refused,
    /// Nothing: it may be there or not.
    Unanswered,
}

/// Where a client's next segment begins, and what it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) rcv_nxt: u32,
    pub(super) snd_nxt: u32,
}

/// Connections that were let go a moment ago, or are about to be.
pub(super) type Releases = BTreeMap<(IpAddr, SocketId), Released>;

/// One of them.
pub(super) struct Released {
    place: Place,
    /// What was answered; nothing while it is being let go.
    answer: Option<Result<TcpState, ErrorCode>>,
    /// How often it was asked for in vain.
    busy: u32,
    pub(super) since: Instant,
}

impl Speaker {
    /// Has a server let a connection go, if it rests where the client's next segment begins.
    pub(crate) async fn release(
        &self,
        server: IpAddr,
        ends: &FourTuple,
        rcv_nxt: u32,
        snd_nxt: u32,
    ) -> Release {
        let counts = &self.0.counts;
        let socket = SocketId::new(ends.client, ends.service);
        let Some(socket) = socket.filter(|_| self.0.speaks(server, Receptor::Distributor)) else {
            return Release::Refused;
        };
        counts.release_asked.fetch_add(1, Relaxed);
        let body = Body::Release { socket, rcv_nxt, snd_nxt };
        match self.0.ask(server, Receptor::Distributor, body, &REPEATS_MS).await {
            Some(Body::Released { state, .. }) if (state.rcv_nxt, state.snd_nxt) == (rcv_nxt, snd_nxt) => {
                counts.released.fetch_add(1, Relaxed);
                Release::Released(saved(socket, Handed { state, send: Vec::new(), receive: Vec::new() }))
            }
            Some(Body::Error { code: ErrorCode::Busy, .. }) => {
                counts.release_busy.fetch_add(1, Relaxed);
                Release::Busy
            }
            Some(answer) => {
                tracing::debug!(%server, ?answer, "a connection was not let go");
                Release::Refused
            }
            None => {
                tracing::debug!(%server, "nothing was said of a connection that was to be let go");
                Release::Unanswered
            }
        }
    }
}

impl Shared {
    /// Lets a connection go, and answers once there is something to say.
    pub(super) fn release(
        self: &Arc<Self>,
        way: Association,
        heard: Message,
        socket: SocketId,
        place: Place,
    ) {
        let answer = move |shared: &Shared, said: Result<TcpState, ErrorCode>| {
            let body = match said {
                Ok(state) => Body::Released { socket, state },
                Err(code) => Body::Error { socket: Some(socket), code },
            };
            shared.answer(way, &heard, Receptor::Distributor, body);
        };
        let taker = self.taker.as_ref();
        let Some((taker, connections)) = taker.and_then(|taker| Some((taker, taker.connections()?))) else {
            return answer(self, Err(ErrorCode::NotRestored));
        };
        if !taker.serves(socket.server()) {
            return answer(self, Err(ErrorCode::NoServer));
        }
        match taker.begin((way.node, socket), place) {
            Next::Answer(said) => return answer(self, said),
            Next::Wait => return,
            Next::LetGo => {}
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let Some(taker) = &shared.taker else { return };
            let said = taker.let_go(&connections, socket, place).await;
            // Who got no answer asks again.
            let Some(said) = taker.end((way.node, socket), place, said) else { return };
            shared.counts.let_go.fetch_add(said.is_ok().into(), Relaxed);
            answer(&shared, said);
        });
    }
}

/// What is to be done about a question.
enum Next {
    Answer(Result<TcpState, ErrorCode>),
    LetGo,
    /// Nothing: it is being done.
    Wait,
}

impl Taker {
    fn begin(&self, key: (IpAddr, SocketId), place: Place) -> Next {
        let mut releases = self.releases();
        let known = releases.get(&key).filter(|released| released.place == place);
        let busy = known.map_or(0, |released| released.busy);
        match known {
            Some(Released { answer: None, .. }) => return Next::Wait,
            // What was at work may rest by now.
            Some(Released { answer: Some(said), .. }) if *said != Err(ErrorCode::Busy) => {
                return Next::Answer(*said);
            }
            _ if releases.len() >= RELEASES_MAX && !releases.contains_key(&key) => {
                return Next::Answer(Err(ErrorCode::NoRoom));
            }
            _ => {}
        }
        releases.insert(key, Released { place, answer: None, busy, since: Instant::now() });
        Next::LetGo
    }

    /// Notes what came of it, and says what there is to say; `None` is asked again. What never comes to rest is not waited
    /// for.
    fn end(
        &self,
        key: (IpAddr, SocketId),
        place: Place,
        said: Option<Result<TcpState, ErrorCode>>,
    ) -> Option<Result<TcpState, ErrorCode>> {
        let mut releases = self.releases();
        let released = releases.get_mut(&key).filter(|released| released.place == place)?;
        let Some(said) = said else {
            releases.remove(&key);
            return None;
        };
        released.busy += u32::from(said == Err(ErrorCode::Busy));
        let said = if released.busy > BUSY_MAX { Err(ErrorCode::NotRestored) } else { said };
        released.answer = Some(said);
        Some(said)
    }

    /// Ends a connection that rests here, and no other. `None`: that can't be told.
    async fn let_go(
        &self,
        connections: &Connections,
        socket: SocketId,
        place: Place,
    ) -> Option<Result<TcpState, ErrorCode>> {
        let (client, service) = (socket.client(), socket.server());
        let look = || {
            connections.look(client, service).inspect_err(|error| {
                tracing::warn!(%error, "whether a connection rests can't be told");
            })
        };
        let idle = match look().ok()? {
            Look::Gone => return Some(Err(ErrorCode::Unknown)),
            Look::Unclear => return Some(Err(ErrorCode::NotRestored)),
            Look::Idle(idle) if (idle.receive_next, idle.send_next) == (place.rcv_nxt, place.snd_nxt) => idle,
            // An earlier segment is missing yet, or more is under way.
            Look::Idle(_) | Look::Busy => return Some(Err(ErrorCode::Busy)),
        };
        self.put(&repair::reset(client, service, idle.receive_next));
        for after_ms in LOOKS_MS {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            // What the server said at the very end the client has heard.
            if let Some(silent) = connections.ended_in_silence(client, service, &idle).ok()? {
                return Some(if silent { Ok(at_rest(&idle)) } else { Err(ErrorCode::NotRestored) });
            }
        }
        None
    }
}
