//! Converts data of record types whose presentation format the crate `domain` can't parse to `\#
//! LENGTH HEX` (RFC 3597, section 5).

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use domain::base::iana::Rtype;
use domain::base::name::{RelativeName, UncertainName};
use domain::rdata::dnssec::RtypeBitmap;
use domain::utils::base64;

/// A field of a record's data.
#[derive(Clone, Copy)]
enum Field {
    U8,
    U16,
    U32,
    Name,
    /// Character string: one byte of length, then up to 255 bytes (RFC 1035, section 3.3).
    Text,
    /// All remaining words, each as [`Field::Text`].
    Texts,
    /// One word as its bytes, without a length.
    Bytes,
    Hex,
    Base64,
    Address,
    /// Pairs of hexadecimal digits between dashes.
    Eui(usize),
    /// Four groups of hexadecimal digits (RFC 6742).
    Locator,
    /// Record types, as in NSEC.
    Types,
    /// Type of a certificate, by number or name (RFC 4398).
    CertificateKind,
    /// DNSSEC algorithm, by number or name.
    Algorithm,
    Location,
    Prefixes,
    HostIdentity,
}

use Field::*;

/// Record types with the fields of their data.
const TYPES: [(&str, u16, &[Field]); 22] = [
    ("X25", 19, &[Text]),
    ("ISDN", 20, &[Texts]),
    ("AFSDB", 18, &[U16, Name]),
    ("RT", 21, &[U16, Name]),
    ("PX", 26, &[U16, Name, Name]),
    ("LOC", 29, &[Location]),
    ("KX", 36, &[U16, Name]),
    ("CERT", 37, &[CertificateKind, U16, Algorithm, Base64]),
    ("APL", 42, &[Prefixes]),
    ("DHCID", 49, &[Base64]),
    ("SMIMEA", 53, &[U8, U8, U8, Hex]),
    ("HIP", 55, &[HostIdentity]),
    ("CSYNC", 62, &[U32, U16, Types]),
    ("SPF", 99, &[Texts]),
    ("NID", 104, &[U16, Locator]),
    ("L32", 105, &[U16, Address]),
    ("L64", 106, &[U16, Locator]),
    ("LP", 107, &[U16, Name]),
    ("EUI48", 108, &[Eui(6)]),
    ("EUI64", 109, &[Eui(8)]),
    ("URI", 256, &[U16, U16, Bytes]),
    ("DLV", 32_769, &[U16, Algorithm, U8, Hex]),
];

/// Converts a record's data to `\# LENGTH HEX`, with the number of its type. Returns `None` for
/// types that the library parses, and for data in this form.
///
/// # Errors
/// A sentence about the wrong word.
pub(super) fn generic(rtype: &[u8], words: &[&[u8]], origin: &[u8]) -> Option<Result<(u16, String), String>> {
    let (name, number, fields) =
        TYPES.iter().find(|(name, ..)| rtype.eq_ignore_ascii_case(name.as_bytes()))?;
    if words.first() == Some(&b"\\#".as_slice()) {
        return None;
    }
    let mut data = DataWriter { words: words.iter(), origin, data: Vec::new() };
    let read = fields.iter().try_for_each(|field| data.field(*field));
    let read = read.and_then(|()| match data.words.next() {
        Some(word) => Err(format!("{} is one word too many", shown(word))),
        None => Ok(()),
    });
    let DataWriter { data, .. } = data;
    Some(match read {
        Ok(()) => {
            let mut text = format!("\\# {}", data.len());
            for (at, byte) in data.iter().enumerate() {
                let _ = write!(text, "{}{byte:02x}", if at == 0 { " " } else { "" });
            }
            Ok((*number, text))
        }
        Err(what) => Err(format!("the data of this {name} record isn't understood: {what}")),
    })
}

/// Parses the name of `$ORIGIN` into wire form.
pub(super) fn name(word: &[u8], origin: &[u8]) -> Option<Vec<u8>> {
    let mut writer = DataWriter { words: [].iter(), origin, data: Vec::new() };
    writer.name(std::str::from_utf8(word).ok()?).ok()?;
    Some(writer.data)
}

/// Formats a word for an error.
pub(super) fn shown(word: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(word).trim_matches('"').escape_debug())
}

struct DataWriter<'w> {
    words: std::slice::Iter<'w, &'w [u8]>,
    /// Origin that is appended to names without a dot at their end, in wire form.
    origin: &'w [u8],
    data: Vec<u8>,
}

