//! `make install`: installed files, and units that run the installed program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::Uid;

use super::tree;

#[test]
fn install_puts_program_units_pages_and_completions_below_a_prefix() {
    let root = tree::root();
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
        "share/doc/evener/docs/guide/quick-start.md",
        "share/doc/evener/grafana/evener.json",
        "share/doc/evener/prometheus/alerts.yml",
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

    fs::write(at("bin/another"), "").unwrap();
    let undo = Command::new(root.join("scripts/install"))
        .arg("--undo")
        .envs([("DESTDIR", folder.as_os_str()), ("PREFIX", "/opt/evener".as_ref())])
        .output()
        .unwrap();
    assert!(undo.status.success(), "{}", String::from_utf8_lossy(&undo.stderr));
    let left = |path: &str| fs::read_dir(at(path)).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(
        left(".").eq(["bin"]) && left("bin").eq(["another"]),
        "what isn't Evener's stays, and nothing else"
    );
    fs::remove_dir_all(folder).unwrap();
}

/// Returns the error output of a failed installation.
fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn install_reports_missing_program() {
    let root = tree::root();
    let folder = std::env::temp_dir().join(format!("evener-install-none-{}", std::process::id()));
    let install = |program: &Path| {
        let mut command = Command::new(root.join("scripts/install"));
        command.env("PROGRAM", program).env("DESTDIR", &folder);
        command
    };
    let output = refusal(&mut install(Path::new("target/none/evener")));
    assert!(output.contains("run `make build` first"), "{output}");
    // With a missing loader, the shell reports "not found".
    let strange = std::env::temp_dir().join(format!("evener-strange-{}", std::process::id()));
    fs::write(&strange, "#!/lib/no-such-loader\n").unwrap();
    fs::set_permissions(&strange, fs::Permissions::from_mode(0o755)).unwrap();
    let output = refusal(&mut install(&strange));
    assert!(
        output.contains("doesn't run here: it needs") || output.contains("this system has musl"),
        "{output}"
    );
    let output = refusal(install(Path::new(env!("CARGO_BIN_EXE_evener"))).arg("--undo"));
    assert!(output.contains("nothing was installed below"), "{output}");
    assert!(!folder.exists(), "nothing is half installed");
    fs::remove_file(strange).unwrap();
}

#[test]
fn install_names_directory_without_permission() {
    if !Uid::effective().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    // This user can read neither the sources nor the program.
    let folder = std::env::temp_dir().join(format!("evener-install-nobody-{}", std::process::id()));
    fs::create_dir_all(folder.join("scripts")).unwrap();
    let script = folder.join("scripts/install");
    // A separate process writes the script: a child process that this process starts at the same
    // time could hold the file open for writing, and the script could not run.
    let copied = Command::new("cp").arg(tree::root().join("scripts/install")).arg(&script).status();
    assert!(copied.unwrap().success());
    let output = refusal(Command::new(&script).env("PREFIX", "/usr/local").uid(65_534).gid(65_534));
    assert!(output.contains("/usr/local can't be written: run this as root"), "{output}");
    fs::remove_dir_all(folder).unwrap();
}
