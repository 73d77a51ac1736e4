//! Objects of the host that a file names. `evener check` compares them with this host.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::problems::{Problem, ProblemSink, Span};
use super::{Config, LogTarget, Tls, zone};
use crate::runtime::certificate_names::CertificateNames;
use crate::runtime::cookie_secret;
use crate::runtime::group_tokens::GroupTokens;
use crate::runtime::member_token;
use crate::runtime::secret;
use crate::runtime::spelling::meant;
use crate::runtime::tls::{self, TlsError};
use crate::runtime::token;

/// Network interfaces of this process's network namespace (proc_net(5)).
const INTERFACES: &str = "/proc/thread-self/net/dev";

/// Files and interfaces that the file names.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) secret_file: Option<Spanned<PathBuf>>,
    pub(super) cookie_secret_file: Option<Span>,
    pub(super) token_file: Option<Spanned<PathBuf>>,
    pub(super) access_log: Option<Spanned<LogTarget>>,
    pub(super) interfaces: Vec<Spanned<String>>,
    pub(super) admin: AdminFiles,
    pub(super) groups: Vec<GroupFiles>,
    /// Files of the host as a member of groups.
    pub(super) member: MemberFiles,
    /// Position of `[dns]`.
    pub(super) dns: Span,
}

/// Files of TLS at the admin address, with their positions.
#[derive(Debug, Default)]
pub(super) struct AdminFiles {
    pub(super) tls: Option<Spanned<Tls>>,
    pub(super) client_ca: Option<Spanned<PathBuf>>,
    pub(super) certificates_file: Option<Spanned<PathBuf>>,
}

/// Files of a server group, with their positions.
#[derive(Debug, Default)]
pub(super) struct GroupFiles {
    pub(super) tls: Option<Spanned<Tls>>,
    pub(super) client_ca: Option<Spanned<PathBuf>>,
    pub(super) token_file: Option<Spanned<PathBuf>>,
}

/// Files of a host that joins groups, with their positions.
#[derive(Debug, Default)]
pub(super) struct MemberFiles {
    /// True if the file names a group, valid or not.
    pub(super) names_group: bool,
    pub(super) token_file: Option<Spanned<PathBuf>>,
    pub(super) ca: Option<Spanned<PathBuf>>,
    pub(super) tls: Option<Spanned<Tls>>,
}

impl MemberFiles {
    fn check(&self, sink: &ProblemSink) {
        let problem = |span: Span, message: String, help: &str| sink.push(Problem::new(span, message, help));
        if let Some(file) = &self.token_file
            && let Err(error) = member_token::read(file.get_ref())
        {
            let help = "write the token into it, as the group's token_file has it, and chmod 600 it";
            problem(file.span(), error.to_string(), help);
        }
        let own = self.tls.as_ref().map(|tls| tls.get_ref());
        let own = own.map(|tls| (tls.certificate.as_path(), tls.key.as_path()));
        let ca = self.ca.as_ref().map(|file| file.get_ref().as_path());
        if let Err(error) = tls::client(ca, own) {
            let span = match (&error, &self.ca, &self.tls) {
                (TlsError::Authority { .. }, Some(file), _) | (_, Some(file), None) => file.span(),
                (_, _, Some(tls)) => tls.span(),
                (_, None, None) => return,
            };
            problem(span, error.to_string(), error.help());
        }
    }
}

impl GroupFiles {
    fn check(&self, sink: &ProblemSink) {
        let problem = |span: Span, message: String, help: &str| sink.push(Problem::new(span, message, help));
        check_tls(self.tls.as_ref(), self.client_ca.as_ref(), sink);
        if let Some(file) = &self.token_file
            && let Err(error) = GroupTokens::read(file.get_ref())
        {
            let help = "write lines `TOKEN URL...`, with tokens made by `openssl rand -hex 32`, readable for the daemon alone";
            problem(file.span(), error.to_string(), help);
        }
    }
}

