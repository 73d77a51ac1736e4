//! `[agent]`: what servers measure, and to whom they tell it.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

use evener_core::net::http::Url;
use evener_core::net::prefix::Prefix;
use toml::Spanned;
use toml::de::DeValue;

use super::keys::tables::agent as keys;
use super::references::MemberFiles;
use super::section::{Complaint, Section};
use super::{MemberConfig, addresses, defaults, member, values};

/// How a server tells its load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// Time between two measurements, in milliseconds.
    pub report_ms: u64,
    /// Where it is told by HTTP; `None`: nowhere.
    pub listen: Option<AgentListen>,
    /// Where it is told as HAProxy's agent-check; `None`: nowhere.
    pub check_listen: Option<AgentListen>,
    /// Beside this host and the directors, the networks that may ask.
    pub allow: Vec<Prefix>,
    /// The page on which the server program counts its requests.
    pub status_url: Option<Url>,
    /// The control group whose processes are the server's, below the file system of control groups;
    /// `None`: all of the machine's, or of the container's.
    pub cgroup: Option<PathBuf>,
    /// How the delay is reckoned.
    pub delay: DelayKind,
    /// How it is a member of server groups.
    pub member: MemberConfig,
}

/// How the time is reckoned that a server takes to send what it has to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DelayKind {
    /// The delay of outstanding bytes, by the recent rates of the link and clients' paths.
    #[default]
    Corrected,
    /// Equations 2.3 to 2.5 of the load-balancing agent's paper.
    Paper,
}

pub(super) const DELAYS: [(&str, DelayKind); 2] =
    [("corrected", DelayKind::Corrected), ("paper", DelayKind::Paper)];

/// Where an agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentListen {
    /// At one address.
    At(SocketAddr),
    /// At all addresses of the host, of IPv4 and IPv6.
    Everywhere {
        /// The TCP port.
        port: u16,
    },
}

impl fmt::Display for AgentListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentListen::At(address) => address.fmt(f),
            AgentListen::Everywhere { port } => write!(f, ":{port}"),
        }
    }
}

impl AgentConfig {
    /// Whether only this host, directors and [`AgentConfig::allow`] may ask there. At an address of
    /// its own whoever reaches it may, unless the file says who may.
    pub fn is_restricted(&self, listen: AgentListen) -> bool {
        !self.allow.is_empty() || matches!(listen, AgentListen::Everywhere { .. })
    }
}

pub(super) fn read(section: &Section<'_>, files: &mut MemberFiles) -> AgentConfig {
    AgentConfig {
        report_ms: section.time_or(&keys::REPORT),
        listen: section.or(&keys::LISTEN, listen, Some(AgentListen::At(defaults::LOAD_LISTEN))),
        check_listen: section.or(&keys::CHECK_LISTEN, listen, None),
        allow: section.list(&keys::ALLOW, addresses::prefix).into_iter().map(Spanned::into_inner).collect(),
        status_url: section.get(&keys::STATUS_URL, status_url).map(Spanned::into_inner),
        cgroup: section.get(&keys::CGROUP, cgroup).map(Spanned::into_inner),
        delay: section.word(&keys::DELAY, &DELAYS),
        member: section.section(&keys::MEMBER, |section| member::read(section, files)),
    }
}

/// An address with port, a port of all addresses, or nowhere.
fn listen(value: &DeValue<'_>) -> Result<Option<AgentListen>, Complaint> {
    let text = values::text(value)?;
    if text == "none" {
        return Ok(None);
    }
    let everywhere = text.strip_prefix(':').and_then(|port| port.parse().ok()).filter(|port| *port > 0);
    let listen = everywhere.map(|port| AgentListen::Everywhere { port });
    match listen.or_else(|| text.parse().ok().map(AgentListen::At)) {
        Some(listen) => Ok(Some(listen)),
        None => Complaint::new(
            format!("is not an address with port: {text:?}"),
            "write for example \"127.0.0.1:9183\", \":9183\" for every address of the host, or \"none\"",
        ),
    }
}

/// A control group by its path, with or without the place where its file system is.
fn cgroup(value: &DeValue<'_>) -> Result<PathBuf, Complaint> {
    let path = values::path(value)?;
    let below = path.strip_prefix("/sys/fs/cgroup").unwrap_or(&path);
    let below = below.strip_prefix("/").unwrap_or(below);
    let is_plain = |path: &Path| path.components().all(|one| matches!(one, Component::Normal(_)));
    if !below.as_os_str().is_empty() && is_plain(below) {
        return Ok(below.to_owned());
    }
    Complaint::new(
        format!("is no control group: {:?}", path.display().to_string()),
        "write for example \"system.slice/nginx.service\", as `systemctl show -p ControlGroup nginx` has it",
    )
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
