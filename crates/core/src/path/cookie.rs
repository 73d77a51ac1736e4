//! SYN cookies: a handshake that costs no memory until the client says what it wants.
//!
//! The initial sequence number of the answer to a SYN holds all that was agreed on, and a keyed
//! hash over it, the connection's ends and the client's own number (Bernstein and Schenk 1996; RFC
//! 4987, section 3.6). A node that has the key reads it back from the first segment that
//! acknowledges it: the director, which chooses a server, and the server, which makes a socket of
//! it. `bpf/net/cookie.h` is its copy in C.
//!
//! There is room for 24 bits of the hash only, and of so few one can be guessed. 32 more are our
//! clock in the answer, where the client has timestamps: it echoes them (RFC 7323, section 3.2),
//! and who sees no answers doesn't know them.

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher24;

use crate::net::tcp::TcpOptions;
use crate::path::parse::{Segment, TcpHeader};
use crate::path::seed::Seed;
use crate::path::sessions::ticks;

/// Default length of an epoch, in milliseconds. Cookies are valid for one to two epochs.
pub const EPOCH_MS: u64 = 64_000;
/// The window scale that is offered to clients.
pub const RCV_WSCALE: u8 = 7;
/// Segment sizes that a cookie can hold, for IPv4 and IPv6, in bytes: the least that a handed-off
/// socket may have, and what fits into common links.
const MSS4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS6: [u16; 4] = [1220, 1300, 1420, 1440];
/// Of [`SynOptions::window_scale`]: neither window scaling nor selective acknowledgments.
const NO_SCALE: u8 = 15;
/// Of a cookie, the bits that say of which epoch it is.
const EPOCH_BITS: u8 = 3;
/// The largest window scale (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;
/// The part of our clock that a client's first segment echoes: just the answer's.
pub const FIRST: u32 = 1;
/// Of a segment that is said again in its place, the echo is up to so many milliseconds later:
/// meanwhile this host's process read it, and its own socket's clock went on. Longer than that
/// waits for a whole request.
pub const REPLAYED: u32 = 1 << 15;

/// The keys that make and believe cookies at one time: the farm's key, and the number of the epoch,
/// which is hashed with the rest. So one key is enough for ever, and who has it needs no more than
/// a clock. A zero key is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Of all hosts of a farm.
    pub key: Seed,
    /// Epochs since 1970, in which hosts may differ by one.
    pub epoch: u32,
}

impl Keys {
    /// No key: no cookie is made or believed.
    pub const NONE: Keys = Keys { key: Seed(0, 0), epoch: 0 };

    /// By what a client's SYN is answered, if there is a key.
    pub fn make(&self, ends: &FourTuple, client_isn: u32, terms: SynOptions) -> Option<Cookie> {
        let terms = terms.bits() | (self.epoch as u8 & EPOCH_BITS);
        (self.key != Seed(0, 0)).then(|| cookie_of(self.key, ends, client_isn, terms, self.epoch))
    }

    /// The agreement of the handshake, if a segment with this number is the first one after such an
    /// answer, of the epoch before, of this one or of the next. Its echo of our clock is less than
    /// `late` behind the answer's: [`FIRST`] or [`REPLAYED`].
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

/// The number in the answer to a SYN that only its client can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// The initial sequence number.
    pub number: u32,
    /// The clock, for clients with timestamps. It is no time; but who has the connection counts on
    /// from there.
    pub clock: u32,
}

/// The parts of a cookie in a client's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoedNumbers {
    pub sequence: u32,
    pub acknowledgment: u32,
    /// The clock that it echoes, if it has timestamps.
    pub echo: Option<u32>,
}

impl EchoedNumbers {
    /// By a client's segment.
    pub fn by(header: &TcpHeader) -> EchoedNumbers {
        let TcpHeader { sequence, acknowledgment, options, .. } = *header;
        EchoedNumbers { sequence, acknowledgment, echo: options.timestamp_echo }
    }
}

/// The keys from now on: what the data plane goes by, alone and for weeks, since its clock says the
/// epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    key: Seed,
    /// Length of an epoch, in nanoseconds.
    epoch_ns: u64,
    /// An epoch that is over.
    epoch: u32,
    /// The tick at which that one began.
    began: u32,
}

impl Schedule {
    /// Schedule that has no keys and accepts no cookie.
    pub const NONE: Schedule = Schedule { key: Seed(0, 0), epoch_ns: 0, epoch: 0, began: 0 };

    /// By this key, in epochs of so many milliseconds, where at tick `now` it is `unix_ms`
    /// milliseconds after 1970.
    pub fn new(key: Seed, epoch_ms: u64, unix_ms: u64, now: u32) -> Schedule {
        // The last one, not this: a clock that is a little behind must not be before its beginning.
        let epoch = (unix_ms / epoch_ms.max(1)).saturating_sub(1);
        let age_ms = unix_ms.saturating_sub(epoch * epoch_ms);
        Schedule {
            key,
            epoch_ns: epoch_ms * 1_000_000,
            epoch: epoch as u32,
            // Ticks are rounded down.
            began: now.wrapping_sub(ticks(age_ms) + 1),
        }
    }

