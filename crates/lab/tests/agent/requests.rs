//! Reported bytes left of each request, compared with the bytes that clients still lack: on real
//! servers and on a scripted server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, ensure};
use evener_core::server::{Pending, Received, ResponseProgress, Sent};
use evener_lab::clients::partial_reader::Reader;
use evener_lab::evener::program;
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::harness::wait;
use evener_lab::network::host::Host;
use evener_lab::servers::nginx::{BIG_LEN, OTHER_PORT};
use evener_lab::servers::other_web_servers::{apache, apache_is_there, caddy, caddy_is_there, site};
use evener_sim::Random;
use serde_json::Value;

use crate::{Agent, service};

/// Limit of bytes in a client's receive buffer or in flight.
const NEAR: u64 = 64 * 1024;
const SCRIPTED_PORT: u16 = 8_088;

/// Returns the configuration of a host whose server listens on this port.
pub(crate) fn config(farm: &Farm, host: &Host, port: u16) -> String {
    let address = SocketAddr::new(farm.vip(0).into(), port).to_string();
    let service = service("web", &[address], "method = \"nat\"", &host.address().to_string());
    format!("[agent]\nreport = \"100ms\"\n{service}")
}

pub(crate) fn load(host: &Host) -> Result<Value> {
    Ok(serde_json::from_str(&host.curl(&["http://127.0.0.1:9183/v1/load"])?)?)
}

fn requests(host: &Host) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&host.run(&[&program()?.to_string_lossy(), "requests", "--json"])?)?)
}

fn bytes(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("{name} in {value}"))
}

/// True if the shown number is close to the expected number.
fn is_near(shown: u64, lacks: u64, hundredths: u64) -> bool {
    shown.abs_diff(lacks) <= NEAR.max(lacks * hundredths / 100)
}

/// Waits until the agent reports the bytes that these clients lack, in total and per request.
fn is_known(host: &Host, clients: &[Reader]) -> Result<()> {
    let lacks: Vec<u64> = clients.iter().map(Reader::lacks).collect::<Result<_>>()?;
    let sum: u64 = lacks.iter().sum();
    // During a restart of the agent, requests fail.
    let mut last = None;
    wait::until("the agent knows what clients lack", || {
        let known = load(host).and_then(|load| {
            ensure!(
                load["bytes_source"] == "exact" && is_near(bytes(&load, "bytes_to_send")?, sum, 5),
                "{sum} of all, and {load}"
            );
            are_shown(&requests(host)?, clients, &lacks)
        });
        last = known.as_ref().err().map(ToString::to_string);
        Ok(known.is_ok())
    })
    .with_context(|| last.unwrap_or_default())
}

/// Checks that each client's request is listed with the bytes that the client lacks.
fn are_shown(shown: &[Value], clients: &[Reader], lacks: &[u64]) -> Result<()> {
    for (client, lacks) in clients.iter().zip(lacks).filter(|(_, lacks)| **lacks > NEAR) {
        let address = client.address()?.to_string();
        let one = shown.iter().find(|one| one["client"] == *address);
        let one = one.with_context(|| format!("{address} in {shown:?}"))?;
        ensure!(
            one["source"] == "exact" && is_near(bytes(one, "bytes_left")?, *lacks, 10),
            "{lacks} and {one}"
        );
        let length = bytes(one, "bytes_left")? + bytes(one, "bytes_sent")?;
        ensure!(length > BIG_LEN as u64 && length < BIG_LEN as u64 + 1_000, "{one}");
        ensure!(one["url"] == "/big" && one["service"] == "web" && one["server"] == "web1", "{one}");
        ensure!(one["rate_bps"].as_f64() > Some(0.0) && one["seconds_left"].as_f64() > Some(0.0), "{one}");
    }
    Ok(())
}

