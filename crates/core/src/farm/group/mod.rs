//! Server groups: web servers that clients are sent to by HTTP, after *Implementing Distributed Server Groups for the World Wide Web*
//! (CMU-CS-95-114). What a file means ([`Group`]), and who is chosen for a request ([`Dispatch`]).

mod dispatch;
mod model;

pub use dispatch::{Candidate, Dispatch, LOAD_PER_DISPATCH, RouteTo, Wanted};
pub use model::{Group, GroupMember, GroupPolicy, Joining, LoadReading};
