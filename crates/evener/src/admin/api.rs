//! The HTTP API. The Unix socket and the TCP port have the same routes. The file mode controls
//! access to the socket, [`access`] to the port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::path::ErrorKind;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use evener_core::farm::group::RETRY_AFTER_S;
use evener_core::net::Protocol;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::access::{self, Access};
use super::endpoints::API_PATHS;
use super::groups;
use super::live::LiveFeed;
use super::metrics::{self, Format, Scrape};
use super::process::Process;
use super::ready::CachedReadiness;
use crate::board::request::{ControlRequest, ExplainSubject, FlowQuery, Handle, SessionFilter};
use crate::cli::ClientArg;
use crate::views::{self, ViewSource};

/// Timeout of the control loop's reply.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a reload.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(45);
/// Time within which the control loop of a healthy daemon replies.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of a request body that the route ignores, in bytes.
const BODY_BYTES: usize = 4 * 1024;
/// Maximum number of sessions in a response on the TCP port, to bound the daemon's memory.
const SESSIONS_READ_ONLY: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResult {
    pub message: String,
}

/// Result of a failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub error: String,
}

#[derive(Clone)]
pub(super) struct Api {
    pub(super) farm: Arc<dyn ViewSource>,
    pub(super) control: Handle,
    pub(super) live: Arc<LiveFeed>,
    pub(super) ready: Arc<CachedReadiness>,
    /// True if clients may change the farm without a token.
    pub(super) may_change: bool,
    /// Maximum number of sessions in a response.
    sessions_max: usize,
}

/// Returns all routes, with the access rules of the entrance.
pub(super) fn routes(
    farm: Arc<dyn ViewSource>,
    control: Handle,
    live: Arc<LiveFeed>,
    by: Entrance,
) -> Router {
    let router = API_PATHS
        .iter()
        .fold(Router::new(), |router, path| router.route(path.path, (path.router)()))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        // After all routes are added: layers don't apply to later routes.
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(middleware::from_fn(access::authorize));
    let (may_change, sessions_max, router) = match by {
        Entrance::Socket => (true, usize::MAX, router.layer(middleware::from_fn(access::name_user))),
        Entrance::Address(access) => {
            let guard = middleware::from_fn_with_state(access, access::guard);
            (false, SESSIONS_READ_ONLY, router.layer(guard))
        }
    };
    router.with_state(Api { farm, control, live, ready: Arc::default(), may_change, sessions_max })
}

pub(super) enum Entrance {
    /// The Unix socket, protected by its file mode.
    Socket,
    /// The TCP address, with its access rules.
    Address(Arc<Access>),
}

/// Routes of a group's members. A client with access to views may read the group. A client with a
/// token of the group may send the same messages as at the group's own address.
pub(super) fn group_members() -> MethodRouter<Api> {
    get(groups::members)
        .post(groups::add)
        .delete(groups::remove)
        .layer(DefaultBodyLimit::max(groups::BODY_BYTES))
}

pub(super) struct ApiError(pub(super) StatusCode, pub(super) String);

impl ApiError {
    pub(super) fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError(StatusCode::BAD_REQUEST, message.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.0, Json(ErrorBody { error: self.1 })).into_response();
        if self.0 == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> ApiError {
        ApiError(rejection.status(), format!("{}.", rejection.body_text()))
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> ApiError {
        ApiError(rejection.status(), format!("{}.", rejection.body_text()))
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> ApiError {
        let message = match &rejection {
            PathRejection::FailedToDeserializePathParams(error)
                if matches!(error.kind(), ErrorKind::InvalidUtf8InPathParam { .. }) =>
            {
                "The decoded path is not UTF-8 text.".to_owned()
            }
            other => format!("{}.", other.body_text()),
        };
        ApiError(rejection.status(), message)
    }
}

pub(super) type ApiResult<T> = Result<Json<T>, ApiError>;

/// Sends a request to the control loop, and waits for the reply until the timeout.
pub(super) async fn send_request<T>(
    control: &Handle,
    timeout: Duration,
    request: impl FnOnce(oneshot::Sender<T>) -> ControlRequest,
) -> Result<T, ApiError> {
    let unavailable = |why: String| ApiError(StatusCode::SERVICE_UNAVAILABLE, why);
    let (sender, receiver) = oneshot::channel();
    let request = async {
        control.send(request(sender)).await.ok()?;
        receiver.await.ok()
    };
    match tokio::time::timeout(timeout, request).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(unavailable("The control loop has ended; the daemon is stopping.".to_owned())),
        Err(_) => {
            let seconds = timeout.as_secs();
            Err(unavailable(format!(
                "The control loop has not answered within {seconds} s; see the daemon's log."
            )))
        }
    }
}

/// Computes a view on a blocking thread.
async fn read_view<T: Send + 'static>(
    api: &Api,
    at: impl FnOnce(&dyn ViewSource) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let farm = Arc::clone(&api.farm);
    let seen = tokio::task::spawn_blocking(move || at(&*farm)).await;
    seen.map_err(|error| {
        ApiError(StatusCode::INTERNAL_SERVER_ERROR, format!("The view was not made: {error}."))
    })
}

