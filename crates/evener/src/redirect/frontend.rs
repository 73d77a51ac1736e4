//! A group as those see it who answer for it: rules that the control loop publishes, and counts
//! that it reads.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::{ArcSwap, ArcSwapOption};
use evener_core::farm::group;
use evener_core::net::http::HttpRefusal;
use rustls::ServerConfig;

/// The methods of members' messages: section 3.3 of the paper.
const PROTOCOL: [&str; 5] = ["GROUP-ADD", "GROUP-EXIT", "GROUP-QUERY", "LOAD-INFORM", "LOAD-QUERY"];

/// Statuses by which messages are refused, and what they are counted as.
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
    // Any other error; most likely one of this host.
    (503, "message_503"),
];

/// The rules of answers. Others take their place as a whole.
#[derive(Debug)]
pub(crate) struct Rules {
    by: group::GroupRules,
    /// Where this daemon listens: nobody is fetched from there.
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

    /// Whether a method is one by which members speak.
    pub(crate) fn is_protocol(&self, method: &str) -> bool {
        method.contains('-') && PROTOCOL.contains(&method)
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// Its client was sent to a member.
    Redirected,
    /// It was fetched for its client.
    Fetched,
    /// No member lives.
    NoMember,
    /// It was a message of a member, answered by this status.
    Message(u16),
    /// It was refused.
    Refused(HttpRefusal),
}

/// A group, for as long as anybody answers for it.
#[derive(Debug)]
pub(crate) struct Frontend {
    pub(crate) name: String,
    rules: ArcSwap<Rules>,
    /// By which its clients come, if they come by TLS.
    tls: ArcSwapOption<ServerConfig>,
    is_over: AtomicBool,
    redirected: AtomicU64,
    fetched: AtomicU64,
    no_member: AtomicU64,
    /// All, and those that were refused.
    messages: AtomicU64,
    refused_messages: [AtomicU64; REFUSED_MESSAGES.len()],
    refused: [AtomicU64; HttpRefusal::ALL.len()],
    /// Connections that were let go for others.
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

    /// The rules in force, for as long as it takes to answer by them.
    pub(crate) fn rules(&self) -> arc_swap::Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// From now on answers go by these.
    pub(crate) fn publish(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
    }

    /// The daemon listens elsewhere from now on.
    pub(crate) fn listen_at(&self, own: &Arc<[SocketAddr]>) {
        let by = self.rules.load().by.clone();
        self.publish(Rules { by, own: Arc::clone(own) });
    }

    /// From now on new clients come by this, or by nothing.
    pub(crate) fn secure(&self, tls: Option<Arc<ServerConfig>>) {
        self.tls.store(tls);
    }

    /// The TLS settings of clients.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.load_full()
    }

    /// Whether they come by TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.load().is_some()
    }

    /// The group is no more: connections end with their next answer.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Whether it is no more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Counts what became of a request.
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

    /// Counts a connection that was let go for another.
    pub(crate) fn count_evicted(&self) {
        self.evicted.fetch_add(1, Relaxed);
    }

    /// All counts, by names that stay.
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