/// Downloads that pause and continue, two in sequence on each connection.
fn downloads_are_followed(client: &Host, server: &Host) -> Result<()> {
    let at = SocketAddr::new(server.address().into(), WEB_PORT);
    let mut clients = (0..4).map(|_| Reader::connect(client, at)).collect::<Result<Vec<_>>>()?;
    for _ in 0..2 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.get("/big")?;
            client.read_to(200_000 * (number as u64 + 1))?;
        }
        is_known(server, &clients)?;
        clients.iter_mut().take(3).try_for_each(|client| client.read_to(BIG_LEN as u64 / 2))?;
        is_known(server, &clients)?;
        clients.iter_mut().try_for_each(Reader::read_all)?;
        wait::until("nothing is left to send", || {
            let load = load(server)?;
            Ok(load["bytes_to_send"] == 0 && load["delay_seconds"] == 0.0 && requests(server)?.is_empty())
        })?;
    }
    Ok(())
}

/// An open request stays known when the agent reloads its file.
fn requests_are_followed_over_a_reload(farm: &Farm, agent: &mut Agent) -> Result<()> {
    let server = farm.server(0);
    let mut clients = [Reader::connect(farm.client(0), SocketAddr::new(server.address().into(), WEB_PORT))?];
    clients[0].get("/big")?;
    clients[0].read_to(300_000)?;
    is_known(server, &clients)?;
    agent.write(&config(farm, server, WEB_PORT).replace("100ms", "200ms"))?;
    agent.process.sighup()?;
    agent.process.wait_for("reloaded", crate::LIMIT)?;
    is_known(server, &clients)
}

#[test]
fn bytes_to_send_match_client_view_for_every_server_program() -> Result<()> {
    let mut farm = Farm::builder().servers(3).build()?;
    let mut agents = farm
        .servers()
        .iter()
        .map(|host| Agent::start(host, &config(&farm, host, WEB_PORT), &[]))
        .collect::<Result<Vec<_>>>()?;
    downloads_are_followed(farm.client(0), farm.server(0))?;
    requests_are_followed_over_a_reload(&farm, &mut agents[0])?;
    if apache_is_there() {
        farm.stop_web(1)?;
        let _apache = apache(farm.server(1), &farm)?;
        downloads_are_followed(farm.client(0), farm.server(1))?;
    }
    if caddy_is_there() {
        farm.stop_web(2)?;
        let _caddy = caddy(farm.server(2), WEB_PORT, &site(&farm, ""))?;
        downloads_are_followed(farm.client(0), farm.server(2))?;
    }
    Ok(())
}

type Script = mpsc::Sender<Vec<Vec<u8>>>;

/// Starts a server that sends the given pieces of each script, one script per connection. An empty
/// piece ends the stream. The second channel receives an item per finished connection.
fn scripted(host: &Host, port: u16) -> Result<(Script, mpsc::Receiver<()>)> {
    let listener = host.enter(|| TcpListener::bind((host.address(), port)))??;
    let (script, scripts) = mpsc::channel::<Vec<Vec<u8>>>();
    let (done, connections_done) = mpsc::channel();
    thread::spawn(move || -> Result<()> {
        let mut kept: Vec<TcpStream> = Vec::new();
        while let Ok(pieces) = scripts.recv() {
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let mut reader = BufReader::new(stream.try_clone()?);
            let mut line = String::new();
            // Reads up to the empty line after the request head.
            while reader.read_line(&mut line)? > 2 {
                line.clear();
            }
            for piece in pieces {
                if piece.is_empty() {
                    stream.shutdown(std::net::Shutdown::Write)?;
                    continue;
                }
                // Sends as much as fits: some clients do not read.
                stream.set_nonblocking(piece.len() > 100_000)?;
                let _ = stream.write(&piece)?;
                stream.set_nonblocking(false)?;
            }
            kept.push(stream);
            // Most tests do not receive this item.
            let _ = done.send(());
        }
        Ok(())
    });
    Ok((script, connections_done))
}

/// Starts a scripted server with an agent on a farm's first server. The agent measures a first
/// speed with one request some time after its start. This function waits for the request, because
/// it would otherwise take a client's script.
fn scripted_with_agent(farm: &Farm) -> Result<(Script, Agent)> {
    let host = farm.server(0);
    let (script, connections_done) = scripted(host, SCRIPTED_PORT)?;
    script.send(vec![b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), vec![]])?;
    let agent = Agent::start(host, &config(farm, host, SCRIPTED_PORT), &[])?;
    connections_done.recv_timeout(crate::LIMIT).context("the agent's first request")?;
    Ok((script, agent))
}

