//! The demonstration's farm under load, for interactive use.

use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};

use super::{Audience, FOUND_WITHIN, SERVERS, Stage};
use crate::evener::{self, Evener};
use crate::farm::Farm;
use crate::network::host::Host;

/// Admin address, of the daemon in its network namespace and of the relay outside.
const ADMIN: ([u8; 4], u16) = ([127, 0, 0, 1], 9180);

const HELP: &str = "  kill N       pull the cable of server N          plug N     put it back
  add          plug in another server              daemon     kill -9 the daemon, and start it again
  load         requests so far, and broken ones    quit       remove everything (^C does so too)
  anything else is a command of evener: servers, drain web/..., undo, explain ..., events --seconds 5";

/// Keeps the farm until standard input ends or the user quits.
pub fn stay() -> Result<()> {
    let stage = Stage { started: std::time::Instant::now() };
    evener::program()?;
    let mut farm = Farm::builder().servers(SERVERS as u8).answering().build()?;
    let config = evener::web_service(&farm, 0, "auto");
    config.lines().for_each(|line| eprintln!("          | {line}"));
    let mut evener = Evener::start(farm.director(), &config)?;
    stage.show(&evener.wait_for_servers(SERVERS, FOUND_WITHIN)?);
    let audience = Audience::arrive(&farm);
    let address = relay(farm.director().clone())?;
    stage.print_step(&format!("clients use the farm; metrics, API and dashboard: http://{address}/"));
    eprintln!("{HELP}");
    let mut lines = io::stdin().lock().lines();
    loop {
        eprint!("> ");
        let _ = io::stderr().flush();
        let Some(line) = lines.next().transpose().context("Standard input can't be read")? else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        if matches!(words[..], ["quit" | "exit"]) {
            break;
        }
        // A failed command does not end the program.
        if let Err(error) = obey(&words, &mut farm, &mut evener, &audience) {
            eprintln!("{error:#}");
        }
    }
    evener.stop().context("The daemon did not stop when it was asked to")?;
    drop(farm);
    stage.print_step("everything is removed again");
    Ok(())
}

fn obey(words: &[&str], farm: &mut Farm, evener: &mut Evener, audience: &Audience) -> Result<()> {
    let server = |farm: &Farm, number: &str| {
        let place = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let found = place.filter(|place| *place < farm.servers().len());
        found.with_context(|| format!("Servers are numbered from 1 to {}", farm.servers().len()))
    };
    match words {
        [] => {}
        ["help" | "?"] => eprintln!("{HELP}"),
        ["kill", number] => farm.server(server(farm, number)?).unplug()?,
        ["plug", number] => farm.server(server(farm, number)?).plug()?,
        ["add"] => {
            let added = farm.add_server()?;
            eprintln!("{} is plugged in; ARP finds it within seconds", added.name());
        }
        ["daemon"] => {
            evener.daemon().kill9()?;
            eprintln!("killed; packets flow on, since the kernel has them");
            evener.start_again()?;
            eprintln!("the daemon is back");
        }
        ["load"] => eprintln!("{} requests, {} broken", audience.requests(), audience.errors()),
        command => eprint!("{}", evener.command(command)?),
    }
    Ok(())
}

/// Forwards connections from outside to the daemon in its network namespace. Returns the address;
/// if its port is in use, another port is taken.
fn relay(director: Host) -> Result<SocketAddr> {
    let listener = TcpListener::bind(SocketAddr::from(ADMIN))
        .or_else(|_| TcpListener::bind(SocketAddr::from((ADMIN.0, 0))))
        .context("No address of this host can be listened on")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let director = director.clone();
            thread::spawn(move || pass_on(&director, client));
        }
    });
    Ok(address)
}

/// Copies both directions of a connection until they end.
fn pass_on(director: &Host, client: TcpStream) {
    let daemon = director.enter(|| TcpStream::connect(SocketAddr::from(ADMIN)));
    let Ok(Ok(daemon)) = daemon else { return };
    let copy = |from: io::Result<TcpStream>, to: io::Result<TcpStream>| {
        if let (Ok(mut from), Ok(mut to)) = (from, to) {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        }
    };
    let (client_out, daemon_in) = (client.try_clone(), daemon.try_clone());
    let upward = thread::spawn(move || copy(client_out, daemon_in));
    copy(Ok(daemon), Ok(client));
    let _ = upward.join();
}
