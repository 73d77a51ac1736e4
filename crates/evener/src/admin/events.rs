//! Events of the farm, live: server-sent events for programs and browsers, lines for people.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::api::Api;
use super::command::{CommandError, admin_client};
use super::following::StreamRequest;
use super::progress::Progress;
use super::table::clean;
use crate::cli::{AdminArgs, EventsArgs};
use crate::events::Subscriber;
use crate::record;
use crate::views::{EventStreamItem, EventView};

/// As WHATWG's HTML has it, section 9.2.
const CONTENT_TYPE: &str = "text/event-stream";
/// A comment so often, so that an end that is gone is noticed.
const PULSE: Duration = Duration::from_secs(15);
/// The beginning of a line of data.
const DATA: &[u8] = b"data:";

/// Answers with what happens, until the other end hangs up.
pub(super) async fn events(State(api): State<Api>, Extension(progress): Extension<Progress>) -> Response {
    progress.begin_stream().await;
    // A client that waits for the answer's head learns that it gets every event from here on.
    let first_line = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b": listening\n\n"))]);
    let items = stream::unfold(api.farm.listen(), |mut listener| async {
        Some((Ok::<_, Infallible>(Bytes::from(next(&mut listener).await?)), listener))
    });
    let fields = [(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")];
    (fields, Body::from_stream(futures_util::StreamExt::chain(first_line, items))).into_response()
}

/// The next piece of the stream; nothing if no more come.
async fn next(listener: &mut Subscriber) -> Option<String> {
    let Ok(item) = tokio::time::timeout(PULSE, listener.next()).await else {
        return Some(":\n\n".to_owned());
    };
    let happening = EventStreamItem::from(&item?);
    let head = match &happening {
        EventStreamItem::Event(event) => format!("event: {}\nid: {}\n", event.event, event.number),
        EventStreamItem::Lost { .. } => "event: lost\n".to_owned(),
    };
    // One line, which ends with its own newline.
    Some(format!("{head}data: {}\n", record::json(&happening)))
}

/// Carries out `evener events`.
pub(super) fn run(args: &EventsArgs) -> Result<(), CommandError> {
    let EventsArgs { seconds, count, json, admin } = args;
    let following = StreamRequest {
        path: "/v1/events",
        first_line: "listening",
        seconds: *seconds,
        count: *count,
        json: *json,
        admin,
    };
    following.show(|line| line.strip_prefix(DATA), text)
}

/// Gives events in words, one after the other, for as long as `take` wants more. False once it
/// doesn't; true where the daemon gives no more.
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

/// For people.
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
        insta::assert_snapshot!(text(&EventStreamItem::Event(Box::new(event.clone()))), @"2026-01-02T03:04:05.678Z server_down web/web1: server is down (no answer?[2J)");
        let other = EventView {
            event: "link_up".into(),
            service: None,
            server: None,
            interface: Some("eth0".into()),
            reason: None,
            text: "the interface works again".into(),
            ..event
        };
        insta::assert_snapshot!(text(&EventStreamItem::Event(Box::new(other))), @"2026-01-02T03:04:05.678Z link_up eth0: the interface works again");
        insta::assert_snapshot!(text(&EventStreamItem::Lost { count: 3 }), @"3 events are missing here: they came too fast");
    }
}
