//! Listener for a group director's load queries, unless the agent's own listener has the same
//! address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evener_core::net::http::Url;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::wanted::MembershipConfig;
use crate::agent::load::queries::{QueryAccess, serve};
use crate::config::{AgentListen, LOAD_PORT, Tls};
use crate::runtime::tls::{self, TlsError};

/// Address for load queries.
pub(super) struct ControlAddress {
    /// URL in the file.
    named: Option<Url>,
    queries: Arc<QueryAccess>,
    /// Address of the agent's own listener.
    listen: Option<AgentListen>,
    /// TLS identity of the member.
    tls: Option<Tls>,
    open: Option<(SocketAddr, JoinHandle<()>)>,
}

impl ControlAddress {
    /// Creates the address without a listener.
    pub(super) fn new(wanted: &MembershipConfig, queries: Arc<QueryAccess>) -> ControlAddress {
        let named = wanted.settings.control.clone();
        let is_plain = named.as_ref().is_some_and(|url| !url.is_secure());
        let tls = wanted.settings.tls.clone().filter(|_| !is_plain);
        ControlAddress { named, queries, listen: wanted.listen, tls, open: None }
    }

    /// Listens for queries of a director that reaches this host at the address `own`. Returns the
    /// URL.
    ///
    /// # Errors
    /// If the member's certificate can't be used.
    pub(super) fn at(&mut self, own: IpAddr) -> Result<Option<Url>, TlsError> {
        let address = self.named.as_ref().and_then(Url::address).unwrap_or(own);
        let at = SocketAddr::new(address, self.named.as_ref().map_or(LOAD_PORT, Url::port));
        let is_shared = match self.listen {
            Some(AgentListen::Everywhere { port }) => port == at.port(),
            Some(AgentListen::At(listen)) => {
                listen.port() == at.port() && (listen.ip() == at.ip() || listen.ip().is_unspecified())
            }
            None => false,
        };
        if is_shared {
            self.close();
        } else if self.open.as_ref().is_none_or(|(open, _)| *open != at) {
            self.close();
            let own = self.tls.as_ref();
            let tls = own.map(|own| tls::server(&own.certificate, &own.key, None)).transpose()?;
            // Another group's director may use the same address.
            if self.queries.open(at) {
                let serving = serve(at, Arc::clone(&self.queries), tls.map(TlsAcceptor::from));
                self.open = Some((at, tokio::spawn(serving)));
            }
        }
        let scheme = if self.tls.is_some() && !is_shared { "https" } else { "http" };
        Ok(self.named.clone().or_else(|| Url::parse(&format!("{scheme}://{at}")).ok()))
    }

    fn close(&mut self) {
        if let Some((at, task)) = self.open.take() {
            task.abort();
            self.queries.closed(at);
        }
    }
}

impl Drop for ControlAddress {
    fn drop(&mut self) {
        self.close();
    }
}
