//! SYN cookies: a handshake that costs no memory until the client says what it wants.
//!
//! The initial sequence number of the answer to a SYN holds all that was agreed on, and a keyed hash over it, the
//! connection's ends and the client's own number (Bernstein and Schenk 1996; RFC 4987, section 3.6). Whoever has the
//! key reads it back from the first segment that acknowledges it: the director, which chooses a server, and the
//! server, which makes a socket of it. `bpf/cookie.h` is its copy in C.

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use siphasher::sip::SipHasher24;

use crate::parse::{Segment, TcpOptions};
use crate::sessions::Seed;

/// Time for which one key makes cookies, in seconds. They are believed for one to two times that.
pub const EPOCH_S: u64 = 64;
/// Keys that are told apart.
pub const KEYS: usize = 4;
/// The window scale that is offered to clients.
pub const RCV_WSCALE: u8 = 7;
/// Segment sizes that a cookie can hold, for IPv4 and IPv6, in bytes: the least that a handed-off socket may have, and
/// what fits into common links.
const MSS4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS6: [u16; 4] = [1220, 1300, 1420, 1440];
/// Of [`Terms::window_scale`]: neither window scaling nor selective acknowledgments.
const NO_SCALE: u8 = 15;
/// The largest window scale (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;

/// The keys of the epochs around now, by epoch modulo [`KEYS`]. A zero key is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Whose keys make cookies now.
    pub epoch: u64,
    /// All that are believed.
    pub keys: [Seed; KEYS],
}

impl Keys {
    /// No keys: no cookie is made or believed.
    pub const NONE: Keys = Keys { epoch: 0, keys: [Seed(0, 0); KEYS] };

    /// The keys at a time of day, as `key` derives them: those of the epoch before, of now and of the next one, so that
    /// clocks may differ by an epoch.
    pub fn at(unix_s: u64, key: impl Fn(u64) -> Seed) -> Keys {
        let epoch = unix_s / EPOCH_S;
        let mut keys = Keys { epoch, ..Keys::NONE };
        for epoch in epoch.saturating_sub(1)..=epoch.saturating_add(1) {
            if let Some(place) = keys.keys.get_mut((epoch % KEYS as u64) as usize) {
                *place = key(epoch);
            }
        }
        keys
    }

    fn key(&self, epoch: u8) -> Option<Seed> {
        let key = self.keys.get(usize::from(epoch)).copied();
        key.filter(|key| *key != Seed(0, 0))
    }

    /// The number by which a client's SYN is answered, if there is a key.
    pub fn make(&self, ends: &Ends, client_isn: u32, terms: Terms) -> Option<u32> {
        let epoch = (self.epoch % KEYS as u64) as u8;
        let terms = terms.bits() | epoch;
        Some(mac(self.key(epoch)?, ends, client_isn, terms) << 8 | u32::from(terms))
    }

    /// What was agreed on, if a segment with this sequence and acknowledgment number is the first one after such
    /// an answer.
    pub fn check(&self, ends: &Ends, sequence: u32, acknowledgment: u32) -> Option<Terms> {
        let cookie = acknowledgment.wrapping_sub(1);
        let terms = cookie as u8;
        let key = self.key(terms & 3)?;
        let good = mac(key, ends, sequence.wrapping_sub(1), terms) == cookie >> 8;
        good.then(|| Terms::of_bits(terms))
    }
}

/// Words that hold keys.
pub const WORDS: usize = 2 * KEYS + 1;

/// Keys in words that control plane and engine share: two words each, and then the epoch.
#[derive(Clone, Copy, Debug)]
pub struct SharedKeys<'a>(pub &'a [AtomicU64; WORDS]);

/// The words of nobody's keys.
pub static NO_KEYS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

impl SharedKeys<'_> {
    /// The keys now. One that is being written may be read half; a cookie made then is refused later.
    pub fn get(&self) -> Keys {
        let [keys @ .., epoch] = self.0.each_ref().map(|word| word.load(Relaxed));
        let mut found = Keys { epoch, ..Keys::NONE };
        for (key, words) in found.keys.iter_mut().zip(keys.as_chunks::<2>().0) {
            *key = Seed(words[0], words[1]);
        }
        found
    }

    /// Has cookies made by these keys from now on.
    pub fn set(&self, keys: &Keys) {
        let [places @ .., epoch] = self.0;
        for (place, word) in places.iter().zip(keys.keys.iter().flat_map(|key| [key.0, key.1])) {
            place.store(word, Relaxed);
        }
        // The key is there before cookies are made by it.
        epoch.store(keys.epoch, Release);
    }
}

/// A connection's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The client.
    pub client: SocketAddr,
    /// The service. Of the same family.
    pub service: SocketAddr,
}

impl Ends {
    /// Of a client's segment.
    pub fn of(segment: &Segment) -> Ends {
        Ends {
            client: SocketAddr::new(segment.at.src, segment.src_port),
            service: SocketAddr::new(segment.at.dst, segment.dst_port),
        }
    }
}

/// What a client offered that a cookie holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its window scale, if it knows selective acknowledgments as well: it is given both or neither.
    pub window_scale: Option<u8>,
    /// Index of the segment size that it takes: [`Terms::mss`].
    mss_index: u8,
}

impl Terms {
    /// Of what a client's SYN offers: the largest segment that it takes, and its window scale if it knows selective
    /// acknowledgments, too.
    pub fn new(v6: bool, mss: Option<u16>, window_scale: Option<u8>) -> Terms {
        let mss = mss.unwrap_or_default();
        let fits = sizes(v6).iter().filter(|size| **size <= mss).count();
        Terms {
            // RFC 7323, section 2.3: more is taken for the most
            window_scale: window_scale.map(|scale| scale.min(SCALE_MAX)),
            mss_index: fits.saturating_sub(1) as u8,
        }
    }

