//! Log of the daemon and the agent: plain lines for people, or lines with priorities for the
//! journal.

use std::env;
use std::fmt::Display;
use std::io::{self, Write};

use nix::sys::stat::fstat;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::terminal::has_colour;

/// Environment variable with the log filter, as in `debug` or `evener=debug`. See evener(1).
const FILTER: &str = "EVENER_LOG";
/// Priorities of syslog(3). sd-daemon(3) expects them at the beginning of a line.
const ERROR: u8 = 3;
const WARNING: u8 = 4;
const INFO: u8 = 6;
const DEBUG: u8 = 7;

/// Starts to log to standard error.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| "info".into());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    match is_journal() {
        // The journal records the time, and the level as the line's priority.
        true => builder.with_ansi(false).with_level(false).without_time().with_writer(Journal).init(),
        false => builder.with_ansi(has_colour(&io::stderr())).with_writer(io::stderr).init(),
    }
}

/// Logs the error that ends the program.
pub(crate) fn error(why: impl Display) {
    let text = format!("evener: {why}\n");
    let written = match is_journal() {
        true => PriorityWriter { priority: ERROR }.write_all(text.as_bytes()),
        false => io::stderr().write_all(text.as_bytes()),
    };
    // A failed write to the log can't be logged.
    drop(written);
}

/// True if standard error goes to the journal. JOURNAL_STREAM contains the device and inode of the
/// journal's stream (systemd.exec(5)).
fn is_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let Some((device, inode)) = stream.split_once(':') else { return false };
    let named = device.parse().ok().zip(inode.parse().ok());
    fstat(io::stderr()).is_ok_and(|stat| named == Some((stat.st_dev, stat.st_ino)))
}

/// Log writer for the journal.
struct Journal;

impl<'a> MakeWriter<'a> for Journal {
    type Writer = PriorityWriter;

    fn make_writer(&'a self) -> PriorityWriter {
        PriorityWriter { priority: INFO }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> PriorityWriter {
        let priority = match *about.level() {
            Level::ERROR => ERROR,
            Level::WARN => WARNING,
            Level::INFO => INFO,
            _ => DEBUG,
        };
        PriorityWriter { priority }
    }
}

/// Writes lines with this priority in front.
struct PriorityWriter {
    priority: u8,
}

impl Write for PriorityWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&with_priority(self.priority, bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn with_priority(priority: u8, bytes: &[u8]) -> Vec<u8> {
    let line = |line: &[u8]| [format!("<{priority}>").as_bytes(), line].concat();
    bytes.split_inclusive(|byte| *byte == b'\n').flat_map(line).collect()
}

/// The last problem. Each problem is logged once.
#[derive(Default)]
pub(crate) struct LastProblem(Option<String>);

impl LastProblem {
    /// Logs the problem unless it was the last one, too.
    pub(crate) fn log_once(&mut self, trouble: Option<String>) {
        if let Some(error) = trouble.as_ref().filter(|_| trouble != self.0) {
            tracing::error!("{error}; retrying");
        }
        self.0 = trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::with_priority;

    #[test]
    fn every_line_has_its_priority() {
        assert_eq!(with_priority(3, b"one\n  two\n"), b"<3>one\n<3>  two\n");
        assert_eq!(with_priority(4, b"one"), b"<4>one");
    }
}
