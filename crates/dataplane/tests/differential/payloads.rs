//! First bytes of clients: HTTP request heads and TLS ClientHellos, complete and damaged.

use proptest::prelude::*;

pub const HOSTS: [&str; 6] = [
    "example.com",
    "img.example.com",
    "a.b.img.example.com",
    "[2001:db8::1]",
    "x.y",
    "a.b.c.d.e.f.g.h.i.j.k",
];
pub const PATHS: [&str; 7] = [
    "/",
    "/img/",
    "/img/a.png",
    "/img/deep/down/b.gif",
    "/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s",
    "/api/v1/.well-known/...",
    "/index.html",
];
pub const METHODS: [&str; 8] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "XXXXXGET", "ABCDEFGHIJKLMNOP"];

fn any_case(text: &'static str) -> impl Strategy<Value = String> {
    any::<u64>().prop_map(move |bits| {
        let upper = |(at, char): (usize, char)| match bits >> (at % 64) & 1 {
            1 => char.to_ascii_uppercase(),
            _ => char,
        };
        text.chars().enumerate().map(upper).collect()
    })
}

fn host() -> impl Strategy<Value = String> {
    let name = prop::sample::select(HOSTS.to_vec()).prop_flat_map(any_case);
    let tail =
        prop_oneof![6 => Just(""), 2 => Just(":8080"), 1 => Just(":"), 1 => Just("."), 1 => Just(" \t")];
    prop_oneof![
        9 => (name, tail).prop_map(|(name, tail)| format!("{name}{tail}")),
        1 => (250usize..260).prop_map(|len| "h".repeat(len)),
        3 => prop::sample::select(vec![".", ".example.com", ".img.example.com"]).prop_map(str::to_owned),
        1 => Just("[]".to_owned()),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let odd = ["*", "//", "/a//b", "/..", "/./a", "/a/..", "/a/../b", "/%61", "/a#b", "http://x/", "/a b"];
    let query = prop_oneof![3 => Just(""), 1 => Just("?"), 1 => Just("?q=/../%20"), 1 => Just("?a?b/c.")];
    let path =
        prop_oneof![8 => prop::sample::select(PATHS.to_vec()), 1 => prop::sample::select(odd.to_vec())];
    (path, query).prop_map(|(path, query)| format!("{path}{query}"))
}

fn header() -> impl Strategy<Value = String> {
    let odd =
        ["Host: other", " folded", "No-Colon", ": empty", "Name : x", "X: \x01", "X: \u{80}é", "Xhost: y"];
    prop_oneof![
        4 => Just("User-Agent: some (thing) 1.0".to_owned()),
        3 => Just("Accept:".to_owned()),
        2 => (0usize..1_900).prop_map(|len| format!("Cookie: {}", "c".repeat(len))),
        1 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned),
    ]
}

fn head() -> impl Strategy<Value = Vec<u8>> {
    let version = prop_oneof![8 => Just("HTTP/1.1"), 2 => Just("HTTP/1.0"), 1 => Just("HTTP/2.0"), 1 => Just("HTTP/1.12")];
    let headers = || prop::collection::vec(header(), 0..3);
    let space = prop_oneof![6 => Just(" "), 1 => Just(""), 1 => Just(" \t ")];
    let method = prop::sample::select(METHODS.to_vec());
    let name = prop_oneof![5 => Just("Host"), 2 => Just("hOsT"), 1 => Just("X-Host")];
    (method, path(), version, headers(), (name, space, host()), headers()).prop_map(
        |(method, path, version, before, (name, space, host), after)| {
            let mut lines = vec![format!("{method} {path} {version}")];
            lines.extend(before);
            lines.push(format!("{name}:{space}{host}"));
            lines.extend(after);
            format!("{}\r\n\r\nbody", lines.join("\r\n")).into_bytes()
        },
    )
}

/// Prefixes the bytes with their length in two bytes.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &counted(body)].concat()
}

/// Returns a complete ClientHello.
pub fn hello_with(name: Option<&str>, others: usize, session_id: usize, suites: usize) -> Vec<u8> {
    let mut extensions: Vec<u8> =
        (0..others).flat_map(|n| extension(10 + n as u16, &vec![7; n % 5])).collect();
    if let Some(name) = name {
        let list = counted(&[&[0][..], &counted(name.as_bytes())].concat());
        extensions.splice(0..0, extension(0, &list));
    }
    let mut body = vec![3, 3];
    body.extend([0x5a; 32]);
    body.push(session_id as u8);
    body.extend(vec![1; session_id]);
    body.extend(counted(&vec![0x13; suites * 2]));
    body.extend([1, 0]);
    body.extend(counted(&extensions));
    let len = (body.len() as u32).to_be_bytes();
    let message = [&[1, len[1], len[2], len[3]][..], &body].concat();
    [&[0x16, 3, 1][..], &counted(&message)].concat()
}

