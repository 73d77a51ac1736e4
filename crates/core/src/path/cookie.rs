//! SYN cookies. They let a host accept connections without memory until the client sends its
//! request.
//!
//! The initial sequence number of the SYN-ACK encodes the agreed TCP options. It also holds a keyed
//! hash of these options, the endpoints and the client's sequence number (Bernstein and Schenk
//! 1996; RFC 4987, section 3.6). A host with the key decodes the cookie from the first segment that
//! acknowledges the SYN-ACK. The director does so before it selects a server, and the server to
//! create a socket from the segment. `bpf/net/cookie.h` is this module's copy in C.
//!
//! The sequence number has room for only 24 bits of the hash, which an attacker can guess. If the
//! client uses timestamps, the timestamp of the SYN-ACK holds 32 more bits. The client echoes the
//! timestamp (RFC 7323, section 3.2). An attacker who doesn't see the SYN-ACK doesn't know it.

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher24;

use crate::net::tcp::TcpOptions;
use crate::path::parse::{Segment, TcpHeader};
use crate::path::seed::Seed;
use crate::path::sessions::ticks;

/// Default length of an epoch in milliseconds. Cookies are valid for one to two epochs.
pub const EPOCH_MS: u64 = 64_000;
/// Window scale offered to clients.
pub const RCV_WSCALE: u8 = 7;
/// Maximum segment sizes that a cookie can encode, for IPv4 and IPv6, in bytes. The first size is
/// the minimum of a handed-off socket. The others fit common links.
const MSS4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS6: [u16; 4] = [1220, 1300, 1420, 1440];
/// Encoding of a [`SynOptions::window_scale`] of `None`: no window scaling and no selective
/// acknowledgments.
const NO_SCALE: u8 = 15;
/// Mask of the bits of a cookie that hold the low bits of its epoch.
const EPOCH_BITS: u8 = 3;
/// Maximum window scale (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;
/// Value of `late` in [`Keys::check`] for a client's first segment, which must echo exactly the
/// timestamp of the SYN-ACK.
pub const FIRST: u32 = 1;
/// Value of `late` in [`Keys::check`], in milliseconds, for a segment that is replayed after this
/// host's process has read it. The socket of the process has sent later timestamps by then, which
/// the client may echo. Only a client that is slow to complete its request exceeds this bound.
pub const REPLAYED: u32 = 1 << 15;

/// Key and epoch by which a host makes and checks cookies at one moment. The epoch is hashed into
/// the cookie, so the key need not change. Hosts need only the key and a clock. A key of zero
/// stands for no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Key of all hosts of the farm.
    pub key: Seed,
    /// Number of epochs since 1970. Hosts may differ by one.
    pub epoch: u32,
}

impl Keys {
    /// No key: makes no cookies and accepts none.
    pub const NONE: Keys = Keys { key: Seed(0, 0), epoch: 0 };

    /// Returns the cookie for the SYN-ACK. `None` without a key.
    pub fn make(&self, ends: &FourTuple, client_isn: u32, terms: SynOptions) -> Option<Cookie> {
        let terms = terms.bits() | (self.epoch as u8 & EPOCH_BITS);
        (self.key != Seed(0, 0)).then(|| cookie_of(self.key, ends, client_isn, terms, self.epoch))
    }

    /// Returns the agreed options if a segment acknowledges a valid cookie of the previous, the
    /// current or the next epoch. The echoed timestamp must be that of the SYN-ACK or less than
    /// `late` after it. `late` is [`FIRST`] or [`REPLAYED`].
    pub fn check(&self, ends: &FourTuple, echoed: &EchoedNumbers, late: u32) -> Option<SynOptions> {
        let number = echoed.acknowledgment.wrapping_sub(1);
        let terms = number as u8;
        let next = self.epoch.wrapping_add(1);
        let age = (next as u8).wrapping_sub(terms) & EPOCH_BITS;
        if age == EPOCH_BITS || self.key == Seed(0, 0) {
            return None;
        }
        let made = next.wrapping_sub(age.into());
        let cookie = cookie_of(self.key, ends, echoed.sequence.wrapping_sub(1), terms, made);
        // A client without timestamps has nothing to echo (RFC 7323, section 3.2).
        let is_echoed = echoed.echo.is_none_or(|echo| echo.wrapping_sub(cookie.clock) < late);
        (cookie.number == number && is_echoed).then(|| SynOptions::of_bits(terms))
    }
}