impl<'w> DataWriter<'w> {
    fn word(&mut self) -> Result<&'w [u8], String> {
        self.words.next().copied().ok_or_else(|| "it ends too early".to_owned())
    }

    fn text(&mut self) -> Result<&'w str, String> {
        let word = self.word()?;
        std::str::from_utf8(word).map_err(|_| format!("{} is no word of it", shown(word)))
    }

    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.text()?;
        word.parse().map_err(|_| format!("{word:?} is no number of its range"))
    }

    /// Joins the remaining words.
    fn rest(&mut self) -> String {
        self.words.by_ref().map(|word| String::from_utf8_lossy(word)).collect()
    }

    fn field(&mut self, field: Field) -> Result<(), String> {
        match field {
            U8 => {
                let number: u8 = self.number()?;
                self.data.push(number);
            }
            U16 => {
                let number: u16 = self.number()?;
                self.data.extend(number.to_be_bytes());
            }
            U32 => {
                let number: u32 = self.number()?;
                self.data.extend(number.to_be_bytes());
            }
            Name => {
                let word = self.text()?;
                self.name(word)?;
            }
            Text => self.string()?,
            Texts => {
                self.string()?;
                while self.words.len() > 0 {
                    self.string()?;
                }
            }
            Bytes => {
                let text = unescaped(self.word()?)?;
                self.data.extend(text);
            }
            Hex => {
                let text = self.rest();
                self.hex(&text)?;
            }
            Base64 => {
                let text = self.rest();
                let bytes: Vec<u8> =
                    base64::decode(&text).map_err(|error| format!("{text:?} is no base64: {error}"))?;
                self.data.extend(bytes);
            }
            Address => {
                let address: Ipv4Addr = self.number()?;
                self.data.extend(address.octets());
            }
            Eui(len) => {
                let word = self.text()?;
                let before = self.data.len();
                self.hex(&word.replace('-', ""))?;
                if self.data.len() - before != len || word.len() != 3 * len - 1 {
                    return Err(format!("{word:?} has not {len} numbers between dashes"));
                }
            }
            Locator => {
                let word = self.text()?;
                let groups: Vec<&str> = word.split(':').collect();
                let parsed = groups.iter().map(|group| u16::from_str_radix(group, 16));
                let parsed: Vec<u16> = parsed.collect::<Result<_, _>>().unwrap_or_default();
                if parsed.len() != 4 {
                    return Err(format!("{word:?} has not four groups of hexadecimal digits"));
                }
                self.data.extend(parsed.iter().flat_map(|group| group.to_be_bytes()));
            }
            Types => {
                let mut types = RtypeBitmap::<Vec<u8>>::builder();
                while self.words.len() > 0 {
                    let word = self.text()?;
                    let rtype = Rtype::from_str(word).map_err(|_| format!("{word:?} is no type"))?;
                    types.add(rtype).map_err(|_| "it has too many types".to_owned())?;
                }
                self.data.extend(types.finalize().as_slice());
            }
            CertificateKind => {
                let kind = self.mnemonic(&CERTIFICATE_KINDS)?;
                self.data.extend(kind.to_be_bytes());
            }
            Algorithm => {
                let number = self.mnemonic(&ALGORITHMS)?;
                self.data.push(u8::try_from(number).map_err(|_| format!("{number} is no algorithm"))?);
            }
            Location => self.location()?,
            Prefixes => {
                while self.words.len() > 0 {
                    self.prefix()?;
                }
            }
            HostIdentity => self.host_identity()?,
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), String> {
        let word = self.word()?;
        let text = unescaped(word)?;
        let len =
            u8::try_from(text.len()).map_err(|_| format!("{} is longer than 255 bytes", shown(word)))?;
        self.data.push(len);
        self.data.extend(text);
        Ok(())
    }

    fn name(&mut self, word: &str) -> Result<(), String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{word:?} is no name: {error}");
        if word == "@" {
            self.data.extend(self.origin);
            return Ok(());
        }
        let name = UncertainName::<Vec<u8>>::from_str(word).map_err(|error| wrong(&error))?;
        let before = self.data.len();
        match name {
            UncertainName::Absolute(name) => self.data.extend(name.as_slice()),
            UncertainName::Relative(name) => {
                let name: &RelativeName<Vec<u8>> = &name;
                self.data.extend(name.as_slice());
                self.data.extend(self.origin);
            }
        }
        match self.data.len() - before > 255 {
            true => Err(wrong(&"it is longer than 255 bytes")),
            false => Ok(()),
        }
    }

    fn hex(&mut self, text: &str) -> Result<(), String> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        });
        let bytes: Option<Vec<u8>> = pairs.collect();
        self.data.extend(bytes.ok_or_else(|| format!("{text:?} is no even number of hexadecimal digits"))?);
        Ok(())
    }

    fn mnemonic(&mut self, names: &[(&str, u16)]) -> Result<u16, String> {
        let word = self.text()?;
        let named = names.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, number)| *number);
        named.or_else(|| word.parse().ok()).ok_or_else(|| format!("{word:?} is neither a number nor known"))
    }

    /// Degrees, minutes and seconds twice, then metres (RFC 1876, section 3).
    fn location(&mut self) -> Result<(), String> {
        let latitude = self.angle(['N', 'S'], 90)?;
        let longitude = self.angle(['E', 'W'], 180)?;
        let altitude = self.centimetres(-10_000_000..=4_284_967_295)? + 10_000_000;
        let mut sizes = [100, 1_000_000, 1_000];
        for size in &mut sizes {
            if self.words.len() > 0 {
                *size = self.centimetres(0..=9_000_000_000)?;
            }
        }
        self.data.push(0);
        for size in sizes {
            let exponent = u8::try_from(size.max(1).ilog10()).unwrap_or_default();
            let mantissa = u8::try_from(size / 10_i64.pow(exponent.into())).unwrap_or_default();
            self.data.push(mantissa << 4 | exponent);
        }
        let altitude = u32::try_from(altitude).unwrap_or_default();
        self.data.extend([latitude, longitude, altitude].map(u32::to_be_bytes).concat());
        Ok(())
    }

    /// Parses degrees, minutes, seconds and a direction. Returns thousandths of an arc second plus
    /// 2^31.
    fn angle(&mut self, signs: [char; 2], most: u32) -> Result<u32, String> {
        let mut thousandths = 0_u32;
        for unit in [3_600_000_u32, 60_000, 1_000] {
            let word = self.text()?;
            if let Some(sign) = signs.iter().position(|sign| word.eq_ignore_ascii_case(&sign.to_string())) {
                return Self::signed(thousandths, sign, most);
            }
            let limit = if unit == 3_600_000 { f64::from(most) } else { 59.999 };
            let value: f64 = word.parse().map_err(|_| format!("{word:?} is no part of an angle"))?;
            if !(0.0..=limit).contains(&value) || unit > 1_000 && value.fract() != 0.0 {
                return Err(format!("{word:?} is out of its range"));
            }
            thousandths += (value * f64::from(unit)).round() as u32;
        }
        let word = self.text()?;
        let sign = signs.iter().position(|sign| word.eq_ignore_ascii_case(&sign.to_string()));
        Self::signed(thousandths, sign.ok_or_else(|| format!("{word:?} is neither {signs:?}"))?, most)
    }

    fn signed(thousandths: u32, sign: usize, most: u32) -> Result<u32, String> {
        match thousandths > most * 3_600_000 {
            true => Err(format!("an angle is larger than {most} degrees")),
            false if sign == 0 => Ok((1 << 31) + thousandths),
            false => Ok((1 << 31) - thousandths),
        }
    }

    fn centimetres(&mut self, range: std::ops::RangeInclusive<i64>) -> Result<i64, String> {
        let word = self.text()?;
        let metres: Option<f64> = word.trim_end_matches(['m', 'M']).parse().ok();
        let centimetres = metres.map(|metres| (metres * 100.0).round() as i64);
        centimetres
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("{word:?} is no such distance"))
    }

    /// Parses `[!]FAMILY:ADDRESS/LENGTH` (RFC 3123).
    fn prefix(&mut self) -> Result<(), String> {
        let word = self.text()?;
        let wrong = || format!("{word:?} is no prefix such as 1:192.0.2.0/24");
        let (is_negative, rest) = word.strip_prefix('!').map_or((false, word), |rest| (true, rest));
        let (family, rest) = rest.split_once(':').ok_or_else(wrong)?;
        let (address, length) = rest.split_once('/').ok_or_else(wrong)?;
        let length: u8 = length.parse().map_err(|_| wrong())?;
        let (family, mut bytes, most): (u16, Vec<u8>, u8) = match (family, address.parse()) {
            ("1", Ok(IpAddr::V4(address))) => (1, address.octets().to_vec(), 32),
            ("2", Ok(IpAddr::V6(address))) => (2, address.octets().to_vec(), 128),
            _ => return Err(wrong()),
        };
        if length > most {
            return Err(wrong());
        }
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        let len = bytes.len() as u8 | if is_negative { 0x80 } else { 0 };
        self.data.extend(family.to_be_bytes());
        self.data.extend([length, len]);
        self.data.extend(bytes);
        Ok(())
    }

    /// Parses algorithm, identity, key, and names of servers (RFC 8005, section 6).
    fn host_identity(&mut self) -> Result<(), String> {
        let algorithm: u8 = self.number()?;
        let (identity, key) = (self.text()?, self.text()?);
        let start = self.data.len();
        self.hex(identity)?;
        let identity = self.data.split_off(start);
        let key: Vec<u8> = base64::decode(key).map_err(|error| format!("{key:?} is no base64: {error}"))?;
        let lens = (u8::try_from(identity.len()), u16::try_from(key.len()));
        let (Ok(identity_len), Ok(key_len)) = lens else { return Err("it is too long".to_owned()) };
        self.data.extend([identity_len, algorithm]);
        self.data.extend(key_len.to_be_bytes());
        self.data.extend(identity);
        self.data.extend(key);
        while self.words.len() > 0 {
            self.field(Name)?;
        }
        Ok(())
    }
}

