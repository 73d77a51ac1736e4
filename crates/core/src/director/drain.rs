//! Servers that the operator drains or has left alone, whoever has them.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Director, Event, Moment};
use crate::dns::OwnServer;
use crate::farm::plan::ServerName;

/// The owner of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOwner {
    /// A service that packets are sent on for.
    Service,
    /// A group.
    Group,
    /// A name alone.
    Name,
}

/// A server that can be drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drainable {
    /// As it is called here, however it was written.
    pub name: ServerName,
    /// Its owner.
    pub owner: ServerOwner,
    /// Whether it is drained now.
    pub is_drained: bool,
}

/// Why a server can't be drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDrainable {
    /// No service, group or name is called so.
    NoOwner,
    /// It has no such server, but these.
    NoServer(ServerOwner, Vec<String>),
    /// The name has none of its own, but those of services.
    OfServices,
    /// It is another host's, whose part in the farm is its own to say.
    OtherHost,
}

impl Director {
    /// The server that the operator means.
    ///
    /// # Errors
    /// When there is none that can be drained here.
    pub fn drainable(&self, meant: &ServerName) -> Result<Drainable, NotDrainable> {
        if let Some(members) = self.group(&meant.service) {
            let names = || members.names().map(str::to_owned).collect();
            let found = members.called(&meant.server);
            let (server, is_drained) =
                found.ok_or_else(|| NotDrainable::NoServer(ServerOwner::Group, names()))?;
            let name = ServerName { service: meant.service.clone(), server: server.to_owned() };
            return Ok(Drainable { name, owner: ServerOwner::Group, is_drained });
        }
        if let Some(known) = self.name(&meant.service) {
            let servers = &known.list().ok_or(NotDrainable::OfServices)?.servers;
            let names: Vec<String> =
                servers.iter().map(|server| OwnServer::name(server).into_owned()).collect();
            let service = known.settings.name.to_string();
            let name = ServerName { service, server: meant.server.clone() };
            return self.found(name, ServerOwner::Name, names);
        }
        self.farm().service(&meant.service).ok_or(NotDrainable::NoOwner)?;
        let members = self.membership().members(&meant.service).into_iter();
        let found =
            self.found(meant.clone(), ServerOwner::Service, members.map(|member| member.name).collect())?;
        if self.other_host(meant).is_some() { Err(NotDrainable::OtherHost) } else { Ok(found) }
    }

    /// The operator has a server take no new sessions, or take them again.
    pub(super) fn drain(&mut self, server: ServerName, drain: bool, now: Moment) {
        if self.groups.has(&server.service) {
            return self.groups.drain(now, &server, drain);
        }
        if self.names.find(&server.service).is_some() {
            return self.names.drain(&server, drain);
        }
        if self.pools.drain(&server, drain) {
            self.emit(Event::Drained { server, drain });
        }
        self.follow_operator(now);
    }

    /// The operator has a server neither probed nor asked for its load, or ends that.
    pub(super) fn suspend(&mut self, server: ServerName, is_suspended: bool, now: Moment) {
        if self.groups.has(&server.service) {
            return self.groups.suspend(now, &server, is_suspended);
        }
        if self.names.find(&server.service).is_some() {
            return self.names.suspend(&server, is_suspended, now.ms);
        }
        if self.pools.suspend(&server, is_suspended, now.ms) {
            self.emit(Event::Suspended { server, is_suspended });
        }
        self.follow_operator(now);
    }

    /// Plans at once, and has other hosts know.
    fn follow_operator(&mut self, now: Moment) {
        self.send_own_report();
        (self.replan_wanted, self.gather_until_ms) = (true, now.ms);
    }

    fn found(
        &self,
        name: ServerName,
        owner: ServerOwner,
        servers: Vec<String>,
    ) -> Result<Drainable, NotDrainable> {
        if !servers.contains(&name.server) {
            return Err(NotDrainable::NoServer(owner, servers));
        }
        let drained = if owner == ServerOwner::Name { self.drained_of_names() } else { self.drained() };
        Ok(Drainable { is_drained: drained.contains(&name), name, owner })
    }
}
