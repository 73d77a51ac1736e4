//! Texts on the operator states of servers.

use evener_core::director::{Director, Drainable, NotDrainable, ServerOwner};
use evener_core::farm::plan::ServerName;
use evener_core::pool::OperatorState;

use super::executor::Executor;
use crate::runtime::spelling::meant;
use crate::state::OrderError;
use crate::views::has_service;

/// Returns a sentence on a server's operator state.
pub(super) fn drained(
    executor: &Executor,
    server: &Drainable,
    wanted: OperatorState,
    is_news: bool,
) -> String {
    let Drainable { name: ServerName { service, server }, owner, .. } = server;
    let (full, director) = (format!("{service}/{server}"), &executor.director);
    let others_live = || director.has_living(service, executor.moment());
    let left = || director.without_servers(service).map(|what| format!("; {what}")).unwrap_or_default();
    match (wanted, is_news, owner) {
        (OperatorState::Drain, false, _) => format!("{full} was draining already"),
        (OperatorState::Ready, false, _) => format!("{full} was not drained"),
        (OperatorState::Maintenance, false, _) => format!("{full} was in maintenance already"),
        (OperatorState::Maintenance, true, _) => {
            format!("{full} is in maintenance: it gets no new sessions, probes or load queries{}", left())
        }
        (OperatorState::Drain, true, ServerOwner::Service) => {
            format!("{full} drains: it keeps its sessions and gets no new ones{}", left())
        }
        (OperatorState::Ready, true, ServerOwner::Service) => format!("{full} gets new sessions again"),
        (OperatorState::Drain, true, ServerOwner::Group) => {
            format!("{full} drains: no more clients are sent to it")
        }
        (OperatorState::Ready, true, ServerOwner::Group) => format!("{full} gets clients again"),
        (OperatorState::Drain, true, ServerOwner::Name) if others_live() => {
            format!("{full} drains: its address is no longer in answers")
        }
        (OperatorState::Drain, true, ServerOwner::Name) => {
            format!("{full} drains; no other server of {service} works, so `none_alive` sets the answer")
        }
        (OperatorState::Ready, true, ServerOwner::Name) => format!("{full} is in answers again"),
    }
}

/// Returns the reason why a server can't be drained.
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
            "{server} is another host of the every-host farm: run this command on that host"
        )),
    }
}
