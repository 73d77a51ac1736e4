//! `struct virtio_net_hdr`, which precedes every frame (PACKET_VNET_HDR). It describes the work
//! left to the hardware: a partial checksum, or segmentation.

/// Length of the header in bytes.
pub(crate) const VIRTIO_LEN: usize = 10;
/// Bit of `flags`: the checksum is partial.
const NEEDS_CHECKSUM: u8 = 1;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: u16 = 6;

/// Header, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Virtio {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl Virtio {
    pub(super) fn read(bytes: &[u8; VIRTIO_LEN]) -> Virtio {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Virtio {
            flags: bytes[0] & NEEDS_CHECKSUM,
            gso_type: bytes[1],
            header_len: half(2),
            gso_size: half(4),
            checksum_start: half(6),
            checksum_offset: half(8),
        }
    }

    pub(super) fn bytes(&self) -> [u8; VIRTIO_LEN] {
        let mut bytes = [0; VIRTIO_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let halves = [self.header_len, self.gso_size, self.checksum_start, self.checksum_offset];
        for (place, half) in bytes[2..].chunks_exact_mut(2).zip(halves) {
            place.copy_from_slice(&half.to_ne_bytes());
        }
        bytes
    }

    /// True if the transport checksum is partial.
    pub(super) fn is_partial(&self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }

    /// Returns the header without segmentation.
    #[must_use]
    pub(super) fn of_one_packet(self) -> Virtio {
        Virtio { gso_type: 0, gso_size: 0, header_len: 0, ..self }
    }

    /// Payload bytes per segment; `None` for a frame of one packet.
    pub(super) fn segment_len(&self) -> Option<u16> {
        (self.gso_type != 0 && self.gso_size != 0).then_some(self.gso_size)
    }

    /// Offset at which the checksum starts, which is the transport header, and the offset of the
    /// checksum field in it.
    pub(super) fn checksum(&self) -> (usize, usize) {
        (self.checksum_start.into(), self.checksum_offset.into())
    }

    /// True if the transport is UDP. Valid only if [`Virtio::is_partial`].
    pub(super) fn is_udp(&self) -> bool {
        self.checksum_offset == UDP_CHECKSUM
    }

    /// Returns the header for a frame that has grown by `grown` bytes at its front; negative values
    /// shrink it.
    #[must_use]
    pub(super) fn moved(self, grown: isize) -> Virtio {
        let moved = |at: u16| if at == 0 { 0 } else { (at as isize + grown) as u16 };
        Virtio { header_len: moved(self.header_len), checksum_start: moved(self.checksum_start), ..self }
    }
}
