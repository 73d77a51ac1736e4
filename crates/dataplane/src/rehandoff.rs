//! Delivers segments to the rehandoff task: later requests that another server has to answer, and
//! segments of connections that are being moved.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use evener_core::net::checksum;
use evener_core::net::wire::{Mac, protocol};
use evener_core::path::decide::Reason;
use evener_core::path::parse::{Parsed, parse};

use crate::{RehandoffSegment, RehandoffSink};

/// Offset of the checksum in a TCP header.
const CHECKSUM_AT: usize = 16;

/// Receiver of the segments, shared by all engine threads; empty at first.
#[derive(Default)]
pub(crate) struct RehandoffSlot(ArcSwapOption<RehandoffSink>);

impl RehandoffSlot {
    pub(crate) fn set(&self, mover: RehandoffSink) {
        self.0.store(Some(Arc::new(mover)));
    }

    /// Delivers a segment to the receiver. Without a receiver the segment is lost.
    pub(crate) fn give(&self, reason: Reason, ifindex: u32, server: u16, frame: &[u8]) {
        let Some(mover) = &*self.0.load() else { return };
        let whole = whole(frame);
        mover(RehandoffSegment {
            reason,
            ifindex,
            server,
            frame: whole.as_deref().unwrap_or(frame),
            is_whole: whole.is_some(),
        });
    }
}

impl fmt::Debug for RehandoffSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Moves").field(&self.0.load().is_some()).finish()
    }
}

/// Returns the frame of a TCP segment with a complete checksum. A sender on this machine leaves the
/// checksum to hardware: the field then holds the sum of the pseudo-header, and is completed here.
/// Returns `None` if the checksum is wrong otherwise.
fn whole(frame: &[u8]) -> Option<Cow<'_, [u8]>> {
    let to = frame.first_chunk().copied().map(Mac);
    let Parsed::Segment(segment) = parse(frame, to) else { return None };
    let at = segment.at;
    let tcp = frame.get(at.l4..at.l3 + at.len).filter(|_| at.protocol == protocol::TCP)?;
    let pseudo = checksum::pseudo_header(at.src, at.dst, protocol::TCP, tcp.len());
    if checksum::finish(checksum::add(pseudo, tcp)) == 0 {
        return Some(frame.into());
    }
    let field = at.l4 + CHECKSUM_AT..at.l4 + CHECKSUM_AT + 2;
    let is_partial = frame.get(field.clone())? == (!checksum::finish(pseudo)).to_be_bytes();
    let mut whole = is_partial.then(|| frame.to_vec())?;
    whole.get_mut(field)?.copy_from_slice(&checksum::finish(checksum::add(0, tcp)).to_be_bytes());
    Some(whole.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Mutex;

    use super::*;

    /// An Ethernet frame with two VLAN tags, a TCP segment of `payload` bytes over IPv4 or IPv6,
    /// and padding. Its checksum is the result of `check` for the right checksum and the
    /// pseudo-header's sum.
    fn frame(v6: bool, payload: usize, check: impl Fn(u16, u16) -> u16) -> Vec<u8> {
        let mut tcp = vec![0; 20];
        tcp[..4].copy_from_slice(&[0x9c, 0x40, 0, 80]);
        tcp[12..14].copy_from_slice(&[0x50, 0x18]);
        tcp.extend((0..payload).map(|n| n as u8));
        let len = tcp.len() as u16;
        let mut frame = [&[2; 6][..], &[4; 6], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]].concat();
        let pseudo = if v6 {
            frame.extend([&[0x86, 0xdd, 0x60, 0, 0, 0][..], &len.to_be_bytes(), &[6, 64]].concat());
            let (src, dst) = ([0x20; 16], [0x21; 16]);
            frame.extend([src, dst].concat());
            checksum::pseudo_header(src.into(), dst.into(), 6, tcp.len())
        } else {
            let mut ip = [
                &[0x45, 0][..],
                &(20 + len).to_be_bytes(),
                &[0, 9, 0x40, 0, 64, 6, 0, 0, 9, 9, 9, 9, 8, 8, 8, 8],
            ]
            .concat();
            let sum = checksum::finish(checksum::add(0, &ip));
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend([&[8, 0][..], &ip].concat());
            checksum::pseudo_header([9, 9, 9, 9].into(), [8, 8, 8, 8].into(), 6, tcp.len())
        };
        let right = checksum::finish(checksum::add(pseudo, &tcp));
        tcp[16..18].copy_from_slice(&check(right, !checksum::finish(pseudo)).to_be_bytes());
        frame.extend(tcp);
        frame.extend([0x99; 7]);
        frame
    }

    #[test]
    fn offloaded_checksum_is_filled_in_and_bad_one_dropped() {
        for (v6, payload) in [(false, 14), (false, 15), (true, 400), (true, 401)] {
            let right = frame(v6, payload, |right, _| right);
            assert_eq!(whole(&right).unwrap(), right, "as it came");
            assert_eq!(whole(&frame(v6, payload, |_, partial| partial)).unwrap(), right, "filled in");
            assert_eq!(whole(&frame(v6, payload, |right, _| right ^ 0x100)), None);
            assert_eq!(whole(&frame(v6, payload, |_, partial| partial ^ 1)), None);
            for len in 0..right.len() - 7 {
                assert_eq!(whole(&right[..len]), None, "{len} bytes of it");
            }
        }
    }

    #[test]
    fn rehandoff_sink_may_be_set_late_and_replaced() {
        let (moves, taken) = (RehandoffSlot::default(), Arc::new(Mutex::new(Vec::new())));
        let right = frame(false, 20, |right, _| right);
        moves.give(Reason::Rehandoff, 1, 3, &right);
        for who in ["first", "second"] {
            let notes = Arc::clone(&taken);
            moves.set(Arc::new(move |RehandoffSegment { reason, ifindex, server, frame, is_whole }| {
                notes.lock().unwrap().push((who, reason, ifindex, server, frame.to_vec(), is_whole));
            }));
            moves.give(Reason::Rehandoff, 7, 3, &right);
        }
        let wrong = frame(false, 20, |right, _| !right);
        moves.give(Reason::RehandoffBuffered, 8, 3, &wrong);
        let expected = [
            ("first", Reason::Rehandoff, 7, 3, right.clone(), true),
            ("second", Reason::Rehandoff, 7, 3, right, true),
            ("second", Reason::RehandoffBuffered, 8, 3, wrong, false),
        ];
        assert_eq!(*taken.lock().unwrap(), expected);
    }
}
