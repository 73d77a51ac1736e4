//! Evener makes a group of web servers look and perform like one.
//!
//! This crate is the product: configuration, the daemon that runs it, and the command line.
#![forbid(unsafe_code)]

pub mod admin;
pub mod agent;
pub mod announce;
pub mod board;
pub mod cli;
pub mod config;
pub mod control;
pub mod doctor;
pub mod events;
mod handoff;
mod http;
pub mod import;
pub mod io;
pub mod manual;
mod names;
pub mod ready;
pub mod record;
mod redirect;
#[cfg(test)]
#[path = "../../core/tests/request_heads/mod.rs"]
mod request_heads;
pub mod runtime;
pub mod state;
pub mod top;
pub mod views;
