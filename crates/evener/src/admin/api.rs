//! The HTTP API. The same routes serve the Unix socket, whose file mode says who may change
//! the farm, and the TCP port, where [`access`] says who may look.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::path::ErrorKind;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use evener_core::farm::group::RETRY_AFTER_S;
use evener_core::net::Protocol;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::access::{self, Access};
use super::metrics::{self, Format, Scrape};
use super::process::Process;
use super::{events, groups, trace};
use crate::board::request::{ControlRequest, ExplainSubject, FlowQuery, Handle, SessionFilter};
use crate::cli::ClientArg;
use crate::views::{self, ViewSource};

/// How long the control loop may take for an answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to carry out another configuration.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(45);
/// How long a daemon in good health takes at most.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(1);
/// No request has a body; clients that send one anyway are read no further than this.
const BODY_BYTES: usize = 4 * 1024;
/// Sessions in one answer on the TCP port: whoever reaches it must not fill the daemon's memory.
const SESSIONS_READ_ONLY: usize = 10_000;

/// Members of a server group.
const GROUP_MEMBERS: &str = "/v1/groups/{name}/members";
/// The members' reports of their load.
const GROUP_REPORTS: &str = "/v1/groups/{name}/reports";

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResult {
    /// A sentence.
    pub message: String,
}

/// Why nothing was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// A sentence.
    pub error: String,
}

#[derive(Clone)]
pub(super) struct Api {
    pub(super) farm: Arc<dyn ViewSource>,
    pub(super) control: Handle,
    /// Whether who asks may change the farm.
    pub(super) may_change: bool,
    /// The most sessions in one answer.
    sessions_max: usize,
}

/// A path of the API: the router is made from these, and so is the reference in the manual.
pub struct ApiPath {
    /// The path, with parameters in braces.
    pub path: &'static str,
    /// Methods, each with its query parameters and with what it does.
    pub methods: &'static [(&'static str, &'static str, &'static str)],
    /// Whether only the admin socket has it.
    pub socket_only: bool,
    router: fn() -> MethodRouter<Api>,
}

impl fmt::Debug for ApiPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiPath")
            .field("path", &self.path)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

const fn view(
    path: &'static str,
    about: &'static [(&'static str, &'static str, &'static str)],
    router: fn() -> MethodRouter<Api>,
) -> ApiPath {
    ApiPath { path, methods: about, socket_only: false, router }
}

const fn order(
    path: &'static str,
    about: &'static [(&'static str, &'static str, &'static str)],
    router: fn() -> MethodRouter<Api>,
) -> ApiPath {
    ApiPath { path, methods: about, socket_only: true, router }
}

/// Every path.
pub const API_PATHS: &[ApiPath] = &[
    view(
        "/v1/status",
        &[("GET", "", "The daemon: engine, sessions, packets by reason, reloads, events.")],
        || get(status),
    ),
    view("/v1/services", &[("GET", "", "All services.")], || get(services)),
    view(
        "/v1/servers",
        &[("GET", "", "All servers, with state, weight, sessions and reported load.")],
        || get(servers),
    ),
    view("/v1/hosts", &[("GET", "", "The hosts of an every-host farm.")], || get(hosts)),
    view("/v1/names", &[("GET", "", "The addresses of balanced names, with rank and share.")], || get(names)),
    view(
        "/v1/sessions",
        &[("GET", "service, client, limit", "Sessions. The admin address lists at most 10,000 of them.")],
        || get(sessions),
    ),
    view(
        "/v1/explain",
        &[(
            "GET",
            "client, vip, protocol, request, service",
            "The server that a flow or a request gets, and why.",
        )],
        || get(explain),
    ),
    view("/v1/events", &[("GET", "", "Events as they happen, as server-sent events.")], || {
        get(events::events)
    }),
    view(
        GROUP_MEMBERS,
        &[
            ("GET", "", "Members of a server group."),
            ("POST", "", "A member joins, or changes its record. It takes the group's credential."),
            ("DELETE", "", "A member leaves. It takes the group's credential."),
        ],
        group_members,
    ),
    view(
        GROUP_REPORTS,
        &[("POST", "", "A member reports its load. It takes the group's credential.")],
        || post(groups::inform),
    ),
    view(
        "/metrics",
        &[("GET", "", "Metrics: Prometheus' text, or OpenMetrics by the Accept header.")],
        || get(scrape),
    ),
    view(
        "/healthz",
        &[("GET", "", "200 while the daemon answers and has an interface to take packets from, else 503.")],
        || get(healthz),
    ),
    order(
        "/v1/trace",
        &[("GET", "client", "A client's packets and connections as they come, a line of JSON each.")],
        || get(trace::trace),
    ),
    order(
        "/v1/drain/{service}/{server}",
        &[("POST", "", "The server gets no new sessions, and keeps those it has.")],
        || post(drain),
    ),
    order(
        "/v1/undrain/{service}/{server}",
        &[("POST", "", "A drained server gets new sessions again.")],
        || post(undrain),
    ),
    order(
        "/v1/reload",
        &[("POST", "", "The daemon reads its file again: all of it, or nothing and 409.")],
        || post(reload),
    ),
];

