//! One client: read, then given to a server, or told why not.

use std::sync::atomic::Ordering::Relaxed;

use evener_dataplane::repair;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::head::{HEAD_MAX, Judged, Refusal, Wanted, judge};
use super::{Chosen, Ends, PATIENCE, Question, Reader, reset};
use crate::lccp::Given;

/// Bytes that are read before somebody must be found for them.
const READ_MAX: usize = HEAD_MAX + 16 * 1024;
/// SETTINGS, and GOAWAY with HTTP_1_1_REQUIRED (RFC 9113, sections 6.5, 6.8 and 7).
const HTTP_1_REQUIRED: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d";

/// What a client's first bytes led to.
enum Read {
    Wanted(Wanted),
    Refused(Refusal),
    Late,
    Left,
}

/// Talks with a client until it is somebody else's.
pub(super) async fn hold(mut stream: TcpStream, ends: Ends, reader: &Reader) {
    let mut bytes = Vec::new();
    let outcomes = &reader.outcomes;
    let read = timeout(PATIENCE, read(&mut stream, &mut bytes)).await.unwrap_or(Read::Late);
    match read {
        Read::Wanted(wanted) => pass_on(stream, ends, bytes, wanted, reader).await,
        Read::Refused(refusal) => {
            outcomes.refused.fetch_add(1, Relaxed);
            tracing::debug!(client = %ends.client, ?refusal, "refused");
            refuse(&mut stream, refusal).await;
        }
        Read::Late => {
            outcomes.late.fetch_add(1, Relaxed);
            // Who has not said a whole request is told so (RFC 9110, section 15.5.9); of TLS nothing can be told.
            if bytes.first().is_some_and(u8::is_ascii_alphabetic) {
                answer(&mut stream, "408 Request Timeout").await;
            } else {
                reset(&stream);
            }
        }
        Read::Left => {
            outcomes.left.fetch_add(1, Relaxed);
        }
    }
}

/// Reads until it is clear what the client wants.
async fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Read {
    let mut buffer = vec![0; 16 * 1024];
    while bytes.len() < READ_MAX {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return Read::Left,
            Ok(len) => bytes.extend_from_slice(buffer.get(..len).unwrap_or_default()),
        }
        match judge(bytes) {
            Judged::Wanted(wanted) => return Read::Wanted(wanted),
            Judged::Refused(refusal) => return Read::Refused(refusal),
            Judged::Incomplete => {}
        }
    }
    Read::Refused(Refusal::HeadTooLarge)
}

async fn pass_on(stream: TcpStream, ends: Ends, bytes: Vec<u8>, wanted: Wanted, reader: &Reader) {
    let (text, is_hello) = (wanted.text(), wanted.is_hello());
    let (answer_to, chosen) = oneshot::channel();
    let advice = match &reader.speaker {
        Some(speaker) => speaker.dispatch(&ends, &wanted).await,
        None => None,
    };
    let asked = reader.questions.send(Question::Choose { ends, wanted, advice, answer: answer_to }).await;
    let chosen = if asked.is_ok() { chosen.await.ok().flatten() } else { None };
    if let Some(speaker) =
        reader.speaker.as_ref().filter(|_| advice.is_some() && !chosen.is_some_and(|c| c.advised))
    {
        speaker.disbelieve();
    }
    let Some(chosen) = chosen else {
        reader.outcomes.unserved.fetch_add(1, Relaxed);
        tracing::debug!(client = %ends.client, text, "nobody serves this");
        let mut stream = stream;
        if is_hello {
            return reset(&stream);
        }
        return answer(&mut stream, "503 Service Unavailable").await;
    };
    match give(stream, ends, &bytes, chosen, reader).await {
        Ok(()) => {
            reader.outcomes.given.fetch_add(1, Relaxed);
            tracing::debug!(client = %ends.client, text, server = chosen.server, "given");
        }
        Err(stream) => {
            reader.outcomes.spliced.fetch_add(1, Relaxed);
            splice(stream, &bytes, chosen).await;
        }
    }
}

/// Gives the open connection to the server; or gives it back, as it was.
async fn give(
    stream: TcpStream,
    ends: Ends,
    bytes: &[u8],
    chosen: Chosen,
    reader: &Reader,
) -> Result<(), TcpStream> {
    let keep = || reader.questions.send(Question::Keep { ends });
    if !chosen.takes {
        let _ = keep().await;
        return Err(stream);
    }
    // No more are sent here since it was chosen.
    if !reader.on_the_way.is_zero() {
        sleep(reader.on_the_way).await;
    }
    let Ok(socket) = stream.into_std() else { return Ok(()) };
    let saved = match repair::save(socket, bytes) {
        Ok(saved) => saved,
        Err(not_saved) => {
            tracing::debug!(client = %ends.client, error = %not_saved.error, "not given");
            let _ = keep().await;
            return match TcpStream::from_std(not_saved.socket) {
                Ok(stream) => Err(stream),
                Err(_) => Ok(()),
            };
        }
    };
    let told = match &reader.speaker {
        Some(speaker) => speaker.give(chosen.own.ip(), &saved).await,
        None => Given::Unspoken,
    };
    if told != Given::Refused {
        // Where nobody says that the server has it, its segments go there as they did here: they make no second socket.
        let is_there = told == Given::Taken;
        let packets = if is_there { Vec::new() } else { repair::replay(&saved, chosen.mss) };
        let (answer, given) = oneshot::channel();
        let question = Question::Give { ends, server: chosen.server, packets, answer };
        let given = reader.questions.send(question).await.is_ok() && given.await.unwrap_or_default();
        // What may be there must not be here, too.
        if given || matches!(told, Given::Taken | Given::Unanswered) {
            return Ok(());
        }
    }
    let _ = keep().await;
    match repair::restore(&saved).map(TcpStream::from_std) {
        Ok(Ok(stream)) => Err(stream),
        _ => Ok(()),
    }
}

/// Carries the bytes both ways, where the connection can't be given: it is served all the same.
async fn splice(mut stream: TcpStream, bytes: &[u8], chosen: Chosen) {
    match timeout(PATIENCE, TcpStream::connect(chosen.own)).await {
        Ok(Ok(mut server)) => {
            if server.write_all(bytes).await.is_ok() {
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            }
        }
        _ => answer(&mut stream, "502 Bad Gateway").await,
    }
}

async fn refuse(stream: &mut TcpStream, refusal: Refusal) {
    match refusal {
        Refusal::BadRequest => answer(stream, "400 Bad Request").await,
        Refusal::Misdirected => answer(stream, "421 Misdirected Request").await,
        Refusal::HeadTooLarge => answer(stream, "431 Request Header Fields Too Large").await,
        Refusal::Http2 => end(stream, HTTP_1_REQUIRED).await,
        Refusal::Unreadable => reset(stream),
    }
}

/// Answers, and hangs up.
async fn answer(stream: &mut TcpStream, status: &str) {
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{status}\n",
        status.len() + 1
    );
    end(stream, text.as_bytes()).await;
}

/// Says the last word, and waits a moment for the client to hear it: unread bytes would make a reset of the end
/// (RFC 9112, section 9.6).
async fn end(stream: &mut TcpStream, word: &[u8]) {
    let mut rest = [0; 4096];
    let say = async {
        if stream.write_all(word).await.is_ok() && stream.shutdown().await.is_ok() {
            while matches!(stream.read(&mut rest).await, Ok(1..)) {}
        }
    };
    let _ = timeout(PATIENCE / 5, say).await;
}
