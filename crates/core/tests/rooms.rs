//! The rooms of this crate: each knows only those above it, as `ARCHITECTURE.md` has them.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};

/// From the top, and whom each may use.
const ROOMS: [(&str, &[&str]); 6] = [
    ("net", &[]),
    ("path", &["net"]),
    ("server", &["net", "path"]),
    ("farm", &["net", "path"]),
    ("node", &["net"]),
    ("director", &["net", "path", "farm", "node"]),
];

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Tests may look further, and so may links in comments.
fn code(file: &Path) -> String {
    let is_test =
        file.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")));
    let text = if is_test { String::new() } else { fs::read_to_string(file).unwrap() };
    let text = text.split("#[cfg(test)]").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn rooms_know_only_those_above_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for (room, above) in ROOMS {
        for file in files(&source.join(room)) {
            let text = code(&file);
            for (other, _) in ROOMS.iter().filter(|(other, _)| *other != room && !above.contains(other)) {
                let uses =
                    [format!("crate::{other}::"), format!("crate::{{{other}"), format!("crate::{other};")];
                let found = uses.iter().find(|uses| text.contains(uses.as_str()));
                assert_eq!(found, None, "{}", file.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} files are no crate");
    let rooms: Vec<_> = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(rooms.len(), ROOMS.len() + 1, "each folder is a room: {rooms:?}");
}
