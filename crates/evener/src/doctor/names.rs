//! Whether queries have room to wait in.

use crate::config::DnsConfig;
use crate::runtime::receive_buffer::{WANTED, receive_buffer};
use crate::views::Finding;

/// Looks at the room that sockets of a process like this one get, if the file has names.
pub(super) fn check_names(dns: &DnsConfig) -> Option<Finding> {
    let buffer = receive_buffer().ok().filter(|_| !dns.listen.is_empty())?;
    Some(finding(buffer))
}

fn finding(buffer: usize) -> Finding {
    const CHECK: &str = "queries";
    match buffer {
        WANTED.. => {
            Finding::ok(CHECK, format!("Sockets of names have {} KiB for queries that wait.", buffer >> 10))
        }
        _ => Finding::warn(
            CHECK,
            format!(
                "Sockets of names have {} KiB for queries that wait, so many at once are lost: \
                 `sysctl -w net.core.rmem_max={WANTED}`, or grant CAP_NET_ADMIN.",
                buffer >> 10
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::Severity;

    #[test]
    fn small_receive_buffer_gives_warning_with_remedy() {
        assert_eq!(finding(WANTED).state, Severity::Ok);
        let little = finding(212_992);
        assert_eq!(little.state, Severity::Warn);
        assert!(
            little.message.contains("208 KiB") && little.message.contains("rmem_max=2097152"),
            "{}",
            little.message
        );
    }
}
