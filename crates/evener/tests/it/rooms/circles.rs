//! No two files of core need each other, nor more of them in a circle: in each folder, files and
//! folders need each other one way only. A folder's `mod.rs` and all that is in the folder count as
//! one, so parents and their children may.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A file.
struct Module {
    /// The paths that it names: all its imports, and whatever else has a `::` in it.
    paths: BTreeSet<String>,
    /// By the name that it has here, what it imports or has others import from here.
    imports: BTreeMap<String, String>,
}

/// By path, from `crate` on.
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

/// A statement's tree of imports, if it has one, and what is before it.
fn split_use(statement: &str) -> (&str, Option<&str>) {
    let (before, tree) = statement.rsplit_once("use ").unwrap_or((statement, ""));
    let visibility = before.rsplit('\n').next().unwrap().trim();
    let is_use = !tree.is_empty() && (visibility.is_empty() || visibility.starts_with("pub"));
    if is_use { (before, Some(tree)) } else { (statement, None) }
}

/// Each path of a tree of imports, in full.
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

/// The file that has what a path names within a module, wherever it is imported from. It is the
/// module itself for other crates.
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

/// Files or folders of one folder: the first in which two paths differ, if neither holds the other.
fn siblings(one: &str, other: &str) -> Option<(String, String)> {
    let (one, other): (Vec<_>, Vec<_>) = (one.split("::").collect(), other.split("::").collect());
    let at = one.iter().zip(&other).position(|(one, other)| one != other)?;
    Some((one[..=at].join("::"), other[..=at].join("::")))
}

/// By file or folder, those of the same folder that it needs, and for what.
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

/// A sentence about a circle, if there is one.
fn circle(modules: &Modules) -> Option<String> {
    let mut needs = needs(modules);
    let mut before = 0;
    // A file that needs none of those that are left is in no circle.
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

/// Reads a module's file, and those of its children.
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
