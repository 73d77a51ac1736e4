//! Writes the ranks of a name's addresses to files for other programs, in the paper's format and in
//! gdnsd's format.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use evener_core::dns::NameSnapshot;

use crate::config::NameConfig;
use crate::runtime::files;

/// Files of ranks, with their last written text.
#[derive(Debug, Default)]
pub(super) struct RankFiles {
    written: BTreeMap<PathBuf, String>,
    failed: BTreeSet<PathBuf>,
}

impl RankFiles {
    /// Writes the files of a name atomically, if their text has changed.
    pub(super) fn write(&mut self, config: &NameConfig, seen: &NameSnapshot) {
        if let Some(path) = &config.rank_file {
            self.replace(path, lines(seen));
        }
        if let Some(path) = &config.gdnsd_file {
            self.replace(path, extfile(seen));
        }
    }

    fn replace(&mut self, path: &Path, text: String) {
        if self.written.get(path) == Some(&text) {
            return;
        }
        match files::replace(path, text.as_bytes()) {
            Ok(()) => {
                if self.failed.remove(path) {
                    tracing::info!(path = %path.display(), "ranks are written to the file again");
                }
                self.written.insert(path.to_owned(), text);
            }
            // Each change retries the write. Only the first failure is logged.
            Err(error) => {
                if self.failed.insert(path.to_owned()) {
                    tracing::warn!(path = %path.display(), %error, "failed to write the ranks to the file; queries are still answered");
                }
            }
        }
    }
}

/// Returns the paper's file: addresses with their ranks, the best first. Addresses that no answer
/// contains are left out.
fn lines(seen: &NameSnapshot) -> String {
    let ranked = seen.addresses.iter().filter_map(|one| Some((seen.rank(one)?, one.address)));
    let mut ranked: Vec<(u64, IpAddr)> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.iter().map(|(rank, address)| format!("{} {address} {rank}\n", seen.name.settings.name)).collect()
}

/// Returns the file for gdnsd-plugin-extfile(8): the state and the TTL of each address.
fn extfile(seen: &NameSnapshot) -> String {
    let mut states: BTreeMap<IpAddr, bool> = BTreeMap::new();
    for one in &seen.addresses {
        *states.entry(one.address).or_default() |= seen.rank(one).is_some();
    }
    let state = |up: bool| if up { "UP" } else { "DOWN" };
    states
        .iter()
        .map(|(address, up)| format!("{address} => {}/{}\n", state(*up), seen.name.settings.ttl_s))
        .collect()
}
