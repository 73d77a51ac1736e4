//! Live state of the farm for browsers: a snapshot first, then the difference each [`PERIOD`].
//!
//! Each frame is made once for all listeners, and only while there are listeners. A listener has at
//! most one pending frame. A slow listener misses frames, and then gets a snapshot.

mod delta;
mod frame;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::watch;

use super::api::Api;
use super::progress::Progress;
use crate::views::ViewSource;
use frame::{Frame, Moment};

/// Time between two frames without an event.
const PERIOD: Duration = Duration::from_secs(2);
/// Fractions of the period: minimum time between two frames, and interval of checks for events.
const LEAST: u32 = 4;
const LOOKS: u32 = 20;

/// Feed of a farm's frames.
pub(super) struct LiveFeed {
    farm: Arc<dyn ViewSource>,
    frames: watch::Sender<Option<Arc<Frame>>>,
    /// True while frames are being made.
    is_running: Mutex<bool>,
    next: AtomicU64,
    period: Duration,
    started: Instant,
    /// Identifier of this daemon's run.
    daemon: Arc<str>,
}

impl LiveFeed {
    pub(super) fn new(farm: Arc<dyn ViewSource>) -> Arc<LiveFeed> {
        LiveFeed::every(farm, PERIOD)
    }

    fn every(farm: Arc<dyn ViewSource>, period: Duration) -> Arc<LiveFeed> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Arc::new(LiveFeed {
            farm,
            frames: watch::Sender::new(None),
            is_running: Mutex::new(false),
            next: AtomicU64::new(1),
            period,
            started: Instant::now(),
            daemon: format!("{}-{}", std::process::id(), since.as_millis()).into(),
        })
    }

    /// Adds a listener. Needs a tokio runtime.
    fn listen(self: &Arc<Self>) -> LiveListener {
        // Both steps are done under the lock, so that frames can't end between the subscription and
        // the check.
        let mut is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut frames = self.frames.subscribe();
        frames.mark_changed();
        if !std::mem::replace(&mut *is_running, true) {
            tokio::spawn(Arc::clone(self).run());
        }
        LiveListener { frames, last: None }
    }

    /// Makes frames while there is a listener.
    async fn run(self: Arc<Self>) {
        let mut before = None;
        loop {
            let (feed, last) = (Arc::clone(&self), before.clone());
            match tokio::task::spawn_blocking(move || feed.make(last.as_deref())).await {
                Ok(frame) => {
                    self.frames.send_replace(Some(Arc::clone(&frame)));
                    before = Some(frame);
                }
                Err(error) => tracing::error!(%error, "failed to make a dashboard frame"),
            }
            let last_event = before.as_deref().map_or(0, Frame::last_event);
            let pauses = [self.period / LEAST, self.period / LOOKS, self.period];
            Arc::clone(&self).wait(last_event, pauses).await;
            if self.ends() {
                return;
            }
        }
    }

    /// Waits at least `least`, and then until there is another event, but at most `most`. `look` is
    /// the interval of checks for events.
    async fn wait(self: Arc<Self>, last_event: u64, [least, look, most]: [Duration; 3]) {
        tokio::time::sleep(least).await;
        let until = Instant::now() + most.saturating_sub(least);
        while Instant::now() < until && self.farm.last_event() == last_event {
            tokio::time::sleep(look).await;
        }
    }

    /// True if there are no listeners. The next listener starts the frames again.
    fn ends(&self) -> bool {
        let mut is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        *is_running = self.frames.receiver_count() > 0;
        if !*is_running {
            self.frames.send_replace(None);
        }
        !*is_running
    }

    fn make(&self, before: Option<&Frame>) -> Arc<Frame> {
        let number = self.next.fetch_add(1, Relaxed);
        let at_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let moment = Moment::of(&*self.farm, &self.daemon, at_ms);
        Arc::new(Frame::new(number, moment, before))
    }
}

struct LiveListener {
    frames: watch::Receiver<Option<Arc<Frame>>>,
    /// Number of the last frame that the listener got.
    last: Option<u64>,
}

impl LiveListener {
    /// Returns the next message of the stream. `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.frames.changed().await.ok()?;
            let Some(frame) = self.frames.borrow_and_update().clone() else { continue };
            let before = self.last.replace(frame.number());
            let follows = before.is_some_and(|before| before + 1 == frame.number());
            return Some(if follows { frame.delta() } else { frame.snapshot() });
        }
    }
}

/// Returns the live state of the farm until the client disconnects.
pub(super) async fn live(State(api): State<Api>, Extension(progress): Extension<Progress>) -> Response {
    progress.begin_stream().await;
    let items = stream::unfold(api.live.listen(), |mut listener| async {
        Some((Ok::<_, Infallible>(listener.next().await?), listener))
    });
    let fields = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (fields, Body::from_stream(items)).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
