//! Commands that print a stream of the daemon.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::ClientError;
use super::command::{CommandError, daemon, runtime};
use crate::cli::AdminArgs;
use crate::record;

/// The stream, and when to end it.
pub(super) struct StreamRequest<'a> {
    /// Path of the stream.
    pub(super) path: &'a str,
    /// Line printed on standard error once an endless stream has begun, so that standard output
    /// contains only data.
    pub(super) first_line: &'a str,
    /// True if the daemon may end the stream. Otherwise the end of the stream is an error.
    pub(super) ends: bool,
    pub(super) time: Option<Duration>,
    /// Maximum number of lines.
    pub(super) count: Option<u64>,
    /// True for JSON output.
    pub(super) json: bool,
    pub(super) admin: &'a AdminArgs,
}

impl StreamRequest<'_> {
    /// Prints the stream. `data` extracts the JSON of a line, and `text` formats an item for
    /// people.
    pub(super) fn show<T: DeserializeOwned + Serialize>(
        &self,
        data: fn(&[u8]) -> Option<&[u8]>,
        text: fn(&T) -> String,
    ) -> Result<(), CommandError> {
        let limit = self.time.unwrap_or(Duration::MAX);
        runtime()?.block_on(async {
            match tokio::time::timeout(limit, self.follow(data, text)).await {
                Ok(done) => done,
                // The requested duration is over.
                Err(_) => Ok(()),
            }
        })
    }

    async fn follow<T: DeserializeOwned + Serialize>(
        &self,
        data: fn(&[u8]) -> Option<&[u8]>,
        text: fn(&T) -> String,
    ) -> Result<(), CommandError> {
        let client = daemon(self.admin)?;
        let mut lines = client.follow(self.path).await?;
        if !self.ends {
            eprintln!("evener: {}", self.first_line);
        }
        let mut count = self.count.unwrap_or(u64::MAX);
        while count > 0 {
            let Some(line) = lines.next().await else {
                return if self.ends && !lines.is_torn() { Ok(()) } else { Err(ClientError::Ended.into()) };
            };
            let Some(data) = data(&line) else { continue };
            let line: T = serde_json::from_slice(data).map_err(|error| client.garbled(error))?;
            let text = if self.json { record::json(&line) } else { text(&line) + "\n" };
            let mut out = io::stdout().lock();
            match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                Ok(()) => count -= 1,
                // The reader has closed the pipe.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(CommandError::Output(error)),
            }
        }
        Ok(())
    }
}
