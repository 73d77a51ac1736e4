//! `names_from`: files with nothing but names, which programs can write, and which can be many.

use std::collections::BTreeSet;
use std::path::Path;

use toml::Spanned;

use super::name::{self, NameEntry, SettingsInterner};
use crate::config::keys::tables;
use crate::config::problems::{Problem, ProblemSink};
use crate::config::section::Section;
use crate::config::{SourceText, patterns, syntax, variables};

/// Help for other keys in a file of `names_from`.
const OTHERS: &str = "a file of `names_from` holds [[dns.name]] alone: move this into the file that names it";

/// Text of a file of `names_from`.
#[derive(Clone, Debug)]
pub struct NamesText {
    /// Path, which problems show.
    pub name: String,
    pub text: String,
}

/// A file of names, and its problems.
pub(in crate::config) struct NamesFile {
    pub(in crate::config) source: NamesText,
    pub(in crate::config) sink: ProblemSink,
}

/// Reads the names of all files that the section names, or of files that were read before.
pub(super) fn read(
    section: &Section<'_>,
    origin: SourceText<'_>,
    all: &mut SettingsInterner,
) -> (Vec<NamesFile>, Vec<NameEntry>) {
    let patterns = section.one_or_list(&tables::dns::NAMES_FROM, patterns::pattern);
    let texts = match (origin.names, origin.folder) {
        (Some(texts), _) => texts.to_vec(),
        (None, Some(folder)) => texts_of(section, folder, &patterns),
        (None, None) => Vec::new(),
    };
    let (mut files, mut names) = (Vec::new(), Vec::new());
    for source in texts {
        let file = NamesFile { source, sink: ProblemSink::default() };
        names.extend(names_of(&file, files.len(), origin.variables, all));
        files.push(file);
    }
    (files, names)
}

/// Reads the files that match the patterns, relative to `folder`: in the order of the patterns, and
/// in alphabetical order within one.
fn texts_of(section: &Section<'_>, folder: &Path, patterns: &[Spanned<String>]) -> Vec<NamesText> {
    let (mut texts, mut seen) = (Vec::new(), BTreeSet::new());
    for pattern in patterns {
        for path in patterns::find(folder, pattern, |problem| section.problem(problem)) {
            if !seen.insert(path.clone()) {
                continue;
            }
            match patterns::text(&path) {
                Ok(text) => texts.push(NamesText { name: path.display().to_string(), text }),
                Err(why) => {
                    let message = format!("failed to read {}: {why}", path.display());
                    let help = "name a TOML file of [[dns.name]] that the daemon may read";
                    section.problem(Problem::new(pattern.span(), message, help));
                }
            }
        }
    }
    texts
}

/// Reads the names of the file with this number.
fn names_of(
    file: &NamesFile,
    number: usize,
    lookup: variables::VariableLookup,
    all: &mut SettingsInterner,
) -> Vec<NameEntry> {
    let text = &file.source.text;
    let mut document = match syntax::parse(text, &file.sink) {
        Ok(document) => document,
        Err(problem) => {
            file.sink.push(problem);
            return Vec::new();
        }
    };
    variables::expand(document.get_mut(), text, lookup, &file.sink);
    let read = |section: &mut Section<'_>| name::read(section, Some(number), all);
    let names = Section::root(document.get_ref(), tables::NAMES_FILE, &file.sink, |root| {
        root.set_unknown_key_help(OTHERS);
        root.section(&tables::NAMES_FILE_DNS, |dns| {
            dns.set_unknown_key_help(OTHERS);
            dns.sections(&tables::dns::NAME, read)
        })
    });
    names.into_iter().flatten().collect()
}
