//! The farm as data: what its operator wants, what is known of it, and the tables that follow.
//!
//! The model ([`Farm`], [`Service`], [`Server`]) is what a valid file means. [`network`] is what this host has, [`membership`] who the servers
//! are, [`health`] how they are, [`heard`] and [`signals`] how loaded, [`policy`] who of them is chosen; [`plan`] makes tables of all that, and
//! [`choose`] says who gets a connection by them.
//! [`group`] are servers that clients are sent to by HTTP. [`example`] has a plain service for tests.

pub mod choose;
pub mod example;
pub mod group;
pub mod health;
pub mod heard;
pub mod membership;
pub mod network;
pub mod plan;
pub mod policy;
pub mod report;
pub mod shares;
pub mod signals;

mod method;
mod model;
pub use method::{Agent, Found, METHOD_NAMES, Method, PacketForm, Properties, REDIRECT, Replies};
pub use model::{
    Allow, Discover, Farm, Health, HealthKind, Peers, Placement, ReportKind, Reporting, Route, RouteList,
    Server, Service, Timeouts,
};
