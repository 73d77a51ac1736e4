//! Answers that a front gives by itself.

use alloc::vec::Vec;
use core::fmt::{self, Write};

use super::HttpRefusal;

/// By which status a client is sent elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectStatus {
    /// 302.
    Found,
    /// 303.
    SeeOther,
    /// 307.
    Temporary,
    /// 308.
    Permanent,
}

impl RedirectStatus {
    /// All of them.
    pub const ALL: [RedirectStatus; 4] = [
        RedirectStatus::Found,
        RedirectStatus::SeeOther,
        RedirectStatus::Temporary,
        RedirectStatus::Permanent,
    ];

    /// Its number.
    pub const fn code(self) -> u16 {
        match self {
            RedirectStatus::Found => 302,
            RedirectStatus::SeeOther => 303,
            RedirectStatus::Temporary => 307,
            RedirectStatus::Permanent => 308,
        }
    }

    /// The one of this number.
    pub fn of(code: u16) -> Option<RedirectStatus> {
        RedirectStatus::ALL.into_iter().find(|status| status.code() == code)
    }

    /// The same for a request by this method: after 302 and 303 clients may ask with GET (RFC 9110,
    /// section 15.4), which would lose what they wanted to do.
    #[must_use]
    pub fn keeping(self, method: &str) -> RedirectStatus {
        match (self, method) {
            (RedirectStatus::Found | RedirectStatus::SeeOther, "GET" | "HEAD") => self,
            (RedirectStatus::Found | RedirectStatus::SeeOther, _) => RedirectStatus::Temporary,
            (RedirectStatus::Temporary | RedirectStatus::Permanent, _) => self,
        }
    }
}

/// The framing of an answer.
#[derive(Clone, Copy, Debug)]
pub struct ResponseFraming<'a> {
    /// The time, as HTTP writes it (RFC 9110, section 5.6.7).
    pub date: &'a str,
    /// Whether the body is left out, as HEAD wants it.
    pub is_head: bool,
    /// Whether the connection ends with this answer.
    pub closes: bool,
    /// Whether the client must be told that it doesn't, as HTTP/1.0 wants it.
    pub keep_alive_header: bool,
}

/// The reason phrase of a status.
pub(super) fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Answer",
    }
}

const BODY_BEGIN: &str = "<!DOCTYPE html><title>Moved</title><p>It is at <a href=\"";
const BODY_END: &str = "\">another address</a>.\n";

/// Sends a client to a location. Bytes of it that no URL has are written as percent codes (RFC
/// 3986, section 2.1), so that neither a line nor an attribute ends with them.
pub fn redirect(
    out: &mut Vec<u8>,
    frame: &ResponseFraming<'_>,
    status: RedirectStatus,
    base: &str,
    path: &str,
) {
    head(out, frame, status.code());
    push_text(out, "Content-Type: text/html\r\nCache-Control: no-store\r\nLocation: ");
    let from = out.len();
    push_text(out, base);
    encode(out, path);
    let to = out.len();
    let escapes = out.get(from..to).unwrap_or_default().iter().filter(|byte| **byte == b'&').count();
    let length = BODY_BEGIN.len() + (to - from) + escapes * (AMPERSAND.len() - 1) + BODY_END.len();
    push_text(out, "\r\nContent-Length: ");
    number(out, length);
    push_text(out, "\r\n\r\n");
    if frame.is_head {
        return;
    }
    push_text(out, BODY_BEGIN);
    match escapes {
        0 => out.extend_from_within(from..to),
        _ => {
            let location = out.get(from..to).unwrap_or_default().to_vec();
            for byte in location {
                match byte {
                    b'&' => out.extend_from_slice(AMPERSAND),
                    byte => out.push(byte),
                }
            }
        }
    }
    push_text(out, BODY_END);
}

const AMPERSAND: &[u8] = b"&amp;";

/// Writes a path and query so that it can stand in a line and in an attribute, with one slash at
/// its beginning: two would begin a host where somebody leaves out the base.
fn encode(out: &mut Vec<u8>, path: &str) {
    let rest = path.trim_start_matches(['/', '\\']);
    out.push(b'/');
    let rest = rest.split('#').next().unwrap_or_default();
    for byte in rest.bytes() {
        match byte {
            b'!'
            | b'$'..=b'&'
            | b'('..=b';'
            | b'='
            | b'?'..=b'Z'
            | b'['
            | b']'
            | b'_'
            | b'a'..=b'z'
            | b'~' => {
                out.push(byte);
            }
            byte => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                let digit = |four: u8| DIGITS.get(usize::from(four & 15)).copied().unwrap_or(b'0');
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte)]);
            }
        }
    }
}

/// Refuses a request.
pub fn refuse(out: &mut Vec<u8>, frame: &ResponseFraming<'_>, refusal: HttpRefusal) {
    write_text(out, frame, refusal.status(), &[], refusal.sentence());
}

/// Answers with a sentence.
pub fn write_text(
    out: &mut Vec<u8>,
    frame: &ResponseFraming<'_>,
    status: u16,
    fields: &[(&str, &str)],
    sentence: &str,
) {
    head(out, frame, status);
    push_text(out, "Content-Type: text/plain\r\nCache-Control: no-store\r\n");
    add(out, fields);
    push_text(out, "Content-Length: ");
    number(out, sentence.len() + 1);
    push_text(out, "\r\n\r\n");
    if !frame.is_head {
        push_text(out, sentence);
        out.push(b'\n');
    }
}

/// Answers with a status alone, which has no body (RFC 9110, section 15.3.5).
pub fn without_body(out: &mut Vec<u8>, frame: &ResponseFraming<'_>, status: u16, fields: &[(&str, &str)]) {
    head(out, frame, status);
    add(out, fields);
    push_text(out, "\r\n");
}

fn add(out: &mut Vec<u8>, fields: &[(&str, &str)]) {
    for (name, value) in fields {
        push_text(out, name);
        push_text(out, ": ");
        push_text(out, value);
        push_text(out, "\r\n");
    }
}

fn head(out: &mut Vec<u8>, frame: &ResponseFraming<'_>, status: u16) {
    push_text(out, "HTTP/1.1 ");
    number(out, usize::from(status));
    out.push(b' ');
    push_text(out, phrase(status));
    push_text(out, "\r\nServer: evener\r\nDate: ");
    push_text(out, frame.date);
    push_text(
        out,
        match (frame.closes, frame.keep_alive_header) {
            (true, _) => "\r\nConnection: close\r\n",
            (false, true) => "\r\nConnection: keep-alive\r\n",
            (false, false) => "\r\n",
        },
    );
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn number(out: &mut Vec<u8>, number: usize) {
    struct BodyWriter<'o>(&'o mut Vec<u8>);
    impl Write for BodyWriter<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.extend_from_slice(text.as_bytes());
            Ok(())
        }
    }
    // Writing into memory does not fail.
    let _ = write!(BodyWriter(out), "{number}");
}
