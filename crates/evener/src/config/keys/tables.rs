//! The tables of evener.toml, with the keys that each may have.

use evener_core::farm::Method::{Handoff, L2, Nat, Tunnel};
use evener_core::farm::Placement;
use evener_core::farm::group::WEIGHT_MAX;
use evener_core::path::cookie;
use evener_core::pool::LOAD_PORT;
use evener_core::pool::policy::score::GAIN_PERCENT;

use super::KeyConsumer::{Names, Packets, Redirect};
use super::{ConfigKey, ValueType};
use crate::config::{self as config, values::names};

/// Declares a table: its keys as statics, and the list of them.
macro_rules! table {
    ($table:ident { $($NAME:ident = $key:expr;)* }) => {
        pub(in crate::config) mod $table {
            #[allow(clippy::wildcard_imports)]
            use super::*;
            $(pub(in crate::config) static $NAME: ConfigKey = $key;)*
            pub(in crate::config) static KEYS: &[&ConfigKey] = &[$(&$NAME),*];
        }
    };
}

const PORTS: std::ops::RangeInclusive<u64> = 1..=65_535;
/// Limits of the intervals of probes, queries and discovery, in milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 50..=3_600_000;
/// Limits of the idle times of sessions, in milliseconds.
const IDLE_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;
/// Limits of the time for which clients are remembered, in milliseconds.
const AFFINITY_MS: std::ops::RangeInclusive<u64> = 1_000..=7 * 86_400_000;
/// Limits of the times between members' messages, in milliseconds.
const GROUP_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;
/// Limits of the intervals of hosts' and agents' reports, in milliseconds.
const REPORT_MS: std::ops::RangeInclusive<u64> = 100..=60_000;
const SESSIONS: std::ops::RangeInclusive<u64> = 1_024..=16_777_216;
/// Limits of routes' metrics. FRR takes the highest byte of a metric for a distance.
const METRICS: std::ops::RangeInclusive<u64> = 1..=(1 << 24) - 1;
const COUNTS: std::ops::RangeInclusive<u64> = 1..=100;

const NAME: ConfigKey = ConfigKey::text("name");
const ADDRESS: ConfigKey = ConfigKey::text("address");
const POLICY: ConfigKey = ConfigKey::words("policy", config::values::policies);
/// Maximum gain of a server by its report: up to twice the maximum with two candidates.
const REPORT_GAIN: ConfigKey = ConfigKey::new("report_gain", ValueType::Factor(100, 3_200, GAIN_PERCENT));
const SLOW_START: ConfigKey = ConfigKey::time("slow_start", 0..=3_600_000).or(0);
const PANIC_THRESHOLD: ConfigKey = ConfigKey::new("panic_threshold", ValueType::Share);
const WEIGHT: ConfigKey = ConfigKey::number("weight", 0..=65_535).or(1);
const BACKUP: ConfigKey = ConfigKey::flag("backup", false);
const HEALTH_ADDRESS: ConfigKey = ConfigKey::text("health_address");
/// Maximum number of active sessions per server. 0 for no limit.
const MAX_CONNECTIONS: ConfigKey = ConfigKey::number("max_connections", 0..=u32::MAX as u64).or(0);
const CERTIFICATE: ConfigKey = ConfigKey::text("certificate");
const PRIVATE_KEY: ConfigKey = ConfigKey::text("key");
const MEMBER_REPORT: ConfigKey = ConfigKey::time("report", GROUP_MS).or(15_000);

/// Keys of the file itself.
pub(in crate::config) static FILE: &[&ConfigKey] = file::KEYS;

table!(file {
    INCLUDE = ConfigKey::list("include");
    SERVICE = ConfigKey::new("service", ValueType::Tables(service::KEYS));
    ENGINE = ConfigKey::new("engine", ValueType::Table(engine::KEYS));
    FARM = ConfigKey::new("farm", ValueType::Table(farm::KEYS));
    ADMIN = ConfigKey::new("admin", ValueType::Table(admin::KEYS));
    LOG = ConfigKey::new("log", ValueType::Table(log::KEYS));
    AGENT = ConfigKey::new("agent", ValueType::Table(agent::KEYS));
    DNS = ConfigKey::new("dns", ValueType::Table(dns::KEYS));
    ANNOUNCE = ConfigKey::new("announce", ValueType::Table(announce::KEYS));
});

