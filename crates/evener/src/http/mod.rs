//! HTTP through hyper: requests to web servers ([`client`]), and connections of clients
//! ([`server`]).

pub(crate) mod client;
pub(crate) mod client_stream;
mod request_stream;
pub(crate) mod server;

use std::io;
use std::time::{Duration, SystemTime};

use evener_core::net::http::{CACHE_CONTROL, Response, SERVER};
use http_body_util::Full;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL as CACHE_CONTROL_FIELD, CONTENT_TYPE, HeaderValue, SERVER as SERVER_FIELD,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, sink};

/// Converts a response for hyper, which adds the Connection field itself and omits bodies for HEAD.
pub(crate) fn to_hyper(response: Response) -> hyper::Response<Full<Bytes>> {
    let Response { status, kind, fields, body } = response;
    let mut builder = hyper::Response::builder()
        .status(status)
        .header(SERVER_FIELD, HeaderValue::from_static(SERVER))
        .header(CACHE_CONTROL_FIELD, HeaderValue::from_static(CACHE_CONTROL));
    if let Some(kind) = kind {
        builder = builder.header(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    for (name, value) in fields {
        builder = builder.header(name, value);
    }
    builder.body(Full::from(body)).unwrap_or_else(|error| {
        tracing::error!(%error, "a response has an invalid header field");
        let mut response = hyper::Response::default();
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// Returns the bytes of a connection's last response.
pub(crate) fn last_bytes(response: &Response) -> Vec<u8> {
    let Response { status, kind, fields, body } = response;
    let reason = StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
    let date = httpdate::fmt_http_date(SystemTime::now());
    let mut out = format!(
        "HTTP/1.1 {status} {}\r\nServer: {SERVER}\r\nDate: {date}\r\nConnection: close\r\n",
        reason.unwrap_or_default()
    );
    let kind = kind.map(|kind| ("Content-Type", kind)).into_iter();
    let others = fields.iter().map(|(name, value)| (*name, value.as_str()));
    for (name, value) in kind.chain([("Cache-Control", CACHE_CONTROL)]).chain(others) {
        out += &format!("{name}: {value}\r\n");
    }
    out += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    out.into_bytes()
}

/// Sends the last bytes of a connection, within a time limit. With `lingers` the client's further
/// bytes are read and dropped, so that no reset overtakes the response (RFC 9112, section 9.6).
pub(crate) async fn end(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    last: &[u8],
    lingers: bool,
    within: Duration,
) {
    let ending = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        if lingers {
            copy(&mut stream, &mut sink()).await?;
        }
        io::Result::Ok(())
    };
    // A client that has disconnected needs no orderly end.
    let _ = tokio::time::timeout(within, ending).await;
}

#[cfg(test)]
mod tests {
    use evener_core::net::http::HttpRefusal;

    use super::*;

    #[test]
    fn every_http_refusal_has_an_answer() {
        for refusal in HttpRefusal::ALL {
            let text = String::from_utf8(last_bytes(&Response::refusal(refusal))).unwrap_or_default();
            let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.split_once(' '));
            let reason = status.and_then(|(_, rest)| rest.split_once("\r\n"));
            assert_eq!(status.map(|(status, _)| status.to_owned()), Some(refusal.status().to_string()));
            assert!(reason.is_some_and(|(reason, _)| !reason.is_empty()), "{text}");
            assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
            assert!(text.ends_with(&format!("\r\n\r\n{}\n", refusal.sentence())), "{text}");
        }
    }
}
