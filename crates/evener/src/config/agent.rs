//! `[agent]`: measurements of an agent, and access to them.

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

/// Settings of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// Interval of measurements, in milliseconds.
    pub report_ms: u64,
    /// HTTP address of load reports. `None` for no address.
    pub listen: Option<AgentListen>,
    /// Address of HAProxy's agent-check protocol. `None` for no address.
    pub check_listen: Option<AgentListen>,
    /// Networks that may query, besides this host and the directors.
    pub allow: Vec<Prefix>,
    /// Page of the server program with its number of requests.
    pub status_url: Option<Url>,
    /// Path of the server's control group, below the cgroup file system. `None` for all processes
    /// of the machine or the container.
    pub cgroup: Option<PathBuf>,
    /// Formula of the delay.
    pub delay: DelayKind,
    /// Membership of this host in server groups.
    pub member: MemberConfig,
}

/// Formula of the time that a server takes to send its outstanding bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DelayKind {
    /// From the outstanding bytes and the recent rates of the link and of clients' paths.
    #[default]
    Corrected,
    /// Equations 2.3 to 2.5 of the load-balancing agent's paper.
    Paper,
}

pub(super) const DELAYS: [(&str, DelayKind); 2] =
    [("corrected", DelayKind::Corrected), ("paper", DelayKind::Paper)];

/// Address of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentListen {
    At(SocketAddr),
    /// All addresses of the host, IPv4 and IPv6.
    Everywhere {
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
    /// True if only this host, the directors and [`AgentConfig::allow`] may query at this address.
    /// All clients may query at a configured address if there is no list.
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

/// Parses an address with port, a port for all addresses, or "none".
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

/// Parses the path of a control group, with or without the cgroup file system's mount point.
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
