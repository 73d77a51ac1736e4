//! An edit of the farm, and its place.

use std::fmt;

use evener_core::pool::OperatorState;
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::runtime::token::Role;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "at", rename_all = "kebab-case")]
pub enum EditTarget {
    Service {
        /// Name of the service.
        service: String,
    },
    /// A key of a service.
    ServiceKey {
        /// Name of the service.
        service: String,
        key: String,
    },
    Server {
        /// Name of the service.
        service: String,
        server: String,
    },
    /// A key of a server.
    ServerKey {
        /// Name of the service.
        service: String,
        server: String,
        key: String,
    },
    /// Operator state of a server of a service or of a balanced name. The farm need not list the
    /// server. A file has no operator states.
    Operator {
        /// Name of the service, or the DNS name.
        service: String,
        server: String,
    },
    /// Operator state of the director itself.
    Director,
}

impl EditTarget {
    /// True if the place is an operator state. A file has no operator states.
    pub fn is_operators(&self) -> bool {
        matches!(self, EditTarget::Operator { .. } | EditTarget::Director)
    }

    /// Returns the service of the place. Empty for the director itself.
    pub fn service(&self) -> &str {
        match self {
            EditTarget::Director => "",
            EditTarget::Service { service }
            | EditTarget::ServiceKey { service, .. }
            | EditTarget::Server { service, .. }
            | EditTarget::ServerKey { service, .. }
            | EditTarget::Operator { service, .. } => service,
        }
    }

    /// Returns the role that may edit the place. Weights and operator states are daily work.
    pub fn needs(&self) -> Role {
        match self {
            EditTarget::Operator { .. } | EditTarget::Director => Role::Operate,
            EditTarget::ServerKey { key, .. } if key == "weight" => Role::Operate,
            _ => Role::Admin,
        }
    }

    /// True if the place is a whole service or server.
    pub fn is_whole(&self) -> bool {
        matches!(self, EditTarget::Service { .. } | EditTarget::Server { .. })
    }

    /// True if `other` is this place, or a place within this service or server.
    pub fn holds(&self, other: &EditTarget) -> bool {
        let server_of = |place: &EditTarget| match place {
            EditTarget::Server { server, .. } | EditTarget::ServerKey { server, .. } => Some(server.clone()),
            _ => None,
        };
        match (self, other) {
            _ if self.is_operators() || other.is_operators() => self == other,
            (EditTarget::Service { service }, other) => service == other.service(),
            (EditTarget::Server { service, server }, other) => {
                service == other.service() && server_of(other).as_ref() == Some(server)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for EditTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EditTarget::Service { service } => write!(f, "service {service}"),
            EditTarget::ServiceKey { service, key } => write!(f, "{service}: {key}"),
            EditTarget::Server { service, server } => write!(f, "{service}/{server}"),
            EditTarget::ServerKey { service, server, key } => write!(f, "{service}/{server}: {key}"),
            EditTarget::Operator { service, server } => write!(f, "{service}/{server}: state"),
            EditTarget::Director => f.write_str("director: state"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edit {
    #[serde(flatten)]
    pub place: EditTarget,
    /// New value at the place. `None` removes the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Value in the file when the edit was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Value>,
}

/// Lists the places of edits in words.
pub(crate) fn places(edits: &[Edit]) -> String {
    let mut places: Vec<String> = edits.iter().map(|edit| edit.place.to_string()).collect();
    places.dedup();
    places.join(", ")
}

/// Returns the operator state of a director.
pub(super) fn director_state(is_drained: bool) -> OperatorState {
    if is_drained { OperatorState::Drain } else { OperatorState::Ready }
}

/// Returns an operator state as an edit's value. `None` if the state is ready.
pub fn operator_value(state: OperatorState) -> Option<Value> {
    (state != OperatorState::Ready).then(|| Value::String(state.name().to_owned()))
}

/// Parses the operator state from an edit's value.
pub fn operator_state(value: Option<&Value>) -> OperatorState {
    value.and_then(Value::as_str).and_then(OperatorState::of).unwrap_or_default()
}
