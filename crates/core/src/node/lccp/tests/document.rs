//! Checks the documentation and the dissector against the implementation.

use std::string::String;
use std::vec::Vec;

use super::super::wire::LccpMessage;
use super::*;

const DOCUMENT: &str = include_str!("../../../../../../docs/how-it-works/lccp.md");
const DISSECTOR: &str = include_str!("../../../../../../packaging/wireshark/lccp.lua");

/// Returns the bytes of the worked example: the hex digits before the bar in each line of the
/// document's `hex` block.
fn example() -> Vec<u8> {
    let block = DOCUMENT.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let digits: String = block.lines().filter_map(|line| line.split('|').next()).collect();
    digits.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn document_example_matches_encoder() {
    let handoff = samples(false).remove(4);
    let bytes = handoff.write(there(), &keys());
    assert_eq!(example(), bytes, "should be {bytes:02x?}");
    assert_eq!(LccpMessage::read(&example(), there(), &keys()), Ok(handoff));
}

/// Returns a Rust name as the document and the dissector spell it.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for (at, c) in name.chars().enumerate() {
        if c.is_uppercase() && at > 0 {
            kebab.push('-');
        }
        kebab.extend(c.to_lowercase());
    }
    kebab
}

#[test]
fn document_and_dissector_know_every_number() {
    let commands = samples(false).into_iter().map(|message| {
        let name = std::format!("{:?}", message.body);
        (message.body.fields().command, kebab(name.split(' ').next().unwrap()))
    });
    let receptors = Receptor::ALL.map(|one| (one as u32, kebab(&std::format!("{one:?}"))));
    let codes = ErrorCode::ALL.map(|one| (one as u32, kebab(&std::format!("{one:?}"))));
    let all: Vec<(u32, String)> = commands.chain(receptors).chain(codes).collect();
    assert_eq!(all.len(), 22);
    for (number, name) in all {
        assert!(DOCUMENT.contains(&std::format!("| {number} | {name} |")), "document: {number} {name}");
        assert!(DISSECTOR.contains(&std::format!("[{number}] = \"{name}\"")), "dissector: {number} {name}");
    }
    for refusal in REFUSALS {
        assert!(DOCUMENT.contains(&std::format!("| `{refusal}` |")), "{refusal}");
    }
}
