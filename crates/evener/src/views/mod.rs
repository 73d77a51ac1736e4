//! The daemon's views: one set of names for the command line, the API, metrics and the dashboard.
//! Each view is a file, made of what the control loop has published ([`crate::board`]).
//!
//! Fields are only ever added. Times are seconds, sizes bytes.

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
    /// The daemon as a whole.
    pub status: StatusView,
    /// All services.
    pub services: Vec<ServiceView>,
    /// All servers.
    pub servers: Vec<ServerView>,
    /// All hosts, where every one decides.
    pub hosts: Vec<HostView>,
    /// The directors of the farm.
    pub directors: Vec<DirectorView>,
    /// The addresses of all names.
    pub names: Vec<NameView>,
}

/// The source of views, for any number of readers, whatever the control loop does meanwhile. Calls
/// may take some milliseconds.
pub trait ViewSource: Send + Sync + 'static {
    /// All of one moment.
    fn farm(&self) -> FarmView;

    /// The daemon as a whole.
    fn status(&self) -> StatusView;

    /// All services.
    fn services(&self) -> Vec<ServiceView>;

    /// All servers.
    fn servers(&self) -> Vec<ServerView>;

    /// All hosts, where every one decides.
    fn hosts(&self) -> Vec<HostView>;

    /// The directors of the farm.
    fn directors(&self) -> DirectorsView;

    /// The addresses of all names that are answered for.
    fn names(&self) -> Vec<NameView>;

    /// The names of the interfaces that packets are taken from.
    fn interfaces(&self) -> Vec<String>;

    /// Whether any service has packets sent on, which takes interfaces.
    fn takes_packets(&self) -> bool;

    /// Sessions that match.
    ///
    /// # Errors
    /// A sentence: there is no such service.
    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionView>, String>;

    /// Which server a flow or a request gets.
    fn explain(&self, subject: &ExplainSubject) -> Explanation;

    /// The file, and the run-time changes over it.
    fn farm_state(&self) -> Arc<FarmState>;

    /// The number of the last event; 0 before the first.
    fn last_event(&self) -> u64;

    /// The latest events, in the order in which they happened.
    fn recent_events(&self) -> Vec<Arc<EventView>>;

    /// Events of the time before now, in the order in which they happened, and all from now on.
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
