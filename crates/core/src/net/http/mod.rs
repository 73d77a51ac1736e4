//! HTTP/1 as a front needs it (RFC 9110, RFC 9112): heads of requests are read, and answers that the front gives by itself are
//! written. Bytes in, bytes out.

mod answer;
mod host;
mod request;
mod send_timeout;
#[cfg(test)]
mod tests;
mod url;

pub use answer::{Frame, Status, redirect, refuse, tell, without_body};
pub use host::{host_of, normal_path};
pub use request::{Body, HEAD_MAX, Reading, Refusal, Request, agree, read, stays_inside};
pub use send_timeout::SendTimeout;
pub use url::{URL_MAX, Url, UrlError};
