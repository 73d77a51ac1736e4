//! Probes of the path from a server to a director. The director sends a request, the server's agent
//! sends trains of packets, and the director measures the packets' arrival.
//!
//! The trains take the direction of replies, which is the direction of most data. An agent sends
//! trains only to a director that has the farm's key and has proved its address. The director sends
//! [`ProbeMessage::Request`]. The agent answers with a number that only the agent can compute for
//! the director's address ([`ProbeMessage::Challenge`], not longer than the request). The director
//! returns this number ([`ProbeMessage::Go`]) and gets the train. The agent keeps no state until it
//! gets this number. A replayed request gets a challenge but no train, and each number is valid for
//! only one train of each [`TrainKind`].

mod dispersion;
mod trains;

pub use dispersion::{
    ProbeArrival, available_bps, bottleneck_bps, echoes_available_bps, is_burst, settled_bottleneck_bps,
};
pub use trains::{ProbeRefusal, ProbeResponder, ProbeResponse, Train};

use alloc::vec::Vec;

use super::secret::{Key, Secret, TAG_LEN, split_tag};

/// Length of the random numbers that identify probes, in bytes.
pub const NONCE_LEN: usize = 8;
/// Length of a packet's payload, in bytes.
pub const PACKET_LEN: usize = 1_400;
/// Length of the IPv4 and UDP headers, in bytes. IPv6 has 20 bytes more, which are ignored since
/// they are less than 2 %.
const HEADERS_LEN: usize = 28;
/// Number of packets of a back-to-back train. Both trains of a probe have 62,832 bytes, headers
/// included.
pub const AT_ONCE: u8 = 16;
/// Number of packets of a paced train.
pub const PACED: u8 = 28;
/// Number of bits of a packet, headers included.
pub const PACKET_BITS: u64 = ((PACKET_LEN + HEADERS_LEN) * 8) as u64;
/// Percentage by which a paced train is faster than the bottleneck link. So packets queue at the
/// link in spite of the sender's timing errors.
const FASTER_PERCENT: u64 = 15;

/// Magic number at the start of messages, which includes the version.
const MAGIC: [u8; 4] = *b"EvP1";
const CONTEXT: &[u8] = b"evener path probe";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrainKind {
    /// The packets are sent back to back. Their gaps on arrival show the rate of the bottleneck
    /// link.
    AtOnce,
    /// The packets are paced, at slightly more than the rate of the bottleneck link.
    Paced,
}

impl TrainKind {
    fn number(self) -> u8 {
        match self {
            TrainKind::AtOnce => 0,
            TrainKind::Paced => 1,
        }
    }

    fn of(number: u8) -> Option<TrainKind> {
        [TrainKind::AtOnce, TrainKind::Paced].into_iter().find(|step| step.number() == number)
    }

    /// Number of packets of the train.
    pub fn packets(self) -> u8 {
        match self {
            TrainKind::AtOnce => AT_ONCE,
            TrainKind::Paced => PACED,
        }
    }
}

/// Number that identifies a probe, chosen by the director or computed by the agent.
pub type Nonce = [u8; NONCE_LEN];

/// A message of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeMessage {
    /// A director requests a challenge.
    Request(Nonce),
    /// The agent's challenge, by which the director proves its address.
    Challenge {
        /// Number of the director.
        request: Nonce,
        /// Number of the agent.
        challenge: Nonce,
    },
    /// The director's answer to the challenge, which requests a train.
    Go {
        /// Number of the director.
        request: Nonce,
        /// Number of the agent.
        challenge: Nonce,
        step: TrainKind,
        /// Time between two packets, in nanoseconds.
        gap_ns: u32,
    },
    /// A director checks if a datagram of this size arrives.
    Size {
        /// Number of the director.
        request: Nonce,
        /// Length of the payload, in bytes.
        len: u16,
    },
    /// The datagram of [`ProbeMessage::Size`] has arrived.
    Arrived {
        /// Number of the director.
        request: Nonce,
        /// Length of the payload, in bytes.
        len: u16,
    },
}

/// Minimum payload of a [`ProbeMessage::Size`], in bytes.
pub const SIZE_MIN: u16 = 64;

/// Returns the key of probes, derived from the farm's secret.
pub fn key(secret: &Secret) -> Key {
    Key(secret.derive("evener path probe 1"))
}

