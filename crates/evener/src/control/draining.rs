//! The operator's orders that a server take no new sessions: answered once they are in force.

use evener_core::director::{Director, Drainable, Input, NotDrainable, ServerOwner};
use evener_core::farm::plan::ServerName;
use tokio::sync::oneshot;

use super::changing::ExecuteError;
use super::{Daemon, drained};
use crate::runtime::spelling::meant;
use crate::views::has_service;

/// One that waits for the engine.
pub(super) struct PendingDrain {
    /// With whose answer it is in force.
    number: u64,
    /// The server as it was before.
    server: Drainable,
    drain: bool,
    answer: oneshot::Sender<Result<String, String>>,
}

impl Daemon {
    /// Drains a server, or has it take sessions again. The client may be gone when it is answered;
    /// that is no matter.
    pub(super) fn begin_drain(
        &mut self,
        meant: &ServerName,
        drain: bool,
        answer: oneshot::Sender<Result<String, String>>,
    ) {
        let director = &self.executor.director;
        let server = match director.drainable(meant) {
            Ok(server) => server,
            Err(why) => return drop(answer.send(Err(not_drainable(director, meant, why)))),
        };
        self.executor.handle_fact(Input::Drain { server: server.name.clone(), drain });
        // Groups and names don't wait for tables.
        let awaited = self.executor.director.awaited().filter(|_| server.owner == ServerOwner::Service);
        let draining = PendingDrain { number: awaited.unwrap_or_default(), server, drain, answer };
        match awaited {
            Some(_) => self.draining.push(draining),
            None => self.answer_drain(draining),
        }
    }

    /// Answers those that are in force with this order, or refused with it. Those that were in it
    /// beside a reload that was refused are in the one that follows.
    pub(super) fn finish_drains(&mut self, number: u64, result: &Result<(), ExecuteError>, reloads: bool) {
        let next = self.executor.director.awaited().filter(|_| reloads && result.is_err());
        for mut draining in std::mem::take(&mut self.draining) {
            if draining.number <= number {
                let Some(next) = next else {
                    match result {
                        Err(error) if !reloads => drop(draining.answer.send(Err(error.to_string()))),
                        _ => self.answer_drain(draining),
                    }
                    continue;
                };
                draining.number = next;
            }
            self.draining.push(draining);
        }
    }

    /// Answers one that is in force.
    fn answer_drain(&self, draining: PendingDrain) {
        let PendingDrain { server, drain, answer, .. } = draining;
        let _ = answer.send(self.drained(&server, drain));
    }

    fn drained(&self, server: &Drainable, drain: bool) -> Result<String, String> {
        let Drainable { name: ServerName { service, server }, owner, is_drained } = server;
        let (full, director) = (format!("{service}/{server}"), &self.executor.director);
        drained::write(&self.directory, director, *owner, service)
            .map_err(|error| format!("{full}: done, but it will be forgotten at a restart: {error}"))?;
        let others_live = || director.has_living(service, self.executor.moment());
        Ok(match (drain, *is_drained != drain, owner) {
            (true, false, _) => format!("{full} was draining already"),
            (false, false, _) => format!("{full} was not drained"),
            (true, true, ServerOwner::Service) => {
                let left = director.without_servers(service).map(|what| format!("; {what}"));
                let left = left.unwrap_or_default();
                format!("{full} drains: it keeps its sessions and takes no new ones{left}")
            }
            (false, true, ServerOwner::Service) => format!("{full} takes new sessions again"),
            (true, true, ServerOwner::Group) => format!("{full} drains: no more clients are sent to it"),
            (false, true, ServerOwner::Group) => format!("{full} gets clients again"),
            (true, true, ServerOwner::Name) if others_live() => {
                format!("{full} drains: its address is no longer given")
            }
            (true, true, ServerOwner::Name) => {
                format!(
                    "{full} drains; no other server of {service} lives: `none_alive` says what is answered"
                )
            }
            (false, true, ServerOwner::Name) => format!("{full} is given again"),
        })
    }
}

/// Why a server can't be drained, in words.
fn not_drainable(director: &Director, meant_server: &ServerName, why: NotDrainable) -> String {
    let ServerName { service, server } = meant_server;
    match why {
        NotDrainable::NoOwner => has_service(director.farm(), service).err().unwrap_or_default(),
        NotDrainable::NoServer(owner, servers) => {
            let owner = if owner == ServerOwner::Name { "name" } else { "service" };
            format!(
                "{owner} {service} has no server {server}; {}",
                meant(server, servers.iter().map(String::as_str))
            )
        }
        NotDrainable::OfServices => {
            format!("{service} has no servers of its own: drain those of its services, as SERVICE/SERVER")
        }
        NotDrainable::OtherHost => {
            format!("{server} is another host, whose part in the farm it tells itself: do that there")
        }
    }
}
