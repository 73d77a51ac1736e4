//! Loads a configuration from a file or a text, or reports all problems.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;

use super::NamesText;
use super::include::{self, SourceText};
use super::keys::tables;
use super::problems::{ProblemReport, ProblemSink, Problems};
use super::references::References;
use super::section::Section;
use super::unwritten::{self, DefaultedPolicies};
use super::{Config, config, defaults, syntax};
use crate::runtime::terminal::has_colour;

/// Reads and validates the file at `path`.
///
/// # Errors
/// All problems at once.
pub fn load(path: &Path) -> Result<Config, Problems> {
    let (text, name) = (read_text(path)?, path.display().to_string());
    let origin = SourceText::of_file(path, &name, &text);
    read(origin, |_, _, _, _| {}).map(|checked| checked.config)
}

/// A valid file, as configuration and as tables.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: Config,
    /// Tables of the file and of its included files, with variables replaced.
    pub tables: toml::Table,
    /// Sources of the configuration and of its tables.
    pub sources: Arc<Sources>,
}

/// Sources for the validation of run-time changes. So changes use the same files as the
/// configuration in force, even if the files have changed.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub path: PathBuf,
    /// Files of `names_from`, in the order in which names are numbered.
    pub names: Vec<NamesText>,
}

/// Like [`load`], with the file's tables for changes.
///
/// # Errors
/// As for [`load`].
pub fn load_tables(path: &Path) -> Result<LoadedConfig, Problems> {
    let (text, name) = (read_text(path)?, path.display().to_string());
    let mut tables = None;
    let (checked, names) = read_with_names(SourceText::of_file(path, &name, &text), |_, _, _, document| {
        tables = toml::Table::deserialize(toml::Deserializer::from(document.clone())).ok();
    })?;
    let sources = Arc::new(Sources { path: path.to_owned(), names });
    Ok(LoadedConfig { config: checked.config, tables: tables.unwrap_or_default(), sources })
}

/// Reads a file again for a running program.
///
/// # Errors
/// As for [`load`], as text.
pub(crate) fn load_again(path: &Path) -> Result<LoadedConfig, String> {
    load_tables(path)
        .map_err(|problems| format!("the file has errors\n{}", problems.render(has_colour(&io::stderr()))))
}

/// Validates the text of a changed farm, with the names that were read before. Reads no file.
///
/// # Errors
/// All problems at once.
pub(crate) fn parse_changed(text: &str, sources: &Sources) -> Result<Config, Problems> {
    let Sources { path, names } = sources;
    let name = format!("{} with run-time changes", path.display());
    // The variables of the file are already replaced, and changes have none, so `${` is no
    // variable.
    let text = text.replace("${", "$${");
    let origin = SourceText { folder: path.parent(), names: Some(names), ..SourceText::alone(&name, &text) };
    read(origin, |_, _, _, _| {}).map(|checked| checked.config)
}

/// A valid file, and notes on its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    pub config: Config,
    /// Sentences about settings that the file leaves to defaults.
    pub notes: Vec<String>,
    /// Name of the file, as given.
    file: String,
}

impl Checked {
    /// Returns the notes as a machine-readable list.
    pub fn reports(&self) -> impl Iterator<Item = ProblemReport<'_>> {
        unwritten::reports(&self.file, &self.notes)
    }
}

/// Reads and validates the file at `path`. Unless `file_only` is set, also checks keys, tokens,
/// interfaces and folders on this host.
///
/// # Errors
/// All problems at once.
pub fn check(path: &Path, file_only: bool) -> Result<Checked, Problems> {
    let (text, name) = (read_text(path)?, path.display().to_string());
    let origin = SourceText::of_file(path, &name, &text);
    read(origin, |config, references, sink, _| {
        if !file_only {
            references.check(config, sink);
        }
    })
}

fn read_text(path: &Path) -> Result<String, Problems> {
    let name = path.display().to_string();
    let bytes = read_bytes(path).map_err(|error| {
        let help = match error.kind() {
            io::ErrorKind::NotFound => "name the file; evener.example.toml is one to begin with",
            io::ErrorKind::PermissionDenied => "run as a user who may read it",
            _ => "name a readable TOML file",
        };
        Problems::unreadable(&name, format!("failed to read {name}: {error}"), help)
    })?;
    if bytes.len() > defaults::FILE_BYTES {
        let message = format!("{name} is larger than {} KiB", defaults::FILE_BYTES / 1024);
        return Err(Problems::unreadable(
            &name,
            message,
            "name a TOML file; this is most likely another file",
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("{name} is not UTF-8 text: byte {at} is not");
        Problems::unreadable(&name, message, "save it as UTF-8")
    })
}

/// Reads at most one byte more than allowed, since a file may be endless.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(defaults::FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Validates `text`. Problems name `origin` as its file. Reads no other files and replaces no
/// variables.
///
/// # Errors
/// All problems at once.
pub fn parse(text: &str, origin: &str) -> Result<Config, Problems> {
    read(SourceText::alone(origin, text), |_, _, _, _| {}).map(|checked| checked.config)
}

/// Parses a text and its files, and calls `check` on the configuration.
fn read(
    origin: SourceText<'_>,
    check: impl FnOnce(&Config, &References, &ProblemSink, &Spanned<DeTable<'_>>),
) -> Result<Checked, Problems> {
    read_with_names(origin, check).map(|(checked, _)| checked)
}

/// Like [`read`], and also returns the files of names.
fn read_with_names(
    origin: SourceText<'_>,
    check: impl FnOnce(&Config, &References, &ProblemSink, &Spanned<DeTable<'_>>),
) -> Result<(Checked, Vec<NamesText>), Problems> {
    let SourceText { name, text, .. } = origin;
    let sink = ProblemSink::default();
    let mut document =
        syntax::parse(text, &sink).map_err(|problem| Problems::new(name, text, vec![problem]))?;
    let included = include::files(document.get_mut(), origin, &sink);
    include::merge(document.get_mut(), &included, origin, &sink);
    let origin = SourceText { included: &included, ..origin };
    let mut unwritten = DefaultedPolicies::default();
    let (config, references, files) =
        Section::root(document.get_ref(), tables::FILE, &sink, |root| config(root, origin, &mut unwritten));
    check(&config, &references, &sink, &document);
    drop(document);
    let mut found = include::by_file(sink.drain(), origin);
    found.extend(
        files.iter().map(|file| (file.source.name.as_str(), file.source.text.as_str(), file.sink.drain())),
    );
    match found.iter().all(|(_, _, problems)| problems.is_empty()) {
        true => {
            let mut notes = config.unverified();
            notes.extend(config.unlike_directors());
            notes.extend(config.misrouted_replies());
            notes.extend(config.bound_connections());
            notes.extend(unwritten.notes());
            let names = files.into_iter().map(|file| file.source).collect();
            Ok((Checked { config, notes, file: name.to_owned() }, names))
        }
        false => Err(Problems::of(name, found)),
    }
}
