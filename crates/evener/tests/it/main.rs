//! The program from outside: commands, files, admin socket and probes. All tests are one binary,
//! because each binary links the whole program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(unreachable_pub)]

mod admin;
mod book;
mod check;
mod cli;
mod corpus;
mod import;
mod install;
mod monitoring;
mod probe;
mod quick_starts;
mod reference;
mod rooms;
mod schema;
mod tree;
mod words;
mod zones;
