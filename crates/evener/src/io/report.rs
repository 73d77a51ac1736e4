//! Queries a server's load, at a separate address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use evener_core::pool::report::{
    BANDWIDTH_MAX, BYTES_MAX, BadReport, DELAY_MAX, LOAD_MAX, Report, UTILISATION_MAX, agent_check,
    agent_line, mod_status, number,
};
use evener_core::pool::{ReportKind, Reporting};
use hyper::header::{ACCEPT, HeaderValue};
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::http::client::{self, Destination};

/// Maximum length of a response in bytes. A longer response is no report.
const ANSWER_MAX: usize = 16 * 1024;

/// Queries a report once, within the timeout of the settings. Cancel safe.
///
/// # Errors
/// The reason why the response is no valid report.
pub async fn fetch(to: SocketAddr, settings: &Reporting) -> Result<Report, BadReport> {
    let timeout = Duration::from_millis(settings.timeout_ms);
    let fetched = tokio::time::timeout(timeout, async {
        match &settings.kind {
            ReportKind::AgentCheck => agent_check(&line(to).await.map_err(|_| BadReport::Silent)?),
            ReportKind::Http(target) => load(&page(to, target).await?),
            ReportKind::ModStatus(target) => mod_status(&page(to, target).await?),
        }
    });
    fetched.await.map_err(|_| BadReport::Silent)?
}

/// Reads the line that a server sends to each client that connects.
async fn line(to: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to).await?;
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    while line.len() <= ANSWER_MAX && agent_line(&line).is_none() {
        match stream.read(&mut buffer).await? {
            0 if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            len => line.extend_from_slice(buffer.get(..len).unwrap_or_default()),
        }
    }
    Ok(line)
}

/// Requests a page from a server.
async fn page(to: SocketAddr, target: &str) -> Result<Vec<u8>, BadReport> {
    let mut request = client::request("GET", target, &to.to_string()).map_err(|_| BadReport::Unreadable)?;
    let accepted = HeaderValue::from_static("application/json, text/plain");
    request.headers_mut().insert(ACCEPT, accepted);
    match client::send(&Destination::plain(to), request, ANSWER_MAX + 1).await {
        Ok(answer) if answer.status == 200 && answer.body.len() <= ANSWER_MAX => Ok(answer.body),
        Ok(_) => Err(BadReport::Unreadable),
        Err(error) if error.is_of_answer() => Err(BadReport::Unreadable),
        Err(_) => Err(BadReport::Silent),
    }
}

/// Parses a report in JSON, with the names of an agent's `/v1/load` or of an ORCA load report.
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
        // ORCA writes 0 if the application's utilisation is unknown.
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
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use evener_core::pool::Period;

    fn settings(to: SocketAddr, kind: ReportKind) -> Reporting {
        Reporting { kind, port: to.port(), interval: Period::always(2_000), timeout_ms: 400 }
    }

    /// Returns the report of a server that sends `reply` and leaves the connection open.
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
        assert_eq!(report_of(target(), b"nonsense\r\n\r\n").await, Err(BadReport::Unreadable));
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
