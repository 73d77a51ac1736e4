//! Clients that say all that they have to say, and close their half; servers that answer only when
//! they are told to.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::evener::Session;
use crate::host::Host;
use crate::wait::LONG;

/// Bytes of an answer: too many for one flight.
const ANSWER_LEN: usize = 200_000;
/// How often a server looks whether it may answer.
const POLL: Duration = Duration::from_millis(20);
/// How long a connection is silent before it is answered, in seconds: longer than `closing` in
/// tests, which is a second.
const SILENCE_S: u64 = 3;

/// Servers on a port of these hosts. They take connections as long as the program runs.
#[derive(Debug)]
pub struct Late {
    may: Arc<AtomicBool>,
}

impl Late {
    /// Starts a server on each host.
    pub fn start(hosts: &[Host], port: u16) -> Result<Late> {
        let may = Arc::new(AtomicBool::new(false));
        for host in hosts {
            // of both families
            let listener = host.enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)))??;
            let may = Arc::clone(&may);
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let Ok(stream) = stream else { return };
                    let may = Arc::clone(&may);
                    thread::spawn(move || answer(stream, &may));
                }
            });
        }
        Ok(Late { may })
    }

    /// Answers all who have said all, and whoever comes.
    pub fn answer(&self) {
        self.may.store(true, Relaxed);
    }
}

/// Hears all that a client says, and answers when it may.
fn answer(mut stream: TcpStream, may: &AtomicBool) -> std::io::Result<()> {
    stream.read_to_end(&mut Vec::new())?;
    while !may.load(Relaxed) {
        thread::sleep(POLL);
    }
    stream.write_all(&[b'x'; ANSWER_LEN])
}

/// Connections of a client that has said all on each of them.
#[derive(Debug)]
pub struct LateRequests(Vec<TcpStream>);

impl LateRequests {
    /// Opens so many, says this on each, and closes this half of it.
    pub fn by(client: &Host, service: SocketAddr, count: usize, text: &str) -> Result<LateRequests> {
        let connect = || -> Result<TcpStream> {
            let mut stream = client.enter(|| TcpStream::connect_timeout(&service, LONG))??;
            stream.set_read_timeout(Some(LONG))?;
            stream.write_all(text.as_bytes())?;
            stream.shutdown(Shutdown::Write)?;
            Ok(stream)
        };
        (0..count).map(|_| connect()).collect::<Result<_>>().map(LateRequests)
    }

    /// Hears the whole answer on each.
    pub fn read_answers(self) -> Result<()> {
        for (number, mut stream) in self.0.into_iter().enumerate() {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).with_context(|| format!("connection {number}"))?;
            ensure!(answer == [b'x'; ANSWER_LEN], "connection {number} heard {} bytes", answer.len());
        }
        Ok(())
    }
}

/// How many of these sessions are half closed, and silent for longer than a connection is kept
/// whose halves are both closed.
pub fn silent(sessions: &[Session]) -> usize {
    let half = sessions.iter().filter(|session| session.state == "half-closed");
    half.filter(|session| session.idle_seconds >= SILENCE_S).count()
}
