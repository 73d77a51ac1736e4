//! Head of an HTTP/1.1 message (RFC 9112), parsed to find the end of the message.
//! `bpf/server/message.h` is the copy in C.

/// Maximum length of a body, in bytes. So head and body together take less than half of the
/// sequence number space.
pub(super) const LENGTH_MAX: u64 = 0x7fff_0000;

/// A complete head without unusual lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Length in bytes, with the final empty line.
    pub len: usize,
    /// Number of Content-Length fields.
    pub lengths: u32,
    /// Number of Transfer-Encoding fields, which must be chunked.
    pub codings: u32,
    /// Body length by the last Content-Length field, in bytes.
    pub length: u64,
    /// True if the connection closes after this message.
    pub closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageParse {
    Whole(Head),
    /// The head is incomplete, and all its complete lines are plain.
    Cut,
    /// The head has a line that is not plain.
    Odd,
}

impl Head {
    /// Parses the head at the start of `bytes`. `None` if the head is incomplete, or has an unusual
    /// line.
    pub fn read(bytes: &[u8]) -> Option<Head> {
        match Head::read_up_to(bytes, LENGTH_MAX) {
            MessageParse::Whole(head) => Some(head),
            MessageParse::Cut | MessageParse::Odd => None,
        }
    }

    /// Parses a head whose body has at most `length_max` bytes.
    pub(super) fn read_up_to(bytes: &[u8], length_max: u64) -> MessageParse {
        let (mut head, mut rest, mut is_first) = (Head::default(), bytes, true);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, behind) = rest.split_at(end + 1);
            rest = behind;
            // RFC 9112, section 2.2: some parsers accept a line feed alone, and others don't. Other
            // control characters are equally ambiguous (RFC 9110, section 5.5).
            let line = line.strip_suffix(b"\r\n");
            let Some(line) = line.filter(|line| line.iter().all(|byte| *byte >= b' ' || *byte == b'\t'))
            else {
                return MessageParse::Odd;
            };
            if line.is_empty() {
                head.len = bytes.len() - rest.len();
                return MessageParse::Whole(head);
            }
            if !is_first && head.add_field(line, length_max).is_none() {
                return MessageParse::Odd;
            }
            is_first = false;
        }
        MessageParse::Cut
    }

    fn add_field(&mut self, line: &[u8], length_max: u64) -> Option<()> {
        // The line is a continuation of the previous one, which is obsolete (RFC 9112, section
        // 5.2).
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return None;
        }
        let named = |name: &[u8]| {
            let (start, value) = line.split_at_checked(name.len())?;
            start.eq_ignore_ascii_case(name).then_some(value)
        };
        if let Some(value) = named(b"content-length:") {
            self.length = length(value, length_max)?;
            self.lengths += 1;
        } else if let Some(value) = named(b"transfer-encoding:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            self.codings += u32::from(value.eq_ignore_ascii_case(b"chunked"));
            value.eq_ignore_ascii_case(b"chunked").then_some(())?;
        } else if let Some(value) = named(b"connection:") {
            self.closes |= value.windows(5).any(|part| part.eq_ignore_ascii_case(b"close"));
        }
        Some(())
    }
}

/// Parses the value of a Content-Length field: digits with optional white space around them (RFC
/// 9110, section 5.5).
fn length(value: &[u8], length_max: u64) -> Option<u64> {
    let digits = value.trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |length, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(length * 10 + digit).filter(|length| *length <= length_max)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str) -> Option<Head> {
        Head::read(head.as_bytes())
    }

    #[test]
    fn response_head_gives_body_length() {
        let head = |lengths, codings, length, closes| Head { len: 0, lengths, codings, length, closes };
        for (text, says) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", head(0, 0, 0, false)),
            ("HTTP/1.1 200 OK\r\ncontent-LENGTH: \t 007\r\n\r\n", head(1, 0, 7, false)),
            ("HTTP/1.1 200 OK\r\nContent-Length:5 \t \r\n\r\n", head(1, 0, 5, false)),
            ("HTTP/1.1 200 OK\r\nContent-Length:5\r\nContent-Length:6\r\n\r\n", head(2, 0, 6, false)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding:Chunked\r\n\r\n", head(0, 1, 0, false)),
            ("HTTP/1.1 200 OK\r\nX-Content-Length: 5\r\nContent-Lengthy: 6\r\n\r\n", head(0, 0, 0, false)),
            ("x\r\nConnection: x, Close\r\n\r\n", head(0, 0, 0, true)),
            (" \r\nConnections: close\r\n\r\n", head(0, 0, 0, false)),
        ] {
            assert_eq!(read(&[text, "body"].concat()), Some(Head { len: text.len(), ..says }), "{text:?}");
            let cut = |len| Head::read_up_to(&text.as_bytes()[..len], LENGTH_MAX) == MessageParse::Cut;
            assert!((0..text.len()).all(cut), "{text:?} has an end before, or is unusual");
        }
        let most = |length: u64| std::format!("x\r\nContent-Length: {length}\r\n\r\n");
        assert!(read(&most(LENGTH_MAX)).is_some() && read(&most(LENGTH_MAX + 1)).is_none());
    }

    #[test]
    fn unusual_head_is_rejected() {
        for text in [
            "x\r\nContent-Length: 5\n\r\n",
            "x\n\r\n\r\n",
            "x\r\nContent-Length:\r\n\r\n",
            "x\r\nContent-Length: 5 6\r\n\r\n",
            "x\r\nContent-Length: \r\n\r\n",
            "x\r\nContent-Length: +5\r\n\r\n",
            "x\r\nContent-Length: 5, 5\r\n\r\n",
            "x\r\nContent-Length: 184467440737095516150\r\n\r\n",
            "x\r\nTransfer-Encoding:  chunked\r\n\r\n",
            "x\r\nTransfer-Encoding: chunked \r\n\r\n",
            "x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "x\r\nTransfer-Encoding:\r\n\r\n",
            "x\r\nA: b\r\n c\r\n\r\n",
            "x\r\n\tc\r\n\r\n",
            // Control characters that a simple conversion to lower case would change into others.
            "x\r\nContent\rLength: 5\r\n\r\n",
            "x\r\nContent-Length: 5\r6\r\n\r\n",
            "x\r\nContent-Length\x1a 5\r\n\r\n",
            "x\r\nA: \0\r\n\r\n",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
