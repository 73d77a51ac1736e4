//! Server groups: web servers that clients are sent to by HTTP, after *Implementing Distributed Server Groups for the World Wide Web*
//! (CMU-CS-95-114). What a file means ([`Group`]), who the members are and how they are ([`Members`]), and who is chosen for a request
//! ([`Dispatch`]).

mod dispatch;
#[cfg(test)]
pub(crate) mod example;
mod joiner;
mod members;
mod membership;
mod model;
mod reach;
mod token_throttle;

pub use dispatch::{Candidate, Dispatch, PER_DISPATCH, RouteTo, Wanted};
pub use joiner::{Joiner, JoinerError, PATTERNS_MAX, WEIGHT_MAX, member_url};
pub use members::{
    Joined, LOAD_MAX, LoadInform, MEMBERS_MAX, MemberChange, MemberEvent, MemberState, Members, Moment,
    Order, Queried, ROUTES_MAX, Refused, Rules, thousandths,
};
pub use membership::{DirectorAnswer, Membership, MembershipOrder, MembershipTrouble};
pub use model::{Group, GroupMember, Joining, LoadReading};
pub use reach::{Origin, Outside, Reach};
pub use token_throttle::{RETRY_AFTER_S, TokenThrottle};
