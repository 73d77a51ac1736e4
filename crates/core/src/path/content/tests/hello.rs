use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::{
    ContentParse, HELLO_MAX, PuntReason, READ_MAX, RequestClass, RequestKey, joined, read, read_within,
};
use super::{key_of, reading};

const ODD: ContentParse<'_> = ContentParse::Punt(PuntReason::Odd);

/// Parts of a hello. A test may break any of them.
#[derive(Clone)]
struct Hello {
    version: [u8; 2],
    session_id: Vec<u8>,
    cipher_suites: Vec<u8>,
    compression: Vec<u8>,
    /// Types and contents of the extensions. `None` omits even the length field of extensions.
    extensions: Option<Vec<(u16, Vec<u8>)>>,
}

fn sized(len: usize, bytes: &[u8]) -> Vec<u8> {
    let size = bytes.len().to_be_bytes();
    [&size[size.len() - len..], bytes].concat()
}

fn server_name(kind: u8, name: &[u8]) -> (u16, Vec<u8>) {
    (0, sized(2, &[vec![kind], sized(2, name)].concat()))
}

impl Hello {
    fn new(extensions: Vec<(u16, Vec<u8>)>) -> Hello {
        Hello {
            version: [3, 1],
            session_id: vec![7; 32],
            cipher_suites: vec![0x13, 1, 0x13, 2],
            compression: vec![0],
            extensions: Some(extensions),
        }
    }

    /// Returns a hello with a server name between other extensions.
    fn to(name: &[u8]) -> Hello {
        Hello::new(vec![(43, vec![2, 3, 4]), server_name(0, name), (21, vec![0; 40])])
    }

    fn message(&self) -> Vec<u8> {
        let extensions = self.extensions.as_ref().map_or(vec![], |extensions| {
            let write = |(kind, body): &(u16, Vec<u8>)| [&kind.to_be_bytes()[..], &sized(2, body)].concat();
            sized(2, &extensions.iter().flat_map(write).collect::<Vec<u8>>())
        });
        let parts = [
            vec![3; 34],
            sized(1, &self.session_id),
            sized(2, &self.cipher_suites),
            sized(1, &self.compression),
            extensions,
        ];
        [vec![1], sized(3, &parts.concat())].concat()
    }

    fn bytes(&self) -> Vec<u8> {
        self.record(&self.message())
    }

    fn record(&self, message: &[u8]) -> Vec<u8> {
        [&[0x16][..], &self.version, &sized(2, message)].concat()
    }
}

fn named(host: &[u8]) -> RequestKey<'_> {
    RequestKey { class: RequestClass::Hello, host, path: &[], method: &[] }
}

#[test]
fn hellos_are_read() {
    assert_eq!(key_of(&Hello::to(b"www.Example.com").bytes()), named(b"www.Example.com"));
    assert_eq!(key_of(&Hello::to(&[b'a'; 255]).bytes()).host.len(), 255);
    assert_eq!(key_of(&Hello::to(b"www.example.com.").bytes()), named(b"www.example.com"));
    let longest = [&[b'a'; 255][..], b"."].concat();
    assert_eq!(key_of(&Hello::to(&longest).bytes()).host.len(), 255);
    assert_eq!(key_of(&Hello::new(vec![]).bytes()), named(b""));
    assert_eq!(key_of(&Hello { extensions: None, ..Hello::new(vec![]) }.bytes()), named(b""));
    let empty = Hello { session_id: vec![], cipher_suites: vec![], compression: vec![], ..Hello::to(b"a") };
    assert_eq!(key_of(&empty.bytes()), named(b"a"));
    for minor in [0, 1, 2, 3, 4, 5, 255] {
        assert_eq!(key_of(&Hello { version: [3, minor], ..Hello::to(b"a") }.bytes()), named(b"a"));
    }
    let many = Hello::new((1..=490).map(|kind| (kind, vec![])).collect());
    assert_eq!(key_of(&many.bytes()), named(b""));
    // The record of the hello may be followed by early data or by a ChangeCipherSpec record.
    let more = [Hello::to(b"a").bytes(), vec![20, 3, 3, 0, 1, 1]].concat();
    assert_eq!(key_of(&more), named(b"a"));
}

#[test]
fn odd_hellos_are_punted() {
    let good = Hello::to(b"a");
    let extension = |extension| Hello::new(vec![(1, vec![]), extension]);
    let cases = [
        ("another major version", Hello { version: [2, 1], ..good.clone() }),
        ("a long session id", Hello { session_id: vec![7; 33], ..good.clone() }),
        ("two names in two lists", Hello::new(vec![server_name(0, b"a"), server_name(0, b"a")])),
        ("a name of another type", extension(server_name(1, b"a"))),
        ("an empty name", extension(server_name(0, b""))),
        ("a long name", extension(server_name(0, &[b'a'; 256]))),
        ("two dots at the end", extension(server_name(0, b"a.."))),
        ("a dot alone", extension(server_name(0, b"."))),
        ("dots alone", extension(server_name(0, b"..."))),
        ("a long name and a dot", extension(server_name(0, &[&[b'a'; 256][..], b"."].concat()))),
        ("a name with a byte that names don't have", extension(server_name(0, b"a\0b"))),
        ("a name that isn't ASCII", extension(server_name(0, "\u{e9}".as_bytes()))),
        ("an IPv6 address", extension(server_name(0, b"[::1]"))),
        ("no list", extension((0, vec![]))),
        ("an empty list", extension((0, sized(2, &[])))),
        ("two names in a list", extension((0, sized(2, &[0, 0, 1, b'a', 0, 0, 1, b'b'])))),
        ("an extension in a list", extension((0, sized(2, &[0, 0, 1, b'a', 0, 5, 0, 0])))),
        (
            "a list that is shorter than its extension",
            extension((0, [sized(2, &[0, 0, 1, b'a']), vec![0]].concat())),
        ),
        ("a list that is longer", extension((0, vec![0, 9, 0, 0, 1, b'a']))),
        ("a name that is longer than its list", extension((0, vec![0, 4, 0, 0, 9, b'a']))),
    ];
    for (what, hello) in cases {
        assert_eq!(reading(&hello.bytes()), ODD, "{what}");
    }
}

