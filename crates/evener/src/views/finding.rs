//! Findings about a host.

use serde::{Deserialize, Serialize};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Ok,
    /// Works, but not as well as possible, or not for every farm.
    Warn,
    Fail,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Subject, in a word or two.
    pub check: String,
    pub state: Severity,
    /// Sentence on the state and the remedy.
    pub message: String,
}

impl Finding {
    pub(crate) fn ok(check: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { check: check.into(), state: Severity::Ok, message: message.into() }
    }

    pub(crate) fn warn(check: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { state: Severity::Warn, ..Finding::ok(check, message) }
    }

    pub(crate) fn fail(check: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { state: Severity::Fail, ..Finding::ok(check, message) }
    }
}
