//! Clients that reorder segments, have very small windows or leave at any moment, with hand-made
//! segments.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use evener_lab::clients::handmade_tcp::{Call, End, HandmadeTcp, WINDOW};
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::servers::nginx::PATTERN;

use crate::farm;
use crate::talk::{Reply, Talk, get};

on_both_engines! {
    a_body_overtakes_its_head,
    ends_and_acknowledgments_overtake_the_request,
    windows_of_a_few_bytes,
    clients_leave_at_any_moment,
    keys_change_within_a_handshake,
    what_follows_the_first_answer_at_once,
    a_late_syn_has_nothing_chosen_anew,
}

/// Paths that the data plane routes, and paths that are punted.
const DECIDED: &str = "/who";
const PUNTED: &str = "/./who";

/// Returns a route for all requests to `web1`.
fn routes() -> [String; 1] {
    [route("path = \"/*\"", &["web1"])]
}

/// Parses the next response. `None` if the response is incomplete.
fn whole(received: &[u8]) -> Option<Reply> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head_len)) = response.parse(received) else { return None };
    let status = response.code?;
    let of = |name: &str| {
        let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| String::from_utf8_lossy(header.value).into_owned())
    };
    let len: usize = of("Content-Length").map_or(Some(0), |len| len.parse().ok())?;
    let body = received.get(head_len..head_len + len)?.to_vec();
    Some(Reply { status, server: of("X-Server").unwrap_or_default(), body })
}

fn reply(call: &mut Call) -> Result<Reply> {
    call.listen(|call| whole(call.received()).is_some())?;
    whole(call.received()).context("no reply")
}

/// The upload's first bytes are in the head's segment or follow it. In both cases, the second
/// segment arrives before the first, and both are repeated.
fn a_body_overtakes_its_head(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &routes())?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let mut port = 0;
    for family in Family::BOTH {
        for path in ["/upload/", "/upload/./"] {
            for cut_behind_head in [0, 300] {
                port += 1;
                let what = format!("{family}: {path}, cut {cut_behind_head} bytes behind the head");
                let body = PATTERN.repeat(20);
                let head = format!(
                    "PUT {path}disorder{port} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                let bytes = [head.as_bytes(), &body].concat();
                let (first, second) = bytes.split_at(head.len() + cut_behind_head);
                let mut call = hand.call(port, handoff.service(family))?;
                call.acknowledge(0)?;
                call.send_data(first.len(), second)?;
                call.send_data(0, first)?;
                let reply = reply(&mut call).context(what.clone())?;
                assert_eq!((reply.status, reply.server.as_str()), (201, "web1"), "{what}");
                let stored = std::fs::read(handoff.farm.page(&format!("upload/disorder{port}")))?;
                assert!(stored == body, "{what}: other bytes were stored");
                // The connection continues.
                call.reset(bytes.len())?;
            }
        }
    }
    Ok(())
}

/// A segment without data that belongs after the request arrives first.
fn ends_and_acknowledgments_overtake_the_request(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &routes())?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let mut port = 0;
    for family in Family::BOTH {
        for path in [DECIDED, PUNTED] {
            for end in [true, false] {
                port += 1;
                let request = get("x", path);
                let mut call = hand.call(port, handoff.service(family))?;
                if end {
                    call.finish(request.len())?
                } else {
                    call.acknowledge(request.len())?
                }
                call.send_data(0, &request)?;
                let reply = reply(&mut call);
                let reply = reply.with_context(|| format!("{family}: {path}, FIN: {end}"))?;
                assert_eq!((reply.status, reply.server.as_str()), (200, "web1"), "{family}: {path}");
                if end {
                    call.listen(|call| call.end() == Some(End::Fin))?;
                }
            }
        }
    }
    Ok(())
}

/// The window is so small that the service must probe it (RFC 9293, section 3.8.6.1). Later, the
/// window grows a little.
fn windows_of_a_few_bytes(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &routes())?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let mut port = 0;
    for family in Family::BOTH {
        for path in ["/2k", "/./2k"] {
            port += 1;
            let mut call = hand.call_with(port, handoff.service(family), 5)?;
            call.acknowledge(0)?;
            call.send_data(0, get("x", path))?;
            for (received, window) in [(10, 0), (10, 70), (1000, 700), (1500, WINDOW)] {
                call.listen(|call| call.received().len() >= received)
                    .with_context(|| format!("{family}: {path}, {received} bytes"))?;
                call.window = window;
                call.acknowledge(get("x", path).len())?;
            }
            let reply = reply(&mut call).with_context(|| format!("{family}: {path}"))?;
            assert_eq!((reply.status, reply.server.as_str()), (200, "web1"));
            let right: Vec<u8> = PATTERN.iter().copied().cycle().take(2000).collect();
            assert!(reply.body == right, "{family}: {path}: other bytes came");
            call.reset(get("x", path).len())?;
        }
    }
    Ok(())
}

