//! The farm's secret, by which nodes authenticate each other, with the keys that are derived from
//! it and message tags.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::fmt::Write;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of the secret and of every derived key, in bytes.
pub const KEY_LEN: usize = 32;
/// Length of a tag, in bytes. A tag is the left half of an HMAC-SHA-256 (RFC 2104, section 5).
pub const TAG_LEN: usize = 16;

/// A key that is derived from the secret. Its debug format hides the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; KEY_LEN]);

impl Key {
    /// Appends a tag to the bytes. The tag also covers `context`, which both sides know and which
    /// is not sent.
    pub fn seal(&self, context: &[u8], mut bytes: Vec<u8>) -> Vec<u8> {
        let tag = mac(&self.0).chain_update(context).chain_update(&bytes).finalize().into_bytes();
        bytes.extend(tag.iter().take(TAG_LEN));
        bytes
    }

    /// Returns sealed bytes without their tag; `None` if the tag is wrong for this context.
    pub fn open<'b>(&self, context: &[u8], sealed: &'b [u8]) -> Option<&'b [u8]> {
        let (bytes, tag) = split_tag(sealed)?;
        self.has_sealed(context, bytes, tag).then_some(bytes)
    }

    /// True if the tag is right for the context and the bytes. The comparison takes constant time.
    pub(super) fn has_sealed(&self, context: &[u8], bytes: &[u8], tag: &[u8]) -> bool {
        mac(&self.0).chain_update(context).chain_update(bytes).verify_truncated_left(tag).is_ok()
    }
}

/// Splits sealed bytes into content and tag. `None` if there are fewer bytes than a tag has.
pub(super) fn split_tag(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(bytes.len().checked_sub(TAG_LEN)?)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The secret that all nodes of a farm share: 256 random bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; KEY_LEN]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Error in a key file. It contains only positions, and no part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The file has only comments and empty lines.
    #[error("the file has no key: it needs one line of 64 hex digits, as `evener keygen` writes")]
    Missing,
    /// The file has a second line with a key.
    #[error("line {line} is a second key: a farm has one key; begin comments with #")]
    Second {
        /// Line number, from 1.
        line: usize,
    },
    /// The key is too short or too long.
    #[error("the key on line {line} has {len} characters instead of 64 hex digits")]
    Length {
        /// Line number, from 1.
        line: usize,
        len: usize,
    },
    /// The key has a character that is no hex digit.
    #[error("the key on line {line} has a character that is not a hex digit, at column {column}")]
    NotHex {
        /// Line number, from 1.
        line: usize,
        /// Column of the character, counted from 1.
        column: usize,
    },
}

impl Secret {
    /// Returns the secret with these bytes, which must be random.
    pub fn new(bytes: [u8; KEY_LEN]) -> Secret {
        Secret(bytes)
    }

    /// Parses a key file: one line of 64 hex digits. Empty lines and comments after `#` are
    /// ignored.
    ///
    /// # Errors
    /// The file does not contain exactly one valid key.
    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let mut found = None;
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or_default();
            let digits = content.trim();
            if digits.is_empty() {
                continue;
            }
            if found.is_some() {
                return Err(SecretError::Second { line });
            }
            let indent = content.chars().take_while(|c| c.is_whitespace()).count();
            found = Some(Secret(hex(digits, line, indent)?));
        }
        found.ok_or(SecretError::Missing)
    }

    /// Returns the secret in the format of a key file, without the newline.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(2 * KEY_LEN);
        for byte in self.0 {
            // Writing to a string can't fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Derives a key for one use, so that a leaked key does not affect other uses.
    pub fn derive(&self, label: &str) -> [u8; KEY_LEN] {
        derive(&self.0, label)
    }

    /// Derives a key of half the length, for uses that need no more.
    pub fn derive_short(&self, label: &str) -> [u8; KEY_LEN / 2] {
        let mut half = [0; KEY_LEN / 2];
        half.iter_mut().zip(self.derive(label)).for_each(|(to, from)| *to = from);
        half
    }
}

/// Returns the HMAC-SHA-256 of the label with the secret as key (RFC 2104).
fn derive(secret: &[u8], label: &str) -> [u8; KEY_LEN] {
    mac(secret).chain_update(label.as_bytes()).finalize().into_bytes().into()
}

/// Starts an HMAC-SHA-256 with this key.
fn mac(key: &[u8]) -> Hmac<Sha256> {
    match Hmac::new_from_slice(key) {
        Ok(mac) => mac,
        // Keys may have any length (RFC 2104, section 3).
        Err(_) => unreachable!("HMAC takes keys of any length"),
    }
}

fn hex(digits: &str, line: usize, indent: usize) -> Result<[u8; KEY_LEN], SecretError> {
    let mut key = [0; KEY_LEN];
    let mut len = 0;
    for (at, digit) in digits.chars().enumerate() {
        let value = digit.to_digit(16).ok_or(SecretError::NotHex { line, column: indent + at + 1 })?;
        if let Some(byte) = key.get_mut(at / 2) {
            *byte = *byte << 4 | value as u8;
        }
        len = at + 1;
    }
    if len == 2 * KEY_LEN { Ok(key) } else { Err(SecretError::Length { line, len }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn a_key_file_goes_both_ways() {
        let secret = Secret::new(core::array::from_fn(|i| i as u8 * 7));
        let text = format!("# the farm's key\n\n  {}  # keep it\n", secret.text().to_uppercase());
        assert_eq!(Secret::parse(&text), Ok(secret.clone()));
        assert!(!format!("{secret:?}").contains('7'), "no secret in a log");
    }

    #[test]
    fn invalid_key_file_is_refused_with_line() {
        let good = "ab".repeat(32);
        let bad = [
            (String::new(), SecretError::Missing),
            (format!("# {good}"), SecretError::Missing),
            (format!("{good}\n\n{good}"), SecretError::Second { line: 3 }),
            (format!("{good}0"), SecretError::Length { line: 1, len: 65 }),
            (format!("#\n{}", &good[1..]), SecretError::Length { line: 2, len: 63 }),
            (format!(" {}g", &good[1..]), SecretError::NotHex { line: 1, column: 65 }),
            (format!("{}é", &good[2..]), SecretError::NotHex { line: 1, column: 63 }),
        ];
        for (text, error) in bad {
            assert_eq!(Secret::parse(&text), Err(error), "{text}");
        }
    }

    /// Test case 2 of RFC 4231, section 4.3.
    #[test]
    fn derivation_is_hmac_sha_256() {
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(Secret::new(derive(b"Jefe", "what do ya want for nothing?")).text(), expected);
        assert_ne!(derive(&[1; 32], "one"), derive(&[1; 32], "other"));
    }
}
