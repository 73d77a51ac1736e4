//! URL of a web server, with an optional path prefix.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::host::host_of;

/// Maximum length of a server's URL, in bytes.
pub const URL_MAX: usize = 512;

/// An http or https URL in normal form: scheme and host in lower case, no default port, and no
/// slash at the end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url {
    text: String,
    /// Start and end of the host, and end of the port.
    host: (usize, usize),
    path: usize,
    port: u16,
}

/// Reason why a text is not a URL of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The scheme is neither http nor https.
    #[error("a server's URL begins with http:// or https://")]
    Scheme,
    /// The host is missing or invalid, or the port is invalid.
    #[error("a server's URL has a host and optionally a port from 1 to 65535")]
    Host,
    /// The URL has a user or a password.
    #[error("a server's URL must not have a user or password: clients would see them")]
    Credentials,
    /// The URL has a query or a fragment.
    #[error("a server's URL must not have a query or fragment")]
    Query,
    /// The URL has a character that is not allowed, or a dot segment.
    #[error("a server's URL must be printable ASCII without quotes, spaces, backslashes and dot segments")]
    Characters,
    #[error("a server's URL may have 512 bytes")]
    TooLong,
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// The text is not the URL of a server.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        if text.len() > URL_MAX {
            return Err(UrlError::TooLong);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let scheme = match scheme {
            scheme if scheme.eq_ignore_ascii_case("http") => "http",
            scheme if scheme.eq_ignore_ascii_case("https") => "https",
            _ => return Err(UrlError::Scheme),
        };
        let stands = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}'".contains(&byte);
        if !text.bytes().all(stands) {
            return Err(UrlError::Characters);
        }
        if rest.contains(['?', '#']) {
            return Err(UrlError::Query);
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(UrlError::Credentials);
        }
        let (host, port) = host_and_port(authority, if scheme == "https" { 443 } else { 80 })?;
        let path = path.trim_end_matches('/');
        // Empty and dot segments are refused, since servers disagree about which paths are below
        // such a path.
        if path.split('/').skip(1).any(|segment| matches!(decoded(segment), "" | "." | "..")) {
            return Err(UrlError::Characters);
        }
        let default = matches!((scheme, port), ("http", 80) | ("https", 443));
        let shown = if default { String::new() } else { format!(":{port}") };
        let from = scheme.len() + "://".len();
        let to = from + host.len();
        let text = format!("{scheme}://{host}{shown}{path}");
        Ok(Url { path: to + shown.len(), text, host: (from, to), port })
    }

    /// The URL as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn is_secure(&self) -> bool {
        self.text.starts_with("https:")
    }

    /// Host of the URL, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        self.text.get(self.host.0..self.host.1).unwrap_or_default().trim_matches(['[', ']'])
    }

    /// Host of the URL as an address; `None` if the host is a name.
    pub fn address(&self) -> Option<IpAddr> {
        self.host().parse().ok()
    }

    /// Host and port, as in a Host field.
    pub fn authority(&self) -> &str {
        self.text.get(self.host.0..self.path).unwrap_or_default()
    }

    /// Port, including the default port of the scheme.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path prefix of the server's pages, which is empty for most servers.
    pub fn path(&self) -> &str {
        self.text.get(self.path..).unwrap_or_default()
    }

    /// True if this URL equals the other URL or is below it, by whole path segments.
    pub fn is_below(&self, other: &Url) -> bool {
        self.text
            .strip_prefix(&other.text)
            .is_some_and(|rest| self.path == other.path && (rest.is_empty() || rest.starts_with('/')))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Decodes a segment if it is an encoded dot segment.
fn decoded(segment: &str) -> &str {
    match segment.len() {
        3 if segment.eq_ignore_ascii_case("%2e") => ".",
        4 | 6 if segment.to_ascii_lowercase().replace("%2e", ".") == ".." => "..",
        _ => segment,
    }
}

fn host_and_port(authority: &str, default: u16) -> Result<(String, u16), UrlError> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| digits && *port != 0);
            (host, port.ok_or(UrlError::Host)?)
        }
        _ => (authority, default),
    };
    let normal = host_of(host.as_bytes()).map_err(|_| UrlError::Host)?;
    let normal = String::from_utf8(normal).map_err(|_| UrlError::Host)?;
    Ok((normal_host(&normal).ok_or(UrlError::Host)?, port))
}

