//! Layers of the core and of the program: each layer uses only layers above it, as in
//! `ARCHITECTURE.md`.

mod circles;

use std::fs;
use std::path::{Path, PathBuf};

/// A layer, and the layers that it may use.
type Room = (&'static str, &'static [&'static str]);

/// From top to bottom.
const CORE: [Room; 8] = [
    ("net", &[]),
    ("path", &["net"]),
    ("server", &["net", "path"]),
    ("pool", &["net", "path"]),
    ("dns", &["net", "path", "pool"]),
    ("farm", &["net", "path", "pool", "dns"]),
    ("node", &["net", "path", "farm"]),
    ("director", &["net", "path", "pool", "dns", "farm", "node"]),
];
const PRODUCT: [Room; 21] = [
    ("runtime", &[]),
    ("cli", &["runtime"]),
    ("config", &["runtime"]),
    ("state", &["runtime", "config"]),
    ("import", &["runtime", "cli", "config"]),
    ("http", &["runtime"]),
    ("io", &["runtime", "http"]),
    ("ready", &["runtime", "cli", "config", "io"]),
    ("events", &["runtime"]),
    ("record", &["runtime", "cli", "config"]),
    ("handoff", &["runtime", "config", "http", "io", "events", "record"]),
    ("redirect", &["runtime", "http", "io", "record", "handoff"]),
    ("names", &["runtime"]),
    ("board", &["cli", "state", "events", "record", "handoff", "redirect", "names"]),
    ("views", &["runtime", "cli", "state", "events", "record", "handoff", "redirect", "names", "board"]),
    ("admin", &["runtime", "cli", "config", "state", "http", "ready", "events", "record", "board", "views"]),
    ("agent", &["runtime", "cli", "config", "http", "io", "handoff", "board", "views", "admin"]),
    (
        "control",
        &[
            "runtime", "cli", "config", "state", "io", "ready", "events", "record", "handoff", "redirect",
            "names", "board", "views", "admin", "agent",
        ],
    ),
    ("top", &["runtime", "cli", "views", "admin"]),
    ("announce", &["runtime", "cli", "config", "io", "ready"]),
    ("doctor", &["runtime", "cli", "config", "io", "views", "admin", "agent", "announce"]),
];

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns the code of a file without comments and tests, which may use any layer.
fn code(file: &Path) -> String {
    let is_test =
        file.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")));
    let text = if is_test { String::new() } else { fs::read_to_string(file).unwrap() };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut code, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        if line.contains("#[cfg(test)]") || line.contains("#[cfg(all(test") {
            // A test-only item ends at the indentation of its attribute.
            lines.find(|next| indent(next) == indent(line) && next.ends_with([';', ',', '}']));
        } else if !line.trim_start().starts_with("//") {
            code = code + line + "\n";
        }
    }
    code
}

/// Checks each layer of a crate. Each folder must be a layer of the list.
fn know_only_those_above(source: &Path, rooms: &[Room]) {
    let mut seen = 0;
    for (room, above) in rooms {
        for file in files(&source.join(room)) {
            let text = code(&file);
            assert!(!text.contains("use crate::{"), "{}: a use for each room", file.display());
            for (other, _) in rooms.iter().filter(|(other, _)| other != room && !above.contains(other)) {
                let uses = [format!("crate::{other}::"), format!("crate::{other};")];
                let found = uses.iter().find(|uses| text.contains(uses.as_str()));
                assert_eq!(found, None, "{}", file.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} files are no crate");
    let entries = fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    folders.retain(|folder| !rooms.iter().any(|(room, _)| folder.ends_with(room)));
    assert_eq!(folders, [] as [PathBuf; 0]);
}

#[test]
fn rooms_of_core_know_only_those_above_them() {
    know_only_those_above(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src"), &CORE);
}

#[test]
fn rooms_of_the_product_know_only_those_above_them() {
    know_only_those_above(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &PRODUCT);
}