impl AdminFiles {
    fn check(&self, sink: &ProblemSink) {
        check_tls(self.tls.as_ref(), self.client_ca.as_ref(), sink);
        if let Some(file) = &self.certificates_file
            && let Err(error) = CertificateNames::read(file.get_ref())
        {
            let help = "write lines `CN ROLE NAME`, where ROLE is read, operate or admin";
            sink.push(Problem::new(file.span(), error.to_string(), help));
        }
    }
}

/// Checks a server's certificate, its key and the authority of its clients.
fn check_tls(tls: Option<&Spanned<Tls>>, client_ca: Option<&Spanned<PathBuf>>, sink: &ProblemSink) {
    let authority = client_ca.map(|file| file.get_ref().as_path());
    if let Some(tls) = tls
        && let Err(error) = tls::server(&tls.get_ref().certificate, &tls.get_ref().key, authority)
    {
        let span = match (&error, client_ca) {
            (TlsError::Authority { .. }, Some(file)) => file.span(),
            _ => tls.span(),
        };
        sink.push(Problem::new(span, error.to_string(), error.help()));
    }
}

impl References {
    /// Reports missing or unsuitable objects.
    pub(super) fn check(&self, config: &Config, sink: &ProblemSink) {
        let problem = |span: Span, message: String, help: &str| sink.push(Problem::new(span, message, help));
        if let Err(error) = zone::zones(&config.dns, 0) {
            problem(self.dns.clone(), error.to_string(), "mend the zone, which stays as it is until then");
        }
        if let Some(file) = &self.secret_file
            && let Err(error) = secret::read(file.get_ref())
        {
            let help = "run `evener keygen FILE` once for the farm and copy FILE here";
            problem(file.span(), error.to_string(), help);
        }
        if let (Some(span), Some(file)) = (&self.cookie_secret_file, &config.dns.cookie_secret_file)
            && let Err(error) = cookie_secret::read(file)
        {
            let help = "make it with `(umask 077; openssl rand -hex 16 > FILE)`, and copy it to the servers that share it";
            problem(span.clone(), error.to_string(), help);
        }
        if let Some(file) = &self.token_file
            && let Err(error) = token::check(file.get_ref())
        {
            let help =
                "make it with `(umask 077; openssl rand -hex 32 > FILE)`, and give the token to the scraper";
            problem(file.span(), error.to_string(), help);
        }
        if let Some(log) = &self.access_log
            && let LogTarget::File(path) = log.get_ref()
            && let Some(folder) = missing_folder(path)
        {
            let message = format!("there is no folder {} for the access log", folder.display());
            problem(log.span(), message, "make it, writable for the daemon, or name another file");
        }
        self.admin.check(sink);
        for (span, file) in sink.drain_authorities() {
            if let Err(error) = tls::prober(Some(&file), true) {
                let help =
                    "name a file with the authorities that have signed the servers' certificates, in PEM";
                problem(span, error.to_string(), help);
            }
        }
        self.groups.iter().for_each(|group| group.check(sink));
        self.member.check(sink);
        let there = interfaces(&fs::read_to_string(INTERFACES).unwrap_or_default());
        for interface in self.interfaces.iter().filter(|name| !there.contains(name.get_ref())) {
            let message = format!("this host has no interface {:?}", interface.get_ref());
            let help = meant(interface.get_ref(), there.iter().map(String::as_str));
            problem(interface.span(), message, &help);
        }
    }
}

fn missing_folder(path: &Path) -> Option<&Path> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    (!folder.is_dir()).then_some(folder)
}

/// Parses the kernel's table: two lines of headings, then `NAME: ...`.
fn interfaces(table: &str) -> Vec<String> {
    let names = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::interfaces;

    #[test]
    fn interfaces_are_read() {
        let table = "Inter-|  Receive\n face |bytes\n    lo:  1 2 3\n  eth0: 4 5 6\nveth-a:7 8\n";
        assert_eq!(interfaces(table), ["lo", "eth0", "veth-a"]);
        assert!(interfaces("").is_empty());
    }
}
