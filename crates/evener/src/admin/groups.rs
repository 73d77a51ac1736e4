//! Members of server groups as JSON: the counterparts of GROUP-QUERY, GROUP-ADD, GROUP-EXIT and
//! LOAD-INFORM (`docs/how-it-works/server-groups.md`).

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use evener_core::farm::group::{Joiner, JoinerError, WEIGHT_MAX, member_url};
use evener_core::net::http::Url;
use evener_core::node::group::{GroupMessage, Verb};
use serde::Deserialize;

use super::access::{Caller, Peer};
use super::api::{ANSWER_TIMEOUT, Api, ApiError, CommandResult, send_request};
use crate::board::request::{ControlRequest, GroupReply, GroupSender};

/// Maximum length of a body in bytes, as for the protocol's messages.
pub(super) const BODY_BYTES: usize = evener_core::node::group::BODY_MAX;

/// Help on the format of members.
const MEMBERS: &str = "send {\"url\": \"http://...\"}, or a list of these; a member that joins may have weight, anonymous, control, paths and hosts";

/// Description of a member in a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberDescription {
    url: String,
    weight: Option<u64>,
    #[serde(default)]
    anonymous: bool,
    control: Option<String>,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    hosts: Vec<String>,
}

/// URL of a member in a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberUrl {
    url: String,
}

/// Load report of a member.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadReport {
    url: String,
    load: f64,
    /// Seconds since 1970.
    time: Option<f64>,
}

/// A value, or a list of values.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    Several(Vec<T>),
}

impl<T> OneOrMore<T> {
    fn list(self) -> Vec<T> {
        match self {
            OneOrMore::One(one) => vec![one],
            OneOrMore::Several(several) => several,
        }
    }
}

impl MemberDescription {
    fn joiner(self) -> Result<Joiner, JoinerError> {
        let mut joiner = Joiner::new(member_url(&self.url)?);
        if let Some(weight) = self.weight {
            let weight = u16::try_from(weight).ok().filter(|weight| *weight <= WEIGHT_MAX);
            joiner.weight = weight.ok_or(JoinerError::Weight)?;
        }
        joiner.anonymous = self.anonymous;
        joiner.control =
            self.control.map(|url| Url::parse(&url)).transpose().map_err(JoinerError::Control)?;
        self.paths.iter().try_for_each(|path| joiner.add_path(path))?;
        self.hosts.iter().try_for_each(|host| joiner.add_host(host))?;
        Ok(joiner)
    }
}

pub(super) async fn members(
    State(api): State<Api>,
    name: Result<Path<String>, PathRejection>,
    caller: Option<Extension<Caller>>,
    sender: GroupSender,
) -> Result<Response, ApiError> {
    let Path(name) = name?;
    // A client with access to the farm's views may read its groups.
    let sender = if caller.is_some() { GroupSender::Operator } else { sender };
    send_message(&api, name, sender, GroupMessage::Query).await
}

/// The body must have the media type of JSON. A page in a browser can't send this media type
/// without a preflight request.
pub(super) async fn add(
    State(api): State<Api>,
    name: Result<Path<String>, PathRejection>,
    sender: GroupSender,
    body: Result<Json<serde_json::Value>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name?;
    let described: OneOrMore<MemberDescription> = read(body, MEMBERS)?;
    let joiners = described.list().into_iter().map(MemberDescription::joiner).collect::<Result<Vec<_>, _>>();
    let joiners = joiners.map_err(|why| ApiError(StatusCode::UNPROCESSABLE_ENTITY, why.to_string()))?;
    if joiners.is_empty() {
        return Err(no_group());
    }
    send_message(&api, name, sender, GroupMessage::Add(joiners)).await
}

pub(super) async fn remove(
    State(api): State<Api>,
    name: Result<Path<String>, PathRejection>,
    sender: GroupSender,
    body: Result<Json<serde_json::Value>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name?;
    let named = read::<OneOrMore<MemberUrl>>(body, MEMBERS)?.list();
    let urls = named.iter().map(|named| member_url(&named.url)).collect::<Result<Vec<_>, _>>();
    let urls = urls.map_err(|why| ApiError(StatusCode::UNPROCESSABLE_ENTITY, why.to_string()))?;
    if urls.is_empty() {
        return Err(no_group());
    }
    send_message(&api, name, sender, GroupMessage::Exit(urls)).await
}

/// Handles a report, which is checked like a LOAD-INFORM message in text.
pub(super) async fn inform(
    State(api): State<Api>,
    name: Result<Path<String>, PathRejection>,
    sender: GroupSender,
    body: Result<Json<serde_json::Value>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name?;
    let help =
        "send {\"url\": \"http://...\", \"load\": 93, \"time\": 1700000000.5}; the time may be left out";
    let LoadReport { url, load, time } = read(body, help)?;
    let url = member_url(&url).map_err(|why| ApiError(StatusCode::UNPROCESSABLE_ENTITY, why.to_string()))?;
    let time = time.map(|seconds| seconds.to_string()).unwrap_or_default();
    let message =
        GroupMessage::read(Verb::Inform, format!("{load} {time} {url}").as_bytes()).map_err(|why| {
            let status = StatusCode::from_u16(why.status()).unwrap_or(StatusCode::BAD_REQUEST);
            ApiError(status, why.to_string())
        })?;
    send_message(&api, name, sender, message).await
}

fn no_group() -> ApiError {
    ApiError(
        StatusCode::BAD_REQUEST,
        "The request names no member: send {\"url\": \"http://...\"}, or a list of these.".to_owned(),
    )
}

fn read<T: for<'d> Deserialize<'d>>(
    body: Result<Json<serde_json::Value>, JsonRejection>,
    help: &str,
) -> Result<T, ApiError> {
    let Json(value) = body?;
    serde_json::from_value(value)
        .map_err(|error| ApiError(StatusCode::BAD_REQUEST, format!("{error}: {help}.")))
}

/// A client of the Unix socket may change the farm. Other clients present a token of the group.
impl FromRequestParts<Api> for GroupSender {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<GroupSender, StatusCode> {
        if api.may_change {
            return Ok(GroupSender::Operator);
        }
        // The server sets the peer's address for each connection.
        let Peer(from) = parts.extensions.get().ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
        let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        Ok(GroupSender::Stranger { from: *from, authorization: authorization.map(str::to_owned) })
    }
}

async fn send_message(
    api: &Api,
    group: String,
    sender: GroupSender,
    message: GroupMessage,
) -> Result<Response, ApiError> {
    let request = |answer| ControlRequest::Group { group, sender, message, answer };
    let GroupReply { status, body, is_json } = send_request(&api.control, ANSWER_TIMEOUT, request).await?;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let message = body.trim_end().to_owned();
    match (status.is_success(), is_json) {
        // Status 204 has no body (RFC 9110, section 15.3.5).
        (true, _) if status == StatusCode::NO_CONTENT => Ok(status.into_response()),
        (true, true) => Ok((status, [(header::CONTENT_TYPE, "application/json")], body).into_response()),
        (true, false) => Ok((status, Json(CommandResult { message })).into_response()),
        (false, _) => Err(ApiError(status, message)),
    }
}
