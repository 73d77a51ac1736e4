//! Members that join, report, fall silent and return: the group protocol with real web servers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;

use anyhow::{Context, Result};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use serde_json::Value;

use crate::stage::{Stage, file};

/// Members on this network may join without a token, also for each other, and may claim paths and a
/// weight.
const INSECURE: &str =
    "[service.group]\ninsecure = true\nallow = [\"192.0.2.0/24\"]\npaths = [\"/img/*\"]\nweight = 3\n";
/// Like [`INSECURE`], but members may claim no paths and no weight above 1.
const WITHOUT_CLAIMS: &str = "[service.group]\ninsecure = true\nallow = [\"192.0.2.0/24\"]\n";

/// Starts a group without members. `group` is its [service.group] section.
fn empty(group: &str) -> Result<Stage> {
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    // With the maximum gain, reports take full effect.
    Stage::start_with(farm, &[], "policy = \"least-load\"\nreport_gain = 32", group)
}

fn url(stage: &Stage, server: usize) -> String {
    format!("http://{}", stage.farm.server(server).address())
}

impl Stage {
    /// Sends a group message from a server. Returns status and text of the response.
    pub(crate) fn tell(&self, server: usize, verb: &str, token: &str, body: &str) -> Result<(u16, String)> {
        let (at, authorization) = (self.url("/"), format!("Authorization: Bearer {token}"));
        let format = ["--write-out", "\n%{http_code}", "--data-binary", body, &at];
        let mut words = vec!["curl", "--silent", "--max-time", "10", "--request", verb];
        if !token.is_empty() {
            words.extend(["--header", &authorization]);
        }
        let output = self.farm.server(server).run(&[&words[..], &format].concat())?;
        let (text, status) = output.trim_end().rsplit_once('\n').context("curl said nothing")?;
        Ok((status.parse()?, text.trim_end().to_owned()))
    }

    /// Returns the members as GROUP-QUERY lists them.
    fn members(&self, token: &str) -> Result<Vec<Value>> {
        let (status, text) = self.tell(0, "GROUP-QUERY", token, "")?;
        anyhow::ensure!(status == 200, "{status} {text}");
        let listing: Value = serde_json::from_str(&text)?;
        Ok(listing["members"].as_array().context("no members")?.clone())
    }

    pub(crate) fn states(&self) -> Result<Vec<String>> {
        let state = |member: &Value| member["state"].as_str().unwrap_or_default().to_owned();
        Ok(self.members("")?.iter().map(state).collect())
    }
}

#[test]
fn members_join_report_and_leave() -> Result<()> {
    let stage = empty(INSECURE)?;
    assert_eq!(stage.answer(&[], "/")?.0, "503");
    let both = format!("{} weight=2\n{}\n", url(&stage, 0), url(&stage, 1));
    assert_eq!(stage.tell(0, "GROUP-ADD", "", &both)?, (201, "joined: 2, known: 0".to_owned()));
    assert_eq!(stage.tell(0, "GROUP-ADD", "", &both)?.0, 200);
    wait::until("both work", || Ok(stage.states()? == ["up", "up"]))?;
    assert!(["web1", "web2"].contains(&stage.follow("/who")?.as_str()));

    // Members are identified by their source address. A loaded server only gets exploratory
    // requests.
    assert_eq!(stage.tell(0, "LOAD-INFORM", "", "1000000")?.0, 204);
    assert_eq!(stage.tell(1, "LOAD-INFORM", "", &format!("0.5 1764000000 {}", url(&stage, 1)))?.0, 204);
    wait::until("the reports are in force", || {
        let mut ours = 0;
        for _ in 0..20 {
            ours += usize::from(stage.follow("/who")? == "web2");
        }
        Ok(ours >= 17)
    })?;
    let members = stage.members("")?;
    assert_eq!((&members[0]["load"], &members[1]["load"]), (&Value::from(1_000_000.0), &Value::from(0.5)));
    assert!(members.iter().all(|member| member["age_seconds"].is_f64() && member["dispatched"].is_u64()));

    assert_eq!(stage.tell(1, "GROUP-EXIT", "", &url(&stage, 1))?, (200, "left: 1".to_owned()));
    assert_eq!(stage.tell(1, "GROUP-EXIT", "", &url(&stage, 1))?.0, 404);
    for _ in 0..5 {
        assert_eq!(stage.follow("/who")?, "web1");
    }
    Ok(())
}

