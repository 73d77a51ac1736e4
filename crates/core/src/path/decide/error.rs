//! Sends an ICMP error to the sender of the packet that the error quotes (RFC 792; RFC 4443; RFC
//! 5508, section 4.2).

use super::choose::{Selected, session_applies};
use super::deliver::DeliveryContext;
use super::reply::ReplyPath;
use super::{Decide, Decision, Reason, Verdict};
use crate::path::arrival::Arrival;
use crate::path::parse::IcmpError;
use crate::path::ports::Holder;
use crate::path::rewrite::{self, Translation};
use crate::path::sessions::SessionKey;
use crate::path::tables::{Forwarding, ServerEntry, Vip, VipKey};
use core::net::SocketAddr;

impl Decide<'_, '_> {
    pub(super) fn icmp_error(&mut self, error: &IcmpError) -> Decision {
        if !self.tables.has_address(error.at.dst) {
            return self.error_to_client(error);
        }
        let sender = VipKey { address: error.quoted.src, port: error.src_port, protocol: error.protocol };
        match self.tables.vips.get(&sender).filter(|_| error.quoted.src == error.at.dst) {
            Some(vip) => self.error_to_server(error, vip),
            None => Decision::drop(Reason::IcmpUnknown),
        }
    }

    /// Sends an error about a server's packet to the server.
    fn error_to_server(&mut self, error: &IcmpError, vip: &Vip) -> Decision {
        let key = SessionKey { client: error.quoted.dst, port: error.dst_port, vip: vip.id };
        let hash = key.hash(self.memory.seed);
        let arrival = self.arrival(vip);
        let session = self.memory.sessions.find(key, hash, self.now).map(|session| session.value);
        let selected = match session.filter(|session| session_applies(arrival, vip, *session)) {
            Some(session) => Selected::of(session.server()),
            // After a handoff, only the host with the session knows the server. If another host
            // forwarded this error, that host has the session, and this host is the server.
            None if vip.handoff.is_some() && arrival == Arrival::Direct => {
                return Decision::drop(Reason::IcmpUnknown);
            }
            None if vip.handoff.is_some() => Selected::of(vip.own),
            // Another director or host may have the session, since routers hash an error by its own
            // source. The error follows the flow's packets.
            None => self.select_without_session(vip, key, arrival),
        };
        let Some(server) = self.tables.servers.get(&selected.server) else {
            return Decision::drop(Reason::IcmpUnknown);
        };
        if let Forwarding::Nat { .. } = server.forwarding {
            let decision = self.error_by_nat(error, (selected.server, server), key);
            return decision.unwrap_or_else(|| Decision::drop(Reason::IcmpUnknown));
        }
        let context = DeliveryContext { hash, port: 0, arrival };
        let (verdict, reason) = match self.deliver(&error.at, server, &context) {
            (verdict, Reason::Forwarded | Reason::Local) => (verdict, Reason::IcmpForwarded),
            stopped => stopped,
        };
        Decision { selected, ..Decision::of(verdict, reason) }
    }

    /// Sends an error to a server with NAT forwarding.
    fn error_by_nat(
        &mut self,
        error: &IcmpError,
        (slot, server): (u16, &ServerEntry),
        key: SessionKey,
    ) -> Option<Decision> {
        let Forwarding::Nat { to, own, source_nat, mtu } = server.forwarding else {
            return None;
        };
        let src = *self.tables.interfaces.get(&server.ifindex)?;
        let port = match source_nat {
            true => {
                // Only the client itself can have sent an error about its link-local address.
                let holder = Holder { session: key, near: self.near(error.quoted.dst, &error.at).ok()? };
                Some(self.memory.ports.find(slot, holder, key.hash(self.memory.seed), self.now)?.0)
            }
            false => None,
        };
        if let Err((verdict, reason)) = self.fits(&error.at, mtu.into(), error.at.dst) {
            return Some(Decision::of(verdict, reason));
        }
        rewrite::decrement_ttl(self.packet.frame_mut(), &error.at);
        // With source NAT the server must get the error from the director's address, the only one
        // that the server sees.
        let outer =
            Translation { src: source_nat.then_some(own), dst: Some(to.ip()), ..Translation::default() };
        let quoted = Translation {
            src: Some(to.ip()),
            src_port: Some(to.port()),
            dst: port.map(|_| own),
            dst_port: port,
        };
        rewrite::translate_error(self.packet, error, &outer, &quoted);
        self.untag(&error.at, server.ifindex);
        self.packet.readdress(src, server.mac);
        Some(Decision::of(Verdict::Forward { ifindex: server.ifindex }, Reason::IcmpForwarded))
    }

    /// Sends an error about a client's packet to the client. The server or a router before the
    /// server has sent the error.
    fn error_to_client(&mut self, error: &IcmpError) -> Decision {
        let endpoint = VipKey { address: error.quoted.dst, port: error.dst_port, protocol: error.protocol };
        let from = SocketAddr::new(error.quoted.src, error.src_port);
        let Some(reply) = self.find_reply_session(&endpoint, from, |_| true) else {
            return Decision::pass(Reason::NotService);
        };
        let ReplyPath { service, client, .. } = reply.path;
        // Addresses of the servers' network are private. So the client gets the error from the
        // service's address, whichever host has sent the error (RFC 5508, section 4.2).
        let outer = Translation { src: Some(service), dst: Some(client), ..Translation::default() };
        let quoted = Translation {
            src: reply.port.map(|_| client),
            src_port: reply.port.map(|_| reply.key.port),
            dst: Some(service),
            dst_port: Some(reply.service.port),
        };
        let decision = self.send_reply(&error.at, &reply.path, |packet| {
            rewrite::translate_error(packet, error, &outer, &quoted);
        });
        match decision.reason {
            Reason::Answered => Decision { reason: Reason::IcmpForwarded, ..decision },
            _ => decision,
        }
    }
}
