//! Which servers of names their operator drains: known by their names, whether the file has them or not, until they are wanted again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::control::groups::replace;

/// Them, each as a name and a server.
pub(super) struct Drained {
    path: PathBuf,
    servers: BTreeSet<(String, String)>,
}

impl Drained {
    /// Those of the daemon before.
    pub(super) fn read(directory: &Path) -> Drained {
        let path = directory.join("names.drained");
        let text = fs::read_to_string(&path).unwrap_or_default();
        // Servers' names have no slash, and names may (RFC 2317).
        let servers = text.lines().filter_map(|line| line.rsplit_once('/'));
        let servers = servers.map(|(name, server)| (name.to_owned(), server.to_owned())).collect();
        Drained { path, servers }
    }

    /// Whether none is.
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    pub(super) fn contains(&self, name: &str, server: &str) -> bool {
        self.servers.contains(&(name.to_owned(), server.to_owned()))
    }

    /// Notes it of a server, for the next daemon too.
    ///
    /// # Errors
    /// When it can't be written; then it holds as long as this daemon runs.
    pub(super) fn set(&mut self, name: &str, server: &str, is_drained: bool) -> io::Result<()> {
        let key = (name.to_owned(), server.to_owned());
        if is_drained {
            self.servers.insert(key);
        } else {
            self.servers.remove(&key);
        }
        let lines = self.servers.iter().map(|(name, server)| format!("{name}/{server}\n"));
        replace(&self.path, &lines.collect::<String>())
    }

    /// Has the next daemon know nothing of it.
    pub(super) fn forget(&self) {
        let _ = fs::remove_file(&self.path);
    }
}
