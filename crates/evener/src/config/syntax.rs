//! Errors of TOML's syntax: each with what to write instead, or one for a file that is something
//! else altogether.

use std::collections::BTreeSet;

use toml::de::Error;

use super::problems::{Cause, Problem, ProblemSink, line_at, line_start};

/// Lines that can't be read from which on a file may be something else.
const LINES: usize = 3;

/// Notes every error.
///
/// # Errors
/// The only problem there is, where at least half of the lines can't be read.
pub(super) fn collect_errors(text: &str, errors: &[Error], sink: &ProblemSink) -> Result<(), Problem> {
    let span = |error: &Error| error.span().unwrap_or(text.len()..text.len());
    let mut unreadable = BTreeSet::new();
    let mut quoted = BTreeSet::new();
    for error in errors {
        let start = line_start(text, span(error).start);
        let problem = match unquoted(text, start) {
            Some(problem) => Some(problem).filter(|_| quoted.insert(start)),
            None => {
                unreadable.insert(start);
                let help = help(error.message(), line_at(text, span(error).start));
                Some(Problem::new(span(error), format!("this is not TOML: {}", error.message()), help))
            }
        };
        problem.into_iter().for_each(|problem| sink.push(Problem { cause: Cause::Syntax, ..problem }));
    }
    let is_text = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let lines = text.lines().filter(is_text).count();
    match unreadable.first() {
        Some(first) if unreadable.len() >= LINES && unreadable.len() * 2 >= lines => {
            let message =
                format!("this is not a TOML file: {} of {lines} lines can't be read", unreadable.len());
            let help = "name Evener's configuration; evener.example.toml is one to begin with";
            Err(Problem::new(*first..first + line_at(text, *first).len(), message, help))
        }
        _ => Ok(()),
    }
}

/// A word, an address or a time without quotes, in the line that begins at `start`.
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

/// The help for an error, by the parser's message and the line that it is on.
fn help(message: &str, line: &str) -> &'static str {
    if message.contains("duplicate key") {
        "a key can stand only once in a table: remove one, or write [[...]] before each of several tables"
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
}
