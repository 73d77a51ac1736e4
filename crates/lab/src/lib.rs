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
pub mod again;
pub mod bench;
pub mod by_hand;
pub mod capture;
pub mod cases;
pub mod contest;
pub mod cpu;
pub mod cut;
pub mod decode;
pub mod demo;
pub mod dns;
pub mod evener;
pub mod family;
pub mod farm;
pub mod faults;
pub mod hop;
pub mod host;
pub mod icmp;
mod lan;
pub mod late;
pub mod load;
pub mod mutants;
pub mod netns;
pub mod owner;
pub mod proc;
pub mod proxies;
pub mod queued;
pub mod raw;
pub mod reader;
pub mod shell;
pub mod shuffle;
pub mod skip;
pub mod table;
pub mod teller;
pub mod transfer;
pub mod udp;
pub mod unit;
pub mod verify;
pub mod visit;
pub mod wait;
pub mod web;
pub mod web_others;
pub mod web_tls;
