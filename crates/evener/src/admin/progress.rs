//! Progress of a connection's request, from which the server derives its time limit.

use std::sync::Arc;

use tokio::sync::watch;

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No request has passed the access check yet.
    Unread,
    /// A request is being answered.
    Answering,
    /// The response is a stream, and waits for a slot among streams. Streams have a longer time
    /// limit.
    Waiting,
    /// The stream has a slot.
    Streaming,
}

/// Handle by which a request sets its stage.
#[derive(Clone, Debug)]
pub(super) struct Progress(Arc<watch::Sender<Stage>>);

impl Progress {
    pub(super) fn new() -> (Progress, watch::Receiver<Stage>) {
        let (stage, seen) = watch::channel(Stage::Unread);
        (Progress(Arc::new(stage)), seen)
    }

    /// Records that the sender has access and the request is being answered.
    pub(super) fn begin_answer(&self) {
        self.0.send_replace(Stage::Answering);
    }

    /// Waits until the connection has a slot among streams.
    pub(super) async fn begin_stream(&self) {
        self.0.send_replace(Stage::Waiting);
        // The sender is `self`, so the channel is open.
        let _ = self.0.subscribe().wait_for(|stage| *stage == Stage::Streaming).await;
    }

    /// Records that the connection has a slot among streams.
    pub(super) fn place(&self) {
        self.0.send_replace(Stage::Streaming);
    }
}
