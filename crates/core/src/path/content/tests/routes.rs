use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use proptest::prelude::*;

use super::super::{
    HashKey, HostPattern, NO_ROUTE, PRESENT, PathPattern, RequestClass, RequestKey, RouteIndex, RouteMatch,
    RoutePattern,
};
use super::request;
use crate::path::seed::Seed;

const KEY: HashKey = HashKey::new(Seed(0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321));
const DEFAULT: u16 = 9_999;

/// A route as written in a file. Its ring is its number plus 100.
#[derive(Clone, Debug)]
struct Written {
    host: Option<String>,
    path: Option<String>,
    methods: Vec<String>,
}

fn written(host: &str, path: &str, methods: &[&str]) -> Written {
    let some = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
    Written { host: some(host), path: some(path), methods: methods.iter().map(|m| m.to_string()).collect() }
}

fn compile(routes: &[Written]) -> RouteIndex {
    let routes: Vec<RoutePattern> = (100..)
        .zip(routes)
        .map(|(ring, written)| RoutePattern {
            host: written.host.as_deref().map(|host| HostPattern::parse(host).unwrap()),
            path: written.path.as_deref().map(|path| PathPattern::parse(path).unwrap()),
            methods: written.methods.clone(),
            ring,
        })
        .collect();
    RouteIndex::compile(&routes, DEFAULT, KEY)
}

fn ring(route: u16) -> RouteMatch {
    RouteMatch::Ring { route, ring: if route == NO_ROUTE { DEFAULT } else { route + 100 } }
}

fn hello(host: &str) -> RequestKey<'_> {
    RequestKey { class: RequestClass::Hello, host: host.as_bytes(), path: &[], method: &[] }
}

/// Returns the first matching route by a simple implementation.
fn naive(routes: &[Written], key: &RequestKey<'_>) -> Option<u16> {
    let text = |bytes| core::str::from_utf8(bytes).unwrap();
    let (host, path, method) = (text(key.host).to_lowercase(), text(key.path), text(key.method));
    let takes = |route: &Written| {
        let by_host = route.host.as_ref().is_none_or(|pattern| match pattern.strip_prefix("*") {
            Some(end) => host.strip_suffix(&end.to_lowercase()).is_some_and(|label| !label.is_empty()),
            None => host == pattern.to_lowercase(),
        });
        let by_path = route.path.as_ref().is_none_or(|pattern| {
            key.class != RequestClass::Hello && glob(&pattern.chars().collect::<Vec<_>>(), path)
        });
        by_host && by_path && (route.methods.is_empty() || route.methods.iter().any(|m| m == method))
    };
    (0..).zip(routes).find(|(_, route)| takes(route)).map(|(number, _)| number)
}

fn glob(pattern: &[char], path: &str) -> bool {
    match pattern.split_first() {
        None => path.is_empty(),
        Some(('*', rest)) => (0..=path.len()).any(|at| glob(rest, &path[at..])),
        Some((char, rest)) => {
            let same = |first| *char == '?' || *char == first;
            path.chars().next().is_some_and(same) && glob(rest, &path[1..])
        }
    }
}

#[test]
fn the_first_route_wins() {
    let routes = compile(&[
        written("img.example.com", "/a/*", &["GET", "HEAD"]),
        written("*.example.com", "/a/b", &[]),
        written("", "/a/b/*", &[]),
        written("img.example.com", "", &[]),
        written("", "/*", &["POST"]),
        written("*.com", "", &[]),
    ]);
    assert_eq!(routes.complex_from, NO_ROUTE);
    let cases = [
        (request("GET", "IMG.example.com", "/a/b"), 0),
        (request("POST", "img.example.com", "/a/b"), 1),
        (request("PATCH", "img.example.com", "/a/c"), 3),
        (request("HEAD", "www.example.com", "/a/b/c"), 2),
        (request("POST", "www.example.com", "/a/c"), 4),
        (request("PURGE", "www.example.com", "/a/c"), 5),
        (request("GET", "com", "/a/c"), NO_ROUTE),
        (request("GET", ".com", "/a/c"), NO_ROUTE),
        (request("GET", "", "/a/c"), NO_ROUTE),
        (hello("img.example.com"), 3),
        (hello("www.example.com"), 5),
        (hello(""), NO_ROUTE),
    ];
    for (key, route) in cases {
        assert_eq!(routes.find(&key), ring(route), "{key:?}");
        let (all, its_ring) = routes.find_all(&key);
        assert_eq!(RouteMatch::Ring { route: all.unwrap_or(NO_ROUTE), ring: its_ring }, ring(route));
    }
}

#[test]
fn possible_match_of_complex_route_is_punted() {
    let simple = || [written("a", "", &[]), written("", "/b/*", &["GET"])];
    let complex = [
        written("", "/x*", &[]),
        written("", "/x/*/y", &[]),
        written("", "/x?", &[]),
        written("", "", &["GET", "PATCH"]),
        written("*.1.2.3.4.5.6.7.8.9", "", &[]),
        written("", &format!("{}*", "/x".repeat(16) + "/"), &[]),
    ];
    for route in complex {
        let [first, last] = simple();
        let routes = compile(&[first, route.clone(), last]);
        assert_eq!(routes.complex_from, 1, "{route:?}");
        assert_eq!(routes.find(&request("GET", "a", "/b/")), ring(0), "{route:?}");
        assert_eq!(routes.find(&request("GET", "b", "/b/")), RouteMatch::Punt, "{route:?}");
        assert_eq!(routes.find(&request("PUT", "b", "/c")), RouteMatch::Punt, "{route:?}");
        assert_eq!(routes.find_all(&request("PUT", "b", "/c")), (None, DEFAULT), "{route:?}");
    }
}