    /// Returns a schedule with these keys at tick `now`, and half a day before and after, for
    /// callers that need keys in advance.
    pub fn fixed(keys: &Keys, now: u32) -> Schedule {
        const DAY_MS: u64 = 24 * 3_600 * 1_000;
        Schedule::new(keys.key, DAY_MS, u64::from(keys.epoch) * DAY_MS + DAY_MS / 2, now)
    }

    /// The keys at tick `now`, less than 2^32 ticks (52 days) after the schedule was made.
    pub fn at(&self, now: u32) -> Keys {
        let age_ns = u64::from(now.wrapping_sub(self.began)) << 20;
        let epochs = age_ns.checked_div(self.epoch_ns).unwrap_or_default();
        Keys { key: self.key, epoch: self.epoch.wrapping_add(epochs as u32) }
    }

    /// As words that control plane and engine share.
    pub fn words(&self) -> [u64; WORDS] {
        let Schedule { key, epoch_ns, epoch, began } = *self;
        [key.0, key.1, epoch_ns, u64::from(epoch) << 32 | u64::from(began)]
    }
}

/// Words of a [`Schedule`].
pub const WORDS: usize = 4;

/// A [`Schedule`] in words that control plane and engine share.
#[derive(Clone, Copy, Debug)]
pub struct SharedKeys<'a>(pub &'a [AtomicU64; WORDS]);

/// The words of nobody's keys.
pub static NO_KEYS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

impl SharedKeys<'_> {
    /// The keys at tick `now`. Of a schedule that is being written half may be read; a cookie made
    /// then is refused later.
    pub fn at(&self, now: u32) -> Keys {
        let [first, second, epoch_ns, since] = self.0.each_ref().map(|word| word.load(Relaxed));
        let (epoch, began) = ((since >> 32) as u32, since as u32);
        Schedule { key: Seed(first, second), epoch_ns, epoch, began }.at(now)
    }

    /// Has cookies made and believed by this schedule from now on.
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
    /// The service. Of the same family.
    pub service: SocketAddr,
}

impl FourTuple {
    /// Of a client's segment.
    pub fn of(segment: &Segment) -> FourTuple {
        FourTuple {
            client: SocketAddr::new(segment.at.src, segment.src_port),
            service: SocketAddr::new(segment.at.dst, segment.dst_port),
        }
    }
}

/// The options of a client that a cookie holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOptions {
    /// Window scale of the client, if the client supports selective acknowledgments too: both are
    /// granted or neither.
    pub window_scale: Option<u8>,
    /// Index of the segment size that it takes: [`SynOptions::mss`].
    mss_index: u8,
}

impl SynOptions {
    /// Of what a client's SYN offers: the largest segment that it takes, and its window scale if it
    /// knows selective acknowledgments, too.
    pub fn new(v6: bool, mss: Option<u16>, window_scale: Option<u8>) -> SynOptions {
        let mss = mss.unwrap_or_default();
        let fits = sizes(v6).iter().filter(|size| **size <= mss).count();
        SynOptions {
            // RFC 7323, section 2.3: more is taken for the most
            window_scale: window_scale.map(|scale| scale.min(SCALE_MAX)),
            mss_index: fits.saturating_sub(1) as u8,
        }
    }

    /// Of the options of a client's SYN.
    pub fn offered(v6: bool, options: &TcpOptions) -> SynOptions {
        SynOptions::new(v6, options.mss, options.scale_with_sack())
    }

    /// The largest segment to send to the client, in bytes.
    pub fn mss(self, v6: bool) -> u16 {
        sizes(v6).get(usize::from(self.mss_index)).copied().unwrap_or(MSS4[0])
    }

    /// The same with shorter segments, which every client takes; with none of that size, as they
    /// are.
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

/// In a session's mark: a SYN came since the connection's first segment. It may be forged, or late,
/// or begin another one.
pub const DOUBTED: u16 = 1 << 11;

/// The part of a cookie in a session's mark: bits of its hash, by which the first segment of
/// another connection between the same ends is told from this one's that comes again.
pub const fn mark_of(cookie: u32) -> u16 {
    (cookie >> 8) as u16 & (DOUBTED - 1)
}

/// The least segment that a socket which is handed over may have, in bytes.
pub(crate) const fn mss_min(v6: bool) -> u16 {
    sizes(v6)[0]
}

const fn sizes(v6: bool) -> &'static [u16; 4] {
    if v6 { &MSS6 } else { &MSS4 }
}

/// The terms, and a keyed hash over all that a cookie vouches for: its lowest 24 bits in the
/// number, its highest 32 as clock.
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
    // All but the highest byte of the epoch: those numbers come again after 34 years.
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

    /// The first segment of a client without timestamps.
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

    /// A host whose clock leaps falls out with the others, and is one of them again as soon as it
    /// is set right.
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
        // The clock of the host wraps meanwhile, or it was started a moment ago.
        for now in [0, 1_000, u32::MAX - 10, 1 << 31] {
            let schedule = Schedule::new(Seed(1, 2), EPOCH_MS, 1_700_000_000_123, now);
            for later_ms in [0, 1, 63_877, 63_878, 128_000, day_ms, 7 * day_ms, 30 * day_ms, 50 * day_ms] {
                let real = |off_ms: u64| ((1_700_000_000_120 + later_ms + off_ms) / EPOCH_MS) as u32;
                let later = ((later_ms * 1_000_000) >> 20) as u32;
                let seen = schedule.at(now.wrapping_add(later)).epoch;
                // A tick is a millisecond, more or less.
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
