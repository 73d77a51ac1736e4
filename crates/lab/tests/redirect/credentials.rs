//! Members' credentials: certificates, and tokens at the admin address.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::host::Host;
use serde_json::Value;

use crate::membership::tokens;
use crate::stage::{Stage, statuses};

/// Creates a certificate authority: certificate and key as files of a host.
pub(crate) fn authority(host: &Host, name: &str) -> Result<()> {
    openssl(
        host,
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN={name} -out {name}.pem -keyout {name}.key"
        ),
    )
}

/// Creates a certificate for these names, signed by authority `by`.
pub(crate) fn signed(host: &Host, by: &str, name: &str, subjects: &str) -> Result<()> {
    fs::write(host.file(&format!("{name}.ext")), format!("subjectAltName={subjects}\n"))?;
    openssl(
        host,
        &format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -out {name}.csr -keyout {name}.key"
        ),
    )?;
    openssl(
        host,
        &format!(
            "x509 -req -in {name}.csr -CA {by}.pem -CAkey {by}.key -CAcreateserial -days 1 -extfile {name}.ext -out {name}.pem"
        ),
    )
}

pub(crate) fn at(host: &Host, name: &str) -> String {
    host.file(name).to_string_lossy().into_owned()
}

/// Runs openssl. Words with the suffix of a file are replaced by paths of the host's files.
fn openssl(host: &Host, words: &str) -> Result<()> {
    let is_file = |word: &&str| [".pem", ".key", ".csr", ".ext"].iter().any(|end| word.ends_with(end));
    let own = |word: &str| match is_file(&word) {
        true => at(host, word),
        false => word.to_owned(),
    };
    let words: Vec<String> = ["openssl"].into_iter().chain(words.split(' ')).map(own).collect();
    host.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
}

#[test]
fn certificate_covers_only_its_hosts() -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(1).build()?;
    let director = farm.director();
    let [own, other] = [0, 1].map(|number| farm.server(number).address());
    authority(director, "front")?;
    authority(director, "members")?;
    authority(director, "strangers")?;
    signed(director, "members", "one", &format!("IP:{own},DNS:m1.example"))?;
    signed(director, "strangers", "stranger", &format!("IP:{own}"))?;
    let [front, key, members] = ["front.pem", "front.key", "members.pem"].map(|name| at(director, name));
    let keys = format!("tls = {{ certificate = \"{front}\", key = \"{key}\" }}");
    let stage =
        Stage::start_with(farm, &[], &keys, &format!("[service.group]\nclient_ca = \"{members}\"\n"))?;
    let director = stage.farm.director();

    let url = stage.url("/").replace("http:", "https:");
    // All requests come from the director, which has the files. The certificate identifies the
    // member.
    let tell = |name: &str, verb: &str, body: &str| -> Result<u16> {
        let (certificate, key) = (at(director, &format!("{name}.pem")), at(director, &format!("{name}.key")));
        let shown = ["--cert", &certificate, "--key", &key];
        let output = ["curl", "--silent", "--insecure", "--max-time", "10", "--output", "/dev/null"];
        let what = ["--write-out", "%{http_code}", "--request", verb, "--data-binary", body, &url];
        let shown = if name.is_empty() { &shown[..0] } else { &shown };
        Ok(director.run(&[&output[..], shown, &what].concat())?.trim().parse()?)
    };
    let (own, other) = (format!("http://{own}:8080"), format!("http://{other}"));
    for (name, verb, body, status) in [
        ("", "GROUP-ADD", own.as_str(), 401),
        ("", "GROUP-QUERY", "", 401),
        ("one", "GROUP-ADD", &other, 403),
        ("one", "GROUP-ADD", &format!("{own}\nhttp://m2.example"), 403),
        ("one", "GROUP-ADD", &format!("{own}\nhttps://m1.example:81/shop"), 201),
        ("one", "LOAD-INFORM", &format!("5 {own}"), 204),
        ("one", "GROUP-QUERY", "", 200),
        ("one", "GROUP-EXIT", &own, 200),
    ] {
        assert_eq!(tell(name, verb, body)?, status, "{name:?} {verb} {body:?}");
    }
    assert!(tell("stranger", "GROUP-ADD", &own).is_err(), "its handshake fails");
    for (outcome, number) in [("messages", 8), ("message_401", 2), ("message_403", 2), ("message_404", 0)] {
        assert_eq!(stage.counted(outcome)?, number, "{outcome}");
    }
    Ok(())
}

