use std::sync::atomic::AtomicUsize;

use serde_json::{Value, json};

use super::*;
use crate::board::request::{ExplainSubject, SessionFilter};
use crate::events::{Bus, Subscriber};
use crate::state::FarmState;
use crate::views::{
    AffinityView, DirectorsView, EventView, Explanation, FarmView, HostView, NameView, ServerView,
    ServiceView, SessionView, StatusView,
};

/// A farm that counts how often it is read, and shows this count as its connections.
#[derive(Default)]
struct Counted {
    looks: AtomicUsize,
    servers: AtomicUsize,
    events: AtomicUsize,
}

fn status() -> StatusView {
    let status = json!({
        "version": "1", "pid": 1, "uptime_seconds": 1, "engine": "xdp", "engine_detail": "", "adopted": false,
        "config": "", "reloads": 0, "reload_error": null, "sessions": 0, "sessions_max": 1, "session_slots": 1,
        "packets": {}, "refused": {}, "interfaces": [],
    });
    serde_json::from_value(status).unwrap()
}

fn server(name: usize, connections: u64, state: &str) -> ServerView {
    let server = json!({
        "service": "web", "name": format!("web{name}"), "address": "192.0.2.1", "state": state, "reason": null,
        "weight": 1, "sessions": 0, "connections": connections, "packets": 0, "bytes": 0, "mac": null,
        "interface": null, "source": "listed", "local": false, "forwarding": "link", "probe_seconds": null,
        "probe_error": null,
    });
    serde_json::from_value(server).unwrap()
}

impl ViewSource for Counted {
    fn farm(&self) -> FarmView {
        let looks = self.looks.fetch_add(1, Relaxed) as u64;
        let servers = (0..self.servers.load(Relaxed)).map(|name| server(name, looks, "up")).collect();
        FarmView {
            status: status(),
            services: Vec::new(),
            servers,
            hosts: Vec::new(),
            directors: Vec::new(),
            names: Vec::new(),
        }
    }

    fn status(&self) -> StatusView {
        status()
    }

    fn services(&self) -> Vec<ServiceView> {
        Vec::new()
    }

    fn servers(&self) -> Vec<ServerView> {
        Vec::new()
    }

    fn hosts(&self) -> Vec<HostView> {
        Vec::new()
    }

    fn directors(&self) -> DirectorsView {
        DirectorsView::default()
    }

    fn names(&self) -> Vec<NameView> {
        Vec::new()
    }

    fn interfaces(&self) -> Vec<String> {
        Vec::new()
    }

    fn takes_packets(&self) -> bool {
        false
    }

    fn affinity(&self, _: &SessionFilter) -> Result<Vec<AffinityView>, String> {
        Ok(Vec::new())
    }

    fn sessions(&self, _: &SessionFilter) -> Result<Vec<SessionView>, String> {
        Ok(Vec::new())
    }

    fn explain(&self, _: &ExplainSubject) -> Explanation {
        Explanation::default()
    }

    fn farm_state(&self) -> Arc<FarmState> {
        Arc::default()
    }

    fn last_event(&self) -> u64 {
        self.events.load(Relaxed) as u64
    }

    fn recent_events(&self) -> Vec<Arc<EventView>> {
        Vec::new()
    }

    fn listen(&self, _: Option<Duration>) -> (Vec<Arc<EventView>>, Subscriber) {
        (Vec::new(), Bus::default().listen())
    }
}

fn feed(servers: usize) -> (Arc<Counted>, Arc<LiveFeed>) {
    let farm = Arc::new(Counted { servers: servers.into(), ..Counted::default() });
    (Arc::clone(&farm), LiveFeed::every(farm, Duration::from_millis(5)))
}

