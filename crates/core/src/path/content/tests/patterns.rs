use alloc::string::ToString;
use alloc::vec::Vec;
use alloc::{format, vec};

use proptest::prelude::*;

use super::super::{HostPattern, PathPattern, PatternError};

#[test]
fn host_patterns_match() {
    let cases: [(&str, &[&str], &[&str]); 4] = [
        (
            "img.Example.com",
            &["img.example.com", "IMG.EXAMPLE.COM"],
            &["a.img.example.com", "example.com", ""],
        ),
        (
            "*.Example.com",
            &["a.example.com", "a.b.EXAMPLE.com"],
            &["example.com", ".example.com", "aexample.com", "com", ""],
        ),
        ("[2001:DB8::1]", &["[2001:db8::1]"], &["[2001:db8::2]", "2001:db8::1"]),
        ("a_b-1", &["A_B-1"], &["a_b-1.", "a-b-1"]),
    ];
    for (text, good, bad) in cases {
        let pattern = HostPattern::parse(text).unwrap();
        assert_eq!(pattern.to_string(), text.to_ascii_lowercase());
        assert!(good.iter().all(|host| pattern.matches(host.as_bytes())), "{text}");
        assert!(!bad.iter().any(|host| pattern.matches(host.as_bytes())), "{text}");
    }
}

#[test]
fn path_patterns_match() {
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("/", &["/"], &["", "/a"]),
        ("/a/b", &["/a/b"], &["/a/b/", "/a/B", "/a"]),
        ("/*", &["/", "/a", "/a/b"], &[""]),
        ("/img/*", &["/img/", "/img/a", "/img/a/b"], &["/img", "/imgs/", "/"]),
        ("/img*", &["/img", "/imgs", "/img/a"], &["/im", "/"]),
        ("/*.png", &["/a.png", "/a/b.png", "/.png", "/a.png.png"], &["/a.pn", "/a.pngs"]),
        ("/a/?/c*d", &["/a/b/cd", "/a/b/c/d/d"], &["/a//cd", "/a/bb/cd", "/a/b/c", "/a/b/dd"]),
        ("/é/**/x", &["/é/a/x", "/é//x"], &["/é/x", "/e/a/x"]),
    ];
    for (text, good, bad) in cases {
        let pattern = PathPattern::parse(text).unwrap();
        assert_eq!(pattern.to_string(), text);
        assert!(good.iter().all(|path| pattern.matches(path.as_bytes())), "{text}");
        assert!(!bad.iter().any(|path| pattern.matches(path.as_bytes())), "{text}");
    }
}

#[test]
fn invalid_patterns_have_an_error() {
    let long = "a".repeat(256);
    let hosts = [
        ("", PatternError::HostMissing),
        ("[]", PatternError::HostMissing),
        (long.as_str(), PatternError::HostLong),
        ("*", PatternError::HostStar),
        ("a.*.com", PatternError::HostStar),
        ("*.*.com", PatternError::HostStar),
        ("*a.com", PatternError::HostStar),
        ("a.com:80", PatternError::HostPort),
        ("[::1]:80", PatternError::HostPort),
        ("[::1", PatternError::HostByte('[')),
        ("a.com.", PatternError::HostLabel),
        ("*.", PatternError::HostLabel),
        ("*..com", PatternError::HostLabel),
        (".com", PatternError::HostLabel),
        ("bücher.example", PatternError::HostByte('ü')),
        ("a b", PatternError::HostByte(' ')),
        ("[::g]", PatternError::HostByte('g')),
    ];
    for (text, error) in hosts {
        assert_eq!(HostPattern::parse(text), Err(error), "{text}");
    }
    let long = format!("/{}", "a".repeat(2_048));
    let paths = [
        ("", PatternError::PathRelative),
        ("a", PatternError::PathRelative),
        ("*", PatternError::PathRelative),
        (long.as_str(), PatternError::PathLong),
        ("/a%20b", PatternError::PathEncoded),
        ("/a\n", PatternError::PathByte('\n')),
        ("//", PatternError::PathAbnormal),
        ("/a//*", PatternError::PathAbnormal),
        ("/./a", PatternError::PathAbnormal),
        ("/a/..", PatternError::PathAbnormal),
    ];
    for (text, error) in paths {
        assert_eq!(PathPattern::parse(text), Err(error), "{text}");
    }
    let sentence = PatternError::HostByte('ü').to_string();
    assert!(sentence.starts_with("'ü' is not allowed in a host: "), "{sentence}");
}

/// Matches a glob by its definition: a star matches nothing, or one byte and then what a star
/// matches.
fn globs(glob: &[u8], text: &[u8]) -> bool {
    match (glob.split_first(), text.split_first()) {
        (None, _) => text.is_empty(),
        (Some((b'*', rest)), None) => globs(rest, text),
        (Some((b'*', rest)), Some((_, less))) => globs(rest, text) || globs(glob, less),
        (Some((wanted, rest)), Some((byte, less))) => {
            (*wanted == b'?' || wanted == byte) && globs(rest, less)
        }
        (Some(_), None) => false,
    }
}

#[test]
fn a_glob_full_of_stars_is_no_burden() {
    let pattern = PathPattern::parse(&format!("/{}b", "*a".repeat(900))).unwrap();
    let path = [vec![b'/'], vec![b'a'; 2_000]].concat();
    assert!(!pattern.matches(&path));
    assert!(pattern.matches(&[path, vec![b'b']].concat()));
}

proptest! {
    #[test]
    fn globs_match_by_definition(glob in "/[ab*?]{0,7}", paths in prop::collection::vec("/[ab]{0,8}", 1..20)) {
        let pattern = PathPattern::parse(&glob).unwrap();
        let matched: Vec<bool> = paths.iter().map(|path| pattern.matches(path.as_bytes())).collect();
        let wanted: Vec<bool> = paths.iter().map(|path| globs(glob.as_bytes(), path.as_bytes())).collect();
        prop_assert_eq!(matched, wanted);
    }
}
