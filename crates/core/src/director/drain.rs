//! Servers that the operator drains, whoever has them.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Director;
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
