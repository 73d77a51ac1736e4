//! `${NAME}` in strings: environment variables, replaced while a file is read.

use toml::de::{DeTable, DeValue};

use super::problems::{Cause, Problem, ProblemSink, Span};

/// Lookup of variables: in the environment, or nowhere for a text without a file.
pub(super) type VariableLookup = fn(&str) -> Option<String>;

/// Returns a variable of this process, if it is UTF-8.
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Error of an expansion: the part of the string, and a problem with its remedy.
#[derive(Debug, PartialEq, Eq)]
struct ExpansionError {
    part: String,
    message: String,
    help: String,
}

/// Replaces the variables in all strings of a table that was parsed from `text`. Keys stay.
pub(super) fn expand(table: &mut DeTable<'_>, text: &str, lookup: VariableLookup, sink: &ProblemSink) {
    for (_, value) in table.iter_mut() {
        let span = value.span();
        expand_value(value.get_mut(), span, text, lookup, sink);
    }
}

fn expand_value(value: &mut DeValue<'_>, span: Span, text: &str, lookup: VariableLookup, sink: &ProblemSink) {
    match value {
        DeValue::String(string) if string.contains("${") => match expanded(string, lookup) {
            Ok(new) => *string = new.into(),
            Err(error) => {
                let place = part_span(text, span, &error.part);
                let problem = Problem::new(place, error.message, error.help);
                sink.push(Problem { cause: Cause::Variable, ..problem });
            }
        },
        DeValue::Table(table) => expand(table, text, lookup, sink),
        DeValue::Array(entries) => {
            for entry in entries.iter_mut() {
                let span = entry.span();
                expand_value(entry.get_mut(), span, text, lookup, sink);
            }
        }
        _ => {}
    }
}

/// Returns the position of a part within a string, or the string's if escapes hide the part.
fn part_span(text: &str, span: Span, part: &str) -> Span {
    let found = text.get(span.clone()).and_then(|string| string.find(part));
    found.map_or(span.clone(), |at| span.start + at..span.start + at + part.len())
}

/// Replaces variables by their values. `$${` becomes `${`, and other dollar signs stay.
fn expanded(string: &str, lookup: VariableLookup) -> Result<String, ExpansionError> {
    let mut out = String::with_capacity(string.len());
    let mut rest = string;
    while let Some(at) = rest.find("${") {
        let (before, found) = rest.split_at(at);
        let inside = found.get(2..).unwrap_or_default();
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = inside;
            continue;
        }
        out.push_str(before);
        let Some(end) = inside.find('}') else {
            return Err(ExpansionError {
                part: found.to_owned(),
                message: "a variable begins with `${`, and no `}` ends it".to_owned(),
                help: "write ${NAME}, or $${ where no variable is meant".to_owned(),
            });
        };
        let (variable, behind) = inside.split_at(end);
        out.push_str(&value(variable, lookup)?);
        rest = behind.get(1..).unwrap_or_default();
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the value of `NAME` or `NAME:-default`. As in shells, a default also replaces an empty
/// variable.
fn value(variable: &str, lookup: VariableLookup) -> Result<String, ExpansionError> {
    let (name, default) = match variable.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (variable, None),
    };
    let error = |message: String, help: String| {
        Err(ExpansionError { part: format!("${{{variable}}}"), message, help })
    };
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !is_name || name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        let help = "write ${NAME} or ${NAME:-default}, or $${ where no variable is meant";
        return error(format!("{name:?} is no name of a variable"), help.to_owned());
    }
    match (lookup(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => error(
            format!("there is no variable {name} in the environment"),
            format!("set it where the daemon starts, or write a default: ${{{name}:-...}}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "VIP" => Some("192.0.2.1".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced_by_their_values() {
        let cases = [
            ("${VIP}:80", "192.0.2.1:80"),
            ("${VIP}-${VIP}", "192.0.2.1-192.0.2.1"),
            ("${NO:-a b}", "a b"),
            ("${NO:-}x", "x"),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY}", ""),
            ("$${VIP} $VIP $$ $", "${VIP} $VIP $$ $"),
            ("$$${VIP}", "$${VIP}"),
        ];
        for (text, expected) in cases {
            assert_eq!(expanded(text, lookup).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn faulty_variables_name_their_part() {
        for (text, part) in [("a${NO}", "${NO}"), ("${VIP", "${VIP"), ("${1}", "${1}"), ("${}", "${}")] {
            assert_eq!(expanded(text, lookup).map_err(|error| error.part), Err(part.to_owned()));
        }
    }
}