/// Numbers of a SYN-ACK that prove that a client has received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Initial sequence number of the SYN-ACK.
    pub number: u32,
    /// Timestamp of the SYN-ACK, for clients with timestamps. The value is not the time, but the
    /// server's later timestamps count on from it.
    pub clock: u32,
}

/// Fields of a client's segment that return the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoedNumbers {
    pub sequence: u32,
    pub acknowledgment: u32,
    /// Echoed timestamp, if the client uses timestamps.
    pub echo: Option<u32>,
}

impl EchoedNumbers {
    /// Reads the fields of a client's segment.
    pub fn by(header: &TcpHeader) -> EchoedNumbers {
        let TcpHeader { sequence, acknowledgment, options, .. } = *header;
        EchoedNumbers { sequence, acknowledgment, echo: options.timestamp_echo }
    }
}

/// Schedule of the epochs. With it the data plane computes the epoch from its own clock, for weeks
/// without the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    key: Seed,
    /// Length of an epoch in nanoseconds.
    epoch_ns: u64,
    /// An epoch in the past.
    epoch: u32,
    /// Tick at which `epoch` began.
    began: u32,
}

impl Schedule {
    /// Schedule that has no keys and accepts no cookie.
    pub const NONE: Schedule = Schedule { key: Seed(0, 0), epoch_ns: 0, epoch: 0, began: 0 };

    /// Makes a schedule with this key and epochs of `epoch_ms` milliseconds. At tick `now` the Unix
    /// time is `unix_ms` milliseconds.
    pub fn new(key: Seed, epoch_ms: u64, unix_ms: u64, now: u32) -> Schedule {
        // The schedule starts with the previous epoch, since the current one has not begun yet by a
        // clock that is slightly behind.
        let epoch = (unix_ms / epoch_ms.max(1)).saturating_sub(1);
        let age_ms = unix_ms.saturating_sub(epoch * epoch_ms);
        Schedule {
            key,
            epoch_ns: epoch_ms * 1_000_000,
            epoch: epoch as u32,
            // One tick more, since ticks are rounded down.
            began: now.wrapping_sub(ticks(age_ms) + 1),
        }
    }

    /// Returns a schedule that has these keys from half a day before tick `now` to half a day after
    /// it.
    pub fn fixed(keys: &Keys, now: u32) -> Schedule {
        const DAY_MS: u64 = 24 * 3_600 * 1_000;
        Schedule::new(keys.key, DAY_MS, u64::from(keys.epoch) * DAY_MS + DAY_MS / 2, now)
    }

    /// Returns the keys at tick `now`, up to 2^32 ticks (52 days) after the schedule was made.
    pub fn at(&self, now: u32) -> Keys {
        let age_ns = u64::from(now.wrapping_sub(self.began)) << 20;
        let epochs = age_ns.checked_div(self.epoch_ns).unwrap_or_default();
        Keys { key: self.key, epoch: self.epoch.wrapping_add(epochs as u32) }
    }

    /// Returns the words that the control plane and the engine share.
    pub fn words(&self) -> [u64; WORDS] {
        let Schedule { key, epoch_ns, epoch, began } = *self;
        [key.0, key.1, epoch_ns, u64::from(epoch) << 32 | u64::from(began)]
    }
}

/// Number of words of a [`Schedule`].
pub const WORDS: usize = 4;

/// A [`Schedule`] in words that the control plane and the engine share.
#[derive(Clone, Copy, Debug)]
pub struct SharedKeys<'a>(pub &'a [AtomicU64; WORDS]);

/// Words of a schedule without a key.
pub static NO_KEYS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

impl SharedKeys<'_> {
    /// Returns the keys at tick `now`. While another thread writes the schedule, this may mix old
    /// and new words. A cookie made with such keys is refused later.
    pub fn at(&self, now: u32) -> Keys {
        let [first, second, epoch_ns, since] = self.0.each_ref().map(|word| word.load(Relaxed));
        let (epoch, began) = ((since >> 32) as u32, since as u32);
        Schedule { key: Seed(first, second), epoch_ns, epoch, began }.at(now)
    }

    /// Replaces the schedule for all later cookies.
    pub fn set(&self, schedule: &Schedule) {
        for (place, word) in self.0.iter().zip(schedule.words()) {
            place.store(word, Relaxed);
        }
    }
}

