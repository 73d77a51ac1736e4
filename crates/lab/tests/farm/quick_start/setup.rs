//! A quick start on the hosts of a farm: installs its file and runs its commands in order.

use anyhow::{Context, Result, bail, ensure};
use evener_lab::farm::Farm;
use evener_lab::harness::operator_shell::Shell;
use evener_lab::harness::process::Proc;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::host::Host;

use super::page::{Command, Place, QuickStart, Step};

/// Path of the file according to the page.
const FILE: &str = "/etc/evener/evener.toml";

/// A farm that is set up according to the page. Fields are dropped in order.
pub(crate) struct Setup {
    /// Commands that keep running.
    running: Vec<Proc>,
    shells: Vec<Shell>,
    /// Steps that apply to all quick starts.
    for_all: Vec<Step>,
    pub(crate) farm: Farm,
}

impl Setup {
    /// Runs a quick start. `by_hand` selects the manual alternatives.
    pub(crate) fn by_page(
        farm: Farm,
        for_all: &QuickStart,
        start: &QuickStart,
        by_hand: bool,
    ) -> Result<Setup> {
        let hosts =
            farm.directors().iter().chain(farm.servers()).chain(farm.clients()).chain([farm.router()]);
        let shells = hosts.map(Shell::open).collect::<Result<Vec<_>>>()?;
        let mut setup = Setup { running: Vec::new(), shells, for_all: for_all.steps.clone(), farm };
        for shell in &setup.shells {
            shell.write(FILE, start.file.as_bytes())?;
        }
        for step in &start.steps {
            let commands = if by_hand && !step.by_hand.is_empty() { &step.by_hand } else { &step.commands };
            setup.carry_out(commands)?;
        }
        let look: Vec<Command> = setup.of_all(|place| place != Place::BeforeUse);
        setup.carry_out(&look)?;
        Ok(setup)
    }

    fn of_all(&self, place: impl Fn(Place) -> bool) -> Vec<Command> {
        let commands = self.for_all.iter().flat_map(|step| step.commands.iter().chain(&step.by_hand));
        commands.filter(|command| place(command.place)).cloned().collect()
    }

    fn carry_out(&mut self, commands: &[Command]) -> Result<()> {
        for command in commands {
            for host in self.hosts(command.place)? {
                self.run(&host, command).with_context(|| format!("`{}` on {}", command.text, host.name()))?;
            }
        }
        Ok(())
    }

    fn hosts(&self, place: Place) -> Result<Vec<Host>> {
        let servers = self.farm.servers();
        // Without a director, all hosts act as directors.
        let directors = if self.farm.directors().is_empty() { servers } else { self.farm.directors() };
        let hosts = match place {
            Place::Director => directors,
            Place::Servers => servers,
            Place::OneHost => &servers[..1],
            Place::Router => std::slice::from_ref(self.farm.router()),
            Place::Client => &self.farm.clients()[..1],
            Place::Server(address) => {
                let list = ["ip", "-oneline", "address", "show", "to", &address.to_string()];
                let has = |host: &&Host| host.run(&list).is_ok_and(|found| !found.is_empty());
                std::slice::from_ref(
                    servers.iter().find(has).with_context(|| format!("no server is {address}"))?,
                )
            }
            Place::BeforeUse => bail!("what is done before use is at the head of the page, for all"),
        };
        Ok(hosts.to_vec())
    }

    fn shell(&self, host: &Host) -> Result<&Shell> {
        let found = self.shells.iter().find(|shell| shell.host().name() == host.name());
        found.with_context(|| format!("{} has no shell", host.name()))
    }

    fn run(&mut self, host: &Host, command: &Command) -> Result<()> {
        let text = command.text.trim_end_matches(" &");
        let shell = self.shell(host)?;
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["evener", role @ ("run" | "agent"), ..] => {
                for check in self.of_all(|place| place == Place::BeforeUse) {
                    shell.run(&check.text)?;
                }
                let mut process = shell.spawn(role, text)?;
                process.wait_for("evener: ready", LONG)?;
                self.running.push(process);
            }
            ["evener", "keygen", key] => {
                shell.run(text)?;
                // The page describes in words that the key is copied to all hosts.
                let secret = std::fs::read(shell.file(key))?;
                self.shells.iter().try_for_each(|shell| shell.write(key, &secret))?;
            }
            _ if command.shown.is_empty() => {
                shell.run(text)?;
            }
            _ => {
                let wanted = shape(&command.shown.join("\n"));
                let found = wait::for_value(LONG, || shell.run(text), |output| shape(output) == wanted)?;
                let output = found.unwrap_or_else(|other| other);
                ensure!(shape(&output) == wanted, "it printed:\n{output}\nand the page shows:\n{wanted:?}");
            }
        }
        Ok(())
    }

    /// Waits until each server has answered a request of the client.
    pub(crate) fn wait_for_answers(&self, url: &str) -> Result<()> {
        let mut missing: Vec<&str> = self.farm.servers().iter().map(Host::name).collect();
        wait::until(&format!("each server answers at {url}"), || {
            let who = self.who(url);
            missing.retain(|name| who.as_ref().is_ok_and(|who| who != name));
            Ok(missing.is_empty())
        })
    }

    /// Returns the name of the server that answers the client.
    pub(crate) fn who(&self, url: &str) -> Result<String> {
        Ok(self.farm.client(0).curl(&["--insecure", "--location", url])?.trim().to_owned())
    }
}

/// Returns the constant words of output lines. Numbers and column widths vary.
fn shape(output: &str) -> Vec<String> {
    let number = |word: &str| {
        let mut shape = word.replace(|c: char| c.is_ascii_digit(), "#");
        while shape.contains("##") {
            shape = shape.replace("##", "#");
        }
        shape
    };
    let line = |line: &str| line.split_whitespace().map(number).collect::<Vec<_>>().join(" ");
    output.lines().map(line).collect()
}
