//! `names_from`: files that hold names alone, so that programs can write them and there may be
//! many.

use std::collections::BTreeSet;

use super::name::{self, NameEntry, SettingsInterner};
use crate::config::problems::{Problem, ProblemSink};
use crate::config::section::Section;
use crate::config::{SourceText, patterns, syntax, variables};

/// The help for other keys in such a file.
const OTHERS: &str = "a file of `names_from` holds [[dns.name]] alone: move this into the file that names it";

/// A file of names, and what is wrong with it.
pub(in crate::config) struct NamesFile {
    /// As problems name it.
    pub(in crate::config) name: String,
    pub(in crate::config) text: String,
    pub(in crate::config) sink: ProblemSink,
}

/// Reads the files that the section names, relative to the folder of the origin, in the order in
/// which they are named and by name where several fit. Without a folder none is read.
pub(super) fn read(
    section: &mut Section<'_>,
    origin: SourceText<'_>,
    all: &mut SettingsInterner,
) -> (Vec<NamesFile>, Vec<NameEntry>) {
    let (mut files, mut names) = (Vec::new(), Vec::new());
    let patterns = section.one_or_list("names_from", patterns::pattern);
    let Some(folder) = origin.folder else { return (files, names) };
    let mut seen = BTreeSet::new();
    for pattern in &patterns {
        for path in patterns::find(folder, pattern, |problem| section.problem(problem)) {
            if !seen.insert(path.clone()) {
                continue;
            }
            match patterns::text(&path) {
                Ok(text) => {
                    let file =
                        NamesFile { name: path.display().to_string(), text, sink: ProblemSink::default() };
                    names.extend(names_of(&file, files.len(), origin.variables, all));
                    files.push(file);
                }
                Err(why) => {
                    let message = format!("{} cannot be read: {why}", path.display());
                    let help = "name a TOML file of [[dns.name]] that the daemon may read";
                    section.problem(Problem::new(pattern.span(), message, help));
                }
            }
        }
    }
    (files, names)
}

/// The names of a file, which is the one of this number.
fn names_of(
    file: &NamesFile,
    number: usize,
    lookup: variables::VariableLookup,
    all: &mut SettingsInterner,
) -> Vec<NameEntry> {
    let mut document = match syntax::parse(&file.text, &file.sink) {
        Ok(document) => document,
        Err(problem) => {
            file.sink.push(problem);
            return Vec::new();
        }
    };
    variables::expand(document.get_mut(), &file.text, lookup, &file.sink);
    let read = |section: &mut Section<'_>| name::read(section, Some(number), all);
    let names = Section::root(document.get_ref(), &file.sink, |root| {
        root.set_unknown_key_help(OTHERS);
        root.section("dns", |dns| {
            dns.set_unknown_key_help(OTHERS);
            dns.sections("name", read)
        })
    });
    names.into_iter().flatten().collect()
}
