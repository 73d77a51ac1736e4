//! Why a message of a member changes nothing.

use alloc::string::String;

use super::{MEMBERS_MAX, ROUTES_MAX};
use crate::farm::group::reach::ReachError;
use crate::net::http::Url;

/// Why a message of a member changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberRefusal {
    /// The host that leaves was no member.
    #[error("{0} is no member of this group")]
    NotHere(Url),
    /// The host that reports is no member; it may join.
    #[error("{0} is no member of this group: join it by GROUP-ADD")]
    Unknown(String),
    /// Several members have the address that a report comes from.
    #[error("several members have this address: write the member's URL behind the load and the time")]
    Several,
    /// The group is full.
    #[error("the group has its {MEMBERS_MAX} members, and takes no more")]
    Full,
    /// Too many paths and hosts of their own.
    #[error(
        "members of this group have {ROUTES_MAX} paths and hosts of their own at most, and this would be more"
    )]
    Routes,
    /// A member that is the director.
    #[error("{0} is the group's own address: clients would be sent in circles")]
    Own(Url),
    /// A member to which no connection may be opened.
    #[error("{0} is no place for a member: {1}")]
    Outside(Url, ReachError),
    /// A load that can't be.
    #[error("a load is a number from 0 to {max}", max = super::LOAD_MAX)]
    Load,
    /// A report that is no news.
    #[error(
        "the time stamp is not later than that of the member's last report: this one is old, or was sent twice"
    )]
    Stale,
    /// A report that is ahead of its time.
    #[error("the time stamp is more than five minutes ahead of the director's clock")]
    Ahead,
}

impl MemberRefusal {
    /// The status by which it is answered.
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
