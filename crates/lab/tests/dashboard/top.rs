//! `evener top` in a tmux terminal, as over ssh.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use evener_lab::evener::{self, Evener, web_service};
use evener_lab::farm::Farm;
use evener_lab::harness::process::Proc;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::host::Host;
use evener_lab::workloads::load::Load;

/// A tmux server on a host. Dropping this value ends its terminals.
struct Tmux {
    host: Host,
    socket: PathBuf,
    _server: Proc,
}

impl Tmux {
    fn start(host: &Host) -> Result<Tmux> {
        let socket = host.file("tmux");
        let path = socket.display().to_string();
        // Excludes the machine's own configuration and locale.
        let server =
            ["env", "LC_ALL=C.UTF-8", "TERM=xterm-256color", "tmux", "-f/dev/null", "-S", &path, "-D"];
        let server = host.spawn("tmux", &server)?;
        wait::until("tmux is there", || Ok(socket.exists()))?;
        Ok(Tmux { host: host.clone(), socket, _server: server })
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        let socket = self.socket.display().to_string();
        self.host.run(&[&["tmux", "-u", "-S", socket.as_str()], words].concat())
    }

    /// Starts `evener top` in a terminal of this size.
    fn open(&self, name: &str, (columns, lines): (u16, u16), language: &str) -> Result<()> {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let top = format!("LC_ALL={language} {} top --interval 200ms", evener::program()?.display());
        self.run(&["new-session", "-d", "-s", name, "-x", &columns, "-y", &lines, &top]).map(drop)
    }

    fn press(&self, name: &str, keys: &[&str]) -> Result<()> {
        self.run(&[&["send-keys", "-t", name], keys].concat()).map(drop)
    }

    fn screen(&self, name: &str) -> Result<String> {
        self.run(&["capture-pane", "-p", "-t", name])
    }

    /// Waits until a terminal shows all of these texts.
    fn wait_for(&self, name: &str, texts: &[&str]) -> Result<String> {
        let shows = |screen: &String| texts.iter().all(|text| screen.contains(text));
        match wait::for_value(LONG, || self.screen(name), shows)? {
            Ok(screen) => Ok(screen),
            Err(screen) => bail!("the terminal does not show {texts:?}, but\n{screen}"),
        }
    }
}

/// Returns the names of servers from top to bottom.
fn order(screen: &str) -> Vec<&str> {
    screen
        .lines()
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with("web") && *word != "web")
        .collect()
}

#[test]
fn top_sorts_filters_and_drains_in_a_terminal_of_80_columns() -> Result<()> {
    let mut farm = Farm::builder().servers(3).clients(1).build()?;
    let mut evener = Evener::start(farm.director(), &web_service(&farm, 0, "auto"))?;
    evener.wait_for_servers(3, LONG)?;
    let pause = Duration::from_millis(20);
    let load = Load { connections: 2, pause, ..Load::to(farm.service()) }.start_on(farm.client(0));
    let tmux = Tmux::start(farm.director())?;
    tmux.open("wide", (80, 24), "C.UTF-8")?;
    let screen = tmux.wait_for("wide", &["web1", "web2", "web3"])?;
    ensure!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert_eq!(order(&screen)[..3], ["web1", "web2", "web3"]);
    tmux.press("wide", &["r"])?;
    wait::until("the order is reversed", || Ok(order(&tmux.screen("wide")?).first() == Some(&"web3")))?;
    tmux.press("wide", &["/", "web2", "Enter"])?;
    wait::until("one server is shown", || {
        let screen = tmux.screen("wide")?;
        Ok(screen.contains("web2") && !screen.contains("web1") && !screen.contains("web3"))
    })?;
    // Ctrl-D must not act as `d`.
    tmux.press("wide", &["C-d", "d"])?;
    tmux.wait_for("wide", &["drain web/web2"])?;
    assert_eq!(evener.server("web2")?.state, "up", "nothing is changed before it is confirmed");
    tmux.press("wide", &["y"])?;
    tmux.wait_for("wide", &["draining"])?;
    assert_eq!(evener.server("web2")?.state, "draining");
    farm.stop_web(2)?;
    tmux.press("wide", &["/", "C-u", "Enter"])?;
    tmux.wait_for("wide", &["web1", "down"])?;

    // A terminal without UTF-8, and a terminal that is too small.
    tmux.open("ascii", (100, 20), "C")?;
    let screen = tmux.wait_for("ascii", &["web1", "web3"])?;
    ensure!(screen.is_ascii(), "{screen}");
    tmux.open("small", (20, 5), "C.UTF-8")?;
    tmux.wait_for("small", &["40"])?;

    evener.daemon().kill9()?;
    tmux.wait_for("wide", &["evener"])?;
    wait::until("top says that the daemon is gone", || {
        let screen = tmux.screen("wide")?;
        Ok(screen.contains("no daemon") || screen.contains("can't be reached") || screen.contains("refused"))
    })?;
    evener.start_again()?;
    tmux.wait_for("wide", &["web1", "web3"])?;
    tmux.press("wide", &["q"])?;
    wait::until("top has ended", || Ok(!tmux.run(&["list-sessions", "-F", "#S"])?.contains("wide")))?;
    load.stop().map(drop)
}
