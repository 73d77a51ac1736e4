//! What the daemon shows: one set of names for the command line, the API, metrics and the dashboard. Each view is a file, made of
//! what the control loop has published ([`crate::board`]).
//!
//! Fields are only ever added. Times are seconds, sizes bytes.

mod cause;
mod events;
mod explanation;
mod finding;
mod groups;
mod hosts;
mod names;
mod requests;
mod servers;
mod services;
mod sessions;
mod status;

use crate::board::Board;
use crate::board::request::{SessionFilter, Subject};
use crate::events::Listener;

pub use events::{Event, Happening};
pub use explanation::{Dispatch, Explanation};
pub use finding::{Finding, State};
pub use groups::Member;
pub use hosts::{Host, Refused};
pub use names::Name;
pub use requests::Request;
pub use servers::Server;
pub use services::Service;
pub(crate) use services::has_service;
pub use sessions::Session;
pub use status::{Dispatcher, Installed, Status};

/// A farm at one moment.
#[derive(Clone, Debug)]
pub struct Farm {
    /// The daemon as a whole.
    pub status: Status,
    /// All services.
    pub services: Vec<Service>,
    /// All servers.
    pub servers: Vec<Server>,
    /// All hosts, where every one decides.
    pub hosts: Vec<Host>,
    /// The addresses of all names.
    pub names: Vec<Name>,
}

/// What shows itself, to as many as want to see it, whatever the control loop does meanwhile. Calls may take some milliseconds.
pub trait Show: Send + Sync + 'static {
    /// All of one moment.
    fn farm(&self) -> Farm;

    /// The daemon as a whole.
    fn status(&self) -> Status;

    /// All services.
    fn services(&self) -> Vec<Service>;

    /// All servers.
    fn servers(&self) -> Vec<Server>;

    /// All hosts, where every one decides.
    fn hosts(&self) -> Vec<Host>;

    /// The addresses of all names that are answered for.
    fn names(&self) -> Vec<Name>;

    /// The names of the interfaces that packets are taken from.
    fn interfaces(&self) -> Vec<String>;

    /// Whether any service has packets sent on, which takes interfaces.
    fn takes_packets(&self) -> bool;

    /// Sessions that match.
    ///
    /// # Errors
    /// A sentence: there is no such service.
    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<Session>, String>;

    /// Which server a flow or a request gets.
    fn explain(&self, subject: &Subject) -> Explanation;

    /// What happens from now on; `None` where too many listen already.
    fn listen(&self) -> Option<Listener>;
}

impl Show for Board {
    fn farm(&self) -> Farm {
        let moment = self.moment();
        Farm {
            status: status::status(&moment),
            services: services::services(&moment),
            servers: servers::servers(&moment),
            hosts: hosts::hosts(&moment.published.snapshot),
            names: names::names(&moment.published.snapshot, moment.now_ms),
        }
    }

    fn status(&self) -> Status {
        status::status(&self.moment())
    }

    fn services(&self) -> Vec<Service> {
        services::services(&self.moment())
    }

    fn servers(&self) -> Vec<Server> {
        servers::servers(&self.moment())
    }

    fn hosts(&self) -> Vec<Host> {
        hosts::hosts(&self.latest().snapshot)
    }

    fn names(&self) -> Vec<Name> {
        names::names(&self.latest().snapshot, evener_dataplane::now_ns() / 1_000_000)
    }

    fn interfaces(&self) -> Vec<String> {
        status::interfaces(&self.latest().snapshot)
    }

    fn takes_packets(&self) -> bool {
        !self.latest().snapshot.farm.services.is_empty()
    }

    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<Session>, String> {
        sessions::sessions(&self.latest(), filter)
    }

    fn explain(&self, subject: &Subject) -> Explanation {
        self.latest().explain(subject)
    }

    fn listen(&self) -> Option<Listener> {
        self.latest().bus.listen()
    }
}
