//! Requests to the control loop. Readers get published state instead ([`crate::board`]).

use std::net::{IpAddr, SocketAddr};

use evener_core::net::Protocol;
use evener_core::node::group::GroupMessage;
use tokio::sync::{mpsc, oneshot};

use crate::cli::{ClientArg, WebRequest};
use crate::record::Traced;
use crate::state::{OrderError, Outcome, Request};

/// Channel for the result of a change.
pub(crate) type ChangeAnswer = oneshot::Sender<Result<Outcome, OrderError>>;

/// Request to the control loop, with a channel for the reply.
#[derive(Debug)]
pub enum ControlRequest {
    /// Check that the loop is running.
    Ping(oneshot::Sender<()>),
    Change(Box<Request>, ChangeAnswer),
    /// Handle a message of the group protocol.
    Group {
        /// Name of the service.
        group: String,
        sender: GroupSender,
        message: GroupMessage,
        answer: oneshot::Sender<GroupReply>,
    },
    /// Trace a client until the receiver is dropped. The error is a sentence.
    Trace(ClientArg, oneshot::Sender<Result<mpsc::Receiver<Traced>, String>>),
    /// Open the access log again. The error is a sentence.
    Reopen(oneshot::Sender<Result<String, String>>),
    /// Read the file again.
    Reload {
        /// True to drop run-time changes.
        forget: bool,
        /// Result, or an error as a sentence.
        answer: oneshot::Sender<Result<String, String>>,
    },
}

/// Sender of a message about a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupSender {
    /// A host on the network.
    Stranger {
        from: IpAddr,
        /// Value of the `Authorization` field.
        authorization: Option<String>,
    },
    /// An operator, who may change the farm anyway.
    Operator,
}

/// Reply to a message of the group protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReply {
    pub status: u16,
    pub body: String,
    /// True if the body is JSON.
    pub is_json: bool,
}

/// Filter for sessions. The default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// Name of the service.
    pub service: Option<String>,
    /// Address of the client.
    pub client: Option<IpAddr>,
    /// Port of the client.
    pub client_port: Option<u16>,
    /// Maximum number of sessions.
    pub limit: Option<usize>,
}

/// Subject of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainSubject {
    /// Server of a flow.
    Flow(FlowQuery),
    /// Server of a request, with method `handoff`.
    Request {
        request: WebRequest,
        /// Connection of the request, if known.
        flow: Option<FlowQuery>,
        /// Name of the service, if given.
        service: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowQuery {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub protocol: Protocol,
}

/// Channel to the control loop.
pub type Handle = mpsc::Sender<ControlRequest>;
