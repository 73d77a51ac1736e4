//! Events of the farm, past and live: server-sent events for programs and browsers, lines for
//! people.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::Deserialize;

use super::api::{Api, ApiError, flag};
use super::command::{CommandError, admin_client};
use super::following::StreamRequest;
use super::progress::Progress;
use super::table::clean;
use crate::cli::{AdminArgs, EventsArgs};
use crate::events::Subscriber;
use crate::record;
use crate::views::{EventStreamItem, EventView};

/// Media type of server-sent events (WHATWG HTML, section 9.2).
const CONTENT_TYPE: &str = "text/event-stream";
/// Interval of comments, which detect a closed connection.
const PULSE: Duration = Duration::from_secs(15);
/// Field name of data lines.
const DATA: &[u8] = b"data:";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    since_seconds: Option<u64>,
    follow: Option<String>,
}

/// Returns past events, and then live events until the client disconnects.
pub(super) async fn events(
    State(api): State<Api>,
    Extension(progress): Extension<Progress>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(EventsQuery { since_seconds, follow }) = query?;
    let follows = flag("follow", follow.as_deref().or(Some("true")))?;
    if follows {
        progress.begin_stream().await;
    } else if since_seconds.is_none() {
        return Err(ApiError::bad_request(
            "Without following there are past events alone: give since_seconds.",
        ));
    }
    let (past, listener) = api.farm.listen(since_seconds.map(Duration::from_secs));
    // Sent at once, with the head of the response, to signal that the client gets every event from
    // now on.
    let first_line = stream::iter([": listening\n\n".to_owned()]);
    let past = stream::iter(past).map(|event| message(&EventStreamItem::Event(event)));
    let live =
        stream::unfold(listener, |mut listener| async { Some((next(&mut listener).await?, listener)) });
    let items = first_line.chain(past).chain(live.take(if follows { usize::MAX } else { 0 }));
    let fields = [(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")];
    Ok((fields, Body::from_stream(items.map(Ok::<_, Infallible>))).into_response())
}

/// Returns the next message of the stream. `None` at the end.
async fn next(listener: &mut Subscriber) -> Option<String> {
    match tokio::time::timeout(PULSE, listener.next()).await {
        Ok(item) => Some(message(&EventStreamItem::from(&item?))),
        Err(_) => Some(":\n\n".to_owned()),
    }
}

fn message(item: &EventStreamItem) -> String {
    let head = match item {
        EventStreamItem::Event(event) => format!("event: {}\nid: {}\n", event.event, event.number),
        EventStreamItem::Lost { .. } => "event: lost\n".to_owned(),
    };
    // The JSON is one line, and ends with its own newline.
    format!("{head}data: {}\n", record::json(item))
}

pub(super) fn run(args: &EventsArgs) -> Result<(), CommandError> {
    let EventsArgs { since, follow, seconds, count, json, admin } = args;
    let ends = since.is_some() && !follow;
    let path = match since {
        None => "/v1/events".to_owned(),
        Some(since) => {
            let seconds = since.as_secs().saturating_add(u64::from(since.subsec_nanos() > 0));
            format!("/v1/events?since_seconds={seconds}&follow={}", !ends)
        }
    };
    let following = StreamRequest {
        path: &path,
        first_line: "listening",
        ends,
        time: *seconds,
        count: *count,
        json: *json,
        admin,
    };
    following.show(|line| line.strip_prefix(DATA), text)
}

/// Passes events as text to `take` until `take` returns false. Returns true if the daemon's stream
/// ended first.
pub(crate) fn events_of(admin: &AdminArgs, mut take: impl FnMut(String) -> bool) -> bool {
    let Ok((client, runtime)) = admin_client(admin) else { return true };
    runtime.block_on(async {
        let Ok(mut lines) = client.follow("/v1/events").await else { return true };
        while let Some(line) = lines.next().await {
            let Some(data) = line.strip_prefix(DATA) else { continue };
            if let Ok(item) = serde_json::from_slice::<EventStreamItem>(data)
                && !take(text(&item))
            {
                return false;
            }
        }
        true
    })
}

/// Formats an event for people.
fn text(happening: &EventStreamItem) -> String {
    let event = match happening {
        EventStreamItem::Event(event) => event,
        EventStreamItem::Lost { count } => {
            return format!("{count} events are missing here: they came too fast");
        }
    };
    let EventView { time, event: name, service, server, host, address, interface, reason, text, .. } =
        &**event;
    let place = match (service, server) {
        (Some(service), Some(server)) => Some(format!("{service}/{server}")),
        (Some(one), None) | (None, Some(one)) => Some(one.clone()),
        (None, None) => None,
    };
    let others = [host, address, interface].into_iter().flatten().cloned();
    let about: Vec<String> = place.into_iter().chain(others).collect();
    let about = if about.is_empty() { String::new() } else { format!(" {}", about.join(" ")) };
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
    clean(&format!("{time} {name}{about}: {text}{reason}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn events_in_a_line() {
        let event = EventView {
            number: 7,
            time: "2026-01-02T03:04:05.678Z".into(),
            event: "server_down".into(),
            level: "warning".into(),
            service: Some("web".into()),
            server: Some("web1".into()),
            host: None,
            address: None,
            interface: None,
            reason: Some("no answer\u{1b}[2J".into()),
            text: "server is down".into(),
        };
        insta::assert_snapshot!(text(&EventStreamItem::Event(Arc::new(event.clone()))), @"2026-01-02T03:04:05.678Z server_down web/web1: server is down (no answer?[2J)");
        let other = EventView {
            event: "link_up".into(),
            service: None,
            server: None,
            interface: Some("eth0".into()),
            reason: None,
            text: "the interface works again".into(),
            ..event
        };
        insta::assert_snapshot!(text(&EventStreamItem::Event(Arc::new(other))), @"2026-01-02T03:04:05.678Z link_up eth0: the interface works again");
        insta::assert_snapshot!(text(&EventStreamItem::Lost { count: 3 }), @"3 events are missing here: they came too fast");
    }
}