    /// Of the options of a client's SYN.
    pub fn offered(v6: bool, options: &TcpOptions) -> Terms {
        Terms::new(v6, options.mss, options.scale_with_sack())
    }

    /// The largest segment to send to the client, in bytes.
    pub fn mss(self, v6: bool) -> u16 {
        sizes(v6).get(usize::from(self.mss_index)).copied().unwrap_or(MSS4[0])
    }

    fn bits(self) -> u8 {
        self.window_scale.unwrap_or(NO_SCALE) << 4 | self.mss_index << 2
    }

    fn of_bits(bits: u8) -> Terms {
        let scale = bits >> 4;
        Terms { window_scale: (scale != NO_SCALE).then_some(scale), mss_index: bits >> 2 & 3 }
    }
}

/// The least segment that a socket which is handed over may have, in bytes.
pub(crate) const fn mss_min(v6: bool) -> u16 {
    sizes(v6)[0]
}

const fn sizes(v6: bool) -> &'static [u16; 4] {
    if v6 { &MSS6 } else { &MSS4 }
}

/// The lowest 24 bits of the keyed hash over all that a cookie vouches for.
fn mac(key: Seed, ends: &Ends, client_isn: u32, terms: u8) -> u32 {
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
    hasher.write(&[terms, 0, 0, 0]);
    hasher.finish() as u32 & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        let at = |text: &str| text.parse().expect("an address");
        Ends { client: at("203.0.113.7:40000"), service: at("192.0.2.100:80") }
    }

    fn keys(unix_s: u64) -> Keys {
        Keys::at(unix_s, |epoch| Seed(epoch, !epoch))
    }

    #[test]
    fn what_was_offered_is_read_back() {
        for scale in [None, Some(0), Some(7), Some(14)] {
            for (v6, mss, kept) in
                [(false, 536, 536), (false, 1459, 1440), (false, 9000, 1460), (true, 1280, 1220)]
            {
                let terms = Terms::new(v6, Some(mss), scale);
                let cookie = keys(1_000).make(&ends(), 77, terms).expect("a key");
                let read = keys(1_000).check(&ends(), 78, cookie.wrapping_add(1)).expect("good");
                assert_eq!((read.window_scale, read.mss(v6)), (scale, kept));
            }
        }
        assert_eq!(Terms::new(false, None, Some(200)).mss(false), 536);
        assert_eq!(Terms::new(false, None, Some(200)).window_scale, Some(14));
    }

    #[test]
    fn what_differs_in_anything_is_refused() {
        let cookie = keys(1_000).make(&ends(), 77, Terms::new(false, Some(1460), Some(7))).expect("a key");
        let ack = cookie.wrapping_add(1);
        assert!(keys(1_000).check(&ends(), 78, ack).is_some());
        assert!(keys(1_000).check(&ends(), 79, ack).is_none(), "a later segment");
        assert!((0..32).all(|bit| keys(1_000).check(&ends(), 78, ack ^ 1 << bit).is_none()));
        let other = |client: &str, service: &str| Ends {
            client: client.parse().expect("an address"),
            service: service.parse().expect("an address"),
        };
        let foreign = [
            other("203.0.113.8:40000", "192.0.2.100:80"),
            other("203.0.113.7:40001", "192.0.2.100:80"),
            other("203.0.113.7:40000", "192.0.2.101:80"),
            other("203.0.113.7:40000", "192.0.2.100:81"),
        ];
        assert!(foreign.iter().all(|ends| keys(1_000).check(ends, 78, ack).is_none()));
        assert!(Keys::NONE.check(&ends(), 78, ack).is_none());
        assert!(Keys::NONE.make(&ends(), 77, Terms::new(false, None, None)).is_none());
    }

    #[test]
    fn a_cookie_outlives_one_change_of_keys_and_not_two() {
        let terms = Terms::new(false, Some(1460), None);
        let cookie = keys(64 * 100).make(&ends(), 1, terms).expect("a key");
        let good = |unix_s| keys(unix_s).check(&ends(), 2, cookie.wrapping_add(1)).is_some();
        assert!(good(64 * 99) && good(64 * 100 + 63) && good(64 * 101 + 63));
        assert!(!good(64 * 102) && !good(64 * 98 + 63) && !good(64 * 104));
    }

    #[test]
    fn shared_words_hold_keys() {
        let words = [const { AtomicU64::new(0) }; WORDS];
        assert_eq!(SharedKeys(&words).get(), Keys::NONE);
        SharedKeys(&words).set(&keys(1_000));
        assert_eq!(SharedKeys(&words).get(), keys(1_000));
    }

    #[test]
    fn the_message_is_as_the_documents_say() {
        let (key, cookie_key) = (Seed(1, 2), Keys { epoch: 0, keys: [Seed(1, 2); KEYS] });
        let terms = Terms::new(false, Some(1460), Some(7));
        let mut hasher = SipHasher24::new_with_keys(key.0, key.1);
        hasher.write(&[203, 0, 113, 7, 192, 0, 2, 100, 0x9c, 0x40, 0, 80, 0, 0, 0, 77, 0x7c, 0, 0, 0]);
        let cookie = (hasher.finish() as u32) << 8 | 0x7c;
        assert_eq!(cookie_key.make(&ends(), 77, terms), Some(cookie));
    }
}
