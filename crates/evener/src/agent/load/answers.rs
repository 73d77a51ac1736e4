//! Answers those who ask for the load: `/v1/load` and ORCA's `/orca` in JSON, `/metrics`, and
//! HAProxy's agent-check.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evener_core::net::http::{HeadParse, HttpRefusal, Response, read_within};
use evener_core::net::prefix::Prefix;
use serde_json::json;
use socket2::Type;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::RetryDelay;
use super::findings::{self, FindingsAccess};
use super::measure::Load;
use super::queries::QueryAccess;
use crate::agent::listening::bind;
use crate::config::AgentListen;
use crate::http::last_bytes;
use crate::runtime::accept::accept;
use crate::runtime::connection_limit::{ConnectionLimit, ConnectionSlot};

/// Connections at a time: of the file's directors, and of all others. A connection that comes when
/// all are taken gets that of the source that holds most.
const AT_ONCE: usize = 64;
/// How long one may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long an answer waits for what there is to send at this moment.
const FRESH_TIMEOUT: Duration = Duration::from_millis(100);
/// The most that is read of a question, in bytes.
pub(super) const QUESTION_MAX: usize = 8 * 1024;
/// Said to whom the file doesn't allow.
pub(super) const FORBIDDEN: &str =
    "Nothing is said to this address: see [farm] directors, and `allow` in [agent].";
/// Connections that wait to be taken.
const BACKLOG: i32 = 1_024;

/// Where it is answered, and whom.
pub(super) struct ListenSettings {
    pub(super) listen: AgentListen,
    /// They have places that nobody else takes.
    pub(super) directors: Arc<BTreeSet<IpAddr>>,
    /// The permitted clients; `None`: all that reach it.
    pub(super) permitted: Option<Permitted>,
    /// Directors of groups may ask as well, for one thing alone.
    pub(super) queries: Arc<QueryAccess>,
    /// Directors that ask for findings; `None` without the farm's secret.
    pub(super) findings: Option<Arc<FindingsAccess>>,
    /// Has what there is to send looked at again.
    pub(super) refresh: Refresh,
}

/// Has the load looked at again, and says when that is done.
pub(super) type Refresh = mpsc::Sender<oneshot::Sender<()>>;

/// The permitted clients, beside this host itself.
pub(super) struct Permitted {
    pub(super) directors: BTreeSet<IpAddr>,
    pub(super) networks: Vec<Prefix>,
}

impl Permitted {
    /// Whether a client may: by loopback, as a director, or from a network that the file allows.
    fn has(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        client.is_loopback()
            || self.directors.contains(&client)
            || self.networks.iter().any(|network| network.contains(client))
    }
}

/// The client.
pub(super) struct ReportClient {
    client: IpAddr,
    /// Whether it may ask for anything; if not, it is a director that may say that it wants a
    /// report.
    is_permitted: bool,
    queries: Arc<QueryAccess>,
    findings: Option<Arc<FindingsAccess>>,
}

impl ListenSettings {
    fn permits(&self, client: IpAddr) -> bool {
        self.permitted.as_ref().is_none_or(|permitted| permitted.has(client))
    }

    fn bind(&self) -> io::Result<TcpListener> {
        let socket = bind(self.listen, Type::STREAM)?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    }
}

async fn renew(refresh: &Refresh) {
    let (done, is_done) = oneshot::channel();
    // The measuring task has ended: a reload is under way.
    if refresh.send(done).await.is_ok() {
        let _ = is_done.await;
    }
}

