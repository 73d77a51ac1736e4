//! Administration of a running farm: the HTTP API, the metrics, and the commands that use the API.
//! The API is available on a Unix socket and, restricted by roles, on a TCP port.
//!
//! [`crate::views`] defines the stable names. The modules of this folder format and transport the
//! views.

mod access;
mod api;
mod change_limit;
mod changes;
mod client;
pub mod command;
pub mod completion;
mod dashboard;
mod endpoints;
mod events;
mod following;
mod groups;
mod listing;
mod live;
pub mod metrics;
mod openapi;
pub mod process;
mod progress;
mod ready;
pub mod server;
mod state;
pub(crate) mod table;
mod tls;
mod trace;

pub use api::{CommandResult, ErrorBody};
pub(crate) use changes::send_change;
pub use client::{Client, ClientError};
pub(crate) use command::admin_client;
pub use endpoints::{API_PATHS, ApiMethod, ApiPath};
pub(crate) use events::events_of;
pub use openapi::document;
pub use server::{AdminError, AdminSockets};
pub use state::{ChangeResult, ChangeView, DifferenceView, StateView};
pub(crate) use table::message;
