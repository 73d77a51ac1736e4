//! The farm's state in the API: all of it, and changes at run time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use evener_core::farm::plan::ServerName;
use evener_core::pool::OperatorState;
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;
use toml::{Table, Value};

use super::access::Caller;
use super::api::{self, Api, ApiError, send_request};
use crate::board::request::ControlRequest;
use crate::state::{
    Difference, EditTarget, FarmState, OrderError, Outcome, Request, ServerFields, StateChange, StateOrder,
};

/// Maximum length of a body, twice that of a farm with 65,535 servers, in bytes.
pub(super) const STATE_BYTES: usize = 16 << 20;
/// Timeout of a change. The addresses of a new service are probed first.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(45);

/// Services of the file, with all run-time changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateView {
    /// Tag of the farm, as in `ETag`. A state that is sent back with its tag applies to this farm
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Services with their servers, by the keys of the file.
    pub service: Vec<serde_json::Map<String, JsonValue>>,
    /// Servers that aren't `ready`, as `SERVICE/SERVER`: `drain` or `maintenance`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<BTreeMap<String, String>>,
}

/// Result of a change, or of a dry run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeResult {
    pub message: String,
    /// Tag of the resulting farm. For a dry run, tag of the farm in force, which the real change
    /// can require.
    pub tag: String,
    /// Increases with each change.
    pub generation: u64,
    /// True for a dry run, which changes nothing.
    pub dry_run: bool,
    pub differences: Vec<DifferenceView>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DifferenceView {
    pub service: String,
    /// Server. `None` if the service itself has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Key. `None` if the whole service or server is added or removed. `state` is the operator
    /// state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub from: JsonValue,
    pub to: JsonValue,
}

/// A change that can be undone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeView {
    /// Generation of the farm after the change.
    pub generation: u64,
    /// Time, as in RFC 3339.
    pub time: String,
    pub by: String,
    /// Address, or the admin socket.
    pub from: String,
    pub message: String,
}

