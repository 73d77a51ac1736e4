//! Preprocesses a zone's text entry by entry before its records are parsed: finds the position of
//! each entry, and converts times to seconds.
//!
//! Zone files may have times with units (`1h30m`). BIND introduced these units, and all servers
//! accept them. RFC 1035 and the library that parses records only have seconds.

use std::ops::Range;

use super::zone_data;
pub(super) use super::zone_data::shown;

/// Line and text of a syntax error.
pub(super) type SyntaxError = (usize, String);

/// A text with times in seconds, and the lines at which its entries begin. `$TTL` and `$ORIGIN` are
/// no entries.
pub(super) struct PlainZone {
    pub(super) text: Vec<u8>,
    pub(super) lines: Vec<usize>,
}

/// Indexes of the times in a SOA record's data, after two names and a serial number.
const SOA_TIMES: Range<usize> = 3..7;

/// Converts a text to times in seconds, to data in the form that the library parses, and to ASCII.
/// Line numbers stay. `origin` is the zone's name in wire form.
///
/// # Errors
/// If there is `$GENERATE`, which is unsupported, an entry that is no record, or an open quote or
/// parenthesis at the end.
pub(super) fn plain(text: &[u8], origin: &[u8]) -> Result<PlainZone, SyntaxError> {
    let mut plain = PlainZone { text: Vec::with_capacity(text.len()), lines: Vec::new() };
    let mut origin = origin.to_vec();
    let mut copied = 0;
    let mut entries = Entries { text, at: 0, line: 1, unclosed: None, long_quote: None };
    for entry in entries.by_ref() {
        let words: Vec<&[u8]> = entry.words.iter().filter_map(|word| text.get(word.clone())).collect();
        let directive = words.first().filter(|word| entry.has_owner && word.starts_with(b"$"));
        let replaced = match directive {
            Some(word) if word.eq_ignore_ascii_case(b"$GENERATE") => {
                let what = "$GENERATE is not understood: write its records out";
                return Err((entry.line, what.to_owned()));
            }
            Some(word) if word.eq_ignore_ascii_case(b"$TTL") => time(&words, 1).into_iter().collect(),
            Some(word) if word.eq_ignore_ascii_case(b"$ORIGIN") => {
                origin = words.get(1).and_then(|name| zone_data::name(name, &origin)).unwrap_or(origin);
                vec![]
            }
            // `$INCLUDE` and unknown directives are left to the parser of the records.
            Some(_) => {
                plain.lines.push(entry.line);
                vec![]
            }
            None => {
                if plain.lines.is_empty() && !entry.has_owner {
                    let what =
                        "the first record has no owner: begin its line with a name, or with @ for the zone";
                    return Err((entry.line, what.to_owned()));
                }
                plain.lines.push(entry.line);
                record(&words, entry.has_owner, &origin).map_err(|what| (entry.line, what))?
            }
        };
        for (place, word) in replaced {
            let Some(at) = entry.words.get(place) else { continue };
            plain.text.extend_from_slice(text.get(copied..at.start).unwrap_or_default());
            plain.text.extend_from_slice(word.as_bytes());
            copied = at.end;
        }
    }
    // Refused here, since the library reads past the end of a text that ends within an entry.
    if let Some((line, what)) = entries.unclosed {
        return Err((line, format!("{what} is not closed")));
    }
    plain.text.extend_from_slice(text.get(copied..).unwrap_or_default());
    if !plain.text.ends_with(b"\n") {
        plain.text.push(b'\n');
    }
    plain.text = ascii(&plain.text);
    Ok(plain)
}

/// Converts non-ASCII bytes, in any encoding, to `\DDD`. The record gets the bytes unchanged.
fn ascii(text: &[u8]) -> Vec<u8> {
    let mut ascii = Vec::with_capacity(text.len());
    let mut is_escaped = false;
    for byte in text {
        match byte {
            // The byte is already escaped.
            0x80.. if is_escaped => ascii.extend_from_slice(format!("{byte:03}").as_bytes()),
            0x80.. => ascii.extend_from_slice(format!("\\{byte:03}").as_bytes()),
            byte => ascii.push(*byte),
        }
        is_escaped = *byte == b'\\' && !is_escaped;
    }
    ascii
}

/// Returns the words of a record to replace, by index: its TTL, before or after the class, the
/// times of a SOA record, and data in its own form.
///
/// # Errors
/// A sentence about the missing or wrong word.
fn record(words: &[&[u8]], has_owner: bool, origin: &[u8]) -> Result<Vec<(usize, String)>, String> {
    let is_class =
        |word: &[u8]| [&b"IN"[..], b"CH", b"HS", b"CS"].iter().any(|class| word.eq_ignore_ascii_case(class));
    let is_time = |word: &[u8]| seconds(word).is_some() || word.iter().all(u8::is_ascii_digit);
    let mut at = usize::from(has_owner);
    let mut replaced = Vec::new();
    while words.get(at).is_some_and(|word| is_class(word) || is_time(word)) {
        replaced.extend(time(words, at));
        at += 1;
    }
    let Some(rtype) = words.get(at) else {
        let last = words.last().map(|word| zone_data::shown(word)).unwrap_or_default();
        return Err(format!(
            "the record ends after {last}: write its type and data, for example A 192.0.2.1"
        ));
    };
    if rtype.eq_ignore_ascii_case(b"SOA") {
        replaced.extend(SOA_TIMES.filter_map(|place| time(words, at + 1 + place)));
    }
    let data = words.get(at + 1..).unwrap_or_default();
    if let Some(generic) = zone_data::generic(rtype, data, origin) {
        let (number, text) = generic?;
        replaced.push((at, format!("TYPE{number}")));
        replaced.push((at + 1, text));
        replaced.extend((at + 2..words.len()).map(|place| (place, String::new())));
    }
    Ok(replaced)
}

