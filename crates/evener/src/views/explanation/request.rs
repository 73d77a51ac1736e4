//! Explains the server of a request: the decision of the data plane, or of the daemon.

use std::net::SocketAddr;

use evener_core::farm::choose::RequestContent;
use evener_core::farm::{Route, Service};
use evener_core::net::Protocol;
use evener_core::path::content::{self, ContentParse, RequestClass, RequestKey, RouteIndex, RouteMatch};
use evener_core::path::tables::{NO_SERVER, Vip, VipKey};

use super::{DispatchExplanation, Explanation};
use crate::board::PublishedState;
use crate::board::request::FlowQuery;
use crate::cli::WebRequest;
use crate::handoff::{HeadClass, HeadRefusal, classify};

impl PublishedState {
    /// Explains the server of a request: in this flow, of this service, or of any service it may be
    /// for.
    pub(super) fn explain_request(
        &self,
        request: &WebRequest,
        flow: Option<&FlowQuery>,
        named: Option<&str>,
    ) -> Explanation {
        let meant = match flow {
            Some(flow) => Ok(flow.vip),
            None => meant(&self.snapshot.farm.services, request, named),
        };
        let vip = match meant {
            Ok(vip) => vip,
            Err(why) => return Explanation { reasons: vec![why], ..Explanation::default() },
        };
        let protocol = flow.map_or(Protocol::Tcp, |flow| flow.protocol);
        let key = VipKey { address: vip.ip(), port: vip.port(), protocol };
        let known = self.snapshot.plan.tables.vips.get(&key);
        let known =
            known.and_then(|vip| Some((vip, self.snapshot.plan.services.get(&vip.service)?.name.as_str())));
        let service = known.and_then(|(vip, name)| Some((vip, self.snapshot.farm.service(name)?)));
        match (service, flow) {
            (Some((vip, service)), _) if service.method.hands_over() => {
                self.explain_dispatch(request, flow, vip, service)
            }
            (Some((_, service)), None) => {
                let why = format!(
                    "service {} has method {}, which doesn't look at requests: name client and service address instead",
                    service.name, service.method
                );
                Explanation {
                    service: Some(service.name.clone()),
                    reasons: vec![why],
                    ..Explanation::default()
                }
            }
            (_, Some(flow)) => {
                let mut explanation = self.explain_flow(flow);
                if service.is_some() {
                    explanation.reasons.insert(0, "the request is not read".to_owned());
                }
                explanation
            }
            (None, None) => Explanation {
                reasons: vec![format!("the data plane doesn't know {vip} yet")],
                ..Explanation::default()
            },
        }
    }

    fn explain_dispatch(
        &self,
        request: &WebRequest,
        flow: Option<&FlowQuery>,
        vip: &Vip,
        service: &Service,
    ) -> Explanation {
        let mut reasons = vec![format!("{request} is for service {}", service.name)];
        let mut explanation = Explanation { service: Some(service.name.clone()), ..Explanation::default() };
        if !service.addresses.iter().any(|address| address.port() == request.port) {
            reasons.push(format!("but that has no port {}: a client would not come to it", request.port));
        }
        if let Some(slot) = flow.and_then(|flow| self.explain_session(flow, vip, &mut reasons)) {
            reasons.push("the connection stays on that server for all its requests".to_owned());
            reasons.extend(self.explain_state(slot));
            explanation.server = self.server_name(slot);
            explanation.pending = explanation.server.is_none();
            return Explanation { reasons, ..explanation };
        }
        let Some(routes) = self.snapshot.plan.tables.routes.get(&vip.service) else {
            reasons.push("the data plane has no routes for it yet".to_owned());
            return Explanation { reasons, ..explanation };
        };
        let course = course(routes, request);
        reasons.extend(course.reasons);
        if course.is_queried && vip.handoff.is_none_or(|handoff| handoff.punt == NO_SERVER) {
            reasons.push("but no daemon can decide here: the connection is dropped".to_owned());
        }
        let Some((route, ring)) = course.found else { return Explanation { reasons, ..explanation } };
        let (taken, dispatch) = taken(service, route, course.is_queried);
        reasons.push(taken);
        explanation.request = Some(dispatch);
        let content = RequestContent::Routed { route, ring };
        let Some((slot, why)) = self.peek(vip, flow.map(|flow| flow.client), content) else {
            reasons.push(format!(
                "{}: which of them depends on the client: name its address and port, too",
                service.policy
            ));
            return Explanation { reasons, pending: true, ..explanation };
        };
        reasons.push(why);
        explanation.server = self.server_name(slot);
        reasons.extend(self.explain_state(slot));
        match self.snapshot.plan.tables.servers.get(&slot) {
            Some(entry) => reasons.extend(self.explain_way(flow, entry)),
            None => reasons.push("the client is answered 503".to_owned()),
        }
        Explanation { reasons, ..explanation }
    }
}

