//! `[[service.route]]`: servers for requests that match.

use std::collections::{BTreeMap, BTreeSet};

use evener_core::farm::Route;
use evener_core::path::content::{HostPattern, METHOD_MAX, PathPattern, PatternError};
use evener_core::path::tables::SERVICES_MAX;
use toml::Spanned;
use toml::de::DeValue;

use super::keys::tables::{route, service};
use super::once::FirstSeen;
use super::problems::{Problem, Span};
use super::section::{Complaint, Section, nearest_or_all};
use super::service::ServiceEntry;
use super::{defaults, values};

/// Servers that routes may name.
pub(super) struct RouteTargets<'a> {
    pub(super) names: Vec<&'a str>,
    /// True if the list is complete: all entries are valid.
    pub(super) whole: bool,
}

/// Reads the routes of a service with these servers, each with its position in the file.
pub(super) fn read(section: &Section<'_>, listed: &RouteTargets<'_>) -> Vec<Spanned<Route>> {
    let routes = section.sections(&service::ROUTE, |section| {
        let read = one(section, listed);
        Spanned::new(section.span(), read)
    });
    if let Some(one_too_many) = routes.get(defaults::ROUTES) {
        let message = format!("this service has {} routes", routes.len());
        let help = format!(
            "this is the first too many: a service can have {}; make several of it",
            defaults::ROUTES
        );
        section.problem(Problem::new(one_too_many.span(), message, help));
    }
    let mut earlier = EarlierRoutes::default();
    let whole = routes.into_iter().filter_map(|route| Some(Spanned::new(route.span(), route.into_inner()?)));
    whole.inspect(|route| earlier.add(section, route)).collect()
}

/// Reads one route. `None` if a part of it is invalid, which is then reported.
fn one(section: &Section<'_>, listed: &RouteTargets<'_>) -> Option<Route> {
    let host = section.get(&route::HOST, host);
    let path = section.get(&route::PATH, path);
    let methods = section.one_or_list(&route::METHODS, method);
    if let Some(span) = section.key_span("methods").filter(|_| !section.has("methods")) {
        let help = "list the methods, such as [\"GET\", \"HEAD\"], or omit it for all";
        section.problem(Problem::new(span, "`methods` is empty, so this route would match no request", help));
    }
    once(section, &methods, "the method");
    let servers = section.one_or_list(&route::SERVERS, values::name);
    check_servers(section, &servers, listed);
    let lacks = |key: &str, read: bool| section.key_span(key).is_some() && !read;
    if lacks("host", host.is_some()) || lacks("path", path.is_some()) || lacks("methods", !methods.is_empty())
    {
        return None;
    }
    Some(Route {
        host: host.map(Spanned::into_inner),
        path: path.map(Spanned::into_inner),
        methods: methods.into_iter().map(Spanned::into_inner).collect(),
        servers: servers.into_iter().map(Spanned::into_inner).collect(),
    })
}

fn check_servers(section: &Section<'_>, servers: &[Spanned<String>], listed: &RouteTargets<'_>) {
    let help = "name some of this service's servers, such as servers = [\"web1\"]";
    match section.key_span("servers") {
        None => section.missing("servers", "this route has no servers", help),
        Some(span) if !section.has("servers") => {
            section.problem(Problem::new(
                span,
                "`servers` is empty, so this route would have no server",
                help,
            ));
        }
        Some(_) => {}
    }
    once(section, servers, "the server");
    // An unknown name may be the name of an invalid entry, and is not reported then.
    if !listed.whole {
        return;
    }
    let names = &listed.names;
    for server in servers.iter().filter(|server| !names.contains(&server.get_ref().as_str())) {
        let message = format!("this service has no server {:?}", server.get_ref());
        section.problem(Problem::new(server.span(), message, nearest_or_all(server.get_ref(), names)));
    }
}

fn once(section: &Section<'_>, entries: &[Spanned<String>], what: &str) {
    let mut once = FirstSeen::new();
    for entry in entries {
        let message = format!("{what} {} is named twice", entry.get_ref());
        once.first(section, entry.get_ref(), entry.span(), message, "name it once");
    }
}

fn host(value: &DeValue<'_>) -> Result<HostPattern, Complaint> {
    if values::text(value)?.contains("://") {
        values::host_field(value)?;
    }
    pattern(value, "host", HostPattern::parse)
}

fn path(value: &DeValue<'_>) -> Result<PathPattern, Complaint> {
    pattern(value, "path", PathPattern::parse)
}

fn pattern<T>(
    value: &DeValue<'_>,
    what: &str,
    parse: impl Fn(&str) -> Result<T, PatternError>,
) -> Result<T, Complaint> {
    let text = values::text(value)?;
    parse(&text).or_else(|error| Complaint::new(format!("matches no {what}: {text:?}"), error.to_string()))
}