/// Listens, and answers permitted clients, for as long as it lives. An address that can't be
/// listened on is tried again. The connection of another client is closed at once, and takes no
/// place of others.
pub(super) async fn serve<F>(
    door: ListenSettings,
    load: watch::Receiver<Load>,
    answer: fn(TcpStream, Load, ReportClient) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut again = RetryDelay::default();
    let listener = loop {
        match door.bind() {
            Ok(listener) => break listener,
            Err(error) => {
                if again.wait().await {
                    tracing::warn!(address = %door.listen, %error, "nobody can ask for this server's load here; it is tried again");
                }
            }
        }
    };
    let (of_directors, of_others) = (ConnectionLimit::new(AT_ONCE), ConnectionLimit::new(AT_ONCE));
    let next = || async {
        let (stream, client) = loop {
            let (stream, client) = listener.accept().await?;
            if door.permits(client.ip()) || door.queries.is_allowed(client.ip()) {
                break (stream, client);
            }
        };
        let is_director = door.directors.contains(&client.ip().to_canonical());
        let limit = if is_director { &of_directors } else { &of_others };
        let queries = Arc::clone(&door.queries);
        let (is_permitted, findings) = (door.permits(client.ip()), door.findings.clone());
        let requester = ReportClient { client: client.ip(), is_permitted, queries, findings };
        Ok((stream, requester, limit.acquire(client.ip()).await))
    };
    let serve = |(stream, requester, mut slot): (TcpStream, ReportClient, ConnectionSlot)| {
        let (load, refresh) = (load.clone(), door.refresh.clone());
        let answering = tokio::time::timeout(TIMEOUT, async move {
            // The measuring task may be waiting for a status page; then the last measurement will
            // do.
            let _ = tokio::time::timeout(FRESH_TIMEOUT, renew(&refresh)).await;
            let now = load.borrow().clone();
            answer(stream, now, requester).await
        });
        // A bad or slow question has no answer.
        async move { drop(slot.unless_needed(answering).await) }
    };
    accept(next, serve).await;
}

/// HAProxy asks by connecting.
pub(super) async fn agent_check(
    mut stream: TcpStream,
    load: Load,
    requester: ReportClient,
) -> io::Result<()> {
    if !requester.is_permitted {
        return Ok(());
    }
    let line = load.percent().map_or_else(|| "up\n".to_owned(), |percent| format!("up {percent}%\n"));
    stream.write_all(line.as_bytes()).await?;
    stream.shutdown().await
}

/// Others ask by HTTP.
pub(super) async fn http(mut stream: TcpStream, load: Load, requester: ReportClient) -> io::Result<()> {
    let mut question = Vec::new();
    let mut buffer = [0; 2048];
    let answer = loop {
        let len = stream.read(&mut buffer).await?;
        question.extend_from_slice(buffer.get(..len).unwrap_or_default());
        if let (Some(target), Some(findings)) = (findings::target(&question), &requester.findings)
            && requester.is_permitted
        {
            break last_bytes(&findings.answer(&target, requester.client).await, false);
        }
        if let Some(answer) = answer(&question, &load, &requester) {
            break answer;
        }
        if len == 0 {
            break last_bytes(&Response::refusal(HttpRefusal::Malformed), false);
        }
    };
    stream.write_all(&answer).await?;
    stream.shutdown().await
}

/// The answer to a question; nothing until it has come whole.
fn answer(question: &[u8], load: &Load, requester: &ReportClient) -> Option<Vec<u8>> {
    let (response, is_head) = match read_within(question, QUESTION_MAX) {
        HeadParse::Request(request) => {
            let other = || match requester.is_permitted {
                true => response(request.method, request.target, load),
                false => Response::sentence(403, FORBIDDEN),
            };
            let response = requester.queries.answer(request.method, requester.client).unwrap_or_else(other);
            (response, request.method == "HEAD")
        }
        HeadParse::Refused(why) => (Response::refusal(why), false),
        HeadParse::Incomplete => return None,
    };
    Some(last_bytes(&response, is_head))
}