/// Source of the number of bytes left of a response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    /// Exact number of bytes.
    Exact(u64),
    /// Lower bound, from the kernel's queue.
    AtLeast,
    /// No request is open.
    Nothing,
}

#[test]
fn answer_end_follows_headers_or_kernel_counts() -> Result<()> {
    let farm = Farm::builder().build()?;
    let (host, client) = (farm.server(0), farm.client(0));
    let at = SocketAddr::new(host.address().into(), SCRIPTED_PORT);
    let (script, _agent) = scripted_with_agent(&farm)?;
    let get = "GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = |fields: &str| format!("HTTP/1.1 {fields}\r\n\r\n").into_bytes();
    let (part, much, head_end) = (vec![b'x'; 1_000], vec![b'x'; 8_000_000], b"\n\r\n".to_vec());
    let cases: Vec<(&str, &str, Vec<Vec<u8>>, Left)> = vec![
        ("length", get, vec![head("200 OK\r\nContent-Length: 100000"), part.clone()], Left::Exact(99_000)),
        (
            "part",
            get,
            vec![head("206 Partial Content\r\nContent-Length: 5000"), part.clone()],
            Left::Exact(4_000),
        ),
        (
            "5 GB",
            get,
            vec![head("200 OK\r\nContent-Length: 5000001000"), part.clone()],
            Left::Exact(5_000_000_000),
        ),
        (
            "100 first",
            get,
            vec![head("100 Continue"), head("200 OK\r\nContent-Length: 3000"), part.clone()],
            Left::Exact(2_000),
        ),
        (
            "head in three writes",
            get,
            vec![b"HTTP/1.1 200 OK\r\nContent-Len".to_vec(), b"gth: 3000\r".to_vec(), head_end, part.clone()],
            Left::Exact(2_000),
        ),
        (
            "head in three segments",
            get,
            vec![head(&format!("200 OK\r\nX: {}\r\nContent-Length: 3000", "b".repeat(3_900))), part.clone()],
            Left::Exact(2_000),
        ),
        (
            "head that is longer than is read",
            get,
            vec![
                head(&format!("200 OK\r\nX: {}\r\nContent-Length: 9000000", "b".repeat(4_100))),
                much.clone(),
            ],
            Left::AtLeast,
        ),
        (
            "1.0",
            "GET / HTTP/1.0\r\n\r\n",
            vec![b"HTTP/1.0 200 OK\r\nContent-Length: 3000\r\n\r\n".to_vec(), part.clone()],
            Left::Exact(2_000),
        ),
        (
            "POST",
            "POST /a HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET ",
            vec![head("200 OK\r\nContent-Length: 3000"), part.clone()],
            Left::Exact(2_000),
        ),
        (
            "HEAD",
            "HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n",
            vec![head("200 OK\r\nContent-Length: 5000000")],
            Left::Nothing,
        ),
        ("304", get, vec![head("304 Not Modified\r\nContent-Length: 5000000")], Left::Nothing),
        ("whole", get, vec![head("200 OK\r\nContent-Length: 1000"), part.clone()], Left::Nothing),
        (
            "shorter than it says",
            get,
            vec![head("200 OK\r\nContent-Length: 9000"), part.clone(), vec![]],
            Left::Nothing,
        ),
        (
            "longer than it says",
            get,
            vec![head("200 OK\r\nContent-Length: 1000"), much.clone()],
            Left::AtLeast,
        ),
        ("no length", get, vec![head("200 OK\r\nConnection: close"), much.clone()], Left::AtLeast),
        (
            "two lengths",
            get,
            vec![head("200 OK\r\nContent-Length: 9000000\r\nContent-Length: 9000000"), much.clone()],
            Left::AtLeast,
        ),
        (
            "chunks",
            get,
            vec![head("200 OK\r\nTransfer-Encoding: chunked"), b"7a1200\r\n".to_vec(), much.clone()],
            Left::AtLeast,
        ),
        ("upgrade", get, vec![head("101 Switching Protocols\r\nUpgrade: x"), much.clone()], Left::AtLeast),
        ("no HTTP", get, vec![much.clone()], Left::AtLeast),
        (
            "two requests at once",
            "GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
            vec![head("200 OK\r\nContent-Length: 100000"), part.clone()],
            Left::AtLeast,
        ),
    ];
    for (name, request, pieces, expected) in cases {
        script.send(pieces)?;
        let mut reader = Reader::connect(client, at)?;
        reader.send_request(request)?;
        let own = reader.address()?.to_string();
        let mut last = Vec::new();
        wait::until(&format!("{name}: {expected:?}"), || {
            last = requests(host)?;
            let load = load(host)?;
            let one = last.iter().find(|one| one["client"] == *own);
            Ok(match (expected, one) {
                (Left::Nothing, None) => load["bytes_to_send"] == 0,
                (Left::Exact(left), Some(one)) => {
                    one["bytes_left"] == left && one["source"] == "exact" && load["bytes_to_send"] == left
                }
                (Left::AtLeast, Some(one)) => {
                    let bytes = bytes(one, "bytes_left")?;
                    bytes > 0 && one["source"] == "lower_bound" && load["bytes_source"] == "lower_bound"
                }
                _ => false,
            })
        })
        .with_context(|| format!("{name}: {last:?}"))?;
        // A reset discards the connection and its queued data.
        drop(reader);
        wait::until("the connection is gone", || Ok(requests(host)?.is_empty()))?;
    }
    Ok(())
}

