//! `make install`: what lies where, and that units run the program where it is.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn install_puts_program_units_pages_and_completions_below_a_prefix() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::temp_dir().join(format!("evener-install-{}", std::process::id()));
    let output = Command::new(root.join("scripts/install"))
        .env("PROGRAM", env!("CARGO_BIN_EXE_evener"))
        .env("DESTDIR", &folder)
        .env("PREFIX", "/opt/evener")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let at = |path: &str| folder.join("opt/evener").join(path);
    for path in [
        "share/man/man1/evener.1",
        "share/man/man5/evener.toml.5",
        "share/bash-completion/completions/evener",
        "share/zsh/site-functions/_evener",
        "share/fish/vendor_completions.d/evener.fish",
        "share/doc/evener/evener.example.toml",
        "share/doc/evener/LICENSE-MIT",
        "share/doc/evener/docs/start.md",
    ] {
        assert!(fs::metadata(at(path)).is_ok_and(|file| file.len() > 0), "{path}");
    }
    for unit in ["evener", "evener-agent"] {
        let text = fs::read_to_string(at(&format!("lib/systemd/system/{unit}.service"))).unwrap();
        let starts = text.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        assert!(starts.starts_with("ExecStart=/opt/evener/bin/evener "), "{starts}");
    }
    let version = Command::new(at("bin/evener")).arg("--version").output().unwrap();
    assert!(version.status.success());
    assert!(!folder.join("etc").exists(), "the operator's files are his own");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn install_says_that_nothing_was_built() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::temp_dir().join(format!("evener-install-none-{}", std::process::id()));
    let output = Command::new(root.join("scripts/install"))
        .env("PROGRAM", "target/none/evener")
        .env("DESTDIR", &folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("run `make build` first"), "{said}");
    assert!(!folder.exists());
}
