//! Requests of HTTP probes, and the verdict on their replies.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::HealthKind;
use super::health::Failure;

/// Maximum number of bytes of a reply that a probe reads, head and body together.
pub const REPLY_MAX: usize = 64 * 1024;

/// The only 1xx status that is a final reply (RFC 9110, section 15.2.2).
const SWITCHING_PROTOCOLS: u16 = 101;

/// Verdict on the bytes of a reply that were received so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyVerdict {
    /// More bytes are needed.
    More,
    /// The probe succeeded; the connection can be closed.
    Ok,
    Failed(Failure),
}

/// Returns the request of an HTTP probe to a service address; `None` for other kinds.
///
/// The request allows the server to close the connection (RFC 9112, section 9.6).
pub fn http_request(kind: &HealthKind, address: SocketAddr) -> Option<Vec<u8>> {
    let HealthKind::Http { path, host, tls, .. } = kind else {
        return None;
    };
    let default_port = if tls.is_some() { 443 } else { 80 };
    let named = || tls.as_ref()?.name.clone();
    let host = host.clone().or_else(named).unwrap_or_else(|| match address {
        SocketAddr::V4(address) if address.port() == default_port => format!("{}", address.ip()),
        // An IPv6 address is in brackets also without a port (RFC 3986, section 3.2.2).
        SocketAddr::V6(address) if address.port() == default_port => format!("[{}]", address.ip()),
        _ => format!("{address}"),
    });
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: evener\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    Some(request.into_bytes())
}

/// Judges the reply to a probe from the bytes received so far. `eof` is true once the connection
/// has ended.
///
/// Bytes after the first [`REPLY_MAX`] are ignored. A probe that only opens a connection
/// needs no reply and is always [`ReplyVerdict::Ok`].
pub fn judge_http(kind: &HealthKind, reply: &[u8], eof: bool) -> ReplyVerdict {
    let HealthKind::Http { status: accepted, body: wanted, .. } = kind else {
        return ReplyVerdict::Ok;
    };
    let full = reply.len() >= REPLY_MAX;
    let reply = &reply[..reply.len().min(REPLY_MAX)];
    let (status, reply) = match final_reply(reply) {
        Ok(Some(found)) => found,
        Ok(None) if eof || full => return ReplyVerdict::Failed(Failure::Closed),
        Ok(None) => return ReplyVerdict::More,
        Err(failure) => return ReplyVerdict::Failed(failure),
    };
    if !accepted.iter().any(|&(low, high)| (low..=high).contains(&status)) {
        return ReplyVerdict::Failed(Failure::Status(status));
    }
    let Some(wanted) = wanted.as_ref().filter(|text| !text.is_empty()) else {
        return ReplyVerdict::Ok;
    };
    let Some(body) = body_of(reply) else {
        return match (eof, full) {
            (true, false) => ReplyVerdict::Failed(Failure::Closed),
            (_, true) => ReplyVerdict::Failed(Failure::Body),
            (false, false) => ReplyVerdict::More,
        };
    };
    let head = &reply[..reply.len() - body.len()];
    let (body, is_whole) = match is_chunked(head).then(|| data_of_chunks(body)) {
        Some((data, is_whole)) => (Cow::Owned(data), is_whole),
        None => (Cow::Borrowed(body), false),
    };
    match contains(&body, wanted.as_bytes()) {
        true => ReplyVerdict::Ok,
        false if eof || full || is_whole => ReplyVerdict::Failed(Failure::Body),
        false => ReplyVerdict::More,
    }
}

/// Returns the status of the final reply, and the bytes from the start of that reply. Skips interim
/// replies (RFC 9110, section 15.2). `None` until the status was received.
fn final_reply(mut reply: &[u8]) -> Result<Option<(u16, &[u8])>, Failure> {
    loop {
        match status_of(reply)? {
            Some(status) if (100..200).contains(&status) && status != SWITCHING_PROTOCOLS => {
                let Some(behind) = body_of(reply) else { return Ok(None) };
                reply = behind;
            }
            found => return Ok(found.map(|status| (status, reply))),
        }
    }
}

