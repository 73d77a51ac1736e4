//! Keeps the host's own stack from what the engine handles. AF_PACKET only copies: the stack would answer
//! the same packets with resets, or forward them a second time.
//!
//! With CAP_NET_ADMIN, an nftables table drops them at the interface, behind the point where packet sockets
//! take their copy. Without it, the host must be one whose stack drops them silently: one that
//! neither has a service address nor forwards.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};

use evener_core::tables::Tables;
use nix::net::if_::if_indextoname;

use crate::EngineError;

/// How the host's stack is kept out.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// The rules in force; `None` while there are none of this process.
    rules: Option<String>,
    /// For people.
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    None,
    Rules,
    Silent,
}

impl Guard {
    /// Keeps the stack from the packets of these tables, in the place of what an earlier call or a killed
    /// daemon set up.
    pub(super) fn apply(&mut self, tables: &Tables) -> Result<(), EngineError> {
        let interfaces = names(tables)?;
        let rules = rules(tables, &interfaces);
        if self.rules.as_ref() == Some(&rules) {
            return Ok(());
        }
        self.state = match nft(&rules) {
            Ok(()) => State::Rules,
            Err(error) => {
                stays_silent(tables, &interfaces, &error)?;
                tracing::info!(%error, "no guard set up: this host's stack ignores the services' packets anyway");
                State::Silent
            }
        };
        self.rules = Some(rules);
        Ok(())
    }

    /// Takes the rules back.
    pub(super) fn remove(&mut self) -> Result<(), EngineError> {
        if self.state == State::Rules {
            nft(REMOVE).map_err(|error| {
                EngineError::system("removing the guard with nft", "CAP_NET_ADMIN", error)
            })?;
        }
        *self = Guard::default();
        Ok(())
    }

    /// For people.
    pub(super) fn describe(&self) -> &'static str {
        match self.state {
            State::None => "no guard yet",
            State::Rules => "guarded by nftables",
            State::Silent => "no guard needed",
        }
    }
}

/// Removes the guard of an engine that is gone: under another engine it would drop what that one passes.
pub(super) fn remove_stale() {
    if let Err(error) = nft(REMOVE) {
        tracing::debug!(%error, "no guard to remove, or no right to");
    }
}

/// Works whether there is such a table or not.
const REMOVE: &str = "add table netdev evener\ndelete table netdev evener\n";

fn names(tables: &Tables) -> Result<Vec<String>, EngineError> {
    let name = |ifindex: &u32| {
        let refuse =
            |why: &str| EngineError::Interface { interface: format!("number {ifindex}"), why: why.into() };
        let name = if_indextoname(*ifindex).map_err(|_| refuse("it is gone"))?;
        match name.into_string() {
            Ok(name) if !name.contains('"') => Ok(name),
            _ => Err(refuse("its name is not text that nft understands; rename it")),
        }
    };
    tables.interfaces.keys().map(name).collect()
}

/// What nft is to carry out, in one transaction.
fn rules(tables: &Tables, interfaces: &[String]) -> String {
    let mut text = REMOVE.to_owned();
    if tables.vips.is_empty() || interfaces.is_empty() {
        return text;
    }
    let services: Vec<String> =
        tables.vips.keys().map(|vip| format!("{} . {} . {}", vip.address, vip.protocol, vip.port)).collect();
    let addresses: BTreeSet<Ipv4Addr> = tables.vips.keys().map(|vip| vip.address).collect();
    let addresses: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
    let devices: Vec<String> = interfaces.iter().map(|name| format!("\"{name}\"")).collect();
    // The first rule leaves VLAN-tagged frames alone, as the engine does. Fragments carry no port, and IP
    // options are refused: both belong to the address. Writing to a String does not fail.
    let _ = write!(
        text,
        "table netdev evener {{
    set services {{ type ipv4_addr . inet_proto . inet_service; elements = {{ {services} }}; }}
    set addresses {{ type ipv4_addr; elements = {{ {addresses} }}; }}
    chain guard {{
        type filter hook ingress devices = {{ {devices} }} priority -500; policy accept;
        ether type != ip accept
        ip daddr . ip protocol . th dport @services drop
        ip daddr @addresses ip protocol {{ tcp, udp }} ip frag-off & 0x3fff != 0 drop
        ip daddr @addresses ip protocol {{ tcp, udp }} ip hdrlength > 5 drop
    }}
}}
",
        services = services.join(", "),
        addresses = addresses.join(", "),
        devices = devices.join(", "),
    );
    text
}

fn nft(script: &str) -> io::Result<()> {
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
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or("no reason given");
    Err(io::Error::other(format!("nft: {first}")))
}

/// Whether the stack ignores packets for the service addresses without being told to.
fn stays_silent(tables: &Tables, interfaces: &[String], nft: &io::Error) -> Result<(), EngineError> {
    let remedy = "grant CAP_NET_ADMIN and install nft, so that the packet engine can keep it out";
    if let Some(vip) = tables.vips.keys().find(|vip| is_local(vip.address)) {
        return Err(EngineError::Host(format!(
            "This host has the service address {} itself, so its own stack would answer beside the engine: \
             remove the address, or {remedy} ({nft}).",
            vip.address
        )));
    }
    if let Some(name) = interfaces.iter().find(|name| forwards(name)) {
        return Err(EngineError::Host(format!(
            "This host forwards what comes in on {name}, so its own stack would send packets of services on \
             beside the engine: set net.ipv4.conf.{name}.forwarding=0, or {remedy} ({nft})."
        )));
    }
    Ok(())
}

/// Whether the address is this host's: only then may a socket have it.
fn is_local(address: Ipv4Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn forwards(interface: &str) -> bool {
    let setting = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{interface}/forwarding"));
    // An unreadable setting must not pass for a safe one.
    setting.map_or(true, |value| value.trim() != "0")
}