/// Returns the service address that a request may be for, if the flow is unknown.
fn meant(services: &[Service], request: &WebRequest, named: Option<&str>) -> Result<SocketAddr, String> {
    let wanted = |service: &&Service| match named {
        Some(name) => service.name == name,
        None => service.method.hands_over(),
    };
    let services: Vec<&Service> = services.iter().filter(wanted).collect();
    let addresses = || services.iter().flat_map(|service| &service.addresses).copied();
    if let Some(literal) = request.address().map(|address| SocketAddr::new(address, request.port))
        && addresses().any(|address| address == literal)
    {
        return Ok(literal);
    }
    let at_port =
        |service: &Service| service.addresses.iter().copied().find(|address| address.port() == request.port);
    let at_port: Vec<SocketAddr> = services.iter().filter_map(|service| at_port(service)).collect();
    match (at_port.as_slice(), services.as_slice(), named) {
        ([one], ..) => Ok(*one),
        ([], [one], _) => one.addresses.first().copied().ok_or_else(|| "it has no address".to_owned()),
        (_, [], Some(name)) => Err(format!("there is no service {name}")),
        (_, [], None) => Err("no service has method \"handoff\": others don't look at requests".to_owned()),
        _ => {
            let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
            Err(format!("it may be meant for one of {}: name it with --service", names.join(", ")))
        }
    }
}

/// Decision about a request.
struct RequestCourse {
    reasons: Vec<String>,
    /// True if the data plane punts the request to the daemon.
    is_queried: bool,
    /// Matched route, if any, and the ring. `None` if the request is refused.
    found: Option<(Option<u16>, u16)>,
}

/// Parses a request as the data plane does, and if that leaves it open, as the daemon does.
fn course(routes: &RouteIndex, request: &WebRequest) -> RequestCourse {
    let head = request.head();
    let hello = hello(request);
    let reading =
        if request.encrypted { ContentParse::Request(hello) } else { content::read(head.as_bytes()) };
    let why = match reading {
        ContentParse::Request(key) => match routes.find(&key) {
            RouteMatch::Ring { route, ring } => {
                let what = if request.encrypted { "hello" } else { "head" };
                let reasons = vec![format!("the data plane decides it, if the {what} comes in one segment")];
                let found = Some(((usize::from(route) < content::ROUTES_MAX).then_some(route), ring));
                return RequestCourse { reasons, is_queried: false, found };
            }
            RouteMatch::Punt => {
                let first = u32::from(routes.complex_from) + 1;
                format!("routes from {first} on may want it, and that one is too complex for the data plane")
            }
        },
        ContentParse::Punt(_) => "its path or its host isn't in the normal form, or is too long".to_owned(),
    };
    let mut reasons = vec![format!("the data plane asks this host's own process: {why}")];
    let found = if request.encrypted {
        Some(routes.find_all(&hello))
    } else {
        match classify(head.as_bytes()) {
            HeadClass::Wanted(wanted) => {
                reasons.push(format!("that reads it as {}", wanted.text()));
                Some(routes.find_all(&wanted.key()))
            }
            HeadClass::Refused(refusal) => {
                reasons.push(format!("the client is answered {}", answer(refusal)));
                None
            }
            HeadClass::Incomplete => None,
        }
    };
    RequestCourse { reasons, is_queried: true, found }
}

fn answer(refusal: HeadRefusal) -> String {
    let status = match refusal {
        HeadRefusal::Request(refusal) => refusal.status(),
        HeadRefusal::Http2 | HeadRefusal::Unreadable => 400,
    };
    let why = match status {
        421 => "since it names two hosts",
        431 => "since the head is too large",
        _ => "since it is ambiguous",
    };
    format!("{status}, {why}")
}

/// Returns the key of a TLS hello. Its name is never an address, and has no dot at the end (RFC
/// 6066, section 3).
fn hello(request: &WebRequest) -> RequestKey<'_> {
    let host = match request.address() {
        Some(_) => "",
        None => request.host.trim_end_matches('.'),
    };
    RequestKey { class: RequestClass::Hello, host: host.as_bytes(), path: &[], method: &[] }
}

/// Explains the servers of a matched route, or of none.
fn taken(service: &Service, route: Option<u16>, is_queried: bool) -> (String, DispatchExplanation) {
    let number = route.map(|route| u64::from(route) + 1);
    let found = route.and_then(|route| service.routes.get(usize::from(route)));
    let servers = match found {
        Some(route) => route.servers.clone(),
        None => service.servers.iter().map(|server| server.name.clone()).collect(),
    };
    let pattern = found.map(pattern);
    let named = servers.join(", ");
    let sentence = match (number, &pattern) {
        (Some(number), Some(pattern)) => format!("route {number} matches ({pattern}): {named}"),
        _ => format!("no route matches, so all servers are candidates: {named}"),
    };
    (sentence, DispatchExplanation { route: number, pattern, servers, punted: is_queried })
}

