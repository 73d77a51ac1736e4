//! The command line: help, exit statuses, and files made from its definition.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use evener_core::path::decide::Reason;

use super::tree::root;

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
fn the_manual_has_every_key_every_reason_and_every_variable() {
    let page = |args: &[&str]| {
        let output = evener(&[&["man"], args].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().replace("\\-", "-").replace("\\(aq", "'")
    };
    let main = page(&[]);
    for name in
        ["EVENER_LOG", "EVENER_RUN_DIR", "JOURNAL_STREAM", "/run/evener/net-N/admin.sock", "evener.toml(5)"]
    {
        assert!(main.contains(name), "{name}");
    }
    let file = page(&["evener.toml"]);
    let example = fs::read_to_string(root().join("evener.example.toml")).unwrap();
    let keys =
        example.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
    for (key, _) in keys {
        assert!(file.contains(&format!("fB{key} =")), "{key} in {file}");
    }
    for section in example.lines().filter(|line| line.starts_with('[')) {
        assert!(file.contains(section), "{section}");
    }
    let packets = page(&["evener-packets"]);
    for reason in Reason::ALL {
        assert!(packets.contains(&format!("fB{}", reason.name())), "{}", reason.name());
        assert!(reason.about().ends_with('.') && !reason.about().starts_with(' '), "{}", reason.about());
    }
    let unknown = evener(&["man", "evener.tml"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("did you mean evener.toml?"));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("all-pages");
    assert!(evener(&["man", "--dir", dir.to_str().unwrap()]).status.success());
    for page in ["evener.1", "evener-run.1", "evener.toml.5", "evener-packets.7"] {
        assert!(dir.join(page).is_file(), "{page}");
    }
}

/// Returns the error of a command. `journal` makes JOURNAL_STREAM for its standard error.
fn output_to(journal: impl Fn(&fs::Metadata) -> String, name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = fs::File::create(&path).unwrap();
    let stream = journal(&file.metadata().unwrap());
    let status = Command::new(env!("CARGO_BIN_EXE_evener"))
        .args(["run", "--config", "tests/check/empty.toml"])
        .env("JOURNAL_STREAM", stream)
        .stderr(file)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    fs::read_to_string(path).unwrap()
}

#[test]
fn journal_output_has_priorities_and_terminal_none() {
    let output = output_to(|file| format!("{}:{}", file.dev(), file.ino()), "journal");
    assert!(output.lines().count() > 1 && output.lines().all(|line| line.starts_with("<3>")), "{output}");
    for other in ["", "1:2", "x:y"] {
        let output = output_to(|_| other.to_owned(), "no-journal");
        assert!(output.starts_with("evener: ") && !output.contains("<3>"), "{other}: {output}");
    }
}

/// The words that a shell's script gets for a command line whose last word is to be completed.
pub fn completed(words: &[&str], variables: &[(&str, &Path)]) -> Vec<String> {
    let mut program = Command::new(env!("CARGO_BIN_EXE_evener"));
    program.args(["--", "evener"]).args(words).envs(variables.iter().copied());
    program.env("COMPLETE", "fish").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    let output = String::from_utf8(program.output().unwrap().stdout).unwrap();
    output.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(evener(&["completions", shell]).stdout).unwrap();
        assert!(script.contains("COMPLETE") && script.contains("evener"), "{shell}: {script}");
    }
    let words = completed(&[""], &[]);
    for command in COMMANDS {
        assert!(words.iter().any(|word| word == command), "{command}: {words:?}");
    }
}
