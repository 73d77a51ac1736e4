//! Files with the ranks of names, for others to read: the paper's, and gdnsd's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use evener_core::dns::NameSnapshot;

use crate::config::NameConfig;
use crate::runtime::files;

/// The files that others read ranks from, as they were written last.
#[derive(Debug, Default)]
pub(super) struct RankFiles {
    written: BTreeMap<PathBuf, String>,
    failed: BTreeSet<PathBuf>,
}

impl RankFiles {
    /// Writes those of a name anew, each whole or not at all, if they say something else than
    /// before.
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
                    tracing::info!(path = %path.display(), "ranks are written again");
                }
                self.written.insert(path.to_owned(), text);
            }
            // It is tried again with each change, and told once.
            Err(error) => {
                if self.failed.insert(path.to_owned()) {
                    tracing::warn!(path = %path.display(), %error, "ranks can't be written; answers go on");
                }
            }
        }
    }
}

/// The paper's file: servers with their ranks, the best first. A server that isn't given isn't in
/// it.
fn lines(seen: &NameSnapshot) -> String {
    let ranked = seen.addresses.iter().filter_map(|one| Some((seen.rank(one)?, one.address)));
    let mut ranked: Vec<(u64, IpAddr)> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.iter().map(|(rank, address)| format!("{} {address} {rank}\n", seen.name.settings.name)).collect()
}

/// gdnsd-plugin-extfile(8): the state of each address, and for how long an answer with it may be
/// kept.
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
