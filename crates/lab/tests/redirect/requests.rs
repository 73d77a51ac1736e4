//! Clients' requests, and the redirects to members.

use std::collections::BTreeMap;

use anyhow::Result;
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::servers::nginx::OTHER_PORT;

use crate::stage::{Stage, member, statuses};

#[test]
fn clients_are_sent_to_members_by_weight() -> Result<()> {
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    // Members on the same machine use different ports.
    let other = format!("\n[[service.server]]\nurl = \"http://{}:{OTHER_PORT}\"\n", farm.server(1).address());
    let members = member(&farm, 0, "weight = 2") + &member(&farm, 1, "") + &other;
    let stage = Stage::start_with(farm, &[], "policy = \"round-robin\"", &members)?;
    let mut shares: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..20 {
        *shares.entry(stage.follow("/who")?).or_default() += 1;
    }
    assert_eq!(shares, [("web1".to_owned(), 10), ("web2".to_owned(), 10)].into());
    let servers = stage.evener.servers()?;
    assert_eq!(servers.iter().map(|server| server.connections).collect::<Vec<_>>(), [10, 5, 5]);
    assert_eq!(stage.evener.status()?.engine, "none");
    Ok(())
}

#[test]
fn default_policy_uses_every_member() -> Result<()> {
    let stage = Stage::start(3, "")?;
    for _ in 0..30 {
        stage.follow("/who")?;
    }
    let shares: Vec<u64> = stage.evener.servers()?.iter().map(|server| server.connections).collect();
    assert!(shares.iter().all(|share| *share >= 5) && shares.iter().sum::<u64>() == 30, "{shares:?}");
    Ok(())
}

#[test]
fn every_request_form_gets_its_redirect() -> Result<()> {
    let stage = Stage::start(1, "status = 303")?;
    let to = |path: &str| format!("http://{}{path}", stage.farm.server(0).address());
    let cases: [(&[&str], &str, &str); 5] = [
        (&[], "/a?b=c&d", "303"),
        (&["--head"], "/a", "303"),
        (&["--http1.0"], "/a", "303"),
        (&["--data", "x=y"], "/a", "307"),
        (&["--request", "DELETE"], "/a", "307"),
    ];
    for (arguments, path, status) in cases {
        assert_eq!(stage.answer(arguments, path)?, (status.to_owned(), to(path)), "{arguments:?}");
    }
    let pipelined = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nHEAD http://a/2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.0\r\n\r\n";
    let text = stage.say(pipelined.as_bytes())?;
    assert_eq!(statuses(&text), ["303", "303", "303"]);
    for path in ["/1", "/2", "/3"] {
        assert!(text.contains(&format!("\r\nLocation: {}\r\n", to(path))), "{text}");
    }
    assert_eq!(text.matches("Cache-Control: no-store").count(), 3);
    assert_eq!(text.matches("<a href=").count(), 2, "no body after HEAD: {text}");
    Ok(())
}

#[test]
fn relative_links_keep_a_client_with_its_member() -> Result<()> {
    let stage = Stage::start(2, "")?;
    let client = stage.farm.client(0);
    let words = ["--location", "--output", "/dev/null", "--write-out", "%{url_effective}", &stage.url("/2k")];
    let page = client.curl(&words)?;
    let (member, _) = page.rsplit_once('/').unwrap();
    let first = client.curl(&[&format!("{member}/who")])?;
    for _ in 0..5 {
        assert_eq!(client.curl(&[&format!("{member}/who")])?, first);
    }
    assert_eq!(stage.counted("redirected")?, 1);
    Ok(())
}

#[test]
fn routed_requests_go_to_their_members() -> Result<()> {
    let routes = "[[service.route]]\npath = \"/upload/*\"\nservers = [\"web2\"]\n\
                  [[service.route]]\nhost = \"*.img.example\"\nservers = [\"web3\"]\n";
    let stage = Stage::start(3, routes)?;
    let to = |number: usize| format!("http://{}/", stage.farm.server(number).address());
    for _ in 0..5 {
        assert!(stage.answer(&[], "/upload/x")?.1.starts_with(&to(1)));
        assert!(stage.answer(&[], "/a/..//upload/x")?.1.starts_with(&to(1)));
        assert!(stage.answer(&["--header", "Host: a.IMG.example:80"], "/x")?.1.starts_with(&to(2)));
    }
    let words = ["explain", "--request", "GET http://a.img.example/x", "--service", "shop"];
    let explained = stage.evener.json::<evener_lab::evener::Explanation>(&words)?;
    assert_eq!(explained.server.as_deref(), Some("web3"), "{explained:?}");
    Ok(())
}

#[test]
fn group_without_live_members_answers_retry_after() -> Result<()> {
    let mut stage = Stage::start(2, "")?;
    stage.farm.stop_web(0)?;
    stage.farm.set_healthy(1, false)?;
    wait::until("both are down", || Ok(stage.answer(&[], "/")?.0 == "503"))?;
    let text = stage.say(b"GET / HTTP/1.0\r\n\r\n")?;
    assert!(text.contains("\r\nRetry-After: "), "{text}");
    stage.farm.start_web(0)?;
    wait::until("one serves again", || Ok(stage.follow("/who").is_ok_and(|who| who == "web1")))?;
    let text = stage.evener.command(&["servers"])?;
    assert!(text.contains("503") || text.contains("status"), "it is said why web2 is down: {text}");
    Ok(())
}
