//! Notes on important defaults of a valid file: the policies of services and names without one.

use std::collections::BTreeMap;

use super::problems::ProblemReport;

/// Maximum number of names listed per policy. A file may have hundreds of thousands of names.
const NAMES_SHOWN: usize = 8;

/// Services and names without `policy`, by their default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DefaultedPolicies {
    services: BTreeMap<&'static str, Vec<String>>,
    /// The first names, and the number of all.
    names: BTreeMap<&'static str, (Vec<String>, usize)>,
}

impl DefaultedPolicies {
    pub(super) fn service(&mut self, name: &str, policy: &'static str) {
        self.services.entry(policy).or_default().push(name.to_owned());
    }

    pub(super) fn name(&mut self, name: &dyn std::fmt::Display, policy: &'static str) {
        let (first, count) = self.names.entry(policy).or_default();
        *count += 1;
        if first.len() < NAMES_SHOWN {
            first.push(name.to_string());
        }
    }

    /// Returns a sentence for each policy.
    pub(super) fn notes(&self) -> Vec<String> {
        let services = self.services.iter().map(|(policy, names)| {
            let of = if names.len() == 1 { "service" } else { "services" };
            format!("policy {policy} (default) of {of} {}", names.join(", "))
        });
        let names = self.names.iter().map(|(policy, (first, count))| {
            let of = if *count == 1 { "name" } else { "names" };
            let more = match count - first.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("policy {policy} (default) of {of} {}{more}", first.join(", "))
        });
        services.chain(names).collect()
    }
}

/// Returns the notes on a valid file as a machine-readable list.
pub(super) fn reports<'a>(file: &'a str, notes: &'a [String]) -> impl Iterator<Item = ProblemReport<'a>> {
    notes.iter().map(move |message| ProblemReport {
        file,
        line: None,
        column: None,
        level: "note",
        message,
        help: "write `policy` to choose another",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_defaulted_names_are_listed_by_their_first() {
        let mut unwritten = DefaultedPolicies::default();
        unwritten.service("web", "power-of-two");
        (0..10).for_each(|number| unwritten.name(&format!("n{number}"), "random"));
        let expected = [
            "policy power-of-two (default) of service web",
            "policy random (default) of names n0, n1, n2, n3, n4, n5, n6, n7 and 2 more",
        ];
        assert_eq!(unwritten.notes(), expected);
    }
}
