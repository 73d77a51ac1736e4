//! Configurations in the README and the book: `evener check` finds no error.

use std::fs;

use evener::config;
use evener_core::farm::METHOD_NAMES;
use evener_core::pool::policy::{Consumer, names_for_packets};

use super::book;
use super::tree::root;

/// A service that completes a file of only a few keys.
const SERVICE: &str = "[[service]]\naddress = \"192.0.2.100:80\"\ndiscover = \"arp\"\n";

/// Returns the TOML blocks of a page with their first lines.
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
    for page in book::pages().into_iter().chain([root().join("README.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        for (line, block) in blocks(&text) {
            let whole = if block.contains("[[service]]") { block } else { block + SERVICE };
            let name = format!("{}, line {line}", page.display());
            if let Err(problems) = config::parse(&whole, &name) {
                panic!("{problems}");
            }
            count += 1;
        }
    }
    assert!(count >= 30, "README and docs had {count} quick starts: have they another mark?");
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

#[test]
fn readme_lists_the_methods_that_there_are_and_names() {
    let text = page("README.md");
    let rows = rows(&text, "| method |").into_iter();
    let first = rows.map(|row| row.split('|').nth(1).unwrap_or_default().trim().trim_matches('`').to_owned());
    let methods = METHOD_NAMES.into_iter().chain(["names, by DNS"]);
    assert!(first.eq(methods), "README's table of methods has other rows, or an empty line within");
}

/// Returns the rows of the table whose header starts with `head`.
fn rows<'a>(page: &'a str, head: &str) -> Vec<&'a str> {
    let table = page.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    table.take_while(|line| line.starts_with('|')).collect()
}

/// Returns the words of a column. Columns count from 1.
fn words(row: &str, column: usize) -> Vec<&str> {
    let text = row.split('|').nth(column).unwrap_or_default();
    text.split(['`', ',', ' ']).filter(|word| !word.is_empty()).collect()
}

/// One table has a row for each packet policy. The other table has a row for each consumer with all
/// its policies.
#[test]
fn policy_tables_in_docs_match_consumers() {
    let text = page("docs/guide/policies.md");
    let mut written: Vec<&str> =
        rows(&text, "| `policy` | chosen server |").into_iter().flat_map(|row| words(row, 1)).collect();
    let mut there_are: Vec<&str> = names_for_packets().collect();
    written.sort_unstable();
    there_are.sort_unstable();
    assert_eq!(written, there_are);
    let rows = rows(&text, "| where | known of servers |");
    assert_eq!(rows.len(), Consumer::ALL.len());
    for (row, consumer) in rows.into_iter().zip(Consumer::ALL) {
        let taken: Vec<&str> = consumer.policies().map(|policy| policy.name).collect();
        assert_eq!(words(row, 3), taken, "{row}");
        assert!(words(row, 4).contains(&consumer.default_policy().name), "{row}");
    }
}

#[test]
fn members_join_at_the_port_of_the_group() {
    let text = page("docs/how-it-works/server-groups.md");
    let file = config::parse(&blocks(&text).remove(0).1, "docs/how-it-works/server-groups.md").unwrap();
    let port = file.groups[0].group.addresses[0].port();
    let joins: Vec<&str> = text.lines().filter(|line| line.starts_with("$ curl -X ")).collect();
    assert!(joins.len() >= 3, "{joins:?}");
    for line in joins {
        assert!(line.ends_with(&format!(":{port}/")), "{line}: the group is at port {port}");
    }
}

#[test]
fn every_licence_that_readme_names_is_there() {
    let text = page("README.md");
    let (_, section) = text.split_once("## Licence").unwrap();
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "LICENSE-GPL"] {
        assert!(section.contains(name) && page(name).len() > 1_000, "{name}");
    }
}
