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

/// Receivers of all messages to the loop.
pub(super) struct Inbox {
    pub(super) frames: mpsc::Receiver<ReceivedFrame>,
    pub(super) requests: mpsc::Receiver<ControlRequest>,
    pub(super) network_changes: mpsc::Receiver<()>,
    pub(super) path_mtus: mpsc::Receiver<PathMtu>,
    /// Datagrams of other hosts.
    pub(super) datagrams: mpsc::Receiver<ReceivedDatagram>,
    /// Queries of the tasks that read for the data plane.
    pub(super) queries: mpsc::Receiver<ControlQuery>,
    /// Segments of later requests, which may belong to other servers.
    pub(super) held: mpsc::Receiver<HeldSegment>,
    /// Results of probes and of queries to servers.
    pub(super) facts: mpsc::Receiver<Input>,
    pub(super) member_messages: mpsc::Receiver<MemberMessage>,
}

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
    /// Returns the next message. Cancel safe: no message is lost if the future is dropped.
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
