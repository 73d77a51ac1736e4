//! Screen of `evener top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::model::{Look, Model, Rates};
use crate::admin::message;
use crate::views::ServerView;

/// Minimum size of a readable screen.
const LEAST: (u16, u16) = (40, 8);
const HELP: &str =
    "up/down choose  s sort  r reverse  / filter  d drain  u undrain  m maintenance  p pause  ? help  q quit";
/// The keys that fit into a narrow terminal.
const SHORT_HELP: &str = "? help  q quit  s sort  / filter  d drain  u undrain  m maintenance";

const ASCII: border::Set = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("too small: {}x{} at least", LEAST.0, LEAST.1);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let events = (area.height / 4).clamp(3, 10);
    let parts =
        [Constraint::Length(2), Constraint::Min(3), Constraint::Length(events), Constraint::Length(1)];
    let [head, servers, log, foot] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(headline(model)), head);
    draw_servers(frame, servers, model);
    draw_events(frame, log, model);
    frame.render_widget(Paragraph::new(footline(model, foot.width)), foot);
}

fn colour(look: Look, colour: Color) -> Style {
    if look.has_colour { Style::new().fg(colour) } else { Style::new() }
}

fn block(look: Look, title: String) -> Block<'static> {
    let set = if look.is_utf8 { border::PLAIN } else { ASCII };
    Block::new().borders(Borders::TOP).border_set(set).title(title)
}

/// Returns text of the daemon with characters that this terminal can show.
fn shown(look: Look, text: &str) -> String {
    let text = message(text).replace('\n', " ");
    match look.is_utf8 {
        true => text,
        false => text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect(),
    }
}

fn headline(model: &Model) -> Vec<Line<'static>> {
    let look = model.look;
    let Some(reading) = &model.reading else {
        let wait = model.error.clone().unwrap_or_else(|| "waiting for the daemon".to_owned());
        return vec![Line::from(shown(look, &wait))];
    };
    let status = &reading.status;
    let up = reading.servers.iter().filter(|server| server.state == "up").count();
    let first = format!(
        "evener {}, {}, up {}   servers {up}/{}   sessions {} of {}",
        status.version,
        status.engine,
        duration(status.uptime_seconds),
        reading.servers.len(),
        status.sessions,
        status.sessions_max
    );
    let mut spans = Vec::new();
    if let Some(error) = &model.error {
        spans.push(Span::styled(shown(look, error), colour(look, Color::Red)));
    } else if status.version != env!("CARGO_PKG_VERSION") {
        let text = format!(
            "the daemon has version {}, and this program {}",
            status.version,
            env!("CARGO_PKG_VERSION")
        );
        spans.push(Span::styled(text, colour(look, Color::Yellow)));
    } else {
        let mut drops: Vec<(&String, &u64)> =
            status.packets.iter().filter(|(reason, count)| is_drop(reason) && **count > 0).collect();
        drops.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let drops: Vec<String> =
            drops.iter().take(4).map(|(reason, count)| format!("{reason} {count}")).collect();
        let text = if drops.is_empty() {
            "no packet dropped".to_owned()
        } else {
            format!("dropped: {}", drops.join(", "))
        };
        spans.push(Span::raw(text));
    }
    if model.is_paused {
        spans.push(Span::raw("   paused"));
    }
    vec![Line::from(first), Line::from(spans)]
}

/// True if packets with this reason are dropped.
fn is_drop(reason: &str) -> bool {
    let reasons = evener_core::path::decide::Reason::ALL;
    reasons.iter().any(|known| known.name() == reason && known.about().starts_with("Dropped"))
}

