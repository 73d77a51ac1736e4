//! Routes in the order of the file, and the table that they are found by.
//!
//! The first route that takes a request wins. Most routes are *simple*: a host, a host's end or
//! any; a path, a path's beginning or any; methods that have a class. Such a route has one key, so
//! that whatever takes a request is among a bounded number of look-ups, and the smallest number of
//! those is the first. Other routes are decided by asking, and so is whatever might be one's.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::pattern::LiteralPattern;
use super::{
    ANY, CLASSES, EXACT, HOST_LABELS_MAX, HashKey, HostPattern, PART, PATH_DEPTH_MAX, PRESENT, PathPattern,
    RequestClass, RequestKey, RouteKey,
};

/// In place of a route's number: none.
pub const NO_ROUTE: u16 = u16::MAX;
/// Routes of one service.
pub const ROUTES_MAX: usize = NO_ROUTE as usize;

/// A route as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePattern {
    /// The hosts that it takes; all if there is none.
    pub host: Option<HostPattern>,
    /// The paths that it takes; all if there is none.
    pub path: Option<PathPattern>,
    /// The methods that it takes; all if there are none.
    pub methods: Vec<String>,
    /// The ring of its servers.
    pub ring: u16,
}

impl RoutePattern {
    /// True if the route takes a request. A TLS hello has neither path nor method, so only routes
    /// without both take one.
    pub fn takes(&self, key: &RequestKey<'_>) -> bool {
        let host = self.host.as_ref().is_none_or(|host| host.matches(key.host));
        let hello = key.class == RequestClass::Hello;
        let path = self.path.as_ref().is_none_or(|path| !hello && path.matches(key.path));
        let named = |method: &String| !hello && method.as_bytes() == key.method;
        host && path && (self.methods.is_empty() || self.methods.iter().any(named))
    }

    /// Returns the single hash key of a simple route.
    fn key(&self, key: HashKey) -> Option<RouteKey> {
        if self.methods.iter().any(|method| RequestClass::of(method.as_bytes()) == RequestClass::Other) {
            return None;
        }
        let host = match self.host.as_ref().map(HostPattern::simple) {
            None => ANY,
            Some(Some(LiteralPattern::Exact(host))) => key.host(host.as_bytes()) | EXACT,
            Some(Some(LiteralPattern::Part(end))) => key.host(end.as_bytes()) | PART,
            Some(None) => return None,
        };
        let path = match self.path.as_ref().map(PathPattern::simple) {
            None => ANY,
            Some(Some(LiteralPattern::Exact(path))) => key.path(path.as_bytes()) | EXACT,
            Some(Some(LiteralPattern::Part(beginning))) => key.path(beginning.as_bytes()) | PART,
            Some(None) => return None,
        };
        Some(RouteKey { host, path })
    }

    /// The classes that it takes, if it is simple.
    fn classes(&self) -> impl Iterator<Item = RequestClass> {
        RequestClass::ALL.into_iter().filter(|class| match class {
            RequestClass::Hello => self.path.is_none() && self.methods.is_empty(),
            _ => {
                self.methods.is_empty()
                    || self.methods.iter().any(|m| RequestClass::of(m.as_bytes()) == *class)
            }
        })
    }
}

/// For each [`RequestClass`], the first route of a key that takes it. All that there is to know: of
/// two routes with one key and one class the second never wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// The route's number, or [`NO_ROUTE`].
    pub route: [u16; CLASSES],
    /// Ring of each class; meaningless without a route.
    pub ring: [u16; CLASSES],
}

impl RouteEntry {
    const NONE: RouteEntry = RouteEntry { route: [NO_ROUTE; CLASSES], ring: [0; CLASSES] };

    /// Routes come in their order, so that who is there stays.
    fn add(&mut self, class: RequestClass, route: u16, ring: u16) {
        let places = (self.route.get_mut(class as usize), self.ring.get_mut(class as usize));
        if let (Some(first @ &mut NO_ROUTE), Some(its_ring)) = places {
            (*first, *its_ring) = (route, ring);
        }
    }

    fn first(&self, class: RequestClass) -> RouteRing {
        let of = |places: &[u16; CLASSES]| places.get(class as usize).copied();
        RouteRing { route: of(&self.route).unwrap_or(NO_ROUTE), ring: of(&self.ring).unwrap_or_default() }
    }
}

/// Result of the look-up of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMatch {
    /// To a server of this ring.
    Ring {
        /// The route's number, or [`NO_ROUTE`]: none takes it, and the ring is the service's own.
        route: u16,
        ring: u16,
    },
    /// A complex route might be the first that takes it.
    Punt,
}

/// A route's number and its ring.
#[derive(Clone, Copy)]
struct RouteRing {
    route: u16,
    ring: u16,
}

