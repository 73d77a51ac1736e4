//! The operator's orders that a server take no new sessions: answered once they are in force.

use evener_core::director::{Director, Drainable, NotDrainable, ServerOwner};
use evener_core::farm::plan::ServerName;
use evener_core::pool::OperatorState;

use super::Daemon;
use super::changing::ExecuteError;
use super::state::Committed;
use crate::runtime::spelling::meant;
use crate::state::OrderError;
use crate::views::has_service;

/// One that waits for the engine.
pub(super) struct PendingDrain {
    /// With whose answer it is in force.
    pub(super) number: u64,
    pub(super) committed: Committed,
}

impl Daemon {
    /// Answers those that are in force with this order, or refused with it. Those that were in it
    /// beside a reload that was refused are in the one that follows.
    pub(super) fn finish_drains(&mut self, number: u64, result: &Result<(), ExecuteError>, reloads: bool) {
        let next = self.executor.director.awaited().filter(|_| reloads && result.is_err());
        for mut draining in std::mem::take(&mut self.draining) {
            if draining.number <= number {
                let Some(next) = next else {
                    match result {
                        Err(error) if !reloads => {
                            let why = format!("it is noted, and tried again: {error}");
                            draining.committed.refuse(OrderError::Unavailable(why));
                        }
                        _ => self.answer_committed(draining.committed),
                    }
                    continue;
                };
                draining.number = next;
            }
            self.draining.push(draining);
        }
    }

    /// A sentence on what operators said of a server.
    pub(super) fn drained(&self, server: &Drainable, wanted: OperatorState, is_news: bool) -> String {
        let Drainable { name: ServerName { service, server }, owner, .. } = server;
        let (full, director) = (format!("{service}/{server}"), &self.executor.director);
        let others_live = || director.has_living(service, self.executor.moment());
        let left = || director.without_servers(service).map(|what| format!("; {what}")).unwrap_or_default();
        match (wanted, is_news, owner) {
            (OperatorState::Drain, false, _) => format!("{full} was draining already"),
            (OperatorState::Ready, false, _) => format!("{full} was not drained"),
            (OperatorState::Maintenance, false, _) => format!("{full} was in maintenance already"),
            (OperatorState::Maintenance, true, _) => {
                format!(
                    "{full} is in maintenance: it takes nothing new, and is neither probed nor asked for its load{}",
                    left()
                )
            }
            (OperatorState::Drain, true, ServerOwner::Service) => {
                format!("{full} drains: it keeps its sessions and takes no new ones{}", left())
            }
            (OperatorState::Ready, true, ServerOwner::Service) => format!("{full} takes new sessions again"),
            (OperatorState::Drain, true, ServerOwner::Group) => {
                format!("{full} drains: no more clients are sent to it")
            }
            (OperatorState::Ready, true, ServerOwner::Group) => format!("{full} gets clients again"),
            (OperatorState::Drain, true, ServerOwner::Name) if others_live() => {
                format!("{full} drains: its address is no longer given")
            }
            (OperatorState::Drain, true, ServerOwner::Name) => {
                format!(
                    "{full} drains; no other server of {service} lives: `none_alive` says what is answered"
                )
            }
            (OperatorState::Ready, true, ServerOwner::Name) => format!("{full} is given again"),
        }
    }
}

/// Why a server can't be drained.
pub(super) fn not_drainable(director: &Director, meant_server: &ServerName, why: NotDrainable) -> OrderError {
    let ServerName { service, server } = meant_server;
    match why {
        NotDrainable::NoOwner => {
            OrderError::NotFound(has_service(director.farm(), service).err().unwrap_or_default())
        }
        NotDrainable::NoServer(owner, servers) => {
            let owner = if owner == ServerOwner::Name { "name" } else { "service" };
            OrderError::NotFound(format!(
                "{owner} {service} has no server {server}; {}",
                meant(server, servers.iter().map(String::as_str))
            ))
        }
        NotDrainable::OfServices => OrderError::Conflict(format!(
            "{service} has no servers of its own: drain those of its services, as SERVICE/SERVER"
        )),
        NotDrainable::OtherHost => OrderError::Conflict(format!(
            "{server} is another host, whose part in the farm it tells itself: do that there"
        )),
    }
}