/// Returns the word at an index in seconds, if it is a time with units.
fn time(words: &[&[u8]], place: usize) -> Option<(usize, String)> {
    words.get(place).and_then(|word| seconds(word)).map(|seconds| (place, seconds.to_string()))
}

/// Parses a time with units into seconds. Returns `None` for a plain number, which is in seconds
/// already.
fn seconds(word: &[u8]) -> Option<u32> {
    let (mut sum, mut number) = (0_u32, None);
    for byte in word {
        let unit = match byte.to_ascii_lowercase() {
            digit @ b'0'..=b'9' => {
                let before: u32 = number.unwrap_or(0);
                number = Some(before.checked_mul(10)?.checked_add(u32::from(digit - b'0'))?);
                continue;
            }
            b's' => 1,
            b'm' => 60,
            b'h' => 3_600,
            b'd' => 86_400,
            b'w' => 604_800,
            _ => return None,
        };
        sum = sum.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    (!word.is_empty() && number.is_none()).then_some(sum)
}

/// An entry: a line, or several lines within parentheses.
struct EntryText {
    line: usize,
    /// True if the entry begins with a word. Otherwise its owner is that of the previous entry.
    has_owner: bool,
    words: Vec<Range<usize>>,
}

/// Iterator of all entries with words (RFC 1035, section 5.1).
struct Entries<'t> {
    text: &'t [u8],
    at: usize,
    line: usize,
    /// Line and kind of an open quote or parenthesis at the end.
    unclosed: Option<(usize, &'static str)>,
    /// Line of the first quoted string that spans lines. If the last quote is open at the end, the
    /// quote on this line was probably not closed.
    long_quote: Option<usize>,
}

impl Entries<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Skips a word or a quoted string.
    fn word(&mut self) -> Range<usize> {
        let (begin, line) = (self.at, self.line);
        let is_quoted = self.peek() == Some(b'"');
        self.at += usize::from(is_quoted);
        while let Some(byte) = self.peek() {
            match byte {
                b'"' if is_quoted => {
                    self.at += 1;
                    if self.line > line {
                        self.long_quote.get_or_insert(line);
                    }
                    return begin..self.at;
                }
                b'\n' | b' ' | b'\t' | b'\r' | b'(' | b')' | b';' | b'"' if !is_quoted => break,
                b'\n' => self.line += 1,
                b'\\' if self.text.get(self.at + 1).is_some_and(|next| *next != b'\n') => self.at += 1,
                _ => {}
            }
            self.at += 1;
        }
        if is_quoted {
            self.unclosed = Some((self.long_quote.unwrap_or(line), "a quote"));
        }
        begin..self.at.min(self.text.len())
    }

    fn skip_comment(&mut self) {
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = EntryText;

    fn next(&mut self) -> Option<EntryText> {
        let mut entry = EntryText { line: self.line, has_owner: false, words: Vec::new() };
        let (mut depth, mut begin, mut open) = (0_usize, self.at, self.line);
        while let Some(byte) = self.peek() {
            match byte {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                    if depth == 0 && !entry.words.is_empty() {
                        return Some(entry);
                    }
                    if depth == 0 {
                        (entry.line, begin) = (self.line, self.at);
                    }
                }
                b';' => self.skip_comment(),
                b'(' | b')' => {
                    depth = if byte == b'(' { depth + 1 } else { depth.saturating_sub(1) };
                    open = if depth == 1 && byte == b'(' { self.line } else { open };
                    self.at += 1;
                }
                b' ' | b'\t' | b'\r' => self.at += 1,
                _ => {
                    entry.has_owner |= self.at == begin;
                    let word = self.word();
                    entry.words.push(word);
                }
            }
        }
        if depth > 0 {
            self.unclosed = Some((open, "a parenthesis"));
        }
        (!entry.words.is_empty()).then_some(entry)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn times_with_units_become_seconds_where_times_stand() {
        for (written, read) in [
            ("$TTL 1d\n", "$TTL 86400\n"),
            ("$ttl 1H30M ; 1h\n", "$ttl 5400 ; 1h\n"),
            ("1h 1h IN A 192.0.2.1\n", "1h 3600 IN A 192.0.2.1\n"),
            ("a\tIN 2w TXT 1d \"1d\"\n", "a\tIN 1209600 TXT 1d \"1d\"\n"),
            ("a TXT \"; ( 1h\" (1h\n 1h)\n", "a TXT \"; ( 1h\" (1h\n 1h)\n"),
            ("1d CNAME 1w\n", "1d CNAME 1w\n"),
            (
                "@ 60 SOA a b ( 1d ; serial\n 1h 15m\n 1w 60 )\n",
                "@ 60 SOA a b ( 1d ; serial\n 3600 900\n 604800 60 )\n",
            ),
            ("a 99999w A 192.0.2.1", "a 99999w A 192.0.2.1\n"),
        ] {
            assert_eq!(String::from_utf8(plain(written.as_bytes(), b"\0").unwrap().text).unwrap(), read);
        }
    }

    #[test]
    fn entries_are_found_where_they_begin() {
        let text = "; comment\n$ORIGIN x.\n\n  \na A 192.0.2.1\n  ( \n TXT \"a\nb\" )\n$INCLUDE other\nb A 192.0.2.2";
        assert_eq!(plain(text.as_bytes(), b"\0").unwrap().lines, [5, 6, 9, 10]);
        assert_eq!(plain(b"a A 192.0.2.1\n$generate 1-2 a A 192.0.2.$\n", b"\0").err().unwrap().0, 2);
    }
}
