//! The subcommand `evener import`: writes the TOML to standard output and the report to standard
//! error.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::source::FILE_BYTES;
use super::{ImportReport, Left, Weight, import};
use crate::cli::ImportArgs;
use crate::runtime::Exit;

/// Reads the file, and writes its counterpart in TOML.
pub fn run(args: &ImportArgs) -> Exit {
    let is_stdin = args.file == Path::new("-");
    let name = if is_stdin { "standard input".to_owned() } else { args.file.display().to_string() };
    let read = if is_stdin { bounded(io::stdin()) } else { File::open(&args.file).and_then(bounded) };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => return failed(&format!("failed to read {name}: {error}")),
    };
    let folder = args.file.parent().filter(|_| !is_stdin);
    let report = match import(&bytes, &name, folder, args.from) {
        Ok(report) => report,
        Err(error) => return failed(&error.to_string()),
    };
    let written = match args.json {
        true => serde_json::to_string_pretty(&report).map_err(io::Error::from),
        false if report.services > 0 => Ok(report.toml.trim_end().to_owned()),
        false => Ok(String::new()),
    };
    let written = written.and_then(|text| match text.is_empty() {
        true => Ok(()),
        false => writeln!(io::stdout(), "{text}"),
    });
    if let Err(error) = written {
        return failed(&format!("the result could not be written: {error}"));
    }
    eprint!("{}", summary(&report));
    match report.services {
        0 => failed(&format!("{name}: no service could be made of it; each line above has the reason")),
        _ if report.losses(Weight::Served) > 0 && !args.lossy => {
            eprintln!(
                "evener: the new file does not serve like {name}: see CHANGED above; --lossy accepts that"
            );
            Exit::Lossy
        }
        _ => Exit::Ok,
    }
}

fn failed(why: &str) -> Exit {
    eprintln!("evener: {why}");
    Exit::Failed
}

/// Reads at most one byte more than the limit, so that reading an endless file ends.
fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the report as text for the terminal.
fn summary(report: &ImportReport) -> String {
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut out = listed(report);
    let [served, handled, process] = Weight::ALL.map(|weight| report.losses(weight));
    let _ = writeln!(
        out,
        "{}: {} made of {}, of which {} are carried over; {} to fill in; left: {served} that change who \
         is served, {handled} how, {process} of the program itself",
        super::origin_name(report.from),
        counted(report.services, "service"),
        counted(report.significant.len(), "line"),
        report.carried.len(),
        counted(report.blanks.len(), "value"),
    );
    out
}

/// Returns the report as TOML comments, for the end of the file.
pub(super) fn remarks(report: &ImportReport) -> String {
    let mut out = String::new();
    for line in listed(report).trim_end().lines() {
        let _ = writeln!(out, "{}", format!("# {line}").trim_end());
    }
    match out.is_empty() {
        true => out,
        false => format!("\n{out}"),
    }
}

/// Returns the placeholders and all statements that are left.
/// The latter are grouped by weight and reason, in the order of the first line of each reason.
fn listed(report: &ImportReport) -> String {
    let mut out = String::new();
    if !report.blanks.is_empty() {
        out.push_str("TO FILL IN\n");
        for blank in &report.blanks {
            let line = blank.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            let _ = writeln!(out, "  {line}{}, in place of {}", blank.todo, blank.placeholder);
        }
        out.push('\n');
    }
    for weight in Weight::ALL {
        let left: Vec<&Left> = report.left.iter().filter(|left| left.weight == weight).collect();
        if left.is_empty() {
            continue;
        }
        out.push_str(match weight {
            Weight::Served => "CHANGED: who is served, and by whom\n",
            Weight::Handled => "LEFT: how clients are served\n",
            Weight::Process => "LEFT: the other program's own process\n",
        });
        let mut reasons: Vec<(&str, &str, Vec<&Left>)> = Vec::new();
        for left in left {
            match reasons.iter_mut().find(|(why, todo, _)| *why == left.why && *todo == left.todo) {
                Some((_, _, same)) => same.push(left),
                None => reasons.push((&left.why, &left.todo, vec![left])),
            }
        }
        for (why, todo, entries) in reasons {
            reason(&mut out, (why, todo), &entries, weight == Weight::Process, &report.file);
        }
    }
    out
}

/// Writes a reason with its entries: one line per entry, or one line for all if `is_short`.
fn reason(out: &mut String, (why, todo): (&str, &str), entries: &[&Left], is_short: bool, main: &str) {
    let place = |left: &Left| {
        let file = Some(left.file.as_str()).filter(|file| *file != main);
        let file = file.map(|file| format!("{file}, ")).unwrap_or_default();
        match left.end > left.line {
            true => format!("{file}lines {}-{}", left.line, left.end),
            false => format!("{file}line {}", left.line),
        }
    };
    if is_short {
        let places: Vec<String> = entries.iter().map(|left| place(left)).collect();
        let text = format!("{}: {}.", capital(why), places.join(", ").replace(", line ", ", "));
        for line in textwrap::wrap(&text, 94) {
            let _ = writeln!(out, "  {line}");
        }
        return;
    }
    for text in [format!("{}.", capital(why)), format!("Instead: {todo}.")] {
        for line in textwrap::wrap(&text, 94) {
            let _ = writeln!(out, "  {line}");
        }
    }
    for left in entries {
        let _ = writeln!(out, "    {}: {}", place(left), left.text);
    }
}

/// Returns the text with its first letter in upper case.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).collect()
}
