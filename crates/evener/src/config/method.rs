//! `method` of a service, and the keys that belong to one method only.

use std::net::SocketAddr;

use evener_core::farm::{METHOD_NAMES, Method, Placement};
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::tables::RehandoffMode;
use toml::Spanned;

use super::keys::tables::service as keys;
use super::problems::Problem;
use super::section::Section;
use super::values;

const METHODS: [(&str, Method); Method::ALL.len()] = {
    let mut named = [("", Method::L2); Method::ALL.len()];
    let mut at = 0;
    while at < named.len() {
        named[at] = (Method::ALL[at].properties().name, Method::ALL[at]);
        at += 1;
    }
    named
};
pub(super) const LATER_REQUESTS: [(&str, RehandoffMode); 3] =
    [("stay", RehandoffMode::Stay), ("close", RehandoffMode::Close), ("rehandoff", RehandoffMode::Rehandoff)];
const METHODS_LATER: [&str; 1] = ["dns"];
pub(super) const ENCAPSULATIONS: [(&str, Encapsulation); 2] =
    [("ipip", Encapsulation::Ipip), ("gue", Encapsulation::Gue)];

/// Returns the names of all methods.
pub(super) fn words() -> Vec<&'static str> {
    METHOD_NAMES.to_vec()
}

/// Method of a service, with its settings.
pub(super) struct MethodConfig {
    /// `None` if the file names an unknown method. Problems of other keys are then uncertain.
    pub(super) written: Option<Method>,
    pub(super) source_nat: bool,
    pub(super) encapsulation: Encapsulation,
    pub(super) tunnel_mtu: Option<u16>,
    pub(super) clamp_mss: bool,
    pub(super) later_requests: RehandoffMode,
    pub(super) proxy_protocol_port: Option<u16>,
}

impl MethodConfig {
    /// Reads the method of a service with these addresses.
    pub(super) fn read(
        section: &mut Section<'_>,
        addresses: &[Spanned<SocketAddr>],
        protocol: Protocol,
        placement: Placement,
    ) -> MethodConfig {
        let method = section.get(&keys::METHOD, values::choice_of(&METHODS, words, &METHODS_LATER));
        let misspelt = method.is_none() && section.key_span("method").is_some();
        let reach = MethodConfig {
            written: (!misspelt).then(|| method.map_or(Method::L2, Spanned::into_inner)),
            source_nat: section.flag(&keys::SOURCE_NAT),
            encapsulation: section.or(
                &keys::ENCAPSULATION,
                values::choice(&ENCAPSULATIONS, &[]),
                default_encapsulation(placement),
            ),
            tunnel_mtu: section.number(&keys::MTU).map(Spanned::into_inner),
            clamp_mss: section.flag(&keys::CLAMP_MSS),
            later_requests: section.word(&keys::LATER_REQUESTS, &LATER_REQUESTS),
            proxy_protocol_port: section.number(&keys::PROXY_PROTOCOL_PORT).map(Spanned::into_inner),
        };
        section.scope().method = reach.written;
        if reach.written.is_some_and(Method::translates) {
            one_family(section, addresses);
        }
        if reach.written.is_some_and(|method| !method.properties().every_host) {
            needs_director(section, reach.method(), placement);
        }
        if reach.written.is_some_and(Method::hands_over) {
            can_be_handed_over(section, protocol, placement);
            can_move(section, placement, reach.later_requests);
        }
        reach
    }

    /// Returns the method, or the default if the file names an unknown one.
    pub(super) fn method(&self) -> Method {
        self.written.unwrap_or(Method::L2)
    }

    /// Returns why servers are reached by routes and not probed on the link, if so.
    pub(super) fn routed(&self, placement: Placement) -> Option<String> {
        let by_method = self.written.filter(|method| !method.needs_link_layer());
        by_method.map(|method| format!("method \"{method}\"")).or_else(|| match placement {
            Placement::EveryHost => Some("placement \"every-host\"".to_owned()),
            Placement::Director => None,
        })
    }
}

/// Returns the default encapsulation. Between hosts of every-host, only GUE has room for the mark
/// that shows that another host has forwarded a packet.
const fn default_encapsulation(placement: Placement) -> Encapsulation {
    match placement {
        Placement::Director => Encapsulation::Ipip,
        Placement::EveryHost => Encapsulation::Gue,
    }
}

/// Reports services that can't use handoff, which needs TCP and sessions on the director.
fn can_be_handed_over(section: &Section<'_>, protocol: Protocol, placement: Placement) {
    if let Some(span) = section.key_span("protocol").filter(|_| protocol == Protocol::Udp) {
        let message = "method \"handoff\" hands over connections, and UDP has none";
        let help = "remove `protocol`, or use \"l2\", \"nat\" or \"tunnel\"";
        section.problem(Problem::new(span, message, help));
    }
    if let Some(span) = section.key_span("stateless").filter(|_| placement == Placement::EveryHost) {
        let message =
            "method \"handoff\" needs sessions: later packets of a connection don't contain the request";
        section.problem(Problem::new(span, message, "remove `stateless`, or use \"l2\" or \"tunnel\""));
    }
}

/// Reports rehandoff with placement every-host. Agents move an open connection from one server to
/// another, and hosts of every-host have no agents.
fn can_move(section: &Section<'_>, placement: Placement, later: RehandoffMode) {
    let span = section.key_span("later_requests");
    if let Some(span) =
        span.filter(|_| placement == Placement::EveryHost && later == RehandoffMode::Rehandoff)
    {
        let message =
            "\"rehandoff\" needs agents on the servers, and hosts of placement \"every-host\" have none";
        section.problem(Problem::new(span, message, "write later_requests = \"close\" or \"stay\""));
    }
}

/// Reports placement every-host with a method whose replies must pass the director.
fn needs_director(section: &Section<'_>, method: Method, placement: Placement) {
    if let Some(span) = section.key_span("method").filter(|_| placement == Placement::EveryHost) {
        let message = format!(
            "method \"{method}\" needs a director that answers pass through, but here every host is one"
        );
        let help = "use \"l2\", which tunnels to hosts that aren't on the link, or \"tunnel\"";
        section.problem(Problem::new(span, message, help));
    }
}

/// Reports NAT services with addresses of both IP versions, since NAT keeps the version.
fn one_family(section: &Section<'_>, addresses: &[Spanned<SocketAddr>]) {
    let Some(first) = addresses.first() else { return };
    let other = |address: &&Spanned<SocketAddr>| address.get_ref().is_ipv4() != first.get_ref().is_ipv4();
    if let Some(other) = addresses.iter().find(other) {
        let message = "method \"nat\" keeps the IP version, but this service has addresses of both";
        let help = "make two services of it: one for the IPv4 addresses and servers, one for those of IPv6";
        section.problem(Problem::new(other.span(), message, help).also(first.span(), "the first address"));
    }
}
