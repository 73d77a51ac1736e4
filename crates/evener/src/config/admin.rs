//! `[admin]`: where the daemon is watched and steered, and by whom.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Spanned;

use super::keys::tables::{admin as keys, admin_tls};
use super::problems::Problem;
use super::references::{AdminFiles, References};
use super::section::Section;
use super::{Tls, defaults, group, kept, values};

/// How the daemon is watched and steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where metrics, health and the API are served over HTTP; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// The tokens of which requests must have one, if the address is not loopback or this is given.
    pub token_file: Option<PathBuf>,
    /// Names by which requests may call this host, in lower case.
    pub hosts: Vec<String>,
    /// By which clients come, if they come by TLS.
    pub tls: Option<AdminTls>,
}

/// TLS at the admin address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTls {
    /// The daemon's own certificate.
    pub own: Tls,
    /// Which clients' certificates count, if any do.
    pub clients: Option<ClientCertificates>,
}

/// Clients' certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Authorities that have signed them.
    pub ca: PathBuf,
    /// The file with their names and roles.
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
            let message = "clients' certificates take both `client_ca` and `certificates_file`";
            let help = "name the authorities that sign them, and a file of lines `CN ROLE NAME` that says who may do what";
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
