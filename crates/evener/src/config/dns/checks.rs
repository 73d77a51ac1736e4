//! Checks of names against each other, zones and services, across all files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use evener_core::dns::Name;
use evener_core::pool::signals::Signals;

use super::files::NamesFile;
use super::name::NameEntry;
use super::{ServiceReference, ZoneConfig, signals};
use crate::config::problems::{Problem, Span, line_and_column};
use crate::config::section::Section;
use crate::config::{SourceText, include};
use crate::runtime::spelling::meant;

/// Files with names: the main file's section, and the files of `names_from` by number.
pub(super) struct NameFiles<'a, 'd> {
    pub(super) section: &'a Section<'d>,
    pub(super) origin: SourceText<'a>,
    pub(super) others: &'a [NamesFile],
}

impl NameFiles<'_, '_> {
    fn problem(&self, placed: &NameEntry, problem: Problem) {
        match placed.file.and_then(|number| self.others.get(number)) {
            Some(file) => file.sink.push(problem),
            None => self.section.problem(problem),
        }
    }

    /// Reports a problem of `placed` that another position explains.
    fn problem_with_other(
        &self,
        placed: &NameEntry,
        problem: Problem,
        other: (Option<usize>, &Span, &'static str),
    ) {
        let (file, span, label) = other;
        if file == placed.file {
            return self.problem(placed, problem.also(span.clone(), label));
        }
        let (name, text, at) = match file.and_then(|number| self.others.get(number)) {
            Some(file) => (file.source.name.as_str(), file.source.text.as_str(), span.start),
            None => include::file_at(self.origin, span.start),
        };
        let line = line_and_column(text, at).0;
        let message = format!("{} ({label}: {name}:{line})", problem.message);
        self.problem(placed, Problem { message, ..problem });
    }
}

/// Checks that each name is in a zone, is unique, is no service's name, and names existing
/// services.
pub(super) fn check(
    files: &NameFiles<'_, '_>,
    zones: &[(ZoneConfig, Span)],
    names: &[NameEntry],
    services: &[ServiceReference<'_>],
) {
    let zones: BTreeSet<&[u8]> = zones.iter().map(|(zone, _)| zone.name.as_wire()).collect();
    let by_name: BTreeMap<&str, &ServiceReference<'_>> =
        services.iter().map(|followed| (followed.name, followed)).collect();
    // Names are case-insensitive, and a service's name may be no DNS name.
    let like_names =
        services.iter().filter_map(|followed| Some((Name::parse(followed.name).ok()?, followed)));
    let like_names: BTreeMap<Name, &ServiceReference<'_>> = like_names.collect();
    let mut seen: BTreeMap<&Name, &NameEntry> = BTreeMap::new();
    let mut written: BTreeMap<&PathBuf, (&NameEntry, Span)> = BTreeMap::new();
    for placed in names {
        for file in &placed.files {
            if let Some((first, span)) = written.get(file.get_ref()) {
                let message = format!("{} is written twice", file.get_ref().display());
                let problem = Problem::new(file.span(), message, "give each file a name of its own");
                files.problem_with_other(placed, problem, (first.file, span, "first here"));
            } else {
                written.insert(file.get_ref(), (placed, file.span()));
            }
        }
        let (name, span) = (&placed.config.name.settings.name, &placed.name);
        if let Some(first) = seen.get(name) {
            let help = "name all its services in one [[dns.name]]";
            let problem = Problem::new(span.clone(), format!("{name} is balanced twice"), help);
            files.problem_with_other(placed, problem, (first.file, &first.name, "first here"));
        } else {
            seen.insert(name, placed);
        }
        if !name.and_above().any(|above| zones.contains(above)) {
            let parent = name.to_string();
            let parent = parent.split_once('.').map_or(parent.as_str(), |(_, parent)| parent);
            let help = format!("add [[dns.zone]] with name = \"{parent}\"");
            files.problem(placed, Problem::new(span.clone(), format!("no zone has {name}"), help));
        }
        if let Some(service) = like_names.get(name) {
            let message =
                format!("{name} is the name of a service too, and `evener drain` could not distinguish them");
            let problem = Problem::new(span.clone(), message, "give the service another name");
            files.problem_with_other(placed, problem, (None, &service.span, "the service"));
        }
        check_services(files, placed, &by_name);
    }
}

fn check_services(
    files: &NameFiles<'_, '_>,
    placed: &NameEntry,
    services: &BTreeMap<&str, &ServiceReference<'_>>,
) {
    for service in &placed.services {
        if let Some(followed) = services.get(service.get_ref().as_str()) {
            let who = format!("no load is queried from the servers of service {:?}", followed.name);
            can_weigh(files, placed, &followed.signals, &who, "[service.report] to it");
            continue;
        }
        let message = format!("there is no service {:?}", service.get_ref());
        let help = meant(service.get_ref(), services.keys().copied());
        files.problem(placed, Problem::new(service.span(), message, help));
    }
    if let Some(list) = placed.config.name.list() {
        let known = signals(true, list.settings.report.as_deref());
        can_weigh(files, placed, &known, "no load is queried from these servers", "[dns.name.report]");
    }
}

/// Reports a policy that needs signals which are never known.
fn can_weigh(files: &NameFiles<'_, '_>, placed: &NameEntry, known: &Signals, who: &str, add: &str) {
    let policy = placed.config.name.policy;
    let Some(weighing) = placed.config.name.weighing() else { return };
    if let (None, Some(span)) = ((weighing.load)(known), placed.policy.clone()) {
        let message = format!("policy \"{}\" needs the load that servers report, and {who}", policy.name);
        let help = format!("add {add}, or write policy = \"random\"");
        files.problem(placed, Problem::new(span, message, help));
    }
}
