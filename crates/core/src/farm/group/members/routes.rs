//! Which members are for what only some of them serve: as the operator's routes say, then as
//! members said when they joined.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::member::TrackedMember;
use crate::farm::Route;
use crate::farm::group::dispatch::RouteTo;
use crate::farm::group::joiner::{Joiner, pattern_text};
use crate::farm::group::model::Group;
use crate::path::content::{HostPattern, PathPattern};

/// A route of members' own: hosts before paths alone, and of each the exact before those with
/// stars, and the long before the short.
type RoutePrecedence = (Reverse<Specific>, Reverse<Specific>, String, String);
/// Whether there is one, whether it is exact, and its length.
type Specific = (bool, bool, usize);

/// How many routes a member brings.
pub(super) fn count(joiner: &Joiner) -> usize {
    match (joiner.hosts.len(), joiner.paths.len()) {
        (0, paths) => paths,
        (hosts, 0) => hosts,
        (hosts, paths) => hosts * paths,
    }
}

/// All routes, with the places of those that they name among the chosen. A route of members that
/// can't be chosen has no members for now: the others don't have it.
pub(super) fn all(
    group: &Group,
    members: &[&TrackedMember],
    place: impl Fn(&TrackedMember) -> Option<usize>,
) -> Vec<RouteTo> {
    let named = |name: &String| {
        members.iter().find(|member| member.listed.as_ref() == Some(name)).and_then(|member| place(member))
    };
    let mut routes: Vec<RouteTo> = group
        .routes
        .iter()
        .map(|route| RouteTo {
            route: route.clone(),
            members: route.servers.iter().filter_map(named).collect(),
        })
        .collect();
    let mut own: BTreeMap<RoutePrecedence, RouteTo> = BTreeMap::new();
    for member in members.iter().filter(|member| !member.left) {
        for (host, path) in pairs(&member.joiner) {
            let (host_text, path_text) = pattern_text(host, path);
            let specific = |text: &str| (!text.is_empty(), !text.contains(['*', '?']), text.len());
            let order = (Reverse(specific(&host_text)), Reverse(specific(&path_text)), host_text, path_text);
            let route = own.entry(order).or_insert_with(|| RouteTo {
                route: Route {
                    host: host.cloned(),
                    path: path.cloned(),
                    methods: Vec::new(),
                    servers: Vec::new(),
                },
                members: Vec::new(),
            });
            route.members.extend(place(member));
        }
    }
    routes.extend(own.into_values());
    routes.truncate(crate::path::content::ROUTES_MAX);
    routes
}

/// Each host with each path; where there are none of one kind, any.
fn pairs(joiner: &Joiner) -> Vec<(Option<&HostPattern>, Option<&PathPattern>)> {
    let hosts: Vec<Option<&HostPattern>> = or_any(&joiner.hosts);
    let paths: Vec<Option<&PathPattern>> = or_any(&joiner.paths);
    let some = hosts.iter().flat_map(|host| paths.iter().map(|path| (*host, *path)));
    some.filter(|pair| *pair != (None, None)).collect()
}

fn or_any<T>(list: &[T]) -> Vec<Option<&T>> {
    if list.is_empty() { alloc::vec![None] } else { list.iter().map(Some).collect() }
}
