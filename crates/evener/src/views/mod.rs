//! Views of the daemon: one set of names for the command line, the API, metrics and the dashboard.
//! Each module computes a view from the state that the control loop has published
//! ([`crate::board`]).
//!
//! Fields are only ever added. Times are in seconds, sizes in bytes.

mod affinity;
mod cause;
mod directors;
mod explanation;
mod finding;
mod groups;
mod hosts;
mod names;
mod overrides;
mod requests;
mod servers;
mod services;
mod sessions;
mod status;

use std::sync::Arc;
use std::time::Duration;

use crate::board::SnapshotStore;
use crate::board::request::{ExplainSubject, SessionFilter};
use crate::events::Subscriber;
use crate::state::FarmState;

pub use crate::events::{EventStreamItem, EventView};
pub use affinity::AffinityView;
pub use directors::{DirectorView, DirectorsView};
pub use explanation::{DispatchExplanation, Explanation};
pub use finding::{Finding, Severity};
pub use groups::MemberView;
pub use hosts::{HostView, NodeRefusal};
pub use names::NameView;
pub use overrides::OverrideView;
pub use requests::RequestView;
pub use servers::{HandshakesView, ServerView};
pub use services::ServiceView;
pub(crate) use services::{has_service, is_service};
pub use sessions::SessionView;
pub use status::{Dispatcher, InstalledPart, StatusView};

/// A farm at one moment.
#[derive(Clone, Debug)]
pub struct FarmView {
    pub status: StatusView,
    pub services: Vec<ServiceView>,
    pub servers: Vec<ServerView>,
    /// All hosts of an every-host farm.
    pub hosts: Vec<HostView>,
    pub directors: Vec<DirectorView>,
    /// Addresses of all balanced names.
    pub names: Vec<NameView>,
}

/// Source of views, for any number of concurrent readers, without the control loop. Calls may need
/// some milliseconds.
pub trait ViewSource: Send + Sync + 'static {
    /// Returns all views at one moment.
    fn farm(&self) -> FarmView;

    fn status(&self) -> StatusView;

    fn services(&self) -> Vec<ServiceView>;

    fn servers(&self) -> Vec<ServerView>;

    /// Returns all hosts of an every-host farm.
    fn hosts(&self) -> Vec<HostView>;

    fn directors(&self) -> DirectorsView;

    /// Returns the addresses of all balanced names.
    fn names(&self) -> Vec<NameView>;

    /// Returns the names of the director's interfaces.
    fn interfaces(&self) -> Vec<String>;

    /// True if any service forwards packets, which requires interfaces.
    fn takes_packets(&self) -> bool;

    /// Returns matching sessions.
    ///
    /// # Errors
    /// If the service does not exist or has no sessions.
    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionView>, String>;

    /// Returns matching affinity entries.
    ///
    /// # Errors
    /// If the service does not exist or has no affinity entries.
    fn affinity(&self, filter: &SessionFilter) -> Result<Vec<AffinityView>, String>;

    /// Explains the server of a flow or a request.
    fn explain(&self, subject: &ExplainSubject) -> Explanation;

    /// Returns the file, with the run-time changes over it.
    fn farm_state(&self) -> Arc<FarmState>;

    /// Returns the number of the last event. 0 before the first event.
    fn last_event(&self) -> u64;

    /// Returns the latest events, in order.
    fn recent_events(&self) -> Vec<Arc<EventView>>;

    /// Returns the events of the time before now, in order, and a subscription from now on.
    fn listen(&self, before: Option<Duration>) -> (Vec<Arc<EventView>>, Subscriber);
}

impl ViewSource for SnapshotStore {
    fn farm(&self) -> FarmView {
        let moment = self.moment();
        let by_service = servers::by_service(&moment);
        FarmView {
            status: status::status(&moment),
            services: services::services(&moment, &by_service),
            servers: servers::servers(&moment, by_service),
            hosts: hosts::hosts(&moment.published.snapshot),
            directors: directors::directors(&moment.published.directors).directors,
            names: names::names(&moment.published.snapshot, moment.now_ms),
        }
    }

    fn status(&self) -> StatusView {
        status::status(&self.moment())
    }

    fn services(&self) -> Vec<ServiceView> {
        let moment = self.moment();
        services::services(&moment, &servers::by_service(&moment))
    }

    fn servers(&self) -> Vec<ServerView> {
        let moment = self.moment();
        let by_service = servers::by_service(&moment);
        servers::servers(&moment, by_service)
    }

    fn hosts(&self) -> Vec<HostView> {
        hosts::hosts(&self.latest().snapshot)
    }

    fn directors(&self) -> DirectorsView {
        directors::directors(&self.latest().directors)
    }

    fn names(&self) -> Vec<NameView> {
        names::names(&self.latest().snapshot, evener_dataplane::now_ns() / 1_000_000)
    }

    fn interfaces(&self) -> Vec<String> {
        status::interfaces(&self.latest().snapshot)
    }

    fn takes_packets(&self) -> bool {
        !self.latest().snapshot.farm.services.is_empty()
    }

    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionView>, String> {
        sessions::sessions(&self.latest(), filter)
    }

    fn affinity(&self, filter: &SessionFilter) -> Result<Vec<AffinityView>, String> {
        affinity::affinity(&self.latest(), filter)
    }

    fn explain(&self, subject: &ExplainSubject) -> Explanation {
        self.latest().explain(subject)
    }

    fn farm_state(&self) -> Arc<FarmState> {
        Arc::clone(&self.latest().state)
    }

    fn last_event(&self) -> u64 {
        self.latest().bus.last()
    }

    fn recent_events(&self) -> Vec<Arc<EventView>> {
        self.latest().bus.recent()
    }

    fn listen(&self, before: Option<Duration>) -> (Vec<Arc<EventView>>, Subscriber) {
        let bus = &self.latest().bus;
        before.map_or_else(|| (Vec::new(), bus.listen()), |time| bus.listen_since(time))
    }
}
