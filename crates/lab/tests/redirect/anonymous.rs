//! Members whose addresses clients never learn.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::servers::nginx::BIG_LEN;
use socket2::{Domain, Socket, Type};

use crate::stage::{PORT, Stage, member};

#[test]
fn content_of_anonymous_members_is_fetched() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).build()?;
    let members = member(&farm, 0, "anonymous = true");
    let mut stage = Stage::start_with(farm, &[], "", &members)?;
    let client = stage.farm.client(0);
    let address = stage.farm.server(0).address().to_string();
    assert_eq!(client.curl(&[&stage.url("/who")])?.trim(), "web1");
    let head = client.curl(&["--head", &stage.url("/2k")])?;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("2000"), "{head}");
    let words =
        ["--output", "/dev/null", "--write-out", "%{size_download} %{num_redirects}", &stage.url("/big")];
    assert_eq!(client.curl(&words)?, format!("{BIG_LEN} 0"));
    // nginx redirects to the folder with its own host name.
    let text = stage.say(b"GET /upload HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")?;
    assert!(!text.contains(&address), "{text}");
    stage.farm.stop_web(0)?;
    let text = stage.say(b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")?;
    assert!(text.starts_with("HTTP/1.1 50") && !text.contains(&address), "{text}");
    assert!(stage.counted("fetched")? >= 4);
    Ok(())
}

#[test]
fn uploads_go_through_and_connections_are_kept() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).build()?;
    let members = member(&farm, 0, "anonymous = true");
    let stage = Stage::start_with(farm, &[], "", &members)?;
    let client = stage.farm.client(0);
    let body = "x".repeat(300_000);
    let path = client.write("upload", &body)?;
    let at = stage.url("/upload/file");
    client.curl(&["--upload-file", &path.to_string_lossy(), &at])?;
    let words =
        ["--write-out", "%{num_connects}", "--output", "/dev/null", &at, "--output", "/dev/null", &at];
    assert_eq!(client.curl(&words)?, "10", "one connection for both");
    assert_eq!(client.curl(&[&at])?, body);
    Ok(())
}

#[test]
fn request_is_given_to_one_member_by_each_policy() -> Result<()> {
    const REQUESTS: u64 = 40;
    for (policy, fetched) in
        [("round-robin", 20..=20), ("least-load", 10..=30), ("power-of-two", 10..=30), ("hash", 0..=40)]
    {
        let farm = Farm::builder().bare().servers(2).build()?;
        let members = member(&farm, 0, "") + &member(&farm, 1, "anonymous = true");
        let stage = Stage::start_with(farm, &[], &format!("policy = \"{policy}\""), &members)?;
        for _ in 0..REQUESTS {
            stage.answer(&[], "/who")?;
        }
        let (by_director, sent_on) = (stage.counted("fetched")?, stage.counted("redirected")?);
        ensure!(by_director + sent_on == REQUESTS, "{policy}: {by_director} and {sent_on}");
        ensure!(fetched.contains(&by_director), "{policy}: {by_director} fetched");
        let servers: serde_json::Value = stage.evener.json(&["servers"])?;
        let dispatched = [0, 1].map(|at| servers[at]["connections"].as_u64().unwrap_or_default());
        ensure!(dispatched == [sent_on, by_director], "{policy}: {servers}");
    }
    Ok(())
}

/// Returns the status of a path. curl would normalise the path.
fn status_of(stage: &Stage, target: &str) -> Result<String> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n");
    let text = stage.say(request.as_bytes())?;
    Ok(text.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[test]
fn a_path_leads_nowhere_above_the_members_url() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).build()?;
    for file in ["shop/a", "shop/healthz", "private"] {
        let page = farm.page(file);
        std::fs::create_dir_all(page.parent().context("a folder")?)?;
        std::fs::write(page, "x")?;
    }
    let address = farm.server(0).address();
    let members =
        format!("\n[[service.server]]\nname = \"m1\"\nurl = \"http://{address}/shop\"\nanonymous = true\n");
    let stage = Stage::start_with(farm, &[], "", &members)?;
    for inside in ["/a", "/b/../a", "/./%2e/a", "//a"] {
        assert_eq!(status_of(&stage, inside)?, "200", "{inside}");
    }
    for outside in [
        "/../private",
        "/%2e%2e/private",
        "/a/../../private",
        "/..%2fprivate",
        "//../private",
        "/..\\private",
        "/..%5cprivate",
        "/..;/private",
        "/..;a=b/private",
        "/%2e%2e;/private",
        "/..%09/private",
        "/%252e%252e/private",
        "/%c0%ae%c0%ae/private",
    ] {
        assert_eq!(status_of(&stage, outside)?, "400", "{outside}");
    }
    Ok(())
}

