//! Domain names in wire format: labels with their lengths, and a zero byte for the root.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt;

/// Maximum length of a name in wire format, in bytes (RFC 1035, section 2.3.4).
pub(super) const NAME_MAX: usize = 255;
/// Maximum length of a label, in bytes.
const LABEL_MAX: usize = 63;

/// A name in lower case, for lookups (RFC 4343).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

/// Reason why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There are two dots in a row, or a dot at the start.
    #[error("has an empty label")]
    Empty,
    /// A label has more than 63 bytes, or the name has more than 255 bytes in wire format.
    #[error("is too long: a label has up to 63 characters, a name up to 253")]
    Long,
    /// A space, a quote or another character that has to be escaped by a backslash.
    #[error("has a character that is not allowed in names; write other octets as \\DDD, in decimal")]
    Character,
}

impl Name {
    /// Parses a name with or without the final dot. Labels may have any printable characters, as in
    /// reverse zones and wildcards (RFC 2317, RFC 4592). Other bytes are escaped by a backslash
    /// (RFC 1035, section 5.1).
    ///
    /// # Errors
    /// The text is not a name.
    pub fn parse(text: &str) -> Result<Name, NameError> {
        let mut wire = Vec::with_capacity(text.len() + 2);
        let mut rest = text.as_bytes();
        if rest == b"." {
            rest = &[];
        }
        while !rest.is_empty() {
            let begin = wire.len();
            wire.push(0);
            rest = label(rest, &mut wire)?;
            let len = wire.len() - begin - 1;
            match len {
                0 => return Err(NameError::Empty),
                1..=LABEL_MAX => wire[begin] = len as u8,
                _ => return Err(NameError::Long),
            }
        }
        wire.push(0);
        if wire.len() > NAME_MAX { Err(NameError::Long) } else { Ok(Name(wire.into())) }
    }

    /// Reads a name in wire format without compression. `None` for other bytes.
    pub fn from_wire(wire: &[u8]) -> Option<Name> {
        let mut name: Vec<u8> = wire.to_vec();
        let len = lower(&mut name)?;
        (len == wire.len()).then(|| Name(name.into()))
    }

    /// Returns the wire format.
    pub fn as_wire(&self) -> &[u8] {
        &self.0
    }

    /// Returns the wire format of the name and of each of its parents, up to the root.
    pub fn and_above(&self) -> impl Iterator<Item = &[u8]> {
        parents(&self.0)
    }

    /// True if this is `apex` or a name below it.
    pub fn is_in(&self, apex: &Name) -> bool {
        parents(&self.0).any(|parent| parent == apex.as_wire())
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&written(&self.0))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Formats a name without the final dot. Special characters are escaped (RFC 1035, section 5.1).
fn written(wire: &[u8]) -> String {
    use core::fmt::Write;
    let mut text = String::new();
    for parent in parents(wire) {
        let Some((len, rest)) = parent.split_first().filter(|(len, _)| **len > 0) else { break };
        if !text.is_empty() {
            text.push('.');
        }
        for byte in rest.iter().take(usize::from(*len)) {
            let done = match byte {
                b'.' | b'\\' | b'"' | b'(' | b')' | b';' | b'@' => write!(text, "\\{}", *byte as char),
                b'!'..=b'~' => write!(text, "{}", *byte as char),
                _ => write!(text, "\\{byte:03}"),
            };
            debug_assert!(done.is_ok(), "a string takes everything");
        }
    }
    if text.is_empty() { String::from(".") } else { text }
}

/// Returns a well-formed name and its parents, up to the root.
pub(super) fn parents(name: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    core::iter::successors(Some(name), |name| {
        let (len, rest) = name.split_first()?;
        if *len == 0 { None } else { rest.get(usize::from(*len)..) }
    })
}

/// Reads a label in lower case, and returns the text after its dot.
fn label<'t>(mut text: &'t [u8], wire: &mut Vec<u8>) -> Result<&'t [u8], NameError> {
    loop {
        let octet = match text {
            [] => return Ok(text),
            [b'.', rest @ ..] => return Ok(rest),
            [b'\\', a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', rest @ ..] => {
                text = rest;
                let digits = [a, b, c].map(|digit| u32::from(digit - b'0'));
                let number = digits.iter().fold(0, |number, digit| number * 10 + digit);
                u8::try_from(number).map_err(|_| NameError::Character)?
            }
            [b'\\', octet @ b'!'..=b'~', rest @ ..] => {
                text = rest;
                *octet
            }
            // These characters have a meaning in zone files.
            [b'\\' | b'"' | b'(' | b')' | b';' | b'@', ..] => return Err(NameError::Character),
            [octet @ b'!'..=b'~', rest @ ..] => {
                text = rest;
                *octet
            }
            _ => return Err(NameError::Character),
        };
        wire.push(octet.to_ascii_lowercase());
    }
}

/// A name in lower case on the stack, for lookups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lowered {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl Lowered {
    /// Reads the name at the start of these bytes. `None` if they don't begin with a name.
    pub(super) fn read(bytes: &[u8]) -> Option<Lowered> {
        let mut lowered = Lowered { bytes: [0; NAME_MAX], len: bytes.len().min(NAME_MAX) };
        let name = lowered.bytes.get_mut(..lowered.len)?;
        name.copy_from_slice(bytes.get(..lowered.len)?);
        lowered.len = lower(name)?;
        Some(lowered)
    }

    pub(super) fn as_wire(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Converts the name at the start of these bytes to lower case, and returns its length. `None` if
/// they don't begin with a name. Compression is not allowed in questions and in zone data.
pub(super) fn lower(bytes: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let len = usize::from(*bytes.get(at)?);
        at += 1;
        if len == 0 {
            return Some(at);
        }
        if len > LABEL_MAX || at + len >= NAME_MAX {
            return None;
        }
        bytes.get_mut(at..at + len)?.make_ascii_lowercase();
        at += len;
    }
}
