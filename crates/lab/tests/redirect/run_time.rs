//! Run-time changes over HTTP, at the admin address.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use evener_lab::harness::wait::LONG;
use serde_json::{Value, json};

use crate::credentials::{at, authority, signed};
use crate::membership::tokens;
use crate::stage::Stage;

const READER: &str = "reader-reader-reader";
const OPERATOR: &str = "operator-operator-0";
const ADMIN: &str = "admin-admin-admin-00";
/// Loopback address of the director. The configured tokens are required here, too.
const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 9180);

/// Starts a group of two members, with a token of each role for the admin address.
fn stage(name: &str) -> Result<Stage> {
    let farm = evener_lab::farm::Farm::builder().bare().servers(2).clients(1).build()?;
    let text = format!("{READER}\n{OPERATOR} operate oscar\n{ADMIN} admin alice\n");
    let path = tokens(name, &text)?;
    let members: String = (0..2).map(|number| crate::stage::member(&farm, number, "")).collect();
    let keys = "policy = \"round-robin\"\n";
    let members =
        format!("{members}\n[admin]\nlisten = \"127.0.0.1:9180\"\ntoken_file = \"{}\"\n", path.display());
    Stage::start_with(farm, &[], keys, &members)
}

/// Sends a request. Returns status, head and body of the response.
fn exchange(stage: &Stage, bytes: &[u8]) -> Result<(u16, String, Value)> {
    let address = SocketAddr::from(ADDRESS);
    let mut stream = stage.farm.director().enter(|| TcpStream::connect(address))??;
    stream.set_read_timeout(Some(LONG))?;
    // A daemon that refuses a request early stops reading.
    let _ = stream.write_all(bytes);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no answer: {text:?}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = serde_json::from_str(body).unwrap_or(Value::Null);
    Ok((status.context("no status")?, head.to_owned(), body))
}

fn request(stage: &Stage, token: &str, line: &str, fields: &str, body: &str) -> Result<(u16, String, Value)> {
    let length = body.len();
    let text = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         {fields}Content-Length: {length}\r\n\r\n{body}"
    );
    exchange(stage, text.as_bytes())
}

