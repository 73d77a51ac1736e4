//! Text of clients' bytes.

use std::fmt::Write;

/// Returns a client's bytes as text: UTF-8 unchanged, other bytes as `\xff`.
pub(super) fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a String does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_where_they_can_be() {
        assert_eq!(text("/é?q=1".as_bytes()), "/é?q=1");
        assert_eq!(text(b"/\xff\xc3/\xe9"), "/\\xff\\xc3/\\xe9");
        assert_eq!(text(b""), "");
    }
}
