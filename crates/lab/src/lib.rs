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

pub mod ab;
pub mod bare_hop;
pub mod bench;
pub mod capture;
pub mod cases;
pub mod cpu;
pub mod decode;
pub mod demo;
pub mod dns;
pub mod evener;
pub mod family;
pub mod farm;
pub mod faults;
pub mod fragments;
pub mod handmade_tcp;
pub mod host;
pub mod icmp;
mod lan;
pub mod late;
pub mod load;
pub mod mutants;
pub mod netns;
pub mod owner;
pub mod policy_comparison;
pub mod proc;
pub mod proxies;
pub mod queue_servers;
pub mod raw;
pub mod reader;
pub mod reordering;
pub mod report_server;
pub mod reused_ports;
pub mod shell;
pub mod skip;
pub mod table;
pub mod transfer;
pub mod udp;
pub mod unit_files;
pub mod verify;
pub mod visit;
pub mod wait;
pub mod web;
pub mod web_others;
pub mod web_tls;