#[test]
fn lengths_that_disagree_are_odd() {
    let hello = Hello::to(b"a");
    let message = hello.message();
    let behind = [&message[..], &[0]].concat();
    let (part, rest) = message.split_at(message.len() - 1);
    assert_eq!(reading(&hello.record(&behind)), ODD, "something behind the hello");
    let two = [hello.record(part), hello.record(rest)].concat();
    assert_eq!(reading(&two), ContentParse::Punt(PuntReason::Split), "a hello in two records");
    assert_eq!(reading(&hello.record(&[])), ODD, "nothing");
    // Positions of message type and length, and of the lengths of session id, cipher suites,
    // compression methods and extensions.
    let bytes = hello.bytes();
    for at in [5, 6, 7, 8, 43, 76, 82, 84, 85] {
        for change in [1, 255] {
            let mut bytes = bytes.clone();
            bytes[at] = bytes[at].wrapping_add(change);
            let is_longer = (6..9).contains(&at) && reading(&bytes) == ContentParse::Punt(PuntReason::Split);
            assert!(is_longer || reading(&bytes) == ODD, "at {at}");
        }
    }
}

#[test]
fn a_hello_in_several_records_is_joined() {
    let hello = Hello::to(b"www.example.com");
    let message = hello.message();
    for len in [1, 2, 3, 4, 5, 50, message.len() - 1] {
        let split: Vec<u8> = message.chunks(len).flat_map(|part| hello.record(part)).collect();
        assert_eq!(reading(&split), ContentParse::Punt(PuntReason::Split), "{len}");
        assert_eq!(key_of(&joined(&split).unwrap()), named(b"www.example.com"), "{len}");
        for cut in 1..split.len() {
            assert_eq!(joined(&split[..cut]), Err(PuntReason::Incomplete), "{len}, the first {cut} bytes");
        }
        let more = [&split[..], &[23, 3, 3, 0, 1, 0]].concat();
        assert_eq!(key_of(&joined(&more).unwrap()), named(b"www.example.com"), "data behind it");
    }
    let (part, rest) = message.split_at(60);
    let two = |rest: &[u8]| [hello.record(part), rest.to_vec()].concat();
    for (what, bytes) in [
        ("an empty record", two(&[&hello.record(&[])[..], &hello.record(rest)].concat())),
        ("an alert between", two(&[21, 3, 1, 0, 2, 1, 0])),
        ("another major version", two(&[0x16, 2, 1, 0, 2, 1, 0])),
        ("more than the hello", two(&hello.record(&[rest, &[0]].concat()))),
        ("another message", [hello.record(&[2, 0]), hello.record(&[0, 9, 9])].concat()),
        ("longer than any", hello.record(&[1, 0, 0x40, 0, 1])),
    ] {
        assert_eq!(joined(&bytes), Err(PuntReason::Odd), "{what}");
    }
}

#[test]
fn sizes_are_bounded() {
    let padded = |len: usize| {
        let bare = Hello::new(vec![server_name(0, b"a"), (21, vec![])]).bytes();
        Hello::new(vec![server_name(0, b"a"), (21, vec![0; len - bare.len()])]).bytes()
    };
    assert_eq!(key_of(&padded(READ_MAX)), named(b"a"));
    let long = padded(READ_MAX + 1);
    assert_eq!(reading(&long), ODD);
    assert_eq!(read(&long[..5]), ODD, "as soon as its length is known");
    assert_eq!(read_within(&long, HELLO_MAX), ContentParse::Request(named(b"a")));
    assert_eq!(read_within(&long[..READ_MAX], HELLO_MAX), ContentParse::Punt(PuntReason::Incomplete));
    let longest = padded(HELLO_MAX);
    assert_eq!(read_within(&longest, usize::MAX), ContentParse::Request(named(b"a")));
    assert_eq!(read_within(&padded(HELLO_MAX + 1), usize::MAX), ODD);
}

proptest! {
    #[test]
    fn valid_hello_is_decided(
        name in prop::option::of("[A-Za-z0-9._-]{0,30}[a-z]"), session_id in 0..33_usize,
        before in prop::collection::vec((1..999_u16, prop::collection::vec(any::<u8>(), 0..20)), 0..10),
        after in prop::collection::vec((1..999_u16, prop::collection::vec(any::<u8>(), 0..20)), 0..10),
    ) {
        let own: Vec<_> = name.iter().map(|name| server_name(0, name.as_bytes())).collect();
        let hello = Hello { session_id: vec![9; session_id], ..Hello::new([before, own, after].concat()) };
        let bytes = hello.bytes();
        prop_assert_eq!(key_of(&bytes), named(name.as_deref().unwrap_or_default().as_bytes()));
        prop_assert_eq!(read(&bytes[..bytes.len() - 1]), ContentParse::Punt(PuntReason::Incomplete));
    }

    #[test]
    fn no_change_does_harm(at in any::<prop::sample::Index>(), byte: u8, name in "[a-z]{1,9}") {
        let mut bytes = Hello::to(name.as_bytes()).bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        reading(&bytes);
    }
}
