//! The farm as data: its settings, its state, and the tables that are computed from both.
//!
//! The model ([`Farm`], [`Service`], [`Server`]) contains the settings of a valid farm file.
//! [`network`] is this host's network configuration, and [`membership`] the set of servers. From
//! the settings, the membership and the servers' state in [`crate::pool`], [`plan`] computes the
//! tables. [`choose`] selects servers by the tables. [`group`] has servers that clients are
//! redirected to by HTTP. [`example`] has a plain service for tests.

pub mod choose;
pub mod example;
pub mod group;
pub mod membership;
pub mod network;
pub mod plan;

mod method;
mod model;
mod routes;
pub use method::{
    AgentRequirement, METHOD_NAMES, Method, PacketForm, Properties, REDIRECT, Replies, ServerLookup,
};
pub use model::{
    Allow, Announce, ClientAffinity, Discover, Farm, PeerOptions, Placement, Server, Service, Timeouts,
};
pub use routes::{Route, RouteList};
