//! Readiness over HTTP, as in `evener ready`, while the daemon lives.

use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use tokio::sync::Mutex;

use super::api::{Api, ApiError};
use crate::ready::ReadinessInput;
use crate::runtime::folders;

/// Maximum age of a cached result, since clients without a token may ask at any rate.
const KEPT: Duration = Duration::from_millis(500);

/// Cached result for this host.
#[derive(Debug, Default)]
pub(super) struct CachedReadiness(Mutex<Option<(Instant, ReadinessInput)>>);

/// Answers whether all services are ready.
pub(super) async fn all(State(api): State<Api>) -> Result<&'static str, ApiError> {
    answer(&api, None).await
}

/// Answers whether one service is ready.
pub(super) async fn one(
    State(api): State<Api>,
    Path(subject): Path<String>,
) -> Result<&'static str, ApiError> {
    answer(&api, Some(&subject)).await
}

async fn answer(api: &Api, subject: Option<&str>) -> Result<&'static str, ApiError> {
    let unavailable = |message: String| ApiError(StatusCode::SERVICE_UNAVAILABLE, message);
    let directory = folders::directory().map_err(|error| unavailable(error.to_string()))?;
    let mut last = api.ready.0.lock().await;
    let fresh = last.take().filter(|(at, _)| at.elapsed() <= KEPT);
    let fresh = match fresh {
        Some(fresh) => fresh,
        None => (Instant::now(), ReadinessInput::at(&directory).await),
    };
    let (_, looked) = last.insert(fresh);
    if subject.is_some_and(|subject| looked.lacks(subject)) {
        let message = "There is no such service.".to_owned();
        return Err(ApiError(StatusCode::NOT_FOUND, message));
    }
    let view = looked.judge(subject);
    match view.ready {
        true => Ok("ready\n"),
        // Reasons name servers, and are not for clients without a token.
        false if api.may_change => Err(unavailable(view.reason)),
        false => Err(unavailable("Not ready: run `evener ready` on this host for the reason.".to_owned())),
    }
}
