//! Evener makes a group of web servers look and perform like one.
//!
//! This crate is the product: configuration, the daemon that runs it, and the command line.
#![forbid(unsafe_code)]

pub mod admin;
pub mod agent;
mod board;
pub mod cli;
pub mod config;
pub mod control;
mod descriptors;
pub mod doctor;
pub mod events;
mod handoff;
mod lccp;
mod log;
pub mod manual;
pub mod network;
pub mod probe;
mod record;
pub mod secret;
mod spelling;
mod terminal;
