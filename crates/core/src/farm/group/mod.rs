//! Server groups: web servers that clients are redirected to by HTTP, after *Implementing
//! Distributed Server Groups for the World Wide Web* (CMU-CS-95-114). [`Group`] is a group as the
//! farm file describes it, [`Members`] has the members and their states, and [`Dispatch`] selects
//! the member for a request.

mod claims;
mod dispatch;
#[cfg(test)]
pub(crate) mod example;
mod joiner;
mod members;
mod membership;
mod model;
mod reach;
mod token_throttle;

pub use claims::Claims;
pub use dispatch::{Dispatch, DispatchRequest, MemberCandidate, PER_DISPATCH, RouteTo};
pub use joiner::{
    Joiner, JoinerError, PATTERNS_MAX, WEIGHT_MAX, member_host, member_path, member_url, member_weight,
};
pub use members::{
    GroupRules, JoinResult, LOAD_MAX, LoadInform, MEMBERS_MAX, MemberChange, MemberEvent, MemberOrder,
    MemberRefusal, MemberSnapshot, Members, QueryResult, ROUTES_MAX, Standing, drained_in_record,
    thousandths, without_drains,
};
pub use membership::{DirectorAnswer, GroupMembership, MembershipOrder, MembershipTrouble};
pub use model::{Group, GroupMember, Joining, LoadReading};
pub use reach::{MessageOrigin, Reach, ReachError};
pub use token_throttle::{RETRY_AFTER_S, TokenThrottle};
