//! Probes through this host's own stack. These probes test this host itself, if the director is
//! also a server (LSMAC, section 4.2.4), and NAT servers, which have their own addresses.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use evener_core::pool::HealthKind;
use evener_core::pool::health::Failure;
use evener_core::pool::reply::ReplyVerdict;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout as within;

use super::Target;
use super::dialogue::ProbeDialogue;
use super::link;

/// Opens a connection to `to`, runs the dialogue, and resets the connection.
pub(super) async fn probe(
    target: &Target,
    to: SocketAddr,
    kind: &HealthKind,
    timeout: Duration,
) -> Result<(), Failure> {
    let mut dialogue = ProbeDialogue::new(kind, target.destination, false)?;
    let mut opened = false;
    let talk = within(timeout, talk(to, &mut dialogue, &mut opened)).await;
    talk.unwrap_or_else(|_| Err(dialogue.late(opened, timeout)))
}

async fn talk(to: SocketAddr, dialogue: &mut ProbeDialogue<'_>, opened: &mut bool) -> Result<(), Failure> {
    let mut stream = TcpStream::connect(to).await.map_err(failure)?;
    *opened = true;
    // Avoids ports in TIME-WAIT.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).map_err(failure)?;
    if dialogue.wants_nothing() {
        return Ok(());
    }
    let mut buffer = [0; 4096];
    loop {
        stream.write_all(&dialogue.outgoing()).await.map_err(failure)?;
        let len = stream.read(&mut buffer).await.map_err(failure)?;
        let received = buffer.get(..len).filter(|received| !received.is_empty());
        match received.map(|received| dialogue.receive(received)) {
            Some(ReplyVerdict::More) => {}
            Some(ReplyVerdict::Ok) => return Ok(()),
            Some(ReplyVerdict::Failed(failure)) => return Err(failure),
            None => return dialogue.ended(),
        }
    }
}

fn failure(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::ConnectionRefused => Failure::Refused,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Failure::Reset,
        _ => link::failure(&error, format!("this host's own stack: {error}")),
    }
}
