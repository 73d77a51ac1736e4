//! Processes one frame: decides it in place and adds it to the outgoing batch.

use evener_core::net::packet::{Checksum, Packet};
use evener_core::path::decide::{Decision, Memory, Reason, Verdict, decide};
use evener_core::path::rewrite::outer_len;
use evener_core::path::tables::{Forwarding, Tables};

use super::guard::Withheld;
use super::outbox::{Exits, Filling, Outbox, l3_of, make_local};
use super::ring::{RESERVE, VLAN_LEN};
use super::segments::{Gathered, Segments, finish_checksum};
use super::tally::Tally;
use super::trace::{EventSender, TraceContext};
use super::virtio::{VIRTIO_LEN, Virtio};
use crate::events::TraceFilter;
use crate::fragment_queue::FragmentQueue;
use crate::rehandoff::RehandoffSlot;

/// Context of a frame's decision.
pub(super) struct FrameContext<'a> {
    pub(super) tables: &'a Tables,
    pub(super) withheld: &'a Withheld,
    pub(super) memory: &'a Memory<'a>,
    pub(super) exits: &'a Exits,
    /// Interface that the frames arrived on.
    pub(super) ingress: u32,
    /// Loopback interface, on which frames are sent to the host's own stack.
    pub(super) loopback: u32,
    pub(super) now: u32,
    pub(super) watch: &'a TraceFilter,
    pub(super) event_sender: &'a EventSender,
    pub(super) moves: &'a RehandoffSlot,
}

pub(super) struct FrameScratch {
    pub(super) tally: Tally,
    pub(super) fragments: FragmentQueue,
    segments: Segments,
    /// Outbox for frames outside of the ring.
    outbox: Outbox,
}

impl FrameScratch {
    pub(super) fn new() -> FrameScratch {
        FrameScratch {
            tally: Tally::new(),
            fragments: FragmentQueue::default(),
            segments: Segments::default(),
            outbox: Outbox::new(),
        }
    }

    /// Queues a frame whose verdict is to hold.
    fn queue_fragment(&mut self, decision: &Decision, frame: &[u8], around: &FrameContext<'_>) {
        let reason = decision.reason;
        self.tally.reason(reason);
        if matches!(reason, Reason::Rehandoff | Reason::RehandoffBuffered) {
            return around.moves.give(reason, around.ingress, decision.server(), frame);
        }
        if !self.fragments.push(frame, around.ingress, around.now) {
            self.tally.reason(Reason::FragmentLost);
        }
    }

    /// Decides again the frames that wait for their first fragment.
    pub(super) fn release_fragments(&mut self, around: &FrameContext<'_>) {
        use crate::fragment_queue::WaitOutcome;
        let FrameScratch { tally, fragments, outbox, .. } = self;
        fragments.decide(around.tables, around.memory, around.now, |outcome| match outcome {
            WaitOutcome::Lost => tally.reason(Reason::FragmentLost),
            WaitOutcome::Decided { decision, len, packet } => {
                tally.decision(&decision, len);
                outbox.carry_out(&decision, packet, around.loopback, around.exits);
            }
        });
    }

    /// Sends the segments of a frame. The batch is sent first, to keep the order of a flow's
    /// frames.
    fn send_cut(
        &mut self,
        gathered: &Gathered<'_>,
        batch: &mut Filling<'_, '_>,
        ifindex: u32,
        exits: &Exits,
    ) {
        batch.send(exits);
        self.segments.cut(gathered, VIRTIO_LEN);
        let mut own = self.outbox.fill();
        for segment in self.segments.each() {
            if own.is_full() {
                own.send(exits);
            }
            own.push(segment, ifindex);
        }
        own.send(exits);
    }
}

