//! Errors of TOML syntax, each with a remedy, or one error for a file of another kind.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, Error};

use super::defaults;
use super::problems::{Cause, LineStarts, Problem, ProblemSink, line_at, line_start};

/// Minimum number of unreadable lines from which a file may be of another kind.
const LINES: usize = 3;

/// Maximum length of a text that is searched for all errors, in bytes. Each error costs the parser
/// some hundred bytes, and a file of another kind may have an error at every other byte.
const RECOVERED_BYTES: usize = 256 << 10;

/// Parses a text, and reports its first [`defaults::PROBLEMS`] errors, one per line. Of a text
/// longer than [`RECOVERED_BYTES`] only the first error is known.
///
/// # Errors
/// The only problem to show, if the text is too long, or if half of the lines are unreadable.
pub(super) fn parse<'t>(text: &'t str, sink: &ProblemSink) -> Result<Spanned<DeTable<'t>>, Problem> {
    if text.len() > RECOVERED_BYTES {
        return DeTable::parse(text).map_err(|error| {
            let start = line_start(text, error.span().map_or(text.len(), |span| span.start));
            problem(text, start, &error).0
        });
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    problems(text, &errors)?.into_iter().for_each(|problem| sink.push(problem));
    Ok(table)
}

/// Returns the problem of an error on the line that starts at `start`, and whether the whole line
/// is unreadable.
fn problem(text: &str, start: usize, error: &Error) -> (Problem, bool) {
    let unquoted = unquoted(text, start);
    let is_unreadable = unquoted.is_none();
    let problem = unquoted.unwrap_or_else(|| {
        let span = error.span().unwrap_or(text.len()..text.len());
        let help = help(error.message(), line_at(text, start));
        Problem::new(span, format!("this is not TOML: {}", error.message()), help)
    });
    (Problem { cause: Cause::Syntax, ..problem }, is_unreadable)
}

/// Returns the problem of each line with errors, in the order of lines.
///
/// # Errors
/// The only problem to show, if at least half of the lines are unreadable.
fn problems(text: &str, errors: &[Error]) -> Result<Vec<Problem>, Problem> {
    let starts = LineStarts::of(text);
    let mut problems = BTreeMap::new();
    for error in errors {
        let start = starts.line(error.span().map_or(text.len(), |span| span.start));
        problems.entry(start).or_insert_with(|| problem(text, start, error));
    }
    let is_text = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let lines = text.lines().filter(is_text).count();
    let unreadable = || problems.iter().filter(|(_, (_, is_unreadable))| *is_unreadable);
    let count = unreadable().count();
    match unreadable().next() {
        Some((&first, _)) if count >= LINES && count * 2 >= lines => {
            let message = format!("this is not a TOML file: {count} of {lines} lines can't be read");
            let help = "name Evener's configuration; evener.example.toml is one to begin with";
            Err(Problem::new(first..first + line_at(text, first).len(), message, help))
        }
        _ => Ok(problems.into_values().map(|(problem, _)| problem).take(defaults::PROBLEMS).collect()),
    }
}

/// Returns the problem of a word, address or time without quotes in the line that starts at
/// `start`.
fn unquoted(text: &str, start: usize) -> Option<Problem> {
    let line = line_at(text, start);
    let (key, rest) = line.split_once('=')?;
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let key = Some(key.trim()).filter(|key| !key.is_empty() && key.bytes().all(is_key))?;
    let value = rest.split('#').next().unwrap_or_default().trim();
    let plain = |c: char| c.is_alphanumeric() || "._:/*-+%@".contains(c);
    if value.is_empty() || !value.chars().all(plain) || value.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let at = start + line.len() - rest.len() + rest.find(value)?;
    let help = format!("write {key} = {value:?}");
    Some(Problem::new(at..at + value.len(), format!("the value of `{key}` needs quotes"), help))
}

/// Returns the help for an error, by the parser's message and the line.
fn help(message: &str, line: &str) -> &'static str {
    if message.contains("duplicate key") {
        "a key may occur only once in a table: remove one, or write [[...]] before each of several tables"
    } else if line.trim_start().starts_with('[') {
        "write [name] or [[name]] on a line of its own, with as many brackets after it as before it"
    } else if message.contains("string") {
        "close the quotes on the same line"
    } else {
        "write KEY = VALUE, with quotes around words, addresses and times"
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::parse;
    use super::RECOVERED_BYTES;

    fn problems_of(text: &str) -> Vec<(Option<usize>, String, String)> {
        let problems = parse(text, "file").unwrap_err();
        problems.reports().map(|r| (r.line, r.message.to_owned(), r.help.to_owned())).collect()
    }

    #[test]
    fn unquoted_words_get_a_quoting_hint() {
        let file = "[[service]]\nname = web\naddress = 192.0.2.100:80 # there\ndiscover = \"arp\"\n\
                    [service.health]\ninterval = 2s\n";
        let expected = [
            (2, "the value of `name` needs quotes", "write name = \"web\""),
            (3, "the value of `address` needs quotes", "write address = \"192.0.2.100:80\""),
            (6, "the value of `interval` needs quotes", "write interval = \"2s\""),
        ];
        let expected =
            expected.map(|(line, message, help)| (Some(line), message.to_owned(), help.to_owned()));
        assert_eq!(problems_of(file), expected);
    }

    #[test]
    fn non_toml_file_gives_one_problem() {
        let haproxy = "global\n  maxconn 100\ndefaults\n  mode http\nfrontend f\n  bind *:80\n";
        let yaml = "services:\n  - name: web\n    address: 1.2.3.4\n    port: 80\n";
        let json = "{\n \"service\": [\n {\"name\": \"web\"}\n ]\n}\n";
        let prose = "Dear all,\n\nthis is\nno configuration\nat all.\n".repeat(100);
        for text in [haproxy, yaml, json, &prose] {
            let problems = problems_of(text);
            assert!(
                matches!(&problems[..], [(Some(1), message, _)] if message.contains("not a TOML file")),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn lines_with_many_errors_give_one_problem_each() {
        assert_eq!(problems_of(&"a=1\r".repeat(10_000)).len(), 1);
        let good: String = (0..1_000).map(|number| format!("g{number} = 1\n")).collect();
        let text = format!("{}{good}", "b = 'x\r\r\r\n".repeat(300));
        let lines: Vec<_> = problems_of(&text).into_iter().map(|(line, ..)| line).collect();
        assert_eq!(lines, (1..=100).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn long_text_gives_its_first_problem_alone() {
        let good = "# a comment\n".repeat(RECOVERED_BYTES / 6);
        let wrong = "[[service]]\nname = web\n";
        let expected = Some(RECOVERED_BYTES / 6 + 2);
        let problems = problems_of(&format!("{good}{wrong}{wrong}"));
        assert!(matches!(&problems[..], [(line, _, help)] if *line == expected && help.contains("web")));
        for text in ["\n=\n".repeat(RECOVERED_BYTES), "a=1\r".repeat(RECOVERED_BYTES)] {
            assert_eq!(problems_of(&text).len(), 1);
        }
    }
}
