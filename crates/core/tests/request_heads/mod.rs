//! The corpus of `heads.txt`, for all crates that have a door for HTTP.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

/// A head, and what is to become of it.
pub(crate) struct Vector {
    /// As `heads.txt` has it.
    pub(crate) text: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) expected: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Accepted {
        method: &'static str,
        host: &'static str,
        path: &'static str,
    },
    /// By a status; `by_server`: the data plane may leave that to the server.
    Refused {
        status: u16,
        by_server: bool,
    },
}

pub(crate) fn vectors() -> Vec<Vector> {
    let lines = include_str!("heads.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let vectors: Vec<Vector> = lines.map(vector).collect();
    assert!(vectors.len() > 90);
    vectors
}

fn vector(text: &'static str) -> Vector {
    let (head, expected) = text.rsplit_once(" => ").expect(text);
    let words: Vec<&str> = expected.split(' ').collect();
    let expected = match words[..] {
        [method, host, path] => {
            Expected::Accepted { method, host: if host == "-" { "" } else { host }, path }
        }
        [status] => {
            let by_server = status.starts_with('~');
            Expected::Refused { status: status.trim_start_matches('~').parse().expect(text), by_server }
        }
        _ => panic!("{text}"),
    };
    Vector { text, bytes: bytes(head), expected }
}

/// The bytes that escapes and repetitions stand for.
fn bytes(text: &str) -> Vec<u8> {
    if let Some((before, (repeated, after))) =
        text.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        let (what, times) = repeated.split_once('*').expect(text);
        return [bytes(before), bytes(what).repeat(times.parse().expect(text)), bytes(after)].concat();
    }
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.extend_from_slice(plain.as_bytes());
        let (byte, len) = match escape.as_bytes()[0] {
            b'r' => (b'\r', 1),
            b'n' => (b'\n', 1),
            b't' => (b'\t', 1),
            b'0' => (0, 1),
            b'x' => (u8::from_str_radix(&escape[1..3], 16).expect(text), 3),
            other => panic!("{text}: \\{other}"),
        };
        out.push(byte);
        rest = &escape[len..];
    }
    out.extend_from_slice(rest.as_bytes());
    out
}
