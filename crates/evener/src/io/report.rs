//! Asks a server for its load, at an address of its own.

use std::net::SocketAddr;
use std::time::Duration;

use evener_core::pool::report::{
    BANDWIDTH_MAX, BYTES_MAX, BadReport, DELAY_MAX, LOAD_MAX, Report, UTILISATION_MAX, agent_check,
    agent_line, mod_status, number,
};
use evener_core::pool::{ReportKind, Reporting};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The most that is read of an answer, in bytes: more is no report.
const ANSWER_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// Asks once. Takes no longer than the question says, and may be dropped at any time.
///
/// # Errors
/// Why what came isn't believed.
pub async fn fetch(to: SocketAddr, settings: &Reporting) -> Result<Report, BadReport> {
    let timeout = Duration::from_millis(settings.timeout_ms);
    let answer = tokio::time::timeout(timeout, answer(to, settings)).await;
    let answer = answer.map_err(|_| BadReport::Silent)?.map_err(|_| BadReport::Silent)?;
    match &settings.kind {
        _ if answer.is_empty() => Err(BadReport::Silent),
        _ if answer.len() > ANSWER_MAX => Err(BadReport::Unreadable),
        ReportKind::AgentCheck => agent_check(&answer),
        ReportKind::Http(_) => load(body(&answer)?),
        ReportKind::ModStatus(_) => mod_status(body(&answer)?),
    }
}

/// All that the server says until it ends the connection, or the line is complete.
async fn answer(to: SocketAddr, settings: &Reporting) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to).await?;
    let is_line = matches!(settings.kind, ReportKind::AgentCheck);
    if let ReportKind::Http(target) | ReportKind::ModStatus(target) = &settings.kind {
        // Of version 1.0, so that a page doesn't come in chunks.
        let request = format!(
            "GET {target} HTTP/1.0\r\nHost: {}\r\nUser-Agent: evener\r\nAccept: application/json, text/plain\r\nConnection: close\r\n\r\n",
            to
        );
        stream.write_all(request.as_bytes()).await?;
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while answer.len() <= ANSWER_MAX {
        let len = stream.read(&mut buffer).await?;
        answer.extend_from_slice(buffer.get(..len).unwrap_or_default());
        if len == 0 || is_line && agent_line(&answer).is_some() || !is_line && is_complete(&answer) {
            break;
        }
    }
    Ok(answer)
}

/// A response, as far as it has come.
struct HttpResponse<'a> {
    is_good: bool,
    body: &'a [u8],
    /// Of the body, if the head says it.
    length: Option<usize>,
}

/// Reads a response; `None` until its head is there. A chunked one isn't read: a report is short.
fn response(answer: &[u8]) -> Result<Option<HttpResponse<'_>>, BadReport> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut headers);
    let head = match parsed.parse(answer).map_err(|_| BadReport::Unreadable)? {
        httparse::Status::Complete(head) => head,
        httparse::Status::Partial => return Ok(None),
    };
    let length = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    Ok(Some(HttpResponse {
        is_good: parsed.code == Some(200),
        body: answer.get(head..).unwrap_or_default(),
        length,
    }))
}

/// Whether a response has all that its head says: some servers leave the connection open whatever
/// they are asked.
fn is_complete(answer: &[u8]) -> bool {
    let Ok(Some(HttpResponse { body, length: Some(length), .. })) = response(answer) else { return false };
    body.len() >= length
}

/// The body of a good response.
fn body(answer: &[u8]) -> Result<&[u8], BadReport> {
    let response = response(answer)?.filter(|response| response.is_good).ok_or(BadReport::Unreadable)?;
    let length = response.length.unwrap_or(response.body.len());
    response.body.get(..length).ok_or(BadReport::Unreadable)
}

