//! HTTP/1 (RFC 9110, RFC 9112): parsing of request heads, and responses that Evener itself sends.

mod host;
mod refusal;
mod request;
mod requests;
mod response;
mod send_timeout;
#[cfg(test)]
mod tests;
mod url;

pub use host::{has_hidden_dots, host_of, normal_path};
pub use refusal::HttpRefusal;
pub use request::{BodyFraming, HEAD_MAX, HEADERS_MAX, HeadParse, Request, read, read_within};
pub use requests::{RequestProgress, Requests};
pub use response::{CACHE_CONTROL, RedirectStatus, Response, SERVER};
pub use send_timeout::SendTimeout;
pub use url::{URL_MAX, Url, UrlError};
