//! No bytes, however odd, make the reader of requests and hellos panic; what is read doesn't depend
//! on how it arrives, and where it goes is decided once.
#![no_main]

use std::sync::LazyLock;

use evener_core::path::content::{
    ContentParse, HashKey, HostPattern, NO_ROUTE, PathPattern, PuntReason, RouteIndex, RouteMatch,
    RoutePattern, read,
};
use evener_core::path::seed::Seed;
use libfuzzer_sys::fuzz_target;

/// With a complex route at the end, and without.
static ROUTES: LazyLock<[RouteIndex; 2]> = LazyLock::new(|| {
    let route = |ring, host: &str, path: &str, methods: &[&str]| RoutePattern {
        host: HostPattern::parse(host).ok(),
        path: PathPattern::parse(path).ok(),
        methods: methods.iter().map(|method| method.to_string()).collect(),
        ring,
    };
    let mut routes = vec![
        route(1, "img.example.com", "/img/*", &["GET", "HEAD"]),
        route(2, "*.example.com", "/", &[]),
        route(3, "", "/a/b/c", &["POST"]),
        route(4, "*.example.com", "", &[]),
        route(5, "", "/*", &["GET"]),
    ];
    let compile = |routes: &[RoutePattern]| RouteIndex::compile(routes, 0, HashKey::new(Seed(1, 2)));
    let simple = compile(&routes);
    routes.push(route(6, "", "/*.png", &[]));
    [simple, compile(&routes)]
});

fuzz_target!(|payload: &[u8]| {
    let reading = read(payload);
    for len in 0..payload.len() {
        let before = read(&payload[..len]);
        assert!(before == reading || before == ContentParse::Punt(PuntReason::Incomplete));
    }
    let ContentParse::Request(key) = reading else {
        return;
    };
    for routes in ROUTES.iter() {
        let (route, ring) = routes.find_all(&key);
        match routes.find(&key) {
            RouteMatch::Punt => assert!(route.is_none_or(|route| route >= routes.complex_from)),
            found => assert_eq!(found, RouteMatch::Ring { route: route.unwrap_or(NO_ROUTE), ring }),
        }
    }
});
