//! Cookies by which a client shows that it is where it says it is (RFC 7873, RFC 9018).

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher24;

use crate::path::sessions::Seed;

/// A server's cookie, in octets: version, three unused, time, hash.
pub(super) const LEN: usize = 16;
const VERSION: u8 = 1;
/// A cookie holds for an hour, and clocks may differ by five minutes (RFC 9018, section 4.3).
const OLDEST_S: u32 = 3_600;
const NEWEST_S: u32 = 300;

/// The server's part for a client.
pub(super) fn make(key: Seed, client: IpAddr, of_client: &[u8], now_s: u32) -> [u8; LEN] {
    let mut cookie = [0; LEN];
    cookie[0] = VERSION;
    cookie[4..8].copy_from_slice(&now_s.to_be_bytes());
    let hash = hash(key, client, of_client, &cookie[..8]);
    cookie[8..].copy_from_slice(&hash.to_le_bytes());
    cookie
}

/// Whether this server gave it to that client, not long ago.
pub(super) fn holds(key: Seed, client: IpAddr, of_client: &[u8], cookie: &[u8], now_s: u32) -> bool {
    let Some((head, tag)) = cookie.split_first_chunk::<8>() else { return false };
    let age_s = now_s.wrapping_sub(u32::from_be_bytes([head[4], head[5], head[6], head[7]]));
    let is_fresh = age_s <= OLDEST_S || age_s.wrapping_neg() <= NEWEST_S;
    let fits = tag.first_chunk::<8>().map(|tag| u64::from_le_bytes(*tag));
    is_fresh && cookie.len() == LEN && head[0] == VERSION && fits == Some(hash(key, client, of_client, head))
}

fn hash(key: Seed, client: IpAddr, of_client: &[u8], head: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(key.0, key.1);
    hasher.write(of_client);
    hasher.write(head);
    match client.to_canonical() {
        IpAddr::V4(client) => hasher.write(&client.octets()),
        IpAddr::V6(client) => hasher.write(&client.octets()),
    }
    hasher.finish()
}
