//! The tables of evener.toml, with the keys that each may have.

use evener_core::farm::Method::{Handoff, L2, Nat, Tunnel};
use evener_core::farm::Placement;
use evener_core::farm::group::WEIGHT_MAX;
use evener_core::path::cookie;
use evener_core::pool::LOAD_PORT;
use evener_core::pool::policy::score::GAIN_PERCENT;

use super::Consumer::{Names, Packets, Redirect};
use super::{Key, Value};
use crate::config::{self as config, values::names};

/// Declares a table: its keys as statics, and the list of them.
macro_rules! table {
    ($table:ident { $($NAME:ident = $key:expr;)* }) => {
        pub(in crate::config) mod $table {
            #[allow(clippy::wildcard_imports)]
            use super::*;
            $(pub(in crate::config) static $NAME: Key = $key;)*
            pub(in crate::config) static KEYS: &[&Key] = &[$(&$NAME),*];
        }
    };
}

const PORTS: std::ops::RangeInclusive<u64> = 1..=65_535;
/// Intervals of probes, questions and discovery, in milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 50..=3_600_000;
/// Idle times of sessions, in milliseconds.
const IDLE_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;
/// Times between members' messages, in milliseconds.
const GROUP_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;
/// Intervals of hosts' and agents' reports, in milliseconds.
const REPORT_MS: std::ops::RangeInclusive<u64> = 100..=60_000;
const SESSIONS: std::ops::RangeInclusive<u64> = 1_024..=16_777_216;
const COUNTS: std::ops::RangeInclusive<u64> = 1..=100;

const NAME: Key = Key::text("name");
const ADDRESS: Key = Key::text("address");
const POLICY: Key = Key::words("policy", config::values::policies);
/// The most that a server may gain by its report: up to twice what two candidates can give it.
const REPORT_GAIN: Key = Key::new("report_gain", Value::Factor(100, 3_200, GAIN_PERCENT));
const SLOW_START: Key = Key::time("slow_start", 0..=3_600_000).or(0);
const PANIC_THRESHOLD: Key = Key::new("panic_threshold", Value::Share);
const WEIGHT: Key = Key::number("weight", 0..=65_535).or(1);
const BACKUP: Key = Key::flag("backup", false);
const HEALTH_ADDRESS: Key = Key::text("health_address");
/// Active sessions of one server; 0: any number.
const MAX_CONNECTIONS: Key = Key::number("max_connections", 0..=u32::MAX as u64).or(0);
const CERTIFICATE: Key = Key::text("certificate");
const PRIVATE_KEY: Key = Key::text("key");
const MEMBER_REPORT: Key = Key::time("report", GROUP_MS).or(15_000);

/// The keys of the file itself.
pub(in crate::config) static FILE: &[&Key] = file::KEYS;

table!(file {
    INCLUDE = Key::list("include");
    SERVICE = Key::new("service", Value::Tables(service::KEYS));
    ENGINE = Key::new("engine", Value::Table(engine::KEYS));
    FARM = Key::new("farm", Value::Table(farm::KEYS));
    ADMIN = Key::new("admin", Value::Table(admin::KEYS));
    LOG = Key::new("log", Value::Table(log::KEYS));
    AGENT = Key::new("agent", Value::Table(agent::KEYS));
    DNS = Key::new("dns", Value::Table(dns::KEYS));
});

table!(engine {
    KIND = Key::words("kind", || names(&config::ENGINE_KINDS)).or_word("auto");
    XDP_MODE = Key::words("xdp_mode", || names(&config::XDP_MODES)).or_word("auto");
    INTERFACES = Key::list("interfaces");
    SESSIONS_MAX = Key::number("sessions_max", SESSIONS).or(1_000_000);
    SESSIONS6_MAX = Key::number("sessions6_max", SESSIONS);
    THREADS = Key::number("threads", 1..=256);
});

table!(farm {
    SECRET_FILE = Key::text("secret_file");
    // Hosts' clocks may differ by one epoch.
    COOKIE_EPOCH = Key::time("cookie_epoch", 1_000..=3_600_000).or(cookie::EPOCH_MS);
    ORPHAN = Key::time("orphan", 10_000..=7 * 86_400_000).or(600_000);
    DIRECTORS = Key::list("directors");
    DISPATCHER = Key::text("dispatcher");
    PORT = Key::number("port", PORTS).or(9_181);
    INTERVAL = Key::time("interval", REPORT_MS).or(500);
    SILENCE = Key::time("silence", REPORT_MS);
});

