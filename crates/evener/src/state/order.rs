//! Operators' orders, and their translation to edits of the farm.

use std::collections::BTreeMap;

use evener_core::farm::plan::ServerName;
use evener_core::pool::OperatorState;
use toml::{Table, Value};

use super::document::FarmDocument;
use super::edit::{EditTarget, director_state, operator_state, operator_value};
use super::record::OperatorStates;
use crate::runtime::spelling::meant;

#[derive(Clone, Debug, PartialEq)]
pub enum StateOrder {
    /// Replaces all services of the farm.
    Replace {
        /// Tables as in a file.
        services: Vec<Value>,
        /// Operator states of all servers that aren't ready. `None` leaves the states as they are.
        states: Option<BTreeMap<ServerName, OperatorState>>,
    },
    ChangeServer {
        server: ServerName,
        fields: ServerFields,
    },
    /// Changes keys of a service.
    ChangeService {
        /// Name of the service.
        service: String,
        /// Values as in a file. A key without a value is removed.
        keys: Vec<(String, Option<Value>)>,
    },
    /// Adds a server to a service.
    AddServer {
        /// Name of the service.
        service: String,
        keys: Table,
    },
    RemoveServer(ServerName),
    /// Adds a service with these keys, as in a file.
    AddService(Table),
    RemoveService(String),
    /// Drains this director if true, or makes it ready again.
    DrainDirector(bool),
    /// Undoes the change with this number, or the last change.
    Undo(Option<u64>),
}

/// New values of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerFields {
    /// Values as in a file. A key without a value is removed.
    pub keys: Vec<(String, Option<Value>)>,
    /// Change of the operator state.
    pub state: Option<StateChange>,
}

/// Change of a server's operator state. A request of the API expresses the change by the fields
/// `drain` and `maintenance`, and may omit either field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// Sets this state, independent of the old one.
    Set(OperatorState),
    /// Drains the server. A server in maintenance is drained already, and stays so.
    Drain,
    /// Ends maintenance. A server that only drains keeps draining.
    EndMaintenance,
}

impl StateChange {
    /// Returns the change for the fields of a request. `None` if the request omits both fields.
    pub fn of(drain: Option<bool>, maintenance: Option<bool>) -> Option<StateChange> {
        match (drain, maintenance) {
            (None, None) => None,
            (_, Some(true)) => Some(StateChange::Set(OperatorState::Maintenance)),
            (Some(true), Some(false)) => Some(StateChange::Set(OperatorState::Drain)),
            (Some(true), None) => Some(StateChange::Drain),
            (Some(false), _) => Some(StateChange::Set(OperatorState::Ready)),
            (None, Some(false)) => Some(StateChange::EndMaintenance),
        }
    }

    /// Returns the state of a server after the change.
    fn applied_to(self, before: OperatorState) -> OperatorState {
        match (self, before) {
            (StateChange::Set(state), _) => state,
            (StateChange::Drain, OperatorState::Maintenance) => OperatorState::Maintenance,
            (StateChange::Drain, _) => OperatorState::Drain,
            (StateChange::EndMaintenance, OperatorState::Maintenance) => OperatorState::Ready,
            (StateChange::EndMaintenance, other) => other,
        }
    }
}

/// Places of the farm, each with its new value. `None` removes the value.
pub(super) type NewValues = Vec<(EditTarget, Option<Value>)>;

#[derive(Debug)]
pub(super) enum Meaning {
    Edits(NewValues),
    /// Tables of a whole new file, and edits of operator states. The file must be parsed to name
    /// its servers and to derive its edits.
    File(Table, NewValues),
}

/// Error of an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// A service or server does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The order contradicts the farm.
    #[error("{0}")]
    Conflict(String),
    /// The farm would break rules of the file.
    #[error("{0}")]
    Invalid(String),
    /// The farm has changed since the caller read it.
    #[error(
        "the farm has changed: its version is {now}, and the request is for {wanted}; read the farm again and repeat the change"
    )]
    Stale {
        now: String,
        /// Tag in the request.
        wanted: String,
    },
    /// The author's role does not permit the order.
    #[error("{0}")]
    Forbidden(String),
    /// The change can't be stored.
    #[error("{0}")]
    Unavailable(String),
}

