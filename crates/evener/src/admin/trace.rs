//! Traces of a client: one line for each packet and each decision, while the trace is read.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;

use super::api::{ANSWER_TIMEOUT, Api, ApiError, client, send_request};
use super::client::escape;
use super::command::CommandError;
use super::following::StreamRequest;
use super::progress::Progress;
use super::table::{clean, seconds};
use crate::board::request::ControlRequest;
use crate::cli::TraceArgs;
use crate::record;
use crate::record::{AccessLogEntry, Traced, TracedPacket};

/// Interval of empty lines, which detect a closed connection.
const PULSE: Duration = Duration::from_secs(15);
/// One JSON object per line (NDJSON).
const CONTENT_TYPE: &str = "application/x-ndjson";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TraceQuery {
    client: String,
}

/// Returns traced events until the client disconnects.
pub(super) async fn trace(
    State(api): State<Api>,
    Extension(progress): Extension<Progress>,
    query: Result<Query<TraceQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query?;
    let client = client(&query.client)?;
    let lines =
        send_request(&api.control, ANSWER_TIMEOUT, |answer| ControlRequest::Trace(client, answer)).await?;
    let lines = lines.map_err(|why| ApiError(StatusCode::SERVICE_UNAVAILABLE, format!("{why}.")))?;
    progress.begin_stream().await;
    let lines = stream::unfold(lines, |mut lines| async {
        let line = match tokio::time::timeout(PULSE, lines.recv()).await {
            Ok(line) => Bytes::from(record::json(&line?)),
            Err(_) => Bytes::from_static(b"\n"),
        };
        Some((Ok::<_, Infallible>(line), lines))
    });
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::from_stream(lines)).into_response())
}

pub(super) fn run(args: &TraceArgs) -> Result<(), CommandError> {
    let TraceArgs { client, seconds, count, json, admin } = args;
    let following = StreamRequest {
        path: &format!("/v1/trace?client={}", escape(&client.to_string())),
        ends: false,
        first_line: &format!("following {client}"),
        time: *seconds,
        count: *count,
        json: *json,
        admin,
    };
    following.show(|line| Some(line).filter(|line| !line.trim_ascii().is_empty()), text)
}

/// Formats a line for people.
fn text(traced: &Traced) -> String {
    clean(&match traced {
        Traced::Packet(packet) => packet_text(packet),
        Traced::Decision(decision) => decision_text(decision),
        Traced::Lost { count } => format!("{count} lines are missing here: they came too fast"),
    })
}

fn packet_text(packet: &TracedPacket) -> String {
    let TracedPacket { time, protocol, src, dst, bytes, verdict, reason, .. } = packet;
    let flags = packet.flags.as_ref().map_or_else(String::new, |flags| format!(" {flags}"));
    let also_counted =
        packet.also_counted.as_ref().map_or_else(String::new, |also_counted| format!(", {also_counted}"));
    let server = packet.server.as_ref().map_or_else(String::new, |server| format!(" => {server}"));
    format!("{time} {protocol}{flags} {src} > {dst} {bytes} bytes: {verdict}, {reason}{also_counted}{server}")
}

fn decision_text(decision: &AccessLogEntry) -> String {
    let AccessLogEntry { time, service, client, mechanism, .. } = decision;
    let latency = seconds(decision.decide_us / 1e6);
    let kind = decision.kind.as_deref().unwrap_or("nothing that can be read");
    let request = [&decision.method, &decision.host, &decision.sni, &decision.path].into_iter().flatten();
    let request: String = request.map(|part| format!(" {part}")).collect();
    let cut = if decision.cut { " ..." } else { "" };
    let route = decision.route.map_or_else(|| "no route".to_owned(), |route| format!("route {route}"));
    let status = decision.status.map_or_else(String::new, |status| format!(", answered {status}"));
    let server = decision.server.as_deref().unwrap_or("no server");
    format!(
        "{time} {client} asks {service}: {kind}{request}{cut}: {route}, {mechanism} in {latency}{status} => {server}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> TracedPacket {
        TracedPacket {
            time: "2026-01-02T03:04:05.678Z".into(),
            protocol: "tcp".into(),
            flags: Some("psh,ack".into()),
            src: "198.51.100.7:40000".into(),
            dst: "192.0.2.100:80".into(),
            bytes: 80,
            verdict: "forward".into(),
            reason: "forwarded".into(),
            also_counted: Some("no_session".into()),
            server: Some("web1".into()),
        }
    }

    #[test]
    fn packets_in_a_line() {
        insta::assert_snapshot!(text(&Traced::Packet(packet())), @"2026-01-02T03:04:05.678Z tcp psh,ack 198.51.100.7:40000 > 192.0.2.100:80 80 bytes: forward, forwarded, no_session => web1");
        let other = TracedPacket {
            protocol: "icmp".into(),
            flags: None,
            src: "198.51.100.7".into(),
            also_counted: None,
            server: None,
            ..packet()
        };
        insta::assert_snapshot!(text(&Traced::Packet(other)), @"2026-01-02T03:04:05.678Z icmp 198.51.100.7 > 192.0.2.100:80 80 bytes: forward, forwarded");
        insta::assert_snapshot!(text(&Traced::Lost { count: 3 }), @"3 lines are missing here: they came too fast");
    }

    #[test]
    fn decisions_in_a_line() {
        let decision = AccessLogEntry {
            time: "2026-01-02T03:04:05.678Z".into(),
            service: "web".into(),
            client: "198.51.100.7:40000".into(),
            kind: Some("http".into()),
            method: Some("GET".into()),
            host: Some("www.example.com".into()),
            sni: None,
            path: Some("/a\u{1b}[2J".into()),
            cut: false,
            route: Some(2),
            server: Some("web1".into()),
            mechanism: "kernel".into(),
            status: None,
            decide_us: 12.25,
        };
        insta::assert_snapshot!(text(&Traced::Decision(decision.clone())), @"2026-01-02T03:04:05.678Z 198.51.100.7:40000 asks web: http GET www.example.com /a?[2J: route 2, kernel in 12 us => web1");
        let refused = AccessLogEntry {
            kind: None,
            method: None,
            host: None,
            path: None,
            cut: true,
            route: None,
            server: None,
            mechanism: "client_timeout".into(),
            status: Some(408),
            decide_us: 10_000_000.0,
            ..decision
        };
        insta::assert_snapshot!(text(&Traced::Decision(refused)), @"2026-01-02T03:04:05.678Z 198.51.100.7:40000 asks web: nothing that can be read ...: no route, client_timeout in 10.0 s, answered 408 => no server");
    }
}