fn draw_servers(frame: &mut Frame<'_>, area: Rect, model: &mut Model) {
    let look = model.look;
    let rows = model.rows();
    let is_wide = area.width >= 100;
    let selected = model.selected.min(rows.len().saturating_sub(1));
    // Below the title and the headings, scrolled so that the selected row is visible.
    let height = usize::from(area.height.saturating_sub(2)).max(1);
    let first = (selected + 1).saturating_sub(height);
    let in_sight = rows.iter().skip(first).take(height);
    let names: Vec<Row<'static>> =
        in_sight.map(|(server, rates)| row(look, server, *rates, is_wide)).collect();
    let chosen = (!names.is_empty()).then_some(selected - first);
    let mut heads = vec!["SERVICE", "SERVER", "STATE", "WEIGHT", "SESSIONS", "CONN/S", "BYTES/S"];
    let mut widths = vec![
        Constraint::Fill(2),
        Constraint::Fill(3),
        Constraint::Length(11),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
    ];
    if is_wide {
        heads.push("WHY");
        widths.push(Constraint::Fill(4));
    }
    let arrow = if model.is_reversed { ", reversed" } else { "" };
    let filter = model.typed.as_ref().map(|typed| format!("  filter: {typed}_"));
    let filter = filter.or((!model.filter.is_empty()).then(|| format!("  filter: {}", model.filter)));
    let title =
        format!(" servers by {}{arrow}{} ", model.sort.name(), shown(look, &filter.unwrap_or_default()));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let table = Table::new(names, widths)
        .header(Row::new(heads).style(bold))
        .block(block(look, title))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    model.selected = selected;
    let mut state = TableState::default().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

fn row(look: Look, server: &ServerView, rates: Rates, is_wide: bool) -> Row<'static> {
    let state = match server.state.as_str() {
        "up" => colour(look, Color::Green),
        "down" => colour(look, Color::Red),
        _ => colour(look, Color::Yellow),
    };
    let weight = match server.effective_weight < f64::from(server.weight) && server.effective_weight > 0.0 {
        true => format!("{:.1}/{}", server.effective_weight, server.weight),
        false => server.weight.to_string(),
    };
    let mut cells = vec![
        Cell::from(shown(look, &server.service)),
        Cell::from(shown(look, &server.name)),
        Cell::from(server.state.clone()).style(state),
        Cell::from(weight),
        Cell::from(server.sessions.to_string()),
        Cell::from(short(rates.connections)),
        Cell::from(short(rates.bytes)),
    ];
    if is_wide {
        let why = server.reason.as_ref().or(server.cause.as_ref()).cloned().unwrap_or_default();
        cells.push(Cell::from(shown(look, &why)));
    }
    Row::new(cells)
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let look = model.look;
    let block = block(look, if model.has_help { " keys " } else { " events " }.to_owned());
    if model.has_help {
        frame.render_widget(Paragraph::new(HELP).wrap(Wrap { trim: true }).block(block), area);
        return;
    }
    let count = usize::from(area.height.saturating_sub(1));
    let lines: Vec<Line<'static>> =
        model.events.iter().take(count).map(|line| Line::from(shown(look, line))).collect();
    let lines = if lines.is_empty() { vec![Line::from("none since this began")] } else { lines };
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn footline(model: &Model, width: u16) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let look = model.look;
    match (&model.pending, &model.answer) {
        (Some(order), _) => Line::from(Span::styled(shown(look, &order.question()), bold)),
        (None, Some(answer)) => Line::from(Span::styled(shown(look, answer), bold)),
        (None, None) if usize::from(width) < HELP.len() => Line::from(SHORT_HELP),
        (None, None) => Line::from(HELP),
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..3_600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} days {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Formats a number in at most six characters.
fn short(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| number >= *unit) {
        Some((unit, name)) => format!("{:.1}{name}", number / unit),
        None if number == 0.0 => "0".to_owned(),
        None => format!("{number:.1}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::super::model::{Reading, Verb};
    use super::*;
    use crate::views::StatusView;

    fn server(name: &str, state: &str, connections: u64) -> ServerView {
        let value = serde_json::json!({
            "service": "web", "name": name, "address": "192.0.2.11", "state": state, "reason": null, "weight": 1,
            "effective_weight": 1.0, "sessions": connections / 10, "connections": connections, "packets": 0,
            "bytes": connections * 1_000, "mac": null, "interface": null, "source": "listed", "local": false,
            "forwarding": "link", "probe_seconds": null, "probe_error": null,
        });
        serde_json::from_value(value).unwrap()
    }

    fn model(look: Look) -> Model {
        let status: StatusView = serde_json::from_value(serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": 1, "uptime_seconds": 4_000, "engine": "xdp", "engine_detail": "",
            "adopted": false, "config": "", "generation": 1, "generation_wanted": 1, "reloads": 0, "reloads_refused": 0,
            "reload_pending": false, "reload_error": null, "restart_needed_for": null, "config_loaded_seconds": 0.0,
            "sessions": 3, "sessions_assured": 3, "sessions_embryonic": 0, "sessions_max": 1000, "session_slots": 8,
            "session_slots_max": 1000, "sessions_resizing": false, "packets": {"no_server": 7, "forwarded": 9},
            "refused": {}, "interfaces": ["eth0"], "events": {}, "installed": [],
        }))
        .unwrap();
        let mut model = Model { look, ..Model::default() };
        let begin = Instant::now();
        let reading = |connections: u64| Reading {
            status: status.clone(),
            servers: vec![server("web1", "up", connections), server("web2\u{1b}[2J<\u{e9}>", "down", 10)],
        };
        model.take_in(reading(100), begin);
        model.take_in(reading(300), begin + Duration::from_secs(2));
        model.note_event("server_down web/web2: no answer".to_owned());
        model
    }

    fn screen(model: &mut Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn screen_of_80_columns_shows_servers_rates_drops_and_events() {
        let mut model = model(Look { has_colour: true, is_utf8: true });
        let text = screen(&mut model, 80, 24);
        for part in
            ["servers 1/2", "up 1 h 6 min", "dropped: no_server 7", "100.0", "100.0k", "web2?[2J<\u{e9}>"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("server_down web/web2"), "{text}");
    }

    #[test]
    fn plain_terminals_get_ascii_without_colour() {
        let mut model = model(Look::default());
        let text = screen(&mut model, 120, 24);
        assert!(text.is_ascii() && text.contains("web2?[2J<?>"), "{text}");
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &mut model)).unwrap();
        assert!(terminal.backend().buffer().content.iter().all(|cell| cell.fg == Color::Reset));
    }

    #[test]
    fn small_terminals_and_absent_daemons_get_words() {
        let mut model = model(Look::default());
        assert!(screen(&mut model, 20, 5).contains("too small"));
        let mut none = Model { error: Some("no daemon answers".to_owned()), ..Model::default() };
        assert!(screen(&mut none, 80, 24).contains("no daemon answers"));
        assert!(screen(&mut Model::default(), 80, 24).contains("waiting for the daemon"));
    }

    #[test]
    fn list_goes_on_until_the_chosen_server_is_in_sight() {
        let mut model = model(Look::default());
        let status = model.reading.take().unwrap().status;
        let servers = (0..100).map(|number| server(&format!("web{number:02}"), "up", 0)).collect();
        model.take_in(Reading { status, servers }, Instant::now());
        let shown = |model: &mut Model| {
            let text = screen(model, 80, 24);
            let names = text.split_whitespace().filter(|word| word.len() == 5 && word.starts_with("web"));
            let names: Vec<String> = names.map(str::to_owned).collect();
            (names[0].clone(), names[names.len() - 1].clone())
        };
        let (first, last) = shown(&mut model);
        assert_eq!(first, "web00");
        model.press(KeyCode::End);
        assert_eq!(shown(&mut model).1, "web99");
        model.press(KeyCode::Up);
        assert_eq!(shown(&mut model).1, "web98", "the chosen one is the last in sight");
        model.press(KeyCode::Home);
        assert_eq!(shown(&mut model), (first, last));
    }

    #[test]
    fn keys_sort_filter_and_ask_before_a_drain() {
        let mut model = model(Look::default());
        let names =
            |model: &Model| model.rows().iter().map(|(server, _)| server.state.clone()).collect::<Vec<_>>();
        assert_eq!(names(&model), ["up", "down"]);
        model.press(KeyCode::Char('s'));
        assert_eq!(names(&model), ["down", "up"], "what needs a look comes first");
        for key in "/web1".chars() {
            model.press(KeyCode::Char(key));
        }
        assert_eq!(model.press(KeyCode::Enter), None);
        assert_eq!(names(&model), ["up"]);
        assert_eq!(model.press(KeyCode::Char('d')), None);
        assert!(screen(&mut model, 80, 24).contains("drain web/web1? y/n"));
        assert_eq!(model.press(KeyCode::Char('n')), None, "no is no");
        model.press(KeyCode::Char('m'));
        let order = model.press(KeyCode::Char('y')).unwrap();
        assert_eq!((order.server.as_str(), order.verb), ("web1", Verb::Maintenance));
        assert_eq!(model.press(KeyCode::Char('y')), None, "once");
    }
}
