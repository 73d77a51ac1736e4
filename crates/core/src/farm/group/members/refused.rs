//! Reasons why a message of a member is refused.

use alloc::string::String;

use super::{MEMBERS_MAX, ROUTES_MAX};
use crate::farm::group::reach::ReachError;
use crate::net::http::Url;

/// Reason why a message of a member is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberRefusal {
    /// GROUP-EXIT for a URL that belongs to no member.
    #[error("{0} is no member of this group")]
    NotHere(Url),
    /// Report of a host that is no member. The host may join.
    #[error("{0} is no member of this group: join it by GROUP-ADD")]
    Unknown(String),
    /// Several members have the source address of the report, so the report must name the URL.
    #[error("several members have this address: write the member's URL behind the load and the time")]
    Several,
    #[error("the group has its {MEMBERS_MAX} members, and takes no more")]
    Full,
    /// The members of the group would have too many own paths and hosts.
    #[error(
        "members of this group have {ROUTES_MAX} paths and hosts of their own at most, and this would be more"
    )]
    Routes,
    /// The member's URL is the group's own address.
    #[error("{0} is the group's own address: clients would be sent in circles")]
    Own(Url),
    /// Connections to the member are forbidden.
    #[error("{0} is no place for a member: {1}")]
    Outside(Url, ReachError),
    #[error("a load is a number from 0 to {max}", max = super::LOAD_MAX)]
    Load,
    /// The report is not newer than the member's last one.
    #[error(
        "the time stamp is not later than that of the member's last report: this one is old, or was sent twice"
    )]
    Stale,
    /// The time of the report is in the future.
    #[error("the time stamp is more than five minutes ahead of the director's clock")]
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
