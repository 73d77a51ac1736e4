//! Why something has no counterpart, and what to do: one table for all programs.

/// A reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeftReason {
    /// A sentence without its full stop.
    pub(super) why: &'static str,
    /// The remedy, without a full stop.
    pub(super) todo: &'static str,
}

impl LeftReason {
    /// Both texts.
    pub(super) const fn texts(&self) -> (&'static str, &'static str) {
        (self.why, self.todo)
    }
}

macro_rules! reasons {
    ($($name:ident: $why:literal, $todo:literal;)*) => {
        $(pub(super) static $name: LeftReason = LeftReason { why: $why, todo: $todo };)*
    };
}

reasons! {
    UNKNOWN: "the importer doesn't know this",
        "look whether Evener's reference has something like it; else do without";
    UNUSED: "no service that was made uses it",
        "nothing, or add the service by hand";
    UNREFERENCED: "nothing that was carried over leads to these servers",
        "make a [[service]] of them if they are in use";
    PROCESS: "it is about the other program's own process, sockets and files",
        "nothing: Evener's are in [engine], [admin] and its systemd unit";
    LOGGING: "Evener forwards packets and logs no requests of most methods",
        "[log] access has connections of handoff; let the servers log requests, or use metrics";
    STATISTICS: "Evener has its own views",
        "use `evener servers`, /metrics and the API of [admin]";
    CONNECTION: "it is about connections that a proxy has with clients and servers; Evener has none",
        "set it on the servers, which now have the clients' connections";
    HEADERS: "Evener doesn't change requests or replies",
        "let the servers do it; with l2, tunnel and handoff they see the client's own address";
    RULES: "Evener chooses by host, path and method alone, and refuses nobody by a request",
        "let the servers, or a firewall, do it";
    REDIRECTS: "a service that forwards packets answers nothing itself",
        "let the servers redirect, or make a service with method = \"redirect\"";
    COMPRESSION: "Evener doesn't change replies",
        "let the servers compress";
    CACHING: "Evener keeps no replies",
        "cache on the servers, or in a cache in front of them that is a server of Evener's";
    TLS_HERE: "Evener doesn't end TLS (except for redirect): it passes it through",
        "give the servers the certificate, and let them listen with TLS at the port written here";
    TLS_TO_SERVERS: "Evener opens no connections to servers, so it can't wrap them in TLS",
        "clients' own TLS reaches the servers: give them the certificate";
    PLAIN_SERVERS: "the servers take plain HTTP, and Evener doesn't end TLS",
        "let the servers listen with TLS too, then add a [[service]] for this address";
    COOKIES: "Evener sets and reads no cookies",
        "keep sessions in a store that all servers share";
    AFFINITY: "this version has no affinity by the client's address",
        "policy = \"hash\" binds address and port; else keep sessions in a shared store";
    MAX_CONNECTIONS: "only a server has a limit of connections, and no queue stands before it",
        "write max_connections on the servers; policy least-connections or power-of-two evens them out";
    HTTPS_CHECK: "a probe by TLS needs the name and the authority of the certificate, and the source has none here",
        "the probe opens a connection instead; or write kind = \"https\" with `name` and `ca` in [service.health]";
    QUEUES: "a packet isn't held back: there are no queues, retries or limits of rate",
        "limit on the servers; a connection goes to a server that is up at its first packet";
    STICK_TABLES: "there are no stick tables",
        "policy = \"hash\" binds address and port; else keep sessions in a shared store";
    RATES: "Evener limits no rates of requests",
        "limit them on the servers, or drop floods by a firewall";
    CONTENT: "a service chooses by host, path and method only, as [[service.route]] has them",
        "write a route for it by hand, or let the servers do it";
    STATIC: "Evener serves no files",
        "serve them from one of the servers";
    NO_PROXY: "it passes nothing on to other servers by proxy_pass",
        "let one of the servers do it";
    UPSTREAM_PROTOCOL: "Evener forwards connections as they are, and translates no protocols",
        "let the server program itself take HTTP, or keep this proxy beside it as the server";
    REWRITE: "Evener doesn't change the path of a request",
        "let the servers take the path as clients send it";
    HANDOFF_PORT: "with method handoff a server has the port that the client asked for",
        "let the server listen at the service's port too";
    NO_HANDOFF: "servers of these routes share an address, which only nat can tell apart by port",
        "give each an address of its own, and use method = \"handoff\" with [[service.route]]";
    DISCOVERY: "Evener resolves no names of servers",
        "list their addresses as [[service.server]]; with l2, discover = \"arp\" finds them";
    POLICY: "Evener has no such policy",
        "the policy written here is the nearest; see docs/guide/policies.md";
    ADDRESS_HASH: "policy \"hash\" goes by the client's address and port, this by the address alone",
        "keep sessions in a store that all servers share, if they need one server";
    ONE_POLICY: "a service has one policy, whatever its routes",
        "make two services of it if it matters";
    ONE_PACE: "a service has one slow start, one kind of report and one affinity for all of its servers",
        "make two services of it if it matters";
    ONE_SHARE: "a server has one weight and one limit of connections, whichever route leads to it",
        "give it a second address, and make a server of that too, if it matters";
    ONE_CHECK: "a service has one probe for all of its servers",
        "make two services of it if it matters";
    CHECK_KIND: "probes are TCP connections, HTTP requests or ARP only",
        "the probe opens a connection instead; see docs/guide/health.md";
    CHECK_DETAIL: "Evener's probe has no such setting",
        "see [service.health] in docs/reference/keys.md";
    CHECK_TIME: "the time is out of Evener's range, or a probe would last until the next one",
        "the default is used; see [service.health] in docs/reference/keys.md";
    PASSIVE_CHECKS: "Evener probes servers itself, and counts no failures of requests",
        "set interval, rise and fall of [service.health]";
    REGEX: "routes have stars and question marks, and no regular expressions",
        "write a [[service.route]] whose pattern takes the same requests";
    DIGEST: "probes compare no digest of a page",
        "write text that the page must contain as `body` of [service.health]";
    SCRIPTS: "Evener runs no scripts",
        "follow `evener events --json`, or alert by metrics";
    VRRP: "Evener has no VRRP",
        "see docs/operating/high-availability.md: routes, DNS or every-host";
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
    ONE_PACKET: "a UDP flow always has a session",
        "shorten it: udp in [service.timeouts]";
    SYNC: "directors don't copy their sessions to each other",
        "policy = \"hash\" chooses alike on each; see docs/operating/high-availability.md";
    TABLE: "the command changes a running table, and a file has none",
        "nothing, or make the change in the source first";
    TUNNEL_DETAIL: "the encapsulations are ipip, and gue at port 6080, for all servers of a service",
        "let the servers take one of these";
    QUORUM: "Evener counts no quorum and runs nothing when it is lost",
        "alert by the metrics of servers that are up; keep_last says what then happens";
    PORT_OFFSET: "its port is the client's plus or minus a number, and a server of Evener's has one of its own",
        "make a [[service]] for each port, with the port that it has at the servers";
    UNREACHED: "an unconditional use_backend of the same section takes all requests before it",
        "nothing, or remove that one in the source and import again";
    CASE: "the case of paths and methods counts in routes",
        "write a [[service.route]] for each way that clients write them, if they do";
    NOT_ADDRESS: "this is no IP address, and nothing else in its line says which it is",
        "write the address; `ipvsadm -S -n` writes numbers";
    NO_SERVICE: "the virtual service of this server was not carried over",
        "see that line first";
    DUPLICATE: "the service has a server of this address and port already",
        "nothing: it is listed once";
    SECOND_FAMILY: "method nat keeps the IP version, so one service is of one version",
        "make a second [[service]] for IPv6, with servers that have IPv6 addresses";
    NOT_FOLLOWED: "there is no such file beside this one, so it isn't read",
        "import it by itself, or put it where this line says and import again";
    TOO_MANY: "a farm has at most 64 addresses, and a service at most 256 servers",
        "make a second farm of it, on other hosts, or several services";
    TOO_MANY_ROUTES: "services and the sets of servers that routes name are at most 64 together, \
                      and a service has at most 10,000 routes, a farm 30,000",
        "let routes name the same servers, or make a second farm of it, on other hosts";
    DISABLED: "it is disabled",
        "nothing, or enable it in the source and import again";
    NO_ADDRESS: "it has no address that clients connect to",
        "nothing, or write a [[service]] by hand";
    LOCAL_SOCKET: "Evener listens at IP addresses and forwards to them",
        "let the program listen at an address";
    CONDITION: "parts of a configuration by condition aren't followed",
        "import the file that is in force for this host";
}
