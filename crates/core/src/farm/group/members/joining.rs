//! Joining and leaving of members.

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::{JoinResult, MEMBERS_MAX, MemberChange, MemberRefusal, Members, ROUTES_MAX};
use crate::farm::group::claims::Claims;
use crate::farm::group::joiner::Joiner;
use crate::farm::group::reach::{MessageOrigin, Reach};
use crate::net::http::Url;
use crate::pool::ClockReading;

impl Members {
    /// Adds all these members or none. Members that had joined before are updated.
    ///
    /// # Errors
    /// At least one member is refused, so none is added.
    pub fn join(
        &mut self,
        now: ClockReading,
        origin: &MessageOrigin,
        joiners: &[Joiner],
    ) -> Result<JoinResult, MemberRefusal> {
        self.may_join(joiners)?;
        self.check_addresses(origin, joiners)?;
        let mut joined = JoinResult { new: 0, known: 0 };
        for joiner in joiners {
            let known = self.by_url.get(&joiner.url).copied();
            let id = known.unwrap_or_else(|| self.add(now, joiner.clone(), None, true));
            let Some(member) = self.members.get_mut(&id) else { continue };
            let was_here = known.is_some() && !member.left && (member.joined || member.listed.is_some());
            member.describe(joiner);
            member.note_message(now);
            (member.joined, member.left, member.origin) = (true, false, origin.clone());
            let name = member.name().to_string();
            if was_here {
                joined.known += 1;
            } else {
                joined.new += 1;
                self.push_event(name, MemberChange::Joined);
            }
        }
        self.changed(now);
        Ok(joined)
    }

    /// Restricts joined members to the claims that credentials for their URLs allow now. Each
    /// restricted member causes an event. The operator's settings and the weight of a listed member
    /// stay unchanged.
    pub fn cut<'c>(&mut self, now: ClockReading, allowed: impl Fn(&Url) -> Vec<&'c Claims>) {
        let mut cut = Vec::new();
        for member in self.members.values_mut() {
            if !member.joined || member.left || member.origin.is_operator {
                continue;
            }
            let mut joiner = member.joiner.clone();
            Claims::cut(&allowed(&joiner.url), &mut joiner);
            if member.listed.is_some() {
                joiner.weight = member.joiner.weight;
            }
            if joiner != member.joiner {
                member.joiner = joiner;
                cut.push(member.name().to_string());
            }
        }
        if !cut.is_empty() {
            cut.into_iter().for_each(|name| self.push_event(name, MemberChange::Cut));
            self.changed(now);
        }
    }

    fn may_join(&self, joiners: &[Joiner]) -> Result<(), MemberRefusal> {
        if let Some(own) = joiners.iter().find(|joiner| self.is_own(&joiner.url)) {
            return Err(MemberRefusal::Own(own.url.clone()));
        }
        let urls: BTreeSet<&Url> = joiners.iter().map(|joiner| &joiner.url).collect();
        let new = urls.iter().filter(|url| !self.by_url.contains_key(**url)).count();
        if new > 0 && self.joined_count() + new > MEMBERS_MAX {
            return Err(MemberRefusal::Full);
        }
        let staying = self.members.values().map(|member| &member.joiner);
        let routes = |joiner: &Joiner| joiner.pairs().len();
        let staying: usize = staying.filter(|joiner| !urls.contains(&joiner.url)).map(routes).sum();
        let coming: usize = joiners.iter().map(routes).sum();
        if coming > 0 && staying + coming > ROUTES_MAX {
            return Err(MemberRefusal::Routes);
        }
        Ok(())
    }

    /// Checks the addresses in members' URLs. A host name is checked later, when a connection is
    /// opened.
    fn check_addresses(&self, origin: &MessageOrigin, joiners: &[Joiner]) -> Result<(), MemberRefusal> {
        let reach = Reach::new(&self.group, origin);
        let is_listed = |url: &Url| self.group.members.iter().any(|member| member.url == *url);
        let named = joiners.iter().flat_map(|joiner| [Some(&joiner.url), joiner.control.as_ref()]);
        for url in named.flatten().filter(|url| !is_listed(url)) {
            let Some(address) = url.address() else { continue };
            reach
                .permits(url.host(), address)
                .map_err(|outside| MemberRefusal::Outside(url.clone(), outside))?;
        }
        Ok(())
    }

    /// True if the URL is the group's own address, so that a redirect would lead back to the group.
    fn is_own(&self, url: &Url) -> bool {
        let Ok(host) = url.host().parse::<IpAddr>() else { return false };
        let is = |own: IpAddr| own == host || (own.is_unspecified() && host.is_loopback());
        self.group.addresses.iter().any(|address| address.port() == url.port() && is(address.ip()))
    }

    /// Removes all these members or none.
    ///
    /// # Errors
    /// One of the URLs belongs to no member.
    pub fn remove_members(&mut self, now: ClockReading, urls: &[Url]) -> Result<(), MemberRefusal> {
        let is_here = |url: &&Url| {
            let member = self.by_url.get(*url).and_then(|id| self.members.get(id));
            member.is_none_or(|member| member.left)
        };
        if let Some(url) = urls.iter().find(is_here) {
            return Err(MemberRefusal::NotHere(url.clone()));
        }
        for id in urls.iter().filter_map(|url| self.by_url.get(url).copied()).collect::<BTreeSet<_>>() {
            self.remove_member(id, MemberChange::Left);
        }
        self.changed(now);
        Ok(())
    }

    /// Removes a member. A listed member is kept as one that has left, since it may return.
    pub(super) fn remove_member(&mut self, id: usize, why: MemberChange) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let name = member.name().to_string();
        if member.listed.is_some() {
            (member.left, member.joined) = (true, false);
            member.joiner.paths.clear();
            member.joiner.hosts.clear();
        } else {
            self.by_url.remove(&member.joiner.url);
            self.members.remove(&id);
        }
        self.push_event(name, why);
    }
}