#[test]
fn group_token_works_on_admin_address_too() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(1).build()?;
    let own = format!("http://{}", farm.server(0).address());
    let (admins, members) = ("0123456789abcdef-admin", "0123456789abcdef-member");
    let files = [("admin", format!("{admins}\n")), ("member", format!("{members} {own}\n"))];
    let [admin_file, member_file] = files.map(|(name, text)| tokens(name, &text));
    let (admin_file, member_file) = (admin_file?, member_file?);
    let group = format!(
        "[service.group]\ntoken_file = \"{}\"\n[admin]\ntoken_file = \"{}\"\n",
        member_file.display(),
        admin_file.display()
    );
    let stage = Stage::start_with(farm, &[], "", &group)?;
    let ask = |what: &str, path: &str, token: &str, body: &str| -> Result<(u16, Value)> {
        let at = format!("http://127.0.0.1:9180/v1/{path}");
        let authorization = format!("Authorization: Bearer {token}");
        let words = ["curl", "--silent", "--max-time", "10", "--write-out", "\n%{http_code}"];
        let mut what = vec!["--header", &authorization, "--request", what, &at];
        if !body.is_empty() {
            what.extend(["--header", "Content-Type: application/json", "--data-binary", body]);
        }
        let output = stage.farm.director().run(&[&words[..], &what].concat())?;
        let (text, status) = output.trim_end().rsplit_once('\n').context("curl said nothing")?;
        Ok((status.parse()?, serde_json::from_str(text).unwrap_or_default()))
    };
    let list = "groups/shop/members";
    let member = format!("{{\"url\": \"{own}\"}}");
    let report =
        |load: &str, time: u32| format!("{{\"url\": \"{own}\", \"load\": {load}, \"time\": {time}.5}}");
    for (method, path, token, body, status) in [
        ("POST", list, admins, member.as_str(), 401),
        ("POST", list, members, "{\"url\": \"http://192.0.2.1\"}", 403),
        ("POST", list, members, &member, 201),
        ("POST", "groups/shop/reports", members, &report("93", 1_764_000_000), 204),
        ("POST", "groups/shop/reports", members, &report("93", 1_764_000_000), 422),
        ("POST", "groups/shop/reports", members, &report("-1", 1_764_000_001), 422),
        ("POST", "groups/shop/reports", members, "{\"load\": 1}", 400),
        ("POST", "groups/shop/reports", "none", &report("1", 1_764_000_001), 401),
        ("GET", list, members, "", 200),
        ("GET", list, admins, "", 200),
        ("GET", list, "none", "", 401),
        ("GET", "servers", members, "", 401),
        ("GET", "servers", admins, "", 200),
        ("DELETE", list, admins, &member, 401),
    ] {
        let (answered, output) = ask(method, path, token, body)?;
        assert_eq!(answered, status, "{method} {path} {body}: {output}");
    }
    assert_eq!(ask("GET", list, members, "")?.1["members"][0]["load"], 93.0);
    fs::remove_file(admin_file)?;
    Ok(fs::remove_file(member_file)?)
}

#[test]
fn member_name_resolving_to_director_is_refused() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(1).build()?;
    // The daemon notices that "localhost" is the director only when it resolves the name.
    let members = "[[service.server]]\nname = \"loop\"\nurl = \"http://localhost:8001\"\n";
    let other = "[[service]]\nname = \"other\"\naddress = \"0.0.0.0:8001\"\nmethod = \"redirect\"\n\
                 [[service.server]]\nname = \"m\"\nurl = \"http://192.0.2.9\"\n";
    let stage = Stage::start_with(farm, &[], "", &format!("{members}{other}"))?;
    assert_eq!(stage.answer(&[], "/")?.0, "503");
    let servers: Value = stage.evener.json(&["servers"])?;
    let cause = servers[1]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(cause.contains("an address of this director"), "{servers}");
    Ok(())
}

/// Sends requests with wrong tokens on one connection and returns the responses.
fn guess(stage: &Stage, host: &Host, count: usize) -> Result<String> {
    let message = |connection: &str| {
        format!("GROUP-QUERY / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer guess\r\n{connection}\r\n")
    };
    let mut stream = host.enter(|| TcpStream::connect(stage.address()))??;
    stream.set_read_timeout(Some(wait::LONG))?;
    stream.write_all((message("").repeat(count - 1) + &message("Connection: close\r\n")).as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn guesses_of_a_token_are_braked_and_members_that_have_shown_theirs_are_not() -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(1).build()?;
    let path = tokens("braked", "0123456789abcdef-all *\n")?;
    let stage =
        Stage::start_with(farm, &[], "", &format!("[service.group]\ntoken_file = \"{}\"\n", path.display()))?;
    let is_known =
        || Ok::<_, anyhow::Error>(stage.tell(0, "GROUP-QUERY", "0123456789abcdef-all", "")?.0 == 200);
    assert!(is_known()?);
    let guesser = stage.farm.server(1);
    let first = guess(&stage, guesser, 10)?;
    assert_eq!(statuses(&first), ["401"; 10], "so many are looked up");
    wait::until("most of a network's guesses are refused", || {
        let text = guess(&stage, guesser, 40)?;
        let refused = statuses(&text).iter().filter(|status| **status == "429").count();
        let hints = text.lines().filter(|line| line.eq_ignore_ascii_case("retry-after: 1")).count();
        assert_eq!(hints, refused, "{text}");
        Ok(refused > 30)
    })?;
    assert!(stage.counted("message_429")? > 30);
    for _ in 0..20 {
        guess(&stage, guesser, 5)?;
        assert!(is_known()?, "it is in the same network");
    }
    assert_eq!(statuses(&guess(&stage, stage.farm.client(0), 1)?), ["401"], "it is in another one");

    // The admin address shares the limit for wrong tokens.
    let at = "http://127.0.0.1:9180/v1/groups/shop/members";
    let words =
        ["curl", "--silent", "--include", "--max-time", "10", "--header", "Authorization: Bearer guess"];
    let body =
        ["--header", "Content-Type: application/json", "--data-binary", "{\"url\": \"http://m1\"}", at];
    wait::until("guesses are refused there, too", || {
        let text = stage.farm.director().run(&[&words[..], &body].concat())?;
        anyhow::ensure!(statuses(&text) == ["401"] || text.contains("Retry-After: 1"), "{text}");
        Ok(statuses(&text) == ["429"])
    })?;
    Ok(fs::remove_file(path)?)
}
