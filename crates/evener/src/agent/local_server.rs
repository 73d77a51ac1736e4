//! An agent's work within the daemon: on a host that is director and server at once, and for
//! connections that are read here before their handoff.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use evener_core::node::secret::Secret;
use evener_core::path::seed::Seed;
use evener_dataplane::server::Hook;

use super::desired::{self, AgentIdentity, HostFacts};
use super::place::{self, HostState};
use super::{AgentError, LastProblem, network_now, take_over};
use crate::board::LocalServerState;
use crate::config::Config;
use crate::handoff::lccp::LccpNode;
use crate::handoff::{ConversationContext, PuntListener, Rehandoff, rehandoff};
use crate::io::network::Network;
use crate::runtime::lock::Lock;
use crate::runtime::program::HostError;

/// Agent within a daemon.
pub(crate) struct LocalServer {
    host_state: HostState,
    hook: Hook,
    mark_key: Option<Seed>,
    adopted: bool,
    trouble: LastProblem,
    /// Reader of connections, if there are handoff services.
    reader: Option<ConversationContext>,
    /// Listeners of the reader, by service address.
    listeners: BTreeMap<IpAddr, PuntListener>,
    _lock: Lock,
}

impl LocalServer {
    /// Starts as this host's agent. Packets must be decapsulated before the engine sees them.
    /// `copies` is true if the engine gets copies of frames from packet sockets. `mark_key`
    /// verifies marks of packets that other hosts forward.
    ///
    /// # Errors
    /// If an agent runs already, or the record of an earlier agent can't be read.
    pub(crate) fn start(
        directory: &Path,
        config_path: &Path,
        copies: bool,
        reader: Option<(ConversationContext, Secret)>,
        mark_key: Option<Seed>,
    ) -> Result<LocalServer, AgentError> {
        let (state, lock) = take_over(directory, config_path, AgentIdentity::default())?;
        let adopted = state.done.has_changes();
        // Packet sockets get the copy before traffic control sees the frame.
        let hook = if copies { Hook::Generic } else { Hook::Tc };
        let mut host_state = HostState::open(state)?;
        let (reader, secret) = reader.unzip();
        host_state.secret = secret;
        Ok(LocalServer {
            host_state,
            hook,
            mark_key,
            adopted,
            trouble: LastProblem::default(),
            reader,
            listeners: BTreeMap::new(),
            _lock: lock,
        })
    }

    /// Sets up the host as its services require.
    ///
    /// # Errors
    /// The first failure. All other parts are set up.
    pub(crate) async fn apply(&mut self, config: &Config, network: &Network) -> Result<(), AgentError> {
        self.listen(config)?;
        self.host_state.cookie_epoch_ms = config.farm.cookie_epoch_ms;
        if let Some(lccp_node) = self.lccp_node() {
            lccp_node.follow(config, network);
        }
        let listeners = self.listeners.iter().map(|(address, listener)| (*address, listener.port)).collect();
        let roles = desired::resident_roles(config, network, &listeners);
        let picked = network.pick_interfaces(&config.engine.interfaces, &config.services);
        let host = HostFacts {
            mark_key: self.mark_key,
            deciding: picked.unwrap_or_default().into_keys().collect(),
            ..place::host(Some(self.hook)).await
        };
        let sources: Vec<_> = config.tunnel_sources().into_iter().collect();
        let desired = desired::desired(&roles, &sources, network, &host).map_err(AgentError::Role)?;
        let done = self.host_state.apply(&desired, network).await;
        if let Some((lccp_node, connections)) = self.lccp_node().zip(self.host_state.connections()) {
            lccp_node.look_at(connections);
        }
        Ok(done?)
    }

    /// Opens a listener for every address of the handoff services.
    fn listen(&mut self, config: &Config) -> Result<(), AgentError> {
        let Some(reader) = &self.reader else { return Ok(()) };
        let addresses: BTreeSet<IpAddr> =
            config.handed_over().flat_map(|service| &service.addresses).map(|address| address.ip()).collect();
        self.listeners.retain(|address, _| addresses.contains(address));
        for address in addresses {
            if let Entry::Vacant(place) = self.listeners.entry(address) {
                let refused = HostError::of(format!("connections to {address} can't be read here"));
                place.insert(PuntListener::open(address, reader).map_err(refused)?);
            }
        }
        Ok(())
    }

    /// Sets the cookie keys by the time of day, in case the clock was set.
    pub(crate) fn renew_cookies(&mut self) {
        self.host_state.renew_cookies();
    }

    /// Returns the state for views.
    pub(crate) fn local(&self) -> LocalServerState {
        let reader = self.reader.as_ref();
        LocalServerState {
            outcomes: reader.map(|reader| Arc::clone(&reader.outcomes)),
            lccp_node: reader.map(|reader| reader.lccp_node.clone()),
            tally: self.host_state.server.as_ref().and_then(|server| server.tally().ok()).map(Arc::new),
        }
    }

    /// Starts the rehandoff of a connection.
    pub(crate) fn rehandoff(&self, moving: Rehandoff) {
        if let Some(reader) = &self.reader {
            tokio::spawn(rehandoff(moving, reader.clone()));
        }
    }

    /// Returns this host's LCCP node, if there are handoff services.
    pub(crate) fn lccp_node(&self) -> Option<&LccpNode> {
        self.reader.as_ref().map(|reader| &reader.lccp_node)
    }

    /// Like [`LocalServer::apply`], for periodic checks: interfaces and their settings may change.
    /// Logs each new problem once.
    pub(crate) async fn refresh(&mut self, config: &Config, network: &Network) {
        let trouble = self.apply(config, network).await.err().map(|error| error.to_string());
        self.trouble.log_once(trouble);
    }

    /// Removes the setup, unless `keep` is set.
    ///
    /// # Errors
    /// The first part that could not be removed.
    pub(crate) async fn leave(self, keep: bool, network: &Network) -> Result<(), AgentError> {
        Ok(self.host_state.leave(keep, &network_now(network.clone()).await).await?)
    }

    /// Like [`LocalServer::leave`], after a failed start: a setup that an earlier agent left stays.
    pub(crate) async fn abandon(self, network: &Network) {
        let adopted = self.adopted;
        if let Err(error) = self.leave(adopted, network).await {
            tracing::warn!(%error, "failed to restore this host's settings; run `evener doctor`");
        }
    }
}
