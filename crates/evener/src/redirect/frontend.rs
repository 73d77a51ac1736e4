//! A group for the threads that serve its clients: the rules that the control loop publishes, and
//! the counters that it reads.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::{ArcSwap, ArcSwapOption};
use evener_core::farm::group;
use evener_core::net::http::HttpRefusal;
use rustls::ServerConfig;

/// Methods of members' messages (section 3.3 of the paper).
const PROTOCOL: [&str; 5] = ["GROUP-ADD", "GROUP-EXIT", "GROUP-QUERY", "LOAD-INFORM", "LOAD-QUERY"];

/// Statuses of refused messages, with their counters.
const REFUSED_MESSAGES: [(u16, &str); 10] = [
    (400, "message_400"),
    (401, "message_401"),
    (403, "message_403"),
    (404, "message_404"),
    (405, "message_405"),
    (409, "message_409"),
    (413, "message_413"),
    (422, "message_422"),
    (429, "message_429"),
    // Any other error, most likely of this host.
    (503, "message_503"),
];

/// Rules by which a group's requests are answered. The rules are replaced as a whole.
#[derive(Debug)]
pub(crate) struct Rules {
    by: group::GroupRules,
    /// Addresses on which this daemon listens. No response is fetched from these addresses.
    pub(crate) own: Arc<[SocketAddr]>,
}

impl Deref for Rules {
    type Target = group::GroupRules;

    fn deref(&self) -> &group::GroupRules {
        &self.by
    }
}

impl Rules {
    pub(crate) fn new(by: group::GroupRules, own: &Arc<[SocketAddr]>) -> Rules {
        Rules { by, own: Arc::clone(own) }
    }

    /// True if a method belongs to the group protocol.
    pub(crate) fn is_protocol(&self, method: &str) -> bool {
        method.contains('-') && PROTOCOL.contains(&method)
    }
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// The client was redirected to a member.
    Redirected,
    /// The response was fetched for the client.
    Fetched,
    NoMember,
    /// A member's message, answered with this status.
    Message(u16),
    Refused(HttpRefusal),
}

/// A group that is being served.
#[derive(Debug)]
pub(crate) struct Frontend {
    pub(crate) name: String,
    rules: ArcSwap<Rules>,
    /// TLS settings. `None` for plain HTTP.
    tls: ArcSwapOption<ServerConfig>,
    is_over: AtomicBool,
    redirected: AtomicU64,
    fetched: AtomicU64,
    no_member: AtomicU64,
    /// Number of all messages, and of refused messages by status.
    messages: AtomicU64,
    refused_messages: [AtomicU64; REFUSED_MESSAGES.len()],
    refused: [AtomicU64; HttpRefusal::ALL.len()],
    /// Number of evicted connections.
    evicted: AtomicU64,
}

impl Frontend {
    pub(crate) fn new(name: &str, rules: Rules) -> Frontend {
        Frontend {
            name: name.to_owned(),
            rules: ArcSwap::from_pointee(rules),
            tls: ArcSwapOption::empty(),
            is_over: AtomicBool::new(false),
            redirected: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            no_member: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            refused_messages: [const { AtomicU64::new(0) }; REFUSED_MESSAGES.len()],
            refused: [const { AtomicU64::new(0) }; HttpRefusal::ALL.len()],
            evicted: AtomicU64::new(0),
        }
    }

    /// Returns the rules in force. Hold the guard only while answering.
    pub(crate) fn rules(&self) -> arc_swap::Guard<Arc<Rules>> {
        self.rules.load()
    }

    pub(crate) fn publish(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
    }

    /// Replaces the addresses on which this daemon listens.
    pub(crate) fn listen_at(&self, own: &Arc<[SocketAddr]>) {
        let by = self.rules.load().by.clone();
        self.publish(Rules { by, own: Arc::clone(own) });
    }

    /// Replaces the TLS settings for new connections.
    pub(crate) fn secure(&self, tls: Option<Arc<ServerConfig>>) {
        self.tls.store(tls);
    }

    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.load_full()
    }

    /// True if clients must use TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.load().is_some()
    }

    /// Ends the group: each connection ends after its next response.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// True if the group has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Counts the outcome of a request.
    pub(crate) fn count(&self, outcome: RequestOutcome) {
        let counter = match outcome {
            RequestOutcome::Redirected => Some(&self.redirected),
            RequestOutcome::Fetched => Some(&self.fetched),
            RequestOutcome::NoMember => Some(&self.no_member),
            RequestOutcome::Message(status) => {
                self.messages.fetch_add(1, Relaxed);
                let at = REFUSED_MESSAGES.iter().position(|(refused, _)| *refused == status);
                let at = at.or_else(|| (status >= 400).then_some(REFUSED_MESSAGES.len() - 1));
                at.and_then(|at| self.refused_messages.get(at))
            }
            RequestOutcome::Refused(refusal) => self.refused.get(refusal as usize),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Counts an evicted connection.
    pub(crate) fn count_evicted(&self) {
        self.evicted.fetch_add(1, Relaxed);
    }

    /// Returns all counters, by stable names.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let named = [
            ("redirected", &self.redirected),
            ("fetched", &self.fetched),
            ("no_member", &self.no_member),
            ("messages", &self.messages),
            ("evicted", &self.evicted),
        ];
        let refused = HttpRefusal::ALL.iter().map(|refusal| refusal.name()).zip(&self.refused);
        let messages = REFUSED_MESSAGES.iter().map(|(_, name)| *name).zip(&self.refused_messages);
        named.into_iter().chain(refused).chain(messages).map(|(name, counter)| (name, counter.load(Relaxed)))
    }
}
