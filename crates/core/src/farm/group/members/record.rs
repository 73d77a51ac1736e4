//! The part of a group that outlives the daemon: text, a member a line.
//!
//! The line is that of GROUP-ADD; behind it stands what the member didn't say itself, each word
//! with an `@` in front.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Joiner;
use super::member::TrackedMember;
use crate::farm::group::reach::MessageOrigin;

/// The first line, with the version of what follows.
const FIRST: &str = "evener group members 1";

/// The content of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemberRecord {
    pub(super) joiner: Joiner,
    pub(super) joined: bool,
    pub(super) drained: bool,
    pub(super) left: bool,
    pub(super) was_up: bool,
    pub(super) stamp_ms: Option<u64>,
    pub(super) origin: MessageOrigin,
}

/// Writes all that is to be remembered.
pub(super) fn write<'a>(members: impl Iterator<Item = &'a TrackedMember>) -> String {
    let mut text = format!("{FIRST}\n");
    for member in members {
        text.push_str(&format!("{}", member.joiner));
        let words = [
            (member.joined, "@joined"),
            (member.server.operator_state().is_drained(), "@drained"),
            (member.left, "@left"),
            (member.server.is_up(), "@up"),
        ];
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

/// Reads it again. A line that says nothing, since it was damaged, is left out, and a text of
/// another version altogether.
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
        drained: ours.contains(&"@drained"),
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

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "(evener group members 1\n)?(http://m1|@joined|@stamp=|[ \n]|\\PC){0,20}") {
            let _ = read(&text);
        }
    }
}