/// A moment at which a client leaves.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Greeted,
    /// After the acknowledgment of the SYN-ACK.
    Open,
    /// After a part of the request was read.
    Requesting,
    Requested,
    /// After a part of the response.
    Answered,
}

impl Moment {
    const ALL: [Moment; 5] =
        [Moment::Greeted, Moment::Open, Moment::Requesting, Moment::Requested, Moment::Answered];
}

/// Performs a client's steps up to a moment. Returns the number of bytes sent.
fn until(call: &mut Call, moment: Moment, request: &str) -> Result<usize> {
    const SOME: usize = 12;
    if !matches!(moment, Moment::Greeted) {
        call.acknowledge(0)?;
    }
    let sent = match moment {
        Moment::Greeted | Moment::Open => "",
        Moment::Requesting => &request[..SOME],
        Moment::Requested | Moment::Answered => request,
    };
    if !sent.is_empty() {
        call.send_data(0, sent)?;
    }
    match moment {
        Moment::Requesting => call.listen(|call| call.acked() == SOME)?,
        Moment::Answered => call.listen(|call| call.received().len() > 500)?,
        _ => {}
    }
    Ok(sent.len())
}

/// A client's complete life. Only a client that has sent its request and closes by FIN gets a
/// response.
fn come_and_leave(call: &mut Call, moment: Moment, end: End, request: &str) -> Result<()> {
    let sent = until(call, moment, request)?;
    if end == End::Reset {
        return call.reset(sent);
    }
    call.window = WINDOW;
    call.finish(sent)?;
    call.listen(|call| call.end().is_some())?;
    let len = whole(call.received()).map(|reply| reply.body.len());
    let right = matches!(moment, Moment::Requested | Moment::Answered).then_some(2_000);
    ensure!(len == right, "{len:?} bytes of the reply came, not {right:?}");
    Ok(())
}

/// Clients leave by FIN or RST at each moment. No socket and no session remains.
fn clients_leave_at_any_moment(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let keys = "timeouts = { half_closed = \"1s\", closing = \"1s\" }\n".to_owned();
    let handoff = Handoff::start(farm, Offer { keys, ..Offer::new(engine, 2, &routes()) })?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let mut calls = Vec::new();
    for family in Family::BOTH {
        for moment in Moment::ALL {
            // nginx may drop a response of a half-closed client, except for a short response.
            for (path, end) in
                [("/2k", End::Fin), ("/./2k", End::Fin), ("/108k", End::Reset), ("/./108k", End::Reset)]
            {
                let what = || format!("{family}: {path}, {end:?} when {moment:?}");
                let port = u16::try_from(calls.len())?;
                let mut call = hand.call_with(port, handoff.service(family), 1_000).with_context(what)?;
                come_and_leave(&mut call, moment, end, &get("x", path)).with_context(what)?;
                calls.push(call);
            }
        }
    }
    for family in Family::BOTH {
        for path in [DECIDED, PUNTED] {
            let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
            assert_eq!(talk.request(&get("x", path))?.server, "web1", "others are served");
        }
    }
    nothing_stays_of(&handoff, &mut calls)
}

fn nothing_stays_of(handoff: &Handoff, calls: &mut [Call]) -> Result<()> {
    let clients: Vec<SocketAddr> = calls.iter().map(Call::client).collect();
    let is_one = |client: &str| client.parse().is_ok_and(|client| clients.contains(&client));
    let left = || -> Result<Vec<String>> {
        calls.iter_mut().try_for_each(Call::refuse)?;
        let sessions = handoff.evener.sessions()?.into_iter().filter(|session| is_one(&session.client));
        let mut left: Vec<String> = sessions.map(|session| format!("{session:?}")).collect();
        for host in handoff.farm.servers().iter().chain([handoff.farm.director()]) {
            let sockets = host.run(&["ss", "-tnHO", "state", "connected", "sport", "=", ":80"])?;
            let open = sockets.lines().filter(|line| !line.starts_with("TIME-WAIT"));
            let theirs =
                open.filter(|line| line.split_whitespace().any(|word| is_one(&word.replace("::ffff:", ""))));
            left.extend(theirs.map(|line| format!("{}: {line}", host.name())));
        }
        Ok(left)
    };
    let left = wait::for_value(wait::LONG, left, Vec::is_empty)?;
    ensure!(left.is_ok(), "something stays: {left:#?}");
    Ok(())
}