/// Everything, for who may change the farm.
pub(super) fn everything(farm: Arc<dyn ViewSource>, control: Handle) -> Router {
    with_fallbacks(routes(API_PATHS.iter())).with_state(Api {
        farm,
        control,
        may_change: true,
        sessions_max: usize::MAX,
    })
}

/// The routes that change nothing, for clients with access.
pub(super) fn read_only(farm: Arc<dyn ViewSource>, control: Handle, access: Access) -> Router {
    with_fallbacks(routes(API_PATHS.iter().filter(|path| !path.socket_only)))
        .layer(middleware::from_fn(refuse_changes))
        .layer(middleware::from_fn_with_state(Arc::new(access), access::guard))
        .with_state(Api { farm, control, may_change: false, sessions_max: SESSIONS_READ_ONLY })
}

fn routes<'p>(paths: impl Iterator<Item = &'p ApiPath>) -> Router<Api> {
    paths.fold(Router::new(), |router, path| router.route(path.path, (path.router)()))
}

/// A client with access to views may see groups too, and one with a token of a group may do here
/// what it may do at the group's own address.
fn group_members() -> MethodRouter<Api> {
    get(groups::members)
        .post(groups::add)
        .delete(groups::remove)
        .layer(DefaultBodyLimit::max(groups::BODY_BYTES))
}

/// Once all routes are there: those that come later would go without.
fn with_fallbacks(routes: Router<Api>) -> Router<Api> {
    routes
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
}

/// An error as it is answered.
pub(super) struct ApiError(pub(super) StatusCode, pub(super) String);