#[test]
fn the_longest_that_are_looked_up_are_found() {
    let labels = "*.1.2.3.4.5.6.7.8";
    let path = "/x".repeat(15) + "/";
    let routes = compile(&[written(labels, "", &[]), written("", &format!("{path}*"), &[])]);
    assert_eq!(routes.complex_from, NO_ROUTE);
    assert_eq!(routes.find(&request("GET", "a.b.c.1.2.3.4.5.6.7.8", "/")), ring(0));
    assert_eq!(routes.find(&request("GET", "b", &format!("{path}a/b/c/d"))), ring(1));
    assert_eq!(routes.find(&request("GET", "1.2.3.4.5.6.7.8", "/")), ring(NO_ROUTE));
}

#[test]
fn an_entry_holds_the_first_route_of_each_class() {
    let routes = compile(&[
        written("", "/a", &["PUT", "GET"]),
        written("", "/a", &["GET", "POST"]),
        written("", "/a", &[]),
        written("", "/b", &[]),
        written("", "", &[]),
    ]);
    let paths: Vec<u64> = routes.entries.keys().map(|key| key.path).collect();
    assert_eq!(paths.len(), 4, "/a, /b, any, and that there are some");
    let of_class =
        |route: [u16; 7]| routes.entries.values().filter(|entry| entry.route[..7] == route).count();
    assert_eq!(of_class([0, 2, 1, 0, 2, 2, NO_ROUTE]), 1, "/a");
    assert_eq!(of_class([3, 3, 3, 3, 3, 3, NO_ROUTE]), 1, "/b");
    assert_eq!(of_class([4; 7]), 1, "any");
    assert_eq!(of_class([0, 2, 1, 0, 2, 2, 4]), 1, "the best of all");
    assert!(paths.contains(&PRESENT));
}

#[test]
fn ten_thousand_routes_do_not_collide() {
    let many: Vec<Written> = (0..10_000_usize)
        .map(|n| match n % 3 {
            0 => written(&format!("{n}.example.com"), "", &[]),
            1 => written(&format!("*.{n}.example.com"), &format!("/{n}/*"), &["GET"]),
            _ => written("", &format!("/{n}"), &[]),
        })
        .collect();
    let routes = compile(&many);
    for n in 0..10_000_u16 {
        let (host, path) = match n % 3 {
            0 => (format!("{n}.Example.com"), "/".to_string()),
            1 => (format!("www.{n}.example.com"), format!("/{n}/a")),
            _ => ("www.example.com".to_string(), format!("/{n}")),
        };
        assert_eq!(routes.find(&request("GET", &host, &path)), ring(n));
    }
    assert_eq!(routes.find(&request("GET", "10000.example.com", "/10000")), ring(NO_ROUTE));
}

fn route() -> impl Strategy<Value = Written> {
    let host = prop::option::of("(\\*\\.)?[abA](\\.[ab]){0,2}|\\*(\\.[ab]){7,10}");
    let simple = "(/[xy]){1,3}|(/[xy]){0,3}/\\*|(/x){14,17}/\\*";
    let path = prop::option::of(prop_oneof![8 => simple, 1 => "/[xy*?]{1,3}"]);
    let methods = prop_oneof![
        3 => Just(vec![]),
        2 => prop::sample::subsequence(vec!["GET".to_string(), "PUT".into(), "HEAD".into()], 1..3),
        1 => Just(vec!["PATCH".to_string()]),
    ];
    (host, path, methods).prop_map(|(host, path, methods)| Written { host, path, methods })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn routes_are_found_in_their_order(
        routes in prop::collection::vec(route(), 0..12),
        key in prop::collection::vec((
            "([abAB]\\.){0,9}[abAB]|", "(/[xy]){1,4}|(/[xy]){0,3}/|(/x){14,18}/", "GET|PUT|POST|PATCH|", any::<bool>(),
        ), 20),
    ) {
        let compiled = compile(&routes);
        let mut simple_first = 0;
        for (host, path, method, is_hello) in &key {
            let key = if *is_hello { hello(host) } else { request(method, host, path) };
            let wanted = naive(&routes, &key);
            let found = ring(wanted.unwrap_or(NO_ROUTE));
            let (route, its_ring) = compiled.find_all(&key);
            prop_assert_eq!(route, wanted, "{:?}", key);
            prop_assert_eq!(RouteMatch::Ring { route: route.unwrap_or(NO_ROUTE), ring: its_ring }, found);
            match compiled.find(&key) {
                RouteMatch::Punt => prop_assert!(wanted.is_none_or(|route| route >= compiled.complex_from)),
                decided => {
                    simple_first += 1;
                    prop_assert_eq!(decided, found, "{:?}", key);
                }
            }
        }
        prop_assert!(compiled.complex_from != NO_ROUTE || simple_first == 20, "without complex routes nothing is asked");
    }
}
