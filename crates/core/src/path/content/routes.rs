//! Routes in the order of the file, and the hash table in which requests are looked up.
//!
//! The first matching route of a request counts. Most routes are *simple*. Their host is exact, a
//! suffix or any; their path is exact, a prefix or any; and their methods have a class. A simple
//! route has one key, so a bounded number of lookups finds all simple routes that match a request.
//! The route with the lowest number counts. The other routes are *complex*. User space decides
//! requests that a complex route might match.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::pattern::LiteralPattern;
use super::{
    ANY, CLASSES, EXACT, HOST_LABELS_MAX, HashKey, HostPattern, PART, PATH_DEPTH_MAX, PRESENT, PathPattern,
    RequestClass, RequestKey, RouteKey,
};

/// Route number that stands for no route.
pub const NO_ROUTE: u16 = u16::MAX;
/// Maximum number of routes of a service.
pub const ROUTES_MAX: usize = NO_ROUTE as usize;

/// Route of a service before it is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePattern {
    /// Hosts that the route matches. `None` for any.
    pub host: Option<HostPattern>,
    /// Paths that the route matches. `None` for any.
    pub path: Option<PathPattern>,
    /// Methods that the route matches. Empty for any.
    pub methods: Vec<String>,
    /// Ring of the route's servers.
    pub ring: u16,
}

impl RoutePattern {
    /// True if the route matches a request. A TLS hello has no path or method, so it matches only
    /// routes for any path and any method.
    pub fn takes(&self, key: &RequestKey<'_>) -> bool {
        let host = self.host.as_ref().is_none_or(|host| host.matches(key.host));
        let hello = key.class == RequestClass::Hello;
        let path = self.path.as_ref().is_none_or(|path| !hello && path.matches(key.path));
        let named = |method: &String| !hello && method.as_bytes() == key.method;
        host && path && (self.methods.is_empty() || self.methods.iter().any(named))
    }

    /// Returns the hash key of a simple route; `None` for a complex route.
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

    /// Returns the classes that a simple route matches.
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

/// First route of a key for each [`RequestClass`]. A later route with the same key and class is
/// never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// Number of the route, or [`NO_ROUTE`].
    pub route: [u16; CLASSES],
    /// Number of each route's ring. Undefined where there is no route.
    pub ring: [u16; CLASSES],
}

impl RouteEntry {
    const NONE: RouteEntry = RouteEntry { route: [NO_ROUTE; CLASSES], ring: [0; CLASSES] };

    /// Adds a route for a class, unless an earlier route has this class. Routes are added in order.
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

/// Result of the lookup of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMatch {
    /// The request goes to a server of this ring.
    Ring {
        /// Number of the route. With [`NO_ROUTE`], `ring` is the service's default ring.
        route: u16,
        ring: u16,
    },
    /// A complex route before the simple one might match, so user space decides.
    Punt,
}

#[derive(Clone, Copy)]
struct RouteRing {
    route: u16,
    ring: u16,
}

/// Routes of a service, compiled for lookups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteIndex {
    /// Secret key of the hash.
    pub key: HashKey,
    /// Simple routes by key. For each host pattern, the entry [`PRESENT`] has the first of the
    /// pattern's routes. Paths are looked up only if this route comes before the best match so far.
    pub entries: BTreeMap<RouteKey, RouteEntry>,
    /// Number of the first complex route, or [`NO_ROUTE`].
    pub complex_from: u16,
    /// Ring of requests without a matching route.
    pub default_ring: u16,
    complex: Vec<(u16, RoutePattern)>,
}

impl RouteIndex {
    /// Compiles routes, in the order of matching.
    ///
    /// # Panics
    /// There are more than [`ROUTES_MAX`] routes, which a checked farm file never has.
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

    /// Looks up a request as the BPF program does.
    pub fn find(&self, key: &RequestKey<'_>) -> RouteMatch {
        let RouteRing { route, ring } = self.first(key);
        // A complex route before the match may match, too. NO_ROUTE is greater than any route
        // number.
        if route <= self.complex_from { RouteMatch::Ring { route, ring } } else { RouteMatch::Punt }
    }

    /// Looks up a request among all routes, simple and complex. Returns the number of the first
    /// match, if there is one, and the ring. The request must be normalised: the host without port
    /// and final dot, the path decoded and without dot segments.
    pub fn find_all(&self, key: &RequestKey<'_>) -> (Option<u16>, u16) {
        let RouteRing { route, ring } = self.first(key);
        let mut before = self.complex.iter().take_while(|(number, _)| *number < route);
        match before.find(|(_, complex)| complex.takes(key)) {
            Some((number, complex)) => (Some(*number), complex.ring),
            None => ((route != NO_ROUTE).then_some(route), ring),
        }
    }

    /// Returns the first simple route that matches a request.
    fn first(&self, key: &RequestKey<'_>) -> RouteRing {
        let paths = PathKeys::new(self.key, key.path);
        let mut first = RouteRing { route: NO_ROUTE, ring: self.default_ring };
        self.of_host(ANY, key.class, &paths, &mut first);
        let (mut hash, mut labels) = (0, 0);
        for (at, byte) in key.host.iter().enumerate().rev() {
            hash = self.key.step(hash, byte.to_ascii_lowercase());
            // The pattern "*.example.com" matches only hosts with a label before the dot.
            if *byte == b'.' && at > 0 && labels < HOST_LABELS_MAX {
                labels += 1;
                self.of_host(hash | PART, key.class, &paths, &mut first);
            }
        }
        self.of_host(hash | EXACT, key.class, &paths, &mut first);
        first
    }

    /// Updates `first` if a route with this host pattern matches and comes before `first`.
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

/// Hashes of a path and of its prefixes.
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
