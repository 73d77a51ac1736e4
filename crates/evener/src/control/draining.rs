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
            format!("{full} drains; no other server of {service} lives: `none_alive` says what is answered")
        }
        (OperatorState::Ready, true, ServerOwner::Name) => format!("{full} is given again"),
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
            "{server} is another host, whose part in the farm it tells itself: do that there"
        )),
    }
}
