//! Findings of `evener check` on zone files.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the check's output for a zone with these additional lines. Empty if there is no finding.
fn said(name: &str, lines: &[u8]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (zone, file) = (folder.join(format!("{name}.zone")), folder.join(format!("{name}.toml")));
    let beginning = b"$TTL 60\n@ SOA ns host 1 1h 1h 1h 60\n@ NS ns\nns A 192.0.2.53\n";
    fs::write(&zone, [beginning, lines].concat()).unwrap();
    let text = format!(
        "[dns]\nlisten = [\"192.0.2.53:53\"]\n[[dns.zone]]\nname = \"example.com\"\nfile = \"{}\"\n",
        zone.display()
    );
    fs::write(&file, text).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_evener")).args(["check", file.to_str().unwrap()]).output().unwrap();
    match output.status.success() {
        true => String::new(),
        false => String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap(),
    }
}

#[test]
fn zone_records_in_their_own_form_pass_the_check() {
    let good: [&[u8]; 8] = [
        b"x LOC 52 22 23 N 4 53 32 E -2m\n",
        b"x URI 10 1 \"ftp://x.example/\"\n",
        b"x SPF \"v=spf1 -all\"\n",
        b"x SMIMEA 3 1 1 (\n 00ff\n 11 ) ; comment\n",
        "x TXT \"gr\u{fc}n\" ; gr\u{fc}n\n".as_bytes(),
        b"x TXT gr\xfcn ; \xfc\n",
        b"x TYPE29 \\# 1 00\nx TXT \"\\\xfc\"\n",
        b"x EUI48 00-00-5e-00-53-2a\ny HIP 2 2001 AwEAAQ== rvs\nz CSYNC 1 3 A NS\n",
    ];
    for (number, lines) in good.iter().enumerate() {
        assert_eq!(said(&format!("good-{number}"), lines), "", "{}", String::from_utf8_lossy(lines));
    }
}

#[test]
fn wrong_zone_records_are_told_by_the_word_that_is_wrong() {
    let cases: [(&[u8], &[&str]); 13] = [
        (b"www IN\n", &[":5:", "\"IN\"", "type and data"]),
        (b"www\n", &[":5:", "\"www\"", "type and data"]),
        (b"www IN FOO 1\n", &[":5:", "\"FOO\" is not a record type"]),
        (b"x TXT \"open\nwww A 192.0.2.1\n", &[":5:", "a quote is not closed"]),
        (b"x TXT \"open\nwww TXT \"b\"\n", &[":5:", "a quote is not closed"]),
        (b"x TXT ( \"a\"\nwww A 192.0.2.1\n", &[":5:", "a parenthesis is not closed"]),
        (b"x NSAP 0x47\n", &[":5:", "NSAP", "TYPE22 \\# LENGTH HEX"]),
        (b"x NIMLOC 00\n", &[":5:", "NIMLOC", "TYPE32 \\# LENGTH HEX"]),
        (b"x LOC 91 N 0 E 0m\n", &[":5:", "LOC", "\"91\""]),
        (b"x URI 1 1\n", &[":5:", "URI", "ends too early"]),
        (b"x AFSDB 1 a b\n", &[":5:", "AFSDB", "\"b\""]),
        (b"x A 192.0.2.999\n", &[":5:", "\"192.0.2.999\"", "IPv4"]),
        (b"$UNKNOWN x\n", &[":5:", "\"$UNKNOWN\""]),
    ];
    for (number, (lines, words)) in cases.iter().enumerate() {
        let said = said(&format!("wrong-{number}"), lines);
        let missing: Vec<_> = words.iter().filter(|word| !said.contains(**word)).collect();
        assert!(missing.is_empty(), "{missing:?} in {said}");
    }
}

#[test]
fn first_zone_record_without_an_owner_is_told() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (zone, file) = (folder.join("ownerless.zone"), folder.join("ownerless.toml"));
    fs::write(&zone, "$TTL 60\n IN SOA ns host 1 1h 1h 1h 60\n@ NS ns\n").unwrap();
    let text = format!(
        "[dns]\nlisten = [\"192.0.2.53:53\"]\n[[dns.zone]]\nname = \"example.com\"\nfile = \"{}\"\n",
        zone.display()
    );
    fs::write(&file, text).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_evener")).args(["check", file.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(":2: the first record has no owner"), "{said}");
}

/// A response of more than 64 KB is impossible even over TCP.
#[test]
fn records_that_no_answer_can_hold_fail_the_check() {
    let records = |count: usize| {
        let lines = (0..count).map(|at| format!("big A 10.0.{}.{}\n", at >> 8, at & 255));
        lines.collect::<String>().into_bytes()
    };
    assert_eq!(said("fits", &records(4_000)), "");
    let said = said("too-large", &records(5_000));
    assert!(said.contains("big.example.com") && said.contains("80326") && said.contains("65535"), "{said}");
}
