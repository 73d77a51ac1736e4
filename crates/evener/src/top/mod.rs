//! `evener top`: servers, rates, checks and events in a terminal.
//!
//! [`model`] has the state, and [`draw`] displays it. This module has the terminal, its keys and
//! the threads that query the daemon.

mod draw;
mod model;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::admin::{Client, admin_client, events_of, send_change};
use crate::cli::{AdminArgs, TopArgs};
use crate::runtime::Exit;
use crate::runtime::terminal::print;
use crate::views::{ServerView, StatusView};
use model::{Look, Model, Order, Reading};

/// Interval of checks for key presses.
const KEYS: Duration = Duration::from_millis(100);
/// Pause before the stream of events is requested again.
const AGAIN: Duration = Duration::from_secs(2);

/// Update of the screen.
enum Update {
    /// State of the daemon, or an error.
    Reading(Result<Box<Reading>, String>),
    /// An event as a line.
    Event(String),
    /// Result of an order.
    Answer(String),
}

pub fn run(args: &TopArgs) -> Exit {
    let done = match args.json {
        true => lines(args),
        false if io::stdout().is_terminal() => screen(args),
        false => Err("standard output is no terminal: --json prints lines for programs".to_owned()),
    };
    match done {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!("evener: {error}");
            Exit::Failed
        }
    }
}

/// Prints a line of JSON per reading.
fn lines(args: &TopArgs) -> Result<(), String> {
    let (client, runtime) = admin_client(&args.admin)?;
    let mut model = Model::default();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let reading = runtime.block_on(read(&client))?;
        model.take_in(reading, Instant::now());
        print(&format!("{}\n", model.json())).map_err(|error| error.to_string())?;
        left -= 1;
        if left > 0 {
            thread::sleep(args.interval);
        }
    }
    Ok(())
}

async fn read(client: &Client) -> Result<Reading, String> {
    let status: StatusView = client.get("/v1/status").await.map_err(|error| error.to_string())?;
    let servers: Vec<ServerView> = client.get("/v1/servers").await.map_err(|error| error.to_string())?;
    Ok(Reading { status, servers })
}

fn screen(args: &TopArgs) -> Result<(), String> {
    let (news, receiver) = mpsc::channel();
    follow_state(args, &news)?;
    follow_events(&args.admin, &news);
    let mut terminal = ratatui::try_init().map_err(|error| format!("the terminal can't be used: {error}"))?;
    let look = Look::of_environment();
    let result = watch(&mut terminal, &receiver, &news, args, look);
    ratatui::restore();
    result
}

/// Queries the daemon periodically on a thread, so that a hanging daemon does not block the keys.
fn follow_state(args: &TopArgs, news: &Sender<Update>) -> Result<(), String> {
    let (client, runtime) = admin_client(&args.admin)?;
    let (news, interval) = (news.clone(), args.interval);
    thread::spawn(move || {
        loop {
            let reading = runtime.block_on(read(&client));
            if news.send(Update::Reading(reading.map(Box::new))).is_err() {
                return;
            }
            thread::sleep(interval);
        }
    });
    Ok(())
}

fn follow_events(admin: &AdminArgs, news: &Sender<Update>) {
    let (news, socket) = (news.clone(), admin.socket.clone());
    thread::spawn(move || {
        let admin = AdminArgs { socket };
        loop {
            // The daemon's state shows if it is gone.
            let ended = events_of(&admin, |line| news.send(Update::Event(line)).is_ok());
            if !ended {
                return;
            }
            thread::sleep(AGAIN);
        }
    });
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    receiver: &Receiver<Update>,
    news: &Sender<Update>,
    args: &TopArgs,
    look: Look,
) -> Result<(), String> {
    let bad = |error: io::Error| format!("the terminal can't be used: {error}");
    let mut model = Model { look, ..Model::default() };
    let mut is_stale = true;
    loop {
        while let Ok(one) = receiver.try_recv() {
            is_stale = true;
            match one {
                Update::Reading(Ok(reading)) => model.take_in(*reading, Instant::now()),
                Update::Reading(Err(error)) => model.error = Some(error),
                Update::Event(line) => model.note_event(line),
                Update::Answer(line) => model.answer = Some(line),
            }
        }
        if std::mem::take(&mut is_stale) {
            terminal.draw(|frame| draw::draw(frame, &mut model)).map_err(bad)?;
        }
        if !event::poll(KEYS).map_err(bad)? {
            continue;
        }
        is_stale = true;
        if let Event::Key(key) = event::read().map_err(bad)?
            && key.kind == KeyEventKind::Press
        {
            if is_end(key, &model) {
                return Ok(());
            }
            if let Some(order) = meaning(key).and_then(|key| model.press(key)) {
                carry_out(order, &args.admin, news);
            }
        }
    }
}

fn is_end(key: KeyEvent, model: &Model) -> bool {
    match key.modifiers.contains(KeyModifiers::CONTROL) {
        true => key.code == KeyCode::Char('c'),
        false => key.code == KeyCode::Char('q') && model.typed.is_none(),
    }
}

/// Returns the code of a key. With Ctrl, letters have no meaning, and ^U clears a line as in a
/// shell.
fn meaning(key: KeyEvent) -> Option<KeyCode> {
    match key.code {
        code if !key.modifiers.contains(KeyModifiers::CONTROL) => Some(code),
        KeyCode::Char('h') => Some(KeyCode::Backspace),
        KeyCode::Char('u') => Some(KeyCode::Delete),
        KeyCode::Char(_) => None,
        code => Some(code),
    }
}

/// Sends an order on a separate thread.
fn carry_out(order: Order, admin: &AdminArgs, news: &Sender<Update>) {
    let (news, admin) = (news.clone(), AdminArgs { socket: admin.socket.clone() });
    thread::spawn(move || {
        let answer = send_change(&admin, &order.service, &order.server, &order.body());
        let _ = news.send(Update::Answer(answer.unwrap_or_else(|error| error)));
    });
}
