//! The farm as data: what its operator wants, what is known of it, and the tables that follow.
//!
//! The model ([`Farm`], [`Service`], [`Server`]) is what a valid file means. [`network`] is what
//! this host has, [`membership`] who the servers are; [`plan`] makes tables of that and of what
//! [`crate::pool`] knows of them, and [`choose`] says who gets a connection by them. [`group`] are
//! servers that clients are sent to by HTTP. [`example`] has a plain service for tests.

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
pub use model::{Allow, Discover, Farm, PeerOptions, Placement, Server, Service, Timeouts};
pub use routes::{Route, RouteList};