#[test]
fn each_role_may_do_its_part_and_no_more() -> Result<()> {
    let stage = stage("roles")?;
    let server = format!("/v1/services/shop/servers/{}", stage.evener.servers()?[0].name);
    let weight = format!("PATCH {server}");
    let status = |token: &str, line: &str, body: &str| {
        Ok::<_, anyhow::Error>(request(&stage, token, line, "", body)?.0)
    };
    for token in ["", "wrong-wrong-wrong"] {
        assert_eq!(status(token, &weight, r#"{"weight": 2}"#)?, 401);
        assert_eq!(status(token, "GET /v1/state", "")?, 401);
    }
    let by_role = [(READER, 403, 403), (OPERATOR, 200, 403), (ADMIN, 200, 200)];
    for (token, weighs, adds) in by_role {
        assert_eq!(status(token, "GET /v1/state", "")?, 200);
        assert_eq!(status(token, &weight, r#"{"weight": 2, "drain": false}"#)?, weighs);
        let url = r#"{"url": "http://192.0.2.99:8080"}"#;
        assert_eq!(
            status(token, "POST /v1/services/shop/servers?dry_run", url)?,
            if adds == 200 { 200 } else { adds }
        );
        assert_eq!(status(token, "POST /v1/reload", "")?, adds);
    }
    let changes = request(&stage, READER, "GET /v1/changes", "", "")?.2;
    assert_eq!(
        (&changes[0]["by"], changes.as_array().map(Vec::len)),
        (&json!("oscar"), Some(1)),
        "{changes}"
    );
    assert_eq!(status(OPERATOR, "POST /v1/undo", "")?, 200);
    Ok(())
}

/// A group's token could be valid, so the group checks it. A wrong token still counts for the
/// limit.
#[test]
fn wrong_tokens_are_limited_below_groups_too() -> Result<()> {
    let stage = stage("wrong-tokens")?;
    let guess = |group: &str| {
        Ok::<_, anyhow::Error>(
            request(&stage, "wrong-wrong-wrong", &format!("GET /v1/groups/{group}/members"), "", "")?.0,
        )
    };
    for group in ["shop", "nobody"] {
        assert_eq!(guess(group)?, 401);
    }
    let limited = (0..100).any(|_| {
        guess("nobody").is_ok()
            && request(&stage, ADMIN, "GET /v1/state", "", "").is_ok_and(|answer| answer.0 == 429)
    });
    ensure!(limited, "any number of tokens can be tried");
    Ok(())
}

#[test]
fn bad_requests_change_nothing_and_say_why() -> Result<()> {
    let stage = stage("bad-requests")?;
    let name = stage.evener.servers()?[0].name.clone();
    let server = format!("PATCH /v1/services/shop/servers/{name}");
    let before = request(&stage, ADMIN, "GET /v1/state", "", "")?.2;
    let twice = json!({"service": [before["service"][0], before["service"][0]]}).to_string();
    let big = format!("{{\"service\": [], \"x\": \"{}\"}}", "x".repeat(17 << 20));
    let foreign = "Origin: http://evil.example\r\n";
    let cases: [(&str, &str, &str, u16); 12] = [
        (&server, "If-Match: \"1-00000000\"\r\n", r#"{"weight": 2}"#, 412),
        (&server, foreign, r#"{"weight": 2}"#, 403),
        (&server, "", r#"{"weight": 70000}"#, 422),
        (&server, "", r#"{"wieght": 2}"#, 422),
        (&server, "", r#"{"drain": "yes"}"#, 422),
        (&server, "", r#"{"weight": "#, 400),
        (&server, "", "[1]", 422),
        ("PATCH /v1/services/shop/servers/nobody", "", r#"{"weight": 2}"#, 404),
        ("DELETE /v1/services/nobody", "", "", 404),
        ("PUT /v1/state", "", &twice, 422),
        ("PUT /v1/state", "", &big, 413),
        ("POST /v1/undo", "", "", 409),
    ];
    for (line, fields, body, expected) in cases {
        let (status, _, answer) = request(&stage, ADMIN, line, fields, body)?;
        let sentence = answer["error"].as_str().unwrap_or_default().len();
        ensure!(
            status == expected && sentence > 20,
            "{line} {fields} {}: {status} {answer}",
            &body[..body.len().min(80)]
        );
    }
    // The client closes in the middle of the body, or sends no more.
    let half = format!(
        "{server} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{\"weight\": 9"
    );
    let mut stream = stage.farm.director().enter(|| TcpStream::connect(SocketAddr::from(ADDRESS)))??;
    stream.write_all(half.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    ensure!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{text}");
    assert_eq!(request(&stage, ADMIN, "GET /v1/state", "", "")?.2, before);
    Ok(())
}

#[test]
fn of_two_writers_one_is_refused_and_none_is_lost() -> Result<()> {
    let stage = stage("writers")?;
    let names: Vec<String> = stage.evener.servers()?.into_iter().map(|server| server.name).collect();
    let (_, head, state) = request(&stage, ADMIN, "GET /v1/state", "", "")?;
    let tag = state["tag"].as_str().context("no tag")?;
    ensure!(head.to_lowercase().contains(&format!("etag: \"{tag}\"")), "{head}");
    let put = |weight: u16| {
        let mut wanted = state.clone();
        wanted["service"][0]["server"][0]["weight"] = weight.into();
        request(&stage, ADMIN, "PUT /v1/state", &format!("If-Match: \"{tag}\"\r\n"), &wanted.to_string())
    };
    assert_eq!((put(2)?.0, put(3)?.0), (200, 412));
    // Four concurrent writers change one server each. All their changes are recorded.
    let path = |number: usize| format!("PATCH /v1/services/shop/servers/{}", names[number % 2]);
    std::thread::scope(|scope| {
        let write = |writer: usize| {
            let (stage, line) = (&stage, path(writer));
            scope.spawn(move || {
                (1..=10).all(|weight| {
                    let body = json!({"weight": 10 * writer + weight}).to_string();
                    request(stage, ADMIN, &line, "", &body).is_ok_and(|answer| answer.0 == 200)
                })
            })
        };
        let writers: Vec<_> = (0..4).map(write).collect();
        ensure!(writers.into_iter().all(|writer| writer.join().unwrap_or(false)));
        Ok(())
    })?;
    let changes = request(&stage, ADMIN, "GET /v1/changes", "", "")?.2;
    assert_eq!(changes.as_array().map(Vec::len), Some(41), "one by PUT, and 40 by PATCH");
    let weights: Vec<u32> = stage.evener.servers()?.into_iter().map(|server| server.weight).collect();
    // The last writer wins: 0 or 2 for the first server, and 1 or 3 for the second.
    ensure!([10, 30].contains(&weights[0]) && [20, 40].contains(&weights[1]), "{weights:?}");
    Ok(())
}

#[test]
fn client_certificates_give_roles_at_the_admin_address() -> Result<()> {
    let farm = evener_lab::farm::Farm::builder().bare().servers(1).clients(1).build()?;
    let director = farm.director().clone();
    authority(&director, "ca")?;
    signed(&director, "ca", "lb", "DNS:localhost")?;
    for name in ["ops", "prom", "nobody"] {
        signed(&director, "ca", name, &format!("DNS:{name}.example"))?;
    }
    let names = director.write("operators", "ops admin alice\nprom.example read\n")?;
    let tls = format!(
        "\n[admin]\nlisten = \"127.0.0.1:9180\"\n[admin.tls]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n\
         certificates_file = \"{}\"\n",
        at(&director, "lb.pem"),
        at(&director, "lb.key"),
        at(&director, "ca.pem"),
        names.display()
    );
    let member = crate::stage::member(&farm, 0, "");
    let stage = Stage::start_with(farm, &[], "", &(member + &tls))?;
    let name = stage.evener.servers()?[0].name.clone();
    let status = |certificate: Option<&str>, method: &str, path: &str| -> Result<String> {
        let ca = at(&director, "ca.pem");
        let format = ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--cacert", &ca];
        let json = ["--header", "Content-Type: application/json", "--data", "{\"weight\": 3}"];
        let shown = certificate
            .map(|name| [at(&director, &format!("{name}.pem")), at(&director, &format!("{name}.key"))]);
        let shown: Vec<&str> = shown.iter().flat_map(|[pem, key]| ["--cert", pem, "--key", key]).collect();
        let body = if method == "PATCH" { &json[..] } else { &[] };
        let url = format!("https://localhost:9180{path}");
        let words = ["curl", "--request", method, &url].into_iter().chain(format).chain(shown);
        let words: Vec<&str> = words.chain(body.iter().copied()).collect();
        director.run(&words)
    };
    let weigh = format!("/v1/services/shop/servers/{name}");
    for (certificate, views, changes) in [
        (Some("ops"), "200", "200"),
        (Some("prom"), "200", "403"),
        (Some("nobody"), "401", "401"),
        (None, "401", "401"),
    ] {
        assert_eq!(status(certificate, "GET", "/v1/state")?, views, "{certificate:?}");
        assert_eq!(status(certificate, "PATCH", &weigh)?, changes, "{certificate:?}");
    }
    // A renewed certificate is accepted at once.
    signed(&director, "ca", "lb", "DNS:localhost,DNS:other")?;
    assert_eq!(status(Some("ops"), "GET", "/v1/changes")?, "200");
    Ok(())
}

/// Returns the path of schemathesis, which `make setup-tests` installs.
fn schemathesis() -> Result<PathBuf> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python/bin/schemathesis");
    ensure!(program.exists(), "There is no {}: run `make setup-tests`", program.display());
    Ok(program)
}

#[test]
fn api_answers_as_its_description_says() -> Result<()> {
    let stage = stage("description")?;
    let program = schemathesis()?;
    let report = stage.farm.director().file("schemathesis");
    std::fs::create_dir_all(&report)?;
    let host = stage.farm.director();
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                  unsupported_method,ignored_auth,negative_data_rejection";
    let words = [
        "env",
        "-C",
        &report.to_string_lossy(),
        &program.to_string_lossy(),
        "run",
        "http://127.0.0.1:9180/v1/openapi.json",
        "--header",
        &format!("Authorization: Bearer {ADMIN}"),
        "--checks",
        checks,
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        "10",
        "--seed",
        "1",
        "--exclude-path-regex",
        // Endless responses.
        "events|trace|live",
    ];
    let output = host.output(&words)?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{text}");
    ensure!(text.contains("Tested: "), "{text}");
    assert_eq!(stage.evener.servers()?.len(), 2, "no request has changed the farm unasked");
    Ok(())
}
