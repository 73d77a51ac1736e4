//! Evener's testbed: farms of network namespaces with real servers and real clients, for tests,
//! demonstrations and benchmarks. Evener never needs it.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use evener_lab::farm::Farm;
//! let farm = Farm::builder().servers(3).answering().build()?;
//! assert_eq!(farm.client(0).curl(&["http://192.0.2.11/who"])?, "web1\n");
//! # Ok(())
//! # }
//! ```

pub mod benches;
pub mod cases;
pub mod clients;
pub mod demo;
pub mod evener;
pub mod farm;
pub mod harness;
pub mod mutants;
pub mod network;
pub mod papers;
pub mod servers;
pub mod unit_files;
pub mod workloads;