/// Starts a server on port 9000 that responds to probes as healthy and otherwise with `answer` of
/// the path.
fn answer_raw(stage_farm: &Farm, answer: fn(&str) -> String) -> Result<()> {
    let server = stage_farm.server(0);
    let listener = server.enter(|| TcpListener::bind((server.address(), 9000)))??;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut request = String::new();
            let mut reader = BufReader::new(&stream);
            while !request.ends_with("\r\n\r\n") && reader.read_line(&mut request).is_ok_and(|len| len > 0) {}
            let target = request.split(' ').nth(1).unwrap_or_default();
            let text = match target.ends_with("/healthz") {
                true => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
                false => answer(target),
            };
            let _ = (&stream).write_all(text.as_bytes());
        }
    });
    Ok(())
}

#[test]
fn odd_answers_of_a_member_name_it_nowhere() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).build()?;
    answer_raw(&farm, |target| {
        let (start, rest) = ("HTTP/1.1 302 Found\r\nConnection: close\r\n", "Content-Length: 0\r\n\r\n");
        match target.rsplit('/').next() {
            Some("chunk") => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_owned(),
            Some(at) if at.starts_with("at=") => {
                let at = at.trim_start_matches("at=").replace('|', "/");
                format!("{start}Location: {at}\r\n{rest}")
            }
            _ => format!("{start}{rest}"),
        }
    })?;
    let address = farm.server(0).address();
    let members = format!(
        "\n[[service.server]]\nname = \"m1\"\nurl = \"http://{address}:9000/shop\"\nanonymous = true\n"
    );
    let stage = Stage::start_with(farm, &[], "", &members)?;
    wait::until("it is chosen", || Ok(status_of(&stage, "/x")? == "302"))?;
    assert_eq!(status_of(&stage, "/chunk")?, "502");
    for at in ["HTTP:||{}:9000|shop|a", "||{}:9000|shop|a", "http:||{}:9000|a", "|shop|a"] {
        let at = at.replace("{}", &address.to_string());
        let text = stage.say(
            format!("GET /at={at} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        assert!(text.to_ascii_lowercase().contains("\r\nlocation: /a\r\n"), "{at}: {text}");
    }
    Ok(())
}

#[test]
fn a_request_that_goes_round_is_ended_at_its_second_pass() -> Result<()> {
    let farm = Farm::builder().bare().directors(2).build()?;
    let at = |number: usize| format!("{}:{PORT}", farm.directors()[number].address());
    // Each director's group has the other director as its only member.
    let text = |own: usize, other: usize| {
        format!(
            "[[service]]\nname = \"shop\"\naddress = \"{}\"\nmethod = \"redirect\"\n\n[service.health]\nkind = \"none\"\n\n\
             [[service.server]]\nname = \"m1\"\nurl = \"http://{}\"\nanonymous = true\n",
            at(own),
            at(other)
        )
    };
    let _other = Evener::start(&farm.directors()[1], &text(1, 0))?;
    let evener = Evener::start(&farm.directors()[0], &text(0, 1))?;
    let stage = Stage { evener, farm };
    assert_eq!(status_of(&stage, "/x")?, "508");
    assert_eq!(stage.counted("fetched")?, 2, "twice at this director, and no more");
    Ok(())
}

/// Requests a large file. With a small receive buffer, the client's kernel acknowledges the bytes
/// soon after they are read.
fn get_big(stage: &Stage, buffer_len: Option<usize>) -> Result<TcpStream> {
    let mut stream: TcpStream = stage.farm.client(0).enter(|| -> std::io::Result<_> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        buffer_len.map_or(Ok(()), |len| socket.set_recv_buffer_size(len))?;
        socket.connect(&stage.address().into())?;
        Ok(socket.into())
    })??;
    stream.set_read_timeout(Some(wait::LONG))?;
    stream.write_all(b"GET /big HTTP/1.1\r\nHost: shop.example\r\n\r\n")?;
    Ok(stream)
}

#[test]
fn a_client_that_never_reads_is_closed_and_one_that_reads_slowly_stays() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).build()?;
    let members = member(&farm, 0, "anonymous = true");
    let stage = Stage::start_with(farm, &[], "", &members)?;
    let mut slow = get_big(&stage, Some(2_048))?;
    // Reads 1 KB per elapsed second, independent of the machine's speed.
    let (began, mut taken, mut buffer) = (Instant::now(), 0, [0; 1_000]);
    let mut read = || -> std::io::Result<u64> {
        while taken < began.elapsed().as_secs() {
            slow.read_exact(&mut buffer)?;
            taken += 1;
        }
        Ok(taken)
    };
    // A client that is mistaken for one that never reads would be closed before the others.
    wait::until("the slow one has read for some time", || Ok(read()? > 2))?;
    let silent: Vec<TcpStream> = (0..20).map(|_| get_big(&stage, None)).collect::<Result<_>>()?;
    let mut closed = 0;
    wait::until("clients that never read are closed", || {
        read()?;
        let errors =
            silent.iter().map(|stream| stream.take_error().map(|error| usize::from(error.is_some())));
        closed += errors.sum::<std::io::Result<usize>>()?;
        Ok(closed == silent.len())
    })?;
    // More bytes than the client's kernel has buffered.
    slow.read_exact(&mut [0; 100_000])?;
    Ok(())
}
