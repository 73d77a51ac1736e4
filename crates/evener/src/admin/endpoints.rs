//! Table of all paths of the API. The router, the API's description and the manual are generated
//! from this table.

use std::fmt;

use axum::extract::DefaultBodyLimit;
use axum::routing::{MethodRouter, delete, get, patch, post};

use super::api::{self, Api};
use super::state::STATE_BYTES;
use super::{dashboard, events, groups, live, openapi, ready, state, trace};
use crate::runtime::token::Role;

pub struct ApiPath {
    /// Path with parameters in braces.
    pub path: &'static str,
    pub methods: &'static [ApiMethod],
    pub(super) router: fn() -> MethodRouter<Api>,
}

#[derive(Clone, Copy, Debug)]
pub struct ApiMethod {
    pub method: &'static str,
    /// Query parameters, separated by commas.
    pub query: &'static str,
    pub about: &'static str,
    /// Required role. For the paths of a group, a credential of the group suffices, too.
    pub role: Role,
    /// Name of the body's schema in the description.
    pub body: Option<&'static str>,
    /// Name of the response's schema.
    pub answer: &'static str,
}

impl fmt::Debug for ApiPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiPath")
            .field("path", &self.path)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

/// Prefix of paths that a credential of the group can access.
pub(super) const GROUPS: &str = "/v1/groups/";

const DRY_RUN: &str = "dry_run";

const fn get_of(query: &'static str, answer: &'static str, about: &'static str) -> ApiMethod {
    ApiMethod { method: "GET", query, about, role: Role::Read, body: None, answer }
}

const fn change(
    method: &'static str,
    role: Role,
    body: Option<&'static str>,
    about: &'static str,
) -> ApiMethod {
    ApiMethod { method, query: DRY_RUN, about, role, body, answer: "Change" }
}

const fn path(
    path: &'static str,
    methods: &'static [ApiMethod],
    router: fn() -> MethodRouter<Api>,
) -> ApiPath {
    ApiPath { path, methods, router }
}

fn with_state(router: MethodRouter<Api>) -> MethodRouter<Api> {
    router.layer(DefaultBodyLimit::max(STATE_BYTES))
}

