//! Where the director asks for reports: a socket for that alone, unless the agent listens there for others, too.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evener_core::net::http::Url;
use rustls::ServerConfig;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::wanted::Wanted;
use crate::agent::load::queries::{Queries, serve};
use crate::config::{AgentListen, LOAD_PORT};
use crate::runtime::tls::{self, TlsError};

/// Such a place.
pub(super) struct Control {
    /// As the file names it.
    named: Option<Url>,
    queries: Arc<Queries>,
    /// Where the agent answers anyway.
    listen: Option<AgentListen>,
    tls: Option<Arc<ServerConfig>>,
    /// What is open now.
    open: Option<(SocketAddr, JoinHandle<()>)>,
}

impl Control {
    /// None is open yet.
    ///
    /// # Errors
    /// When the member's certificate can't be had.
    pub(super) fn new(
        wanted: &Wanted,
        queries: Arc<Queries>,
        listen: Option<AgentListen>,
    ) -> Result<Control, TlsError> {
        let named = wanted.settings.control.clone();
        let is_plain = named.as_ref().is_some_and(|url| !url.is_secure());
        let own = wanted.settings.tls.as_ref().filter(|_| !is_plain);
        let tls = own.map(|own| tls::server(&own.certificate, &own.key, None)).transpose()?;
        Ok(Control { named, queries, listen, tls, open: None })
    }

    /// Listens where it is asked by a director that reaches this host at an address, and says where that is.
    pub(super) fn at(&mut self, own: IpAddr) -> Option<Url> {
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
            let tls = self.tls.clone().map(TlsAcceptor::from);
            self.open = Some((at, tokio::spawn(serve(at, Arc::clone(&self.queries), tls))));
        }
        let scheme = if self.tls.is_some() && !is_shared { "https" } else { "http" };
        self.named.clone().or_else(|| Url::parse(&format!("{scheme}://{at}")).ok())
    }

    fn close(&mut self) {
        if let Some((_, task)) = self.open.take() {
            task.abort();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.close();
    }
}
