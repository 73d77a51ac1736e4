//! Rules of `STYLE.md` for words and line widths. The tests read the source files as text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::tree::{files, root};

/// Private words that identifiers must not contain. `scripts/names` counts words of the same list.
const PRIVATE: &str = include_str!("private-words.txt");

/// Exceptions, with the reason.
const ALLOWED: [(&str, &str); 2] = [
    ("AdjustRoomFailed", "the kernel's bpf_skb_adjust_room failed"),
    ("ADJUST_ROOM_FAILED", "the same in the C"),
];

/// Limit of columns in comments. A tab counts up to the next multiple of eight.
const WIDEST: usize = 100;

/// A source line, split into code without strings, and comment with its marker.
#[derive(Default)]
struct SourceLine {
    code: String,
    comment: String,
}

/// A token that can span several characters.
#[derive(Clone, Copy, PartialEq)]
enum Token {
    Code,
    LineComment,
    BlockComment,
    Text,
    /// A raw string with its number of hashes.
    RawText(usize),
}

/// Splits a Rust or C source into lines.
fn lines(source: &str) -> Vec<SourceLine> {
    let mut token = Token::Code;
    let mut lines = Vec::new();
    for text in source.lines() {
        let mut line = SourceLine::default();
        let mut rest = text;
        if token == Token::LineComment {
            token = Token::Code;
        }
        while let Some(first) = rest.chars().next() {
            let mut len = first.len_utf8();
            match token {
                Token::Code if rest.starts_with("//") => token = Token::LineComment,
                Token::Code if rest.starts_with("/*") => token = Token::BlockComment,
                Token::Code => {
                    let follows_word =
                        line.code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
                    let hashes = rest[len..].len() - rest[len..].trim_start_matches('#').len();
                    if first == '"' {
                        token = Token::Text;
                    } else if first == 'r' && !follows_word && rest[len + hashes..].starts_with('"') {
                        (token, len) = (Token::RawText(hashes), len + hashes + 1);
                    } else if rest.starts_with("'\"'") {
                        len = 3;
                    } else if rest.starts_with("'\\\"'") {
                        len = 4;
                    }
                    line.code.push(if token == Token::Code { first } else { ' ' });
                }
                Token::Text if first == '\\' => len += rest[len..].chars().next().map_or(0, char::len_utf8),
                Token::Text if first == '"' => token = Token::Code,
                Token::RawText(hashes) if first == '"' && rest[1..].starts_with(&"#".repeat(hashes)) => {
                    (token, len) = (Token::Code, 1 + hashes);
                }
                Token::BlockComment if rest.starts_with("*/") => {
                    line.comment.push_str("*/");
                    (token, rest) = (Token::Code, &rest[2..]);
                    continue;
                }
                Token::LineComment | Token::BlockComment | Token::Text | Token::RawText(_) => {}
            }
            if matches!(token, Token::LineComment | Token::BlockComment) {
                line.comment.push(first);
            }
            rest = &rest[len..];
        }
        lines.push(line);
    }
    lines
}

/// Splits an identifier at underscores, digits and capitals. Words are in lower case.
fn words(identifier: &str) -> Vec<String> {
    let letters: Vec<char> = identifier.chars().collect();
    let mut words = vec![String::new()];
    for (place, letter) in letters.iter().enumerate() {
        let after = letters.get(place + 1).is_some_and(|next| next.is_lowercase());
        let before = place > 0 && letters[place - 1].is_lowercase();
        if !letter.is_alphabetic() || letter.is_uppercase() && (before || after) {
            words.push(String::new());
        }
        if letter.is_alphabetic() {
            words.last_mut().unwrap().extend(letter.to_lowercase());
        }
    }
    words
}

