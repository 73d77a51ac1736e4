//! Reception of datagrams: which count, and what they change.

use super::event::PeerEvent;
use super::link::LastReport;
use super::wire::{Body, Datagram, HostReport, ReadError, VERSION};
use super::{DatagramEffect, KnownHost, PeerState, Peers, Publishable, publishable};
use crate::node::association::{Handshake, MessageVerdict, ReceivedMessage, Refusal};
use crate::node::envelope::digest;

impl Peers {
    /// Applies a datagram from any sender.
    pub fn receive(&mut self, now_ms: u64, bytes: &[u8]) -> DatagramEffect {
        self.wake(now_ms);
        let datagram = match Datagram::read(bytes, &self.settings.key) {
            Ok(datagram) => datagram,
            Err(ReadError::Malformed) => return self.refuse(None, Refusal::Malformed),
            Err(ReadError::Forged { claimed }) => return self.refuse_forged(claimed),
        };
        let own = digest(&self.settings.name);
        if datagram.sender == own {
            let mirrored = datagram.numbers.incarnation == self.incarnation;
            return self.refuse(None, if mirrored { Refusal::Replayed } else { Refusal::Namesake });
        }
        let Some(link) = self.links.get_mut(&datagram.sender) else {
            return self.refuse(None, Refusal::Stranger);
        };
        if datagram.receiver != own {
            return self.refuse(Some(datagram.sender), Refusal::Misdirected);
        }
        let mut received = DatagramEffect::default();
        let before = KnownHost::of(link, self.settings.generation);
        // Every datagram names its sender, so any datagram may start an association.
        let Datagram { numbers, echo, .. } = datagram;
        let answers = match link
            .association
            .judge(now_ms, ReceivedMessage { numbers, echo, handshake: Handshake::Hello })
        {
            MessageVerdict::Refused(Refusal::Stale) => {
                // After a host was unreachable for a while, its first datagrams echo old datagrams.
                link.association.refuse(Refusal::Stale);
                true
            }
            MessageVerdict::Refused(refusal) => return self.refuse(Some(datagram.sender), refusal),
            MessageVerdict::Hello => {
                if let (None, Body::Report(report)) = (link.association.received_ms(), &datagram.body) {
                    received.changed = link.macs != report.macs;
                    link.macs = report.macs.clone();
                }
                true
            }
            MessageVerdict::Good { first, revived } => {
                if revived {
                    link.since_ms = now_ms;
                    received.notices.push(PeerEvent::Answers { host: link.name.clone() });
                }
                if first {
                    self.owner.begins_anew(&link.name);
                }
                // If the sender was silent until now, it does not count as company of this host.
                self.rejoin(now_ms, &datagram, revived.then_some(datagram.sender), &mut received);
                self.believe(now_ms, &datagram, &before, &mut received);
                received.changed |= self.settle_ready(now_ms);
                self.release(now_ms, &mut received.notices, &mut received.changed);
                // An immediate answer confirms to the sender that its datagrams arrive.
                first
            }
        };
        if answers {
            received.answer = self.answer(now_ms, &datagram);
        }
        received
    }

    /// Counts a refused datagram. The first refusal for each reason becomes an event.
    fn refuse(&mut self, sender: Option<u64>, refusal: Refusal) -> DatagramEffect {
        let (host, news, changed) = match sender.and_then(|sender| self.links.get_mut(&sender)) {
            Some(PeerState { name, association, .. }) => {
                (Some(name.clone()), association.refuse(refusal), association.suspect(refusal))
            }
            None => (None, self.others.refuse(refusal), false),
        };
        let notice = news.then_some(PeerEvent::Refused { host, refusal });
        DatagramEffect { notices: notice.into_iter().collect(), answer: None, changed }
    }

    /// Counts a datagram with a wrong tag. The host in whose name the datagram was sent may have
    /// another secret.
    fn refuse_forged(&mut self, claimed: u64) -> DatagramEffect {
        let link = self.links.get_mut(&claimed);
        let changed = link.is_some_and(|link| link.association.suspect(Refusal::Forged));
        DatagramEffect { changed, ..self.refuse(None, Refusal::Forged) }
    }

    /// Handles the end of this host's isolation. A host that was alone or had another file has a
    /// ring that differs from the other hosts' ring. After a report of a host that is in company of
    /// others ([`HostReport::accompanied`]), this host starts again with their ring, as after a
    /// restart.
    fn rejoin(
        &mut self,
        now_ms: u64,
        datagram: &Datagram,
        was_away: Option<u64>,
        received: &mut DatagramEffect,
    ) {
        let Body::Report(report) = &datagram.body else { return };
        let finds = report.ready && report.accompanied && report.generation == self.settings.generation;
        if self.ready && finds && !self.is_accompanied_but_for(was_away) {
            self.ready = false;
            self.ready_at_ms = now_ms.saturating_add(self.settings.silence_ms);
            received.changed = true;
            received.notices.push(PeerEvent::Rejoins);
            self.owner.forget_claims();
            self.send_soon();
        }
    }

    /// Applies an accepted datagram.
    fn believe(
        &mut self,
        now_ms: u64,
        datagram: &Datagram,
        before: &KnownHost,
        received: &mut DatagramEffect,
    ) {
        let Some(link) = self.links.get_mut(&datagram.sender) else { return };
        let host = link.name.clone();
        match &datagram.body {
            Body::Report(report) => {
                link.macs = report.macs.clone();
                link.generation = Some(report.generation);
                if report.generation == self.settings.generation {
                    link.differs_since_ms = None;
                    if core::mem::take(&mut link.reported_difference) {
                        received.notices.push(PeerEvent::Agrees { host: host.clone() });
                    }
                    let left = link.is_ready() && !report.ready;
                    link.left |= left;
                    let returned = report.ready && core::mem::take(&mut link.left);
                    if !self.ready && link.content.is_none() {
                        // A host with the same configuration has reported for the first time, so
                        // this host waits for the reports of other hosts, too.
                        self.ready_at_ms = now_ms.saturating_add(self.settings.silence_ms);
                    }
                    link.content = Some(content(report, publishable(&self.settings)));
                    let back = returned.then(|| PeerEvent::Returned { host: host.clone() });
                    received.notices.extend(left.then_some(PeerEvent::Left { host }).or(back));
                } else {
                    link.association.refuse(Refusal::Generation);
                    let since_ms = *link.differs_since_ms.get_or_insert(now_ms);
                    // Hosts never reload at exactly the same time, so a short difference is no
                    // event.
                    let long = now_ms >= since_ms + self.settings.silence_ms;
                    if long && !core::mem::replace(&mut link.reported_difference, true) {
                        received.notices.push(PeerEvent::Differs { host, generation: report.generation });
                    }
                }
            }
            Body::Foreign { version } => {
                link.generation = None;
                let refusal = Refusal::Version { theirs: *version, ours: VERSION };
                link.association.suspect(refusal);
                if link.association.refuse(refusal) {
                    received.notices.push(PeerEvent::Refused { host: Some(host), refusal });
                }
            }
        }
        link.note_presence(now_ms);
        let after = KnownHost::of(link, self.settings.generation);
        received.changed |= after.without_loads() != before.without_loads();
    }
}

fn content(report: &HostReport, addresses: &[Publishable]) -> LastReport {
    let owned = (0..).zip(addresses).filter(|(at, _)| report.owned & (1 << at) != 0);
    LastReport {
        ready: report.ready,
        load: report.load,
        servers: report.servers.clone(),
        owned: owned.map(|(_, one)| one.address).collect(),
    }
}
