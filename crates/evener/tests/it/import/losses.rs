//! Parts of a file that would change their meaning, or be gone, if they were read carelessly.

use std::fs;
use std::path::Path;

use evener::import::{ImportReport, import};
use evener_core::pool::HealthKind;

use super::choices::{imported, leaves, only, routes};

/// Whether a part of a line is left with a reason that has these words.
fn leaves_for(report: &ImportReport, text: &str, why: &str) -> bool {
    report.left.iter().any(|left| left.text.contains(text) && left.why.contains(why))
}

#[test]
fn servers_that_are_switched_off_stay_so_whatever_their_weight() {
    let text = "listen a\n  bind 192.0.2.1:80\n  default-server disabled\n\
                server s1 192.0.2.11:80 disabled weight 10\n  server s2 192.0.2.12:80 weight 10\n\
                server s3 192.0.2.13:80 weight 10 enabled\n";
    let (config, report) = imported(text);
    let weights: Vec<_> = only(&config).servers.iter().map(|server| server.weight).collect();
    assert_eq!(weights, [0, 0, 10], "{}", report.toml);
    let text = "stream {\n upstream u {\n  server 192.0.2.11:80 down weight=5;\n  server 192.0.2.12:80 weight=5;\n }\n\
                server {\n  listen 192.0.2.1:80;\n  proxy_pass u;\n }\n}\n";
    let (config, _) = imported(text);
    let weights: Vec<_> = only(&config).servers.iter().map(|server| server.weight).collect();
    assert_eq!(weights, [0, 5]);
}