/// Returns the edits of an order. `Undo` has none here: the record handles it.
pub(super) fn meaning(
    order: &StateOrder,
    farm: &FarmDocument,
    states: &OperatorStates,
) -> Result<Meaning, OrderError> {
    let edits = match order {
        StateOrder::Replace { services, states: wanted } => {
            check_counts(services.len(), services.iter().map(servers_of).sum())?;
            let file = farm.with_services(services.clone());
            let edits =
                wanted.as_ref().map(|wanted| server_state_edits(&states.servers, wanted)).unwrap_or_default();
            return Ok(Meaning::File(file, edits));
        }
        StateOrder::ChangeServer { server, fields } => change_server(server, fields, farm, states)?,
        StateOrder::ChangeService { service, keys } => {
            has_service(farm, service)?;
            let place = |key: &String| EditTarget::ServiceKey { service: service.clone(), key: key.clone() };
            refuse_keys(keys, &["name", "server"])?;
            keys.iter().map(|(key, value)| (place(key), value.clone())).collect()
        }
        StateOrder::AddServer { service, keys } => {
            has_service(farm, service)?;
            let Some(server) = keys.get("name").and_then(Value::as_str) else {
                return Ok(Meaning::File(with_server(farm, service, keys.clone()), Vec::new()));
            };
            let place = EditTarget::Server { service: service.clone(), server: server.to_owned() };
            if farm.at(&place).is_some() {
                let message = format!(
                    "{service}/{server} exists already: change its weight by `evener weight` (API: PATCH), or remove it first"
                );
                return Err(OrderError::Conflict(message));
            }
            vec![(place, Some(Value::Table(keys.clone())))]
        }
        StateOrder::RemoveServer(name) => {
            has_server(farm, name)?;
            let ServerName { service, server } = name.clone();
            let mut edits = vec![(EditTarget::Server { service, server }, None)];
            edits.extend(states.servers.contains_key(name).then(|| state_edit(name, OperatorState::Ready)));
            edits
        }
        StateOrder::AddService(keys) => {
            check_counts(1, keys.get("server").map_or(0, len_of))?;
            let mut services = farm.services();
            services.push(Value::Table(keys.clone()));
            return Ok(Meaning::File(farm.with_services(services), Vec::new()));
        }
        StateOrder::RemoveService(service) => {
            has_service(farm, service)?;
            let of = states.servers.keys().filter(|name| name.service == *service);
            let mut edits = vec![(EditTarget::Service { service: service.clone() }, None)];
            edits.extend(of.map(|name| state_edit(name, OperatorState::Ready)));
            edits
        }
        StateOrder::DrainDirector(drain) => {
            vec![(EditTarget::Director, operator_value(director_state(*drain)))]
        }
        StateOrder::Undo(_) => Vec::new(),
    };
    Ok(Meaning::Edits(edits))
}

/// Maximum number of services of a farm, including groups.
pub(super) const SERVICES: usize = 4_096;
/// Maximum number of servers of a farm.
pub(super) const SERVERS: usize = 65_535;

/// Refuses a request with more services or servers than any farm has, before its lists are copied
/// or written as text. The file's parser has lower limits, but would report each error of each
/// service of a huge request.
fn check_counts(services: usize, servers: usize) -> Result<(), OrderError> {
    let refuse = |count: usize, kind: &str, most: usize| {
        Err(OrderError::Invalid(format!(
            "the request has {count} {kind}, and a farm has at most {most}: send fewer"
        )))
    };
    match services > SERVICES {
        true => refuse(services, "services", SERVICES),
        false if servers > SERVERS => refuse(servers, "servers", SERVERS),
        false => Ok(()),
    }
}

fn servers_of(service: &Value) -> usize {
    service.get("server").map_or(0, len_of)
}

fn len_of(list: &Value) -> usize {
    list.as_array().map_or(0, Vec::len)
}

/// Keys of a server of an every-host service that its host decides alone, and reports to the other
/// hosts.
const OF_HOST: [&str; 2] = ["weight", "max_connections"];

/// Refuses edits of every-host services, except of [`OF_HOST`]. Another change on one host would
/// make the tables of the hosts differ.
pub(super) fn same_on_all_hosts(
    edits: &NewValues,
    before: &FarmDocument,
    after: &FarmDocument,
) -> Result<(), OrderError> {
    let is_of_host = |place: &EditTarget| match place {
        EditTarget::ServerKey { key, .. } => OF_HOST.contains(&key.as_str()),
        place => place.is_operators(),
    };
    let edits = edits.iter().filter(|(place, _)| !is_of_host(place));
    let mut services = edits.map(|(place, _)| place.service());
    let by_hosts =
        services.find(|service| before.is_on_every_host(service) || after.is_on_every_host(service));
    match by_hosts {
        None => Ok(()),
        Some(service) => Err(OrderError::Conflict(format!(
            "every host decides for {service}, so all must have the same file: change the file on all hosts, and reload it"
        ))),
    }
}

fn change_server(
    name: &ServerName,
    fields: &ServerFields,
    farm: &FarmDocument,
    states: &OperatorStates,
) -> Result<NewValues, OrderError> {
    let ServerName { service, server } = name;
    if !fields.keys.is_empty() {
        has_server(farm, name)?;
    }
    refuse_keys(&fields.keys, &["name"])?;
    let place = |key: &String| EditTarget::ServerKey {
        service: service.clone(),
        server: server.clone(),
        key: key.clone(),
    };
    let mut edits: NewValues = fields.keys.iter().map(|(key, value)| (place(key), value.clone())).collect();
    let before = states.servers.get(name).copied().unwrap_or_default();
    edits.extend(fields.state.map(|change| state_edit(name, change.applied_to(before))));
    Ok(edits)
}

