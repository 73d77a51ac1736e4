//! Requests that are not acted on, and what their senders are told.

/// Why a request is not acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// No HTTP/1.
    Malformed,
    /// The target has no path.
    Target,
    /// None, more than one, or one that can't be.
    Host,
    /// The target names another host than the Host line.
    Misdirected,
    /// The body's length is said in two ways, or in one that can't be: what smuggling needs (RFC 9112, section 6.3).
    Length,
    /// The body is encoded by something else than pieces.
    Encoding,
    /// The head is too long.
    TooLarge,
    /// It is of another version of HTTP.
    Version,
    /// It took too long.
    Late,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 9] = [
        Refusal::Malformed,
        Refusal::Target,
        Refusal::Host,
        Refusal::Misdirected,
        Refusal::Length,
        Refusal::Encoding,
        Refusal::TooLarge,
        Refusal::Version,
        Refusal::Late,
    ];

    /// Its name in views and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Malformed => "malformed",
            Refusal::Target => "bad_target",
            Refusal::Host => "bad_host",
            Refusal::Misdirected => "misdirected",
            Refusal::Length => "bad_length",
            Refusal::Encoding => "bad_encoding",
            Refusal::TooLarge => "head_too_large",
            Refusal::Version => "bad_version",
            Refusal::Late => "late",
        }
    }

    /// The status that says so.
    pub const fn status(self) -> u16 {
        match self {
            Refusal::Malformed | Refusal::Target | Refusal::Host | Refusal::Length => 400,
            Refusal::Late => 408,
            Refusal::Misdirected => 421,
            Refusal::TooLarge => 431,
            Refusal::Encoding => 501,
            Refusal::Version => 505,
        }
    }

    /// A sentence for whoever sent it.
    pub const fn sentence(self) -> &'static str {
        match self {
            Refusal::Malformed => "This is no request of HTTP/1.",
            Refusal::Target => {
                "The request's target is neither a path nor an http URL with one, or leads out of the root."
            }
            Refusal::Host => "A request needs one Host line that names a host.",
            Refusal::Misdirected => "The request's target and its Host line name different hosts.",
            Refusal::Length => "The length of the request's body is not said in exactly one way.",
            Refusal::Encoding => "A request's body may be chunked; other encodings are not read here.",
            Refusal::TooLarge => "The request's head is longer than 16 KiB, or has more than 128 lines.",
            Refusal::Version => "HTTP/1.0 and HTTP/1.1 are spoken here.",
            Refusal::Late => "The request took too long.",
        }
    }
}