/// True if the body uses chunked transfer coding (RFC 9112, section 7.1).
fn is_chunked(head: &[u8]) -> bool {
    head.split(|byte| *byte == b'\n').any(|line| {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
        let last = value.rsplit(|byte| matches!(byte, b',' | b':')).next().unwrap_or_default();
        name.eq_ignore_ascii_case(b"transfer-encoding") && last.trim_ascii().eq_ignore_ascii_case(b"chunked")
    })
}

/// Returns the data of a chunked body (RFC 9112, section 7.1), up to the last received byte or the
/// first malformed size. The flag is true if the body is complete or malformed.
fn data_of_chunks(mut body: &[u8]) -> (Vec<u8>, bool) {
    let mut data = Vec::new();
    while let Some(end) = body.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = body.split_at(end + 1);
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let size = core::str::from_utf8(size).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size.filter(|size| *size > 0) else { return (data, true) };
        data.extend_from_slice(rest.get(..size).unwrap_or(rest));
        // Each chunk's data ends with CRLF.
        let Some(next) = rest.get(size.saturating_add(2)..) else { break };
        body = next;
    }
    (data, false)
}

/// Returns the status code of a status line (RFC 9112, section 4). `None` until it was received.
fn status_of(reply: &[u8]) -> Result<Option<u16>, Failure> {
    const SHAPE: &[u8; 13] = b"HTTP/1.d ddd ";
    for (&byte, &shape) in reply.iter().zip(SHAPE) {
        let fits = match shape {
            b'd' => byte.is_ascii_digit(),
            // Some servers omit the reason phrase and the space before it.
            b' ' => matches!(byte, b' ' | b'\r' | b'\n'),
            _ => byte == shape,
        };
        if !fits {
            return Err(Failure::NotHttp);
        }
    }
    let code = |digits: &[u8]| digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    Ok(reply.get(..SHAPE.len()).and_then(|line| line.get(9..12)).map(code))
}