table!(admin {
    LISTEN = Key::text("listen");
    TOKEN_FILE = Key::text("token_file");
    HOSTS = Key::list("hosts");
    TLS = Key::new("tls", Value::Table(admin_tls::KEYS));
});

table!(admin_tls {
    CERTIFICATE = super::CERTIFICATE;
    KEY = PRIVATE_KEY;
    CLIENT_CA = Key::text("client_ca");
    CERTIFICATES_FILE = Key::text("certificates_file");
});

table!(tls {
    CERTIFICATE = super::CERTIFICATE;
    KEY = PRIVATE_KEY;
});

table!(log {
    ACCESS = Key::text("access");
});

table!(agent {
    REPORT = Key::time("report", REPORT_MS).or(1_000);
    LISTEN = Key::text("listen");
    CHECK_LISTEN = Key::text("check_listen");
    ALLOW = Key::list("allow");
    STATUS_URL = Key::text("status_url");
    CGROUP = Key::text("cgroup");
    DELAY = Key::words("delay", || names(&config::agent::DELAYS)).or_word("corrected");
    MEMBER = Key::new("member", Value::Table(member::KEYS));
});

table!(member {
    GROUP = Key::text("group");
    URL = Key::text("url");
    WEIGHT = Key::number("weight", 0..=WEIGHT_MAX as u64).or(1);
    ANONYMOUS = Key::flag("anonymous", false);
    PATH = Key::list("path");
    HOST = Key::list("host");
    CONTROL = Key::text("control");
    TOKEN_FILE = Key::text("token_file");
    REPORT = MEMBER_REPORT;
    CA = Key::text("ca");
    TLS = Key::new("tls", Value::Table(tls::KEYS));
});

/// Why a key means nothing without discovery.
const NO_DISCOVERY: &str = "add discover = \"arp\", or remove it";

table!(service {
    NAME = super::NAME;
    ADDRESS = super::ADDRESS;
    ADDRESSES = Key::list("addresses");
    PROTOCOL = Key::words("protocol", || names(&config::service::PROTOCOLS)).or_word("tcp").only_for(Packets);
    METHOD = Key::words("method", config::method::words).or_word("l2");
    PLACEMENT =
        Key::words("placement", || names(&config::placement::PLACEMENTS)).or_word("director").only_for(Packets);
    POLICY = super::POLICY;
    REPORT_GAIN = super::REPORT_GAIN;
    // Hosts that pass on packets of others hear of each other at different moments.
    SLOW_START = super::SLOW_START.placement(
        Placement::Director,
        "would part the tables of hosts for a while, and with placement = \"every-host\" all need the same",
        "remove it",
    );
    STATELESS =
        Key::flag("stateless", false).only_for(Packets).placement(Placement::EveryHost, "is only for placement \"every-host\"", "remove it");
    SOURCE_NAT = Key::flag("source_nat", false).only_for(Packets).methods(&[Nat]);
    PASSIVE_CHECKS = Key::flag("passive_checks", false).only_for(Packets).methods(&[Nat]);
    // Hosts that aren't on the link are reached by a tunnel, whatever the method.
    ENCAPSULATION = Key::words("encapsulation", || names(&config::method::ENCAPSULATIONS))
        .only_for(Packets)
        .methods(&[Tunnel, Handoff])
        .methods_on_every_host(&[]);
    // No IPv6 link takes less (RFC 8200, section 5); no IP packet is longer.
    MTU = Key::number("mtu", 1_280..=65_535).only_for(Packets).methods(&[Tunnel, Handoff]).methods_on_every_host(&[]);
    // With a handoff the director offers clients a segment size itself.
    CLAMP_MSS = Key::flag("clamp_mss", true).only_for(Packets).methods(&[Tunnel]).methods_on_every_host(&[L2, Tunnel]);
    LATER_REQUESTS = Key::words("later_requests", || names(&config::method::LATER_REQUESTS))
        .or_word("stay")
        .only_for(Packets)
        .methods(&[Handoff]);
    PROXY_PROTOCOL_PORT = Key::number("proxy_protocol_port", PORTS).only_for(Packets).methods(&[Handoff]);
    DISCOVER = Key::words("discover", || names(&config::service::DISCOVER)).only_for(Packets).placement(
        Placement::Director,
        "finds no host of placement \"every-host\": these know each other by name",
        "list every host as [[service.server]], and remove it",
    );
    DISCOVER_INTERVAL = Key::time("discover_interval", INTERVAL_MS).or(5_000).only_for(Packets).requires("discover", NO_DISCOVERY);
    DISCOVER_ROUNDS = Key::number("discover_rounds", COUNTS).or(3).only_for(Packets).requires("discover", NO_DISCOVERY);
    SERVERS_MAX = Key::number("servers_max", 1..=config::defaults::SERVERS as u64).or(64).only_for(Packets).requires("discover", NO_DISCOVERY);
    ALLOW = Key::list("allow").only_for(Packets).requires("discover", NO_DISCOVERY);
    ANNOUNCE = Key::flag("announce", true).only_for(Packets);
    KEEP_LAST = Key::flag("keep_last", true).only_for(Packets);
    PANIC_THRESHOLD = super::PANIC_THRESHOLD.placement(
        Placement::Director,
        "is about probes, and hosts of placement \"every-host\" report to each other",
        "remove it: a silent host is gone, and sending to it would lose connections",
    );
    STATUS = Key::number("status", 302..=308).or(302).only_for(Redirect);
    LOAD = Key::words("load", || names(&config::group::LOADS)).or_word("aged").only_for(Redirect);
    GROUP = Key::new("group", Value::Table(group::KEYS)).only_for(Redirect);
    TLS = Key::new("tls", Value::Table(tls::KEYS)).only_for(Redirect);
    SERVER = Key::new("server", Value::Tables(server::KEYS));
    ROUTE = Key::new("route", Value::Tables(route::KEYS)).methods(&[Handoff]);
    HEALTH = Key::new("health", Value::Table(health::KEYS));
    REPORT = Key::new("report", Value::Table(report::KEYS)).placement(
        Placement::Director,
        "is for a director: hosts of placement \"every-host\" tell each other their load, and ask nobody",
        "remove it",
    );
    TIMEOUTS = Key::new("timeouts", Value::Table(timeouts::KEYS)).only_for(Packets);
});