pub const API_PATHS: &[ApiPath] = &[
    path(
        "/",
        &[get_of("", "Page", "The dashboard. It needs no token; the data that it asks for does.")],
        || get(dashboard::page),
    ),
    path("/dashboard/{file}", &[get_of("", "File", "The dashboard's program and style, likewise.")], || {
        get(dashboard::file)
    }),
    path(
        "/v1/status",
        &[get_of("", "Object", "The daemon: engine, sessions, packets by reason, reloads, events.")],
        || get(api::status),
    ),
    path(
        "/v1/services",
        &[
            get_of("", "List", "All services."),
            change(
                "POST",
                Role::Admin,
                Some("Keys"),
                "Adds a service with its servers, by the keys of the file.",
            ),
        ],
        || with_state(get(api::services).post(state::add_service)),
    ),
    path(
        "/v1/servers",
        &[get_of("", "List", "All servers, with state, weight, sessions and reported load.")],
        || get(api::servers),
    ),
    path(
        "/v1/directors",
        &[get_of("", "Object", "The directors of the farm: who is ready, and in what they differ.")],
        || get(api::directors),
    ),
    path("/v1/hosts", &[get_of("", "List", "The hosts of an every-host farm.")], || get(api::hosts)),
    path("/v1/names", &[get_of("", "List", "The addresses of balanced names, with rank and share.")], || {
        get(api::names)
    }),
    path(
        "/v1/sessions",
        &[get_of(
            "service, client, limit",
            "List",
            "Sessions. The admin address lists at most 10,000 of them.",
        )],
        || get(api::sessions),
    ),
    path(
        "/v1/affinity",
        &[get_of(
            "service, client, limit",
            "List",
            "Affinity entries: the servers to which clients return. The admin address lists at most 10,000.",
        )],
        || get(api::affinity),
    ),
    path(
        "/v1/explain",
        &[get_of(
            "client, vip, protocol, request, service",
            "Object",
            "The server that a flow or a request gets, and why.",
        )],
        || get(api::explain),
    ),
    path(
        "/v1/events",
        &[get_of(
            "since_seconds, follow",
            "Stream",
            "Events as they happen, as server-sent events; first those of the last `since_seconds`, 10,000 at most. With \
             `follow=false` no others.",
        )],
        || get(events::events),
    ),
    path(
        "/v1/live",
        &[get_of(
            "",
            "Stream",
            "All views of the farm, and then what changes in them, each 2 s, as server-sent events.",
        )],
        || get(live::live),
    ),
    path(
        "/v1/whoami",
        &[get_of("", "Object", "The name and the role that the sender of the request has here.")],
        || get(dashboard::whoami),
    ),
    path("/v1/reasons", &[get_of("", "Object", "The meaning of each packet reason, in a sentence.")], || {
        get(dashboard::reasons)
    }),
    path(
        "/v1/state",
        &[
            get_of("", "State", "The farm's services with all run-time changes; `ETag` is its tag."),
            change(
                "PUT",
                Role::Admin,
                Some("State"),
                "Replaces all services. With `If-Match`, or the tag in the body, only where that is the farm still, \
                 else 412.",
            ),
        ],
        || with_state(get(state::state).put(state::replace)),
    ),
    path(
        "/v1/changes",
        &[get_of("", "Changes", "The run-time changes that can be undone, the last one first.")],
        || get(state::changes),
    ),
    path(
        "/v1/changes/{number}",
        &[change("DELETE", Role::Operate, None, "Undoes the run-time change with this number.")],
        || delete(state::undo_number),
    ),
    path("/v1/undo", &[change("POST", Role::Operate, None, "Undoes the last run-time change.")], || {
        post(state::undo)
    }),
    path(
        "/v1/services/{service}",
        &[
            change("PATCH", Role::Admin, Some("Keys"), "Changes keys of a service; null removes one."),
            change("DELETE", Role::Admin, None, "Removes a service."),
        ],
        || with_state(patch(state::change_service).delete(state::remove_service)),
    ),
    path(
        "/v1/services/{service}/servers",
        &[change("POST", Role::Admin, Some("Keys"), "Adds a server, by the keys of the file.")],
        || with_state(post(state::add_server)),
    ),
    path(
        "/v1/services/{service}/servers/{server}",
        &[
            change(
                "PATCH",
                Role::Operate,
                Some("ServerKeys"),
                "Changes a server: `drain`, `maintenance`, `weight`; with role admin all keys of the file.",
            ),
            change("DELETE", Role::Admin, None, "Removes a server: its sessions end, so drain it first."),
        ],
        || with_state(patch(state::change_server).delete(state::remove_server)),
    ),
    path(
        "/v1/groups/{name}/members",
        &[
            get_of("", "Object", "Members of a server group."),
            ApiMethod {
                method: "POST",
                query: "",
                about: "A member joins, or changes its record. It takes the group's credential.",
                role: Role::Read,
                body: Some("Members"),
                answer: "Message",
            },
            ApiMethod {
                method: "DELETE",
                query: "",
                about: "A member leaves. It takes the group's credential.",
                role: Role::Read,
                body: Some("Members"),
                answer: "Message",
            },
        ],
        api::group_members,
    ),
    path(
        "/v1/groups/{name}/reports",
        &[ApiMethod {
            method: "POST",
            query: "",
            about: "A member reports its load. It takes the group's credential.",
            role: Role::Read,
            body: Some("Report"),
            answer: "Message",
        }],
        || post(groups::inform),
    ),
    path(
        "/metrics",
        &[get_of("", "Text", "Metrics: Prometheus' text, or OpenMetrics by the Accept header.")],
        || get(api::scrape),
    ),
    path(
        "/healthz",
        &[get_of(
            "",
            "Text",
            "200 while the daemon answers and has an interface to take packets from, else 503: its own life. Routes and \
             virtual addresses follow `/ready`.",
        )],
        || get(api::healthz),
    ),
    path(
        "/ready",
        &[get_of(
            "",
            "Text",
            "200 while every service is ready for clients, as `evener ready` says, else 503.",
        )],
        || get(ready::all),
    ),
    path(
        "/ready/{service}",
        &[get_of("", "Text", "The same of one service, by its name or an address of it.")],
        || get(ready::one),
    ),
    path(
        "/v1/director",
        &[change(
            "PATCH",
            Role::Operate,
            Some("Director"),
            "Drains this director, or ends that: `drain`. One that drains isn't ready, and serves what still comes.",
        )],
        || patch(state::change_director),
    ),
    path("/v1/openapi.json", &[get_of("", "Object", "This API, as OpenAPI 3.1.")], || {
        get(openapi::description)
    }),
    path(
        "/v1/trace",
        &[ApiMethod {
            role: Role::Operate,
            ..get_of(
                "client",
                "Stream",
                "A client's packets and connections as they come, a line of JSON each.",
            )
        }],
        || get(trace::trace),
    ),
    path(
        "/v1/drain/{service}/{server}",
        &[change("POST", Role::Operate, None, "The server gets no new sessions, and keeps those it has.")],
        || post(state::drain),
    ),
    path(
        "/v1/undrain/{service}/{server}",
        &[change(
            "POST",
            Role::Operate,
            None,
            "A server gets new sessions again, drained or in maintenance.",
        )],
        || post(state::undrain),
    ),
    path(
        "/v1/reopen",
        &[ApiMethod {
            method: "POST",
            query: "",
            about: "The daemon opens its access log again, which may have been moved aside. It reads no file.",
            role: Role::Operate,
            body: None,
            answer: "Message",
        }],
        || post(api::reopen),
    ),
    path(
        "/v1/reload",
        &[ApiMethod {
            method: "POST",
            query: "forget",
            about: "The daemon reads its file again: all of it, or nothing and 409. With `forget` it drops all run-time \
                    changes.",
            role: Role::Admin,
            body: None,
            answer: "Message",
        }],
        || post(api::reload),
    ),
];
