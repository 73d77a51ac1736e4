//! `evener import`: converts the configuration of another load balancer to `evener.toml`.
//!
//! Each statement of the source is carried over, or left with a reason. The report contains all of
//! them, so that no statement is lost silently. The TOML has passed the check of [`crate::config`].

mod assemble;
mod command;
mod draft;
mod features;
mod guess;
mod haproxy;
mod ipvsadm;
mod keepalived;
mod ledger;
mod nginx;
mod reasons;
mod render;
mod scanner;
mod settle;
mod source;
mod split;
mod tree;
mod values;

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

pub use crate::cli::ImportOrigin as Origin;
pub use command::run;
use draft::{DraftService, Placeholders};
use ledger::Ledger;
pub use ledger::{Blank, Left};
pub use reasons::Weight;
pub use source::ImportError;
use source::Source;
use tree::{Syntax, Tree};

/// Returns the name of the program on the command line.
const fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Haproxy => "haproxy",
        Origin::Ipvsadm => "ipvsadm",
        Origin::Keepalived => "keepalived",
        Origin::Nginx => "nginx",
    }
}

/// The result of an import. Sets of lines count from 1 over the source and all files that it
/// includes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    pub from: Origin,
    /// Name of the file, as given.
    pub file: String,
    /// Number of services in the TOML.
    pub services: usize,
    /// Text of evener.toml, with comments. Without services it has only comments.
    pub toml: String,
    /// Lines that were carried over, completely or in part.
    pub carried: BTreeSet<usize>,
    /// Lines, and parts of lines, that were left with a reason.
    pub left: Vec<Left>,
    /// Values that the user has to fill in.
    pub blanks: Vec<Blank>,
    /// Lines with content: not empty ones, comments or lone braces.
    pub significant: BTreeSet<usize>,
}

impl ImportReport {
    /// Returns the number of entries with this weight that were left.
    pub fn losses(&self, weight: Weight) -> usize {
        self.left.iter().filter(|left| left.weight == weight).count()
    }
}

/// Imports a file of the program `from`, or of the detected program.
/// Included files are searched in `folder`. Without a folder, no included file is read.
///
/// # Errors
/// If the file can't be parsed, or if its program isn't detected.
pub fn import(
    bytes: &[u8],
    name: &str,
    folder: Option<&Path>,
    from: Option<Origin>,
) -> Result<ImportReport, ImportError> {
    let source = Source::read(bytes, name)?;
    let Some(from) = from.or_else(|| guess::origin(&source)) else {
        let why = "the program of this file can't be determined: name it by --from";
        return Err(source.error(1, why));
    };
    let tree = match from {
        Origin::Haproxy | Origin::Ipvsadm => Tree { source, ..Tree::default() },
        Origin::Keepalived => tree::read(&source, Syntax::Lines, folder)?,
        Origin::Nginx => tree::read(&source, Syntax::Semicolons, folder)?,
    };
    let mut places = Placeholders::of(&tree.source);
    let (mut services, mut ledger) = match from {
        Origin::Haproxy => haproxy::read(&tree.source, &mut places),
        Origin::Ipvsadm => ipvsadm::read(&tree.source, &mut places),
        Origin::Keepalived => keepalived::read(&tree, &mut places),
        Origin::Nginx => nginx::read(&tree, &mut places),
    };
    services = split::services(services);
    settle::limit(&mut services, &mut ledger);
    unique_names(&mut services);
    let director = places.service();
    let head = head(name, from);
    let rendered = settle::farm(&mut services, &mut ledger, &head, &director.to_string());
    let todo = "the own address of each host that runs `evener run`".to_owned();
    ledger.blanks.push(Blank { line: None, placeholder: director.to_string(), todo });
    keep_blanks(&mut ledger, &rendered.text);
    ledger.close();
    let mut report = ImportReport {
        from,
        file: name.to_owned(),
        services: services.len(),
        toml: rendered.text,
        carried: tree.source.rows(&ledger.carried),
        significant: tree.source.rows(&ledger.significant),
        left: ledger.left,
        blanks: ledger.blanks,
    };
    report.toml.push_str(&command::remarks(&report));
    Ok(report)
}

/// Returns the comments at the beginning of the file.
fn head(name: &str, from: Origin) -> Vec<String> {
    let from = origin_name(from);
    vec![
        format!(
            "Made by `evener import` of {name} ({from}). The lines that were not imported are at the end."
        ),
        "Read it, fill in what is marked TO FILL IN, then run `evener check` on it.".to_owned(),
    ]
}

/// Drops the values whose placeholders aren't in the TOML.
fn keep_blanks(ledger: &mut Ledger<'_>, toml: &str) {
    let words = toml.split(|c: char| !c.is_ascii_digit() && c != '.');
    let addresses: BTreeSet<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut blanks = std::mem::take(&mut ledger.blanks);
    blanks.retain(|blank| addresses.contains(blank.placeholder.as_str()));
    blanks.sort_by_key(|blank| blank.line);
    ledger.blanks = blanks;
}

/// Makes the names of services unique, and the names of servers within each service.
fn unique_names(services: &mut [DraftService]) {
    let mut names = BTreeSet::new();
    for service in services.iter_mut() {
        service.name = draft::unused_name(&names, &service.name);
        names.insert(service.name.clone());
    }
}
