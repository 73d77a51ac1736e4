//! `[admin]`: access to the daemon's admin interface.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Spanned;

use super::keys::tables::{admin as keys, admin_tls};
use super::problems::Problem;
use super::references::{AdminFiles, References};
use super::section::Section;
use super::{Tls, defaults, group, kept, values};

/// Settings of the admin interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Address that serves metrics, health and the API over HTTP. `None` for no address.
    pub listen: Option<SocketAddr>,
    /// File of tokens. Requests need a token if the address is not loopback, or if the file of
    /// tokens is configured.
    pub token_file: Option<PathBuf>,
    /// Names of this host in requests, in lower case.
    pub hosts: Vec<String>,
    /// TLS settings. `None` for plain HTTP.
    pub tls: Option<AdminTls>,
}

/// TLS at the admin address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTls {
    pub own: Tls,
    /// Accepted client certificates. `None` if clients can't use any.
    pub clients: Option<ClientCertificates>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Authorities that sign the certificates.
    pub ca: PathBuf,
    /// File with the certificates' names and roles.
    pub names: PathBuf,
}

pub(super) fn read(section: &Section<'_>, refers: &mut References) -> AdminConfig {
    AdminConfig {
        listen: section.or(&keys::LISTEN, values::listen, Some(defaults::ADMIN_LISTEN)),
        token_file: kept(section.get(&keys::TOKEN_FILE, values::path), &mut refers.token_file),
        hosts: section.list(&keys::HOSTS, values::host_name).into_iter().map(Spanned::into_inner).collect(),
        tls: section.section(&keys::TLS, |section| tls(section, &mut refers.admin)),
    }
}

fn tls(section: &mut Section<'_>, files: &mut AdminFiles) -> Option<AdminTls> {
    files.tls = group::tls(section);
    files.client_ca = section.get(&admin_tls::CLIENT_CA, values::path);
    files.certificates_file = section.get(&admin_tls::CERTIFICATES_FILE, values::path);
    let given = |name: &str| section.key_span(name);
    match (given("client_ca"), given("certificates_file")) {
        (Some(one), None) | (None, Some(one)) => {
            let message = "clients' certificates need both `client_ca` and `certificates_file`";
            let help =
                "name the authorities that sign them, and a file of lines `CN ROLE NAME` with their roles";
            section.problem(Problem::new(one, message, help));
        }
        _ => {}
    }
    let names_any = given("client_ca").or(given("certificates_file"));
    if let Some(span) = names_any.filter(|_| given("certificate").is_none() && given("key").is_none()) {
        let message = "clients show certificates by TLS, and this address has no certificate";
        let help = "add certificate = \"FILE\" and key = \"FILE\", in PEM";
        section.problem(Problem::new(span, message, help));
    }
    let path = |file: &Option<Spanned<PathBuf>>| file.as_ref().map(|file| file.get_ref().clone());
    let own = files.tls.as_ref()?.get_ref().clone();
    let clients = path(&files.client_ca).zip(path(&files.certificates_file));
    Some(AdminTls { own, clients: clients.map(|(ca, names)| ClientCertificates { ca, names }) })
}