/// Returns the body, which follows the empty line. Line ends without a carriage return are accepted
/// (RFC 9112, section 2.2).
fn body_of(reply: &[u8]) -> Option<&[u8]> {
    let mut at_line_start = false;
    let mut bytes = reply.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\n' if at_line_start => return Some(bytes.as_slice()),
            b'\n' => at_line_start = true,
            b'\r' if at_line_start => {}
            _ => at_line_start = false,
        }
    }
    None
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ProbeTls;
    use alloc::string::{String, ToString};
    use proptest::prelude::*;
    use std::vec;

    fn http(body: Option<&str>) -> HealthKind {
        HealthKind::Http {
            path: "/healthz".into(),
            host: None,
            status: vec![(200, 299), (304, 304)],
            body: body.map(Into::into),
            tls: None,
        }
    }

    #[test]
    fn http_status_is_judged_without_body() {
        let kind = http(None);
        assert_eq!(judge_http(&kind, b"", false), ReplyVerdict::More);
        assert_eq!(judge_http(&kind, b"HTTP/1.1 20", false), ReplyVerdict::More);
        assert_eq!(judge_http(&kind, b"HTTP/1.1 200 OK\r\n", false), ReplyVerdict::Ok);
        assert_eq!(judge_http(&kind, b"HTTP/1.0 304\r\n", false), ReplyVerdict::Ok);
        let failed = |reply: &[u8], eof| match judge_http(&kind, reply, eof) {
            ReplyVerdict::Failed(failure) => failure,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(b"HTTP/1.1 503 Busy\r\n", false), Failure::Status(503));
        assert_eq!(failed(b"SSH-2.0-x", false), Failure::NotHttp);
        assert_eq!(failed(b"HTTP/1.1 2000", false), Failure::NotHttp);
        assert_eq!(failed(b"HTTP/1.1 20", true), Failure::Closed);
        assert_eq!(failed(b"", true), Failure::Closed);
    }

    #[test]
    fn expected_text_is_searched_until_body_end() {
        let kind = http(Some("ready"));
        let head = "HTTP/1.1 200 OK\r\nX-State: ready\r\n\r\n";
        let judge = |body: &str, eof| judge_http(&kind, [head, body].concat().as_bytes(), eof);
        assert_eq!(judge("rea", false), ReplyVerdict::More, "the head is not the body");
        assert_eq!(judge("all ready", false), ReplyVerdict::Ok);
        assert_eq!(judge("starting", true), ReplyVerdict::Failed(Failure::Body));
        assert_eq!(judge(&"x".repeat(REPLY_MAX), false), ReplyVerdict::Failed(Failure::Body));
        let far = ["x".repeat(REPLY_MAX).as_str(), "ready"].concat();
        assert_eq!(judge(&far, true), ReplyVerdict::Failed(Failure::Body));
        assert_eq!(judge_http(&kind, b"HTTP/1.1 200 OK\nA: b\n\nready", false), ReplyVerdict::Ok);
        assert_eq!(judge_http(&kind, b"HTTP/1.1 200 OK\r\nA", true), ReplyVerdict::Failed(Failure::Closed));
        assert_eq!(judge_http(&http(Some("")), b"HTTP/1.1 200 OK\r\n", false), ReplyVerdict::Ok);
    }

    #[test]
    fn expected_text_may_lie_in_two_chunks() {
        let kind = http(Some("ready"));
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n";
        let whole = format!("{head}3\r\nrea\r\n2;a=b\r\ndy\r\n0\r\n\r\n");
        let found = whole.find("dy").unwrap() + 2;
        for end in 0..=whole.len() {
            let expected = if end < found { ReplyVerdict::More } else { ReplyVerdict::Ok };
            assert_eq!(judge_http(&kind, &whole.as_bytes()[..end], false), expected, "{end}");
        }
        // The size of a chunk is not part of the body, and the body ends with the last chunk.
        let other = format!("{head}5\r\nread\r\r\n0\r\n\r\n");
        assert_eq!(judge_http(&kind, other.as_bytes(), false), ReplyVerdict::Failed(Failure::Body));
        let sizes = format!("{head}3;ready\r\nabc\r\n");
        assert_eq!(judge_http(&kind, sizes.as_bytes(), false), ReplyVerdict::More);
        let plain = "HTTP/1.1 200 OK\r\n\r\n3\r\nrea\r\n2\r\ndy\r\n";
        assert_eq!(judge_http(&kind, plain.as_bytes(), true), ReplyVerdict::Failed(Failure::Body));
    }

    #[test]
    fn interim_replies_come_before_the_final_one() {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        let whole = |status: &str| format!("{interim}HTTP/1.1 {status}\r\n\r\nready");
        for (kind, status, expected) in [
            (http(None), "200 OK", ReplyVerdict::Ok),
            (http(Some("ready")), "200 OK", ReplyVerdict::Ok),
            (http(None), "503 Busy", ReplyVerdict::Failed(Failure::Status(503))),
            (http(None), "101 Other", ReplyVerdict::Failed(Failure::Status(101))),
        ] {
            let reply = whole(status);
            assert_eq!(judge_http(&kind, reply.as_bytes(), false), expected, "{status}");
            assert_eq!(judge_http(&kind, interim.as_bytes(), false), ReplyVerdict::More);
        }
        let ended = judge_http(&http(None), interim.as_bytes(), true);
        assert_eq!(ended, ReplyVerdict::Failed(Failure::Closed));
    }

    #[test]
    fn a_request_names_the_service() {
        let text = |port| {
            let address = SocketAddr::new([192, 0, 2, 100].into(), port);
            String::from_utf8(http_request(&http(None), address).unwrap()).unwrap()
        };
        assert!(text(80).starts_with("GET /healthz HTTP/1.1\r\nHost: 192.0.2.100\r\n"));
        assert!(text(8080).contains("\r\nHost: 192.0.2.100:8080\r\n"));
        let ipv6 = |address: &str| http_request(&http(None), address.parse().unwrap()).unwrap();
        assert!(contains(&ipv6("[2001:db8::100]:80"), b"\r\nHost: [2001:db8::100]\r\n"));
        assert!(contains(&ipv6("[2001:db8::100]:8080"), b"\r\nHost: [2001:db8::100]:8080\r\n"));
        assert!(text(80).ends_with("\r\n\r\n"));
        let secure = |name: Option<&str>| HealthKind::Http {
            path: "/".into(),
            host: None,
            status: vec![(200, 399)],
            body: None,
            tls: Some(ProbeTls { name: name.map(Into::into), ca: None, verify: true }),
        };
        let host = |kind: &HealthKind, port: u16| {
            let request = http_request(kind, SocketAddr::new([192, 0, 2, 1].into(), port)).unwrap();
            String::from_utf8(request).unwrap().lines().nth(1).unwrap().to_string()
        };
        assert_eq!(host(&secure(None), 443), "Host: 192.0.2.1");
        assert_eq!(host(&secure(None), 80), "Host: 192.0.2.1:80");
        assert_eq!(host(&secure(Some("www.example.com")), 443), "Host: www.example.com");
        assert_eq!(http_request(&HealthKind::Tcp, SocketAddr::new([192, 0, 2, 1].into(), 80)), None);
    }

    #[test]
    fn the_edges_of_accepted_statuses_are_accepted_and_their_neighbours_are_not() {
        let kind = http(None);
        let judge = |status: u16| judge_http(&kind, format!("HTTP/1.1 {status} x\r\n").as_bytes(), false);
        for status in [200, 299, 304] {
            assert_eq!(judge(status), ReplyVerdict::Ok, "{status}");
        }
        for status in [101, 300, 303, 305, 999] {
            assert_eq!(judge(status), ReplyVerdict::Failed(Failure::Status(status)));
        }
    }

    #[test]
    fn a_body_that_fills_all_that_is_read_is_still_searched() {
        let kind = http(Some("ready"));
        let head = "HTTP/1.1 200 OK\r\n\r\n";
        let reply = |len: usize| format!("{head}{}ready", "x".repeat(len - head.len() - 5));
        assert_eq!(judge_http(&kind, reply(REPLY_MAX).as_bytes(), false), ReplyVerdict::Ok);
        assert_eq!(
            judge_http(&kind, reply(REPLY_MAX + 1).as_bytes(), false),
            ReplyVerdict::Failed(Failure::Body)
        );
        let open = "HTTP/1.1 200 OK\r\nA: ".to_string() + &"b".repeat(REPLY_MAX);
        assert_eq!(judge_http(&kind, &open.as_bytes()[..REPLY_MAX - 1], false), ReplyVerdict::More);
        assert_eq!(
            judge_http(&kind, &open.as_bytes()[..REPLY_MAX], false),
            ReplyVerdict::Failed(Failure::Body)
        );
    }

    proptest! {
        #[test]
        fn any_reply_is_judged_and_an_ended_one_for_good(
            start in prop_oneof![Just(""), Just("HTTP/1.1 200 OK\r\n"), Just("HTTP/1.1 200 OK\r\n\r\n")],
            rest in prop::collection::vec(any::<u8>(), 0..200),
            body in prop::option::of("[a-c]{0,2}"),
        ) {
            let reply = [start.as_bytes(), &rest].concat();
            let kind = http(body.as_deref());
            prop_assert_ne!(judge_http(&kind, &reply, true), ReplyVerdict::More);
            // Further bytes never change a verdict.
            let mut last = ReplyVerdict::More;
            for end in 0..=reply.len() {
                let now = judge_http(&kind, &reply[..end], false);
                prop_assert!(last == ReplyVerdict::More || now == last);
                last = now;
            }
        }
    }
}
