//! `[agent]`: what servers measure, and to whom they tell it.

use std::net::SocketAddr;

use evener_core::net::http::Url;
use toml::Spanned;
use toml::de::DeValue;

use super::section::{Complaint, Section};
use super::{defaults, values};

/// How a server tells its load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// Time between two measurements, in milliseconds.
    pub report_ms: u64,
    /// Where it is told by HTTP; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Where it is told as HAProxy's agent-check; `None`: nowhere.
    pub check_listen: Option<SocketAddr>,
    /// The page on which the server program counts its requests.
    pub status_url: Option<Url>,
}

pub(super) fn read(section: &mut Section<'_>) -> AgentConfig {
    AgentConfig {
        report_ms: section.or("report", values::duration_ms(defaults::REPORT_MS), defaults::MEASURE_MS),
        listen: section.or("listen", values::listen, Some(defaults::LOAD_LISTEN)),
        check_listen: section.or("check_listen", values::listen, None),
        status_url: section.get("status_url", status_url).map(Spanned::into_inner),
    }
}

fn status_url(value: &DeValue<'_>) -> Result<Url, Complaint> {
    let text = values::text(value)?;
    let help =
        "write for example \"http://127.0.0.1/nginx_status\" or \"http://127.0.0.1/server-status?auto\"";
    match Url::parse(&text) {
        Ok(url) if !url.is_secure() => Ok(url),
        Ok(_) => Complaint::new("is asked for without TLS", help),
        Err(_) => Complaint::new(format!("is not an http URL: {text:?}"), help),
    }
}
