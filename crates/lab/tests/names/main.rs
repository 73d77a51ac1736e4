//! Names: Evener's DNS server with real web servers behind its names, and dig as the resolver.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod answers;
mod changes;
mod dice;
mod hostile;
mod loads;
mod many;
mod others;
mod paths;
mod ranks;
mod stage;