fn refuse_keys(keys: &[(String, Option<Value>)], refused: &[&str]) -> Result<(), OrderError> {
    match keys.iter().find(|(key, _)| refused.contains(&key.as_str())) {
        None => Ok(()),
        Some((key, _)) => Err(OrderError::Invalid(format!(
            "`{key}` can't be changed here: remove this one, and add another"
        ))),
    }
}

fn state_edit(name: &ServerName, state: OperatorState) -> (EditTarget, Option<Value>) {
    let ServerName { service, server } = name.clone();
    (EditTarget::Operator { service, server }, operator_value(state))
}

/// Returns the edits that turn the operator states `before` into `wanted`.
pub(super) fn state_edits(before: &OperatorStates, wanted: &OperatorStates) -> NewValues {
    let mut edits = server_state_edits(&before.servers, &wanted.servers);
    let is_other = before.is_director_drained != wanted.is_director_drained;
    edits.extend(is_other.then(|| (EditTarget::Director, wanted.at(&EditTarget::Director))));
    edits
}

fn server_state_edits(
    before: &BTreeMap<ServerName, OperatorState>,
    wanted: &BTreeMap<ServerName, OperatorState>,
) -> NewValues {
    let ended = before.keys().filter(|name| !wanted.contains_key(name));
    let ended = ended.map(|name| state_edit(name, OperatorState::Ready));
    let new = wanted.iter().filter(|(name, state)| before.get(name) != Some(state));
    ended.chain(new.map(|(name, state)| state_edit(name, *state))).collect()
}

fn with_server(farm: &FarmDocument, service: &str, keys: Table) -> Table {
    let mut services = farm.services();
    for (name, table) in farm.names().zip(&mut services) {
        if let Value::Table(table) = table
            && name == service
        {
            match table.entry("server").or_insert_with(|| Value::Array(Vec::new())) {
                Value::Array(servers) => servers.push(Value::Table(keys)),
                other => *other = Value::Array(vec![Value::Table(keys)]),
            }
            break;
        }
    }
    farm.with_services(services)
}

fn has_service(farm: &FarmDocument, service: &str) -> Result<(), OrderError> {
    match farm.server_names(service) {
        Some(_) => Ok(()),
        None => Err(OrderError::NotFound(format!(
            "there is no service {service}; {}",
            meant(service, farm.names())
        ))),
    }
}

fn has_server(farm: &FarmDocument, name: &ServerName) -> Result<(), OrderError> {
    let ServerName { service, server } = name;
    has_service(farm, service)?;
    let mut names = farm.server_names(service).into_iter().flatten();
    if names.any(|known| known == server) {
        return Ok(());
    }
    let names = farm.server_names(service).into_iter().flatten();
    Err(OrderError::NotFound(format!("service {service} lists no server {server}; {}", meant(server, names))))
}

/// Describes edits in one sentence, for the operator and the audit log.
pub(super) fn sentence(edits: &NewValues, before: &FarmDocument, file: &FarmDocument) -> String {
    const SHOWN: usize = 4;
    if edits.is_empty() {
        return "nothing differs from what is in force".to_owned();
    }
    let mut parts: Vec<String> =
        edits.iter().take(SHOWN).map(|(place, value)| clause(place, value.as_ref(), before, file)).collect();
    if edits.len() > SHOWN {
        parts.push(format!("{} more", edits.len() - SHOWN));
    }
    parts.join("; ")
}

fn clause(place: &EditTarget, value: Option<&Value>, before: &FarmDocument, file: &FarmDocument) -> String {
    let written = |value: Option<&Value>| value.map_or_else(|| "unset".to_owned(), ToString::to_string);
    match (place, value) {
        (EditTarget::Operator { service, server }, value) => {
            format!("{service}/{server} is in state {}", operator_state(value).name())
        }
        (EditTarget::Director, Some(_)) => {
            "this director drains: it isn't ready any more, and serves what still comes".to_owned()
        }
        (EditTarget::Director, None) => "this director becomes ready again".to_owned(),
        (EditTarget::Service { .. } | EditTarget::Server { .. }, None) => format!("{place} is removed"),
        (EditTarget::Service { .. } | EditTarget::Server { .. }, Some(_)) if before.at(place).is_some() => {
            format!("{place} is replaced")
        }
        (EditTarget::Service { .. }, Some(_)) => format!("{place} is added"),
        (EditTarget::Server { service, .. }, Some(_)) => {
            let needs_agent = matches!(before.method(service), Some("handoff" | "tunnel"));
            let agent = if needs_agent { ", and counts once its agent has it in its file" } else { "" };
            format!("{place} is added{agent}")
        }
        (EditTarget::ServiceKey { .. } | EditTarget::ServerKey { .. }, value) => {
            let of_file = file.at(place);
            let note = match of_file.as_ref() == value {
                true => "as in the file".to_owned(),
                false => format!("file: {}", written(of_file.as_ref())),
            };
            format!("{place} is {} ({note})", written(value))
        }
    }
}