impl ProbeMessage {
    /// Encodes the message with its tag. A request is as long as a challenge.
    pub fn seal(&self, key: &Key) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            ProbeMessage::Request(request) => {
                bytes.push(1);
                bytes.extend(request);
                bytes.extend([0; NONCE_LEN]);
            }
            ProbeMessage::Challenge { request, challenge } => {
                bytes.push(2);
                bytes.extend(request);
                bytes.extend(challenge);
            }
            ProbeMessage::Go { request, challenge, step, gap_ns } => {
                bytes.push(3);
                bytes.extend(request);
                bytes.extend(challenge);
                bytes.push(step.number());
                bytes.extend(gap_ns.to_be_bytes());
            }
            ProbeMessage::Size { request, len } => {
                bytes.push(5);
                bytes.extend(request);
                bytes.resize(usize::from(*len).max(usize::from(SIZE_MIN)) - TAG_LEN, 0);
            }
            ProbeMessage::Arrived { request, len } => {
                bytes.push(6);
                bytes.extend(request);
                bytes.extend(u64::from(*len).to_be_bytes());
            }
        }
        key.seal(CONTEXT, bytes)
    }

    /// Decodes a message; `None` unless it is complete, of this version and has a valid tag.
    pub fn open(key: &Key, bytes: &[u8]) -> Option<ProbeMessage> {
        let len = u16::try_from(bytes.len()).ok()?;
        let (bytes, _) = split_tag(bytes).filter(|(bytes, tag)| key.has_sealed(CONTEXT, bytes, tag))?;
        let (kind, rest) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        let (request, rest) = rest.split_first_chunk::<NONCE_LEN>()?;
        let (challenge, rest) = rest.split_first_chunk::<NONCE_LEN>()?;
        let (request, challenge) = (*request, *challenge);
        match (kind, rest) {
            (1, []) => Some(ProbeMessage::Request(request)),
            (2, []) => Some(ProbeMessage::Challenge { request, challenge }),
            (3, [step, gap @ ..]) => {
                let gap_ns = u32::from_be_bytes(gap.try_into().ok()?);
                Some(ProbeMessage::Go { request, challenge, step: TrainKind::of(*step)?, gap_ns })
            }
            (5, _) if len >= SIZE_MIN => Some(ProbeMessage::Size { request, len }),
            (6, []) => {
                let len = u16::try_from(u64::from_be_bytes(challenge)).ok()?;
                Some(ProbeMessage::Arrived { request, len })
            }
            _ => None,
        }
    }
}

/// A packet of a train, which has no tag. Its challenge shows that the sender is the agent or a
/// host on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainPacket {
    /// Number of the agent for the probe.
    pub challenge: Nonce,
    pub step: TrainKind,
    /// Index in the train, from 0.
    pub index: u8,
    /// Time of sending by the agent's clock, in nanoseconds.
    pub sent_ns: u64,
}

impl TrainPacket {
    /// Encodes the payload, which has [`PACKET_LEN`] bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(4);
        bytes.extend(self.challenge);
        bytes.extend([self.step.number(), self.index]);
        bytes.extend(self.sent_ns.to_be_bytes());
        bytes.resize(PACKET_LEN, 0);
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<TrainPacket> {
        let rest = bytes.strip_prefix(&MAGIC)?.strip_prefix(&[4])?;
        let (challenge, rest) = rest.split_first_chunk::<NONCE_LEN>()?;
        let [step, index, rest @ ..] = rest else { return None };
        let sent_ns = u64::from_be_bytes(*rest.first_chunk()?);
        Some(TrainPacket { challenge: *challenge, step: TrainKind::of(*step)?, index: *index, sent_ns })
    }
}

/// Maximum time to send a train, in nanoseconds.
pub const TRAIN_NS_MAX: u64 = 2_000_000_000;

/// True if a train with this gap takes at most [`TRAIN_NS_MAX`].
pub fn is_in_time(step: TrainKind, gap_ns: u32) -> bool {
    u64::from(step.packets()) * u64::from(gap_ns) <= TRAIN_NS_MAX
}

/// Returns the time between packets of a paced train over a link of this rate, in nanoseconds.
pub fn paced_gap_ns(bottleneck_bps: u64) -> u32 {
    let gap_ns = PACKET_BITS * 1_000_000_000 * 100 / (bottleneck_bps.max(1) * (100 + FASTER_PERCENT)).max(1);
    u32::try_from(gap_ns).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_back_and_by_the_key_alone() {
        let (key, other) = (self::key(&Secret::new([1; 32])), self::key(&Secret::new([2; 32])));
        let (request, challenge) = ([7; NONCE_LEN], [9; NONCE_LEN]);
        for message in [
            ProbeMessage::Request(request),
            ProbeMessage::Challenge { request, challenge },
            ProbeMessage::Go { request, challenge, step: TrainKind::Paced, gap_ns: 2_856_000 },
        ] {
            let bytes = message.seal(&key);
            assert_eq!(ProbeMessage::open(&key, &bytes), Some(message));
            assert_eq!(ProbeMessage::open(&other, &bytes), None);
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(ProbeMessage::open(&key, &changed), None, "{message:?} at {at}");
                assert_eq!(ProbeMessage::open(&key, &bytes[..at]), None, "{message:?} cut at {at}");
            }
        }
        let challenge = ProbeMessage::Challenge { request, challenge }.seal(&key);
        assert_eq!(challenge.len(), ProbeMessage::Request(request).seal(&key).len(), "no amplification");
    }

    #[test]
    fn packets_are_read_back() {
        let packet = TrainPacket {
            challenge: [3; NONCE_LEN],
            step: TrainKind::AtOnce,
            index: 15,
            sent_ns: u64::MAX - 1,
        };
        let bytes = packet.write();
        assert_eq!((bytes.len(), TrainPacket::read(&bytes)), (PACKET_LEN, Some(packet)));
        assert_eq!(TrainPacket::read(&bytes[..20]), None);
        assert_eq!(TrainPacket::read(&[]), None);
    }

    #[test]
    fn a_probe_has_at_most_64_kb() {
        let packets = u64::from(AT_ONCE) + u64::from(PACED);
        assert!(packets * PACKET_BITS / 8 <= 64 * 1024);
        assert_eq!(paced_gap_ns(PACKET_BITS * 1_000), 869_565);
        assert_eq!(paced_gap_ns(0), u32::MAX);
    }
}
