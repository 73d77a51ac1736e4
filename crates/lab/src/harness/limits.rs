//! Limits of this process and its network namespace for many clients.

use std::fs;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Number of files that are open beside the clients' connections.
const FILES_BESIDE: u64 = 200;

/// Raises the limit of open files for a number of clients, each with one connection at a time.
pub fn allow_clients(clients: usize) -> Result<()> {
    let needed = clients as u64 + FILES_BESIDE;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < needed {
        bail!(
            "{clients} clients need {needed} open files, and this process may have {hard}: see `ulimit -Hn`"
        );
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), hard)?;
    Ok(())
}

/// Checks that the caller's network namespace has a port for each of these clients.
pub fn check_ports(clients: usize) -> Result<()> {
    const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
    let text = fs::read_to_string(RANGE).with_context(|| format!("Reading {RANGE} failed"))?;
    let mut ports = text.split_whitespace().map_while(|port| port.parse::<usize>().ok());
    let (first, last) = (ports.next().unwrap_or_default(), ports.next().unwrap_or_default());
    let ports = (last + 1).saturating_sub(first);
    if ports < clients {
        bail!("{clients} clients need as many ports, and net.ipv4.ip_local_port_range has {ports}");
    }
    Ok(())
}
