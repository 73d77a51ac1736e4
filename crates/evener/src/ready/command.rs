//! `evener ready`, for scripts of keepalived and BGP speakers. It does not ask the daemon, since a
//! dead daemon may have left a working data plane.

use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval};

use super::{ReadinessInput, ReadinessView};
use crate::cli::ReadyArgs;
use crate::runtime::Exit;
use crate::runtime::folders;
use crate::runtime::shown::is_shown;
use crate::runtime::signals::{ProcessSignals, SignalAction};
use crate::runtime::terminal;

const LOOK: Duration = Duration::from_secs(1);

/// Prints whether services are ready, once or at each change.
pub fn run(args: &ReadyArgs) -> Exit {
    match act(args) {
        Ok(ready) if ready => Exit::Ok,
        Ok(_) => Exit::Failed,
        Err(error) => {
            eprintln!("evener: {error}");
            Exit::Failed
        }
    }
}

fn act(args: &ReadyArgs) -> Result<bool, String> {
    let directory = folders::directory()
        .map_err(|error| format!("failed to read the network namespace: {error}; is /proc mounted?"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("failed to check the host: {error}"))?;
    runtime.block_on(async {
        match args.watch {
            true => watch(&directory, args).await,
            false => {
                let view = ReadinessInput::at(&directory).await.judge(args.subject.as_deref());
                print(&view, args).map_err(|error| format!("the answer can't be written: {error}"))?;
                Ok(view.ready)
            }
        }
    })
}

/// Runs a command at each change, including the first state, until a signal ends it.
async fn watch(directory: &Path, args: &ReadyArgs) -> Result<bool, String> {
    let mut signals =
        ProcessSignals::new().map_err(|error| format!("failed to wait for signals: {error}"))?;
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut due) = (None, None);
    loop {
        tokio::select! {
            () = end(&mut signals) => return Ok(true),
            _ = ticks.tick() => {}
        }
        let view = ReadinessInput::at(directory).await.judge(args.subject.as_deref());
        if before != Some(view.ready) {
            print(&view, args).map_err(|error| format!("the change can't be written: {error}"))?;
            due = if view.ready { args.on.as_deref() } else { args.off.as_deref() };
        }
        before = Some(view.ready);
        if let Some(command) = due {
            let done = tokio::select! {
                () = end(&mut signals) => return Ok(true),
                done = carry_out(command, &view) => done,
            };
            match done {
                Ok(status) if status.success() => due = None,
                // The command has failed, so the front may not know the new state yet.
                Ok(status) => eprintln!("evener: {command}: {status}; retrying"),
                Err(error) => eprintln!("evener: failed to run {command}: {error}; retrying"),
            }
        }
    }
}

/// Waits for a signal to end. Other signals are for daemons.
async fn end(signals: &mut ProcessSignals) {
    while matches!(signals.next().await, SignalAction::Reload | SignalAction::Reopen) {}
}

async fn carry_out(command: &str, view: &ReadinessView) -> io::Result<ExitStatus> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).env("EVENER_REASON", shown(&view.reason));
    shell.kill_on_drop(true).status().await
}

/// Formats a reason as one line of printable characters, since it may contain another host's text.
fn shown(reason: &str) -> String {
    reason.chars().filter(|char| is_shown(*char)).collect()
}

fn print(view: &ReadinessView, args: &ReadyArgs) -> io::Result<()> {
    let text = match (args.json, args.watch) {
        (true, true) => serde_json::to_string(view)? + "\n",
        (true, false) => serde_json::to_string_pretty(view)? + "\n",
        (false, _) if view.ready => "ready\n".to_owned(),
        (false, _) => format!("not ready: {}\n", shown(&view.reason)),
    };
    terminal::print(&text)
}