fn response(method: &str, target: &str, load: &Load) -> Response {
    let json = "application/json";
    let response = match target.split('?').next().unwrap_or_default() {
        "/v1/load" => Response::of(200, json, json!(load).to_string() + "\n")
            .with("endpoint-load-metrics", orca_text(load)),
        "/orca" => Response::of(200, json, orca(load).to_string() + "\n"),
        "/metrics" => Response::of(200, "text/plain; version=0.0.4; charset=utf-8", metrics(load)),
        _ => return Response::sentence(404, "There is /v1/load, /orca and /metrics."),
    };
    match method {
        "GET" | "HEAD" => response,
        _ => Response::sentence(405, "Read this by GET.").with("Allow", "GET, HEAD".to_owned()),
    }
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
            "Of answers, what clients lack; at least that, where the end of some isn't known.",
            whole(load.bytes_to_send),
        ),
        ("bytes_queued", "What of that the kernel holds.", whole(load.lower_bound)),
        (
            "bytes_exact",
            "Whether the end of each answer is known.",
            load.bytes_source.map(|source| f64::from(u8::from(source == "exact"))),
        ),
        ("delay_seconds", "How long that will take.", load.delay_seconds),
        ("available_bps", "Bits a second that one client is sent, in the middle.", whole(load.available_bps)),
        ("bottleneck_bps", "Bits a second that the fastest client is sent.", whole(load.bottleneck_bps)),
    ];
    let unfollowed = whole(load.requests_unfollowed);
    let counters =
        [("requests_unfollowed_total", "Requests that weren't followed, for want of memory.", unfollowed)];
    let gauges = gauges.into_iter().map(|(name, help, value)| (name, help, value, "gauge"));
    let counters = counters.into_iter().map(|(name, help, value)| (name, help, value, "counter"));
    let known =
        gauges.chain(counters).filter_map(|(name, help, value, kind)| Some((name, help, value?, kind)));
    known
        .map(|(name, help, value, kind)| {
            format!("# HELP evener_agent_{name} {help}\n# TYPE evener_agent_{name} {kind}\nevener_agent_{name} {value}\n")
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::net::TcpSocket;

    use super::*;
    use crate::request_heads::{Expected, vectors};

    fn requester() -> ReportClient {
        ReportClient {
            client: [127, 0, 0, 1].into(),
            is_permitted: true,
            queries: Arc::new(QueryAccess::new()),
            findings: None,
        }
    }

    #[test]
    fn questions_are_judged_as_at_every_door() {
        for vector in vectors() {
            let answer = answer(&vector.bytes, &load(), &requester()).unwrap();
            let answer = String::from_utf8(answer).unwrap();
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

    /// Whether a director is answered that asks only after many others have come, each from an
    /// address of its own.
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
    async fn configured_director_always_gets_a_connection() {
        // A port that was free a moment ago.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (sender, load) = watch::channel(Load::default());
        let director = [127, 0, 0, 9];
        let directors = Arc::new(BTreeSet::from([IpAddr::from(Ipv4Addr::from(director))]));
        let server = tokio::spawn(serve(
            ListenSettings {
                listen: AgentListen::At(free),
                directors,
                permitted: None,
                queries: Arc::new(QueryAccess::new()),
                findings: None,
                refresh: mpsc::channel(1).0,
            },
            load,
            http,
        ));
        // An attempt fails where the machine is so busy that a connection's time is over.
        let mut is_done = false;
        for _ in 0..50 {
            is_done = is_done || is_answered(director, free).await.unwrap_or(false);
        }
        assert!(is_done);
        server.abort();
        drop(sender);
    }

    #[test]
    fn a_restricted_door_has_this_host_directors_and_networks() {
        let permitted = Permitted {
            directors: BTreeSet::from([IpAddr::from([192, 0, 2, 2])]),
            networks: vec!["198.51.100.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
        };
        let has = |client: &str| permitted.has(client.parse().unwrap());
        for client in ["127.0.0.1", "::1", "192.0.2.2", "::ffff:192.0.2.2", "198.51.100.7", "2001:db8::1"] {
            assert!(has(client), "{client}");
        }
        for client in ["192.0.2.3", "::ffff:192.0.2.3", "198.51.101.7", "2001:db9::1"] {
            assert!(!has(client), "{client}");
        }
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
    fn unknown_load_values_are_omitted() {
        let answer = response("GET", "/v1/load?x", &load());
        let orca_field = ("endpoint-load-metrics", "TEXT cpu_utilization=0.2500".to_owned());
        assert_eq!(answer.fields, [orca_field]);
        assert!(answer.body.contains("\"memory\":null"), "{answer:?}");
        assert_eq!(response("GET", "/orca", &load()).body, "{\"cpu_utilization\":0.25}\n");
        let metrics = metrics(&load());
        assert!(
            metrics.contains("evener_agent_bytes_to_send 10\n") && !metrics.contains("memory"),
            "{metrics}"
        );
    }

    #[test]
    fn director_parses_agent_report() {
        let json_text = json!(load()).to_string();
        let report = crate::io::report::load(json_text.as_bytes()).unwrap();
        assert_eq!((report.utilisation_permille, report.bytes_to_send), (Some(250), Some(10)));
        assert_eq!((report.available_bps, report.bottleneck_bps), (Some(4_000_000), None));
    }

    #[test]
    fn other_questions_have_other_answers() {
        assert_eq!(response("GET", "/", &load()).status, 404);
        assert_eq!(response("POST", "/orca", &load()).status, 405);
        let head = answer(b"HEAD /orca HTTP/1.1\r\nHost: a\r\n\r\n", &load(), &requester()).unwrap();
        assert!(head.ends_with(b"\r\n\r\n"));
    }
}