/// Returns the event type of a message, and its data.
fn read(message: &Bytes) -> (String, Value) {
    let text = std::str::from_utf8(message).unwrap();
    let (kind, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
    (kind.to_owned(), serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap())
}

async fn next(listener: &mut LiveListener) -> (String, Value) {
    read(&listener.next().await.unwrap())
}

#[tokio::test]
async fn listener_gets_a_snapshot_and_then_what_changes() {
    let (farm, feed) = feed(2);
    let mut listener = feed.listen();
    let (kind, data) = next(&mut listener).await;
    assert_eq!((kind.as_str(), &data["servers"][1]["name"]), ("snapshot", &json!("web1")));
    let first = data["number"].as_u64().unwrap();
    let (kind, data) = next(&mut listener).await;
    assert_eq!((kind.as_str(), data["number"].as_u64()), ("delta", Some(first + 1)));
    assert_eq!(data["servers"], json!({"counters": [[0, [0, 1, 0, 0, null]], [1, [0, 1, 0, 0, null]]]}));
    assert_eq!((&data["services"], &data["status"]), (&Value::Null, &Value::Null), "those stay");
    farm.servers.store(3, Relaxed);
    let all = loop {
        let (_, data) = next(&mut listener).await;
        if data["servers"]["all"] != Value::Null {
            break data["servers"]["all"].as_array().unwrap().len();
        }
    };
    assert_eq!(all, 3);
}

#[tokio::test]
async fn slow_listener_gets_a_snapshot_in_place_of_missed_frames() {
    let (farm, feed) = feed(1);
    let (mut slow, mut quick) = (feed.listen(), feed.listen());
    assert_eq!(next(&mut slow).await.0, "snapshot");
    assert_eq!(next(&mut quick).await.0, "snapshot");
    for _ in 0..5 {
        assert_eq!(next(&mut quick).await.0, "delta", "another's slowness costs it nothing");
    }
    let (kind, data) = next(&mut slow).await;
    assert_eq!(kind, "snapshot");
    assert!(data["servers"][0]["connections"].as_u64() >= Some(5), "{data}");
    assert!(farm.looks.load(Relaxed) < 50, "each frame is made once");
}

#[tokio::test]
async fn frames_are_made_only_while_there_is_a_listener() {
    let (farm, feed) = feed(1);
    assert_eq!(farm.looks.load(Relaxed), 0);
    let mut listener = feed.listen();
    next(&mut listener).await;
    drop(listener);
    while *feed.is_running.lock().unwrap() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(feed.frames.borrow().is_none());
    let looks = farm.looks.load(Relaxed);
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(farm.looks.load(Relaxed), looks);
    let mut listener = feed.listen();
    assert_eq!(next(&mut listener).await.0, "snapshot");
    assert_eq!(next(&mut listener).await.0, "delta");
}

#[tokio::test]
async fn frame_after_an_event_comes_before_its_time() {
    let farm = Arc::new(Counted::default());
    let feed = LiveFeed::every(Arc::clone(&farm) as Arc<dyn ViewSource>, Duration::from_secs(3_600));
    let pause = Duration::from_millis(1);
    let look = tokio::spawn(Arc::clone(&feed).wait(7, [pause, pause, Duration::from_secs(3_600)]));
    farm.events.store(8, Relaxed);
    look.await.unwrap();
}

mod deltas {
    use proptest::prelude::*;

    use super::super::delta::TableDelta;
    use super::*;

    /// Applies a delta to rows, as the page does.
    fn applied(before: &[ServerView], delta: &TableDelta<'_, ServerView>) -> Vec<Value> {
        let rows = delta.all.unwrap_or(before);
        let mut rows: Vec<Value> = rows.iter().map(|row| serde_json::to_value(row).unwrap()).collect();
        for (row, counters) in &delta.counters {
            let counters = serde_json::to_value(counters).unwrap();
            let names = ["sessions", "connections", "packets", "bytes", "probe_seconds"];
            for (at, name) in names.into_iter().enumerate() {
                rows[*row][name] = counters[at].clone();
            }
        }
        for (row, fields) in &delta.fields {
            for (name, value) in fields {
                rows[*row][name] = value.clone();
            }
        }
        rows
    }

    fn table() -> impl Strategy<Value = Vec<ServerView>> {
        let row = (0usize..3, 0u64..3, prop_oneof![Just("up"), Just("down")]);
        prop::collection::vec(row, 0..4)
            .prop_map(|rows| rows.iter().map(|(name, count, state)| server(*name, *count, state)).collect())
    }

    proptest! {
        #[test]
        fn delta_leads_from_one_table_to_the_other(before in table(), now in table()) {
            let delta = TableDelta::between(&before, &now);
            let now: Vec<Value> = now.iter().map(|row| serde_json::to_value(row).unwrap()).collect();
            prop_assert_eq!(applied(&before, &delta), now);
            prop_assert!(TableDelta::between(&before, &before).is_empty());
        }
    }
}
