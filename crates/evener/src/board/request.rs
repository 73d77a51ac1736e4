//! Orders from others to the control loop. State is published ([`crate::board`]), and not
//! requested.

use std::net::{IpAddr, SocketAddr};

use evener_core::net::Protocol;
use evener_core::node::group::GroupMessage;
use tokio::sync::{mpsc, oneshot};

use crate::cli::{ClientArg, WebRequest};
use crate::record::Traced;
use crate::state::{OrderError, Outcome, Request};

/// The receiver of the result of a request to change the farm.
pub(crate) type ChangeAnswer = oneshot::Sender<Result<Outcome, OrderError>>;

/// An order, with where its answer goes.
#[derive(Debug)]
pub enum ControlRequest {
    /// Whether the loop goes round.
    Ping(oneshot::Sender<()>),
    /// Change the farm.
    Change(Box<Request>, ChangeAnswer),
    /// Do what a message of the group protocol says.
    Group {
        /// Service name.
        group: String,
        /// The sender.
        sender: GroupSender,
        /// The message.
        message: GroupMessage,
        /// The reply.
        answer: oneshot::Sender<GroupReply>,
    },
    /// Tell of a client until the receiver is dropped, or say in a sentence why that can't be.
    Trace(ClientArg, oneshot::Sender<Result<mpsc::Receiver<Traced>, String>>),
    /// Open the access log again, or say in a sentence why that can't be.
    Reopen(oneshot::Sender<Result<String, String>>),
    /// Read the file again.
    Reload {
        /// Whether to drop run-time changes.
        forget: bool,
        /// The result, or why it can't be, in a sentence.
        answer: oneshot::Sender<Result<String, String>>,
    },
}

/// The sender of a message about a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupSender {
    /// Somebody on the network.
    Stranger {
        /// The sender's address.
        from: IpAddr,
        /// The value of an `Authorization` line.
        authorization: Option<String>,
    },
    /// An operator, who may change the farm anyway.
    Operator,
}

/// The reply to a message of the group protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReply {
    /// By the numbers of HTTP.
    pub status: u16,
    /// A sentence, or JSON.
    pub body: String,
    /// Which of both.
    pub is_json: bool,
}

/// Which sessions are wanted; all of them by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// Only of this service.
    pub service: Option<String>,
    /// Only of this client address.
    pub client: Option<IpAddr>,
    /// Only of this client port.
    pub client_port: Option<u16>,
    /// At most so many.
    pub limit: Option<usize>,
}

/// The subject of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainSubject {
    /// Which server a flow gets.
    Flow(FlowQuery),
    /// Which server a request gets, where connections are handed over.
    Request {
        /// The client's request.
        request: WebRequest,
        /// Over which connection, if that is known.
        flow: Option<FlowQuery>,
        /// Of which service, if that is named.
        service: Option<String>,
    },
}

/// A flow to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowQuery {
    /// The client's endpoint.
    pub client: SocketAddr,
    /// The service's endpoint.
    pub vip: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
}

/// The way to the control loop.
pub type Handle = mpsc::Sender<ControlRequest>;