pub(super) async fn status(State(api): State<Api>) -> ApiResult<views::StatusView> {
    Ok(Json(read_view(&api, |farm| farm.status()).await?))
}

pub(super) async fn services(State(api): State<Api>) -> ApiResult<Vec<views::ServiceView>> {
    Ok(Json(read_view(&api, |farm| farm.services()).await?))
}

pub(super) async fn servers(State(api): State<Api>) -> ApiResult<Vec<views::ServerView>> {
    Ok(Json(read_view(&api, |farm| farm.servers()).await?))
}

pub(super) async fn names(State(api): State<Api>) -> ApiResult<Vec<views::NameView>> {
    Ok(Json(read_view(&api, |farm| farm.names()).await?))
}

pub(super) async fn directors(State(api): State<Api>) -> ApiResult<views::DirectorsView> {
    Ok(Json(read_view(&api, |farm| farm.directors()).await?))
}

pub(super) async fn hosts(State(api): State<Api>) -> ApiResult<Vec<views::HostView>> {
    Ok(Json(read_view(&api, |farm| farm.hosts()).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionsQuery {
    service: Option<String>,
    client: Option<String>,
    limit: Option<usize>,
}

impl SessionsQuery {
    /// Returns the filter of at most `most` entries.
    fn filter(self, most: usize) -> Result<SessionFilter, ApiError> {
        let client = self.client.map(|text| client(&text)).transpose()?;
        let limit = self.limit.unwrap_or(usize::MAX).min(most);
        Ok(SessionFilter {
            service: self.service,
            client: client.map(|client| client.address),
            client_port: client.and_then(|client| client.port),
            limit: (limit < usize::MAX).then_some(limit),
        })
    }
}

pub(super) async fn sessions(
    State(api): State<Api>,
    query: Result<Query<SessionsQuery>, QueryRejection>,
) -> ApiResult<Vec<views::SessionView>> {
    let filter = query?.0.filter(api.sessions_max)?;
    let found = read_view(&api, move |farm| farm.sessions(&filter)).await?;
    found.map(Json).map_err(|why| ApiError(StatusCode::NOT_FOUND, why))
}

pub(super) async fn affinity(
    State(api): State<Api>,
    query: Result<Query<SessionsQuery>, QueryRejection>,
) -> ApiResult<Vec<views::AffinityView>> {
    let filter = query?.0.filter(api.sessions_max)?;
    let found = read_view(&api, move |farm| farm.affinity(&filter)).await?;
    found.map(Json).map_err(|why| ApiError(StatusCode::NOT_FOUND, why))
}

pub(super) fn client(text: &str) -> Result<ClientArg, ApiError> {
    text.parse().map_err(|help| ApiError::bad_request(format!("client is {text:?}: {help}.")))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainQuery {
    client: Option<String>,
    vip: Option<String>,
    protocol: Option<String>,
    request: Option<String>,
    service: Option<String>,
}

impl ExplainQuery {
    fn subject(&self) -> Result<ExplainSubject, ApiError> {
        let Some(text) = &self.request else { return Ok(ExplainSubject::Flow(self.flow()?)) };
        let request =
            text.parse().map_err(|help| ApiError::bad_request(format!("request is {text:?}: {help}.")))?;
        let has_flow = self.client.is_some() || self.vip.is_some();
        let flow = has_flow.then(|| self.flow()).transpose()?;
        Ok(ExplainSubject::Request { request, flow, service: self.service.clone() })
    }

    fn flow(&self) -> Result<FlowQuery, ApiError> {
        let missing = |name: &str| {
            ApiError::bad_request(format!(
                "missing field `{name}`: a flow has client and vip, else name a request."
            ))
        };
        Ok(FlowQuery {
            client: endpoint("client", self.client.as_ref().ok_or_else(|| missing("client"))?)?,
            vip: endpoint("vip", self.vip.as_ref().ok_or_else(|| missing("vip"))?)?,
            protocol: match self.protocol.as_deref() {
                None | Some("tcp") => Protocol::Tcp,
                Some("udp") => Protocol::Udp,
                Some(other) => {
                    return Err(ApiError::bad_request(format!("protocol is {other:?}: write tcp or udp.")));
                }
            },
        })
    }
}

pub(super) async fn explain(
    State(api): State<Api>,
    query: Result<Query<ExplainQuery>, QueryRejection>,
) -> ApiResult<views::Explanation> {
    let Query(query) = query?;
    let subject = query.subject()?;
    Ok(Json(read_view(&api, move |farm| farm.explain(&subject)).await?))
}

fn endpoint(what: &str, text: &str) -> Result<SocketAddr, ApiError> {
    text.parse().map_err(|_| {
        let help = "write an address and port, as in 192.0.2.100:80 or [2001:db8::100]:80";
        ApiError::bad_request(format!("{what} is {text:?}: {help}."))
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadQuery {
    forget: Option<String>,
}

pub(super) async fn reload(
    State(api): State<Api>,
    query: Result<Query<ReloadQuery>, QueryRejection>,
) -> ApiResult<CommandResult> {
    let Query(ReloadQuery { forget }) = query?;
    let forget = flag("forget", forget.as_deref())?;
    let request = |answer| ControlRequest::Reload { forget, answer };
    done(send_request(&api.control, RELOAD_TIMEOUT, request).await?)
}

pub(super) async fn reopen(State(api): State<Api>) -> ApiResult<CommandResult> {
    done(send_request(&api.control, RELOAD_TIMEOUT, ControlRequest::Reopen).await?)
}

/// Parses a boolean query parameter. False if it is missing.
pub(super) fn flag(name: &str, value: Option<&str>) -> Result<bool, ApiError> {
    match value {
        None | Some("false" | "0") => Ok(false),
        Some("" | "true" | "1") => Ok(true),
        Some(other) => Err(ApiError::bad_request(format!("{name} is {other:?}: write true or false."))),
    }
}

fn done(answer: Result<String, String>) -> ApiResult<CommandResult> {
    match answer {
        Ok(message) => Ok(Json(CommandResult { message })),
        Err(why) => Err(ApiError(StatusCode::CONFLICT, why)),
    }
}

pub(super) async fn scrape(State(api): State<Api>, headers: HeaderMap) -> Result<Response, ApiError> {
    let accept: Vec<_> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    let text = read_view(&api, move |farm| {
        metrics::text(Scrape { farm: farm.farm(), process: Process::read() }, format)
    });
    let fields = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    Ok((fields, text.await?).into_response())
}

pub(super) async fn healthz(State(api): State<Api>) -> Result<&'static str, ApiError> {
    send_request(&api.control, HEALTH_TIMEOUT, ControlRequest::Ping).await?;
    if api.farm.takes_packets() && api.farm.interfaces().is_empty() {
        let message = "No interface to receive packets from is left.";
        return Err(ApiError(StatusCode::SERVICE_UNAVAILABLE, message.to_owned()));
    }
    Ok("ok\n")
}

async fn no_such_path(request: HttpRequest) -> ApiError {
    let paths: Vec<&str> = API_PATHS.iter().map(|path| path.path).collect();
    let message = format!("There is nothing at {:?}; there are {}.", request.uri().path(), paths.join(", "));
    ApiError(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(request: HttpRequest) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{method} does not go with {path:?}: /v1/openapi.json lists what does.");
    ApiError(StatusCode::METHOD_NOT_ALLOWED, message)
}
