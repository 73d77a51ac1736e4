//! `evener check --schema`: the schema contains the example's keys and accepts all configurations
//! of the book.

use std::fs;
use std::process::Command;

use boon::{Compiler, SchemaIndex, Schemas};
use evener::{config, manual};
use serde_json::Value;

use super::book::pages;
use super::tree::{files, root};

fn schema() -> Value {
    config::schema(&manual::key_description)
}

fn compiled() -> (Schemas, SchemaIndex) {
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler.add_resource("evener.json", schema()).unwrap();
    let index = compiler.compile("evener.json", &mut schemas).unwrap();
    (schemas, index)
}

fn refusal(text: &str) -> Option<String> {
    let (schemas, index) = compiled();
    let value: Value = toml::from_str(text).unwrap();
    schemas.validate(&value, index).err().map(|error| format!("{error:#}"))
}

/// Returns the Evener configurations in the book and the README, with their files.
fn book() -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    for path in pages().into_iter().chain([root().join("README.md")]) {
        let text = fs::read_to_string(&path).unwrap();
        let parts = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        blocks.extend(parts.map(|block| (path.display().to_string(), block.to_owned())));
    }
    blocks
}

#[test]
fn schema_takes_the_example_and_all_configurations_of_the_book() {
    let example = fs::read_to_string(root().join("evener.example.toml")).unwrap();
    assert_eq!(refusal(&example), None);
    let blocks = book();
    assert!(blocks.len() >= 30, "{} blocks", blocks.len());
    for (path, block) in blocks {
        assert_eq!(refusal(&block), None, "{path}:\n{block}");
    }
}

#[test]
fn schema_takes_every_good_file_of_check() {
    let mut good = 0;
    for path in files(&root().join("crates/evener/tests/check"), &["toml"]) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        if config::load(&path).is_ok() {
            assert_eq!(refusal(&text), None, "{}", path.display());
            good += 1;
        }
    }
    assert!(good >= 3, "{good} good files");
}

#[test]
fn schema_refuses_unknown_keys_wrong_types_and_values_out_of_range() {
    for wrong in [
        "[[service]]\naddres = '192.0.2.1:80'",
        "[[service]]\naddress = 1",
        "[[service]]\nmethod = 'l3'",
        "[[service]]\nkeep_last = 'yes'",
        "[[service]]\nslow_start = 5",
        "[[service.server]]\nweight = 65536",
        "[service]\nname = 'web'",
        "[engine]\nthreads = 0",
        "[[dns.name]]\nmethod = 'l2'",
    ] {
        assert!(refusal(wrong).is_some(), "{wrong}");
    }
    assert_eq!(refusal("[[service]]\nmethod = '${METHOD}'\nslow_start = '${SLOW:-5s}'"), None);
}

/// The example's keys are exactly the keys of the reference, and each of them has a description.
#[test]
fn each_key_of_the_schema_is_explained_in_the_example() {
    fn unexplained(path: &str, schema: &Value, found: &mut Vec<String>) {
        let schema = schema.get("items").unwrap_or(schema);
        let Some(Value::Object(keys)) = schema.get("properties") else { return };
        for (key, inner) in keys {
            let path = format!("{path}.{key}");
            let is_table = inner.get("properties").is_some() || inner.get("items").is_some();
            if !is_table && inner.get("description").is_none() {
                found.push(path.clone());
            }
            unexplained(&path, inner, found);
        }
    }
    let mut found = Vec::new();
    unexplained("", &schema(), &mut found);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn schema_is_printed_without_a_file() {
    let output = Command::new(env!("CARGO_BIN_EXE_evener")).args(["check", "--schema"]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), schema());
}