/// The cookie key changes between SYN-ACK and request.
fn keys_change_within_a_handshake(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let offer = Offer { farm: "cookie_epoch = \"8s\"".to_owned(), ..Offer::new(engine, 2, &routes()) };
    let handoff = Handoff::start(farm, offer)?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let now = || -> Result<Duration> { Ok(SystemTime::now().duration_since(UNIX_EPOCH)?) };
    let epoch = || -> Result<u64> { Ok(now()?.as_secs() / 8) };
    // Shortly before the change.
    let period = Duration::from_secs(8);
    let next = period * u32::try_from(epoch()? + 1)?;
    std::thread::sleep(next.saturating_sub(now()? + Duration::from_secs(8)));
    let before = epoch()?;
    let mut calls = Vec::new();
    for family in Family::BOTH {
        for path in [DECIDED, PUNTED] {
            calls.push((path, hand.call(calls.len() as u16, handoff.service(family))?));
        }
    }
    ensure!(epoch()? == before, "the handshakes took too long");
    while epoch()? == before {
        std::thread::sleep(Duration::from_millis(10));
    }
    for (path, call) in &mut calls {
        call.acknowledge(0)?;
        call.send_data(0, get("x", path))?;
        let reply = reply(call).with_context(|| format!("{}: {path}", call.client()))?;
        assert_eq!(reply.server, "web1", "{}: {path}", call.client());
    }
    // With the new key.
    for family in Family::BOTH {
        let mut call = hand.call(calls.len() as u16, handoff.service(family))?;
        call.send_data(0, get("x", DECIDED))?;
        assert_eq!(reply(&mut call)?.server, "web1", "{family}");
    }
    Ok(())
}

/// A server responds as soon as it has a connection from user space, and the director records it a
/// moment later. Bytes that the client sends meanwhile are not lost: the client sends them only
/// once.
fn what_follows_the_first_answer_at_once(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &routes())?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let (first, second) = (get("x", PUNTED), get("x", DECIDED));
    for family in Family::BOTH {
        for number in 0..40 {
            let mut call = hand.call(number, handoff.service(family))?;
            call.acknowledge(0)?;
            call.send_data(0, &first)?;
            assert_eq!(reply(&mut call)?.server, "web1", "{family}");
            let received = call.received().len();
            call.repeats = false;
            call.send_data(first.len(), &second)?;
            call.listen(|call| call.received().len() > received)
                .with_context(|| format!("{family}: the next request of client {number} is lost"))?;
            call.reset(first.len() + second.len())?;
        }
    }
    // The last packets of clients can be in flight between the two queries.
    wait::until("the server has each forwarded packet", || {
        Ok(handoff.counted("forwarded")? == handoff.evener.server("web1")?.packets)
    })
}

/// A repeated SYN arrives after the first segment was served. Then the first segment is repeated,
/// as if its acknowledgment were lost.
fn a_late_syn_has_nothing_chosen_anew(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &[])?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let (first, second) = (get("x", DECIDED), get("x", DECIDED));
    let connections = |name: &str| Ok::<_, anyhow::Error>(handoff.evener.server(name)?.connections);
    for (number, family) in Family::BOTH.into_iter().cycle().take(8).enumerate() {
        let mut call = hand.call(u16::try_from(number)?, handoff.service(family))?;
        call.acknowledge(0)?;
        call.send_data(0, &first)?;
        let server = reply(&mut call)?.server;
        let chosen = [connections("web1")?, connections("web2")?];
        let greeted = handoff.counted("cookie_sent")?;
        call.answer_syn_late()?;
        wait::until("the SYN is answered", || Ok(handoff.counted("cookie_sent")? > greeted))?;
        call.repeat(0, &first)?;
        let received = call.received().len();
        call.send_data(first.len(), &second)?;
        call.listen(|call| whole(&call.received()[received..]).is_some())?;
        let next = whole(&call.received()[received..]).context("no reply")?;
        assert_eq!(next.server, server, "{family}: the connection goes on where it was");
        assert_eq!([connections("web1")?, connections("web2")?], chosen, "{family}: nothing was chosen anew");
        call.reset(first.len() + second.len())?;
    }
    Ok(())
}
