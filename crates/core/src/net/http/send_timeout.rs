//! Timeout for clients that do not read their response.
//!
//! Bytes written to a socket fill the kernel's buffer first. The socket becomes writable again only
//! when a third of the buffer is free, which takes minutes at 1 KB/s. Progress is therefore
//! measured by the client's acknowledgments.

/// Timeout of a response, from the time at which the socket's buffer is full until the socket is
/// writable again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendTimeout {
    timeout_ms: u64,
    /// Number of bytes without acknowledgment at the last check.
    unacknowledged: usize,
    /// Time of the last progress, in milliseconds.
    since_ms: u64,
}

impl SendTimeout {
    /// Starts the timeout when the socket's buffer is full.
    pub fn begin(timeout_ms: u64, now_ms: u64, unacknowledged: usize) -> SendTimeout {
        SendTimeout { timeout_ms, unacknowledged, since_ms: now_ms }
    }

    /// True if the client has acknowledged nothing for too long. Nothing is written while the
    /// timeout runs, so fewer unacknowledged bytes mean progress.
    pub fn has_expired(&mut self, now_ms: u64, unacknowledged: usize) -> bool {
        if unacknowledged < self.unacknowledged {
            (self.unacknowledged, self.since_ms) = (unacknowledged, now_ms);
        }
        now_ms.saturating_sub(self.since_ms) >= self.timeout_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT_MS: u64 = 20_000;

    #[test]
    fn a_client_that_takes_no_byte_for_20_s_is_closed() {
        let mut timeout = SendTimeout::begin(TIMEOUT_MS, 5_000, 2_000_000);
        assert!(!timeout.has_expired(24_999, 2_000_000));
        assert!(timeout.has_expired(25_000, 2_000_000));
    }

    #[test]
    fn client_reading_slowly_keeps_its_connection() {
        // The client's kernel acknowledges 8 KB at a time.
        let mut timeout = SendTimeout::begin(TIMEOUT_MS, 0, 2_000_000);
        for second in 0..1_900 {
            let taken = usize::try_from(second / 8 * 8_192).unwrap_or_default();
            assert!(!timeout.has_expired(second * 1_000, 2_000_000_usize.saturating_sub(taken)), "{second}");
        }
        let mut timeout = SendTimeout::begin(TIMEOUT_MS, 0, 100);
        assert!(!timeout.has_expired(19_999, 99));
        assert!(!timeout.has_expired(39_998, 99));
        assert!(timeout.has_expired(39_999, 99));
    }
}
