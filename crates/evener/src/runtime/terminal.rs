//! Output for people: width, colours, and views that are printed repeatedly.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use textwrap::{Options, WordSplitter};

/// Width of output if the terminal's width is unknown, in characters.
pub(crate) const WIDTH: usize = 80;
/// Minimum width of output, in characters.
const LEAST: usize = 40;

/// Escape sequence that clears the terminal and moves the cursor to its top (ECMA-48).
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Prints to standard output. A reader that closes the pipe, such as `head`, is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Prints a view, and with an interval repeats it until interrupted or until the reader closes the
/// pipe. With JSON, each view is one line. On a terminal, text replaces the previous view.
/// Elsewhere a blank line separates views.
///
/// # Errors
/// Errors of `view`, and errors of standard output, converted by `output`.
pub(crate) fn show<E>(
    interval: Option<Duration>,
    is_json: bool,
    view: impl Fn() -> Result<String, E>,
    output: fn(io::Error) -> E,
) -> Result<(), E> {
    let (mut before, between) = match interval {
        Some(_) if !is_json && io::stdout().is_terminal() => (CLEAR, CLEAR),
        Some(_) if !is_json => ("", "\n"),
        _ => ("", ""),
    };
    loop {
        let text = format!("{before}{}", view()?);
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(output)?,
        }
        drop(out);
        let Some(interval) = interval else { return Ok(()) };
        before = between;
        std::thread::sleep(interval);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Green,
    Yellow,
    Red,
}

/// Page that a view is printed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) width: usize,
    /// True if states are coloured.
    pub(crate) has_colour: bool,
    /// True if long names are wrapped, for people: a terminal would break them at worse places.
    /// Programs get names unwrapped.
    pub(crate) breaks_names: bool,
}

impl Page {
    /// Returns the page of standard output.
    pub(crate) fn of_stdout() -> Page {
        let out = io::stdout();
        Page { width: width(), has_colour: has_colour(&out), breaks_names: out.is_terminal() }
    }

    /// Colours a text, if the page has colours (ECMA-48, 8.3.117). Pad and wrap the text before:
    /// escape sequences have no width.
    pub(crate) fn paint(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
        };
        if self.has_colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// True if an output is a terminal that shows colours.
pub fn has_colour(output: &impl IsTerminal) -> bool {
    output.is_terminal() && wants_colour(|name| std::env::var_os(name))
}

/// True if the environment allows colours: no NO_COLOR (<https://no-color.org>), and a terminal
/// that knows escape sequences.
fn wants_colour(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty())
        && variable("TERM").is_none_or(|term| term != "dumb")
}

/// Returns the width of the terminal at standard output, or [`WIDTH`] if there is none.
pub(crate) fn width() -> usize {
    let terminal = terminal_size::terminal_size_of(std::io::stdout());
    terminal.map_or(WIDTH, |(width, _)| usize::from(width.0)).max(LEAST)
}

/// Wraps a text to lines of at most `width` characters. All lines but the first are indented. Line
/// breaks in the text stay. A word longer than a line is not split.
pub(crate) fn wrap(text: &str, width: usize, indent: usize) -> String {
    let indent = " ".repeat(indent);
    let options = |first| {
        Options::new(width)
            .initial_indent(first)
            .subsequent_indent(&indent)
            .break_words(false)
            .word_splitter(WordSplitter::NoHyphenation)
    };
    let wrapped = text
        .lines()
        .enumerate()
        .flat_map(|(number, line)| textwrap::wrap(line, options(if number == 0 { "" } else { &indent })));
    wrapped.map(Cow::into_owned).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrap("one two three four", 10, 2), "one two\n  three\n  four");
        assert_eq!(wrap("a\nb c", 80, 4), "a\n    b c");
        assert_eq!(wrap("/a/path/that/is/longer than it", 10, 0), "/a/path/that/is/longer\nthan it");
        assert_eq!(wrap("", 10, 2), "");
    }

    #[test]
    fn colours_are_left_out_for_no_color_and_dumb_terminals() {
        let wants = |no_color: Option<&str>, term: Option<&str>| {
            wants_colour(|name| if name == "TERM" { term } else { no_color }.map(OsString::from))
        };
        assert!(wants(None, Some("xterm")) && wants(Some(""), None));
        assert!(!wants(Some("1"), Some("xterm")) && !wants(None, Some("dumb")));
        let page = Page { width: 80, has_colour: true, breaks_names: false };
        assert_eq!(page.paint(Colour::Red, "down"), "\x1b[31mdown\x1b[0m");
        assert_eq!(Page { has_colour: false, ..page }.paint(Colour::Red, "down"), "down");
    }
}