/// Reads a report in JSON: the names of `/v1/load` of an agent, or those of an ORCA load report.
pub(crate) fn load(json: &[u8]) -> Result<Report, BadReport> {
    let Ok(Value::Object(object)) = serde_json::from_slice(json) else { return Err(BadReport::Unreadable) };
    let read = |names: &[&str], parts: u32, max: u64| -> Result<Option<u64>, BadReport> {
        match names.iter().find_map(|name| object.get(*name).filter(|value| !value.is_null())) {
            Some(value) => {
                let value = value.as_f64().ok_or(BadReport::NotANumber)?;
                number(value, parts, max).map(Some)
            }
            None => Ok(None),
        }
    };
    let of_application = read(&["application", "application_utilization"], 1_000, UTILISATION_MAX)?;
    let of_processors = read(&["cpu", "cpu_utilization"], 1_000, UTILISATION_MAX)?;
    let (bytes, least) = (read(&["bytes_to_send"], 1, BYTES_MAX)?, read(&["lower_bound"], 1, BYTES_MAX)?);
    if least > bytes.or(least) {
        return Err(BadReport::Odd);
    }
    let report = Report {
        // 0 is what ORCA writes for an application that doesn't know.
        utilisation_permille: of_application.filter(|permille| *permille > 0).or(of_processors),
        load_milli: read(&["load"], 1_000, LOAD_MAX)?,
        requests_milli: read(&["requests_per_second", "rps_fractional"], 1_000, LOAD_MAX)?,
        errors_milli: read(&["errors_per_second", "eps"], 1_000, LOAD_MAX)?,
        bytes_to_send: bytes.or(least),
        delay_us: read(&["delay_seconds"], 1_000_000, DELAY_MAX)?,
        available_bps: read(&["available_bps"], 1, BANDWIDTH_MAX)?,
        bottleneck_bps: read(&["bottleneck_bps"], 1, BANDWIDTH_MAX)?,
        percent: None,
        claim: None,
    };
    if report == Report::default() { Err(BadReport::Unreadable) } else { Ok(report) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn settings(to: SocketAddr, kind: ReportKind) -> Reporting {
        Reporting { kind, port: to.port(), interval_ms: 2_000, timeout_ms: 400 }
    }

    /// The result for a server that sends this, and leaves the connection open.
    async fn report_of(kind: ReportKind, reply: &'static [u8]) -> Result<Report, BadReport> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(reply).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await
        });
        let result = fetch(to, &settings(to, kind)).await;
        server.abort();
        result
    }

    #[tokio::test]
    async fn agent_reports_are_parsed() {
        let percent = report_of(ReportKind::AgentCheck, b"up 40%\n").await.unwrap().percent;
        assert_eq!(percent, Some(40));
        assert_eq!(
            report_of(ReportKind::AgentCheck, b"40%").await,
            Err(BadReport::Silent),
            "no end of the line"
        );
        let target = || ReportKind::Http("/v1/load".to_owned());
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{\"cpu\":0.5,\"delay_seconds\":0.2}xx";
        assert_eq!(report_of(target(), answer).await, Err(BadReport::Unreadable), "cut off");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\n{\"cpu\":0.5,\"delay_seconds\":0.2}";
        let report = report_of(target(), answer).await.unwrap();
        assert_eq!((report.utilisation_permille, report.delay_us), (Some(500), Some(200_000)));
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(report_of(target(), answer).await, Err(BadReport::Unreadable));
        assert_eq!(report_of(target(), b"nonsense\r\n\r\n").await, Err(BadReport::Silent));
    }

    #[tokio::test]
    async fn missing_agent_reports_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        assert_eq!(fetch(to, &settings(to, ReportKind::AgentCheck)).await, Err(BadReport::Silent), "no word");
        drop(listener);
        assert_eq!(
            fetch(to, &settings(to, ReportKind::AgentCheck)).await,
            Err(BadReport::Silent),
            "no listener"
        );
    }

    #[test]
    fn names_of_both_tongues_are_read() {
        let orca = br#"{"cpu_utilization":0.7,"application_utilization":0,"rps_fractional":12.5,"eps":1}"#;
        let report = load(orca).unwrap();
        assert_eq!(report.utilisation_permille, Some(700), "an application that doesn't know says 0");
        assert_eq!((report.requests_milli, report.errors_milli), (Some(12_500), Some(1_000)));
        let own = br#"{"load":35.5,"cpu":null,"bytes_to_send":1048576,"available_bps":4e6}"#;
        let report = load(own).unwrap();
        assert_eq!((report.load_milli, report.bytes_to_send), (Some(35_500), Some(1 << 20)));
        assert_eq!((report.available_bps, report.bottleneck_bps), (Some(4_000_000), None));
        for (bad, why) in [
            (&br#"{"cpu":-1}"#[..], BadReport::NotANumber),
            (br#"{"cpu":"much"}"#, BadReport::NotANumber),
            (br#"{"cpu":1e9}"#, BadReport::Absurd),
            (br#"{"bottleneck_bps":1e14}"#, BadReport::Absurd),
            (br#"{"cpu":NaN}"#, BadReport::Unreadable),
            (br#"{"bytes_to_send":9,"lower_bound":10}"#, BadReport::Odd),
            (br#"{"weather":1}"#, BadReport::Unreadable),
            (b"[]", BadReport::Unreadable),
            (b"", BadReport::Unreadable),
        ] {
            assert_eq!(load(bad), Err(why), "{}", String::from_utf8_lossy(bad));
        }
    }
}
