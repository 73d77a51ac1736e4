//! The network around this host, as its kernel knows it.

pub mod path_mtu;
mod read;
mod resolve;
mod watch;

use evener_core::farm::network::PickError;
use nix::net::if_::if_indextoname;

pub use evener_core::farm::network::{Interface, KernelRoute, Network, NextHop};
pub use read::{interfaces, read};
pub use resolve::resolve;
pub use watch::watch;

use crate::runtime::spelling::nearest;

/// Returns the current name of an interface. `?` if it is gone.
pub(crate) fn interface_name(ifindex: u32) -> String {
    if_indextoname(ifindex).map_or_else(|_| "?".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Error in the network that the farm needs.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The kernel did not answer.
    #[error("failed to read {what} from the kernel: {source}")]
    Netlink {
        /// Object of the query.
        what: &'static str,
        /// Error from the kernel.
        source: rtnetlink::Error,
    },
    /// A netlink socket can't be opened.
    #[error("failed to open a netlink socket for reading the network configuration: {0}")]
    Socket(#[from] std::io::Error),
    /// No interface is suitable.
    #[error("{}", sentence(.0))]
    Pick(#[from] PickError),
}

/// Formats the error, with a suggestion for a misspelt name.
fn sentence(error: &PickError) -> String {
    match error {
        PickError::NoSuchInterface { name, known } => match nearest(name, known.iter().map(String::as_str)) {
            Some(meant) => format!("there is no interface {name:?} here: did you mean {meant:?}?"),
            None => error.to_string(),
        },
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_interface_is_guessed() {
        let reason = |name: &str| {
            let known = ["eth0", "eth1"].map(str::to_owned).to_vec();
            NetworkError::from(PickError::NoSuchInterface { name: name.to_owned(), known }).to_string()
        };
        assert_eq!(reason("eht0"), "there is no interface \"eht0\" here: did you mean \"eth0\"?");
        assert_eq!(reason("uplink"), "there is no interface \"uplink\" on this host; it has eth0, eth1");
    }
}