table!(engine {
    KIND = ConfigKey::words("kind", || names(&config::ENGINE_KINDS)).or_word("auto");
    XDP_MODE = ConfigKey::words("xdp_mode", || names(&config::XDP_MODES)).or_word("auto");
    INTERFACES = ConfigKey::list("interfaces");
    SESSIONS_MAX = ConfigKey::number("sessions_max", SESSIONS).or(1_000_000);
    SESSIONS6_MAX = ConfigKey::number("sessions6_max", SESSIONS);
    THREADS = ConfigKey::number("threads", 1..=256);
});

table!(farm {
    SECRET_FILE = ConfigKey::text("secret_file");
    // Hosts' clocks may differ by one epoch.
    COOKIE_EPOCH = ConfigKey::time("cookie_epoch", 1_000..=3_600_000).or(cookie::EPOCH_MS);
    ORPHAN = ConfigKey::time("orphan", 10_000..=7 * 86_400_000).or(600_000);
    DIRECTORS = ConfigKey::list("directors");
    DISPATCHER = ConfigKey::text("dispatcher");
    PORT = ConfigKey::number("port", PORTS).or(9_181);
    INTERVAL = ConfigKey::time("interval", REPORT_MS).or(500);
    SILENCE = ConfigKey::time("silence", REPORT_MS);
});

table!(announce {
    TABLE = ConfigKey::number("table", 1..=u32::MAX as u64).or(254);
    PROTOCOL = ConfigKey::number("protocol", 5..=255).or(91);
    METRIC = ConfigKey::number("metric", METRICS).or(100);
    RAISED_METRIC = ConfigKey::number("raised_metric", METRICS).or(1_000);
    DRAINED = ConfigKey::words("drained", || names(&config::announce::DRAINED)).or_word("withdraw");
    HOLD = ConfigKey::time("hold", 0..=3_600_000).or(10_000);
});

table!(admin {
    LISTEN = ConfigKey::text("listen");
    TOKEN_FILE = ConfigKey::text("token_file");
    HOSTS = ConfigKey::list("hosts");
    TLS = ConfigKey::new("tls", ValueType::Table(admin_tls::KEYS));
});

table!(admin_tls {
    CERTIFICATE = super::CERTIFICATE;
    KEY = PRIVATE_KEY;
    CLIENT_CA = ConfigKey::text("client_ca");
    CERTIFICATES_FILE = ConfigKey::text("certificates_file");
});

table!(tls {
    CERTIFICATE = super::CERTIFICATE;
    KEY = PRIVATE_KEY;
});

table!(log {
    ACCESS = ConfigKey::text("access");
});

table!(agent {
    REPORT = ConfigKey::time("report", REPORT_MS).or(1_000);
    LISTEN = ConfigKey::text("listen");
    CHECK_LISTEN = ConfigKey::text("check_listen");
    ALLOW = ConfigKey::list("allow");
    STATUS_URL = ConfigKey::text("status_url");
    CGROUP = ConfigKey::text("cgroup");
    DELAY = ConfigKey::words("delay", || names(&config::agent::DELAYS)).or_word("corrected");
    MEMBER = ConfigKey::new("member", ValueType::Table(member::KEYS));
});

table!(member {
    GROUP = ConfigKey::text("group");
    URL = ConfigKey::text("url");
    WEIGHT = ConfigKey::number("weight", 0..=WEIGHT_MAX as u64).or(1);
    ANONYMOUS = ConfigKey::flag("anonymous", false);
    PATH = ConfigKey::list("path");
    HOST = ConfigKey::list("host");
    CONTROL = ConfigKey::text("control");
    TOKEN_FILE = ConfigKey::text("token_file");
    REPORT = MEMBER_REPORT;
    CA = ConfigKey::text("ca");
    TLS = ConfigKey::new("tls", ValueType::Table(tls::KEYS));
});

/// Help for keys that require discovery.
const NO_DISCOVERY: &str = "add discover = \"arp\", or remove it";