impl DifferenceView {
    fn of(difference: Difference) -> DifferenceView {
        let Difference { place, from, to } = difference;
        let json = |value: Option<Value>| {
            value.map_or(JsonValue::Null, |value| serde_json::to_value(value).unwrap_or_default())
        };
        let (service, server, key) = match place {
            EditTarget::Service { service } => (service, None, None),
            EditTarget::ServiceKey { service, key } => (service, None, Some(key)),
            EditTarget::Server { service, server } => (service, Some(server), None),
            EditTarget::ServerKey { service, server, key } => (service, Some(server), Some(key)),
            EditTarget::Operator { service, server } => (service, Some(server), Some("state".to_owned())),
            EditTarget::Director => (String::new(), None, Some("state".to_owned())),
        };
        DifferenceView { service, server, key, from: json(from), to: json(to) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeQuery {
    dry_run: Option<String>,
}

type Body = Result<Json<JsonValue>, JsonRejection>;
type ServicePath = Result<Path<String>, PathRejection>;
type ServerPath = Result<Path<(String, String)>, PathRejection>;

/// Returns the whole farm.
pub(super) async fn state(State(api): State<Api>) -> Result<Response, ApiError> {
    let state = api.farm.farm_state();
    let service = state.farm.services().into_iter().map(Value::try_into);
    let service = service.collect::<Result<Vec<_>, _>>();
    let service = service.map_err(|error| {
        ApiError(StatusCode::INTERNAL_SERVER_ERROR, format!("The state is no JSON: {error}."))
    })?;
    let full = |name: &ServerName| format!("{}/{}", name.service, name.server);
    let states = state.states.servers.iter().map(|(name, state)| (full(name), state.name().to_owned()));
    let view = StateView { tag: Some(state.tag.clone()), service, states: Some(states.collect()) };
    Ok(([(header::ETAG, format!("\"{}\"", state.tag))], Json(view)).into_response())
}

/// Returns all changes that can be undone, the last one first.
pub(super) async fn changes(State(api): State<Api>) -> Json<Vec<ChangeView>> {
    Json(change_views(&api.farm.farm_state()))
}

/// Returns a farm's changes that can be undone, the last one first.
pub(super) fn change_views(state: &FarmState) -> Vec<ChangeView> {
    let view = |change: &Arc<crate::state::Change>| ChangeView {
        generation: change.number,
        time: crate::state::time(change.unix_ms),
        by: change.author.by.clone(),
        from: change.author.from.clone(),
        message: change.message.clone(),
    };
    state.record.changes.iter().rev().map(view).collect()
}

pub(super) async fn replace(change: ChangeRequest, body: Body) -> Result<Response, ApiError> {
    let help = "send what GET answers: {\"service\": [{\"name\": ..., \"server\": [...]}]}";
    let StateView { tag, service, states } = serde_json::from_value(json(body)?)
        .map_err(|error| ApiError(StatusCode::UNPROCESSABLE_ENTITY, format!("{error}: {help}.")))?;
    let services =
        service.into_iter().map(|keys| value(JsonValue::Object(keys))).collect::<Result<Vec<_>, _>>()?;
    let states = states.map(operator_states).transpose()?;
    let order = StateOrder::Replace { services, states };
    let if_match = change.if_match.or(tag);
    ChangeRequest { if_match, ..change }.send(order, StatusCode::OK).await
}

pub(super) async fn change_server(
    change: ChangeRequest,
    names: ServerPath,
    body: Body,
) -> Result<Response, ApiError> {
    let Path((service, server)) = names?;
    let fields = server_fields(object(json(body)?)?)?;
    let order = StateOrder::ChangeServer { server: ServerName { service, server }, fields };
    change.send(order, StatusCode::OK).await
}

/// Drains the director itself, or makes it ready again.
pub(super) async fn change_director(change: ChangeRequest, body: Body) -> Result<Response, ApiError> {
    let fields = object(json(body)?)?;
    match &fields.iter().collect::<Vec<_>>()[..] {
        [(key, value)] if *key == "drain" => {
            change.send(StateOrder::DrainDirector(flag(key, value)?), StatusCode::OK).await
        }
        _ => {
            let message = "A director has one key to change: `drain`, which is true or false.";
            Err(ApiError(StatusCode::UNPROCESSABLE_ENTITY, message.to_owned()))
        }
    }
}

pub(super) async fn add_server(
    change: ChangeRequest,
    service: ServicePath,
    body: Body,
) -> Result<Response, ApiError> {
    let Path(service) = service?;
    let order = StateOrder::AddServer { service, keys: table(json(body)?)? };
    change.send(order, StatusCode::CREATED).await
}

pub(super) async fn remove_server(change: ChangeRequest, names: ServerPath) -> Result<Response, ApiError> {
    let Path((service, server)) = names?;
    let order = StateOrder::RemoveServer(ServerName { service, server });
    change.send(order, StatusCode::OK).await
}

pub(super) async fn add_service(change: ChangeRequest, body: Body) -> Result<Response, ApiError> {
    let order = StateOrder::AddService(table(json(body)?)?);
    change.send(order, StatusCode::CREATED).await
}

pub(super) async fn change_service(
    change: ChangeRequest,
    service: ServicePath,
    body: Body,
) -> Result<Response, ApiError> {
    let Path(service) = service?;
    let keys = object(json(body)?)?.into_iter().map(|(key, new)| Ok((key, optional(new)?)));
    let keys = keys.collect::<Result<Vec<_>, ApiError>>()?;
    let order = StateOrder::ChangeService { service, keys };
    change.send(order, StatusCode::OK).await
}

pub(super) async fn remove_service(
    change: ChangeRequest,
    service: ServicePath,
) -> Result<Response, ApiError> {
    let Path(service) = service?;
    let order = StateOrder::RemoveService(service);
    change.send(order, StatusCode::OK).await
}

/// Undoes the last change.
pub(super) async fn undo(change: ChangeRequest) -> Result<Response, ApiError> {
    change.send(StateOrder::Undo(None), StatusCode::OK).await
}

/// Undoes the change with a number.
pub(super) async fn undo_number(
    change: ChangeRequest,
    number: Result<Path<u64>, PathRejection>,
) -> Result<Response, ApiError> {
    let number = number.map_err(|_| {
        let message = "The number of a change is a whole number, as in GET /v1/changes.";
        ApiError(StatusCode::NOT_FOUND, message.to_owned())
    })?;
    change.send(StateOrder::Undo(Some(number.0)), StatusCode::OK).await
}

pub(super) async fn drain(change: ChangeRequest, names: ServerPath) -> Result<Response, ApiError> {
    set_state(change, names, OperatorState::Drain).await
}

/// Makes a server ready again.
pub(super) async fn undrain(change: ChangeRequest, names: ServerPath) -> Result<Response, ApiError> {
    set_state(change, names, OperatorState::Ready).await
}

async fn set_state(
    change: ChangeRequest,
    names: ServerPath,
    state: OperatorState,
) -> Result<Response, ApiError> {
    let Path((service, server)) = names?;
    let fields = ServerFields { state: Some(StateChange::Set(state)), ..ServerFields::default() };
    let order = StateOrder::ChangeServer { server: ServerName { service, server }, fields };
    change.send(order, StatusCode::OK).await
}

/// Context of a change.
pub(super) struct ChangeRequest {
    api: Api,
    caller: Caller,
    is_dry_run: bool,
    if_match: Option<String>,
}

impl FromRequestParts<Api> for ChangeRequest {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<ChangeRequest, ApiError> {
        // Both the Unix socket and the TCP port add the caller to each request.
        let caller = parts.extensions.get().cloned();
        let caller = caller.ok_or_else(|| {
            ApiError(StatusCode::INTERNAL_SERVER_ERROR, "The sender of this request is unknown.".to_owned())
        })?;
        let Query(ChangeQuery { dry_run }) = Query::try_from_uri(&parts.uri)?;
        let if_match = parts.headers.get(header::IF_MATCH).map(|value| value.to_str().map(str::to_owned));
        let if_match = if_match.transpose().map_err(|_| {
            let message = "If-Match is no entity tag (RFC 9110, section 8.8.3).";
            ApiError(StatusCode::BAD_REQUEST, message.to_owned())
        })?;
        let is_dry_run = api::flag("dry_run", dry_run.as_deref())?;
        Ok(ChangeRequest { api: api.clone(), caller, is_dry_run, if_match })
    }
}

impl ChangeRequest {
    async fn send(self, order: StateOrder, done: StatusCode) -> Result<Response, ApiError> {
        let ChangeRequest { api, caller: Caller { author, role }, is_dry_run, if_match } = self;
        let request = Box::new(Request { order, author, role, if_match, is_dry_run });
        let request = |answer| ControlRequest::Change(request, answer);
        let outcome = send_request(&api.control, CHANGE_TIMEOUT, request).await??;
        let Outcome { message, generation, tag, differences } = outcome;
        let status = if is_dry_run { StatusCode::OK } else { done };
        let field = [(header::ETAG, format!("\"{tag}\""))];
        let differences = differences.into_iter().map(DifferenceView::of).collect();
        let result = ChangeResult { message, tag, generation, dry_run: is_dry_run, differences };
        Ok((status, field, Json(result)).into_response())
    }
}

impl From<OrderError> for ApiError {
    fn from(error: OrderError) -> ApiError {
        let status = match &error {
            OrderError::NotFound(_) => StatusCode::NOT_FOUND,
            OrderError::Conflict(_) => StatusCode::CONFLICT,
            OrderError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            OrderError::Stale { .. } => StatusCode::PRECONDITION_FAILED,
            OrderError::Forbidden(_) => StatusCode::FORBIDDEN,
            OrderError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        ApiError(status, error.to_string())
    }
}

/// The body must have the media type of JSON. A page in a browser can't send this media type
/// without a preflight request.
fn json(body: Body) -> Result<JsonValue, ApiError> {
    let Json(value) = body?;
    Ok(value)
}

fn object(value: JsonValue) -> Result<serde_json::Map<String, JsonValue>, ApiError> {
    match value {
        JsonValue::Object(object) => Ok(object),
        _ => {
            let message =
                "The body is no object: write keys of the file with their values, as in {\"weight\": 3}.";
            Err(ApiError(StatusCode::UNPROCESSABLE_ENTITY, message.to_owned()))
        }
    }
}

fn table(value: JsonValue) -> Result<Table, ApiError> {
    let keys = object(value)?.into_iter().map(|(key, new)| Ok((key, self::value(new)?)));
    keys.collect()
}

/// Converts a JSON value to a file's value. `null` becomes `None`.
fn optional(json: JsonValue) -> Result<Option<Value>, ApiError> {
    (!json.is_null()).then(|| value(json)).transpose()
}

fn value(json: JsonValue) -> Result<Value, ApiError> {
    Value::try_from(&json).map_err(|error| {
        let message = format!("{json} can't be the value of a key in the file: {error}.");
        ApiError(StatusCode::UNPROCESSABLE_ENTITY, message)
    })
}

/// Parses new values of a server: `drain` and `maintenance` are the operator state. All other keys
/// are keys of the file.
fn server_fields(object: serde_json::Map<String, JsonValue>) -> Result<ServerFields, ApiError> {
    let mut fields = ServerFields::default();
    let (mut drain, mut maintenance) = (None, None);
    for (key, new) in object {
        match key.as_str() {
            "drain" => drain = Some(flag(&key, &new)?),
            "maintenance" => maintenance = Some(flag(&key, &new)?),
            _ => fields.keys.push((key, optional(new)?)),
        }
    }
    fields.state = StateChange::of(drain, maintenance);
    Ok(fields)
}

fn flag(key: &str, value: &JsonValue) -> Result<bool, ApiError> {
    value.as_bool().ok_or_else(|| {
        let message = format!("`{key}` is {value}: write true or false.");
        ApiError(StatusCode::UNPROCESSABLE_ENTITY, message)
    })
}

fn operator_states(
    states: BTreeMap<String, String>,
) -> Result<BTreeMap<ServerName, OperatorState>, ApiError> {
    let bad = |message: String| ApiError(StatusCode::UNPROCESSABLE_ENTITY, message);
    let read = states.into_iter().map(|(full, state)| {
        let Ok(crate::cli::ServerArg { service, server }) = full.parse() else {
            return Err(bad(format!("states has {full:?}: write SERVICE/SERVER.")));
        };
        let known = OperatorState::of(&state).filter(|state| *state != OperatorState::Ready);
        let Some(state) = known else {
            return Err(bad(format!("{full} is in state {state:?}: write drain or maintenance.")));
        };
        Ok((ServerName { service, server }, state))
    });
    read.collect()
}