const STATUSES: [&str; 10] = [
    "200 OK",
    "200 Fine",
    "206 Part",
    "404 Not Found",
    "500 No",
    "304 Not",
    "204 No",
    "101 Switch",
    "99 None",
    "2000 OK",
];

/// Returns a random response as pieces, often valid and often not.
fn some_answer(random: &mut Random) -> Vec<Vec<u8>> {
    let pick = |random: &mut Random, of: &[&str]| of[random.below(of.len())].to_owned();
    let mut answer = Vec::new();
    for _ in 0..random.below(3) {
        answer.extend(
            pick(random, &["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early\r\nLink: <a>\r\n\r\n"])
                .bytes(),
        );
    }
    let status = pick(random, &STATUSES);
    answer.extend(
        format!("{} {status}\r\n", pick(random, &["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "http/1.1"])).bytes(),
    );
    if random.below(6) > 0 {
        answer.extend(b"Content-Length: 90000\r\n");
    }
    for _ in 0..random.below(3) {
        let long = format!("X-Long: {}", "b".repeat(random.below(4_200)));
        let fields = [
            &*long,
            "content-length:\t700\t",
            "Content-Length: 5000000000",
            "Content-Length: x",
            "Date: today",
            "ETag: \"a\"",
            "Vary: Accept",
            "Cache-Control: no-store",
            "X-Content-Length: 3",
            "Server: some",
            "Transfer-Encoding: chunked",
            "Set-Cookie: a=b; Path=/; Expires=Thu, 26 Nov 2026 00:00:00 GMT",
            "A:\x01b",
            "Content-Length: 700\n",
            "\u{e9}: caf\u{e9}, caf\u{e9}",
        ];
        answer.extend(format!("{}\r\n", pick(random, &fields)).bytes());
    }
    answer.extend(pick(random, &["\r\n", "\r\n", "\r\n", ""]).bytes());
    answer.extend(vec![b'x'; random.below(1_000)]);
    let mut pieces = Vec::new();
    for _ in 0..random.below(4) {
        let behind = answer.split_off(answer.len().min(1 + random.below(answer.len() * 2)));
        pieces.push(std::mem::replace(&mut answer, behind));
    }
    pieces.push(answer);
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

#[test]
fn kernel_and_core_track_answers_alike() -> Result<()> {
    let farm = Farm::builder().build()?;
    let (host, client) = (farm.server(0), farm.client(0));
    let at = SocketAddr::new(host.address().into(), SCRIPTED_PORT);
    let (script, _agent) = scripted_with_agent(&farm)?;
    const CASES: u32 = 80;
    let (mut known, mut random) = (0, Random::new(20));
    for number in 0..CASES {
        let method = ["GET", "HEAD", "POST", "X-Y_Z"][random.below(4)];
        let request = format!("{method} /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
        let pieces = some_answer(&mut random);
        let mut head = Vec::new();
        let received = Received { sequence: 0, acknowledgment: 0, data: request.as_bytes() };
        let mut expected = Pending::request(None, &received).context("a request")?;
        let mut position = 0;
        for piece in &pieces {
            let sent = Sent { sequence: position as u32, position, data: piece, is_last: false };
            expected.send(&sent, &mut head);
            position += piece.len() as u64;
        }
        let left = expected.left(position).filter(|left| *left > 0);
        known += u32::from(left.is_some());
        script.send(pieces.clone())?;
        let mut stream = client.enter(|| TcpStream::connect(at))??;
        stream.write_all(request.as_bytes())?;
        stream.read_exact(&mut vec![0; position as usize])?;
        let own = stream.local_addr()?.to_string();
        wait::until(&format!("{number}, {expected:?}"), || {
            let shown = requests(host)?;
            let one = shown.iter().find(|one| one["client"] == *own && one["source"] == "exact");
            let waits = shown.iter().any(|one| one["client"] == *own && one["source"] != "exact");
            Ok(one.and_then(|one| one["bytes_left"].as_u64()) == left
                && waits == (expected.answer == ResponseProgress::Waiting))
        })?;
    }
    let some = CASES / 8..CASES * 7 / 8;
    ensure!(
        some.contains(&known),
        "{known} of {CASES} have a length: too few, or too many, to tell anything"
    );
    Ok(())
}

#[test]
fn connections_without_memory_to_follow_them_are_counted_and_known_by_the_kernel() -> Result<()> {
    let farm = Farm::builder().build()?;
    let (host, client) = (farm.server(0), farm.client(0));
    let _agent = Agent::start(host, &config(&farm, host, WEB_PORT), &[])?;
    // Limit of a socket's additional memory. Before Linux 6.7, the limit is global.
    if host.run(&["sysctl", "-qw", "net.core.optmem_max=64"]).is_err() {
        evener_lab::harness::engines::skipped(
            "this kernel has no net.core.optmem_max for each network namespace",
        );
        return Ok(());
    }
    let mut reader = Reader::connect(client, SocketAddr::new(host.address().into(), WEB_PORT))?;
    reader.get("/big")?;
    reader.read_to(100_000)?;
    wait::until("it is counted", || {
        let load = load(host)?;
        let metrics = host.curl(&["http://127.0.0.1:9183/metrics"])?;
        Ok(load["requests_unfollowed"].as_u64() > Some(0)
            && load["bytes_source"] == "lower_bound"
            && bytes(&load, "bytes_to_send")? > 0
            && metrics.contains("evener_agent_requests_unfollowed_total"))
    })
}

#[test]
fn requests_are_shown_to_root_and_without_an_agent_too() -> Result<()> {
    let farm = Farm::builder().build()?;
    let (host, client) = (farm.server(0), farm.client(0));
    let program = program()?.to_string_lossy().into_owned();
    let config = host.write("evener.toml", &config(&farm, host, OTHER_PORT))?;
    let config = config.to_string_lossy();
    let nobody = host.output(&[
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        &program,
        "requests",
        "--config",
        &config,
    ])?;
    assert_eq!(nobody.status.code(), Some(3), "{}", String::from_utf8_lossy(&nobody.stderr));
    let mut watch = host.spawn("watch", &[&program, "requests", "--watch", "--json", "--config", &config])?;
    watch.wait_for("[]", crate::LIMIT)?;
    let mut reader = Reader::connect(client, SocketAddr::new(host.address().into(), OTHER_PORT))?;
    reader.get("/big")?;
    reader.read_to(100_000)?;
    watch.wait_for("\"url\":\"/big\"", crate::LIMIT)?;
    watch.kill9()
}