/// Returns the normal form of a host. Resolvers also accept addresses such as 0x0a4f000b and
/// 10.79.11. So a host whose last label is a number must be an IPv4 address (RFC 3986, section
/// 3.2.2).
fn normal_host(host: &str) -> Option<String> {
    if let Some(address) = host.strip_prefix('[') {
        let address: Ipv6Addr = address.strip_suffix(']')?.parse().ok()?;
        return Some(match address.to_ipv4_mapped() {
            Some(address) => address.to_string(),
            None => format!("[{address}]"),
        });
    }
    let last = host.rsplit('.').next()?;
    let is_number = last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit());
    let good = !host.is_empty() && (!is_number || host.parse::<Ipv4Addr>().is_ok());
    good.then(|| host.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(text: &str) -> String {
        Url::parse(text).unwrap().to_string()
    }

    #[test]
    fn urls_have_one_form() {
        assert_eq!(normal("http://192.0.2.31:8080"), "http://192.0.2.31:8080");
        assert_eq!(normal("HTTP://M1.Example.:80/"), "http://m1.example");
        assert_eq!(normal("https://m1.example:443/a/b/"), "https://m1.example/a/b");
        assert_eq!(normal("https://m1.example:80"), "https://m1.example:80");
        assert_eq!(normal("http://[2001:DB8::1]"), "http://[2001:db8::1]");
        assert_eq!(normal("http://[2001:db8:0::0:1]"), "http://[2001:db8::1]");
        assert_eq!(normal("http://10.79.0.11."), "http://10.79.0.11");
        assert_eq!(normal("http://[::ffff:10.79.0.11]:81/a"), "http://10.79.0.11:81/a");
        let url = Url::parse("http://[2001:db8::1]:81/x").unwrap();
        assert_eq!((url.host(), url.authority(), url.port()), ("2001:db8::1", "[2001:db8::1]:81", 81));
        assert_eq!((url.path(), url.is_secure()), ("/x", false));
    }

    #[test]
    fn non_server_url_is_refused() {
        use UrlError::{Characters, Credentials, Host, Query, Scheme};
        let cases = [
            ("m1.example", Scheme),
            ("ftp://m1.example", Scheme),
            ("javascript://m1", Scheme),
            ("http://", Host),
            ("http:///x", Host),
            ("http://[]", Host),
            ("http://[::1", Host),
            ("http://0x0a4f000b", Host),
            ("http://10.79.11", Host),
            ("http://167772161", Host),
            ("http://0177.0.0.1", Host),
            ("http://127.0.0.1.2", Host),
            ("http://m1.0x7f", Host),
            ("http://m1:0", Host),
            ("http://m1:", Host),
            ("http://m1:+1", Host),
            ("http://m1:65536", Host),
            ("http://me:secret@m1", Credentials),
            ("http://m1@evil", Credentials),
            ("http://m1/?q", Query),
            ("http://m1#f", Query),
            ("http://m1/a b", Characters),
            ("http://m1\\evil", Characters),
            ("http://m1/\r\nX: y", Characters),
            ("http://m1/a/../b", Characters),
            ("http://m1/%2e%2E", Characters),
            ("http://m1//evil", Characters),
            ("http://é", Characters),
        ];
        for (text, error) in cases {
            assert_eq!(Url::parse(text), Err(error), "{text:?}");
        }
        assert_eq!(Url::parse(&format!("http://m1/{}", "x".repeat(URL_MAX))), Err(UrlError::TooLong));
    }

    #[test]
    fn below_goes_by_segments() {
        let below = |url: &str, other: &str| Url::parse(url).unwrap().is_below(&Url::parse(other).unwrap());
        assert!(below("http://m1/a", "http://m1") && below("http://m1/a", "http://m1/a/"));
        assert!(!below("http://m1/ab", "http://m1/a") && !below("http://m1.evil", "http://m1"));
        assert!(!below("http://m1:8080", "http://m1") && !below("http://m1:8080", "http://m1:80"));
        assert!(!below("https://m1", "http://m1"));
    }

    proptest! {
        #[test]
        fn the_normal_form_stays(text in "(http|HTTPS)://([a-zA-Z0-9.-]{1,12}|\\[[0-9a-f:]{2,8}\\])(:[0-9]{1,5})?(/[a-z.%2e]{0,4}){0,3}") {
            if let Ok(url) = Url::parse(&text) {
                prop_assert_eq!(Url::parse(url.as_str()), Ok(url.clone()));
                prop_assert!(url.is_below(&url) && !url.as_str().ends_with('/'));
            }
        }

        #[test]
        fn no_text_is_too_odd(text in "\\PC*|http://\\PC*") {
            if let Ok(url) = Url::parse(&text) {
                prop_assert!(url.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
