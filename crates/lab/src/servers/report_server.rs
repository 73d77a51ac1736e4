//! Simulated servers that report the load that a test sets.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use crate::network::host::Host;

/// Server that sends the same report to each client and closes the connection. Dropping the value
/// stops it.
pub struct ReportServer {
    report: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ReportServer {
    /// Starts the server on a host at a TCP port.
    ///
    /// # Errors
    /// Fails if the port is unavailable.
    pub fn start(host: &Host, port: u16, report: &str) -> Result<ReportServer> {
        let listener = host.enter(|| TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))))??;
        listener.set_nonblocking(true)?;
        let (report, stop) = (Arc::new(Mutex::new(report.to_owned())), Arc::new(AtomicBool::new(false)));
        let (words, ended) = (Arc::clone(&report), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => drop(serve(stream, &words)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        thread::sleep(Duration::from_millis(5))
                    }
                    Err(_) => return,
                }
            }
        });
        Ok(ReportServer { report, stop, thread: Some(thread) })
    }

    /// Changes the report.
    ///
    /// # Errors
    /// Fails if the server's thread has panicked.
    pub fn set_report(&self, report: &str) -> Result<()> {
        let mut words = self.report.lock().map_err(|_| anyhow!("The report server's thread panicked"))?;
        *words = report.to_owned();
        Ok(())
    }
}

fn serve(mut stream: TcpStream, words: &Mutex<String>) -> Result<()> {
    stream.set_nonblocking(false)?;
    let report = words.lock().map_err(|_| anyhow!("A test panicked"))?.clone();
    if report.starts_with("HTTP") {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut request = Vec::new();
        let mut buffer = [0; 1024];
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let len = stream.read(&mut buffer)?;
            ensure!(len > 0, "a question ends in the middle");
            request.extend_from_slice(buffer.get(..len).unwrap_or_default());
        }
    }
    stream.write_all(report.as_bytes())?;
    Ok(())
}

impl Drop for ReportServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // tests notice a panic of the thread by themselves
            let _ = thread.join();
        }
    }
}

/// Returns an HTTP response with this body.
pub fn json(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