#[test]
fn silent_members_are_queried_removed_and_rejoin() -> Result<()> {
    let times = "report = \"200ms\"\nquery_after = \"1s\"\nremove_after = \"3s\"\n";
    let stage = empty(&format!("{INSECURE}{times}"))?;
    let listener =
        stage.farm.server(0).enter(|| TcpListener::bind((stage.farm.server(0).address(), 9184)))??;
    let line = format!("{} control=http://{}/load", url(&stage, 0), listener.local_addr()?);
    assert_eq!(stage.tell(0, "GROUP-ADD", "", &line)?.0, 201);

    let (mut asked, _) = listener.accept()?;
    let mut output = String::new();
    let mut head = BufReader::new(&asked);
    while !output.ends_with("\r\n\r\n") {
        anyhow::ensure!(head.read_line(&mut output)? > 0, "closed after {output:?}");
    }
    let host = listener.local_addr()?;
    let wanted = format!(
        "LOAD-QUERY /load HTTP/1.1\r\nHost: {host}\r\nUser-Agent: evener\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    assert_eq!(output, wanted);
    asked.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
    drop(asked);
    assert_eq!(stage.states()?, ["silent"]);
    assert_eq!(stage.tell(0, "LOAD-INFORM", "", "10")?.0, 204);
    assert_eq!(stage.members("")?[0]["load"], 10.0);
    assert_eq!(stage.follow("/who")?, "web1");

    wait::until("it is removed", || Ok(stage.members("")?.is_empty()))?;
    assert_eq!(stage.answer(&[], "/")?.0, "503");
    let (status, why) = stage.tell(0, "LOAD-INFORM", "", &format!("10 {}", url(&stage, 0)))?;
    assert!(status == 409 && why.contains("GROUP-ADD"), "{status} {why}");
    assert_eq!(stage.tell(0, "GROUP-ADD", "", &line)?.0, 201);
    wait::until("it is back", || Ok(stage.answer(&[], "/")?.0 == "302"))
}

#[test]
fn members_outlive_the_daemon() -> Result<()> {
    let mut stage = empty(INSECURE)?;
    let line = format!("{} weight=3 path=/img/*\n{} anonymous", url(&stage, 0), url(&stage, 1));
    assert_eq!(stage.tell(0, "GROUP-ADD", "", &line)?.0, 201);
    wait::until("both work", || Ok(stage.states()? == ["up", "up"]))?;
    stage.evener.daemon().kill9()?;
    stage.evener.start_again()?;
    assert_eq!(stage.states()?, ["up", "up"]);
    let members = stage.members("")?;
    assert_eq!((&members[0]["weight"], &members[0]["paths"][0]), (&Value::from(3), &Value::from("/img/*")));
    assert_eq!(members[1]["anonymous"], true);
    // Only one member serves this path.
    for _ in 0..5 {
        assert_eq!(stage.answer(&[], "/img/a")?.1, format!("{}/img/a", url(&stage, 0)));
    }
    Ok(())
}

#[test]
fn members_kept_from_before_are_cut_to_their_claims() -> Result<()> {
    let mut stage = empty(INSECURE)?;
    let line = format!("{} weight=3 path=/img/*\n{}", url(&stage, 0), url(&stage, 1));
    assert_eq!(stage.tell(0, "GROUP-ADD", "", &line)?.0, 201);
    wait::until("both work", || Ok(stage.states()? == ["up", "up"]))?;
    stage.evener.daemon().kill9()?;
    stage.evener.write(&file(&stage.farm, "policy = \"least-load\"\nreport_gain = 32", WITHOUT_CLAIMS))?;
    stage.evener.start_again()?;
    let members = stage.members("")?;
    assert_eq!(
        (&members[0]["weight"], &members[0]["paths"]),
        (&Value::from(1), &Value::from(Vec::<u8>::new()))
    );
    assert!(stage.evener.daemon().log().contains("its credential no longer allows"));
    let (status, why) = stage.tell(0, "GROUP-ADD", "", &line)?;
    assert!(status == 403 && why.contains("weight=3"), "{status} {why}");
    Ok(())
}

/// Writes a file with tokens that only its owner can read.
pub(crate) fn tokens(stage_name: &str, text: &str) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("evener-{stage_name}-{}.tokens", std::process::id()));
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

