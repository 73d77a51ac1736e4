//! Reasons why a statement has no counterpart, with weight and remedy: one table for all source
//! programs.

use std::borrow::Cow;

use serde::Serialize;

/// How much a loss matters, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// The loss changes which clients or servers are served: access rules, lost servers and routes,
    /// protocols, checks.
    Served,
    /// The same clients are served in a different way.
    Handled,
    /// Only settings of the other program's own process, logs and statistics are lost.
    Process,
}

impl Weight {
    /// All weights, the most severe first.
    pub const ALL: [Weight; 3] = [Weight::Served, Weight::Handled, Weight::Process];
}

/// Why a statement is left, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeftReason {
    pub(super) weight: Weight,
    /// A sentence without its full stop.
    pub(super) why: Cow<'static, str>,
    /// The remedy, without a full stop.
    pub(super) todo: Cow<'static, str>,
}

macro_rules! reasons {
    ($($weight:ident { $($name:ident: $why:literal, $todo:literal;)* })*) => {
        $($(pub(super) static $name: LeftReason = LeftReason {
            weight: Weight::$weight,
            why: Cow::Borrowed($why),
            todo: Cow::Borrowed($todo),
        };)*)*
    };
}

reasons! {
    Served {
        UNKNOWN: "the importer doesn't know this",
            "look for an equivalent in Evener's reference";
        RULES: "Evener does not refuse requests by their content, address or certificate",
            "let the servers, or a firewall, do it before clients come";
        REDIRECTS: "a service that forwards packets answers nothing itself",
            "let the servers redirect, or make a service with method = \"redirect\"";
        TLS_HERE: "Evener doesn't end TLS (except for redirect): it passes it through",
            "give the servers the certificate, and let them listen with TLS at the port written here";
        TLS_TO_SERVERS: "Evener opens no connections to servers, so it can't wrap them in TLS",
            "clients' own TLS reaches the servers: give them the certificate";
        PLAIN_SERVERS: "the servers take plain HTTP, and Evener doesn't end TLS",
            "let the servers listen with TLS too, then add a [[service]] for this address";
        HTTPS_CHECK: "a probe by TLS needs the name and the authority of the certificate, and the source has none here",
            "the probe opens a connection instead; or write kind = \"https\" with `name` and `ca` in [service.health]";
        RATES: "Evener limits no rates of requests",
            "limit them on the servers, or drop floods by a firewall";
        CONTENT: "a service chooses by host, path and method only, as [[service.route]] has them",
            "write a route for it by hand, or let the servers do it";
        NO_PROXY: "it passes nothing on to other servers by proxy_pass, so its requests go to the servers of other routes, or to none",
            "let one of the servers do it";
        UPSTREAM_PROTOCOL: "Evener forwards connections as they are, and translates no protocols",
            "let the server program itself take HTTP, or keep this proxy beside it as the server";
        REWRITE: "Evener doesn't change the path of a request",
            "let the servers take the path as clients send it";
        HANDOFF_PORT: "with method handoff a server has the port that the client asked for",
            "let the server listen at the service's port too";
        NO_HANDOFF: "servers of these routes share an address: only nat distinguishes them by port, and nat has no routes",
            "give each an address of its own, then use method = \"handoff\" with [[service.route]]";
        DISCOVERY: "Evener resolves no names of servers",
            "list their addresses as [[service.server]]; with l2, discover = \"arp\" finds them";
        ONE_CHECK: "a service has one probe for all of its servers",
            "make two services of it if it matters";
        CHECK_KIND: "probes are TCP connections, HTTP requests or ARP only",
            "the probe opens a connection instead; see docs/guide/health.md";
        CHECK_DETAIL: "Evener's probe has no such setting",
            "see [service.health] in docs/reference/keys.md";
        CHECK_TIME: "the time is out of Evener's range, or a probe would last until the next one",
            "the default is used; see [service.health] in docs/reference/keys.md";
        REGEX: "routes have stars and question marks, and no regular expressions",
            "write a [[service.route]] whose pattern takes the same requests";
        DIGEST: "probes compare no digest of a page",
            "write text that the page must contain as `body` of [service.health]";
        FWMARK: "there are no services by firewall mark",
            "list the addresses and ports that are marked as `addresses` of a [[service]]";
        ONE_METHOD: "a service has one method, and its first server has another",
            "make a second service for these servers, at another address";
        PROTOCOL: "a service is of TCP or UDP",
            "nothing: Evener forwards no other protocol";
        ANY_PORT: "a service has ports of its own",
            "list the ports that are in use as `addresses`";
        KEEPS_PORT: "with l2 and tunnel a server has the service's port",
            "let the server listen at the service's port, or use method = \"nat\"";
        TABLE: "the command changes a running table, and a file has none",
            "nothing, or make the change in the source first";
        PORT_OFFSET: "its port is the client's plus or minus a number, and a server of Evener's has one of its own",
            "make a [[service]] for each port, with the port that it has at the servers";
        CASE: "the case of paths and methods counts in routes",
            "write a [[service.route]] for each way that clients write them, if they do";
        NOT_ADDRESS: "this is not an IP address, and the line has no other address",
            "write the address; `ipvsadm -S -n` writes numbers";
        NO_SERVICE: "the virtual service of this server was not carried over",
            "see that line first";
        SECOND_FAMILY: "method nat keeps the IP version, so one service is of one version",
            "make a second [[service]] for IPv6, with servers that have IPv6 addresses";
        NOT_FOLLOWED: "there is no such file beside this one, so it isn't read",
            "import it by itself, or put it where this line says and import again";
        TOO_MANY: "a farm has at most 64 addresses, and a service at most 256 servers",
            "make a second farm of it, on other hosts, or several services";
        TOO_MANY_ROUTES: "services and the sets of servers that routes name are at most 64 together, \
                      and a service has at most 10,000 routes, a farm 30,000",
            "let routes name the same servers, or make a second farm of it, on other hosts";
        NO_ADDRESS: "it has no address that clients connect to",
            "nothing, or write a [[service]] by hand";
        LOCAL_SOCKET: "Evener listens at IP addresses and forwards to them",
            "let the program listen at an address";
        CONDITION: "parts of a configuration by condition aren't followed",
            "import the file that is in force for this host";
        UNMATCHED: "requests that match no route go to all servers of the service; the other program refuses them",
            "write a last [[service.route]] with the servers for all other requests";
        UNTAKEN: "requests of this host that match none of its routes are compared with the routes below; the other program refuses them",
            "let those servers refuse other hosts";
        PROXY_PROTOCOL: "Evener forwards bytes as they come, and adds or removes no PROXY protocol (except for proxy_protocol_port of handoff)",
            "let the servers take connections as they are; with l2, tunnel and handoff they see the client's own address";
        NOT_MADE: "no service is made of this block",
            "see the other lines of it that are left";
        NO_SECTION: "the source has no section of this name",
            "name one that is there, and import again";
        TUNNEL_DETAIL: "the encapsulations are ipip, and gue at port 6080, for all servers of a service",
            "let the servers take one of these";
        BACKEND_OFF: "its backend has no active server, so HAProxy refuses these requests; Evener sends them to the other servers",
            "let those servers refuse them, or give the backend a server in the source and import again";
        ONE_ROLE: "a server is a backup, or out of service, for all routes that lead to it, and others have it otherwise",
            "give it a second address, and make a server of that too";
        ONE_BACKUP: "HAProxy uses the first backup that works; here all of them share the connections",
            "leave one of them out, or write `option allbackups` in the source";
        VARIABLE: "HAProxy puts the value of an environment variable here, which the importer doesn't know",
            "write the value into the source, and import again";
        UNREADABLE: "this file is named here, and can't be read, or is larger than 4 MiB",
            "import it by itself, or correct it and import again";
        UNCHECKED: "the source doesn't check this server; Evener probes it like the others",
            "see that it answers the probe of its service";
        QUORUM_SORRY: "keepalived sends all clients to the sorry server below this number; Evener when no server is up",
            "alert by the metrics of servers that are up";
        QUIC: "HTTP/3 is a service of UDP, and Evener doesn't end it",
            "write a [[service]] with protocol = \"udp\" for this port, and let the servers take HTTP/3";
        INTERFACE: "a service has an address, on whichever interface its clients come",
            "let a firewall drop what comes by other interfaces";
        LOCATION_ORDER: "nginx checks this location before regular expressions and a longer one after them; routes can't do that",
            "look at the order of its [[service.route]] entries";
        CODE: "code decides here, and the importer reads none",
            "let the servers do it, or write what it does as [[service.route]] entries";
        OWN_METHOD: "a service has one method, and this server has another",
            "make a second service for this server, at another address";
        NAMED_LOCATION: "nothing leads to this location but redirects inside nginx",
            "let the servers do it";
    }
    Handled {
        UNUSED: "no service that was made uses it",
            "nothing, or add the service by hand";
        UNREFERENCED: "nothing that was carried over leads to these servers",
            "make a [[service]] of them if they are in use";
        CONNECTION: "it is about connections that a proxy has with clients and servers; Evener has none",
            "set it on the servers, which now have the clients' connections";
        HEADERS: "Evener doesn't change requests or replies",
            "let the servers do it; with l2, tunnel and handoff they see the client's own address";
        COMPRESSION: "Evener doesn't change replies",
            "let the servers compress";
        CACHING: "Evener keeps no replies",
            "cache on the servers, or in a cache in front of them that is a server of Evener's";
        COOKIES: "Evener sets and reads no cookies",
            "keep sessions in a store that all servers share";
        AFFINITY: "affinity is by the client's address, for a time from 1 s to 7 days",
            "write affinity and affinity_mask if that serves; see docs/guide/policies.md";
        AFFINITY_HANDOFF: "here the request chooses among servers, so affinity is only for policy \"hash\"",
            "write policy = \"hash\" and affinity; see docs/guide/policies.md";
        MAX_CONNECTIONS: "only servers have a limit of connections, and there is no queue",
            "write max_connections on the servers; policy least-connections or power-of-two evens them out";
        QUEUES: "a packet isn't held back: there are no queues, retries or limits of rate",
            "limit on the servers; a connection goes to a server that is up at its first packet";
        STICK_TABLES: "there are no stick tables, but affinity by the client's address (stick on src)",
            "write affinity if that serves, or keep sessions in a store that all servers share";
        STATIC: "Evener serves no files",
            "serve them from one of the servers";
        POLICY: "Evener has no such policy",
            "the policy written here is the nearest; see docs/guide/policies.md";
        ONE_POLICY: "a service has one policy, whatever its routes",
            "make two services of it if it matters";
        ONE_PACE: "a service has one slow start, one kind of report and one affinity for all of its servers",
            "make two services of it if it matters";
        ONE_SHARE: "a server has one weight and one limit of connections, whichever route leads to it",
            "give it a second address, and make a server of that too, if it matters";
        PASSIVE_CHECKS: "Evener probes servers itself, and counts no failures of requests",
            "set interval, rise and fall of [service.health]";
        SCRIPTS: "Evener runs no scripts",
            "follow `evener events --json`, or alert by metrics";
        VRRP: "Evener has no VRRP, and works beside keepalived's",
            "keep this part in keepalived.conf, without virtual servers; see docs/operating/keepalived.md";
        ONE_PACKET: "a UDP flow always has a session",
            "shorten it: udp in [service.timeouts]";
        SYNC: "directors don't copy their sessions to each other",
            "policy = \"hash\" chooses alike on each; see docs/operating/high-availability.md";
        QUORUM: "Evener counts no quorum and runs nothing when it is lost",
            "alert by the metrics of servers that are up; keep_last says what then happens";
        UNREACHED: "an earlier rule matches all of its requests",
            "nothing, or remove that one in the source and import again";
        DUPLICATE: "the service has a server of this address and port already",
            "nothing: it is listed once";
        DISABLED: "it is disabled",
            "nothing, or enable it in the source and import again";
        TUNNEL_CHECKSUM: "Evener's tunnels have no such setting",
            "nothing: servers take tunnels without it";
        DOMAIN: "a host with further labels after this value does not match",
            "write a [[service.route]] for such a host, if there is one";
        ERROR_PAGES: "Evener answers no requests, with errors neither",
            "let the servers have these pages";
        VARIABLES: "Evener has no variables; see the statements that are left",
            "see those statements";
        CHECK_METHOD: "probes send GET",
            "nothing, if the servers answer GET at this path like the method written here";
    }
    Process {
        PROCESS: "it is about the other program's own process, sockets and files",
            "nothing: Evener's are in [engine], [admin] and its systemd unit";
        LOGGING: "Evener forwards packets and logs no requests of most methods",
            "[log] access has connections of handoff; let the servers log requests, or use metrics";
        STATISTICS: "Evener has its own views",
            "use `evener servers`, /metrics and the API of [admin]";
    }
}
