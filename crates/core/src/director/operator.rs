//! States that the operator has set for servers of services, groups and names.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Director, Moment};
use crate::dns::OwnServer;
use crate::farm::plan::ServerName;
use crate::pool::OperatorState;

/// States that the operator has set, except `Ready`, which is the default. The servers need not
/// exist.
pub type OperatorStates = BTreeMap<ServerName, OperatorState>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOwner {
    /// A service that forwards packets.
    Service,
    Group,
    /// A name with its own list of servers.
    Name,
}

/// A server that can be drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drainable {
    pub name: ServerName,
    pub owner: ServerOwner,
}

/// Reason why a server can't be drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDrainable {
    /// The farm has no service, group or name of this name.
    NoOwner,
    /// The owner exists but lacks the server. The list contains the names of its servers.
    NoServer(ServerOwner, Vec<String>),
    /// The name has no list of its own. Its addresses come from services, where the server has to
    /// be drained.
    OfServices,
    /// The server is another host of an every-host farm. The operator has to drain it on that host.
    OtherHost,
}

impl Director {
    /// Finds the server that the operator named.
    ///
    /// # Errors
    /// The server does not exist, or can't be drained on this host.
    pub fn drainable(&self, meant: &ServerName) -> Result<Drainable, NotDrainable> {
        if let Some(members) = self.group(&meant.service) {
            let names = || members.names().map(str::to_owned).collect();
            let found = members.called(&meant.server);
            let server = found.ok_or_else(|| NotDrainable::NoServer(ServerOwner::Group, names()))?;
            let name = ServerName { service: meant.service.clone(), server: server.to_owned() };
            return Ok(Drainable { name, owner: ServerOwner::Group });
        }
        if let Some(known) = self.name(&meant.service) {
            let servers = &known.list().ok_or(NotDrainable::OfServices)?.servers;
            let names: Vec<String> =
                servers.iter().map(|server| OwnServer::name(server).into_owned()).collect();
            let service = known.settings.name.to_string();
            let name = ServerName { service, server: meant.server.clone() };
            return found(name, ServerOwner::Name, names);
        }
        self.farm().service(&meant.service).ok_or(NotDrainable::NoOwner)?;
        let members = self.membership().members(&meant.service).into_iter();
        let found = found(meant.clone(), ServerOwner::Service, members.map(|member| member.name).collect())?;
        if self.other_host(meant).is_some() { Err(NotDrainable::OtherHost) } else { Ok(found) }
    }

    pub fn operator_states(&self) -> &OperatorStates {
        &self.operator
    }

    /// Applies a state that the operator has set for a server. The server need not exist.
    pub(super) fn set_operator_state(&mut self, server: ServerName, state: OperatorState, now: Moment) {
        match state {
            OperatorState::Ready => self.operator.remove(&server),
            state => self.operator.insert(server.clone(), state),
        };
        if self.groups.has(&server.service) {
            return self.groups.set_operator_state(now, &server, state);
        }
        if self.names.find(&server.service).is_some() {
            return self.names.set_operator_state(&server, state, now.ms);
        }
        let change = self.pools.change(&server, |server| server.set_operator_state(state, now.ms));
        if let Some(change) = change {
            self.follow_change(&server, change);
        }
        // This host's report informs the other hosts of the new state. The next plan is not
        // delayed.
        self.send_own_report();
        (self.replan_wanted, self.gather_until_ms) = (true, now.ms);
    }
}

fn found(name: ServerName, owner: ServerOwner, servers: Vec<String>) -> Result<Drainable, NotDrainable> {
    match servers.contains(&name.server) {
        true => Ok(Drainable { name, owner }),
        false => Err(NotDrainable::NoServer(owner, servers)),
    }
}