#[test]
fn token_limits_members_a_sender_may_change() -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    let (one, all) = ("0123456789abcdef-one", "0123456789abcdef-all");
    let own = format!("http://{}", farm.server(0).address());
    let path = tokens(
        "speak",
        &format!("# members\n{one} {own} paths=/img/*,/a? hosts=*.shop.example weight=2\n{all} *\n"),
    )?;
    let group = format!("[service.group]\ntoken_file = \"{}\"\nallow = [\"192.0.2.0/24\"]\n", path.display());
    let stage = Stage::start_with(farm, &[], "", &group)?;
    let other = url(&stage, 1);
    let cases = [
        ("GROUP-ADD", "", own.clone(), 401),
        ("GROUP-ADD", "0123456789abcdef", own.clone(), 401),
        ("GROUP-QUERY", "", String::new(), 401),
        ("GROUP-ADD", one, other.clone(), 403),
        ("GROUP-ADD", one, format!("{own}\n{other}"), 403),
        ("GROUP-ADD", one, format!("{own} control={other}"), 403),
        ("GROUP-ADD", one, format!("{own} path=/*"), 403),
        ("GROUP-ADD", one, format!("{own} path=/a*"), 403),
        ("GROUP-ADD", one, format!("{own} path=/img/*"), 403),
        ("GROUP-ADD", one, format!("{own} host=*.2"), 403),
        ("GROUP-ADD", one, format!("{own} path=/img/* host=a.shop.example weight=1000"), 403),
        ("GROUP-ADD", all, format!("{own} weight=2"), 403),
        ("GROUP-ADD", all, format!("{own}\n{other} path=/x"), 403),
        ("GROUP-ADD", one, format!("{own} path=/img/* host=A.shop.example weight=2"), 201),
        ("GROUP-ADD", one, own.clone(), 200),
        ("GROUP-ADD", all, other.clone(), 201),
        ("GROUP-QUERY", one, String::new(), 200),
        ("LOAD-INFORM", one, format!("5 {other}"), 403),
        ("LOAD-INFORM", one, format!("5 {own}"), 204),
        ("GROUP-EXIT", one, other.clone(), 403),
        ("GROUP-EXIT", all, other, 200),
    ];
    for (verb, token, body, status) in cases {
        let (answered, why) = stage.tell(0, verb, token, &body)?;
        assert_eq!(answered, status, "{verb} {token:?} {body:?}: {why}");
    }
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn bad_group_messages_get_status_and_change_no_member() -> Result<()> {
    let stage = empty(INSECURE)?;
    let own = format!("http://{}/", stage.address());
    let long = format!("http://m1/{}", "x".repeat(600));
    let cases = [
        ("GROUP-ADD", "", 400),
        ("GROUP-ADD", "m1", 400),
        ("GROUP-ADD", "http://m1 http://m2", 400),
        ("GROUP-ADD", "http://m1 weight=1 weight=2", 400),
        ("GROUP-ADD", "http://m1 weight=-1", 422),
        ("GROUP-ADD", "http://m1\nftp://m2", 422),
        ("GROUP-ADD", "http://me:secret@m1", 422),
        ("GROUP-ADD", "http://m1/?q", 422),
        ("GROUP-ADD", "http://m1/#f", 422),
        ("GROUP-ADD", "http://m1/\u{1}", 422),
        ("GROUP-ADD", "http://m1\\evil", 422),
        ("GROUP-ADD", "http://m1/../x", 422),
        ("GROUP-ADD", "http://m1 path=img", 422),
        ("GROUP-ADD", "http://m1 host=*", 422),
        ("GROUP-ADD", &long, 422),
        ("GROUP-ADD", &own, 422),
        ("GROUP-EXIT", "http://m1", 404),
        ("GROUP-EXIT", "http://m1 now", 400),
        ("LOAD-INFORM", "5", 409),
        ("LOAD-INFORM", "5 http://m1", 409),
        ("LOAD-INFORM", "", 400),
        ("LOAD-INFORM", "much", 400),
        ("LOAD-INFORM", "NaN", 422),
        ("LOAD-INFORM", "inf", 422),
        ("LOAD-INFORM", "-1", 422),
        ("LOAD-INFORM", "1e300", 422),
        ("LOAD-INFORM", "1 -5", 422),
        ("LOAD-QUERY", "", 405),
    ];
    for (verb, body, status) in cases {
        let (answered, why) = stage.tell(0, verb, "", body)?;
        assert_eq!(answered, status, "{verb} {body:?}: {why}");
        assert!(why.len() > 10 && why.lines().count() == 1, "{why}");
    }
    let much = tokens("long", &"http://m1\n".repeat(7_000))?;
    assert_eq!(stage.tell(0, "GROUP-ADD", "", &format!("@{}", much.display()))?.0, 413);
    fs::remove_file(much)?;
    assert_eq!(stage.members("")?, [] as [Value; 0]);

    // Any request target is accepted. A member that fails its probes can join but gets no clients.
    let body = format!("http://{}:81", stage.farm.server(0).address());
    let message =
        |target: &str| format!("GROUP-ADD {target} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert!(stage.say(message("*").as_bytes())?.starts_with("HTTP/1.0 201"), "an asterisk");
    assert!(stage.say(message("/any/thing").as_bytes())?.starts_with("HTTP/1.0 200"), "a path");
    wait::until("it is known that it doesn't answer", || Ok(stage.answer(&[], "/")?.0 == "503"))?;
    assert_eq!(stage.states()?, ["down"]);
    Ok(())
}

#[test]
fn members_are_json_on_the_admin_address() -> Result<()> {
    let stage = empty(INSECURE)?;
    let ask = |arguments: &[&str]| -> Result<(u16, Value)> {
        let at = "http://127.0.0.1:9180/v1/groups/shop/members";
        let words =
            [&["curl", "--silent", "--max-time", "10", "--write-out", "\n%{http_code}"], arguments, &[at]];
        let output = stage.farm.director().run(&words.concat())?;
        let (text, status) = output.trim_end().rsplit_once('\n').context("curl said nothing")?;
        Ok((status.parse()?, serde_json::from_str(text).unwrap_or_default()))
    };
    let json = ["--header", "Content-Type: application/json", "--data-binary"];
    let body = format!("[{{\"url\": \"{}\", \"weight\": 2, \"paths\": [\"/img/a\"]}}]", url(&stage, 0));
    assert_eq!(ask(&[&json[..], &[&body]].concat())?.0, 201);
    assert_eq!(ask(&[&json[..], &["{\"url\": \"ftp://m1\"}"]].concat())?.0, 422);
    assert_eq!(ask(&[&json[..], &["{\"uri\": \"http://m1\"}"]].concat())?.0, 400);
    assert_eq!(ask(&["--data-binary", &body])?.0, 415, "a page could send this");
    let (status, listing) = ask(&[])?;
    assert_eq!(
        (status, &listing["group"], &listing["members"][0]["weight"]),
        (200, &"shop".into(), &2.into())
    );
    let one = format!("{{\"url\": \"{}\"}}", url(&stage, 0));
    let delete = [&["--request", "DELETE"], &json[..], &[&one]].concat();
    assert_eq!((ask(&delete)?.0, ask(&delete)?.0), (200, 404));
    Ok(())
}
