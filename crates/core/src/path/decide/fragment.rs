//! Sends later fragments to the destination of the first one (RFC 791, section 3.2; RFC 8200,
//! section 4.5).

use super::choose::Selected;
use super::deliver::DeliveryContext;
use super::flow::Flow;
use super::reply::{ClientPath, ReplyPath};
use super::{Decide, Decision, Reason};
use crate::path::fragments::{FragmentKey, LIFETIME_MS, Track};
use crate::path::parse::Layers;
use crate::path::rewrite::{self, Translation};
use crate::path::sessions::{FlowHash, ticks};
use crate::path::tables::Forwarding;

impl Decide<'_, '_> {
    /// Decides a fragment other than the first.
    pub(super) fn later_fragment(&mut self, at: &Layers) -> Decision {
        let tables = self.tables;
        let Some(fragment) = at.fragment else {
            return Decision::pass(Reason::NotService);
        };
        let Some(track) = self.find_track(&FragmentKey::of(at, fragment.id)) else {
            return match tables.has_address(at.dst) || tables.has_endpoint(at.src) {
                true => self.hold(Reason::FragmentHeld, Reason::FragmentLost),
                false => Decision::pass(Reason::NotService),
            };
        };
        if fragment.offset < track.first_end {
            return Decision::drop(Reason::FragmentOverlap);
        }
        let (Some(server), Some((service, vip))) =
            (tables.servers.get(&track.server), tables.vip_by_id(track.vip))
        else {
            return Decision::drop(Reason::NoServer);
        };
        if !track.answer {
            // Only the first fragment has ports, so the flow's hash is unknown. A tunnel may use
            // any path for the fragment.
            let context = DeliveryContext { hash: FlowHash(0), port: track.port, arrival: self.arrival(vip) };
            let (verdict, reason) = self.deliver(at, server, &context);
            return Decision { selected: Selected::of(track.server), ..Decision::of(verdict, reason) };
        }
        let client = match track.port {
            0 => Some((at.dst, None)),
            port => {
                let holder = self.memory.ports.holder(track.server, port, self.now);
                holder.map(|(holder, _)| (holder.session.client, Some(holder)))
            }
        };
        let (Some((client, holder)), Forwarding::Nat { own, .. }) = (client, server.forwarding) else {
            return Decision::drop(Reason::FragmentLost);
        };
        let path =
            ReplyPath { service: service.address, client, toward: ClientPath::of(self, client, holder), own };
        let ends = Translation { src: Some(service.address), dst: Some(client), ..Translation::default() };
        self.send_reply(at, &path, |packet| rewrite::translate(packet, at, &ends))
    }

    /// Records the destination of a first fragment. `port` is the source-NAT port of the client, or
    /// zero. `answer` is true for a server's packet.
    ///
    /// # Errors
    /// [`Reason::FragmentOverlap`] if another first fragment of the same packet has another
    /// destination or length. Reassembly would overwrite one of them with the other.
    pub(super) fn record_fragment(
        &self,
        flow: &Flow<'_>,
        server: u16,
        port: u16,
        answer: bool,
    ) -> Result<(), Reason> {
        let at = &flow.segment.at;
        let Some(fragment) = at.fragment else {
            return Ok(());
        };
        let expires = self.now.wrapping_add(ticks(LIFETIME_MS));
        let track = Track { expires, server, vip: flow.vip.id, port, first_end: fragment.end, answer };
        let key = FragmentKey::of(at, fragment.id);
        match self.find_track(&key) {
            Some(seen) if (Track { expires, ..seen }) != track => return Err(Reason::FragmentOverlap),
            Some(_) => {}
            None => self.memory.fragments.note(&key, track),
        }
        Ok(())
    }

    /// Returns the record of the first fragment, unless it has expired.
    fn find_track(&self, key: &FragmentKey) -> Option<Track> {
        let track = self.memory.fragments.find(key)?;
        // Ticks wrap after 52 days, so an old record seems valid again for five seconds. At worst
        // this costs one packet.
        let left = track.expires.wrapping_sub(self.now).wrapping_sub(1);
        (left < ticks(LIFETIME_MS)).then_some(track)
    }
}