/// Formats a route's pattern in a line.
fn pattern(route: &Route) -> String {
    let host = route.host.as_ref().map(|host| format!("host {host}"));
    let path = route.path.as_ref().map(|path| format!("path {path}"));
    let methods = (!route.methods.is_empty()).then(|| format!("methods {}", route.methods.join(" ")));
    let parts: Vec<String> = [host, path, methods].into_iter().flatten().collect();
    if parts.is_empty() { "whatever is asked for".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use evener_core::path::content::{self, HashKey};
    use evener_core::path::seed::Seed;

    use super::*;
    use crate::config::{self, Config};

    const FILE: &str = r#"
        farm = { secret_file = "key", directors = ["192.0.2.2"] }
        [[service]]
        name = "web"
        addresses = ["192.0.2.100:80", "192.0.2.100:443"]
        method = "handoff"
        server = [{ name = "a", address = "192.0.2.11" }, { name = "b", address = "192.0.2.12" }]
        route = [
            { host = "img.example.com", path = "/img/*", servers = "b" },
            { host = "*.example.com", methods = ["GET", "HEAD"], servers = ["a", "b"] },
            { host = "tls.example.org", servers = "b" },
            { path = "/*.php", servers = "a" },
            { host = "late.example.org", servers = "b" },
        ]
        [[service]]
        name = "shop"
        addresses = ["192.0.2.101:8080", "[2001:db8::101]:443"]
        method = "handoff"
        server = [{ address = "192.0.2.11" }]
        [[service]]
        name = "plain"
        address = "192.0.2.102:80"
        server = [{ address = "192.0.2.11" }]
    "#;

    fn config() -> Config {
        config::parse(FILE, "evener.toml").unwrap_or_else(|problems| panic!("{problems}"))
    }

    /// Returns the decision by the first service's routes. Route N has ring 10 + N.
    fn run(text: &str) -> RequestCourse {
        let config = config();
        let routes = config.services.first().unwrap().routes.iter().zip(11..);
        let routes: Vec<content::RoutePattern> = routes
            .map(|(route, ring)| content::RoutePattern {
                host: route.host.clone(),
                path: route.path.clone(),
                methods: route.methods.clone(),
                ring,
            })
            .collect();
        course(&RouteIndex::compile(&routes, 99, HashKey::new(Seed(5, 6))), &text.parse().unwrap())
    }

    #[test]
    fn explain_shows_decided_and_punted_requests() {
        let cases = [
            ("http://img.example.com/img/a.png", false, Some((Some(0), 11))),
            ("http://IMG.example.com/a.png", false, Some((Some(1), 12))),
            // a complex route comes before the default
            ("POST http://img.example.com/a.php", true, Some((Some(3), 14))),
            ("http://other.example/", true, Some((None, 99))),
            ("http://late.example.org/x.php", true, Some((Some(3), 14))),
            ("http://img.example.com/%69mg//a.png", true, Some((Some(0), 11))),
            ("http://img.example.com./img/a.png", true, Some((Some(0), 11))),
            ("http://img.example.com/../a", true, None),
            ("https://tls.example.org/whatever", false, Some((Some(2), 13))),
            ("https://img.example.com/img/a.png", true, Some((None, 99))),
            ("https://late.example.org./", true, Some((Some(4), 15))),
            ("https://192.0.2.100/", true, Some((None, 99))),
        ];
        for (text, is_queried, found) in cases {
            let course = run(text);
            assert_eq!(
                (course.is_queried, course.found),
                (is_queried, found),
                "{text}: {:?}",
                course.reasons
            );
        }
        assert!(
            run("http://img.example.com/%69mg/a").reasons.join("\n").contains("GET img.example.com/img/a")
        );
        assert!(run("http://img.example.com/../a").reasons.join("\n").contains("400"));
    }

    #[test]
    fn the_service_is_the_one_that_can_be_meant() {
        let config = config();
        let meant = |text: &str, named| meant(&config.services, &text.parse().unwrap(), named);
        let web = Ok("192.0.2.100:80".parse().unwrap());
        assert_eq!(meant("http://a.example/", None), web, "the other one has no such port");
        assert_eq!(meant("http://a.example:81/", Some("web")), web, "it is named");
        assert_eq!(meant("https://[2001:db8::101]/", None), Ok("[2001:db8::101]:443".parse().unwrap()));
        assert_eq!(meant("http://a.example/", Some("plain")), Ok("192.0.2.102:80".parse().unwrap()));
        assert!(meant("https://a.example/", None).unwrap_err().contains("one of web, shop"));
        assert!(meant("http://a.example:81/", None).unwrap_err().contains("one of web, shop"));
        assert!(meant("http://a.example/", Some("wbe")).unwrap_err().contains("no service wbe"));
        let none = super::meant(&[], &"http://a.example/".parse().unwrap(), None);
        assert!(none.unwrap_err().contains("no service has method"));
    }

    #[test]
    fn explain_shows_route_as_configured() {
        let config = config();
        let web = config.services.first().unwrap();
        let (sentence, dispatch) = taken(web, Some(1), false);
        assert_eq!(sentence, "route 2 matches (host *.example.com, methods GET HEAD): a, b");
        assert_eq!((dispatch.route, dispatch.servers.len(), dispatch.punted), (Some(2), 2, false));
        let (sentence, dispatch) = taken(web, None, true);
        assert_eq!(sentence, "no route matches, so all servers are candidates: a, b");
        assert_eq!((dispatch.route, dispatch.pattern, dispatch.punted), (None, None, true));
    }
}
