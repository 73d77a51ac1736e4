//! Routes to members of a server group. The operator's routes come first. They are followed by
//! announced routes: the own paths and hosts of members.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::member::TrackedMember;
use crate::farm::Route;
use crate::farm::group::dispatch::RouteTo;
use crate::farm::group::joiner::pattern_text;
use crate::farm::group::model::Group;

/// Sort key of routes that members have announced: specificity of the host, then of the path, then
/// both texts. The most specific route comes first.
type RoutePrecedence = (Reverse<Specific>, Reverse<Specific>, String, String);
/// Specificity of a pattern: true if the pattern is not empty, true if it has no wildcard, and its
/// length. A greater value is more specific.
type Specific = (bool, bool, usize);

/// Returns all routes with the indexes of their members among the candidates. `place` returns a
/// member's index; `None` if the member is not a candidate.
///
/// If no member of an operator's route is a candidate, requests for the route fail, since other
/// members may not have the content. If no member of an announced route is a candidate, requests
/// for the route go to the members without a route.
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
        for (host, path) in member.joiner.pairs() {
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
    let is_listed = |member: &TrackedMember| {
        let name = member.listed.as_ref();
        name.is_some_and(|name| group.routes.iter().any(|route| route.servers.contains(name)))
    };
    let without_routes: Vec<usize> = members
        .iter()
        .filter(|member| member.joiner.pairs().is_empty() && !is_listed(member))
        .filter_map(|member| place(member))
        .collect();
    routes.extend(own.into_values().map(|mut route| {
        if route.members.is_empty() {
            route.members.clone_from(&without_routes);
        }
        route
    }));
    routes.truncate(crate::path::content::ROUTES_MAX);
    routes
}
