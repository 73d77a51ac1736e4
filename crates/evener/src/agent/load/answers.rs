//! Answers load queries: `/v1/load` and ORCA's `/orca` in JSON, `/metrics`, and HAProxy's
//! agent-check.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evener_core::net::http::Response;
use evener_core::net::prefix::Prefix;
use hyper::Request;
use hyper::body::Incoming;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::json;
use socket2::Type;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::RetryDelay;
use super::findings::{self, FindingsAccess};
use super::measure::Load;
use super::queries::QueryAccess;
use crate::admin::metrics::{self, Format};
use crate::agent::listening::bind;
use crate::config::AgentListen;
use crate::http::server::{self, ConnectionBounds};
use crate::http::to_hyper;
use crate::runtime::accept::accept;
use crate::runtime::connection_limit::{ConnectionLimit, ConnectionSlot};

/// Maximum number of connections of the file's directors. All other clients together have the same
/// maximum. If all slots are taken, a new connection evicts a connection of the source with the
/// most connections.
const AT_ONCE: usize = 64;
/// Timeout of a connection.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that a response waits for a fresh measurement.
const FRESH_TIMEOUT: Duration = Duration::from_millis(100);
/// Limits of a connection.
pub(super) const ONE_REQUEST: ConnectionBounds =
    ConnectionBounds { head: TIMEOUT, idle: None, half_close: true };
/// Response to clients that the file doesn't allow.
pub(super) const FORBIDDEN: &str =
    "This address may not query the load: see `directors` in [farm] and `allow` in [agent].";
/// Length of the queue of connections to accept.
const BACKLOG: i32 = 1_024;

/// Settings of a listener.
pub(super) struct ListenSettings {
    pub(super) listen: AgentListen,
    /// Directors, which have connection slots of their own.
    pub(super) directors: Arc<BTreeSet<IpAddr>>,
    /// Permitted clients. `None` for all.
    pub(super) permitted: Option<Permitted>,
    /// Directors of groups, which may send LOAD-QUERY.
    pub(super) queries: Arc<QueryAccess>,
    /// Access of directors to the doctor's findings. `None` without the farm's secret.
    pub(super) findings: Option<Arc<FindingsAccess>>,
    /// Triggers a fresh measurement of the bytes to send.
    pub(super) refresh: Refresh,
}

/// Requests a fresh measurement. The sender in the request signals the end of the measurement.
pub(super) type Refresh = mpsc::Sender<oneshot::Sender<()>>;

/// Permitted clients, besides this host itself.
pub(super) struct Permitted {
    pub(super) directors: BTreeSet<IpAddr>,
    pub(super) networks: Vec<Prefix>,
}

impl Permitted {
    /// True if the client is this host, a director, or in a permitted network.
    fn has(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        client.is_loopback()
            || self.directors.contains(&client)
            || self.networks.iter().any(|network| network.contains(client))
    }
}

pub(super) struct ReportClient {
    client: IpAddr,
    /// True if the client may send any request. Otherwise it may only send LOAD-QUERY.
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
    // During a reload the measuring task may have ended, so the request may fail.
    if refresh.send(done).await.is_ok() {
        let _ = is_done.await;
    }
}

/// Listens, and answers permitted clients until dropped. An address that is not available is
/// retried. Connections of other clients are closed at once, without taking a slot.
pub(super) async fn serve<F>(
    listen_settings: ListenSettings,
    load: watch::Receiver<Load>,
    answer: fn(TcpStream, Load, ReportClient) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut again = RetryDelay::default();
    let listener = loop {
        match listen_settings.bind() {
            Ok(listener) => break listener,
            Err(error) => {
                if again.wait().await {
                    tracing::warn!(address = %listen_settings.listen, %error, "failed to listen for load queries; retrying");
                }
            }
        }
    };
    let (of_directors, of_others) = (ConnectionLimit::new(AT_ONCE), ConnectionLimit::new(AT_ONCE));
    let next = || async {
        let (stream, client) = loop {
            let (stream, client) = listener.accept().await?;
            if listen_settings.permits(client.ip()) || listen_settings.queries.is_allowed(client.ip()) {
                break (stream, client);
            }
        };
        let is_director = listen_settings.directors.contains(&client.ip().to_canonical());
        let limit = if is_director { &of_directors } else { &of_others };
        let queries = Arc::clone(&listen_settings.queries);
        let (is_permitted, findings) =
            (listen_settings.permits(client.ip()), listen_settings.findings.clone());
        let requester = ReportClient { client: client.ip(), is_permitted, queries, findings };
        Ok((stream, requester, limit.acquire(client.ip()).await))
    };
    let serve = |(stream, requester, mut slot): (TcpStream, ReportClient, ConnectionSlot)| {
        let (load, refresh) = (load.clone(), listen_settings.refresh.clone());
        let answering = tokio::time::timeout(TIMEOUT, async move {
            // The measuring task may be waiting for a status page. The last measurement is used in
            // that case.
            let _ = tokio::time::timeout(FRESH_TIMEOUT, renew(&refresh)).await;
            let now = load.borrow().clone();
            answer(stream, now, requester).await
        });
        // An invalid or slow request gets no answer.
        async move { drop(slot.unless_evicted(answering).await) }
    };
    accept(next, serve).await;
}

/// Answers agent-check. HAProxy queries by connecting.
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