/// A service's routes, ready to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteIndex {
    /// Secret of the hash.
    pub key: HashKey,
    /// The simple routes, and for each of their hosts, at [`PRESENT`], the first of all that have
    /// it: so paths are only looked up for hosts where they can change anything.
    pub entries: BTreeMap<RouteKey, RouteEntry>,
    /// The first complex route, or [`NO_ROUTE`].
    pub complex_from: u16,
    /// The ring of what no route takes.
    pub default_ring: u16,
    complex: Vec<(u16, RoutePattern)>,
}

impl RouteIndex {
    /// Routes in the order in which they are tried.
    ///
    /// # Panics
    ///
    /// With more than [`ROUTES_MAX`] routes, which a configuration can't have.
    pub fn compile(routes: &[RoutePattern], default_ring: u16, key: HashKey) -> RouteIndex {
        assert!(routes.len() <= ROUTES_MAX, "{} routes can't be numbered", routes.len());
        let mut compiled = RouteIndex {
            key,
            entries: BTreeMap::new(),
            complex_from: NO_ROUTE,
            default_ring,
            complex: Vec::new(),
        };
        for (number, route) in (0..NO_ROUTE).zip(routes) {
            match route.key(key) {
                Some(at) => compiled.add(at, number, route),
                None => {
                    compiled.complex_from = compiled.complex_from.min(number);
                    compiled.complex.push((number, route.clone()));
                }
            }
        }
        compiled
    }

    fn add(&mut self, at: RouteKey, number: u16, route: &RoutePattern) {
        for key in [at, RouteKey { path: PRESENT, ..at }] {
            let entry = self.entries.entry(key).or_insert(RouteEntry::NONE);
            route.classes().for_each(|class| entry.add(class, number, route.ring));
        }
    }

    /// Looks a request up as the kernel does.
    pub fn find(&self, key: &RequestKey<'_>) -> RouteMatch {
        let RouteRing { route, ring } = self.first(key);
        // a complex route before it may want the request as well; NO_ROUTE is behind all of them
        if route <= self.complex_from { RouteMatch::Ring { route, ring } } else { RouteMatch::Punt }
    }

    /// Looks a request up, complex routes included. Returns the route, if one takes the request,
    /// and the ring. For requests normalised in user space: the host without port and final dot,
    /// the path decoded and without dot segments.
    pub fn find_all(&self, key: &RequestKey<'_>) -> (Option<u16>, u16) {
        let RouteRing { route, ring } = self.first(key);
        let mut before = self.complex.iter().take_while(|(number, _)| *number < route);
        match before.find(|(_, complex)| complex.takes(key)) {
            Some((number, complex)) => (Some(*number), complex.ring),
            None => ((route != NO_ROUTE).then_some(route), ring),
        }
    }

    /// The first simple route.
    fn first(&self, key: &RequestKey<'_>) -> RouteRing {
        let paths = PathKeys::new(self.key, key.path);
        let mut first = RouteRing { route: NO_ROUTE, ring: self.default_ring };
        self.of_host(ANY, key.class, &paths, &mut first);
        let (mut hash, mut labels) = (0, 0);
        for (at, byte) in key.host.iter().enumerate().rev() {
            hash = self.key.step(hash, byte.to_ascii_lowercase());
            // "*.example.com" wants something before the dot
            if *byte == b'.' && at > 0 && labels < HOST_LABELS_MAX {
                labels += 1;
                self.of_host(hash | PART, key.class, &paths, &mut first);
            }
        }
        self.of_host(hash | EXACT, key.class, &paths, &mut first);
        first
    }

    /// The same among the routes with one host pattern, if any of them is before `first`.
    fn of_host(&self, host: u64, class: RequestClass, paths: &PathKeys, first: &mut RouteRing) {
        let at = |path| self.entries.get(&RouteKey { host, path }).map(|entry| entry.first(class));
        if at(PRESENT).is_none_or(|best| best.route >= first.route) {
            return;
        }
        let beginnings = paths.beginnings.iter().copied().take(paths.depth);
        for path in [ANY, paths.whole].into_iter().chain(beginnings) {
            if let Some(found) = at(path).filter(|found| found.route < first.route) {
                *first = found;
            }
        }
    }
}

/// All that a path is looked up by.
struct PathKeys {
    whole: u64,
    beginnings: [u64; PATH_DEPTH_MAX],
    depth: usize,
}

impl PathKeys {
    fn new(key: HashKey, path: &[u8]) -> PathKeys {
        let mut paths = PathKeys { whole: 0, beginnings: [0; PATH_DEPTH_MAX], depth: 0 };
        for byte in path {
            paths.whole = key.step(paths.whole, *byte);
            if *byte == b'/'
                && let Some(beginning) = paths.beginnings.get_mut(paths.depth)
            {
                *beginning = paths.whole | PART;
                paths.depth += 1;
            }
        }
        paths.whole |= EXACT;
        paths
    }
}
