//! Output that can't disturb a terminal: printable characters, and JSON lines of printable
//! characters.

use std::fmt::Write;

use serde::Serialize;

/// True if a character is printable and does not affect other characters: no control character,
/// line separator, direction mark or zero-width mark (Unicode, chapter 23).
pub(crate) fn is_shown(c: char) -> bool {
    let steers = matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    !c.is_control() && !steers
}

/// Returns a JSON line, with its line end. Client data can't end the line early or control the
/// reader's terminal: characters that aren't [`is_shown`] become JSON's `\u` escapes.
pub(crate) fn json(event: &impl Serialize) -> String {
    // Serialisation fails only for maps with keys that are no text, and views have none.
    let plain = serde_json::to_string(event).unwrap_or_default();
    let mut line = String::with_capacity(plain.len() + 1);
    for c in plain.chars() {
        if is_shown(c) {
            line.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(line, "\\u{unit:04x}");
            }
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn log_line_is_one_line_and_round_trips() {
        let evil = "/a\r\n{\"x\":1}\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}\u{feff}\\ \"é\u{1f600}";
        let line = json(&evil);
        assert!(line.ends_with('\n') && line.lines().count() == 1, "{line:?}");
        assert!(line.trim_end().chars().all(is_shown), "{line:?}");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), evil);
        assert!(line.contains('é') && line.contains('\u{1f600}'));
    }
}
