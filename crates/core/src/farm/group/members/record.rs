//! Record: the saved state of a group, a text with one member per line.
//!
//! A line is that of GROUP-ADD, followed by state that the member's description does not contain.
//! Each word of this state begins with `@`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Joiner;
use super::member::TrackedMember;
use crate::farm::group::reach::MessageOrigin;
use crate::net::http::Url;

/// First line of the record, with the version of the format.
const FIRST: &str = "evener group members 1";

/// Word of version 0.1 for a drained member.
const DRAINED: &str = "@drained";

/// Content of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemberRecord {
    pub(super) joiner: Joiner,
    pub(super) joined: bool,
    pub(super) left: bool,
    pub(super) was_up: bool,
    pub(super) stamp_ms: Option<u64>,
    pub(super) origin: MessageOrigin,
}

pub(super) fn write<'a>(members: impl Iterator<Item = &'a TrackedMember>) -> String {
    let mut text = format!("{FIRST}\n");
    for member in members {
        text.push_str(&format!("{}", member.joiner));
        let words = [(member.joined, "@joined"), (member.left, "@left"), (member.server.is_up(), "@up")];
        for (_, word) in words.iter().filter(|(holds, _)| *holds) {
            text.push(' ');
            text.push_str(word);
        }
        if let Some(stamp_ms) = member.load.stamp_ms {
            text.push_str(&format!(" @stamp={stamp_ms}"));
        }
        if let Some(from) = member.origin.from {
            text.push_str(&format!(" @from={from}"));
        }
        if member.origin.is_operator {
            text.push_str(" @operator");
        }
        for host in &member.origin.hosts {
            text.push_str(&format!(" @host={host}"));
        }
        text.push('\n');
    }
    text
}

/// Returns the drained members of a record of Evener 0.1. Later versions save the operator's states
/// elsewhere. The function is to be removed in the next version.
pub fn drained_in_record(text: &str) -> Vec<Url> {
    let lines = text.lines().skip_while(|line| *line != FIRST).skip(1);
    let drained = lines.filter(|line| line.split_ascii_whitespace().any(|word| word == DRAINED));
    drained.filter_map(|found| Some(line(found)?.joiner.url)).collect()
}

/// Returns the record without the words that mark drained members.
pub fn without_drains(text: &str) -> String {
    text.replace(&format!(" {DRAINED}"), "")
}

/// Reads a record. Damaged lines are skipped. A record with another first line counts as empty.
pub(super) fn read(text: &str) -> Vec<MemberRecord> {
    let mut lines = text.lines();
    if lines.next() != Some(FIRST) {
        return Vec::new();
    }
    lines.filter_map(line).collect()
}

fn line(line: &str) -> Option<MemberRecord> {
    let (ours, its): (Vec<&str>, Vec<&str>) =
        line.split_ascii_whitespace().partition(|word| word.starts_with('@'));
    let values = |key: &'static str| ours.iter().filter_map(move |word| word.strip_prefix(key));
    let value = |key| values(key).next();
    Some(MemberRecord {
        joiner: Joiner::parse(&its.join(" ")).ok()?,
        joined: ours.contains(&"@joined"),
        left: ours.contains(&"@left"),
        was_up: ours.contains(&"@up"),
        stamp_ms: value("@stamp=").and_then(|stamp| stamp.parse().ok()),
        origin: MessageOrigin {
            from: value("@from=").and_then(|from| from.parse().ok()),
            hosts: values("@host=").map(String::from).collect(),
            is_operator: ours.contains(&"@operator"),
        },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_of_other_version_or_damaged_are_dropped() {
        assert_eq!(read("evener group members 2\nhttp://m1\n"), []);
        assert_eq!(read(""), []);
        let read = read("evener group members 1\nhttp://m1 @joined @stamp=7\n\u{0}\u{0}\nhttp://m2 @left\n");
        assert_eq!(read.len(), 2);
        assert!(read[0].joined && read[0].stamp_ms == Some(7) && read[1].left);
    }

    #[test]
    fn drains_of_the_version_before_are_found_and_left_out() {
        let before = "evener group members 1\nhttp://m1 @joined @drained @up\nhttp://m2 @left\n";
        let urls = |text: &str| {
            let found = drained_in_record(text).into_iter();
            found.map(|url| String::from(url.as_str())).collect::<Vec<_>>()
        };
        assert_eq!(urls(before), ["http://m1"]);
        let after = without_drains(before);
        assert_eq!(after, "evener group members 1\nhttp://m1 @joined @up\nhttp://m2 @left\n");
        assert_eq!((urls(&after), read(&after)), (alloc::vec![], read(before)));
        assert!(urls("evener group members 2\nhttp://m1 @drained\n").is_empty());
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "(evener group members 1\n)?(http://m1|@joined|@stamp=|[ \n]|\\PC){0,20}") {
            let _ = read(&text);
        }
    }
}
