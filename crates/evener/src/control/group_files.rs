//! Tokens and certificates of server groups. They are read together with the file. A run-time
//! change reads only files that are not in force yet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;

use crate::config::{Config, GroupService, Tls};
use crate::redirect::{ListenError, read_tls};
use crate::runtime::group_tokens::GroupTokens;
use crate::runtime::reader;

/// Tokens and certificates of groups, by the group's name.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupFiles(Vec<(String, GroupFile)>);

/// Paths and contents of a group's files.
#[derive(Clone, Debug)]
struct GroupFile {
    paths: Paths,
    tokens: Option<Arc<GroupTokens>>,
    tls: Option<Arc<ServerConfig>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Paths {
    token_file: Option<PathBuf>,
    tls: Option<Tls>,
    client_ca: Option<PathBuf>,
}

impl Paths {
    fn of(service: &GroupService) -> Paths {
        let GroupService { token_file, tls, client_ca, .. } = service;
        Paths { token_file: token_file.clone(), tls: tls.clone(), client_ca: client_ca.clone() }
    }
}

impl GroupFiles {
    /// Reads the files of all groups.
    ///
    /// # Errors
    /// If a file can't be read, or contains no tokens or no certificate.
    pub(super) fn read(config: &Config) -> Result<GroupFiles, ListenError> {
        GroupFiles::default().read_new(config)
    }

    /// Reads the files of groups that aren't loaded yet. Loaded files are not read again.
    ///
    /// # Errors
    /// As [`GroupFiles::read`].
    pub(super) fn read_new(&self, config: &Config) -> Result<GroupFiles, ListenError> {
        let files = config.groups.iter().map(|service| {
            let file = match self.known(service) {
                Some(known) => known.clone(),
                None => GroupFile::read(service)?,
            };
            Ok((service.group.name.clone(), file))
        });
        files.collect::<Result<_, _>>().map(GroupFiles)
    }

    /// Adds the files that a changed farm newly names. A separate thread reads them, since a file
    /// system may hang. Files loaded earlier keep precedence.
    ///
    /// # Errors
    /// A sentence, if a file can't be read or is not read within [`reader::TIMEOUT`].
    pub(super) fn add_new(&mut self, config: &Config) -> Result<(), String> {
        let (known, changed) = (self.clone(), config.clone());
        let read = move || known.read_new(&changed).map_err(|error| error.to_string());
        let new = match self.has_all(config) {
            true => read(),
            false => reader::blocking_within(reader::TIMEOUT, "a file of the change", read)?,
        };
        self.0.extend(new?.0);
        Ok(())
    }

    /// True if no file has to be read for these groups.
    fn has_all(&self, config: &Config) -> bool {
        let has_file = |service: &&GroupService| service.token_file.is_some() || service.tls.is_some();
        config.groups.iter().filter(has_file).all(|service| self.known(service).is_some())
    }

    /// Returns the tokens of each group that has some.
    pub(super) fn tokens(&self) -> BTreeMap<String, Arc<GroupTokens>> {
        let tokens = self.0.iter().filter_map(|(name, file)| Some((name.clone(), file.tokens.clone()?)));
        tokens.collect()
    }

    /// Returns the TLS settings of each group that has TLS.
    pub(super) fn tls(&self) -> BTreeMap<String, Arc<ServerConfig>> {
        self.0.iter().filter_map(|(name, file)| Some((name.clone(), file.tls.clone()?))).collect()
    }

    fn known(&self, service: &GroupService) -> Option<&GroupFile> {
        let paths = Paths::of(service);
        let mut files = self.0.iter();
        let found = files.find(|(name, file)| *name == service.group.name && file.paths == paths);
        found.map(|(_, file)| file)
    }
}

impl GroupFile {
    fn read(service: &GroupService) -> Result<GroupFile, ListenError> {
        let name = &service.group.name;
        let tokens = service.token_file.as_ref().map(|path| {
            let refused = |source| ListenError::Tokens { service: name.clone(), source };
            GroupTokens::read(path).map(Arc::new).map_err(refused)
        });
        let tls = service
            .tls
            .as_ref()
            .map(|Tls { certificate, key }| read_tls(name, certificate, key, service.client_ca.as_deref()));
        Ok(GroupFile { paths: Paths::of(service), tokens: tokens.transpose()?, tls: tls.transpose()? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::config;

    const OLD: &str = "an-old-token-of-the-group";
    const NEW: &str = "a-new-token-of-the-group";

    fn config_with(token_file: &str, weight: u16) -> Config {
        let text = format!(
            "[[service]]\nname = \"shop\"\naddress = \"127.0.0.1:8080\"\nmethod = \"redirect\"\n\
             [service.group]\ntoken_file = \"{token_file}\"\n\
             [[service.server]]\nurl = \"http://127.0.0.2:8080\"\nweight = {weight}\n"
        );
        config::parse(&text, "evener.toml").unwrap()
    }

    #[test]
    fn change_keeps_tokens_in_force_and_reads_only_new_files() {
        let path = std::env::temp_dir().join(format!("evener-group-files-{}", std::process::id()));
        let name = path.display().to_string();
        let write = |token: &str| {
            fs::write(&path, format!("{token} *\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let knows = |files: &GroupFiles, token: &str| {
            files.tokens().get("shop").is_some_and(|tokens| tokens.of(token.as_bytes()).is_some())
        };
        write(OLD);
        let in_force = GroupFiles::read(&config_with(&name, 1)).unwrap();
        write(NEW);
        let changed = config_with(&name, 2);
        assert!(in_force.has_all(&changed));
        let after = in_force.read_new(&changed).unwrap();
        assert!(knows(&after, OLD) && !knows(&after, NEW), "a change of a weight reads no tokens");
        assert!(knows(&GroupFiles::read(&changed).unwrap(), NEW), "a reload does");
        fs::remove_file(&path).unwrap();
        assert!(in_force.read_new(&changed).is_ok());
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let error = GroupFiles::read(&changed).unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}
