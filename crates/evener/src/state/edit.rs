//! One edit of the farm, and the place that it is made at.

use std::fmt;

use evener_core::pool::OperatorState;
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::runtime::token::Role;

/// A place in the farm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "at", rename_all = "kebab-case")]
pub enum EditTarget {
    /// A whole service.
    Service {
        /// Its name.
        service: String,
    },
    /// A key of a service.
    ServiceKey {
        /// The service's name.
        service: String,
        /// The key.
        key: String,
    },
    /// A whole server.
    Server {
        /// The service's name.
        service: String,
        /// The server's.
        server: String,
    },
    /// A key of a server.
    ServerKey {
        /// The service's name.
        service: String,
        /// The server's.
        server: String,
        /// The key.
        key: String,
    },
    /// The operator's word on a server of a service or a name, listed or not, which no file has.
    Operator {
        /// The service's name, or the DNS name.
        service: String,
        /// The server's.
        server: String,
    },
    /// The operator's word on the director itself.
    Director,
}

impl EditTarget {
    /// Whether it is the operator's word, which no file has.
    pub fn is_operators(&self) -> bool {
        matches!(self, EditTarget::Operator { .. } | EditTarget::Director)
    }

    /// The service that it is in; empty for the director itself.
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

    /// The role that an edit there takes. Weights and states are daily work.
    pub fn needs(&self) -> Role {
        match self {
            EditTarget::Operator { .. } | EditTarget::Director => Role::Operate,
            EditTarget::ServerKey { key, .. } if key == "weight" => Role::Operate,
            _ => Role::Admin,
        }
    }

    /// Whether it is a whole service or server.
    pub fn is_whole(&self) -> bool {
        matches!(self, EditTarget::Service { .. } | EditTarget::Server { .. })
    }

    /// Whether a place is this one or within it.
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

/// An edit of the farm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edit {
    /// Where.
    #[serde(flatten)]
    pub place: EditTarget,
    /// The value that it puts there; none: it removes what is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// The value that the file had there when the edit was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Value>,
}

/// The places of edits, in words.
pub(crate) fn places(edits: &[Edit]) -> String {
    let mut places: Vec<String> = edits.iter().map(|edit| edit.place.to_string()).collect();
    places.dedup();
    places.join(", ")
}

/// The operator's word on a director.
pub(super) fn director_state(is_drained: bool) -> OperatorState {
    if is_drained { OperatorState::Drain } else { OperatorState::Ready }
}

/// The operator's word as an edit's value: a server that is ready has none.
pub fn operator_value(state: OperatorState) -> Option<Value> {
    (state != OperatorState::Ready).then(|| Value::String(state.name().to_owned()))
}

/// The operator's word that an edit's value means.
pub fn operator_state(value: Option<&Value>) -> OperatorState {
    value.and_then(Value::as_str).and_then(OperatorState::of).unwrap_or_default()
}
