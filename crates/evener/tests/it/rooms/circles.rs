//! No dependency cycles among the files of core: within a folder, files and subfolders depend on
//! each other in one direction only. A folder's `mod.rs` and the files in the folder count as one
//! unit, so parents and children may use each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

struct Module {
    /// Paths in the code: all imports, and every other text with a `::`.
    paths: BTreeSet<String>,
    /// Imported and re-exported paths, by local name.
    imports: BTreeMap<String, String>,
}

/// Modules by path from `crate` on.
type Modules = BTreeMap<String, Module>;

impl Module {
    fn read(code: &str) -> Module {
        let (mut paths, mut imports) = (BTreeSet::new(), BTreeMap::new());
        for statement in code.split(';') {
            let (other_code, tree) = split_use(statement);
            for import in tree.map(expand).unwrap_or_default() {
                let (path, name) = import.split_once(" as ").unwrap_or((&import, last(&import)));
                imports.insert(name.to_owned(), path.to_owned());
                paths.insert(path.to_owned());
            }
            let words = other_code.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
            paths.extend(words.filter(|word| word.contains("::")).map(str::to_owned));
        }
        Module { paths, imports }
    }
}

fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap()
}

/// Splits a statement into its import tree, if it has one, and the text before.
fn split_use(statement: &str) -> (&str, Option<&str>) {
    let (before, tree) = statement.rsplit_once("use ").unwrap_or((statement, ""));
    let visibility = before.rsplit('\n').next().unwrap().trim();
    let is_use = !tree.is_empty() && (visibility.is_empty() || visibility.starts_with("pub"));
    if is_use { (before, Some(tree)) } else { (statement, None) }
}

/// Returns all full paths of an import tree.
fn expand(tree: &str) -> Vec<String> {
    let Some((start, list)) = tree.trim().split_once('{') else {
        return vec![tree.trim().to_owned()];
    };
    let mut depth = 0;
    let parts = list.strip_suffix('}').unwrap().split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.flat_map(expand).filter(|part| !part.is_empty());
    parts.map(|part| format!("{start}{part}").trim_end_matches("::self").to_owned()).collect()
}

/// Returns the module that defines the item of a path, following re-exports. For other crates,
/// returns `module` itself.
fn home(modules: &Modules, module: &str, path: &str) -> String {
    let (first, rest) = path.split_once("::").unwrap_or((path, ""));
    let child = format!("{module}::{first}");
    match (first, modules[module].imports.get(first)) {
        ("", _) => module.to_owned(),
        ("crate", _) => home(modules, first, rest),
        ("self", _) => home(modules, module, rest),
        ("super", _) => home(modules, module.rsplit_once("::").unwrap().0, rest),
        _ if modules.contains_key(&child) => home(modules, &child, rest),
        (_, Some(path)) if !path.starts_with(&format!("{first}::")) => {
            home(modules, module, &format!("{path}::{rest}"))
        }
        _ => module.to_owned(),
    }
}

/// Returns the first components in which two paths differ. `None` if one path contains the other.
fn siblings(one: &str, other: &str) -> Option<(String, String)> {
    let (one, other): (Vec<_>, Vec<_>) = (one.split("::").collect(), other.split("::").collect());
    let at = one.iter().zip(&other).position(|(one, other)| one != other)?;
    Some((one[..=at].join("::"), other[..=at].join("::")))
}

/// Returns the dependencies between files or folders of the same folder, each with an example.
fn needs(modules: &Modules) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut needs = BTreeMap::<_, BTreeMap<_, _>>::new();
    for (name, module) in modules {
        for path in &module.paths {
            if let Some((one, other)) = siblings(name, &home(modules, name, path)) {
                let file = name.trim_start_matches("crate::").replace("::", "/");
                needs.entry(one).or_default().entry(other).or_insert(format!("{file} needs {path}"));
            }
        }
    }
    needs
}

/// Returns a description of a dependency cycle, if there is one.
fn circle(modules: &Modules) -> Option<String> {
    let mut needs = needs(modules);
    let mut before = 0;
    // A file without dependencies on remaining files is in no cycle.
    while before != needs.len() {
        before = needs.len();
        let left: BTreeSet<_> = needs.keys().cloned().collect();
        needs.values_mut().for_each(|others| others.retain(|other, _| left.contains(other)));
        needs.retain(|_, others| !others.is_empty());
    }
    let (mut at, mut way) = (needs.keys().next()?, Vec::new());
    while !way.contains(&at) {
        way.push(at);
        at = needs[at].keys().next()?;
    }
    let circle = way.iter().skip_while(|step| **step != at);
    let steps = circle.map(|step| needs[*step].values().next().unwrap().as_str());
    Some(steps.collect::<Vec<_>>().join(", and "))
}

/// Reads a module's file and its child modules.
fn read(source: &Path, module: &str, modules: &mut Modules) {
    let place = source.join(module.split("::").skip(1).collect::<PathBuf>());
    let files = [place.join("lib.rs"), place.join("mod.rs"), place.with_extension("rs")];
    let code = super::code(files.iter().find(|file| file.exists()).unwrap());
    for child in code.lines().filter_map(|line| line.strip_suffix(';')?.split_once("mod ")) {
        read(source, &format!("{module}::{}", child.1), modules);
    }
    modules.insert(module.to_owned(), Module::read(&code));
}

#[test]
fn files_of_core_need_each_other_in_no_circle() {
    let mut modules = Modules::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src"), "crate", &mut modules);
    let seen: usize = needs(&modules).values().map(BTreeMap::len).sum();
    assert!(seen > 200, "{} files that need each other {seen} times are no crate", modules.len());
    assert_eq!(circle(&modules), None, "files need each other in a circle: move what is needed");
}

#[test]
fn circles_are_found() {
    let circle = |files: &[(&str, &str)]| {
        circle(&files.iter().map(|(name, code)| ((*name).to_owned(), Module::read(code))).collect())
    };
    let parents = [("crate", "mod a;"), ("crate::a", "mod one;\nmod two;\npub use two::{Two};")];
    let with = |one, two| circle(&[&parents[..], &[("crate::a::one", one), ("crate::a::two", two)]].concat());
    assert_eq!(with("use super::Two;", "use core::fmt;"), None, "one way");
    let found = Some("a/one needs super::Two, and a/two needs crate::a::one::One".to_owned());
    assert_eq!(with("use super::Two;", "use crate::{\n    a::{one::{One as Other}},\n};"), found);
    let found = Some("a/one needs super::two, and a/two needs super::one::X".to_owned());
    assert_eq!(
        with("use super::{self as a, two::{self}};\nfn f(_: two::Two) {}", "const X: u8 = super::one::X;"),
        found
    );
}
