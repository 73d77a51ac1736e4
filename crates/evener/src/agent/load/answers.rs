//! Answers those who ask for the load: `/v1/load` and ORCA's `/orca` in JSON, `/metrics`, and HAProxy's agent-check.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evener_core::net::http::{Frame, Reading, Refusal, read_within, refuse};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::AGAIN;
use super::measure::Load;
use crate::runtime::accept::accept;
use crate::runtime::seats::{Seat, Seats};

/// Connections at a time: of the file's directors, and of all others. Whoever comes when all are taken gets that of the source that holds most.
const AT_ONCE: usize = 64;
/// How long one may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// What is read of a question, in bytes.
const QUESTION_MAX: usize = 8 * 1024;

/// Listens, and answers whoever comes, for as long as it lives. What can't be listened on is tried again. The directors have places that
/// nobody else takes.
pub(super) async fn serve<F>(
    address: SocketAddr,
    directors: Arc<BTreeSet<IpAddr>>,
    load: watch::Receiver<Load>,
    answer: fn(TcpStream, Load) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::warn!(%address, %error, "nobody can ask for this server's load here; it is tried again");
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    let (of_directors, of_others) = (Seats::new(AT_ONCE), Seats::new(AT_ONCE));
    let next = || async {
        let (stream, client) = listener.accept().await?;
        let is_director = directors.contains(&client.ip().to_canonical());
        let seats = if is_director { &of_directors } else { &of_others };
        Ok((stream, seats.take(client.ip()).await))
    };
    let serve = |(stream, mut seat): (TcpStream, Seat)| {
        let answering = tokio::time::timeout(TIMEOUT, answer(stream, load.borrow().clone()));
        // Whoever asks badly or slowly has no answer.
        async move { drop(seat.unless_needed(answering).await) }
    };
    accept(next, serve).await;
}

/// HAProxy asks by connecting.
pub(super) async fn agent_check(mut stream: TcpStream, load: Load) -> io::Result<()> {
    let line = load.percent().map_or_else(|| "up\n".to_owned(), |percent| format!("up {percent}%\n"));
    stream.write_all(line.as_bytes()).await?;
    stream.shutdown().await
}

/// Others ask by HTTP.
pub(super) async fn http(mut stream: TcpStream, load: Load) -> io::Result<()> {
    let mut question = Vec::new();
    let mut buffer = [0; 2048];
    let answer = loop {
        let len = stream.read(&mut buffer).await?;
        question.extend_from_slice(buffer.get(..len).unwrap_or_default());
        if let Some(answer) = answer(&question, &load) {
            break answer;
        }
        if len == 0 {
            break refusal(Refusal::Malformed);
        }
    };
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// The answer to a question; nothing until it has come whole.
fn answer(question: &[u8], load: &Load) -> Option<String> {
    match read_within(question, QUESTION_MAX) {
        Reading::Request(request) => Some(response(request.method, request.target, load)),
        Reading::Refused(why) => Some(refusal(why)),
        Reading::Incomplete => None,
    }
}

fn refusal(why: Refusal) -> String {
    let mut out = Vec::new();
    let date = httpdate::fmt_http_date(SystemTime::now());
    refuse(&mut out, &Frame { date: &date, is_head: false, closes: true, says_kept: false }, why);
    String::from_utf8_lossy(&out).into_owned()
}

fn response(method: &str, target: &str, load: &Load) -> String {
    let path = target.split('?').next().unwrap_or_default();
    let json = "application/json";
    let (kind, more, body) = match path {
        "/v1/load" => {
            (json, format!("endpoint-load-metrics: {}\r\n", orca_text(load)), json!(load).to_string() + "\n")
        }
        "/orca" => (json, String::new(), orca(load).to_string() + "\n"),
        "/metrics" => ("text/plain; version=0.0.4; charset=utf-8", String::new(), metrics(load)),
        _ => {
            let body = "There is /v1/load, /orca and /metrics.\n";
            return head("404 Not Found", "text/plain", "", body.len()) + body;
        }
    };
    match method {
        "GET" => head("200 OK", kind, &more, body.len()) + &body,
        "HEAD" => head("200 OK", kind, &more, body.len()),
        _ => head("405 Method Not Allowed", "text/plain", "Allow: GET, HEAD\r\n", 0),
    }
}

fn head(status: &str, kind: &str, more: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n{more}Connection: close\r\n\r\n"
    )
}