/// Parses a method as clients send it. The data plane supports no other methods
/// (`evener_core::path::content`).
fn method(value: &DeValue<'_>) -> Result<String, Complaint> {
    let text = values::word(value)?;
    if text.len() <= METHOD_MAX && text.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Ok(text);
    }
    let upper = text.to_ascii_uppercase();
    let help = match upper.len() <= METHOD_MAX && upper.bytes().all(|byte| byte.is_ascii_uppercase()) {
        true => format!("their case counts: write {upper:?}"),
        false => {
            format!("write it as clients send it, such as \"GET\": at most {METHOD_MAX} capital letters")
        }
    };
    Complaint::new(format!("is no method of HTTP: {text:?}"), help)
}

/// Host and path of a route, as written.
type Patterns = (Option<String>, Option<String>);

/// Earlier routes with their methods. Routes after them may never match.
#[derive(Default)]
struct EarlierRoutes(BTreeMap<Patterns, Vec<(Vec<String>, Span)>>);

impl EarlierRoutes {
    /// Adds a route, and reports it if an earlier one matches all of its requests.
    fn add(&mut self, section: &Section<'_>, route: &Spanned<Route>) {
        let Route { host, path, methods, .. } = route.get_ref();
        let (host, path) = (host.as_ref().map(ToString::to_string), path.as_ref().map(ToString::to_string));
        if let Some(first) = self.taker(host.as_deref(), path.as_deref(), methods) {
            let help = "put it before that one, or remove it";
            let message = "this route is never used: an earlier route matches all its requests";
            section.problem(Problem::new(route.span(), message, help).also(first, "the one before it"));
        }
        self.0.entry((host, path)).or_default().push((methods.clone(), route.span()));
    }

    /// Returns the first route that matches all requests of these patterns. Incomplete: two routes
    /// that cover the patterns together are not found, and a glob only covers itself.
    fn taker(&self, host: Option<&str>, path: Option<&str>, methods: &[String]) -> Option<Span> {
        let covers = |theirs: &Vec<String>| {
            theirs.is_empty() || !methods.is_empty() && methods.iter().all(|method| theirs.contains(method))
        };
        let mut first: Option<&Span> = None;
        let paths = wider_paths(path);
        for host in wider_hosts(host) {
            for path in &paths {
                let routes = self.0.get(&(host.clone(), path.clone()));
                let taker = routes.and_then(|routes| routes.iter().find(|(theirs, _)| covers(theirs)));
                if let Some((_, span)) = taker
                    && first.is_none_or(|first| span.start < first.start)
                {
                    first = Some(span);
                }
            }
        }
        first.cloned()
    }
}

/// Returns the host patterns that match all hosts of this pattern.
fn wider_hosts(host: Option<&str>) -> Vec<Option<String>> {
    let text = host.unwrap_or_default();
    let ends = text.match_indices('.').filter_map(|(at, _)| Some(format!("*{}", text.get(at..)?)));
    [None, host.map(str::to_owned)].into_iter().chain(ends.map(Some)).collect()
}

/// Returns the path patterns that match all paths of this pattern. A route without a path also
/// matches TLS hellos, which have none.
fn wider_paths(path: Option<&str>) -> Vec<Option<String>> {
    let Some(text) = path else { return vec![None] };
    let plain = text.find(['*', '?']).unwrap_or(text.len());
    let slashes = text.match_indices('/').filter(|(at, _)| *at < plain);
    let beginnings = slashes.filter_map(|(at, _)| Some(format!("{}*", text.get(..=at)?)));
    [None, Some(text.to_owned())].into_iter().chain(beginnings.map(Some)).collect()
}

/// Checks the number of routes of a farm, and the number of rings: one per service, and one per set
/// of servers that its routes name.
pub(super) fn check_capacity(root: &Section<'_>, placed: &[ServiceEntry]) {
    let routes: Vec<(&str, &Route, &Span)> = placed.iter().flat_map(routes_of).collect();
    if let Some((_, _, one_too_many)) = routes.get(defaults::FARM_ROUTES) {
        let message = format!("the services have {} routes together", routes.len());
        let help = format!("this is the first too many: a farm can have {}", defaults::FARM_ROUTES);
        root.problem(Problem::new((*one_too_many).clone(), message, help));
    }
    let mut sets: BTreeSet<(&str, BTreeSet<&String>)> = BTreeSet::new();
    let mut one_too_many = None;
    for (service, route, span) in routes {
        let new = sets.insert((service, route.servers.iter().collect()));
        if new && placed.len() + sets.len() > SERVICES_MAX {
            one_too_many = one_too_many.or(Some(span));
        }
    }
    if let Some(span) = one_too_many {
        let (services, sets) = (placed.len(), sets.len());
        let message = format!(
            "there are {services} services and {sets} sets of servers that routes name, {} together",
            services + sets
        );
        let help = format!(
            "this is the first too many: a farm can have {SERVICES_MAX}; routes that name the same servers share a set"
        );
        root.problem(Problem::new(span.clone(), message, help));
    }
}

fn routes_of(placed: &ServiceEntry) -> impl Iterator<Item = (&str, &Route, &Span)> {
    let routes = placed.service.routes.iter().zip(&placed.routes);
    routes.map(|(route, span)| (placed.service.name.as_str(), route, span))
}
