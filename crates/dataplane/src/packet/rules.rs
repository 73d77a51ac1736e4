//! Engine's nftables table: written and read back with nft(8), and watched over netlink.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use nix::sys::socket::{self, AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType};
use socket2::Socket;

/// Script that removes the table, also if the table does not exist.
pub(super) const REMOVE: &str = "add table netdev evener\ndelete table netdev evener\n";

/// Access to the nftables table. Tests replace the program nft.
pub(super) trait RuleSet {
    /// Runs an nft script as one transaction.
    fn write(&mut self, script: &str) -> io::Result<()>;
    /// Returns the kernel's table as nft prints it; `None` without a table, or if nft can't list
    /// it.
    fn list(&self) -> Option<String>;
    /// False if the table has certainly not changed since the last call.
    fn may_have_changed(&mut self) -> bool;
}

/// Access with the program nft and the kernel's change notifications.
#[derive(Debug, Default)]
pub(super) struct Nft {
    changes: Option<Changes>,
}

impl RuleSet for Nft {
    fn write(&mut self, script: &str) -> io::Result<()> {
        // Subscribes before the write, to miss no later change.
        self.changes.get_or_insert_with(Changes::listen);
        // After a failed write the next call reads the table again, with or without notifications.
        nft(script).inspect_err(|_| self.changes = None)
    }

    fn list(&self) -> Option<String> {
        list()
    }

    fn may_have_changed(&mut self) -> bool {
        match &mut self.changes {
            Some(changes) => changes.any(),
            None => {
                self.changes = Some(Changes::listen());
                true
            }
        }
    }
}

/// Runs an nft script as one transaction.
pub(super) fn nft(script: &str) -> io::Result<()> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("the program nft did not start: {error}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let first = stderr.lines().next().unwrap_or("no reason given");
    Err(io::Error::other(format!("nft: {first}")))
}

/// Returns the kernel's table as nft prints it; `None` without a table, or if nft can't list it.
pub(super) fn list() -> Option<String> {
    let listed = Command::new("nft").args(["list", "table", "netdev", "evener"]).output().ok()?;
    listed.status.success().then(|| String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// Counts of a table's parts, comparable between a script and nft's listing. Chains are compared by
/// name, which contains the digest of the rules. nft 1.0.6 omits hook devices in JSON, so the text
/// is parsed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TableShape {
    chains: Vec<String>,
    devices: usize,
    rules: usize,
    sets: usize,
    elements: usize,
}

impl TableShape {
    /// Counts the parts in an nft script or listing.
    pub(super) fn of(text: &str) -> TableShape {
        let mut shape = TableShape::default();
        for line in text.lines().map(str::trim) {
            if let Some(chain) = line.strip_prefix("chain ") {
                shape.chains.extend(chain.split_whitespace().next().map(str::to_owned));
            } else if line.starts_with("set ") {
                shape.sets += 1;
            } else if line.ends_with(" drop") {
                shape.rules += 1;
            } else if let Some((_, hook)) = line.split_once(" hook ingress device") {
                // Interface names contain no spaces.
                let devices = hook.split(" priority ").next().unwrap_or_default();
                shape.devices += 1 + devices.matches(", ").count();
            }
        }
        let lists = text.split("elements = {").skip(1).filter_map(|list| list.split('}').next());
        shape.elements = lists.map(|list| 1 + list.matches(',').count()).sum();
        shape
    }
}

/// Change notifications about nftables tables of family netdev.
#[derive(Debug)]
pub(super) struct Changes {
    /// `None` if the subscription failed; every check then reports a change.
    socket: Option<Socket>,
}

/// NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h, as a bit.
const GROUP: u32 = 1 << (7 - 1);
const NETDEV: u8 = 5;
/// Offset of the family in a message: first byte of `struct nfgenmsg`, behind `struct nlmsghdr`.
const FAMILY_AT: usize = 16;

impl Changes {
    pub(super) fn listen() -> Changes {
        let open = || -> io::Result<Socket> {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let protocol = SockProtocol::NetlinkNetFilter;
            let socket = socket::socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
            socket::bind(std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd()), &NetlinkAddr::new(0, GROUP))?;
            Ok(socket.into())
        };
        let socket = open().inspect_err(|error| tracing::debug!(%error, "failed to watch nftables"));
        Changes { socket: socket.ok() }
    }

    /// True if a table has changed since the last call.
    pub(super) fn any(&mut self) -> bool {
        let Some(socket) = &mut self.socket else { return true };
        let mut any = false;
        let mut message = [0; 8192];
        loop {
            match socket.read(&mut message) {
                Ok(len) => any |= message[..len].get(FAMILY_AT) == Some(&NETDEV),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return any,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The socket's buffer overflowed, so a notification may be lost.
                Err(_) => any = true,
            }
        }
    }
}
