//! Clients that send their whole request and then close their direction, and servers that respond
//! only on the test's signal.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::evener::Session;
use crate::harness::wait::LONG;
use crate::network::host::Host;

/// Length of a response in bytes, more than one flight.
const ANSWER_LEN: usize = 200_000;
/// Interval at which a server checks for the signal.
const POLL: Duration = Duration::from_millis(20);
/// Idle time of a connection before its response, in seconds: longer than the tests' timeout
/// `closing` of a second.
const SILENCE_S: u64 = 3;

/// Servers on a port of several hosts. The servers accept connections until the test process ends.
#[derive(Debug)]
pub struct Late {
    may: Arc<AtomicBool>,
}

impl Late {
    pub fn start(hosts: &[Host], port: u16) -> Result<Late> {
        let may = Arc::new(AtomicBool::new(false));
        for host in hosts {
            // for both families
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

    /// Signals the servers to respond, on existing and on new connections.
    pub fn answer(&self) {
        self.may.store(true, Relaxed);
    }
}

/// Reads a client's whole request, and responds after the signal.
fn answer(mut stream: TcpStream, may: &AtomicBool) -> std::io::Result<()> {
    stream.read_to_end(&mut Vec::new())?;
    while !may.load(Relaxed) {
        thread::sleep(POLL);
    }
    stream.write_all(&[b'x'; ANSWER_LEN])
}

/// Connections on which a client has sent its whole request.
#[derive(Debug)]
pub struct LateRequests(Vec<TcpStream>);

impl LateRequests {
    /// Opens a number of connections, sends the text on each, and closes the client's direction.
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

    /// Reads and checks the whole response on each connection.
    pub fn read_answers(self) -> Result<()> {
        for (number, mut stream) in self.0.into_iter().enumerate() {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).with_context(|| format!("connection {number}"))?;
            ensure!(answer == [b'x'; ANSWER_LEN], "connection {number} heard {} bytes", answer.len());
        }
        Ok(())
    }
}

/// Number of half-closed sessions that have been idle for longer than the timeout of closing
/// sessions.
pub fn silent(sessions: &[Session]) -> usize {
    let half = sessions.iter().filter(|session| session.state == "half-closed");
    half.filter(|session| session.idle_seconds >= SILENCE_S).count()
}
