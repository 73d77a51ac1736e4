//! Routes of a farm file. A route says which servers serve a request, by the request's host, path
//! and method.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use crate::path::content::{HostPattern, PathPattern};

/// Servers for the requests that match a host, a path and a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Host: exact, or `*.` and a suffix; `None` for any.
    pub host: Option<HostPattern>,
    /// Path: an exact path, a prefix that ends in `/*`, or a pattern with `*` and `?`; `None` for
    /// any.
    pub path: Option<PathPattern>,
    /// Methods; empty for any.
    pub methods: Vec<String>,
    pub servers: Vec<String>,
}

/// Routes of a service in order of matching, and the sets of servers that they name. The list is
/// shared, since there may be thousands of routes.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct RouteList(Arc<RouteTable>);

#[derive(PartialEq, Eq, Default)]
struct RouteTable {
    routes: Vec<Route>,
    /// Distinct sets of servers. The names in a set are sorted.
    sets: Vec<Vec<String>>,
    /// Index in `sets` of each route's servers.
    set_of: Vec<usize>,
}

impl RouteList {
    /// Returns the distinct sets of servers that routes name. Names in a set are sorted.
    pub fn sets(&self) -> &[Vec<String>] {
        &self.0.sets
    }

    /// Returns the routes, each with the index of its servers in [`RouteList::sets`].
    pub fn with_sets(&self) -> impl Iterator<Item = (&Route, usize)> {
        self.0.routes.iter().zip(self.0.set_of.iter().copied())
    }

    /// True if both share one list in memory. False for lists that are merely equal.
    pub fn is(&self, other: &RouteList) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<Vec<Route>> for RouteList {
    fn from(routes: Vec<Route>) -> RouteList {
        let mut places = BTreeMap::new();
        let mut sets = Vec::new();
        let mut place = |route: &Route| {
            let names: BTreeSet<&String> = route.servers.iter().collect();
            let names: Vec<String> = names.into_iter().cloned().collect();
            *places.entry(names).or_insert_with_key(|names| {
                sets.push(names.clone());
                sets.len() - 1
            })
        };
        let set_of = routes.iter().map(&mut place).collect();
        RouteList(Arc::new(RouteTable { routes, sets, set_of }))
    }
}

impl Deref for RouteList {
    type Target = [Route];

    fn deref(&self) -> &[Route] {
        &self.0.routes
    }
}

impl fmt::Debug for RouteList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.routes.fmt(f)
    }
}
