//! Routes as a file has them: which servers serve a request, by its host, path and method.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use crate::path::content::{HostPattern, PathPattern};

/// The servers of requests with a host, a path and a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The host: exact, or `*.` and a suffix; `None` is any.
    pub host: Option<HostPattern>,
    /// The path: exact, a prefix that ends in `/*`, or with `*` and `?` anywhere; `None` is any.
    pub path: Option<PathPattern>,
    /// The methods; none is any.
    pub methods: Vec<String>,
    /// Names of servers.
    pub servers: Vec<String>,
}

/// The routes of a service in their order, and the sets of servers that they name. There may be
/// thousands of routes: they are read once, and shared from then on.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct RouteList(Arc<RouteTable>);

#[derive(PartialEq, Eq, Default)]
struct RouteTable {
    routes: Vec<Route>,
    /// Each once, of names in order.
    sets: Vec<Vec<String>>,
    /// The set of each route.
    set_of: Vec<usize>,
}

impl RouteList {
    /// The sets of servers that routes name, each once. Names in a set are in order.
    pub fn sets(&self) -> &[Vec<String>] {
        &self.0.sets
    }

    /// The routes, each with the place of its servers in [`RouteList::sets`].
    pub fn with_sets(&self) -> impl Iterator<Item = (&Route, usize)> {
        self.0.routes.iter().zip(self.0.set_of.iter().copied())
    }

    /// Whether it is this very list: one that only says the same is not.
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