table!(server {
    NAME = super::NAME;
    ADDRESS = super::ADDRESS.only_for(Packets);
    PORT = Key::number("port", PORTS).only_for(Packets).methods(&[Nat]);
    MAC = Key::text("mac").only_for(Packets).methods(&[L2]).placement(
        Placement::Director,
        "is only for placement \"director\": hosts tell each other theirs",
        "remove it",
    );
    URL = Key::text("url").only_for(Redirect);
    WEIGHT = super::WEIGHT;
    BACKUP = super::BACKUP;
    MAX_CONNECTIONS = super::MAX_CONNECTIONS
        .only_for(Packets)
        .foreign(
            "is for servers that packets are sent to: how many connections a client has to a member isn't seen",
            "remove it",
        )
        .placement(
            Placement::Director,
            "is only for placement \"director\": no host knows the sessions of all",
            "remove it, or have a director choose",
        );
    HEALTH_ADDRESS = super::HEALTH_ADDRESS.methods(&[Nat]);
    PUBLISH = Key::list("publish").only_for(Packets).placement(
        Placement::EveryHost,
        "is only for placement \"every-host\"",
        "remove it, or add placement = \"every-host\" to the service",
    );
    ANONYMOUS = Key::flag("anonymous", false).only_for(Redirect);
    CONTROL = Key::text("control").only_for(Redirect);
});

table!(route {
    HOST = Key::text("host");
    PATH = Key::text("path");
    METHODS = Key::list("methods");
    SERVERS = Key::list("servers");
});

const HTTP: &[&str] = &["http", "https"];

table!(health {
    KIND = Key::words("kind", || names(&config::health::KINDS));
    INTERVAL = Key::time("interval", INTERVAL_MS).or(2_000);
    FAST_INTERVAL = Key::time("fast_interval", INTERVAL_MS);
    TIMEOUT = Key::time("timeout", 1..=*INTERVAL_MS.end());
    RISE = Key::number("rise", COUNTS).or(2);
    FALL = Key::number("fall", COUNTS).or(3);
    JITTER_PERCENT = Key::number("jitter_percent", 0..=50).or(10);
    PORT = Key::number("port", PORTS).kinds(&["tcp", "http", "https"], "probes of a port", "\"tcp\" or \"http\"");
    PATH = Key::text("path").kinds(HTTP, "HTTP probes", "\"http\"");
    HOST = Key::text("host").kinds(HTTP, "HTTP probes", "\"http\"");
    STATUS = Key::list("status").kinds(HTTP, "HTTP probes", "\"http\"");
    BODY = Key::text("body").kinds(HTTP, "HTTP probes", "\"http\"");
    NAME = super::NAME.kinds(&["https"], "probes by TLS", "\"https\"");
    CA = Key::text("ca").kinds(&["https"], "probes by TLS", "\"https\"");
    VERIFY = Key::flag("verify", true).kinds(&["https"], "probes by TLS", "\"https\"");
});

