//! Findings on a host.

use serde::{Deserialize, Serialize};

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could, or not for every farm.
    Warn,
    /// Will not work.
    Fail,
}

/// A finding, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its subject, in a word or two.
    pub check: String,
    /// How good it is.
    pub state: Severity,
    /// A sentence: how it is, and what to do about it.
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