pub(super) async fn http(stream: TcpStream, load: Load, requester: ReportClient) -> io::Result<()> {
    let (requester, load) = (&requester, &load);
    let answer = |request: Request<Incoming>| async move { to_hyper(requester.answer(&request, load).await) };
    server::serve(stream, &ONE_REQUEST, answer, |_, _| {}).await;
    Ok(())
}

impl ReportClient {
    async fn answer(&self, request: &Request<Incoming>, load: &Load) -> Response {
        let (method, target) = (request.method().as_str(), target_of(request));
        match &self.findings {
            Some(findings) if self.is_permitted && findings::is_for(method, target) => {
                findings.answer(target, self.client).await
            }
            _ => self.queries.answer(method, self.client).unwrap_or_else(|| match self.is_permitted {
                true => response(method, target, load),
                false => Response::sentence(403, FORBIDDEN),
            }),
        }
    }
}

fn target_of(request: &Request<Incoming>) -> &str {
    request.uri().path_and_query().map_or("/", |target| target.as_str())
}

fn response(method: &str, target: &str, load: &Load) -> Response {
    let json = "application/json";
    let response = match target.split('?').next().unwrap_or_default() {
        "/v1/load" => Response::of(200, json, json!(load).to_string() + "\n")
            .with("endpoint-load-metrics", orca_text(load)),
        "/orca" => Response::of(200, json, orca(load).to_string() + "\n"),
        "/metrics" => Response::of(200, Format::Text.content_type(), load_metrics(load)),
        _ => return Response::sentence(404, "There is /v1/load, /orca and /metrics."),
    };
    match method {
        "GET" | "HEAD" => response,
        _ => Response::sentence(405, "Read this by GET.").with("Allow", "GET, HEAD".to_owned()),
    }
}

/// Returns the known values, with ORCA's names.
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

fn load_metrics(load: &Load) -> String {
    let mut registry = Registry::with_prefix("evener_agent");
    registry.register_collector(Box::new(load.clone()));
    metrics::write(&[registry], Format::Text, 0)
}

impl Collector for Load {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let whole = |number: Option<u64>| number.map(|number| number as f64);
        let gauges = [
            ("run_queue", "Processes that run or wait to.", self.run_queue),
            ("cpu_ratio", "Of all processors' time, what is spent.", self.cpu),
            ("memory_ratio", "Of all memory, what is used.", self.memory),
            ("connections", "Open connections of services.", whole(self.connections)),
            ("requests_per_second", "Requests that are answered.", self.requests_per_second),
            ("load", "The server groups' load, 10 (r + m).", self.load),
            (
                "bytes_to_send",
                "Of answers, what clients lack; at least that, where the end of some isn't known.",
                whole(self.bytes_to_send),
            ),
            ("bytes_queued", "What of that the kernel holds.", whole(self.lower_bound)),
            (
                "bytes_exact",
                "Whether the end of each answer is known.",
                self.bytes_source.map(|source| f64::from(u8::from(source == "exact"))),
            ),
            ("delay_seconds", "How long that will take.", self.delay_seconds),
            (
                "available_bps",
                "Bits a second that one client is sent, in the middle.",
                whole(self.available_bps),
            ),
            ("bottleneck_bps", "Bits a second that the fastest client is sent.", whole(self.bottleneck_bps)),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
            }
        }
        let Some(unfollowed) = self.requests_unfollowed else { return Ok(()) };
        let help = "Requests that weren't followed, for want of memory.";
        encoder
            .encode_descriptor("requests_unfollowed", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, f64>(&unfollowed, None)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::io::AsyncReadExt;
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

    /// Returns the response to a request that is sent in one piece.
    async fn answer_to(question: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(question).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        let (served, read) =
            tokio::join!(http(server, load(), requester()), client.read_to_string(&mut answer));
        served.and(read).unwrap();
        answer
    }

    #[tokio::test]
    async fn questions_are_judged_as_at_every_door() {
        for vector in vectors() {
            let answer = answer_to(&vector.bytes).await;
            let status: u16 = answer[9..12].parse().unwrap();
            match vector.expected {
                Expected::Accepted { .. } => {
                    assert!(matches!(status, 404 | 405), "{}: {answer}", vector.text)
                }
                Expected::Refused { status: expected, .. } => assert_eq!(status, expected, "{}", vector.text),
            }
        }
    }

    /// Opens a connection from an address of this host.
    async fn connect(from: [u8; 4], to: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        socket.connect(to).await
    }

    /// True if a director gets an answer after many clients with different addresses have
    /// connected.
    async fn is_answered(director: [u8; 4], to: SocketAddr) -> io::Result<bool> {
        let mut stream = connect(director, to).await?;
        let mut silent = Vec::new();
        for number in 1..=100 {
            silent.push(connect([127, 0, 1, number], to).await?);
            silent.push(connect([127, 0, 2, number], to).await?);
        }
        // The last connection is answered, so all earlier ones have had their slots.
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
        // An attempt fails if the machine is so busy that the connection times out.
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
        let metrics = load_metrics(&load());
        assert!(
            metrics.contains("evener_agent_bytes_to_send 10.0\n") && !metrics.contains("memory"),
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

    #[tokio::test]
    async fn other_questions_have_other_answers() {
        assert_eq!(response("GET", "/", &load()).status, 404);
        assert_eq!(response("POST", "/orca", &load()).status, 405);
        let head = answer_to(b"HEAD /orca HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(head.ends_with("\r\n\r\n"), "{head}");
    }
}
