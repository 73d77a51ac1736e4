//! Builds all changes at once. Changes in functions with compile errors are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::gate::{GatedFile, SourceFile};
use super::tree::{FARMS, NUMBER, TESTS, Tree};
use super::{Mutant, Wanted};

/// Folder of the source files that can use the module `mutant`.
const CORE: &str = "crates/core/src/";
/// Number of failed builds after which all changes are removed.
const ROUNDS: usize = 12;

/// Source of the module `mutant` in the copy's core. Core itself has no `std`.
fn module() -> String {
    format!(
        "extern crate std;

static NUMBER: std::sync::OnceLock<usize> = std::sync::OnceLock::new();

fn number() -> usize {{
    let number = std::env::var(\"{NUMBER}\").ok();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}}

#[inline]
pub(crate) fn is(wanted: usize) -> bool {{
    *NUMBER.get_or_init(number) == wanted
}}
"
    )
}

/// Source files with all changes that can be built together.
pub(super) struct GatedSources {
    /// Files by their path below the tree.
    files: BTreeMap<String, SourceFile>,
    /// Numbers of the changes.
    pub(super) numbers: BTreeSet<usize>,
}

/// Line of cargo's JSON output.
#[derive(Deserialize)]
struct CargoMessage {
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    message: String,
    spans: Vec<DiagnosticSpan>,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct DiagnosticSpan {
    file_name: String,
    byte_start: usize,
    is_primary: bool,
    expansion: Option<Box<Expansion>>,
}

/// Position of a macro call that the code comes from.
#[derive(Deserialize)]
struct Expansion {
    span: DiagnosticSpan,
}

impl GatedSources {
    /// Applies each change alone to the copy and records the changed functions. Changes outside of
    /// function bodies or outside of core are left out.
    ///
    /// # Errors
    /// Fails if a change does not apply.
    pub(super) fn new(tree: &Tree, changes: &[(usize, &Mutant)]) -> Result<GatedSources> {
        let mut sources = GatedSources { files: BTreeMap::new(), numbers: BTreeSet::new() };
        for (number, mutant) in changes {
            if sources.add(tree, *number, mutant)? {
                sources.numbers.insert(*number);
            } else {
                sources.remove(&[*number].into());
            }
        }
        tree.restore()?;
        Ok(sources)
    }

    fn add(&mut self, tree: &Tree, number: usize, mutant: &Mutant) -> Result<bool> {
        let names = mutant.diff.lines().filter_map(|line| line.strip_prefix("+++ b/"));
        let names: Vec<&str> = names.map(|name| name.split('\t').next().unwrap_or(name)).collect();
        tree.restore()?;
        for name in &names {
            if self.files.contains_key(*name) {
                continue;
            }
            let path = tree.path.join(name);
            if !name.starts_with(CORE) || !path.exists() {
                return Ok(false);
            }
            let Some(file) = SourceFile::new(fs::read_to_string(path)?) else { return Ok(false) };
            self.files.insert((*name).to_owned(), file);
        }
        tree.apply(mutant)?;
        for name in &names {
            let Some(file) = self.files.get_mut(*name) else { return Ok(false) };
            if !file.add(number, &fs::read_to_string(tree.path.join(name))?) {
                return Ok(false);
            }
        }
        Ok(!names.is_empty())
    }

    fn remove(&mut self, numbers: &BTreeSet<usize>) {
        self.files.values_mut().for_each(|file| file.remove(numbers));
        self.numbers.retain(|number| !numbers.contains(number));
    }

    /// Builds tests and farms with all changes. Changes that do not compile are removed.
    ///
    /// # Errors
    /// Fails if the copy does not compile without changes.
    pub(super) fn build(&mut self, tree: &Tree, wanted: &Wanted) -> Result<()> {
        let mut builds: Vec<Vec<&str>> = vec![[&["check"], &TESTS[..]].concat()];
        if !wanted.only_farms {
            builds.push([&["test", "--no-run"], &TESTS[..]].concat());
        }
        if wanted.farms > 0 {
            builds.push([&["build"], &FARMS[..]].concat());
        }
        for round in 1.. {
            let files = self.write(tree)?;
            let Some(errors) = first_errors(tree, &builds)? else { break };
            let numbers: BTreeSet<usize> = errors.iter().flat_map(|error| suspects(error, &files)).collect();
            if self.numbers.is_empty() {
                let text = errors.first().map(|error| error.rendered.as_ref().unwrap_or(&error.message));
                bail!("the copy does not compile without any change: {}", text.map_or("", String::as_str));
            }
            let numbers = if numbers.is_empty() || round >= ROUNDS { self.numbers.clone() } else { numbers };
            eprintln!("{} of {} do not compile beside the others", numbers.len(), self.numbers.len());
            self.remove(&numbers);
        }
        Ok(())
    }

    /// Writes the files with their changes to the copy.
    fn write(&self, tree: &Tree) -> Result<BTreeMap<&str, GatedFile>> {
        tree.restore()?;
        let core = tree.path.join(CORE);
        fs::write(core.join("mutant.rs"), module())?;
        let mut files = BTreeMap::new();
        for (name, file) in &self.files {
            let gated = file.gated();
            fs::write(tree.path.join(name), &gated.text)?;
            files.insert(name.as_str(), gated);
        }
        let root = core.join("lib.rs");
        let text = fs::read_to_string(&root).with_context(|| format!("{}", root.display()))?;
        fs::write(root, format!("{text}\nmod mutant;\n"))?;
        Ok(files)
    }
}

/// Returns the errors of the first build that fails; `None` if all succeed.
fn first_errors(tree: &Tree, builds: &[Vec<&str>]) -> Result<Option<Vec<Diagnostic>>> {
    for arguments in builds {
        let build = tree.cargo(&[&arguments[..], &["--message-format=json"]].concat())?;
        if build.status.success() {
            continue;
        }
        let output = String::from_utf8_lossy(&build.stdout);
        let messages = output.lines().filter_map(|line| serde_json::from_str::<CargoMessage>(line).ok());
        let messages = messages.filter_map(|line| line.message);
        let errors: Vec<Diagnostic> = messages.filter(|message| message.level == "error").collect();
        if errors.is_empty() {
            bail!("cargo {}: {}", arguments.join(" "), String::from_utf8_lossy(&build.stderr).trim());
        }
        return Ok(Some(errors));
    }
    Ok(None)
}

/// Returns the changes in whose code an error is: at its primary positions, or else at any other
/// position.
fn suspects(error: &Diagnostic, files: &BTreeMap<&str, GatedFile>) -> BTreeSet<usize> {
    let numbers = |is_primary: bool| -> BTreeSet<usize> {
        let spans = error.spans.iter().filter(|span| span.is_primary == is_primary);
        spans.flat_map(|span| numbers_at(span, files)).collect()
    };
    let primary = numbers(true);
    if primary.is_empty() { numbers(false) } else { primary }
}

fn numbers_at(span: &DiagnosticSpan, files: &BTreeMap<&str, GatedFile>) -> BTreeSet<usize> {
    let here = files.get(span.file_name.as_str()).map(|file| file.numbers_at(span.byte_start));
    match here.filter(|numbers| !numbers.is_empty()) {
        Some(numbers) => numbers,
        None => span.expansion.as_ref().map(|outer| numbers_at(&outer.span, files)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    /// An error of the compiler, in cargo's format.
    fn error(spans: &str) -> Diagnostic {
        let json = format!(
            r#"{{"reason": "compiler-message", "message": {{"level": "error", "message": "m",
               "rendered": null, "spans": [{spans}]}}}}"#
        );
        serde_json::from_str::<CargoMessage>(&json).unwrap().message.unwrap()
    }

    fn span(file: &str, byte: usize, is_primary: bool, expansion: &str) -> String {
        format!(
            r#"{{"file_name": "{file}", "byte_start": {byte}, "byte_end": {byte},
               "is_primary": {is_primary}, "expansion": {expansion}}}"#
        )
    }

    #[test]
    fn errors_take_out_the_changes_that_have_them() {
        let source = "fn f() { old() }\nfn g() { more() }\n";
        let mut file = SourceFile::new(source.to_owned()).unwrap();
        assert!(file.add(1, &source.replace("old", "first")));
        assert!(file.add(2, &source.replace("old", "second")));
        assert!(file.add(3, &source.replace("more", "third")));
        let gated = file.gated();
        let at = |text: &str| gated.text.find(text).unwrap();
        let (first, original, third) = (at("first"), at("old"), at("third"));
        let files = BTreeMap::from([("a.rs", gated)]);
        let suspects = |spans: &str| suspects(&error(spans), &files);
        assert_eq!(suspects(&span("a.rs", first, true, "null")), [1].into());
        assert_eq!(suspects(&span("a.rs", original, true, "null")), [1, 2].into());
        assert_eq!(suspects(&span("b.rs", first, true, "null")), [].into());
        let primary = span("a.rs", third, true, "null");
        assert_eq!(suspects(&format!("{}, {primary}", span("a.rs", first, false, "null"))), [3].into());
        let call = format!(r#"{{"span": {}}}"#, span("a.rs", third, false, "null"));
        assert_eq!(suspects(&span("core.rs", 5, true, &call)), [3].into());
    }
}
