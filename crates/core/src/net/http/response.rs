//! HTTP responses that Evener itself sends.

use alloc::string::String;
use alloc::vec::Vec;

use super::HttpRefusal;

/// Status of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectStatus {
    Found,
    SeeOther,
    Temporary,
    Permanent,
}

impl RedirectStatus {
    pub const ALL: [RedirectStatus; 4] = [
        RedirectStatus::Found,
        RedirectStatus::SeeOther,
        RedirectStatus::Temporary,
        RedirectStatus::Permanent,
    ];

    pub const fn code(self) -> u16 {
        match self {
            RedirectStatus::Found => 302,
            RedirectStatus::SeeOther => 303,
            RedirectStatus::Temporary => 307,
            RedirectStatus::Permanent => 308,
        }
    }

    /// Returns the redirect status with this code.
    pub fn of(code: u16) -> Option<RedirectStatus> {
        RedirectStatus::ALL.into_iter().find(|status| status.code() == code)
    }

    /// Returns a status that keeps the method: after 302 and 303 clients may change it to GET (RFC
    /// 9110, section 15.4), which would lose the request.
    #[must_use]
    pub fn keeping(self, method: &str) -> RedirectStatus {
        match (self, method) {
            (RedirectStatus::Found | RedirectStatus::SeeOther, "GET" | "HEAD") => self,
            (RedirectStatus::Found | RedirectStatus::SeeOther, _) => RedirectStatus::Temporary,
            (RedirectStatus::Temporary | RedirectStatus::Permanent, _) => self,
        }
    }
}

/// A response, without the fields that depend on its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Media type of the body; `None` if there is no body (RFC 9110, section 15.3.5).
    pub kind: Option<&'static str>,
    pub fields: Vec<(&'static str, String)>,
    pub body: String,
}

impl Response {
    /// Returns a response with a body of this media type.
    pub fn of(status: u16, kind: &'static str, body: String) -> Response {
        Response { status, kind: Some(kind), fields: Vec::new(), body }
    }

    /// Returns a response with a sentence as body.
    pub fn sentence(status: u16, sentence: &str) -> Response {
        Response::of(status, "text/plain", [sentence, "\n"].concat())
    }

    /// Returns a response without a body.
    pub const fn empty(status: u16) -> Response {
        Response { status, kind: None, fields: Vec::new(), body: String::new() }
    }

    /// Returns the response to a refused request.
    pub fn refusal(refusal: HttpRefusal) -> Response {
        Response::sentence(refusal.status(), refusal.sentence())
    }

    /// Returns a redirect to a location. Bytes that no URL may contain are percent-encoded (RFC
    /// 3986, section 2.1), so that they end neither a header line nor an HTML attribute.
    pub fn redirect(status: RedirectStatus, base: &str, path: &str) -> Response {
        let mut location = String::from(base);
        encode(&mut location, path);
        let body = [BODY_BEGIN, &location.replace('&', "&amp;"), BODY_END].concat();
        Response::of(status.code(), "text/html", body).with("Location", location)
    }

    /// Adds a header field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Response {
        self.fields.push((name, value));
        self
    }
}

/// Value of the Server field in all these responses.
pub const SERVER: &str = "evener";
pub const CACHE_CONTROL: &str = "no-store";

const BODY_BEGIN: &str = "<!DOCTYPE html><title>Moved</title><p>It is at <a href=\"";
const BODY_END: &str = "\">another address</a>.\n";

/// Appends a path and query, encoded for a header line and an HTML attribute. The path gets a
/// single slash at the start: two slashes would begin a host in a relative reference.
fn encode(out: &mut String, path: &str) {
    let rest = path.trim_start_matches(['/', '\\']);
    out.push('/');
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
                out.push(char::from(byte));
            }
            byte => {
                let digit =
                    |four: u8| char::from_digit(u32::from(four), 16).unwrap_or('0').to_ascii_uppercase();
                out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
}
