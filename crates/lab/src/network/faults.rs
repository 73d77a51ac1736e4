//! Faults of a host or its links, and counters of its traffic.

use std::path::Path;

use anyhow::{Context, Result};

use crate::farm::WEB_PORT;
use crate::network::host::{Host, Interface};

/// Traffic on a host's links in bytes and packets, from the host's view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// Bytes that the host received.
    pub received_bytes: u64,
    /// Packets that the host received.
    pub received_packets: u64,
    /// Bytes that the host sent.
    pub sent_bytes: u64,
    /// Packets that the host sent.
    pub sent_packets: u64,
}

impl Traffic {
    /// Returns the traffic since `before`.
    pub fn since(&self, before: &Traffic) -> Traffic {
        Traffic {
            received_bytes: self.received_bytes - before.received_bytes,
            received_packets: self.received_packets - before.received_packets,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            sent_packets: self.sent_packets - before.sent_packets,
        }
    }
}

/// Faults are injected in the switch: between sender and receiver, like real faults, and before any
/// program on the receiver's interface.
impl Host {
    /// Disconnects the host's links from the switch.
    pub fn unplug(&self) -> Result<()> {
        self.set_ports("down")
    }

    /// Connects the links again.
    pub fn plug(&self) -> Result<()> {
        self.set_ports("up")
    }

    fn set_ports(&self, state: &str) -> Result<()> {
        let lines: Vec<_> =
            self.interfaces.iter().map(|each| format!("link set {} {state}", each.port)).collect();
        self.switch.ip(&lines)
    }

    /// Drops this percentage of the packets to this host; 0 drops none.
    ///
    /// The packets are dropped while they are forwarded. A drop on output is reported to the
    /// sender, which would send the packet again.
    pub fn lose(&self, percent: u8) -> Result<()> {
        let rule = |percent| format!("oifname {} numgen random mod 100 <= {percent} drop", ports(&[self]));
        let rules: Vec<String> = percent.min(100).checked_sub(1).map(rule).into_iter().collect();
        self.drop_in_switch("loss", &rules)
    }

    /// Partitions this host's network: packets between `these` hosts, which include this one, and
    /// `those` are dropped. An empty list ends the partition.
    pub fn split(&self, these: &[&Host], those: &[&Host]) -> Result<()> {
        let rule =
            |from: &[&Host], to: &[&Host]| format!("iifname {} oifname {} drop", ports(from), ports(to));
        let rules = [rule(these, those), rule(those, these)];
        self.drop_in_switch("split", if these.is_empty() || those.is_empty() { &[] } else { &rules })
    }

    /// Drops all UDP datagrams to this host and port, or stops dropping them.
    pub fn deafen(&self, port: u16, deaf: bool) -> Result<()> {
        let rules = ["ip", "ip6"]
            .map(|family| format!("oifname {} ether type {family} udp dport {port} drop", ports(&[self])));
        self.drop_in_switch("deaf", if deaf { &rules } else { &[] })
    }

    /// Replaces the switch's drop rules of this name.
    fn drop_in_switch(&self, name: &str, rules: &[String]) -> Result<()> {
        let table = format!("{}_{name}", self.name);
        let mut text = format!("table bridge {table}\ndelete table bridge {table}\n");
        if !rules.is_empty() {
            text += &format!(
                "table bridge {table} {{\n chain forwarded {{\n  type filter hook forward priority 0\n  {}\n }}\n}}\n",
                rules.join("\n  "),
            );
        }
        let file = self.write(&format!("{name}.nft"), &text)?;
        self.in_switch(&["nft", "-f", &file.to_string_lossy()])
    }

    /// Limits the rate of each interface of this host, in megabits per second; `None` removes the
    /// limit.
    pub fn limit(&self, megabits: Option<u32>) -> Result<()> {
        self.interfaces.iter().try_for_each(|Interface { name, .. }| {
            match megabits {
                Some(rate) => {
                    let rate = format!("{rate}mbit");
                    let words = ["tc", "qdisc", "replace", "dev", name, "root", "tbf"];
                    self.run(&[&words[..], &["rate", &rate, "burst", "64k", "latency", "50ms"]].concat())
                }
                None => self.run(&["tc", "qdisc", "delete", "dev", name, "root"]),
            }
            .map(|_| ())
        })
    }

    /// Limits the rate of a web server's replies, in megabits per second. Packets that the host
    /// forwards are not limited.
    pub fn limit_replies(&self, megabits: u32) -> Result<()> {
        self.interfaces.iter().try_for_each(|Interface { name, .. }| {
            let replies = format!("rate {megabits}mbit burst 64k cburst 64k");
            let lines = [
                format!("qdisc replace dev {name} root handle 1: htb default 2"),
                format!("class add dev {name} parent 1: classid 1:1 htb {replies}"),
                format!("class add dev {name} parent 1: classid 1:2 htb rate 10gbit burst 1m quantum 60000"),
                format!(
                    "filter add dev {name} parent 1: protocol ip u32 match ip sport {WEB_PORT} 0xffff flowid 1:1"
                ),
            ];
            lines.iter().try_for_each(|line| {
                let words: Vec<&str> = std::iter::once("tc").chain(line.split(' ')).collect();
                self.run(&words).map(drop)
            })
        })
    }

    /// Returns the traffic on the host's links so far, counted in the switch, where no program of
    /// the host can hide packets.
    pub fn traffic(&self) -> Result<Traffic> {
        self.switch.enter(|| {
            let mut sum = Traffic::default();
            // not /proc/net, which shows the namespace of the process instead of this thread's
            let table = std::fs::read_to_string(Path::new("/proc/thread-self/net/dev"))?;
            for port in self.interfaces.iter().map(|each| each.port.as_str()) {
                let counters =
                    counters_of(&table, port).with_context(|| format!("The switch has no port {port}"))?;
                // the switch receives packets that the host has sent
                sum.sent_bytes += counters.received_bytes;
                sum.sent_packets += counters.received_packets;
                sum.received_bytes += counters.sent_bytes;
                sum.received_packets += counters.sent_packets;
            }
            Ok(sum)
        })?
    }

    /// Runs a program in the switch.
    pub(super) fn in_switch(&self, words: &[&str]) -> Result<()> {
        let switch = Host { name: "switch".to_owned(), netns: self.switch.clone(), ..self.clone() };
        switch.run(words).map(|_| ())
    }
}

/// Returns the switch's ports of these hosts, as a set of nft(8).
fn ports(hosts: &[&Host]) -> String {
    let ports = hosts.iter().flat_map(|host| &host.interfaces);
    let ports: Vec<_> = ports.map(|each| format!("\"{}\"", each.port)).collect();
    format!("{{ {} }}", ports.join(", "))
}

/// Returns an interface's counters from the kernel's table `net/dev` (proc_pid_net(5)).
fn counters_of(table: &str, interface: &str) -> Option<Traffic> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(Traffic {
        received_bytes: *numbers.first()?,
        received_packets: *numbers.get(1)?,
        sent_bytes: *numbers.get(8)?,
        sent_packets: *numbers.get(9)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let table = "Inter-|   Receive\n face |bytes\n  web1-0: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n";
        let traffic = Traffic { received_bytes: 1, received_packets: 2, sent_bytes: 3, sent_packets: 4 };
        assert_eq!(counters_of(table, "web1-0"), Some(traffic));
        assert_eq!(counters_of(table, "web1"), None);
    }
}
