//! The command line: its help, its exit statuses, and what is made from its definition.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const COMMANDS: [&str; 11] = [
    "run", "check", "status", "services", "servers", "sessions", "explain", "doctor", "drain", "undrain",
    "reload",
];

fn evener(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evener")).args(args).output().unwrap()
}

#[test]
fn commands_do_as_documented() {
    trycmd::TestCases::new().case("tests/cli/*.trycmd");
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man");
    assert!(evener(&["man", "--dir", dir.to_str().unwrap()]).status.success());
    for command in COMMANDS {
        let page = fs::read_to_string(dir.join(format!("evener-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
    }
    let main = evener(&["man"]);
    assert!(String::from_utf8(main.stdout).unwrap().contains("Exit status:"));
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(evener(&["completions", shell]).stdout).unwrap();
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}
