//! Servers and what is known of them: one machine for packets, HTTP and names.
//!
//! [`health`] is how they are, [`reports`] and [`signals`] how loaded, [`policy`] who of them is chosen, and [`shares`] how much of it each is
//! given.

pub mod health;
pub mod policy;
pub mod report;
pub mod reports;
mod settings;
pub mod shares;
pub mod signals;

pub use settings::{HealthCheck, HealthKind, ReportKind, Reporting};

/// The whole of a server's weight, in tenths.
pub const WHOLE: u16 = 10;