/// Endpoints of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourTuple {
    pub client: SocketAddr,
    /// Endpoint of the service, of the client's address family.
    pub service: SocketAddr,
}

impl FourTuple {
    /// Returns the endpoints of a client's segment.
    pub fn of(segment: &Segment) -> FourTuple {
        FourTuple {
            client: SocketAddr::new(segment.at.src, segment.src_port),
            service: SocketAddr::new(segment.at.dst, segment.dst_port),
        }
    }
}

/// TCP options of a client that a cookie encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOptions {
    /// Window scale of the client; `None` unless the client supports window scaling and selective
    /// acknowledgments. A cookie grants both options or neither.
    pub window_scale: Option<u8>,
    /// Index of the maximum segment size that the client accepts (see [`SynOptions::mss`]).
    mss_index: u8,
}

impl SynOptions {
    /// Encodes the maximum segment size and window scale of a client's SYN. `window_scale` must be
    /// `None` if the client does not support selective acknowledgments.
    pub fn new(v6: bool, mss: Option<u16>, window_scale: Option<u8>) -> SynOptions {
        let mss = mss.unwrap_or_default();
        let fits = sizes(v6).iter().filter(|size| **size <= mss).count();
        SynOptions {
            // A larger scale counts as 14 (RFC 7323, section 2.3).
            window_scale: window_scale.map(|scale| scale.min(SCALE_MAX)),
            mss_index: fits.saturating_sub(1) as u8,
        }
    }

    /// Encodes the options of a client's SYN.
    pub fn offered(v6: bool, options: &TcpOptions) -> SynOptions {
        SynOptions::new(v6, options.mss, options.scale_with_sack())
    }

    /// Returns the maximum segment size towards the client, in bytes.
    pub fn mss(self, v6: bool) -> u16 {
        sizes(v6).get(usize::from(self.mss_index)).copied().unwrap_or(MSS4[0])
    }

    /// Returns the options with the next smaller segment size, which the client accepts, too. The
    /// smallest size stays as it is.
    #[must_use]
    pub fn shorter(self) -> SynOptions {
        SynOptions { mss_index: self.mss_index.saturating_sub(1), ..self }
    }

    fn bits(self) -> u8 {
        self.window_scale.unwrap_or(NO_SCALE) << 4 | self.mss_index << 2
    }

    fn of_bits(bits: u8) -> SynOptions {
        let scale = bits >> 4;
        SynOptions { window_scale: (scale != NO_SCALE).then_some(scale), mss_index: bits >> 2 & 3 }
    }
}

/// Bit of a session's mark which is set if a SYN arrived after the connection's first segment. The
/// SYN may be forged, delayed, or the start of another connection.
pub const SYN_SEEN: u16 = 1 << 11;

/// Returns the bits of a cookie's hash that a session's mark holds. They distinguish a
/// retransmitted first segment from the first segment of another connection with the same
/// endpoints.
pub const fn mark_of(cookie: u32) -> u16 {
    (cookie >> 8) as u16 & (SYN_SEEN - 1)
}

/// Returns the minimum of the maximum segment size of a handed-off socket, in bytes.
pub(crate) const fn mss_min(v6: bool) -> u16 {
    sizes(v6)[0]
}

const fn sizes(v6: bool) -> &'static [u16; 4] {
    if v6 { &MSS6 } else { &MSS4 }
}

