//! The farm as data: what its operator wants, what is known of it, and the tables that follow.
//!
//! The model ([`Farm`], [`Service`], [`Server`]) is what a valid file means. [`network`] is what this host has, [`membership`] who the servers
//! are, [`health`] how they are, [`load`] how much they carry, [`policy`] who of them is chosen; [`plan`] makes tables of all that.

pub mod health;
pub mod load;
pub mod membership;
pub mod network;
pub mod plan;
pub mod policy;

mod method;
mod model;
pub use method::{Agent, Found, Method, PacketForm, Properties, Replies, Signal};
pub use model::{
    Allow, Discover, Farm, Health, HealthKind, Peers, Placement, Route, Server, Service, Timeouts,
};
