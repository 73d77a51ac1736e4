//! The packaged Prometheus rules and Grafana dashboard: made from the table of alerts and compared
//! with the existing metrics.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::reference::alerts::{ALERTS, Alert};
use super::reference::{bless, metric_names, paragraph};
use super::tree::root;

const RULES: &str = "packaging/prometheus/alerts.yml";
const TESTS: &str = "packaging/prometheus/alerts.test.yml";
const PAGE: &str = "docs/operating/alerts.md";

/// Returns a YAML string. JSON strings are valid YAML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn rules() -> String {
    let mut text = "# Made from the table of alerts; docs/operating/alerts.md explains each. Scrape with job \"evener\".\n\
                    groups:\n  - name: evener\n    rules:\n"
        .to_owned();
    for Alert { name, expr, minutes, severity, summary, .. } in ALERTS {
        let expr = quoted(expr);
        let (summary, anchor) = (quoted(summary), name.to_lowercase());
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: {expr}\n        for: {minutes}m\n        labels:\n          severity: {severity}\n        \
             annotations:\n          summary: {summary}\n          manual: operating/alerts.html#{anchor}\n"
        );
    }
    text
}

/// Each alert fires on its own series and on no other, and no alert fires for a healthy farm.
fn tests() -> String {
    let mut text =
        "# Made from the table of alerts: `promtool test rules alerts.test.yml`.\nrule_files: [alerts.yml]\ntests:\n"
            .to_owned();
    for alert in ALERTS {
        let _ = write!(text, "  - name: {}\n    interval: 1m\n    input_series:\n", alert.name);
        for (series, values) in alert.series {
            let (series, values) = (quoted(series), quoted(values));
            let _ = writeln!(text, "      - {{series: {series}, values: {values}}}");
        }
        text += "    promql_expr_test:\n";
        for other in ALERTS {
            let fires = usize::from(other.name == alert.name);
            let expr =
                format!("count(ALERTS{{alertname=\"{}\", alertstate=\"firing\"}}) or vector(0)", other.name);
            let expr = quoted(&expr);
            let _ = writeln!(
                text,
                "      - {{expr: {expr}, eval_time: 40m, exp_samples: [{{labels: '{{}}', value: {fires}}}]}}"
            );
        }
    }
    text
}

fn page() -> String {
    let mut page = "# Alerts\n\n`packaging/prometheus/alerts.yml` (in packages `/usr/share/doc/evener/prometheus`) has rules for\n\
                    Prometheus, each explained here; `packaging/grafana/evener.json` is a board for Grafana. Both want\n\
                    the scrape job to be called `evener`: [Metrics and alerts](metrics.md#scraping) shows it.\n"
        .to_owned();
    for Alert { name, expr, minutes, severity, summary, look, act, .. } in ALERTS {
        let finding = summary.replace("{{ $labels.", "*").replace(" }}", "*");
        let lasting = if *minutes > 0 { format!("    # for {minutes} min") } else { String::new() };
        let _ = write!(page, "\n## {name}\n\n");
        paragraph(&mut page, &format!("{finding}."));
        let _ = write!(page, "\n```promql\n{expr}{lasting}\n```\n\n");
        paragraph(&mut page, &format!("Severity: {severity}. **Look at:** {look}"));
        page.push('\n');
        paragraph(&mut page, &format!("**Do:** {act}"));
    }
    page
}

#[test]
fn packaged_alerts_and_their_page_are_those_of_the_table() {
    for (path, text) in [(RULES, rules()), (TESTS, tests()), (PAGE, page())] {
        bless(&root().join(path), &text);
    }
    let metrics = metric_names();
    for alert in ALERTS.iter().filter(|alert| alert.metric != "up") {
        assert!(metrics.contains(alert.metric), "{} goes by {}", alert.name, alert.metric);
        assert!(alert.expr.contains(alert.metric), "{}", alert.name);
    }
}

/// Returns the path of promtool, which `make setup-tests` installs.
fn promtool() -> PathBuf {
    let path = root().join("target/tools/promtool");
    assert!(path.exists(), "There is no {}: run `make setup-tests`", path.display());
    path
}

#[test]
fn each_alert_fires_by_its_own_series_alone() {
    let output = Command::new(promtool()).args(["test", "rules"]).arg(root().join(TESTS)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let checked = Command::new(promtool()).args(["check", "rules"]).arg(root().join(RULES)).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// Collects all texts with this key in a JSON document.
fn texts<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get(key).and_then(Value::as_str));
            object.values().for_each(|value| texts(value, key, found));
        }
        Value::Array(values) => values.iter().for_each(|value| texts(value, key, found)),
        _ => {}
    }
}

#[test]
fn board_asks_for_metrics_that_there_are() {
    let text = fs::read_to_string(root().join("packaging/grafana/evener.json")).unwrap();
    let board: Value = serde_json::from_str(&text).unwrap();
    let (mut queries, metrics) = (Vec::new(), metric_names());
    texts(&board, "expr", &mut queries);
    assert!(queries.len() > 12, "{queries:?}");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named: BTreeSet<&str> = queries
        .iter()
        .flat_map(|query| query.split(|c| !is_name(c)))
        .filter(|word| word.starts_with("evener_") || word.starts_with("process_"))
        .collect();
    for name in named {
        let family = name.trim_end_matches("_bucket");
        assert!(metrics.contains(family), "{name} is no metric");
    }
    // Panels have unique ids and positions.
    let panels = board["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
}
