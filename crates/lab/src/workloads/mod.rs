//! Load on servers, and what came of it.

pub mod load;
pub mod policy_comparison;
