//! The agent on a server: `evener agent`.

use anyhow::{Context, Result};

use super::{LIMIT, program};
use crate::harness::process::Proc;
use crate::network::host::Host;
use crate::unit_files;

/// Running agent. Dropping the value stops it.
#[derive(Debug)]
pub struct Agent {
    host: Host,
    words: Vec<String>,
    agent: Proc,
}

impl Agent {
    /// Starts the agent with the farm's configuration and waits until it is ready.
    pub fn start(host: &Host, config: &str) -> Result<Agent> {
        Self::start_by(host, config, &[])
    }

    /// Starts the agent with options such as `--service NAME`.
    pub fn start_by(host: &Host, config: &str, options: &[&str]) -> Result<Agent> {
        let program = program()?.to_string_lossy().into_owned();
        let path = host.write("agent.toml", config)?.to_string_lossy().into_owned();
        let words = [&[program.as_str(), "agent", "--config", &path], options].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let agent = run(host, &words)?;
        Ok(Agent { host: host.clone(), words, agent })
    }

    /// Starts the agent with the words of a program that starts it.
    pub fn start_behind(host: &Host, config: &str, before: &[&str]) -> Result<Agent> {
        let program = program()?.to_string_lossy().into_owned();
        let path = host.write("agent.toml", config)?.to_string_lossy().into_owned();
        let words = [before, &[&program, "agent", "--config", &path]].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let agent = run(host, &words)?;
        Ok(Agent { host: host.clone(), words, agent })
    }

    /// Starts the agent with the restrictions of the shipped unit.
    pub fn start_in_unit(host: &Host, config: &str) -> Result<Agent> {
        let path = host.write("agent.toml", config)?;
        let words = unit_files::words("evener-agent.service", &program()?.to_string_lossy(), &path)?;
        let agent = run(host, &words)?;
        Ok(Agent { host: host.clone(), words, agent })
    }

    /// Starts agents on several servers.
    pub fn start_all(hosts: &[Host], config: &str) -> Result<Vec<Agent>> {
        hosts
            .iter()
            .map(|host| {
                Agent::start(host, config).with_context(|| format!("The agent on {} failed", host.name()))
            })
            .collect()
    }

    pub fn process(&mut self) -> &mut Proc {
        &mut self.agent
    }

    /// Starts an agent that has ended again, in the same way.
    pub fn start_again(&mut self) -> Result<()> {
        self.agent = run(&self.host, &self.words)?;
        Ok(())
    }

    /// Stops the agent like an operator. Returns the exit code.
    pub fn stop(&mut self) -> Result<i32> {
        self.agent.sigterm(LIMIT)
    }
}

fn run(host: &Host, words: &[String]) -> Result<Proc> {
    let mut agent = host.spawn("agent", words)?;
    agent.wait_for("evener: ready", LIMIT)?;
    Ok(agent)
}
