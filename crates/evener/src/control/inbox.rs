//! Messages of other threads and tasks to the control loop.

use std::future::pending;

use evener_core::director::Input;
use tokio::sync::mpsc;

use super::hosts::ReceivedDatagram;
use crate::board::request::ControlRequest;
use crate::handoff::{ControlQuery, HeldSegment};
use crate::io::neighbours::ReceivedFrame;
use crate::io::network::path_mtu::PathMtu;
use crate::redirect::MemberMessage;

/// The receivers of all that reaches the loop.
pub(super) struct Inbox {
    pub(super) frames: mpsc::Receiver<ReceivedFrame>,
    pub(super) requests: mpsc::Receiver<ControlRequest>,
    pub(super) network_changes: mpsc::Receiver<()>,
    pub(super) path_mtus: mpsc::Receiver<PathMtu>,
    /// From other hosts.
    pub(super) datagrams: mpsc::Receiver<ReceivedDatagram>,
    /// From the readers for the data plane.
    pub(super) queries: mpsc::Receiver<ControlQuery>,
    /// Later requests that other servers are for.
    pub(super) held: mpsc::Receiver<HeldSegment>,
    /// The results of probes and of queries to servers.
    pub(super) facts: mpsc::Receiver<Input>,
    pub(super) member_messages: mpsc::Receiver<MemberMessage>,
}

/// One of them.
pub(super) enum Message {
    Frame(ReceivedFrame),
    Request(ControlRequest),
    NetworkChange,
    Query(ControlQuery),
    Held(HeldSegment),
    Fact(Input),
    Member(MemberMessage),
}

impl Inbox {
    /// The next message. Nothing is lost if this is not awaited to the end.
    pub(super) async fn next(&mut self) -> Message {
        tokio::select! {
            Some(frame) = self.frames.recv() => Message::Frame(frame),
            Some(request) = self.requests.recv() => Message::Request(request),
            Some(()) = self.network_changes.recv() => Message::NetworkChange,
            Some(PathMtu { from, to, mtu }) = self.path_mtus.recv() => {
                Message::Fact(Input::PathMtu { from, to, mtu })
            }
            Some((from, bytes)) = self.datagrams.recv() => Message::Fact(Input::Datagram { from, bytes }),
            Some(query) = self.queries.recv() => Message::Query(query),
            Some(held) = self.held.recv() => Message::Held(held),
            Some(fact) = self.facts.recv() => Message::Fact(fact),
            Some(message) = self.member_messages.recv() => Message::Member(message),
            else => pending().await,
        }
    }
}
