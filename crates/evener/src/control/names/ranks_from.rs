//! Ranks that somebody else writes into a file: read once in a period, on a thread of its own, since a file system may not answer.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use evener_core::dns::{BadRanks, FileRanks, RanksChange, read_ranks};
use tokio::sync::mpsc;

use super::own::{Answer, Told};
use super::ranking::period_ms;
use crate::config::NameConfig;
use crate::runtime::{files, reader};

/// Without a `period` it is read so often, in milliseconds.
const READ_MS: u64 = 5_000;
/// A file with more is none of ranks.
const FILE_BYTES: u64 = 1 << 20;

/// The ranks of a name that are read.
#[derive(Debug, Default)]
pub(super) struct RanksFrom {
    ranks: FileRanks,
    /// When the file is read next, in milliseconds of the monotonic clock; `None` while it is.
    due_ms: Option<u64>,
}

impl RanksFrom {
    /// Read at once.
    pub(super) fn new(now_ms: u64) -> RanksFrom {
        RanksFrom { ranks: FileRanks::default(), due_ms: Some(now_ms) }
    }

    pub(super) fn due_ms(&self) -> u64 {
        self.due_ms.unwrap_or(u64::MAX)
    }

    /// Has the file read if that is due; what comes of it is told.
    pub(super) fn poll(&mut self, name: &Arc<NameConfig>, now_ms: u64, results: &mpsc::Sender<Told>) {
        let Some(path) = name.rank_from.clone().filter(|_| self.due_ms() <= now_ms) else { return };
        self.due_ms = None;
        let (name, results) = (Arc::clone(name), results.clone());
        tokio::spawn(async move {
            let what = path.display().to_string();
            let read = reader::within(reader::TIMEOUT, &what, move || text_of(&path)).await;
            // The loop ends first only when the daemon does.
            let _ = results.send(Told { name, answer: Answer::Ranks(read.and_then(|text| text)) }).await;
        });
    }

    /// Takes what was read, of a name that has these servers.
    pub(super) fn take(
        &mut self,
        name: &NameConfig,
        now_ms: u64,
        read: Result<String, String>,
        is_server: impl Fn(IpAddr) -> bool,
    ) -> RanksChange {
        let for_ms = Some(period_ms(name)).filter(|ms| *ms > 0).unwrap_or(READ_MS);
        self.due_ms = Some(now_ms.saturating_add(for_ms));
        let text = read.map_err(BadRanks::Unread);
        let ranks = text.and_then(|text| read_ranks(&text, &name.settings.name, is_server));
        self.ranks.take(now_ms, for_ms, ranks)
    }

    /// The addresses in the order of their ranks, if there are some that are believed.
    pub(super) fn order(&self, now_ms: u64) -> Option<&[IpAddr]> {
        self.ranks.order(now_ms)
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let bytes = files::bounded(path, FILE_BYTES).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}
