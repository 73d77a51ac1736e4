//! `evener import`: published configurations of other programs become farms that pass the check.
//! The report accounts for each of their lines.

mod choices;
mod kinds;
mod losses;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use evener::config;
use evener::import::{ImportReport, Origin, import};
use proptest::prelude::*;

const ORIGINS: [(&str, Origin); 4] = [
    ("haproxy", Origin::Haproxy),
    ("ipvsadm", Origin::Ipvsadm),
    ("keepalived", Origin::Keepalived),
    ("nginx", Origin::Nginx),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/import/samples")
}

/// Returns the samples with their names and original programs.
fn samples() -> Vec<(String, Origin, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if let Some((_, origin)) = ORIGINS.iter().find(|(program, _)| name.starts_with(program)) {
            found.push((name, *origin, fs::read(&path).unwrap()));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Checks that each significant line is either imported or reported, and that no other line is.
fn check_account(report: &ImportReport) {
    let left: BTreeSet<usize> = report.left.iter().flat_map(|left| left.lines.clone()).collect();
    let accounted: BTreeSet<usize> = report.carried.union(&left).copied().collect();
    let missing: Vec<_> = report.significant.difference(&accounted).collect();
    assert!(missing.is_empty(), "lines that are lost: {missing:?}");
    assert!(report.carried.is_subset(&report.significant));
    for left in &report.left {
        assert!(!left.why.is_empty() && !left.todo.is_empty() && left.line > 0, "{left:?}");
    }
}

/// Checks that the TOML is valid, or empty if there are no services.
fn check_toml(report: &ImportReport) {
    let parsed = config::parse(&report.toml, "evener.toml");
    match report.services {
        0 => assert!(
            report.toml.lines().all(|line| line.is_empty() || line.starts_with('#')),
            "{}",
            report.toml
        ),
        count => {
            assert_eq!(parsed.unwrap_or_else(|why| panic!("{why}\n{}", report.toml)).services.len(), count)
        }
    }
}

#[test]
fn samples_become_farms_that_pass_the_check() {
    let samples = samples();
    assert!(samples.len() >= 12, "{}", samples.len());
    for (_, origin) in ORIGINS {
        assert!(samples.iter().filter(|(_, of, _)| *of == origin).count() >= 2, "{origin:?}");
    }
    for (name, origin, bytes) in samples {
        let report = import(&bytes, &name, None, None).unwrap();
        assert_eq!(report.from, origin, "{name}");
        assert!(report.services > 0, "{name}: {:#?}", report.left);
        check_account(&report);
        check_toml(&report);
    }
}

/// Significant lines are the lines that a human would count.
#[test]
fn significant_lines_are_all_but_comments_and_braces() {
    for (name, origin, bytes) in samples() {
        let report = import(&bytes, &name, None, None).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let marks: &[char] = if origin == Origin::Keepalived { &['#', '!'] } else { &['#'] };
        let has_meaning = |line: &str| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with(marks) && !line.chars().all(|c| "{};".contains(c))
        };
        let counted = text.lines().enumerate().filter(|(_, line)| has_meaning(line)).map(|(at, _)| at + 1);
        assert_eq!(report.significant, counted.collect(), "{name}");
    }
}

#[test]
fn imports_of_samples_are_as_reviewed() {
    for (name, _, bytes) in samples() {
        let report = import(&bytes, &name, None, None).unwrap();
        insta::with_settings!({ snapshot_path => "snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name.replace('.', "_"), report.toml);
        });
    }
}

#[test]
fn readme_names_the_origin_of_every_sample() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    for (name, ..) in samples() {
        assert!(readme.contains(&format!("`{name}`")), "{name}");
    }
}

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evener")).arg("import").args(args).output().unwrap()
}

fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn command_writes_a_file_that_evener_check_passes() {
    let sample = folder().join("haproxy-content-sw.cfg");
    let output = run(&[sample.to_str().unwrap(), "--lossy"]);
    assert!(output.status.success(), "{output:?}");
    let path = scratch("imported.toml", &output.stdout);
    let check = Command::new(env!("CARGO_BIN_EXE_evener"))
        .args(["check", "--file-only", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(check.status.success(), "{check:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("LEFT") && errors.contains("line 27: monitor-uri"), "{errors}");
    let json = run(&[sample.to_str().unwrap(), "--json", "--from", "haproxy"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["from"], "haproxy");
    assert!(report["left"].as_array().unwrap().iter().all(|left| left["why"].is_string()));
}

#[test]
fn losses_that_change_who_is_served_end_with_two_unless_they_are_taken() {
    let service = "listen a\n  bind 192.0.2.1:80\n  server s 192.0.2.11:80\n";
    let cases = [
        ("", 0),
        ("  option forwardfor\n  log global\n  cookie X\n", 0),
        ("  http-request deny if { src 192.0.2.7 }\n", 2),
        ("  server t web.example 80\n  server-template u 3 web.example:80\n", 2),
        ("  frobnicate\n", 2),
    ];
    for (more, status) in cases {
        let path = scratch("weighed.cfg", format!("{service}{more}").as_bytes());
        let path = path.to_str().unwrap();
        let output = run(&[path]);
        assert_eq!(output.status.code(), Some(status), "{more}: {output:?}");
        assert!(!output.stdout.is_empty(), "the file is written all the same");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            errors.contains("CHANGED: who is served") && errors.contains("--lossy"),
            status == 2,
            "{errors}"
        );
        assert_eq!(run(&[path, "--lossy"]).status.code(), Some(0), "{more}");
        assert_eq!(run(&[path, "--json"]).status.code(), Some(status), "{more}");
    }
}

/// The most severe losses come first. Settings of the other program's own process come last, in one
/// line per reason.
#[test]
fn losses_are_told_by_weight() {
    let text = "global\n  chroot /x\n  nbthread 4\nlisten a\n  bind 192.0.2.1:80\n  option forwardfor\n\
                server s 192.0.2.11:80\n  http-request deny\n";
    let path = scratch("by-weight.cfg", text.as_bytes());
    let errors = String::from_utf8(run(&[path.to_str().unwrap()]).stderr).unwrap();
    let at = |text: &str| errors.find(text).unwrap_or_else(|| panic!("{text}: {errors}"));
    assert!(
        at("http-request deny") < at("option forwardfor") && at("option forwardfor") < at("line 1, 2, 3")
    );
    assert!(!errors.contains("chroot"), "{errors}");
}

#[test]
fn files_that_are_no_configuration_are_not_quoted() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("secrets");
    fs::create_dir_all(&folder).unwrap();
    let secrets =
        "root:$6$salt$hash:19000:0:99999:7:::\nbind:!:1::\n$6$only\n@x:y\n-----BEGIN KEY-----\nMIIE=\n";
    fs::write(folder.join("shadow"), secrets).unwrap();
    let keepalived = "include shadow\nvirtual_server 192.0.2.1 80 {\n  real_server 192.0.2.11 80 {\n  }\n}\n\
                      vrrp_instance a {\n  auth_pass hunter2\n}\n";
    let report = import(keepalived.as_bytes(), "keepalived.conf", Some(&folder), None).unwrap();
    check_account(&report);
    let all = format!("{report:?}");
    for secret in ["hash", "bind:", "$6$", "x:y", "BEGIN", "MIIE", "hunter2"] {
        assert!(!all.contains(secret), "{secret}: {:#?}", report.left);
    }
    let nginx = "include shadow;\nserver {\n  listen 192.0.2.1:80;\n  location / { proxy_pass http://192.0.2.11; }\n}\n";
    let error = import(nginx.as_bytes(), "nginx.conf", Some(&folder), None).unwrap_err();
    assert!(error.file.ends_with("shadow") && !error.to_string().contains("hash"), "{error}");
    let haproxy = "listen a\n  bind 192.0.2.1:80\n  server s 192.0.2.11:80\n  stats auth admin:hunter2\n\
                   http-check send hdr Authorization hunter2\nuserlist u\n  user x insecure-password hunter2\n";
    let report = import(haproxy.as_bytes(), "haproxy.cfg", None, None).unwrap();
    assert!(!format!("{report:?}").contains("hunter2"), "{:#?}", report.left);
}

#[test]
fn included_pipes_are_not_waited_for() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pipes");
    fs::create_dir_all(&folder).unwrap();
    let pipe = folder.join("rules.conf");
    let _ = fs::remove_file(&pipe);
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let text = "server {\n  listen 192.0.2.1:80;\n  include rules.conf;\n  location / { proxy_pass http://192.0.2.11; }\n}\n";
    let report = import(text.as_bytes(), "nginx.conf", Some(&folder), None).unwrap();
    assert!(report.left.iter().any(|left| left.why.contains("can't be read")), "{:#?}", report.left);
}

#[test]
fn unreadable_files_end_with_a_sentence_and_their_line() {
    let large = "server a;\n".repeat(1 << 20);
    let long = format!("frontend a\n{}\n", "x".repeat(1 << 20));
    let cases: [(&str, &[u8], &str); 6] = [
        ("binary.cfg", b"frontend a\n\0\x01\x02", "line 2: there is a zero byte"),
        ("latin.cfg", b"frontend a\n# caf\xe9\n", "line 2: this is not UTF-8 text"),
        ("large.conf", large.as_bytes(), "larger than 4 MiB"),
        ("long.cfg", long.as_bytes(), "line 2: the line is longer than 64 KiB"),
        (
            "open.conf",
            b"http {\n  server {\n    listen 80;\n",
            "line 2: the block that begins here isn't closed",
        ),
        ("letter.txt", b"Dear all,\n", "name it by --from"),
    ];
    for (name, bytes, expected) in cases {
        let path = scratch(name, bytes);
        let output = run(&[path.to_str().unwrap()]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {errors}");
        assert!(errors.contains(expected) && errors.contains("line "), "{name}: {errors}");
        assert!(output.stdout.is_empty(), "{name}");
    }
}

#[test]
fn file_without_a_service_fails_with_its_reasons() {
    let path = scratch("vrrp.conf", b"vrrp_instance a {\n  state MASTER\n}\n");
    let output = run(&[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("Evener has no VRRP") && errors.contains("no service could be made"), "{errors}");
}

#[test]
fn included_files_are_followed_where_they_are() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("included");
    fs::create_dir_all(folder.join("conf.d")).unwrap();
    fs::write(folder.join("conf.d/a.conf"), "upstream a {\n  server 192.0.2.11:80;\n}\n").unwrap();
    let text = "include conf.d/*.conf;\ninclude no/such.conf;\n\
                server {\n  listen 192.0.2.1:80;\n  location / { proxy_pass http://a; }\n}\n";
    let report = import(text.as_bytes(), "nginx.conf", Some(&folder), None).unwrap();
    check_account(&report);
    check_toml(&report);
    assert!(report.toml.contains("192.0.2.11"), "{}", report.toml);
    let left: Vec<_> = report.left.iter().map(|left| left.text.as_str()).collect();
    assert_eq!(left, ["include no/such.conf"]);
}

/// Returns lines like those of the samples, and other lines.
fn piece() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "frontend a",
        "listen b 192.0.2.1:80",
        "backend c",
        "defaults",
        "bind *:80",
        "bind :::80 ssl crt x",
        "server s 192.0.2.11:80 check",
        "server s 192.0.2.1:80",
        "default_backend c",
        "mode http",
        "use_backend c if { path_beg /x }",
        "acl d hdr(host) e.example",
        "use_backend c if d",
        "balance source",
        "option httpchk GET /",
        "timeout client 1h",
        "http-check expect status 200",
        "-A -t 192.0.2.1:80 -s rr",
        "-a -t 192.0.2.1:80 -r 192.0.2.11:80 -g",
        "-a -t 192.0.2.1:80 -r 192.0.2.1 -m",
        "-A -u [2001:db8::1]:53 -s mh -p 5",
        "-a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -i -x 9",
        "--set 1 2 3 \\",
        "virtual_server 192.0.2.1 80 {",
        "real_server 192.0.2.11 81 {",
        "TCP_CHECK {",
        "}",
        "delay_loop 6",
        "virtual_server_group g {",
        "192.0.2.3-10 80",
        "virtual_server group g {",
        "lb_kind DR",
        "weight 70000",
        "upstream u {",
        "server 192.0.2.11:80 backup;",
        "server {",
        "listen 80;",
        "listen [::]:80 ssl;",
        "location /a {",
        "location = /b {",
        "location ~ \\.(a|b)$ {",
        "proxy_pass http://u;",
        "server_name x.example *.y.example;",
        "http {",
        "stream {",
        "listen 53 udp;",
        "proxy_pass u;",
        "ip_hash;",
        "\\",
        "\"",
    ])
    .prop_map(str::to_owned)
}

fn check_any(bytes: &[u8]) {
    for origin in [None].into_iter().chain(ORIGINS.map(|(_, origin)| Some(origin))) {
        match import(bytes, "any", None, origin) {
            Ok(report) => {
                check_account(&report);
                check_toml(&report);
            }
            Err(error) => assert!(error.line > 0 && !error.why.is_empty(), "{error:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_bytes_are_imported_without_panic(bytes in any::<Vec<u8>>(), text in any::<String>()) {
        check_any(&bytes);
        check_any(text.as_bytes());
    }

    #[test]
    fn lines_in_any_order_are_accounted_for(lines in prop::collection::vec(piece(), 0..40)) {
        check_any(lines.join("\n").as_bytes());
    }

    #[test]
    fn changed_samples_are_accounted_for(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        len in 0..60_usize,
        with in "[{};#\"'\\\\\n :./*0-9a-zé-]{0,12}",
    ) {
        let samples = samples();
        let mut text: Vec<char> = String::from_utf8(which.get(&samples).2.clone()).unwrap().chars().collect();
        let from = at.index(text.len());
        let to = (from + len).min(text.len());
        text.splice(from..to, with.chars());
        check_any(text.into_iter().collect::<String>().as_bytes());
    }
}
