//! A request on the command line, and as a client sends it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use evener_core::path::content::METHOD_MAX;

const HELP: &str = "write it as in 'GET http://img.example.com/a.png' or https://img.example.com/";

/// Request of a client to a web server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebRequest {
    text: String,
    method: String,
    /// True with TLS. A director then only sees the host.
    pub encrypted: bool,
    /// As in the URL. An IPv6 address is in brackets.
    pub host: String,
    /// Port of the URL, or the scheme's default.
    pub port: u16,
    target: String,
}

impl WebRequest {
    /// Returns the shortest head that a client may send (RFC 9112, section 3).
    pub fn head(&self) -> String {
        let WebRequest { method, host, port, target, .. } = self;
        match port {
            80 => format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            _ => format!("{method} {target} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"),
        }
    }

    /// Returns the host, if it is an address.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.trim_matches(['[', ']']).parse().ok()
    }
}

impl fmt::Display for WebRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for WebRequest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let (method, url) = text.split_once(' ').unwrap_or(("GET", text));
        if !(1..=METHOD_MAX).contains(&method.len()) || !method.bytes().all(|b| b.is_ascii_uppercase()) {
            return Err("write the method in capital letters, as in 'HEAD http://img.example.com/'");
        }
        let (scheme, rest) = url.trim_start().split_once("://").ok_or(HELP)?;
        let encrypted = scheme.eq_ignore_ascii_case("https");
        if !encrypted && !scheme.eq_ignore_ascii_case("http") {
            return Err(HELP);
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at_checked(end).ok_or(HELP)?;
        let (host, port) = host_and_port(authority)?;
        // The fragment stays with the client (RFC 3986, section 3.5).
        let target = rest.split('#').next().unwrap_or_default();
        if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("write path and query as clients send them: %20 for a space, %C3%A9 for an é");
        }
        Ok(WebRequest {
            text: text.to_owned(),
            method: method.to_owned(),
            encrypted,
            host: host.to_owned(),
            port: port.unwrap_or(if encrypted { 443 } else { 80 }),
            target: if target.starts_with('/') { target.to_owned() } else { format!("/{target}") },
        })
    }
}

fn host_and_port(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    let colon = authority.rfind(':').filter(|at| !authority.get(*at..).unwrap_or_default().contains(']'));
    let (host, port) = authority.split_at_checked(colon.unwrap_or(authority.len())).ok_or(HELP)?;
    let port = match port.strip_prefix(':') {
        None => None,
        Some(port) => Some(port.parse().ok().filter(|port| *port > 0).ok_or("write a port from 1 to 65535")?),
    };
    let is_v6 = |host: &str| {
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    match !host.is_empty() && host.bytes().all(is_name) || is_v6(host) {
        true => Ok((host, port)),
        false => Err(
            "write the host as in img.example.com, 192.0.2.100 or [2001:db8::100]; other letters in their \
                      xn-- form",
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn web_request_parses_from_command_line() {
        let cases = [
            ("http://img.example.com/a.png", "GET /a.png HTTP/1.1\r\nHost: img.example.com\r\n\r\n"),
            ("HEAD HTTP://a:8080", "HEAD / HTTP/1.1\r\nHost: a:8080\r\n\r\n"),
            ("POST http://a?b=/#c", "POST /?b=/ HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("GET http://[2001:db8::1]//%2e/..", "GET //%2e/.. HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n"),
            ("http://[2001:db8::1]:81/", "GET / HTTP/1.1\r\nHost: [2001:db8::1]:81\r\n\r\n"),
        ];
        for (text, head) in cases {
            let request: WebRequest = text.parse().unwrap();
            assert_eq!(request.head(), head, "{text}");
            assert_eq!(request.to_string().parse(), Ok(request));
        }
        let hello: WebRequest = "https://a.example./x".parse().unwrap();
        assert_eq!((hello.encrypted, hello.host.as_str(), hello.port), (true, "a.example.", 443));
        let address = |text: &str| text.parse::<WebRequest>().unwrap().address();
        assert_eq!(address("http://192.0.2.1:80/"), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(address("https://[2001:db8::1]"), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(address("http://a.example"), None);
    }

    #[test]
    fn invalid_web_request_is_refused_with_reason() {
        let cases = [
            ("", "write it as in"),
            ("/a.png", "write it as in"),
            ("ftp://a/", "write it as in"),
            ("get http://a/", "capital letters"),
            ("WAYTOOLONGAMETHOD http://a/", "capital letters"),
            ("GET http://a/b c", "%20"),
            ("GET http://a/é", "%20"),
            ("http:///a", "write the host"),
            ("http://u@a/", "write the host"),
            ("http://é/", "write the host"),
            ("http://[::g]/", "write the host"),
            ("http://a:0/", "write a port"),
            ("http://a:/", "write a port"),
        ];
        for (text, help) in cases {
            let error = text.parse::<WebRequest>().unwrap_err();
            assert!(error.contains(help), "{text}: {error}");
        }
    }
}
