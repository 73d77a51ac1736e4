//! Cookies, by which clients prove their source address (RFC 7873, RFC 9018).

use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher24;

use crate::path::seed::Seed;

/// Length of a server cookie, in bytes. It has a version, three reserved bytes, a time and a hash.
pub(super) const LEN: usize = 16;
const VERSION: u8 = 1;
/// Cookies are valid for an hour, and clocks may differ by five minutes (RFC 9018, section 4.3).
const OLDEST_S: u32 = 3_600;
const NEWEST_S: u32 = 300;

/// Secrets of cookies. The server makes cookies with the first secret, and accepts cookies of all
/// secrets.
#[derive(Clone, Debug)]
pub(super) struct Secrets(Vec<Seed>);

impl Secrets {
    /// Returns the secrets of a server that shares none with other servers.
    pub(super) fn own(key: Seed) -> Secrets {
        Secrets(alloc::vec![key])
    }

    /// Returns secrets that several servers share, in the byte order that servers agree on. `None`
    /// if the list is empty.
    pub(super) fn shared(secrets: &[[u8; 16]]) -> Option<Secrets> {
        let of = |secret: &[u8; 16]| {
            let bits = u128::from_le_bytes(*secret);
            Seed(bits as u64, (bits >> 64) as u64)
        };
        (!secrets.is_empty()).then(|| Secrets(secrets.iter().map(of).collect()))
    }

    /// Makes the server cookie of a client.
    pub(super) fn make(&self, client: IpAddr, of_client: &[u8], now_s: u32) -> [u8; LEN] {
        make(self.0.first().copied().unwrap_or_default(), client, of_client, now_s)
    }

    /// True if a server with one of these secrets gave this cookie to the client recently.
    pub(super) fn is_valid(&self, client: IpAddr, of_client: &[u8], cookie: &[u8], now_s: u32) -> bool {
        self.0.iter().any(|key| holds(*key, client, of_client, cookie, now_s))
    }
}

/// Makes the server cookie of a client.
fn make(key: Seed, client: IpAddr, of_client: &[u8], now_s: u32) -> [u8; LEN] {
    let mut cookie = [0; LEN];
    cookie[0] = VERSION;
    cookie[4..8].copy_from_slice(&now_s.to_be_bytes());
    let hash = hash(key, client, of_client, &cookie[..8]);
    cookie[8..].copy_from_slice(&hash.to_le_bytes());
    cookie
}

/// True if the cookie was made recently with this key for the client.
fn holds(key: Seed, client: IpAddr, of_client: &[u8], cookie: &[u8], now_s: u32) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9018, appendix A: secret, client address, client cookie, time, and server cookie.
    const VECTORS: [(u128, &str, u64, u32, u128); 3] = [
        (
            0xe5e9_73e5_a6b2_a43f_48e7_dc84_9e37_bfcf,
            "198.51.100.100",
            0x2464_c4ab_cf10_c957,
            1_559_731_985,
            0x0100_0000_5cf7_9f11_1f81_30c3_eee2_9480,
        ),
        (
            0xdd3b_df93_44b6_78b1_85a6_f5cb_60fc_a715,
            "2001:db8:220:1:59de:d0f4:8769:82b8",
            0x2268_1ab9_7d52_c298,
            1_559_741_817,
            0x0100_0000_5cf7_c579_2655_6bd0_934c_72f8,
        ),
        (
            0x4455_36bc_d251_3298_075a_5d37_9663_c962,
            "2001:db8:220:1:59de:d0f4:8769:82b8",
            0x2268_1ab9_7d52_c298,
            1_559_741_961,
            0x0100_0000_5cf7_c609_a6bb_79d1_6625_507a,
        ),
    ];

    #[test]
    fn shared_secrets_make_the_cookies_of_the_standard() {
        for (secret, client, own, now_s, cookie) in VECTORS {
            let secrets = Secrets::shared(&[secret.to_be_bytes()]).unwrap();
            assert_eq!(
                secrets.make(client.parse().unwrap(), &own.to_be_bytes(), now_s),
                cookie.to_be_bytes()
            );
        }
        assert!(Secrets::shared(&[]).is_none());
    }

    #[test]
    fn an_old_secret_is_believed_behind_a_new_one() {
        let [_, (old, client, own, _, cookie), (new, .., now_s, renewed)] = VECTORS;
        let (client, own) = (client.parse().unwrap(), own.to_be_bytes());
        let both = Secrets::shared(&[new, old].map(u128::to_be_bytes)).unwrap();
        assert!(both.is_valid(client, &own, &cookie.to_be_bytes(), now_s));
        assert_eq!(both.make(client, &own, now_s), renewed.to_be_bytes());
        let new = Secrets::shared(&[new.to_be_bytes()]).unwrap();
        assert!(!new.is_valid(client, &own, &cookie.to_be_bytes(), now_s));
    }
}
