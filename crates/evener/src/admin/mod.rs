//! How a running farm is watched and steered: an HTTP API on a Unix socket, the same views
//! read-only on a TCP port, metrics, and the commands that talk to them.
//!
//! [`crate::views`] holds the stable names; everything else here carries them about.

mod access;
mod api;
mod client;
pub mod command;
mod events;
mod following;
mod groups;
pub mod metrics;
pub mod process;
pub mod server;
pub(crate) mod table;
mod trace;

pub use api::{API_PATHS, ApiPath, CommandResult, ErrorBody};
pub use client::{Client, ClientError};
pub(crate) use command::print;
pub use server::{AdminError, AdminSockets};
pub(crate) use table::message;
