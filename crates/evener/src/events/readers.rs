//! Readers of the bus with a thread each: one that writes to something slow, or stuck, has no other
//! wait.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::{Bus, BusItem};

/// Time in which readers may finish with the last events.
const PATIENCE: Duration = Duration::from_secs(2);

/// The threads. Dropping this ends the bus, and waits until they have read it to its end.
#[derive(Debug)]
pub(crate) struct Readers {
    bus: Bus,
    /// Each thread has a clone: without any, `ended` is closed. `None` once no more begin.
    running: Option<Sender<Infallible>>,
    ended: Receiver<Infallible>,
}

impl Readers {
    /// Without a thread so far.
    pub(crate) fn new(bus: Bus) -> Readers {
        let (running, ended) = channel();
        Readers { bus, running: Some(running), ended }
    }

    pub(crate) fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Has a thread of this name take all events from now on.
    ///
    /// # Errors
    /// When there is no thread for it.
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
        // Nothing is ever sent: this returns when all threads have ended, or have taken too long.
        let _ = self.ended.recv_timeout(PATIENCE);
    }
}