/// Processes the frame in `buffer`, which starts behind [`RESERVE`] bytes.
pub(super) fn work<'f>(
    buffer: &'f mut [u8],
    tag: Option<(u16, u16)>,
    around: &FrameContext<'_>,
    tools: &mut FrameScratch,
    batch: &mut Filling<'_, 'f>,
) {
    let Some(virtio) = buffer.get(RESERVE - VIRTIO_LEN..).and_then(|rest| rest.first_chunk()) else { return };
    let mut virtio = Virtio::read(virtio);
    let start = put_tag_back(buffer, tag);
    let mut packet = Packet::new(buffer, start, around.ingress);
    if virtio.is_partial() {
        packet.checksum = Checksum::Partial;
    }
    packet.segment_len = virtio.segment_len();
    let len = packet.frame().len();
    let before = TraceContext::of(around.watch, around.tables, &packet);
    let decision = decide(around.tables, around.memory, &mut packet, around.now);
    if let Some(before) = before {
        around.event_sender.trace(around.watch, before, &decision, packet.frame());
    }
    if decision.verdict == Verdict::Hold {
        return tools.queue_fragment(&decision, packet.frame(), around);
    }
    tools.tally.decision(&decision, len);
    // A packet that the decision built itself needs at most a checksum from the hardware.
    if packet.segment_len.is_none() {
        virtio = virtio.of_one_packet();
    }
    let goes_up = decision.verdict == Verdict::Pass && goes_up(decision.reason, packet.frame(), around);
    let own = packet.checksum == Checksum::Whole && packet.segment_len.is_none();
    let (mut start, end) = (packet.start(), packet.start() + packet.frame().len());
    let moved =
        |start: usize| if own { Virtio::default() } else { virtio.moved(RESERVE as isize - start as isize) };
    let mut virtio = moved(start);
    let ifindex = match (decision.verdict, decision.reason) {
        (Verdict::Forward { ifindex }, _) => {
            let frame = &mut buffer[start..end];
            if let Some(outer_len) =
                tunnel(around.tables, decision.server()).filter(|_| virtio != Virtio::default())
            {
                // Hardware may not support offloads of a tunnel's inner packet.
                let outer = l3_of(frame);
                if let Some(gathered) = gathered(frame, Some(outer), outer + outer_len, &virtio) {
                    return tools.send_cut(&gathered, batch, ifindex, around.exits);
                }
                virtio = finished(frame, &virtio);
            }
            ifindex
        }
        _ if goes_up => {
            start += make_local(&mut buffer[start..end]);
            virtio = moved(start);
            around.loopback
        }
        (Verdict::HostStack { link }, _) => {
            return by_host(&mut buffer[start..end], &virtio, tools, around.exits, link);
        }
        _ => return,
    };
    let packet = &mut buffer[start - VIRTIO_LEN..end];
    packet[..VIRTIO_LEN].copy_from_slice(&virtio.bytes());
    batch.push(packet, ifindex);
}

/// True if a passed frame is sent to the host's own stack over the loopback interface, because the
/// guard drops the original frame.
fn goes_up(reason: Reason, frame: &[u8], around: &FrameContext<'_>) -> bool {
    match reason {
        Reason::Local | Reason::IcmpForwarded => true,
        Reason::NotService => around.withheld.has(around.tables, around.ingress, frame),
        _ => false,
    }
}

/// Restores the VLAN tag that the kernel removed from a frame. Returns the new start of the frame.
fn put_tag_back(buffer: &mut [u8], tag: Option<(u16, u16)>) -> usize {
    let Some((kind, value)) = tag else { return RESERVE };
    let start = RESERVE - VLAN_LEN;
    let addresses_len = 12;
    if buffer.len() < RESERVE + addresses_len {
        return RESERVE;
    }
    buffer.copy_within(RESERVE..RESERVE + addresses_len, start);
    let at = start + addresses_len;
    buffer[at..at + 2].copy_from_slice(&kind.to_be_bytes());
    buffer[at + 2..at + 4].copy_from_slice(&value.to_be_bytes());
    start
}

/// Length of a tunnel server's outer headers in bytes; `None` for other servers.
fn tunnel(tables: &Tables, server: u16) -> Option<usize> {
    match tables.servers.get(&server)?.forwarding {
        Forwarding::Tunnel { encapsulation, to, mark, .. } => {
            Some(outer_len(encapsulation, to, mark.is_some()))
        }
        Forwarding::Link | Forwarding::Nat { .. } => None,
    }
}

/// Returns a frame of several segments; `None` for a frame of one packet.
fn gathered<'f>(frame: &'f [u8], outer: Option<usize>, l3: usize, virtio: &Virtio) -> Option<Gathered<'f>> {
    let segment_len = usize::from(virtio.segment_len()?);
    let (l4, _) = virtio.checksum();
    Some(Gathered { frame, outer, l3, l4, udp: virtio.is_udp(), segment_len })
}

/// Completes the partial checksum of a single packet in software. Returns the empty virtio header.
fn finished(frame: &mut [u8], virtio: &Virtio) -> Virtio {
    if virtio.is_partial() {
        let (start, offset) = virtio.checksum();
        finish_checksum(frame, start, offset);
    }
    Virtio::default()
}

/// Sends the packet by the host's own stack, which has yet to resolve the neighbour.
fn by_host(frame: &mut [u8], virtio: &Virtio, tools: &mut FrameScratch, exits: &Exits, link: Option<u32>) {
    let l3 = l3_of(frame);
    if let Some(gathered) = gathered(frame, None, l3, virtio) {
        tools.segments.cut(&gathered, 0);
        for segment in tools.segments.each() {
            exits.by_host(segment.get(l3..).unwrap_or_default(), link);
        }
        return;
    }
    finished(frame, virtio);
    exits.by_host(frame.get(l3..).unwrap_or_default(), link);
}
