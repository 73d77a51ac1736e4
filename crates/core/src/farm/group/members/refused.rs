//! Reasons why a message of a member is refused.

use alloc::string::String;

use super::{MEMBERS_MAX, ROUTES_MAX};
use crate::farm::group::reach::ReachError;
use crate::net::http::Url;

/// Reason why a message of a member is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberRefusal {
    /// GROUP-EXIT of a host that is no member.
    #[error("{0} is not a member of this group")]
    NotHere(Url),
    /// Report of a host that is no member; it may join.
    #[error("{0} is not a member of this group: send a GROUP-ADD request for it first")]
    Unknown(String),
    /// Several members have the source address of the report.
    #[error("several members have this address: write the member's URL after the load and the time")]
    Several,
    #[error("the group is full: it has {MEMBERS_MAX} members")]
    Full,
    /// Too many own paths and hosts.
    #[error(
        "the members' own paths and hosts would be more than {ROUTES_MAX} in all, which is the most of a group"
    )]
    Routes,
    /// The member's URL is the group's own address.
    #[error("{0} is the group's own address: redirects would loop")]
    Own(Url),
    /// Connections to the member are forbidden.
    #[error("{0} is not allowed as a member: {1}")]
    Outside(Url, ReachError),
    #[error("a load is a number from 0 to {max}", max = super::LOAD_MAX)]
    Load,
    /// The report is not newer than the member's last one.
    #[error(
        "the time stamp is not later than that of the member's last report: the report is old or a duplicate"
    )]
    Stale,
    /// The time of the report is in the future.
    #[error(
        "the report's time stamp is more than five minutes ahead of the director's clock: check the time on both hosts"
    )]
    Ahead,
}

impl MemberRefusal {
    /// HTTP status of the response to the message.
    pub fn status(&self) -> u16 {
        match self {
            MemberRefusal::Outside(..) => 403,
            MemberRefusal::NotHere(_) => 404,
            MemberRefusal::Unknown(_) | MemberRefusal::Several => 409,
            MemberRefusal::Full
            | MemberRefusal::Routes
            | MemberRefusal::Own(_)
            | MemberRefusal::Load
            | MemberRefusal::Stale
            | MemberRefusal::Ahead => 422,
        }
    }
}
