//! Reasons why requests are refused, and the responses to them.

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpRefusal {
    Malformed,
    /// The target has no path.
    Target,
    /// The Host field is missing, repeated or malformed.
    Host,
    /// The target names another host than the Host field.
    Misdirected,
    /// Ambiguous or malformed body length, which allows request smuggling (RFC 9112, section 6.3).
    Length,
    /// The body has a transfer coding other than chunked.
    Encoding,
    /// The head is too long.
    TooLarge,
    /// The HTTP version is not supported.
    Version,
    Timeout,
}

impl HttpRefusal {
    pub const ALL: [HttpRefusal; 9] = [
        HttpRefusal::Malformed,
        HttpRefusal::Target,
        HttpRefusal::Host,
        HttpRefusal::Misdirected,
        HttpRefusal::Length,
        HttpRefusal::Encoding,
        HttpRefusal::TooLarge,
        HttpRefusal::Version,
        HttpRefusal::Timeout,
    ];

    /// Name in views and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            HttpRefusal::Malformed => "malformed",
            HttpRefusal::Target => "bad_target",
            HttpRefusal::Host => "bad_host",
            HttpRefusal::Misdirected => "misdirected",
            HttpRefusal::Length => "bad_length",
            HttpRefusal::Encoding => "bad_encoding",
            HttpRefusal::TooLarge => "head_too_large",
            HttpRefusal::Version => "bad_version",
            HttpRefusal::Timeout => "client_timeout",
        }
    }

    /// Status of the response.
    pub const fn status(self) -> u16 {
        match self {
            HttpRefusal::Malformed | HttpRefusal::Target | HttpRefusal::Host | HttpRefusal::Length => 400,
            HttpRefusal::Timeout => 408,
            HttpRefusal::Misdirected => 421,
            HttpRefusal::TooLarge => 431,
            HttpRefusal::Encoding => 501,
            HttpRefusal::Version => 505,
        }
    }

    /// Sentence for the client.
    pub const fn sentence(self) -> &'static str {
        match self {
            HttpRefusal::Malformed => "This is no request of HTTP/1.",
            HttpRefusal::Target => {
                "The request's target is neither a path nor an http URL with one, or leads out of the root."
            }
            HttpRefusal::Host => "A request needs one Host line that names a host.",
            HttpRefusal::Misdirected => "The request's target and its Host line name different hosts.",
            HttpRefusal::Length => "The request must give the length of its body in exactly one way.",
            HttpRefusal::Encoding => "A request's body may be chunked; other encodings are not read here.",
            HttpRefusal::TooLarge => "The request's head is longer than 16 KiB, or has more than 128 lines.",
            HttpRefusal::Version => "HTTP/1.0 and HTTP/1.1 are spoken here.",
            HttpRefusal::Timeout => "The request took too long.",
        }
    }
}
