//! Values that were changed at run time, beside the file's.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::board::PublishedState;
use crate::state::Override;

/// Value in force that differs from the file's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverrideView {
    /// Key of the file. `state` is the operator state of a server. `server` and `service` stand for
    /// a whole server or service.
    pub key: String,
    /// Value in force. Null if the key is unset.
    pub value: Value,
    /// Value in the file. Null if there is none.
    pub file: Value,
    /// Author of the change.
    pub by: String,
    /// Seconds since the change.
    pub age_seconds: u64,
}

impl OverrideView {
    /// Describes the change in words.
    pub(crate) fn sentence(&self) -> String {
        let written = |value: &Value| match value {
            Value::Null => "unset".to_owned(),
            value => value.to_string(),
        };
        let OverrideView { key, value, file, by, age_seconds } = self;
        let note = match key.as_str() {
            "state" => String::new(),
            _ => format!("file: {}, ", written(file)),
        };
        let is_added = matches!(key.as_str(), "server" | "service");
        let what =
            if is_added { "added at run time".to_owned() } else { format!("{key} {}", written(value)) };
        let note = if is_added { "" } else { &note };
        format!("{what} ({note}by {by} {} ago)", age(*age_seconds))
    }
}

/// Returns the overrides of a service or of a server.
pub(super) fn overrides(
    published: &PublishedState,
    service: &str,
    server: Option<&str>,
) -> Vec<OverrideView> {
    // Most farms have no overrides.
    if published.state.overrides.is_empty() {
        return Vec::new();
    }
    let key = (service.to_owned(), server.map(str::to_owned));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let view = |one: &Override| OverrideView {
        key: one.key.clone(),
        value: json(one.value.as_ref()),
        file: json(one.file.as_ref()),
        by: one.by.clone(),
        age_seconds: now.as_secs().saturating_sub(one.unix_ms / 1_000),
    };
    published.state.overrides.get(&key).into_iter().flatten().map(view).collect()
}

fn json(value: Option<&toml::Value>) -> Value {
    value.and_then(|value| serde_json::to_value(value).ok()).unwrap_or_default()
}

/// Formats an age for people.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn overrides_name_the_file_value_the_author_and_the_age() {
        let one = |key: &str, value, file, age_seconds| {
            OverrideView { key: key.into(), value, file, by: "alice".into(), age_seconds }.sentence()
        };
        assert_eq!(one("weight", json!(3), json!(1), 300), "weight 3 (file: 1, by alice 5 min ago)");
        assert_eq!(one("weight", json!(3), Value::Null, 3), "weight 3 (file: unset, by alice 3 s ago)");
        assert_eq!(one("state", json!("drain"), Value::Null, 7_200), "state \"drain\" (by alice 2 h ago)");
        assert_eq!(
            one("server", json!(true), Value::Null, 172_800),
            "added at run time (by alice 2 days ago)"
        );
    }
}
