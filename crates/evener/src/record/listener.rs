//! Reads the events that the data plane reports.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use evener_dataplane::events::{EventSource, TraceEvent};
use nix::time::{ClockId, clock_gettime};

use super::Recorder;

/// Timeout of a read, after which the thread checks if it is to end.
const PATIENCE: Duration = Duration::from_millis(200);

/// Thread that reads events. Dropping this ends the thread.
pub(crate) struct TraceReader {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TraceReader {
    /// Starts to read events.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(events: Box<dyn EventSource>, recorder: Arc<Recorder>) -> io::Result<TraceReader> {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = thread::Builder::new().name("events".to_owned());
        let thread = thread.spawn(move || listen(events, &recorder, &is_over))?;
        Ok(TraceReader { over, thread: Some(thread) })
    }
}

impl Drop for TraceReader {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic of a thread is already printed.
            let _ = thread.join();
        }
    }
}

fn listen(mut events: Box<dyn EventSource>, recorder: &Recorder, over: &AtomicBool) {
    let (mut lost, mut fails) = (events.lost(), false);
    while !over.load(Relaxed) {
        match events.read(PATIENCE) {
            Ok(batch) => {
                fails = false;
                let epoch = boot_time();
                batch.iter().for_each(|event| record_event(recorder, event, epoch));
            }
            Err(error) => {
                if !fails {
                    tracing::warn!(%error, "failed to read events of the data plane: the access log has gaps");
                }
                fails = true;
                thread::sleep(PATIENCE);
            }
        }
        let now_lost = events.lost();
        if now_lost > lost {
            recorder.missed(now_lost - lost);
        }
        lost = now_lost;
    }
    // Reads the events that were reported before the end.
    if let Ok(batch) = events.read(Duration::ZERO) {
        let epoch = boot_time();
        batch.iter().for_each(|event| record_event(recorder, event, epoch));
    }
}

fn record_event(recorder: &Recorder, event: &TraceEvent, epoch: SystemTime) {
    let at = |ns| epoch + Duration::from_nanos(ns);
    match event {
        TraceEvent::Connection(event) => recorder.connection(event, at(event.at_ns)),
        TraceEvent::Packet(event) => recorder.packet(event, at(event.at_ns)),
    }
}

/// Returns the wall clock time at which the monotonic clock was zero.
fn boot_time() -> SystemTime {
    let since = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    SystemTime::now().checked_sub(since).unwrap_or(SystemTime::UNIX_EPOCH)
}