/// ORCA's names, and what is known of each.
fn orca_fields(load: &Load) -> impl Iterator<Item = (&'static str, f64)> {
    let fields = [
        ("cpu_utilization", load.cpu),
        ("mem_utilization", load.memory),
        ("rps_fractional", load.requests_per_second),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

fn orca(load: &Load) -> serde_json::Value {
    orca_fields(load)
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn orca_text(load: &Load) -> String {
    let fields: Vec<String> = orca_fields(load).map(|(name, value)| format!("{name}={value:.4}")).collect();
    format!("TEXT {}", fields.join(","))
}

fn metrics(load: &Load) -> String {
    let whole = |number: Option<u64>| number.map(|number| number as f64);
    let gauges = [
        ("run_queue", "Processes that run or wait to.", load.run_queue),
        ("cpu_ratio", "Of all processors' time, what is spent.", load.cpu),
        ("memory_ratio", "Of all memory, what is used.", load.memory),
        ("connections", "Open connections of services.", whole(load.connections)),
        ("requests_per_second", "Requests that are answered.", load.requests_per_second),
        ("load", "The server groups' load, 10 (r + m).", load.load),
        (
            "bytes_to_send",
            "Of replies, what clients haven't acknowledged, at least.",
            whole(load.bytes_to_send),
        ),
        ("delay_seconds", "How long that will take.", load.delay_seconds),
        ("available_bps", "Bits a second that one client is sent, in the middle.", whole(load.available_bps)),
        ("bottleneck_bps", "Bits a second that the fastest client is sent.", whole(load.bottleneck_bps)),
    ];
    let known = gauges.into_iter().filter_map(|(name, help, value)| Some((name, help, value?)));
    known
        .map(|(name, help, value)| {
            format!("# HELP evener_agent_{name} {help}\n# TYPE evener_agent_{name} gauge\nevener_agent_{name} {value}\n")
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpSocket;

    use super::*;
    use crate::request_heads::{Expected, vectors};

    #[test]
    fn questions_are_judged_as_at_every_door() {
        for vector in vectors() {
            let answer = answer(&vector.bytes, &load()).unwrap();
            let status: u16 = answer[9..12].parse().unwrap();
            match vector.expected {
                Expected::Accepted { .. } => {
                    assert!(matches!(status, 404 | 405), "{}: {answer}", vector.text)
                }
                Expected::Refused { status: expected, .. } => assert_eq!(status, expected, "{}", vector.text),
            }
        }
    }

    /// A connection from an address of this host.
    async fn connect(from: [u8; 4], to: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        socket.connect(to).await
    }

    /// Whether a director is answered that asks only after many others have come, each from an address of its own.
    async fn is_answered(director: [u8; 4], to: SocketAddr) -> io::Result<bool> {
        let mut stream = connect(director, to).await?;
        let mut silent = Vec::new();
        for number in 1..=100 {
            silent.push(connect([127, 0, 1, number], to).await?);
            silent.push(connect([127, 0, 2, number], to).await?);
        }
        // One that is answered came last: all others have their places, or had them.
        let mut last = connect([127, 0, 0, 8], to).await?;
        Ok(answers(&mut last).await? && answers(&mut stream).await?)
    }

    async fn answers(stream: &mut TcpStream) -> io::Result<bool> {
        stream.write_all(b"GET /v1/load HTTP/1.1\r\nHost: a\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer.starts_with("HTTP/1.1 200 "))
    }

    #[tokio::test]
    async fn a_director_of_the_file_has_a_place_whoever_else_comes() {
        // A port that was free a moment ago.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (told, load) = watch::channel(Load::default());
        let director = [127, 0, 0, 9];
        let directors = Arc::new(BTreeSet::from([IpAddr::from(Ipv4Addr::from(director))]));
        let server = tokio::spawn(serve(free, directors, load, http));
        // An attempt fails where the machine is so busy that a connection's time is over.
        let mut is_done = false;
        for _ in 0..50 {
            is_done = is_done || is_answered(director, free).await.unwrap_or(false);
        }
        assert!(is_done);
        server.abort();
        drop(told);
    }

    fn load() -> Load {
        Load {
            cpu: Some(0.25),
            run_queue: Some(1.5),
            bytes_to_send: Some(10),
            available_bps: Some(4_000_000),
            ..Load::default()
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let answer = response("GET", "/v1/load?x", &load());
        assert!(answer.contains("endpoint-load-metrics: TEXT cpu_utilization=0.2500\r\n"), "{answer}");
        assert!(answer.contains("\"memory\":null"), "{answer}");
        assert!(response("GET", "/orca", &load()).ends_with("\r\n\r\n{\"cpu_utilization\":0.25}\n"));
        let metrics = metrics(&load());
        assert!(
            metrics.contains("evener_agent_bytes_to_send 10\n") && !metrics.contains("memory"),
            "{metrics}"
        );
    }

    #[test]
    fn what_a_director_reads_is_what_is_said() {
        let said = json!(load()).to_string();
        let report = crate::io::report::load(said.as_bytes()).unwrap();
        assert_eq!((report.utilisation_permille, report.bytes_to_send), (Some(250), Some(10)));
        assert_eq!((report.available_bps, report.bottleneck_bps), (Some(4_000_000), None));
    }

    #[test]
    fn other_questions_have_other_answers() {
        assert!(response("GET", "/", &load()).starts_with("HTTP/1.1 404 "));
        assert!(response("POST", "/orca", &load()).starts_with("HTTP/1.1 405 "));
        assert!(response("HEAD", "/orca", &load()).ends_with("\r\n\r\n"));
    }
}
