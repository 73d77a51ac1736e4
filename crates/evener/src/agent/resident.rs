//! A host that is director and server at once: what an agent would do here, done by the daemon.

use std::path::Path;

use evener_dataplane::server::Hook;

use super::duties::{self, Identity};
use super::place::{self, Site};
use super::state::Lock;
use super::{AgentError, Trouble, network_now, take_over};
use crate::config::Config;
use crate::network::Network;

/// The agent within a daemon.
pub(crate) struct Resident {
    site: Site,
    hook: Hook,
    adopted: bool,
    trouble: Trouble,
    _lock: Lock,
}

impl Resident {
    /// Takes an agent's place. Packets must come out of tunnels before the engine sees them: `copies` says that it
    /// gets copies of frames, by packet sockets.
    ///
    /// # Errors
    /// When an agent runs already, or its record can't be read.
    pub(crate) fn start(directory: &Path, config_path: &Path, copies: bool) -> Result<Resident, AgentError> {
        let (state, lock) = take_over(directory, config_path, Identity::default())?;
        let adopted = state.done.is_something();
        // The copy is taken before traffic control sees the frame.
        let hook = if copies { Hook::Generic } else { Hook::Tc };
        Ok(Resident { site: Site::open(state)?, hook, adopted, trouble: Trouble::default(), _lock: lock })
    }

    /// Makes the host be as its services want it.
    ///
    /// # Errors
    /// What was refused first; the rest is done.
    pub(crate) async fn fulfil(&mut self, config: &Config, network: &Network) -> Result<(), AgentError> {
        let roles = duties::resident_roles(config, network);
        let host = place::host(Some(self.hook)).await;
        let sources: Vec<_> = config.tunnel_sources().into_iter().collect();
        let duties = duties::duties(&roles, &sources, network, &host).map_err(AgentError::Role)?;
        Ok(self.site.fulfil(&duties, network).await?)
    }

    /// The same from time to time: interfaces come and go, and so may what was placed on them.
    pub(crate) async fn look(&mut self, config: &Config, network: &Network) {
        let trouble = self.fulfil(config, network).await.err().map(|error| error.to_string());
        self.trouble.tell(trouble);
    }

    /// Takes back what was done, unless it is to be kept.
    ///
    /// # Errors
    /// What could not be taken back.
    pub(crate) async fn leave(self, keep: bool, network: &Network) -> Result<(), AgentError> {
        Ok(self.site.leave(keep, &network_now(network.clone()).await).await?)
    }

    /// The same after a start that failed: what was found at work stays.
    pub(crate) async fn abandon(self, network: &Network) {
        let adopted = self.adopted;
        if let Err(error) = self.leave(adopted, network).await {
            tracing::warn!(%error, "something stays as it was changed");
        }
    }
}