table!(service {
    NAME = super::NAME;
    ADDRESS = super::ADDRESS;
    ADDRESSES = ConfigKey::list("addresses");
    PROTOCOL = ConfigKey::words("protocol", || names(&config::service::PROTOCOLS)).or_word("tcp").only_for(Packets);
    METHOD = ConfigKey::words("method", config::method::words).or_word("l2");
    PLACEMENT =
        ConfigKey::words("placement", || names(&config::placement::PLACEMENTS)).or_word("director").only_for(Packets);
    POLICY = super::POLICY;
    REPORT_GAIN = super::REPORT_GAIN;
    SLOW_START = super::SLOW_START;
    AFFINITY = ConfigKey::time("affinity", AFFINITY_MS).only_for(Packets);
    AFFINITY_MASK = ConfigKey::list("affinity_mask").only_for(Packets).requires("affinity", "add for example affinity = \"10m\", or remove it");
    STATELESS =
        ConfigKey::flag("stateless", false).only_for(Packets).placement(Placement::EveryHost, "is only for placement \"every-host\"", "remove it");
    SOURCE_NAT = ConfigKey::flag("source_nat", false).only_for(Packets).methods(&[Nat]);
    PASSIVE_CHECKS = ConfigKey::flag("passive_checks", false).only_for(Packets).methods(&[Nat]);
    // Hosts that aren't on the link are reached by a tunnel, with any method.
    ENCAPSULATION = ConfigKey::words("encapsulation", || names(&config::method::ENCAPSULATIONS))
        .only_for(Packets)
        .methods(&[Tunnel, Handoff])
        .methods_on_every_host(&[]);
    // Minimum MTU of an IPv6 link (RFC 8200, section 5), and maximum length of an IP packet.
    MTU = ConfigKey::number("mtu", 1_280..=65_535).only_for(Packets).methods(&[Tunnel, Handoff]).methods_on_every_host(&[]);
    // With a handoff the director itself offers the segment size to clients.
    CLAMP_MSS = ConfigKey::flag("clamp_mss", true).only_for(Packets).methods(&[Tunnel]).methods_on_every_host(&[L2, Tunnel]);
    LATER_REQUESTS = ConfigKey::words("later_requests", || names(&config::method::LATER_REQUESTS))
        .or_word("stay")
        .only_for(Packets)
        .methods(&[Handoff]);
    PROXY_PROTOCOL_PORT = ConfigKey::number("proxy_protocol_port", PORTS).only_for(Packets).methods(&[Handoff]);
    DISCOVER = ConfigKey::words("discover", || names(&config::service::DISCOVER)).only_for(Packets).placement(
        Placement::Director,
        "finds no host of placement \"every-host\": these know each other by name",
        "list every host as [[service.server]], and remove it",
    );
    DISCOVER_INTERVAL = ConfigKey::time("discover_interval", INTERVAL_MS).or(5_000).only_for(Packets).requires("discover", NO_DISCOVERY);
    DISCOVER_ROUNDS = ConfigKey::number("discover_rounds", COUNTS).or(3).only_for(Packets).requires("discover", NO_DISCOVERY);
    SERVERS_MAX = ConfigKey::number("servers_max", 1..=config::defaults::SERVERS as u64).or(64).only_for(Packets).requires("discover", NO_DISCOVERY);
    ALLOW = ConfigKey::list("allow").only_for(Packets).requires("discover", NO_DISCOVERY);
    ANNOUNCE = ConfigKey::new("announce", ValueType::FlagOr(true, &config::values::ANNOUNCERS)).only_for(Packets);
    KEEP_LAST = ConfigKey::flag("keep_last", true).only_for(Packets);
    PANIC_THRESHOLD = super::PANIC_THRESHOLD.placement(
        Placement::Director,
        "is about probes, and hosts of placement \"every-host\" report to each other",
        "remove it: a silent host is gone, and sending to it would lose connections",
    );
    STATUS = ConfigKey::number("status", 302..=308).or(302).only_for(Redirect);
    LOAD = ConfigKey::words("load", || names(&config::group::LOADS)).or_word("aged").only_for(Redirect);
    GROUP = ConfigKey::new("group", ValueType::Table(group::KEYS)).only_for(Redirect);
    TLS = ConfigKey::new("tls", ValueType::Table(tls::KEYS)).only_for(Redirect);
    SERVER = ConfigKey::new("server", ValueType::Tables(server::KEYS));
    ROUTE = ConfigKey::new("route", ValueType::Tables(route::KEYS)).methods(&[Handoff]);
    HEALTH = ConfigKey::new("health", ValueType::Table(health::KEYS));
    REPORT = ConfigKey::new("report", ValueType::Table(report::KEYS));
    TIMEOUTS = ConfigKey::new("timeouts", ValueType::Table(timeouts::KEYS)).only_for(Packets);
});