fn hello() -> impl Strategy<Value = Vec<u8>> {
    let odd = prop::sample::select(vec!["a..", "a b", "", "[::1]"]).prop_map(str::to_owned);
    let name = prop_oneof![
        8 => prop::sample::select(HOSTS.to_vec()).prop_flat_map(any_case).prop_map(Some),
        1 => Just(None),
        1 => odd.prop_map(Some),
        1 => (250usize..260).prop_map(|len| Some("h".repeat(len))),
    ];
    let others = prop_oneof![6 => 0usize..9, 1 => 60usize..68, 1 => 200usize..330];
    let records = prop_oneof![6 => Just(usize::MAX), 1 => 1usize..300];
    let version = prop_oneof![4 => Just(1u8), 1 => any::<u8>()];
    let id = prop_oneof![5 => Just(32usize), 1 => 0usize..40];
    (name, others, id, 0usize..40, records, version).prop_map(
        |(name, others, id, suites, records, version)| {
            let hello = hello_with(name.as_deref(), others, id, suites);
            let record = |part: &[u8]| [&[0x16, 3, version][..], &counted(part)].concat();
            hello[5..].chunks(records).flat_map(record).collect()
        },
    )
}

/// Returns the start of a request, or a look-alike, as in later segments.
fn beginning() -> impl Strategy<Value = Vec<u8>> {
    let lines = prop_oneof![2 => Just(0usize), 2 => 1usize..5, 1 => 250usize..260];
    let methods = vec!["", "G", "GET", "POST", "VERSION-CONTROL", "ABCDEFGHIJKLMNOPQ", "get", "1A"];
    let spaces = prop_oneof![4 => 0usize..3, 1 => 240usize..260];
    let targets = vec!["", "/", "/img/", "http://x/", "*", "x", "\t/"];
    let ends = vec![
        "",
        " HTTP/1.1\r\nHost: x.y\r\n\r\n",
        "\n",
        " http/1.1\n",
        "\x01 HTTP/1.1\r\n",
        " HTTP/\t\r",
        "HTTP\x7f/",
    ];
    let end = prop_oneof![2 => Just(ends[0]), 2 => Just(ends[1]), 1 => prop::sample::select(ends)];
    (lines, prop::sample::select(methods), spaces, prop::sample::select(targets), end).prop_map(
        |(lines, method, spaces, target, end)| {
            let lines: String = "\r\n".chars().cycle().take(lines).collect();
            format!("{lines}{method}{}{target}{end}", " ".repeat(spaces)).into_bytes()
        },
    )
}

#[derive(Clone, Debug)]
enum Damage {
    None,
    Set(usize, u8),
    Cut(usize),
    Insert(usize, u8),
}

/// Returns the first bytes of a client.
pub fn payload() -> impl Strategy<Value = Vec<u8>> {
    let at = any::<prop::sample::Index>;
    let byte = prop_oneof![
        3 => prop::sample::select(b"\r\n \t:./?%#[]\0\x7f\xffA0".to_vec()),
        1 => any::<u8>()
    ];
    let damage = prop_oneof![
        5 => Just(Damage::None),
        3 => (at(), byte.clone()).prop_map(|(at, to)| Damage::Set(at.index(700), to)),
        1 => at().prop_map(|at| Damage::Cut(at.index(500))),
        1 => (at(), byte).prop_map(|(at, byte)| Damage::Insert(at.index(300), byte)),
    ];
    let kind = prop_oneof![
        6 => head(),
        3 => hello(),
        2 => beginning().prop_filter("something", |bytes| !bytes.is_empty()),
        1 => prop::collection::vec(any::<u8>(), 1..40),
    ];
    (kind, damage).prop_map(|(mut bytes, damage)| {
        let len = bytes.len();
        match damage {
            Damage::None => {}
            Damage::Set(at, to) => bytes[at % len] = to,
            Damage::Cut(at) => bytes.truncate(1 + at % len),
            Damage::Insert(at, byte) => bytes.insert(at % len, byte),
        }
        // A test run accepts at most one page.
        bytes.truncate(2_900);
        bytes
    })
}
