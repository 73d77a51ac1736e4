//! How far a connection of the admin address is with its request, for whoever bounds its time.

use std::sync::Arc;

use tokio::sync::watch;

/// How far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No request was let through so far.
    Unread,
    /// One is being answered.
    Answering,
    /// The answer is a stream, which lasts as others may not, and waits for a place among streams.
    Waiting,
    /// It has that place.
    Streaming,
}

/// By which a request says so.
#[derive(Clone, Debug)]
pub(super) struct Progress(Arc<watch::Sender<Stage>>);

impl Progress {
    pub(super) fn new() -> (Progress, watch::Receiver<Stage>) {
        let (stage, seen) = watch::channel(Stage::Unread);
        (Progress(Arc::new(stage)), seen)
    }

    /// The sender of the request may ask for that.
    pub(super) fn begin_answer(&self) {
        self.0.send_replace(Stage::Answering);
    }

    /// Waits until the connection has a place among streams.
    pub(super) async fn begin_stream(&self) {
        self.0.send_replace(Stage::Waiting);
        // The sender is this very one.
        let _ = self.0.subscribe().wait_for(|stage| *stage == Stage::Streaming).await;
    }

    /// The connection has its place.
    pub(super) fn place(&self) {
        self.0.send_replace(Stage::Streaming);
    }
}