table!(server {
    NAME = super::NAME;
    ADDRESS = super::ADDRESS.only_for(Packets);
    PORT = ConfigKey::number("port", PORTS).only_for(Packets).methods(&[Nat]);
    MAC = ConfigKey::text("mac").only_for(Packets).methods(&[L2]).placement(
        Placement::Director,
        "is only for placement \"director\": hosts of an every-host farm exchange theirs",
        "remove it",
    );
    URL = ConfigKey::text("url").only_for(Redirect);
    WEIGHT = super::WEIGHT;
    BACKUP = super::BACKUP;
    MAX_CONNECTIONS = super::MAX_CONNECTIONS
        .only_for(Packets)
        .foreign(
            "is for servers that packets are sent to: how many connections a client has to a member isn't seen",
            "remove it",
        );
    HEALTH_ADDRESS = super::HEALTH_ADDRESS.methods(&[Nat]);
    PUBLISH = ConfigKey::list("publish").only_for(Packets).placement(
        Placement::EveryHost,
        "is only for placement \"every-host\"",
        "remove it, or add placement = \"every-host\" to the service",
    );
    ANONYMOUS = ConfigKey::flag("anonymous", false).only_for(Redirect);
    CONTROL = ConfigKey::text("control").only_for(Redirect);
});

table!(route {
    HOST = ConfigKey::text("host");
    PATH = ConfigKey::text("path");
    METHODS = ConfigKey::list("methods");
    SERVERS = ConfigKey::list("servers");
});

const HTTP: &[&str] = &["http", "https"];

table!(health {
    KIND = ConfigKey::words("kind", || names(&config::health::KINDS));
    INTERVAL = ConfigKey::time("interval", INTERVAL_MS).or(2_000);
    FAST_INTERVAL = ConfigKey::time("fast_interval", INTERVAL_MS);
    TIMEOUT = ConfigKey::time("timeout", 1..=*INTERVAL_MS.end());
    RISE = ConfigKey::number("rise", COUNTS).or(2);
    FALL = ConfigKey::number("fall", COUNTS).or(3);
    JITTER_PERCENT = ConfigKey::number("jitter_percent", 0..=50).or(10);
    PORT = ConfigKey::number("port", PORTS).kinds(&["tcp", "http", "https"], "probes of a port", "\"tcp\" or \"http\"");
    PATH = ConfigKey::text("path").kinds(HTTP, "HTTP probes", "\"http\"");
    HOST = ConfigKey::text("host").kinds(HTTP, "HTTP probes", "\"http\"");
    STATUS = ConfigKey::list("status").kinds(HTTP, "HTTP probes", "\"http\"");
    BODY = ConfigKey::text("body").kinds(HTTP, "HTTP probes", "\"http\"");
    NAME = super::NAME.kinds(&["https"], "probes by TLS", "\"https\"");
    CA = ConfigKey::text("ca").kinds(&["https"], "probes by TLS", "\"https\"");
    VERIFY = ConfigKey::flag("verify", true).kinds(&["https"], "probes by TLS", "\"https\"");
});

table!(report {
    KIND = ConfigKey::words("kind", || names(&config::report::KINDS)).or_word("http");
    PATH = ConfigKey::text("path").kinds(&["http", "mod_status"], "reports by HTTP", "\"http\"");
    PORT = ConfigKey::number("port", PORTS).or(LOAD_PORT as u64);
    INTERVAL = ConfigKey::period("interval", INTERVAL_MS).or(2_000);
});

table!(timeouts {
    SYN = ConfigKey::time("syn", IDLE_MS);
    TCP = ConfigKey::time("tcp", IDLE_MS);
    HALF_CLOSED = ConfigKey::time("half_closed", IDLE_MS);
    CLOSING = ConfigKey::time("closing", IDLE_MS);
    UDP = ConfigKey::time("udp", IDLE_MS);
});

