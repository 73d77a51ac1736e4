//! HTTP by hyper: requests to web servers, and what programs of ours answer by themselves.

pub(crate) mod client;

use std::time::SystemTime;

use evener_core::net::http::{CACHE_CONTROL, Response, ResponseFraming, SERVER};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL as CACHE_CONTROL_FIELD, CONTENT_TYPE, SERVER as SERVER_FIELD};

/// A response as hyper has it, which says itself how connections go on, and leaves out bodies of
/// responses to HEAD.
pub(crate) fn to_hyper(response: Response) -> hyper::Response<Full<Bytes>> {
    let Response { status, kind, fields, body } = response;
    let mut builder = hyper::Response::builder().status(status).header(SERVER_FIELD, SERVER);
    if let Some(kind) = kind {
        builder = builder.header(CONTENT_TYPE, kind);
    }
    builder = builder.header(CACHE_CONTROL_FIELD, CACHE_CONTROL);
    for (name, value) in fields {
        builder = builder.header(name, value);
    }
    builder.body(Full::from(body)).unwrap_or_else(|error| {
        tracing::error!(%error, "a response has a field that can't be");
        let mut response = hyper::Response::default();
        *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// The bytes of the last response of a connection.
pub(crate) fn last_bytes(response: &Response, is_head: bool) -> Vec<u8> {
    let (mut out, date) = (Vec::new(), httpdate::fmt_http_date(SystemTime::now()));
    response
        .write(&mut out, &ResponseFraming { date: &date, is_head, closes: true, keep_alive_header: false });
    out
}
