//! Where a daemon keeps what its command line and its successor must find: one folder per network
//! namespace, so that instances in different ones never meet.

use std::io;
use std::path::PathBuf;

use evener_dataplane::xdp::pins::network_namespace;

/// The folder of this network namespace.
///
/// # Errors
/// When /proc is not there.
pub fn directory() -> io::Result<PathBuf> {
    // EVENER_RUN_DIR is for programs without the right to write to /run, as in a user namespace.
    let root = std::env::var_os("EVENER_RUN_DIR").map_or_else(|| PathBuf::from("/run/evener"), PathBuf::from);
    Ok(root.join(format!("net-{}", network_namespace()?)))
}

/// The socket that the command line talks to.
///
/// # Errors
/// When /proc is not there.
pub fn admin_socket() -> io::Result<PathBuf> {
    Ok(directory()?.join("admin.sock"))
}
