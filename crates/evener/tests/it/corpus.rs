//! Replays the fuzzing corpus, and random texts like it.

use std::fs;
use std::path::{Path, PathBuf};

use evener::config::{self, Config, Problems};
use proptest::prelude::*;

use super::tree::root;

/// Parses a text and checks all reports of its errors.
fn parse(text: &str) -> Result<Config, Problems> {
    let result = config::parse(text, "corpus.toml");
    if let Err(problems) = &result {
        assert!(problems.reports().count() > 0);
        for report in problems.reports() {
            assert!(report.line.is_some_and(|line| line <= text.lines().count().max(1) + 1), "{report:?}");
            assert!(!report.message.is_empty() && !report.help.is_empty(), "{report:?}");
        }
        assert!(problems.render(true).contains("corpus.toml"));
    }
    result
}

fn corpus() -> Vec<PathBuf> {
    let dir = root().join("fuzz/corpus/config");
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Returns the corpus as texts. Files that are not UTF-8 are replayed by `load` only.
fn texts() -> Vec<String> {
    corpus().iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}

#[test]
fn the_corpus_is_read_without_panic() {
    let mut good = 0;
    for path in corpus() {
        good += usize::from(config::load(&path).is_ok());
    }
    texts().iter().for_each(|text| drop(parse(text)));
    assert!(good >= 3, "the example and the short files load, but {good} did");
}

#[test]
fn a_file_that_cannot_be_read_is_one_clear_problem() {
    let problems = config::load(Path::new("no/such/evener.toml")).unwrap_err();
    let report = problems.reports().next().unwrap();
    assert_eq!((report.file, report.line), ("no/such/evener.toml", None));
    let endless = config::load(Path::new("/dev/zero")).unwrap_err();
    assert!(endless.to_string().contains("larger than"), "{endless}");
}

/// Returns a line that resembles configuration.
fn line() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "[engine]",
        "[[service]]",
        "[[service.server]]",
        "[[service.route]]",
        "[service.health]",
        "[service.timeouts]",
        "[admin]",
        "[log]",
        "[dns]",
        "name",
        "address",
        "addresses",
        "discover",
        "announce",
        "allow",
        "weight",
        "mac",
        "status",
        "interval",
        "timeout",
        "host",
        "path",
        "methods",
        "servers",
        "method",
        "kind",
        "policy",
        "server",
        "health",
        "service",
        "interfaces",
        "access",
    ]);
    let value = prop::sample::select(vec![
        "",
        "= 1",
        "= -1",
        "= \"\"",
        "= \"arp\"",
        "= \"192.0.2.100:80\"",
        "= \"192.0.2.11\"",
        "= []",
        "= {}",
        "= [\"192.0.2.100:80\", 1]",
        "= \"2s\"",
        "= true",
        "= [{ address = \"192.0.2.12\" }]",
        "= 1.5",
        "= \"é",
        "= \"handoff\"",
        "= \"/img/*\"",
        "= 1979-05-27",
    ]);
    (key, value).prop_map(|(key, value)| format!("{key} {value}"))
}

proptest! {
    #[test]
    fn any_text_is_read_without_panic(text in any::<String>()) {
        let _ = parse(&text);
    }

    #[test]
    fn lines_in_any_order_are_read_without_panic(lines in prop::collection::vec(line(), 0..40)) {
        let _ = parse(&lines.join("\n"));
    }

    #[test]
    fn broken_files_are_read_without_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        len in 0..40_usize,
        with in "[\\[\\]\"'={}.,\r\n\\\\ a-z0-9é]{0,8}",
    ) {
        let texts = texts();
        let mut chars: Vec<char> = which.get(&texts).chars().collect();
        if !chars.is_empty() {
            let from = at.index(chars.len());
            let to = (from + len).min(chars.len());
            chars.splice(from..to, with.chars());
        }
        let _ = parse(&chars.into_iter().collect::<String>());
    }
}
