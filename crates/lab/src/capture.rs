//! The packets on a wire, by tcpdump(1).

use std::time::Duration;

use anyhow::Result;

use crate::host::Host;
use crate::lan::Lan;
use crate::proc::Proc;
use crate::wait::LONG;

/// A capture that runs; dropping it ends it.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Proc,
}

impl Host {
    /// Captures what comes and goes at one of the host's interfaces, as the switch sees it: what a
    /// program at the interface takes away or puts there is in it, too. `filter` is tcpdump's, and
    /// may be empty.
    pub fn capture(&self, interface: usize, filter: &str) -> Result<Capture> {
        self.capture_in_switch(&self.interfaces[interface].port, filter)
    }

    /// Captures all frames of the network that the interface is in, each once, however many hosts
    /// get it.
    pub fn capture_network(&self, interface: usize, filter: &str) -> Result<Capture> {
        self.capture_in_switch(&Lan::of(self.interfaces[interface].address).bridge(), filter)
    }

    /// Captures what the host's own stack is given at one of its interfaces, as often as it is.
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
    /// The packets so far, one to a line, link-layer addresses first.
    pub fn lines(&self) -> Vec<String> {
        self.tcpdump.log().lines().filter(|line| line.contains(" > ")).map(str::to_owned).collect()
    }

    /// Waits for what is on its way, and ends the capture; its packets, as [`Capture::lines`].
    pub fn stop(mut self) -> Result<Vec<String>> {
        std::thread::sleep(Duration::from_millis(50));
        self.tcpdump.sigterm(Duration::from_secs(2))?;
        Ok(self.lines())
    }
}
