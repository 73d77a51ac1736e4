//! The dashboard: a browser page that uses the API like any other client.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use evener_core::{path, server};
use serde::Serialize;

use super::access::Caller;
use super::api::ApiError;

pub(super) const PAGE: &str = "/";
/// Parent path of the page's files.
pub(super) const FILES: &str = "/dashboard/";

const INDEX: &str = include_str!("dashboard/index.html");
/// Placeholder in the page for the program's version.
const VERSION: &str = "{version}";
const SCRIPT: &str = "text/javascript; charset=utf-8";
/// Name, media type and text of each file.
const ASSETS: &[(&str, &str, &str)] = &[
    ("style.css", "text/css; charset=utf-8", include_str!("dashboard/style.css")),
    ("app.js", SCRIPT, include_str!("dashboard/app.js")),
    ("actions.js", SCRIPT, include_str!("dashboard/actions.js")),
    ("dom.js", SCRIPT, include_str!("dashboard/dom.js")),
    ("picture.js", SCRIPT, include_str!("dashboard/picture.js")),
    ("store.js", SCRIPT, include_str!("dashboard/store.js")),
    ("tables.js", SCRIPT, include_str!("dashboard/tables.js")),
    ("tools.js", SCRIPT, include_str!("dashboard/tools.js")),
];
/// Content security policy: the page loads nothing from other hosts, sends nothing to them, and
/// can't be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const FIELDS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

pub(super) async fn page() -> Response {
    let text = INDEX.replace(VERSION, env!("CARGO_PKG_VERSION"));
    (FIELDS, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
}

pub(super) async fn file(name: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let Path(name) = name?;
    let found = ASSETS.iter().find(|(known, ..)| *known == name);
    let (_, kind, text) = found.ok_or_else(|| {
        ApiError(StatusCode::NOT_FOUND, format!("The dashboard has no file {name:?}; it begins at /."))
    })?;
    Ok((FIELDS, [(header::CONTENT_TYPE, *kind)], *text).into_response())
}

/// Sender of a request.
#[derive(Debug, Serialize)]
pub(super) struct CallerView {
    by: String,
    role: &'static str,
}

pub(super) async fn whoami(Extension(Caller { author, role }): Extension<Caller>) -> Json<CallerView> {
    Json(CallerView { by: author.by, role: role.name() })
}

type Meanings = BTreeMap<&'static str, &'static str>;

/// Returns the description of each reason: of packets on a director, and on a server.
pub(super) async fn reasons() -> Json<BTreeMap<&'static str, Meanings>> {
    let packets = path::decide::Reason::ALL.iter().map(|reason| (reason.name(), reason.about()));
    let tunnels = server::Reason::ALL.iter().map(|reason| (reason.name(), reason.about()));
    Json([("packets", packets.collect()), ("tunnels", tunnels.collect())].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_small_and_refers_to_its_own_files_only() {
        let texts = || ASSETS.iter().map(|(_, _, text)| *text).chain([INDEX]);
        assert!(texts().map(str::len).sum::<usize>() <= 150 << 10);
        for text in texts() {
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "://cdn",
                "@import",
            ] {
                assert!(!foreign.contains(word), "{word}");
            }
        }
        assert!(INDEX.contains(VERSION) && !INDEX.contains(" style=") && !INDEX.contains(" onclick="));
        for (name, ..) in ASSETS {
            let is_named = texts().any(|text| text.contains(&format!("/{name}\"")));
            assert!(is_named, "{name} is used");
        }
    }
}
