//! Messages of the group protocol, and their encoding.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Verb;
use crate::farm::group::{Joiner, JoinerError, LOAD_MAX, LoadInform, member_url};
use crate::net::http::{Url, UrlError};

/// Maximum length of a body, in bytes.
pub const BODY_MAX: usize = 64 * 1024;
/// Upper limit of time stamps, in seconds since 1970: the year 5138.
const STAMP_MAX: f64 = 1e11;

/// A message of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupMessage {
    /// GROUP-ADD: members that join.
    Add(Vec<Joiner>),
    /// GROUP-EXIT: members that leave.
    Exit(Vec<Url>),
    /// GROUP-QUERY: request for a list of the members.
    Query,
    /// LOAD-INFORM: load of a member.
    Inform(LoadInform),
    /// LOAD-QUERY: request to a member to report its load.
    LoadQuery,
}

/// Reason why a body is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is too long.
    #[error("a message has at most 64 KB")]
    TooLong,
    /// The message is not text.
    #[error("the message is not text in UTF-8")]
    Text,
    /// No member is named.
    #[error("the body is empty: write the URLs of members, one per line")]
    NoMember,
    /// A line doesn't describe a member.
    #[error("line {line}: {why}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Reason why the line is invalid.
        why: JoinerError,
    },
    /// A line has more than a URL.
    #[error("line {line}: only the URL of the leaving member is allowed")]
    Exit {
        /// Line number, from 1.
        line: usize,
    },
    /// The report has a wrong format.
    #[error("write LOAD [UNIX-TIME] [URL], where LOAD is a number")]
    Inform,
    /// The load is out of range.
    #[error("a load is a number from 0 to {LOAD_MAX}")]
    Load,
    /// The time is out of range.
    #[error("a time is a number of seconds since 1970, optionally with a fraction")]
    Time,
    /// The URL in a report is invalid.
    #[error("{0}")]
    Url(UrlError),
}

impl MessageError {
    /// Returns the HTTP status of the response: 422 if the format is right but a value is invalid,
    /// otherwise 400 or 413.
    pub fn status(self) -> u16 {
        match self {
            MessageError::TooLong => 413,
            MessageError::Text
            | MessageError::NoMember
            | MessageError::Exit { .. }
            | MessageError::Inform => 400,
            MessageError::Line { why, .. } if !why.is_value() => 400,
            MessageError::Line { .. } | MessageError::Load | MessageError::Time | MessageError::Url(_) => 422,
        }
    }
}

impl GroupMessage {
    /// Parses the body of a message. Lines end with LF or CR LF; empty lines are skipped.
    ///
    /// # Errors
    /// The first error of the body.
    pub fn read(verb: Verb, body: &[u8]) -> Result<GroupMessage, MessageError> {
        if body.len() > BODY_MAX {
            return Err(MessageError::TooLong);
        }
        let text = core::str::from_utf8(body).map_err(|_| MessageError::Text)?;
        match verb {
            Verb::Add => {
                let line = |(line, text)| Joiner::parse(text).map_err(|why| MessageError::Line { line, why });
                some(lines(text).map(line).collect::<Result<_, _>>()?).map(GroupMessage::Add)
            }
            Verb::Exit => some(lines(text).map(leaving).collect::<Result<_, _>>()?).map(GroupMessage::Exit),
            Verb::Inform => report(text).map(GroupMessage::Inform),
            // These messages have no body, so any content is ignored.
            Verb::Query => Ok(GroupMessage::Query),
            Verb::LoadQuery => Ok(GroupMessage::LoadQuery),
        }
    }
}

/// Returns the lines that are not empty, numbered from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty())
}

fn some<T>(list: Vec<T>) -> Result<Vec<T>, MessageError> {
    if list.is_empty() { Err(MessageError::NoMember) } else { Ok(list) }
}

fn leaving((line, text): (usize, &str)) -> Result<Url, MessageError> {
    let mut words = text.split_ascii_whitespace();
    let (url, None) = (words.next().unwrap_or_default(), words.next()) else {
        return Err(MessageError::Exit { line });
    };
    member_url(url).map_err(|why| MessageError::Line { line, why })
}

/// Reads `LOAD [UNIX-TIME] [URL]`.
fn report(text: &str) -> Result<LoadInform, MessageError> {
    let mut words = text.split_ascii_whitespace().peekable();
    let load: f64 = words.next().and_then(|word| word.parse().ok()).ok_or(MessageError::Inform)?;
    let time = words.next_if(|word| !word.contains("://"));
    let url = words.next_if(|word| word.contains("://"));
    if words.next().is_some() {
        return Err(MessageError::Inform);
    }
    if !load.is_finite() || !(0.0..=f64::from(LOAD_MAX)).contains(&load) {
        return Err(MessageError::Load);
    }
    Ok(LoadInform {
        load,
        stamp_ms: time.map(stamp_ms).transpose()?,
        url: url.map(Url::parse).transpose().map_err(MessageError::Url)?,
    })
}

fn stamp_ms(word: &str) -> Result<u64, MessageError> {
    let seconds: f64 = word.parse().map_err(|_| MessageError::Inform)?;
    if !seconds.is_finite() || !(0.0..STAMP_MAX).contains(&seconds) {
        return Err(MessageError::Time);
    }
    // The product is between 0 and 10^14.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok((seconds * 1_000.0) as u64)
}

/// Returns the body of a GROUP-ADD message.
pub fn write_joiners(joiners: &[Joiner]) -> String {
    joiners.iter().map(|joiner| format!("{joiner}\n")).collect()
}

/// Returns the body of a LOAD-INFORM message.
pub fn write_inform(report: &LoadInform) -> String {
    let mut text = format!("{}", report.load);
    if let Some(stamp_ms) = report.stamp_ms {
        text.push_str(&format!(" {}.{:03}", stamp_ms / 1_000, stamp_ms % 1_000));
    }
    if let Some(url) = &report.url {
        text.push_str(&format!(" {url}"));
    }
    text.push('\n');
    text
}