/// Computes a cookie: the keyed hash of the endpoints, the client's sequence number, the options
/// and the epoch. The lowest 24 bits of the hash and the options form the sequence number. The
/// highest 32 bits are the timestamp.
fn cookie_of(key: Seed, ends: &FourTuple, client_isn: u32, terms: u8, epoch: u32) -> Cookie {
    let mut hasher = SipHasher24::new_with_keys(key.0, key.1);
    let mut write = |address: IpAddr| match address {
        IpAddr::V4(address) => hasher.write(&address.octets()),
        IpAddr::V6(address) => hasher.write(&address.octets()),
    };
    write(ends.client.ip());
    write(ends.service.ip());
    hasher.write(&ends.client.port().to_be_bytes());
    hasher.write(&ends.service.port().to_be_bytes());
    hasher.write(&client_isn.to_be_bytes());
    // The options take the place of the epoch's highest byte, so the hashed epoch repeats after 34
    // years.
    hasher.write(&(u32::from(terms) << 24 | epoch & 0xff_ffff).to_be_bytes());
    let hash = hasher.finish();
    Cookie { number: (hash as u32) << 8 | u32::from(terms), clock: (hash >> 32) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> FourTuple {
        let at = |text: &str| text.parse().expect("an address");
        FourTuple { client: at("203.0.113.7:40000"), service: at("192.0.2.100:80") }
    }

    fn keys(unix_s: u64) -> Keys {
        Schedule::new(Seed(1, 2), EPOCH_MS, unix_s * 1_000, 7).at(7)
    }

    /// Returns the first segment of a client without timestamps.
    fn first(isn: u32, cookie: Cookie) -> EchoedNumbers {
        EchoedNumbers {
            sequence: isn.wrapping_add(1),
            acknowledgment: cookie.number.wrapping_add(1),
            echo: None,
        }
    }

    #[test]
    fn cookie_round_trips_syn_options() {
        for scale in [None, Some(0), Some(7), Some(14)] {
            for (v6, mss, kept) in
                [(false, 536, 536), (false, 1459, 1440), (false, 9000, 1460), (true, 1280, 1220)]
            {
                let terms = SynOptions::new(v6, Some(mss), scale);
                let cookie = keys(1_000).make(&ends(), 77, terms).expect("a key");
                let read = keys(1_000).check(&ends(), &first(77, cookie), FIRST).expect("good");
                assert_eq!((read.window_scale, read.mss(v6)), (scale, kept));
            }
        }
        assert_eq!(SynOptions::new(false, None, Some(200)).mss(false), 536);
        assert_eq!(SynOptions::new(false, None, Some(200)).window_scale, Some(14));
    }

    #[test]
    fn cookie_with_any_difference_is_refused() {
        let cookie =
            keys(1_000).make(&ends(), 77, SynOptions::new(false, Some(1460), Some(7))).expect("a key");
        let echoed = first(77, cookie);
        let good = |echoed: &EchoedNumbers| keys(1_000).check(&ends(), echoed, FIRST).is_some();
        assert!(good(&echoed));
        assert!(!good(&EchoedNumbers { sequence: 79, ..echoed }), "a later segment");
        assert!(
            (0..32).all(|bit| !good(&EchoedNumbers {
                acknowledgment: echoed.acknowledgment ^ 1 << bit,
                ..echoed
            }))
        );
        let other = |client: &str, service: &str| FourTuple {
            client: client.parse().expect("an address"),
            service: service.parse().expect("an address"),
        };
        let foreign = [
            other("203.0.113.8:40000", "192.0.2.100:80"),
            other("203.0.113.7:40001", "192.0.2.100:80"),
            other("203.0.113.7:40000", "192.0.2.101:80"),
            other("203.0.113.7:40000", "192.0.2.100:81"),
        ];
        assert!(foreign.iter().all(|ends| keys(1_000).check(ends, &echoed, FIRST).is_none()));
        assert!(Keys::NONE.check(&ends(), &echoed, FIRST).is_none());
        assert!(Keys::NONE.make(&ends(), 77, SynOptions::new(false, None, None)).is_none());
    }

    #[test]
    fn client_with_timestamps_echoes_cookie_clock() {
        let cookie =
            keys(1_000).make(&ends(), 77, SynOptions::new(false, Some(1460), Some(7))).expect("a key");
        let good = |echo: u32, late| {
            keys(1_000)
                .check(&ends(), &EchoedNumbers { echo: Some(echo), ..first(77, cookie) }, late)
                .is_some()
        };
        assert!(good(cookie.clock, FIRST) && good(cookie.clock, REPLAYED));
        assert!((0..32).all(|bit| !good(cookie.clock ^ 1 << bit, FIRST)));
        let later = |by: u32| cookie.clock.wrapping_add(by);
        assert!(good(later(1), REPLAYED) && good(later(REPLAYED - 1), REPLAYED));
        assert!(!good(later(REPLAYED), REPLAYED) && !good(later(u32::MAX), REPLAYED));
        let other =
            keys(1_000).make(&ends(), 78, SynOptions::new(false, Some(1460), Some(7))).expect("a key");
        assert_ne!(other.clock, cookie.clock, "each handshake has its own");
    }

    #[test]
    fn a_cookie_outlives_one_change_of_keys_and_not_two() {
        let terms = SynOptions::new(false, Some(1460), None);
        let cookie = keys(64 * 100).make(&ends(), 1, terms).expect("a key");
        let good = |unix_s| keys(unix_s).check(&ends(), &first(1, cookie), FIRST).is_some();
        assert!(good(64 * 99) && good(64 * 100 + 63) && good(64 * 101 + 63));
        assert!(!good(64 * 102) && !good(64 * 98 + 63) && !good(64 * 104));
    }

    /// If a host's clock jumps, the other hosts refuse its cookies until the clock is set right.
    #[test]
    fn a_clock_that_leaps_by_a_day_makes_other_cookies() {
        let (now_s, day_s) = (1_700_000_000, 24 * 3_600);
        let terms = SynOptions::new(false, Some(1460), None);
        let believes = |made_s, read_s| {
            let cookie = keys(made_s).make(&ends(), 1, terms).expect("a key");
            keys(read_s).check(&ends(), &first(1, cookie), FIRST).is_some()
        };
        for other_s in [now_s - day_s, now_s + day_s] {
            assert!(!believes(now_s, other_s) && !believes(other_s, now_s));
            assert!(believes(other_s, other_s + 5), "a director alone goes on");
        }
        assert!(believes(now_s + 1, now_s));
    }

    #[test]
    fn shared_words_hold_keys() {
        let words = [const { AtomicU64::new(0) }; WORDS];
        assert_eq!(SharedKeys(&words).at(5), Keys::NONE);
        let schedule = Schedule::new(Seed(1, 2), EPOCH_MS, 1_000_000, 5);
        SharedKeys(&words).set(&schedule);
        assert_eq!(SharedKeys(&words).at(5), keys(1_000));
        SharedKeys(&words).set(&Schedule::NONE);
        assert_eq!(SharedKeys(&words).at(5), Keys::NONE);
    }

    #[test]
    fn epochs_advance_by_clock_alone() {
        let day_ms = 24 * 3_600 * 1_000;
        // The tick clock may wrap in the meantime, or may have started just now.
        for now in [0, 1_000, u32::MAX - 10, 1 << 31] {
            let schedule = Schedule::new(Seed(1, 2), EPOCH_MS, 1_700_000_000_123, now);
            for later_ms in [0, 1, 63_877, 63_878, 128_000, day_ms, 7 * day_ms, 30 * day_ms, 50 * day_ms] {
                let real = |off_ms: u64| ((1_700_000_000_120 + later_ms + off_ms) / EPOCH_MS) as u32;
                let later = ((later_ms * 1_000_000) >> 20) as u32;
                let seen = schedule.at(now.wrapping_add(later)).epoch;
                // A tick is about a millisecond.
                assert!((real(0)..=real(6)).contains(&seen), "{later_ms} ms after {now}: {seen}");
            }
            let (behind, here) = (schedule.at(now.wrapping_sub(1_000)).epoch, schedule.at(now).epoch);
            assert!(here - behind <= 1, "a clock that is a second behind");
        }
    }

    #[test]
    fn hashed_message_matches_documents() {
        let keys = Keys { key: Seed(1, 2), epoch: 0x0112_3454 };
        let terms = SynOptions::new(false, Some(1460), Some(7));
        let mut hasher = SipHasher24::new_with_keys(1, 2);
        hasher
            .write(&[203, 0, 113, 7, 192, 0, 2, 100, 0x9c, 0x40, 0, 80, 0, 0, 0, 77, 0x7c, 0x12, 0x34, 0x54]);
        let hash = hasher.finish();
        let cookie = Cookie { number: (hash as u32) << 8 | 0x7c, clock: (hash >> 32) as u32 };
        assert_eq!(keys.make(&ends(), 77, terms), Some(cookie));
    }
}
