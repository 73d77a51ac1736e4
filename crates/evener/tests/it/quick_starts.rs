//! What README and the pages of docs/ tell people to write: each of it is a file that `evener check` finds nothing wrong with.

use std::fs;
use std::path::{Path, PathBuf};

use evener::config;

/// What makes a whole file of a few keys.
const SERVICE: &str = "[[service]]\naddress = \"192.0.2.100:80\"\ndiscover = \"arp\"\n";

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([root.join("README.md")]).collect()
}

/// The blocks of TOML in a page, with the lines that they begin at.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim() == "```toml" {
            let block = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            blocks.push((number + 2, block.map(|line| format!("{line}\n")).collect()));
        }
    }
    blocks
}

#[test]
fn every_quick_start_is_a_good_file() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (line, block) in blocks(&text) {
            let whole = if block.contains("[[service]]") { block } else { block + SERVICE };
            let name = format!("{}, line {line}", page.file_name().unwrap().to_string_lossy());
            if let Err(problems) = config::parse(&whole, &name) {
                panic!("{problems}");
            }
            count += 1;
        }
    }
    assert!(count >= 8, "README and docs had {count} quick starts: have they another mark?");
}
