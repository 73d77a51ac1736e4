//! `struct virtio_net_hdr`, which stands before every frame (PACKET_VNET_HDR): what its sender left
//! to the hardware, a checksum not yet filled in or a frame not yet cut into segments.

/// Its length, in bytes.
pub(crate) const VIRTIO_LEN: usize = 10;
/// In `flags`: the checksum is to be filled in.
const NEEDS_CHECKSUM: u8 = 1;
/// Where UDP has its checksum.
const UDP_CHECKSUM: u16 = 6;

/// The header, in the machine's own byte order.
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

    /// Whether the transport checksum is only begun.
    pub(super) fn is_partial(&self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }

    /// The same for a frame that is not to be cut.
    #[must_use]
    pub(super) fn of_one_packet(self) -> Virtio {
        Virtio { gso_type: 0, gso_size: 0, header_len: 0, ..self }
    }

    /// Bytes of payload in each packet that the frame is yet to be cut into.
    pub(super) fn segment_len(&self) -> Option<u16> {
        (self.gso_type != 0 && self.gso_size != 0).then_some(self.gso_size)
    }

    /// Where the transport header begins, where the sum is to begin, and where in it the field is.
    pub(super) fn checksum(&self) -> (usize, usize) {
        (self.checksum_start.into(), self.checksum_offset.into())
    }

    /// Whether the transport is UDP; to be asked where [`Virtio::is_partial`].
    pub(super) fn is_udp(&self) -> bool {
        self.checksum_offset == UDP_CHECKSUM
    }

    /// The same for a frame that has grown by so many bytes at its front; shrunk if negative.
    #[must_use]
    pub(super) fn moved(self, grown: isize) -> Virtio {
        let moved = |at: u16| if at == 0 { 0 } else { (at as isize + grown) as u16 };
        Virtio { header_len: moved(self.header_len), checksum_start: moved(self.checksum_start), ..self }
    }
}
