//! Subscribers with a thread each, so that a slow or blocked subscriber does not delay the others.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::{Bus, BusItem};

/// Time for subscribers to finish with the last events.
const PATIENCE: Duration = Duration::from_secs(2);

/// Threads of subscribers. Dropping this ends the bus, and waits until they have read all events.
#[derive(Debug)]
pub(crate) struct Readers {
    bus: Bus,
    /// Each thread holds a clone, and `ended` is closed once all clones are dropped. `None` once no
    /// more threads may start.
    running: Option<Sender<Infallible>>,
    ended: Receiver<Infallible>,
}

impl Readers {
    pub(crate) fn new(bus: Bus) -> Readers {
        let (running, ended) = channel();
        Readers { bus, running: Some(running), ended }
    }

    pub(crate) fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Starts a thread with this name that passes all events to `take`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn spawn(&self, name: &str, mut take: impl FnMut(BusItem) + Send + 'static) -> io::Result<()> {
        let running = self.running.clone();
        let mut listener = self.bus.listen();
        let read = move || {
            let _running = running;
            while let Some(item) = listener.wait() {
                take(item);
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(read).map(drop)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.bus.end();
        self.running = None;
        // No value is ever sent. This returns once all threads have ended, or at the timeout.
        let _ = self.ended.recv_timeout(PATIENCE);
    }
}
