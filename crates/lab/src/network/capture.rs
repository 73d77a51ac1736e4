//! Captures packets with tcpdump(1).

use std::time::Duration;

use anyhow::Result;

use crate::harness::process::Proc;
use crate::harness::wait::LONG;
use crate::network::host::Host;
use crate::network::lan::Lan;

/// Running capture; dropping the value stops it.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Proc,
}

impl Host {
    /// Captures the packets at an interface of the host, from the switch's end of the cable: before
    /// programs at the interface change them. `filter` is a tcpdump filter and may be empty.
    pub fn capture(&self, interface: usize, filter: &str) -> Result<Capture> {
        self.capture_in_switch(&self.interfaces[interface].port, filter)
    }

    /// Captures all frames of the interface's network, each once, however many hosts receive it.
    pub fn capture_network(&self, interface: usize, filter: &str) -> Result<Capture> {
        self.capture_in_switch(&Lan::of(self.interfaces[interface].address).bridge(), filter)
    }

    /// Captures the packets that the host's own stack receives at an interface, with duplicates.
    pub fn capture_inside(&self, interface: usize, filter: &str) -> Result<Capture> {
        self.capture_at(&format!("eth{interface}"), filter)
    }

    fn capture_in_switch(&self, port: &str, filter: &str) -> Result<Capture> {
        let switch = Host { name: format!("switch.{port}"), netns: self.switch.clone(), ..self.clone() };
        switch.capture_at(port, filter)
    }

    fn capture_at(&self, port: &str, filter: &str) -> Result<Capture> {
        let mut words = vec!["tcpdump", "-l", "-n", "-e", "-t", "--immediate-mode", "-i", port];
        words.extend(filter.split_whitespace());
        let mut tcpdump = self.spawn("tcpdump", &words)?;
        tcpdump.wait_for("listening on", LONG)?;
        Ok(Capture { tcpdump })
    }
}

impl Capture {
    /// Packets so far, one per line, with link-layer addresses first.
    pub fn lines(&self) -> Vec<String> {
        self.tcpdump.log().lines().filter(|line| line.contains(" > ")).map(str::to_owned).collect()
    }

    /// Waits for packets in transit, stops the capture and returns its packets like
    /// [`Capture::lines`].
    pub fn stop(mut self) -> Result<Vec<String>> {
        std::thread::sleep(Duration::from_millis(50));
        self.tcpdump.sigterm(Duration::from_secs(2))?;
        Ok(self.lines())
    }
}
