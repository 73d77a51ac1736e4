//! Detects the program that a file belongs to.

use super::Origin;
use super::source::Source;

/// Maximum number of lines that are examined.
const LINES: usize = 10_000;

/// For each program, first words of lines that no other program has.
const WORDS: [(Origin, &[&str]); 4] = [
    (Origin::Ipvsadm, &["-A", "-a", "-C", "--add-service", "--add-server", "ipvsadm", "/sbin/ipvsadm"]),
    (
        Origin::Keepalived,
        &[
            "virtual_server",
            "virtual_server_group",
            "real_server",
            "vrrp_instance",
            "vrrp_script",
            "vrrp_sync_group",
            "global_defs",
        ],
    ),
    (Origin::Haproxy, &["frontend", "backend", "listen", "defaults", "global"]),
    (
        Origin::Nginx,
        &["http", "events", "stream", "upstream", "server", "location", "proxy_pass", "worker_processes"],
    ),
];

/// Returns the program with the most lines that begin with its own words.
pub(super) fn origin(source: &Source) -> Option<Origin> {
    let mut counts = WORDS.map(|(origin, _)| (origin, 0_usize));
    for line in source.lines.iter().take(LINES) {
        let text = line.text.trim();
        let Some(first) = text.split([' ', '\t', '{']).next().filter(|first| !first.is_empty()) else {
            continue;
        };
        // Files of HAProxy and nginx can have `listen` and `server`. Only nginx ends lines with
        // these characters.
        let is_nginx = text.ends_with([';', '{', '}']) || text.contains("; #");
        for ((origin, count), (_, words)) in counts.iter_mut().zip(WORDS) {
            let fits = match origin {
                Origin::Haproxy => !is_nginx,
                Origin::Nginx => is_nginx,
                Origin::Ipvsadm | Origin::Keepalived => true,
            };
            *count += usize::from(fits && words.contains(&first));
        }
    }
    let most = counts.into_iter().rev().max_by_key(|(_, count)| *count);
    most.filter(|(_, count)| *count > 0).map(|(origin, _)| origin)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn origin_follows_first_words() {
        let guessed = |text: &str| origin(&Source::read(text.as_bytes(), "f").unwrap());
        assert_eq!(guessed("-A -t 192.0.2.1:80 -s rr\n"), Some(Origin::Ipvsadm));
        assert_eq!(guessed("listen a\n  server b 192.0.2.1:80\n"), Some(Origin::Haproxy));
        assert_eq!(guessed("server {\n  listen 80;\n}\n"), Some(Origin::Nginx));
        assert_eq!(guessed("vrrp_instance a {\n}\n"), Some(Origin::Keepalived));
        assert_eq!(guessed("Dear all,\n"), None);
    }
}
