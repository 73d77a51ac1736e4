//! Checks of the book and README: all pages are listed, links have targets, commands parse, and
//! lines are not too long.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use clap::Parser;
use clap::error::ErrorKind;
use evener::cli::Cli;

use super::tree::{files, root};

/// Limit of columns in prose.
const LINE: usize = 100;

/// Pages outside the book.
const ROOT_PAGES: [&str; 6] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md"];

/// Returns all pages of the book.
pub fn pages() -> Vec<PathBuf> {
    files(&root().join("docs"), &["md"])
}

fn pages_and_readme() -> impl Iterator<Item = (String, String)> {
    pages_and(&["README.md"])
}

/// Returns the pages of the book and some other files, with their names.
fn pages_and(files: &[&str]) -> impl Iterator<Item = (String, String)> {
    let files: Vec<PathBuf> = files.iter().map(|file| root().join(file)).collect();
    pages().into_iter().chain(files).map(|path| {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(&path).unwrap())
    })
}

/// Returns a page's lines with line number and the language of the surrounding code block.
fn lines(page: &str) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
    let mut block = None;
    page.lines().enumerate().filter_map(move |(number, line)| {
        match (line.trim().strip_prefix("```"), block) {
            (Some(language), None) => {
                block = Some(language);
                None
            }
            (Some(_), Some(_)) => {
                block = None;
                None
            }
            (None, block) => Some((number + 1, line, block)),
        }
    })
}

/// Returns the link targets in prose, with line numbers.
fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line, block) in lines(page) {
        if block.is_some() {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            // Skips code spans.
            if line[..at].matches('`').count() % 2 == 0 {
                found.push((number, line[at + 2..].split(')').next().unwrap().to_owned()));
            }
        }
    }
    found
}

/// Returns the link anchors of all headings, as mdBook and GitHub form them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line, block) in lines(page) {
        let Some(title) = line.strip_prefix('#').filter(|_| block.is_none()) else { continue };
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.clone()].into_iter().chain(again).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_of_it() {
    let mut broken = Vec::new();
    let mut count = 0;
    for (name, page) in pages_and(&ROOT_PAGES) {
        for (line, link) in links(&page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            // Links to files outside the book do not work in the compiled book.
            let is_outside = name.starts_with("docs/") && file.starts_with("../../");
            let target = match file {
                "" => root().join(&name),
                file => root().join(&name).parent().unwrap().join(file),
            };
            let found = fs::read(&target).is_ok_and(|text| {
                anchor.is_empty() || anchors(&String::from_utf8_lossy(&text)).contains(anchor)
            });
            if !found || is_outside {
                broken.push(format!("{name}, line {line}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(count > 100, "{count} links: have they another mark?");
}

#[test]
fn summary_lists_every_page_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<String> = links(&summary).into_iter().map(|(_, link)| link).collect();
    let mut sorted = listed.clone();
    sorted.sort();
    let there: Vec<String> = pages()
        .iter()
        .map(|path| path.strip_prefix(&docs).unwrap().to_str().unwrap().to_owned())
        .filter(|path| path != "SUMMARY.md")
        .collect();
    assert_eq!(sorted, there);
    let parts = ["guide", "reference", "operating", "coming-from", "how-it-works", "developers", "points"];
    let order = listed.iter().map(|link| parts.iter().position(|part| link.starts_with(part)).unwrap());
    assert!(order.is_sorted(), "parts stand in another order than {parts:?}");
}

#[test]
fn lines_of_prose_have_at_most_100_columns() {
    let mut long = Vec::new();
    for (name, page) in pages_and(&[&ROOT_PAGES[..], &["cases/README.md"]].concat()) {
        for (number, line, block) in lines(&page) {
            let is_prose = block.is_none() && !line.trim_start().starts_with(['|', '#', '!', '<']);
            if is_prose && line.chars().count() > LINE {
                long.push(format!("{name}, line {number}"));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

/// Checks paths in the overview of the code, relative to the root or to a source folder.
#[test]
fn every_path_of_the_architecture_is_there() {
    let mut places = vec![root(), root().join("crates"), root().join("crates/core/src")];
    places.extend(["core", "evener", "dataplane", "sim", "lab"].map(|name| root().join("crates").join(name)));
    let (mut count, mut missing) = (0, Vec::new());
    for name in ["ARCHITECTURE.md", "README.md", "docs/developers/overview.md", "docs/developers/parts.md"] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        for path in text.split('`').skip(1).step_by(2) {
            let is_path = path.contains('/')
                && !path.starts_with(['/', '-'])
                && path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            if !is_path {
                continue;
            }
            count += 1;
            let mut whole = places.iter().flat_map(|place| {
                let crates =
                    path.split_once('/').map(|(first, rest)| place.join(first).join("src").join(rest));
                [
                    Some(place.join(path)),
                    Some(place.join("src").join(path)),
                    Some(place.join("src").join(format!("{path}.rs"))),
                    crates,
                ]
                .into_iter()
                .flatten()
            });
            if !whole.any(|path| path.exists()) {
                missing.push(format!("{name}: {path}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
    assert!(count >= 30, "{count} paths");
}

/// Checks numbers in the README that can be counted.
#[test]
fn numbers_of_tests_in_the_readme_hold() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains("more than 1,500 test functions"));
    let sources =
        files(&root().join("crates"), &["rs"]).into_iter().map(|path| fs::read_to_string(path).unwrap());
    let tests: usize = sources.map(|text| text.matches("#[test]").count()).sum();
    assert!(tests > 1_500, "{tests} test functions");
}

/// Splits a command into words, up to the first shell operator.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in command.chars() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => words.last_mut().unwrap().push(c),
            ('\'' | '"', None) => quote = Some(c),
            ('|' | '>' | ';' | '&' | '#' | '<' | ')', None) => break,
            (' ', None) => words.push(String::new()),
            (c, None) => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns the commands of this program in shell blocks. In `console` blocks, commands follow a
/// prompt.
fn commands(page: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for (number, line, block) in lines(page) {
        let command = match block {
            Some("sh") => Some(line.trim()),
            Some("console") => line.strip_prefix("$ ").or(line.strip_prefix("# ")),
            _ => None,
        };
        for part in command.into_iter().flat_map(|command| command.split(" && ")) {
            let part = part.trim().trim_start_matches("sudo ");
            if part.starts_with("evener ") {
                found.push((number, words(part)));
            }
        }
    }
    found
}

#[test]
fn every_command_is_one_that_the_program_takes() {
    let mut count = 0;
    for (name, page) in pages_and_readme() {
        for (line, command) in commands(&page) {
            count += 1;
            if let Err(error) = Cli::try_parse_from(&command) {
                let shows = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
                assert!(shows, "{name}, line {line}: {command:?}\n{error}");
            }
        }
    }
    assert!(count >= 20, "{count} commands: have blocks another mark?");
}

/// A glob in the package metadata covers only one folder.
#[test]
fn packages_take_every_folder_of_the_book() {
    let manifest = fs::read_to_string(root().join("crates/evener/Cargo.toml")).unwrap();
    let folders: BTreeSet<PathBuf> = pages().iter().map(|page| page.parent().unwrap().to_owned()).collect();
    assert!(folders.len() > 5, "{folders:?}");
    // Pictures are in separate folders.
    let below = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let below: BTreeSet<PathBuf> =
        below.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    for folder in folders.union(&below) {
        let folder = folder.strip_prefix(root()).unwrap().to_str().unwrap();
        let taken = manifest.matches(&format!("/evener/{folder}/*")).count();
        assert_eq!(taken, 2, "{folder}: once for the deb, once for the rpm");
    }
}
