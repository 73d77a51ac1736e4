//! `evener`: one address in front of several web servers.

use std::io::{self, Write};
use std::path::Path;

use clap::Parser;
use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};
use evener::cli::{CheckArgs, Cli, Command, KeygenArgs, ManArgs};
use evener::config::{self, Config, ProblemReport};
use evener::runtime::Exit;
use evener::runtime::secret;
use evener::runtime::terminal::has_colour;
use evener::{admin, agent, announce, control, doctor, import, manual, ready, top};

fn main() -> Exit {
    CompleteEnv::with_factory(admin::completion::command).complete();
    match Cli::parse().command {
        Command::Check(args) => check(&args),
        Command::Completions(args) => done("failed to write the completions", completions(args.shell)),
        Command::Man(args) => done("failed to write the manual", man(&args)),
        Command::Import(args) => import::run(&args),
        Command::Keygen(args) => keygen(&args),
        Command::Run(args) => control::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Announce(args) => announce::run(&args),
        Command::Leave => leave(),
        Command::Requests(args) => agent::requests::run(&args),
        Command::Ready(args) => ready::command::run(&args),
        Command::Doctor(view) => doctor::run(&view),
        Command::Top(args) => top::run(&args),
        command => admin::command::run(&command),
    }
}

/// Ends the programs of this host, and removes routes that an announcer has left.
fn leave() -> Exit {
    match announce::withdraw_left() {
        Ok(true) => println!("the routes of an announcer that has ended are removed"),
        Ok(false) => {}
        Err(error) => eprintln!("evener: {error}"),
    }
    agent::leave::run()
}

/// Prints all problems of a file, or the notes on a valid one, or the schema.
fn check(args: &CheckArgs) -> Exit {
    if args.schema {
        let written = writeln!(io::stdout(), "{:#}", config::schema(&manual::key_description));
        return done("failed to write the schema", written);
    }
    let file = &args.file;
    let checked = config::check(file, args.file_only);
    let written = match &checked {
        Ok(checked) if args.json => write_json(checked.reports()),
        Err(problems) if args.json => write_json(problems.reports()),
        Ok(checked) => {
            let lines = [&[summary(file, &checked.config)][..], &checked.notes].concat();
            writeln!(io::stdout(), "{}", lines.join("\n"))
        }
        Err(problems) => writeln!(io::stderr(), "{}", problems.render(has_colour(&io::stderr()))),
    };
    if checked.is_err() { Exit::Failed } else { done("failed to write the result", written) }
}

/// Writes the script by which a shell asks this program for completions.
fn completions(shell: Shell) -> io::Result<()> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).ok_or(io::ErrorKind::Unsupported)?;
    completer.write_registration("COMPLETE", "evener", "evener", "evener", &mut io::stdout())
}

fn write_json<'a>(reports: impl Iterator<Item = ProblemReport<'a>>) -> io::Result<()> {
    let reports: Vec<_> = reports.collect();
    writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&reports)?)
}

fn keygen(args: &KeygenArgs) -> Exit {
    match secret::write_new(&args.file) {
        Ok(()) => {
            let written = writeln!(
                io::stdout(),
                "{} written: copy it to every host of the farm, as secret, and name it in [farm] secret_file",
                args.file.display()
            );
            done("failed to write the result", written)
        }
        Err(error) => done(&format!("failed to write {}", args.file.display()), Err(error)),
    }
}

fn summary(file: &Path, config: &Config) -> String {
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let of_packets = config.services.iter().map(|service| service.servers.len());
    let of_groups = config.groups.iter().map(|of| of.group.members.len());
    let servers = of_packets.chain(of_groups).sum::<usize>() + config.dns.servers();
    let services = counted(config.services.len() + config.groups.len(), "service");
    let names = match config.dns.names.len() {
        0 => String::new(),
        names => format!(", {}", counted(names, "name")),
    };
    let joins = config.agent.member.group.as_ref();
    let joins = joins.map(|group| format!(", agents join {group}")).unwrap_or_default();
    format!("{}: ok, {services}, {} listed{names}{joins}", file.display(), counted(servers, "server"))
}

fn man(args: &ManArgs) -> io::Result<()> {
    match &args.dir {
        Some(dir) => manual::write_all(dir),
        None => manual::print(args.page.as_deref(), &mut io::stdout()),
    }
}

fn done(failure: &str, result: io::Result<()>) -> Exit {
    match result {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!("evener: {failure}: {error}");
            Exit::Failed
        }
    }
}
