//! The operator's orders that a server take no new sessions: answered once they are in force.

use evener_core::director::Input;
use evener_core::farm::plan::ServerName;
use tokio::sync::oneshot;

use super::changing::ExecuteError;
use super::{Daemon, start};
use crate::runtime::spelling::meant;
use crate::views::has_service;

/// One that waits for the engine.
pub(super) struct Draining {
    /// With whose answer it is in force.
    number: u64,
    name: ServerName,
    drain: bool,
    /// Whether it was otherwise before.
    changed: bool,
    answer: oneshot::Sender<Result<String, String>>,
}

impl Daemon {
    /// Drains a server, or has it take sessions again. Who has ordered that may be gone when it is answered; that is no matter.
    pub(super) fn begin_drain(
        &mut self,
        name: ServerName,
        drain: bool,
        answer: oneshot::Sender<Result<String, String>>,
    ) {
        if self.groups.has(&name.service) {
            drop(answer.send(self.groups.drain(&name.service, &name.server, drain)));
            return;
        }
        if self.names.has(&name.service) {
            let done = self.names.drain(&name.service, &name.server, drain);
            // Whoever waits for the answer may ask for the name next.
            self.names.refresh(self.executor.director.snapshot(), &self.groups.shown().latest());
            drop(answer.send(done));
            return;
        }
        if let Err(error) = self.may_drain(&name) {
            drop(answer.send(Err(error)));
            return;
        }
        let changed = self.executor.director.drained().contains(&name) != drain;
        self.executor.tell(Input::Drain { server: name.clone(), drain });
        let number = self.executor.director.awaited().unwrap_or_default();
        self.draining.push(Draining { number, name, drain, changed, answer });
    }

    fn may_drain(&self, name: &ServerName) -> Result<(), String> {
        let director = &self.executor.director;
        has_service(director.farm(), &name.service)?;
        let members = director.membership().members(&name.service);
        let names = members.iter().map(|member| member.name.as_str());
        if !names.clone().any(|known| known == name.server) {
            let meant = meant(&name.server, names);
            return Err(format!("service {} has no server {}; {meant}", name.service, name.server));
        }
        match director.other_host(name) {
            Some(host) => {
                Err(format!("{host} is another host, whose part in the farm it tells itself: do that there"))
            }
            None => Ok(()),
        }
    }

    /// Answers those that are in force with this order, or refused with it. Those that were in it beside a reload that was refused are
    /// in the one that follows.
    pub(super) fn finish_drains(&mut self, number: u64, result: &Result<(), ExecuteError>, reloads: bool) {
        let next = self.executor.director.awaited().filter(|_| reloads && result.is_err());
        for mut draining in std::mem::take(&mut self.draining) {
            if draining.number <= number {
                let Some(next) = next else {
                    let done = match result {
                        Err(error) if !reloads => Err(error.to_string()),
                        _ => self.drained(&draining),
                    };
                    drop(draining.answer.send(done));
                    continue;
                };
                draining.number = next;
            }
            self.draining.push(draining);
        }
    }

    /// What to say of one that is in force.
    fn drained(&self, draining: &Draining) -> Result<String, String> {
        let Draining { name, drain, changed, .. } = draining;
        let full = format!("{}/{}", name.service, name.server);
        let director = &self.executor.director;
        start::write_drained(&self.directory, director.drained())
            .map_err(|error| format!("{full}: done, but it will be forgotten at a restart: {error}"))?;
        Ok(match (drain, changed) {
            (true, true) => {
                let left = director.without_servers(&name.service).map(|what| format!("; {what}"));
                format!(
                    "{full} drains: it keeps its sessions and takes no new ones{}",
                    left.unwrap_or_default()
                )
            }
            (true, false) => format!("{full} was draining already"),
            (false, true) => format!("{full} takes new sessions again"),
            (false, false) => format!("{full} was not drained"),
        })
    }
}
