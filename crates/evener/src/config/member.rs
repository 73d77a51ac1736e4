//! `[agent.member]`: the server group that this host joins by itself, and its claims there.

use std::path::PathBuf;

use evener_core::farm::group::{Joiner, JoinerError, PATTERNS_MAX};
use evener_core::net::http::Url;
use evener_core::path::content::{HostPattern, PathPattern};
use toml::Spanned;
use toml::de::DeValue;

use super::keys::tables::member as keys;
use super::problems::Problem;
use super::references::MemberFiles;
use super::section::{Complaint, Section};
use super::{Tls, values};

/// Membership of a host in groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// URL of the group to join. `None`: the services of the file that list this host.
    pub group: Option<Url>,
    /// URL of the server for clients. `None`: the address from which this host reaches the group,
    /// with port 80.
    pub url: Option<Url>,
    pub weight: u16,
    /// True if clients never learn of this member.
    pub anonymous: bool,
    /// Paths that only this member serves.
    pub paths: Vec<PathPattern>,
    /// Hosts that only this member serves.
    pub hosts: Vec<HostPattern>,
    /// URL for load queries. `None`: the address from which this host reaches the group, with the
    /// default port.
    pub control: Option<Url>,
    /// File with the member's token.
    pub token_file: Option<PathBuf>,
    pub report_ms: u64,
    /// Authorities that sign the group's certificate. `None`: the authorities of this system.
    pub ca: Option<PathBuf>,
    /// TLS identity that the member presents.
    pub tls: Option<Tls>,
}

impl Default for MemberConfig {
    fn default() -> Self {
        MemberConfig {
            group: None,
            url: None,
            weight: keys::WEIGHT.default() as u16,
            anonymous: false,
            paths: Vec::new(),
            hosts: Vec::new(),
            control: None,
            token_file: None,
            report_ms: keys::REPORT.default(),
            ca: None,
            tls: None,
        }
    }
}

/// Reads the host's membership in groups. Records in `files` whether the file names a group.
pub(super) fn read(section: &Section<'_>, files: &mut MemberFiles) -> MemberConfig {
    files.names_group = section.key_span("group").is_some();
    let group = section.get(&keys::GROUP, url);
    let own_url = section.get(&keys::URL, url);
    for key in ["weight", "anonymous", "path", "host", "url"] {
        if let Some(span) = section.key_span(key).filter(|_| section.key_span("group").is_none()) {
            let message = format!("`{key}` is of the group that this host joins, and no `group` is named");
            let help = "add group = \"http://...\", the group's URL; services of this file that list this host say it there";
            section.problem(Problem::new(span, message, help));
        }
    }
    let weight = section.number_or(&keys::WEIGHT);
    let anonymous = section.flag(&keys::ANONYMOUS);
    if let Some(url) = own_url.as_ref().filter(|url| anonymous && url.get_ref().is_secure()) {
        let message =
            "what clients want of an anonymous member is fetched without TLS, and this URL is https";
        section.problem(Problem::new(url.span(), message, "write an http URL, or remove `anonymous`"));
    }
    let paths = section.one_or_list(&keys::PATH, |value| own(value, "\"/img/*\"", Joiner::add_path));
    let hosts = section.one_or_list(&keys::HOST, |value| own(value, "\"img.example.com\"", Joiner::add_host));
    for (key, found) in [("path", &paths), ("host", &hosts)] {
        if let Some(one) = found.get(PATTERNS_MAX) {
            let message = format!("this member has more than {PATTERNS_MAX} entries of `{key}`");
            section.problem(Problem::new(one.span(), message, "name fewer, with stars"));
        }
    }
    let control = section.get(&keys::CONTROL, url);
    if let Some(span) =
        control.as_ref().filter(|url| url.get_ref().is_secure() && section.key_span("tls").is_none())
    {
        let help = "add tls = { certificate = \"FILE\", key = \"FILE\" }, or write an http URL";
        section.problem(Problem::new(
            span.span(),
            "questions come there by TLS, and there is no `tls`",
            help,
        ));
    }
    let control = control.map(Spanned::into_inner);
    files.token_file = section.get(&keys::TOKEN_FILE, values::path);
    let report_ms = section.time_or(&keys::REPORT);
    files.ca = section.get(&keys::CA, values::path);
    files.tls = section.section(&keys::TLS, super::group::tls);
    MemberConfig {
        group: group.map(Spanned::into_inner),
        url: own_url.map(Spanned::into_inner),
        weight,
        anonymous,
        paths: paths.into_iter().flat_map(|own| own.into_inner().paths).collect(),
        hosts: hosts.into_iter().flat_map(|own| own.into_inner().hosts).collect(),
        control,
        token_file: files.token_file.as_ref().map(|file| file.get_ref().clone()),
        report_ms,
        ca: files.ca.as_ref().map(|file| file.get_ref().clone()),
        tls: files.tls.as_ref().map(|tls| tls.get_ref().clone()),
    }
}

fn url(value: &DeValue<'_>) -> Result<Url, Complaint> {
    let text = values::text(value)?;
    Url::parse(&text).or_else(|error| {
        Complaint::new(
            format!("is no URL: {text:?}"),
            format!("{error}; write for example \"http://192.0.2.120:8080\""),
        )
    })
}

/// Parses a path or host that only this member serves, with the group's own parser.
fn own(
    value: &DeValue<'_>,
    example: &str,
    add: fn(&mut Joiner, &str) -> Result<(), JoinerError>,
) -> Result<Joiner, Complaint> {
    let text = values::text(value)?;
    // The URL is a placeholder.
    let nowhere = Url::parse("http://member")
        .map_err(|error| Complaint { problem: error.to_string(), help: String::new() })?;
    let mut joiner = Joiner::new(nowhere);
    match add(&mut joiner, &text) {
        Ok(()) => Ok(joiner),
        Err(error) => Complaint::new(format!("is invalid: {error}"), format!("write for example {example}")),
    }
}
