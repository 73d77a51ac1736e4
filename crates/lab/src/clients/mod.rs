//! Clients of tests, step by step.

pub mod downloads;
pub mod fragments;
pub mod half_close;
pub mod handmade_tcp;
pub mod http_connection;
pub mod icmp;
pub mod partial_reader;
pub mod raw_frames;
pub mod reused_ports;
pub mod transfer;
pub mod udp_echo;