table!(group {
    ALLOW = ConfigKey::list("allow");
    INSECURE = ConfigKey::flag("insecure", false);
    TOKEN_FILE = ConfigKey::text("token_file");
    CLIENT_CA = ConfigKey::text("client_ca");
    REPORT = MEMBER_REPORT;
    QUERY_AFTER = ConfigKey::time("query_after", GROUP_MS);
    REMOVE_AFTER = ConfigKey::time("remove_after", GROUP_MS);
    PATHS = ConfigKey::list("paths");
    HOSTS = ConfigKey::list("hosts");
    WEIGHT = ConfigKey::number("weight", 0..=WEIGHT_MAX as u64).or(1);
});

table!(dns {
    LISTEN = ConfigKey::list("listen");
    // Answers per second to a network without a valid cookie, its burst, and the rate for all
    // networks.
    RATE = ConfigKey::number("rate", 0..=1_000_000).or(200);
    BURST = ConfigKey::number("burst", 1..=1_000_000).or(1_000);
    TOTAL_RATE = ConfigKey::number("total_rate", 0..=1_000_000).or(5_000);
    NSID = ConfigKey::text("nsid");
    COOKIE_SECRET_FILE = ConfigKey::text("cookie_secret_file");
    NAMES_FROM = ConfigKey::list("names_from");
    ZONE = ConfigKey::new("zone", ValueType::Tables(zone::KEYS));
    NAME = ConfigKey::new("name", ValueType::Tables(name::KEYS));
});

/// Keys of a file of `names_from`.
pub(in crate::config) static NAMES_FILE: &[&ConfigKey] = &[&NAMES_FILE_DNS];
pub(in crate::config) static NAMES_FILE_DNS: ConfigKey =
    ConfigKey::new("dns", ValueType::Table(&[&dns::NAME]));

table!(zone {
    NAME = super::NAME;
    FILE = ConfigKey::text("file");
});

table!(name {
    NAME = super::NAME;
    SERVICES = ConfigKey::list("services");
    ANSWER = ConfigKey::words("answer", || names(&config::dns::ANSWERS)).or_word("servers");
    POLICY = super::POLICY;
    RANK = ConfigKey::words("rank", || names(&config::dns::RANKS)).or_word("corrected");
    REPORT_GAIN = super::REPORT_GAIN;
    PERIOD = ConfigKey::period("period", 0..=86_400_000);
    PROBE = ConfigKey::period("probe", 1_000..=86_400_000);
    PROBE_MODE = ConfigKey::words("probe_mode", || names(&config::dns::PATH_MODES)).or_word("udp");
    RANK_FROM = ConfigKey::text("rank_from");
    RANK_FILE = ConfigKey::text("rank_file");
    GDNSD_FILE = ConfigKey::text("gdnsd_file");
    // Resolvers repeat a query about as often as servers change.
    TTL = ConfigKey::number("ttl", 0..=604_800).or(5);
    TOP = ConfigKey::number("top", 1..=16).or(1);
    PANIC_THRESHOLD = super::PANIC_THRESHOLD.not_for(Names).foreign(
        "is for services and groups: `none_alive` sets the answer while no server of a name works",
        "remove it",
    );
    NONE_ALIVE = ConfigKey::list("none_alive");
    ALPN = ConfigKey::list("alpn");
    SLOW_START = super::SLOW_START;
    SERVERS = ConfigKey::list("servers");
    SERVER = ConfigKey::new("server", ValueType::Tables(name_server::KEYS));
    HEALTH = ConfigKey::new("health", ValueType::Table(health::KEYS));
    REPORT = ConfigKey::new("report", ValueType::Table(report::KEYS));
});

table!(name_server {
    NAME = super::NAME;
    ADDRESS = super::ADDRESS;
    WEIGHT = super::WEIGHT;
    BACKUP = super::BACKUP;
    MAX_CONNECTIONS = super::MAX_CONNECTIONS.not_for(Names).foreign(
        "is for servers of services: connections of a name's clients don't pass the director",
        "remove it",
    );
    HEALTH_ADDRESS = super::HEALTH_ADDRESS;
});