table!(report {
    KIND = Key::words("kind", || names(&config::report::KINDS)).or_word("http");
    PATH = Key::text("path").kinds(&["http", "mod_status"], "reports by HTTP", "\"http\"");
    PORT = Key::number("port", PORTS).or(LOAD_PORT as u64);
    INTERVAL = Key::time("interval", INTERVAL_MS).or(2_000);
});

table!(timeouts {
    SYN = Key::time("syn", IDLE_MS);
    TCP = Key::time("tcp", IDLE_MS);
    HALF_CLOSED = Key::time("half_closed", IDLE_MS);
    CLOSING = Key::time("closing", IDLE_MS);
    UDP = Key::time("udp", IDLE_MS);
});

table!(group {
    ALLOW = Key::list("allow");
    INSECURE = Key::flag("insecure", false);
    TOKEN_FILE = Key::text("token_file");
    CLIENT_CA = Key::text("client_ca");
    REPORT = MEMBER_REPORT;
    QUERY_AFTER = Key::time("query_after", GROUP_MS);
    REMOVE_AFTER = Key::time("remove_after", GROUP_MS);
    PATHS = Key::list("paths");
    HOSTS = Key::list("hosts");
    WEIGHT = Key::number("weight", 0..=WEIGHT_MAX as u64).or(1);
});

table!(dns {
    LISTEN = Key::list("listen");
    // Answers a second to a network that hasn't shown where it is, and at once; then to all.
    RATE = Key::number("rate", 0..=1_000_000).or(200);
    BURST = Key::number("burst", 1..=1_000_000).or(1_000);
    TOTAL_RATE = Key::number("total_rate", 0..=1_000_000).or(5_000);
    NSID = Key::text("nsid");
    COOKIE_SECRET_FILE = Key::text("cookie_secret_file");
    NAMES_FROM = Key::list("names_from");
    ZONE = Key::new("zone", Value::Tables(zone::KEYS));
    NAME = Key::new("name", Value::Tables(name::KEYS));
});

/// The keys of a file of `names_from`.
pub(in crate::config) static NAMES_FILE: &[&Key] = &[&NAMES_FILE_DNS];
pub(in crate::config) static NAMES_FILE_DNS: Key = Key::new("dns", Value::Table(&[&dns::NAME]));

table!(zone {
    NAME = super::NAME;
    FILE = Key::text("file");
});

table!(name {
    NAME = super::NAME;
    SERVICES = Key::list("services");
    ANSWER = Key::words("answer", || names(&config::dns::ANSWERS)).or_word("servers");
    POLICY = super::POLICY;
    RANK = Key::words("rank", || names(&config::dns::RANKS)).or_word("corrected");
    REPORT_GAIN = super::REPORT_GAIN;
    PERIOD = Key::new("period", Value::List);
    PROBE = Key::time("probe", 1_000..=86_400_000);
    PROBE_MODE = Key::words("probe_mode", || names(&config::dns::PATH_MODES)).or_word("udp");
    RANK_FROM = Key::text("rank_from");
    RANK_FILE = Key::text("rank_file");
    GDNSD_FILE = Key::text("gdnsd_file");
    // Resolvers ask again about as often as servers change.
    TTL = Key::number("ttl", 0..=604_800).or(5);
    TOP = Key::number("top", 1..=16).or(1);
    PANIC_THRESHOLD = super::PANIC_THRESHOLD.not_for(Names).foreign(
        "is for services and groups: while no server of a name lives, `none_alive` says what is given",
        "remove it",
    );
    NONE_ALIVE = Key::list("none_alive");
    ALPN = Key::list("alpn");
    SLOW_START = super::SLOW_START;
    SERVERS = Key::list("servers");
    SERVER = Key::new("server", Value::Tables(name_server::KEYS));
    HEALTH = Key::new("health", Value::Table(health::KEYS));
    REPORT = Key::new("report", Value::Table(report::KEYS));
});

table!(name_server {
    NAME = super::NAME;
    ADDRESS = super::ADDRESS;
    WEIGHT = super::WEIGHT;
    BACKUP = super::BACKUP;
    MAX_CONNECTIONS = super::MAX_CONNECTIONS.not_for(Names).foreign(
        "is for servers that packets are sent to: no connection is seen of those that ask for a name",
        "remove it",
    );
    HEALTH_ADDRESS = super::HEALTH_ADDRESS;
});