/// Returns the files of test-only modules that a file declares.
fn test_modules(file: &Path, source: &str) -> Vec<PathBuf> {
    let folder = match file.file_name().and_then(|name| name.to_str()) {
        Some("mod.rs" | "lib.rs" | "main.rs") => file.parent().unwrap().to_owned(),
        _ => file.with_extension(""),
    };
    let declared = source.split("#[cfg(test)]\n").skip(1).filter_map(|rest| {
        let item = rest.lines().find(|line| !line.starts_with("#["))?;
        item.strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.flat_map(|name| [folder.join(name), folder.join(name).with_extension("rs")]).collect()
}

/// Returns the program's sources without tests.
fn product() -> Vec<(PathBuf, String)> {
    let crates = ["core", "dataplane", "evener"].map(|name| root().join("crates").join(name).join("src"));
    let all: Vec<_> = crates.iter().flat_map(|source| files(source, &["rs"])).collect();
    let sources: Vec<_> = all.into_iter().map(|file| (fs::read_to_string(&file).unwrap(), file)).collect();
    let tests: Vec<_> = sources.iter().flat_map(|(source, file)| test_modules(file, source)).collect();
    let is_test = |file: &Path| {
        tests.iter().any(|test| file.starts_with(test))
            || file.iter().any(|part| matches!(part.to_str(), Some("tests" | "tests.rs")))
    };
    let code = sources.into_iter().filter(|(_, file)| !is_test(file)).map(|(source, file)| {
        let inline = source.match_indices("\n#[cfg(test)]\n").find(|(at, found)| {
            let rest = &source[at + found.len()..];
            let item = rest.lines().find(|line| !line.starts_with("#["));
            item.is_some_and(|item| item.starts_with("mod ") && item.ends_with('{'))
        });
        let source = &source[..inline.map_or(source.len(), |(at, _)| at)];
        (file, lines(source).into_iter().map(|line| line.code + "\n").collect())
    });
    code.collect()
}

#[test]
fn private_words_stay_out_of_identifiers() {
    let private: BTreeSet<&str> = PRIVATE.split_whitespace().collect();
    let (mut found, mut allowed) = (BTreeSet::new(), BTreeSet::new());
    for (file, code) in product() {
        for identifier in code.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
            if words(identifier).iter().all(|word| !private.contains(word.as_str())) {
                continue;
            }
            match ALLOWED.iter().find(|(name, _)| *name == identifier) {
                Some((name, _)) => drop(allowed.insert(*name)),
                None => drop(found.insert(format!("{}: {identifier}", file.display()))),
            }
        }
    }
    assert!(found.is_empty(), "private words:\n{}", Vec::from_iter(found).join("\n"));
    assert_eq!(allowed.len(), ALLOWED.len(), "exceptions that are not needed");
}

/// Returns the sources whose comments are checked.
fn commented() -> Vec<PathBuf> {
    ["crates", "bpf"].iter().flat_map(|folder| files(&root().join(folder), &["rs", "c", "h"])).collect()
}

fn columns(line: &str) -> usize {
    line.chars().fold(0, |column, letter| if letter == '\t' { column / 8 * 8 + 8 } else { column + 1 })
}

/// Returns a comment's text without its marker.
fn comment_text(comment: &str) -> &str {
    comment.trim().trim_start_matches(['/', '*', '!']).trim_end_matches(['*', '/']).trim()
}

#[test]
fn comments_are_at_most_100_columns_wide() {
    let mut wide = Vec::new();
    for file in commented() {
        let source = fs::read_to_string(&file).unwrap();
        for (number, (line, text)) in lines(&source).iter().zip(source.lines()).enumerate() {
            // A single long word, such as a URL, cannot be broken.
            if columns(text) > WIDEST && comment_text(&line.comment).contains(' ') {
                wide.push(format!("{}:{}: {}", file.display(), number + 1, columns(text)));
            }
        }
    }
    assert!(wide.is_empty(), "comments of more than {WIDEST} columns:\n{}", wide.join("\n"));
}

/// A C file refers to its Rust counterpart as `core/src/path/lease.rs` or, with a type, as
/// `core/src/path/tables.rs, Forwarding`.
#[test]
fn comments_of_bpf_name_files_and_types_that_exist() {
    let (mut count, mut missing) = (0, Vec::new());
    for file in files(&root().join("bpf"), &["c", "h"]) {
        let source = fs::read_to_string(&file).unwrap();
        let comments: Vec<String> =
            lines(&source).iter().map(|line| comment_text(&line.comment).to_owned()).collect();
        let comments = comments.join(" ");
        for (at, _) in comments.match_indices("core/src/").chain(comments.match_indices("dataplane/src/")) {
            let (path, rest) = split_name(&comments[at..], "/._-");
            let path = root().join("crates").join(path.trim_end_matches('.'));
            let name = rest.strip_prefix(", ").map_or("", |rest| split_name(rest, "_").0);
            let is_type = path.is_file() && name.starts_with(|letter: char| letter.is_ascii_uppercase());
            let text = if is_type { fs::read_to_string(&path).unwrap() } else { String::new() };
            let declares = |kind: &str| {
                text.contains(&format!("{kind} {name} ")) || text.contains(&format!("{kind} {name}<"))
            };
            if !path.exists() || (is_type && !["struct", "enum"].iter().any(|kind| declares(kind))) {
                missing.push(format!("{}: {} {name}", file.display(), path.display()));
            }
            count += 1;
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(count >= 40, "{count} names");
}

/// Splits a text after its first word, which may contain characters of `others`.
fn split_name<'a>(text: &'a str, others: &str) -> (&'a str, &'a str) {
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && !others.contains(letter));
    text.split_at(end.unwrap_or(text.len()))
}

#[test]
fn strings_hold_neither_code_nor_comments() {
    let source =
        "let a = \"told // it\"; // one\nlet r = r#\"heard \"x\" /*\"#; /* two\n three */ let '\"' = b;\n";
    let read: Vec<_> = lines(source).into_iter().map(|line| (line.code, line.comment)).collect();
    assert!(read.iter().all(|(code, _)| !code.contains("told") && !code.contains("heard")), "{read:?}");
    let comments: Vec<&str> = read.iter().map(|(_, comment)| comment_text(comment)).collect();
    assert_eq!(comments, ["one", "two", "three"]);
    assert_eq!(words("AdjustRoomFailed"), ["", "adjust", "room", "failed"]);
    assert_eq!(words("HTTPTold_by2"), ["http", "told", "by", ""]);
}
