//! Names of clients' certificates and their roles, read from a file of lines `CN ROLE NAME`.

use std::io;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::files::{self, FilePermissionError};
use super::token::Holder;

/// Maximum size of the file, in bytes.
const FILE_BYTES: u64 = 1 << 20;

/// Permission bits that let users other than the owner write the file.
const WRITERS: u32 = 0o022;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateNamesError {
    /// The file can't be read.
    #[error("failed to read the names of certificates from {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Other users can change the file.
    #[error("{path} has mode {mode:03o}, so other users can add admin certificates: chmod 644 it", path = .path.display())]
    Writable { path: PathBuf, mode: u32 },
    /// A line is invalid.
    #[error("line {line} of {path} is not `CN ROLE NAME`", path = .path.display())]
    Line {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
}

/// Certificate names with their holders.
#[derive(Debug)]
pub(crate) struct CertificateNames(Vec<(String, Holder)>);

impl CertificateNames {
    /// Reads a file that only its owner can write. Lines that begin with `#` are comments.
    pub(crate) fn read(path: &Path) -> Result<CertificateNames, CertificateNamesError> {
        let text = files::unshared(path, WRITERS, FILE_BYTES).map_err(|why| match why {
            FilePermissionError::Io(source) => CertificateNamesError::Io { path: path.to_owned(), source },
            FilePermissionError::Open(mode) => {
                CertificateNamesError::Writable { path: path.to_owned(), mode }
            }
        })?;
        CertificateNames::parse(&text)
            .map_err(|line| CertificateNamesError::Line { path: path.to_owned(), line })
    }

    /// Parses the text of a file. The error is the number of the first invalid line, counted from
    /// 1.
    fn parse(text: &str) -> Result<CertificateNames, usize> {
        let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let names = lines.map(|(number, line)| {
            let mut words = line.split_ascii_whitespace();
            let name = words.next().unwrap_or_default().to_owned();
            // Without a NAME, the certificate's own name is the holder's name.
            let rest: Vec<&str> = words.collect();
            let whole = match rest[..] {
                [role] => vec![role, &name],
                _ => rest,
            };
            let holder = (whole.len() == 2).then(|| Holder::of(whole.into_iter())).flatten();
            holder.map(|holder| (name, holder)).ok_or(number)
        });
        names.collect::<Result<_, _>>().map(CertificateNames)
    }

    /// Returns the holder of a certificate with any of these names.
    pub(crate) fn holder(&self, names: &[String]) -> Option<&Holder> {
        self.0.iter().find(|(name, _)| names.contains(name)).map(|(_, holder)| holder)
    }
}

/// Returns the names of a certificate: the common names of its subject, and its DNS names (RFC
/// 5280, section 4.2.1.6). Mail addresses and URIs are skipped: an authority that verifies a mail
/// address does not verify the host name of that spelling.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let subject = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let mut names: Vec<String> = subject.map(str::to_owned).collect();
    if let Ok(Some(others)) = parsed.subject_alternative_name() {
        names.extend(others.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    names
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;
    use crate::runtime::token::Role;

    #[test]
    fn file_that_others_can_write_gives_no_role() {
        let path = std::env::temp_dir().join(format!("evener-certificates-{}", std::process::id()));
        fs::write(&path, "ops.example admin alice\n").unwrap();
        let read = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            CertificateNames::read(&path).map(drop).map_err(|error| error.to_string())
        };
        for mode in [0o666, 0o664, 0o646] {
            assert!(read(mode).unwrap_err().contains(&format!("mode {mode:03o}")));
        }
        assert_eq!(read(0o644), Ok(()));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn names_are_those_of_subject_and_dns() {
        let key = std::env::temp_dir().join(format!("evener-names-key-{}", std::process::id()));
        let names = "subjectAltName=DNS:web1.example,email:ceo@example,URI:spiffe://example/ops";
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
            .args(["-subj", "/CN=ops.example", "-addext", names, "-outform", "DER", "-keyout"])
            .arg(&key)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs::remove_file(&key).unwrap();
        let certificate = CertificateDer::from(made.stdout);
        assert_eq!(names_of(&certificate), ["ops.example", "web1.example"]);
    }

    #[test]
    fn certificate_gives_the_role_of_its_line() {
        let names =
            CertificateNames::parse("# ours\nops.example admin alice\n\nprom.example read\n").unwrap();
        let holder = |name: &str| names.holder(&["x".into(), name.into()]);
        assert_eq!(holder("ops.example"), Some(&Holder { role: Role::Admin, name: "alice".into() }));
        assert_eq!(holder("prom.example"), Some(&Holder { role: Role::Read, name: "prom.example".into() }));
        assert_eq!(holder("other.example"), None);
        for (text, line) in [("a", 1), ("a admin b\nb root c", 2), ("\na admin b c", 2)] {
            assert_eq!(CertificateNames::parse(text).unwrap_err(), line, "{text:?}");
        }
    }
}