const CERTIFICATE_KINDS: [(&str, u16); 10] = [
    ("PKIX", 1),
    ("SPKI", 2),
    ("PGP", 3),
    ("IPKIX", 4),
    ("ISPKI", 5),
    ("IPGP", 6),
    ("ACPKIX", 7),
    ("IACPKIX", 8),
    ("URI", 253),
    ("OID", 254),
];

const ALGORITHMS: [(&str, u16); 11] = [
    ("RSAMD5", 1),
    ("DH", 2),
    ("DSA", 3),
    ("RSASHA1", 5),
    ("RSASHA256", 8),
    ("RSASHA512", 10),
    ("ECC-GOST", 12),
    ("ECDSAP256SHA256", 13),
    ("ECDSAP384SHA384", 14),
    ("ED25519", 15),
    ("ED448", 16),
];

/// Returns the bytes of a word or of a quoted string (RFC 1035, section 5.1).
fn unescaped(word: &[u8]) -> Result<Vec<u8>, String> {
    let inner = word.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(word);
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        let (value, len) = match behind.get(..3).filter(|code| code.iter().all(u8::is_ascii_digit)) {
            Some(code) => {
                let code = std::str::from_utf8(code).unwrap_or_default();
                (code.parse().map_err(|_| format!("\\{code} is no byte"))?, 3)
            }
            None => (*behind.first().ok_or("a backslash escapes nothing")?, 1),
        };
        bytes.push(value);
        rest = behind.get(len..).unwrap_or_default();
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn hex(rtype: &str, data: &str) -> Result<String, String> {
        let words: Vec<&[u8]> = data.split(' ').map(str::as_bytes).collect();
        let origin = b"\x07example\0";
        generic(rtype.as_bytes(), &words, origin).unwrap().map(|(_, text)| text)
    }

    #[test]
    fn data_in_its_own_form_becomes_bytes() {
        for (rtype, data, expected) in [
            ("loc", "42 21 54 N 71 06 18 W -24m 30m", "\\# 16 0033161389172dd070be15f000988d20"),
            ("LOC", "52 N 4.5 E 0", ""),
            ("URI", "10 1 \"ftp://x/\"", "\\# 12 000a00016674703a2f2f782f"),
            ("SPF", "\"v=spf1\\032-all\"", "\\# 12 0b763d73706631202d616c6c"),
            ("AFSDB", "1 afs", "\\# 15 000103616673076578616d706c6500"),
            ("EUI48", "00-00-5e-00-53-2a", "\\# 6 00005e00532a"),
            ("APL", "1:192.0.2.0/24 !1:198.51.100.0/28", "\\# 14 00011803c0000200011c83c63364"),
            ("CERT", "PGP 0 0 AQID", "\\# 8 0003000000010203"),
            ("L64", "10 2001:db8:1140:1000", "\\# 10 000a20010db811401000"),
        ] {
            match expected {
                "" => assert!(hex(rtype, data).is_err(), "{rtype} {data}"),
                _ => assert_eq!(hex(rtype, data).unwrap(), expected, "{rtype}"),
            }
        }
    }

    #[test]
    fn data_that_is_wrong_names_its_word() {
        for (rtype, data, word) in [
            ("URI", "10 x \"a\"", "\"x\""),
            ("AFSDB", "1", "ends too early"),
            ("AFSDB", "1 a b", "\"b\" is one word too many"),
            ("LOC", "91 N 0 E 0m", "\"91\""),
            ("EUI48", "00-00-5e-00-53", "has not 6"),
            ("SMIMEA", "0 0 0 abc", "\"abc\""),
            ("APL", "1:192.0.2.0/33", "prefix"),
        ] {
            assert!(hex(rtype, data).unwrap_err().contains(word), "{rtype} {data}: {:?}", hex(rtype, data));
        }
    }
}
