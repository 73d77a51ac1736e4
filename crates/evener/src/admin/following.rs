//! Commands that show what the daemon tells for as long as somebody reads it.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::ClientError;
use super::command::{CommandError, daemon, runtime};
use crate::cli::AdminArgs;
use crate::record;

/// The stream to follow, and for how long.
pub(super) struct StreamRequest<'a> {
    /// The path of the answer.
    pub(super) path: &'a str,
    /// Said on standard error when an answer without an end has begun, so that on the other is
    /// nothing but what is told.
    pub(super) first_line: &'a str,
    /// True if the answer ends by itself; else its end is an error.
    pub(super) ends: bool,
    /// At most so many seconds,
    pub(super) seconds: Option<u64>,
    /// and so many lines.
    pub(super) count: Option<u64>,
    /// Whether programs read it.
    pub(super) json: bool,
    /// How the daemon is reached.
    pub(super) admin: &'a AdminArgs,
}

impl StreamRequest<'_> {
    /// Shows what `data` finds in each of the answer's lines; for people as `text` has it.
    pub(super) fn show<T: DeserializeOwned + Serialize>(
        &self,
        data: fn(&[u8]) -> Option<&[u8]>,
        text: fn(&T) -> String,
    ) -> Result<(), CommandError> {
        let limit = self.seconds.map_or(Duration::MAX, Duration::from_secs);
        runtime()?.block_on(async {
            match tokio::time::timeout(limit, self.follow(data, text)).await {
                Ok(done) => done,
                // As long as was asked for.
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
                // The reader wants no more.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(CommandError::Output(error)),
            }
        }
        Ok(())
    }
}