impl ApiError {
    fn bad_request(message: impl Into<String>) -> ApiError {
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

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> ApiError {
        let message = match &rejection {
            PathRejection::FailedToDeserializePathParams(error)
                if matches!(error.kind(), ErrorKind::InvalidUtf8InPathParam { .. }) =>
            {
                "The path is not UTF-8 text behind its percent signs.".to_owned()
            }
            other => format!("{}.", other.body_text()),
        };
        ApiError(rejection.status(), message)
    }
}

type ApiResult<T> = Result<Json<T>, ApiError>;

/// Asks the control loop, and waits so long and no longer.
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

/// Looks at the farm, on a thread that may take its time.
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

async fn status(State(api): State<Api>) -> ApiResult<views::StatusView> {
    Ok(Json(read_view(&api, |farm| farm.status()).await?))
}

async fn services(State(api): State<Api>) -> ApiResult<Vec<views::ServiceView>> {
    Ok(Json(read_view(&api, |farm| farm.services()).await?))
}

async fn servers(State(api): State<Api>) -> ApiResult<Vec<views::ServerView>> {
    Ok(Json(read_view(&api, |farm| farm.servers()).await?))
}

async fn names(State(api): State<Api>) -> ApiResult<Vec<views::NameView>> {
    Ok(Json(read_view(&api, |farm| farm.names()).await?))
}

async fn hosts(State(api): State<Api>) -> ApiResult<Vec<views::HostView>> {
    Ok(Json(read_view(&api, |farm| farm.hosts()).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionsQuery {
    service: Option<String>,
    client: Option<String>,
    limit: Option<usize>,
}

async fn sessions(
    State(api): State<Api>,
    query: Result<Query<SessionsQuery>, QueryRejection>,
) -> ApiResult<Vec<views::SessionView>> {
    let Query(query) = query?;
    let client = query.client.map(|text| client(&text)).transpose()?;
    let limit = query.limit.unwrap_or(usize::MAX).min(api.sessions_max);
    let filter = SessionFilter {
        service: query.service,
        client: client.map(|client| client.address),
        client_port: client.and_then(|client| client.port),
        limit: (limit < usize::MAX).then_some(limit),
    };
    let found = read_view(&api, move |farm| farm.sessions(&filter)).await?;
    found.map(Json).map_err(|why| ApiError(StatusCode::NOT_FOUND, why))
}

pub(super) fn client(text: &str) -> Result<ClientArg, ApiError> {
    text.parse().map_err(|help| ApiError::bad_request(format!("client is {text:?}: {help}.")))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
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

async fn explain(
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

type ServerPath = Result<Path<(String, String)>, PathRejection>;

async fn drain(State(api): State<Api>, names: ServerPath) -> ApiResult<CommandResult> {
    set_drain(&api, names, true).await
}

async fn undrain(State(api): State<Api>, names: ServerPath) -> ApiResult<CommandResult> {
    set_drain(&api, names, false).await
}

async fn set_drain(api: &Api, names: ServerPath, drain: bool) -> ApiResult<CommandResult> {
    let Path((service, server)) = names?;
    let request = |answer| ControlRequest::Drain { service, server, drain, answer };
    done(send_request(&api.control, ANSWER_TIMEOUT, request).await?)
}

async fn reload(State(api): State<Api>) -> ApiResult<CommandResult> {
    done(send_request(&api.control, RELOAD_TIMEOUT, ControlRequest::Reload).await?)
}

fn done(answer: Result<String, String>) -> ApiResult<CommandResult> {
    match answer {
        Ok(message) => Ok(Json(CommandResult { message })),
        Err(why) => Err(ApiError(StatusCode::CONFLICT, why)),
    }
}

async fn scrape(State(api): State<Api>, headers: HeaderMap) -> Result<Response, ApiError> {
    let accept: Vec<_> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    let text = read_view(&api, move |farm| {
        metrics::text(Scrape { farm: farm.farm(), process: Process::read() }, format)
    });
    let fields = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    Ok((fields, text.await?).into_response())
}

async fn healthz(State(api): State<Api>) -> Result<&'static str, ApiError> {
    send_request(&api.control, HEALTH_TIMEOUT, ControlRequest::Ping).await?;
    if api.farm.takes_packets() && api.farm.interfaces().is_empty() {
        let message = "No interface is left to take packets from.";
        return Err(ApiError(StatusCode::SERVICE_UNAVAILABLE, message.to_owned()));
    }
    Ok("ok\n")
}

async fn no_such_path(request: HttpRequest) -> ApiError {
    let message = format!(
        "There is nothing at {:?}; there are /v1/status, /v1/services, /v1/servers, /v1/hosts, /v1/names, /v1/sessions, /v1/explain, \
         /v1/events, /v1/groups/NAME/members, /v1/groups/NAME/reports, /metrics and /healthz, and on the admin socket /v1/trace.",
        request.uri().path()
    );
    ApiError(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(request: HttpRequest) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!(
        "{method} does not go with {path:?}: views are read with GET, the farm is changed with POST."
    );
    ApiError(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// Any program on the host can reach a TCP port, and many a browser too: it must not change the
/// farm.
async fn refuse_changes(request: HttpRequest, next: Next) -> Response {
    // A client that changes members shows a token of their group.
    let is_groups = request.uri().path().starts_with(access::GROUPS);
    if is_groups || matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let message = "This address only shows the farm, since anyone who can reach it may ask; \
                   change the farm through the admin socket, as `evener drain` and `evener reload` do.";
    ApiError(StatusCode::FORBIDDEN, message.to_owned()).into_response()
}
