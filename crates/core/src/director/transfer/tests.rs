use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use std::vec;

use proptest::prelude::*;

use super::*;
use crate::node::lccp::{
    self, HandoffAction, IncomingHandoffs, MessageBody, Piece, ReleaseAction, Releases, ResumePoint,
    SILENCE_MS, SocketId, TcpState,
};

/// Maximum delay of a message, in milliseconds. It is shorter than the last waits for an answer to
/// an offer, so a `NoCapacity` error arrives before the transfer gives up.
const DELAY_MAX_MS: u64 = 350;
/// Maximum number of orders of a connection. It is generous: no order is repeated more than a few
/// times.
const ORDERS_MAX: usize = 200;

/// Returns the next order and all events after these inputs.
fn after(mut transfer: Transfer, inputs: &[TransferInput]) -> (Option<TransferOrder>, Vec<TransferEvent>) {
    let notices = inputs.iter().filter_map(|input| transfer.handle(0, *input)).collect();
    (transfer.order(), notices)
}

fn read() -> Vec<TransferInput> {
    vec![TransferInput::Wanted { hello: false }, TransferInput::Undispatched]
}

const CHOSEN: TransferInput = TransferInput::Chosen { takes: true, advised: false };

fn settled_as(outcome: TransferOutcome) -> TransferEvent {
    TransferEvent::Settled { outcome, word: None }
}

#[test]
fn a_connection_is_read_chosen_for_and_given() {
    let mut transfer = Transfer::accepted(1_000);
    let mut orders = vec![transfer.order().unwrap()];
    assert_eq!(transfer.deadline_ms(), 11_000);
    for input in [
        TransferInput::Wanted { hello: false },
        TransferInput::Answered,
        TransferInput::Advised,
        TransferInput::Chosen { takes: true, advised: true },
        TransferInput::Exported { len: Some(3_000) },
        TransferInput::Answered,
        TransferInput::Acknowledged { missing: 1_024 },
        TransferInput::Timer,
        TransferInput::Answered,
        TransferInput::Acknowledged { missing: 3_000 },
        TransferInput::Committed(true),
    ] {
        transfer.handle(2_000, input);
        orders.extend(transfer.order());
    }
    let offer = |missing| TransferOrder::Offer { missing };
    let expected = [
        [
            TransferOrder::Read,
            TransferOrder::Dispatch,
            TransferOrder::Listen,
            TransferOrder::Choose,
            TransferOrder::Export,
        ]
        .as_slice(),
        &[offer(0), TransferOrder::Listen, TransferOrder::Listen, offer(1_024), TransferOrder::Listen],
        &[TransferOrder::Commit { replayed: false }],
    ];
    assert_eq!((orders, transfer.order()), (expected.concat(), None));
}

#[test]
fn refused_handoff_returns_connection_to_splicing() {
    let code = ErrorCode::NotRestored;
    for (inputs, expected) in [
        (vec![CHOSEN, TransferInput::NotExported], TransferOrder::Keep),
        (vec![TransferInput::Chosen { takes: false, advised: false }], TransferOrder::Keep),
        (
            vec![
                CHOSEN,
                TransferInput::Exported { len: Some(5) },
                TransferInput::Answered,
                TransferInput::Denied(code),
            ],
            TransferOrder::Restore,
        ),
        (
            vec![CHOSEN, TransferInput::Exported { len: None }, TransferInput::Committed(false)],
            TransferOrder::Restore,
        ),
    ] {
        let mut inputs = [read(), inputs].concat();
        assert_eq!(after(Transfer::accepted(0), &inputs).0, Some(expected), "{inputs:?}");
        if expected == TransferOrder::Restore {
            inputs.push(TransferInput::Restored(true));
        }
        inputs.push(TransferInput::Done);
        assert_eq!(after(Transfer::accepted(0), &inputs).0, Some(TransferOrder::TakePlace(Quota::Carrying)));
        inputs.extend([TransferInput::Admitted, TransferInput::Reached(true)]);
        let (order, notices) = after(Transfer::accepted(0), &inputs);
        assert_eq!((order, notices.last()), (None, Some(&settled_as(TransferOutcome::Carried))));
    }
}

#[test]
fn server_that_may_have_connection_keeps_it() {
    // The server was sent the connection and never answered: no later input restores it here.
    let exported = TransferInput::Exported { len: Some(5) };
    let mut inputs = [read(), vec![CHOSEN, exported]].concat();
    inputs.extend(
        [TransferInput::Answered, TransferInput::Denied(ErrorCode::NoCapacity), TransferInput::Timer]
            .repeat(5),
    );
    inputs.extend([TransferInput::Answered, TransferInput::Timer]);
    let (order, notices) = after(Transfer::accepted(0), &inputs);
    assert_eq!(order, Some(TransferOrder::Commit { replayed: true }));
    assert_eq!(notices, [TransferEvent::Unanswered]);
    inputs.extend([TransferInput::Denied(ErrorCode::NotRestored), TransferInput::Committed(false)]);
    assert_eq!(after(Transfer::accepted(0), &inputs).0, None);
    // The server reported no capacity in every round.
    let mut inputs = [read(), vec![CHOSEN, exported]].concat();
    inputs.extend(
        [TransferInput::Answered, TransferInput::Denied(ErrorCode::NoCapacity), TransferInput::Timer]
            .repeat(6),
    );
    let (order, notices) = after(Transfer::accepted(0), &inputs);
    assert_eq!((order, notices), (Some(TransferOrder::Restore), vec![TransferEvent::NotTaken]));
}

#[test]
fn segment_without_valid_cookie_makes_no_socket() {
    let moved = [
        TransferInput::Leaves,
        TransferInput::Admitted,
        TransferInput::Answered,
        TransferInput::Released,
        TransferInput::Restored(true),
        TransferInput::Done,
    ];
    let unheard = [CHOSEN, TransferInput::Exported { len: None }];
    let inputs = [moved.as_slice(), &read(), &unheard].concat();
    assert_eq!(after(Transfer::moving(0), &inputs).0, Some(TransferOrder::Restore));
    let inputs = [read(), unheard.to_vec()].concat();
    assert_eq!(after(Transfer::accepted(0), &inputs).0, Some(TransferOrder::Commit { replayed: true }));
}

#[test]
fn connection_that_server_refuses_to_release_stays_or_ends() {
    let (leaves, busy) =
        ([TransferInput::Leaves, TransferInput::Admitted], TransferInput::Denied(ErrorCode::Busy));
    let ends = |inputs: &[TransferInput]| after(Transfer::moving(0), &[&leaves, inputs].concat()).0;
    assert_eq!(after(Transfer::moving(0), &[TransferInput::Stays]).0, Some(TransferOrder::Pass));
    assert_eq!(after(Transfer::moving(0), &[TransferInput::Timer]).0, Some(TransferOrder::Return));
    assert_eq!(ends(&[TransferInput::Answered, busy]), Some(TransferOrder::Return));
    for inputs in [
        vec![TransferInput::PeerDead],
        vec![TransferInput::Answered, TransferInput::Denied(ErrorCode::Unknown)],
        [TransferInput::Answered, TransferInput::Timer].repeat(RELEASES_MS.len()),
        vec![TransferInput::Answered, TransferInput::Released, TransferInput::Restored(false)],
    ] {
        assert_eq!(ends(&inputs), Some(TransferOrder::End), "{inputs:?}");
    }
}

#[test]
fn a_place_is_given_up_while_its_connection_is_a_socket_here() {
    let crowded = |inputs: &[TransferInput]| {
        after(Transfer::accepted(0), &[inputs, &[TransferInput::Crowded]].concat())
    };
    let reset = Some(TransferOrder::Answer(FinalResponse::Reset));
    assert_eq!(crowded(&[]), (reset, vec![settled_as(TransferOutcome::Crowded)]));
    // Before the connection ends, its buffered segments return to this host.
    assert_eq!(crowded(&read()), (Some(TransferOrder::Keep), vec![settled_as(TransferOutcome::Crowded)]));
    let choosing = [read(), vec![TransferInput::Crowded, TransferInput::Done]].concat();
    assert_eq!(after(Transfer::accepted(0), &choosing).0, reset);
    let exporting = [read(), vec![CHOSEN]].concat();
    assert_eq!(crowded(&exporting), (Some(TransferOrder::Export), vec![]));
    // A settled transfer reports no second outcome.
    let refused = [TransferInput::Refused(FinalResponse::Status(400))];
    let word = Some(FinalResponse::Status(400));
    assert_eq!(
        crowded(&refused),
        (None, vec![TransferEvent::Settled { outcome: TransferOutcome::Refused, word }])
    );
}

/// Returns the order after the release requests to a busy server, which answers each request with
/// this delay. The server releases the connection at the first request.
fn released_after(late_ms: u64) -> Option<TransferOrder> {
    let mut transfer = Transfer::moving(0);
    let (mut releases, mut now_ms, mut answers) = (Releases::default(), 0, Vec::new());
    for input in [TransferInput::Leaves, TransferInput::Admitted] {
        transfer.handle(now_ms, input);
    }
    loop {
        let input = match transfer.order()? {
            TransferOrder::Release => {
                match releases.begin(GIVER, socket(), REST, now_ms) {
                    ReleaseAction::Grant => {
                        releases.end(GIVER, socket(), REST, Some(Ok(state(0))));
                        answers.push(now_ms + late_ms);
                    }
                    ReleaseAction::Answer(Ok(_)) => answers.push(now_ms + late_ms),
                    answer => panic!("{answer:?}"),
                }
                TransferInput::Answered
            }
            TransferOrder::Listen => {
                let first = answers.first().copied().filter(|at_ms| *at_ms <= transfer.deadline_ms());
                now_ms = first.unwrap_or(transfer.deadline_ms());
                if first.is_some() { TransferInput::Released } else { TransferInput::Timer }
            }
            order => return Some(order),
        };
        transfer.handle(now_ms, input);
    }
}

/// A server that got a release request may have released the connection. If the transfer ended
/// before the answer, it would reset the client for no reason. So the transfer waits as long as a
/// silent server counts as alive, and the server remembers its answer for at least that time.
#[test]
fn responding_server_is_waited_for() {
    for late_ms in [1, 500, 1_399, 1_401, 2_000, SILENCE_MS] {
        assert_eq!(released_after(late_ms), Some(TransferOrder::Restore), "{late_ms} ms late");
    }
    // A node that is silent for longer counts as dead.
    assert_eq!(released_after(PATIENCE_MS), Some(TransferOrder::End));
    let tries_ms: u64 = RELEASES_MS.iter().sum();
    assert!((SILENCE_MS + 1..PATIENCE_MS).contains(&tries_ms), "{tries_ms} ms");
}

/// Returns the timeout of each round of a message, until the transfer gives up.
fn waits(mut transfer: Transfer, before: &[TransferInput], question: fn(TransferOrder) -> bool) -> Vec<u64> {
    for input in before {
        transfer.handle(1_000, *input);
    }
    let (mut now_ms, mut waits) = (1_000, Vec::new());
    while transfer.order().is_some_and(question) {
        transfer.handle(now_ms, TransferInput::Answered);
        assert_eq!(transfer.order(), Some(TransferOrder::Listen));
        waits.push(transfer.deadline_ms() - now_ms);
        now_ms = transfer.deadline_ms();
        transfer.handle(now_ms, TransferInput::Timer);
    }
    waits
}

#[test]
fn unanswered_message_is_repeated_after_growing_pauses() {
    let wanted = [TransferInput::Wanted { hello: false }];
    let exported = [&read()[..], &[CHOSEN, TransferInput::Exported { len: Some(5) }]].concat();
    let leaves = [TransferInput::Leaves, TransferInput::Admitted];
    assert_eq!(
        waits(Transfer::accepted(1_000), &wanted, |order| order == TransferOrder::Dispatch),
        DISPATCHES_MS
    );
    let offers = |order| matches!(order, TransferOrder::Offer { .. });
    assert_eq!(waits(Transfer::accepted(1_000), &exported, offers), OFFERS_MS);
    assert_eq!(waits(Transfer::moving(1_000), &leaves, |order| order == TransferOrder::Release), RELEASES_MS);
}

#[test]
fn client_without_server_gets_response_in_own_protocol() {
    let outcome = |outcome, word| TransferEvent::Settled { outcome, word: Some(word) };
    for hello in [false, true] {
        let word = if hello { FinalResponse::Reset } else { FinalResponse::Status(503) };
        let inputs = [TransferInput::Wanted { hello }, TransferInput::Undispatched, TransferInput::Unserved];
        let expected = (Some(TransferOrder::Answer(word)), vec![outcome(TransferOutcome::Unserved, word)]);
        assert_eq!(after(Transfer::accepted(0), &inputs), expected);
        let late = [
            TransferInput::Wanted { hello },
            TransferInput::Undispatched,
            TransferInput::Timer,
            TransferInput::Done,
        ];
        assert_eq!(after(Transfer::accepted(0), &late), expected, "nobody chose in time");
    }
    let late = (
        Some(TransferOrder::Answer(FinalResponse::TimedOut)),
        vec![outcome(TransferOutcome::Late, FinalResponse::TimedOut)],
    );
    assert_eq!(after(Transfer::accepted(0), &[TransferInput::Timer]), late);
    let left = (None, vec![settled_as(TransferOutcome::Left)]);
    assert_eq!(after(Transfer::accepted(0), &[TransferInput::Left]), left);
    let carried =
        [&read()[..], &[TransferInput::Chosen { takes: false, advised: false }, TransferInput::Done]]
            .concat();
    let failed = outcome(TransferOutcome::Carried, FinalResponse::Status(502));
    for inputs in [
        &[TransferInput::Timer][..],
        &[TransferInput::Admitted, TransferInput::Reached(false)],
        &[TransferInput::Admitted, TransferInput::Timer],
    ] {
        let (order, notices) = after(Transfer::accepted(0), &[&carried, inputs].concat());
        assert_eq!(
            (order, notices.last()),
            (Some(TransferOrder::Answer(FinalResponse::Status(502))), Some(&failed))
        );
    }
}

#[test]
fn this_host_chooses_alone_where_the_node_that_decides_for_all_gives_no_answer() {
    let wanted = TransferInput::Wanted { hello: false };
    let asked = |inputs: &[TransferInput]| {
        after(Transfer::accepted(0), &[&[wanted, TransferInput::Answered], inputs].concat())
    };
    let choose = Some(TransferOrder::Choose);
    let (order, notices) = asked(&[TransferInput::Timer, TransferInput::Answered, TransferInput::Timer]);
    assert_eq!(
        (order, notices),
        (choose, vec![TransferEvent::DispatchRequested, TransferEvent::Alone { silent: true }])
    );
    for input in [TransferInput::PeerDead, TransferInput::Denied(ErrorCode::Unknown)] {
        let (order, notices) = asked(&[input]);
        assert_eq!(
            (order, notices),
            (choose, vec![TransferEvent::DispatchRequested, TransferEvent::Alone { silent: false }])
        );
    }
    assert_eq!(
        asked(&[TransferInput::Advised]),
        (choose, vec![TransferEvent::DispatchRequested, TransferEvent::Advised])
    );
    for (advised, unbelieved) in [(true, None), (false, Some(&TransferEvent::Unbelieved))] {
        let (order, notices) =
            asked(&[TransferInput::Advised, TransferInput::Chosen { takes: true, advised }]);
        assert_eq!((order, notices.get(2)), (Some(TransferOrder::Export), unbelieved));
    }
    let unadvised = [TransferInput::Undispatched, CHOSEN];
    assert_eq!(asked(&unadvised).1, [TransferEvent::DispatchRequested], "nobody named one");
}

#[test]
fn a_transfer_is_small() {
    assert_eq!(size_of::<Transfer>(), 24);
}

/// Random choices, from the seed of a test.
struct Dice(Vec<u8>);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        u64::from(self.0.pop().unwrap_or_default()) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.below(sides) == sides - 1
    }
}

/// Message or operation under way.
#[derive(Debug)]
enum Parcel {
    Piece(Piece),
    Release,
    /// Result of the server's stack, which created a socket or failed.
    Restored(Option<Result<(), ErrorCode>>),
    Grant(Option<Result<TcpState, ErrorCode>>),
    /// The flag is true for the answer to an offer, and false for the answer to a release request.
    /// A host that waits for one kind ignores the other.
    Answer(MessageBody, bool),
}

/// A connection, this host, the servers, and a network that loses, duplicates and delays messages.
struct World {
    now_ms: u64,
    dice: Dice,
    transfer: Transfer,
    offered: Option<lccp::TransferImage>,
    parcels: Vec<(u64, Parcel)>,
    incoming: IncomingHandoffs,
    releases: Releases,
    /// Time until which the new server has no capacity.
    full_until_ms: u64,
    /// True if this host, the new server, and the previous server have a socket of the connection.
    here: bool,
    there: bool,
    before: bool,
    settled: Vec<TransferOutcome>,
    /// Log of the run, for failure messages.
    history: Vec<String>,
}

const GIVER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 2));
const REST: ResumePoint = ResumePoint { rcv_nxt: 5, snd_nxt: 9 };

fn socket() -> SocketId {
    SocketId::new("203.0.113.7:40000".parse().unwrap(), "192.0.2.100:80".parse().unwrap()).unwrap()
}

fn state(receive_len: u32) -> TcpState {
    TcpState { snd_una: 9, snd_nxt: 9, rcv_nxt: 5, mss: 1_448, receive_len, ..TcpState::default() }
}

impl World {
    fn new(moving: bool, dice: Vec<u8>) -> World {
        let mut dice = Dice(dice);
        let mut incoming = IncomingHandoffs::default();
        incoming.serve(BTreeSet::from([socket().server()]));
        World {
            now_ms: 0,
            transfer: if moving { Transfer::moving(0) } else { Transfer::accepted(0) },
            offered: None,
            parcels: Vec::new(),
            incoming,
            releases: Releases::default(),
            full_until_ms: if dice.one_in(3) { dice.below(6) * 600 } else { 0 },
            dice,
            here: !moving,
            there: false,
            before: moving,
            settled: Vec::new(),
            history: Vec::new(),
        }
    }

    fn send(&mut self, parcel: impl Fn() -> Parcel) {
        // Only answers are duplicated: a receive window drops duplicate requests, and a
        // retransmitted request is a new message.
        let most = if matches!(parcel(), Parcel::Answer(..)) { 5 } else { 4 };
        let copies = [1, 1, 1, 0, 2][self.dice.below(most) as usize];
        for _ in 0..copies {
            let delay_ms = if self.dice.one_in(2) { self.dice.below(DELAY_MAX_MS) } else { 1 };
            self.parcels.push((self.now_ms + delay_ms, parcel()));
        }
    }

    fn answer(&mut self, body: MessageBody, is_offered: bool) {
        self.send(|| Parcel::Answer(body.clone(), is_offered));
    }

    /// Returns the next parcel that arrives until this time.
    fn next(&mut self, until_ms: u64) -> Option<Parcel> {
        let first = (0..self.parcels.len()).min_by_key(|at| self.parcels[*at].0)?;
        if self.parcels[first].0 > until_ms {
            return None;
        }
        let (at_ms, parcel) = self.parcels.remove(first);
        self.now_ms = self.now_ms.max(at_ms);
        let what = match &parcel {
            Parcel::Piece(piece) => format!("a piece from {} on", piece.offset()),
            parcel => format!("{parcel:?}"),
        };
        self.history.push(format!("{:>6} {what}", self.now_ms));
        Some(parcel)
    }

    /// Delivers a parcel. Returns the input that the parcel causes for the transfer; `None` if it
    /// causes none.
    fn arrive(&mut self, parcel: Parcel) -> Option<TransferInput> {
        match parcel {
            Parcel::Answer(_, is_offered) if is_offered != self.offered.is_some() => {}
            Parcel::Answer(MessageBody::HandoffAck { missing, .. }, _) => {
                return Some(TransferInput::Acknowledged { missing });
            }
            Parcel::Answer(MessageBody::Released { .. }, _) => return Some(TransferInput::Released),
            Parcel::Answer(MessageBody::Error { code, .. }, _) => return Some(TransferInput::Denied(code)),
            Parcel::Answer(body, _) => panic!("{body:?}"),
            Parcel::Piece(_) if self.now_ms < self.full_until_ms => {
                self.answer(MessageBody::Error { socket: Some(socket()), code: ErrorCode::NoCapacity }, true);
            }
            Parcel::Piece(piece) => {
                if self.dice.one_in(12) {
                    self.incoming.serve(BTreeSet::new());
                }
                match self.incoming.receive_piece(GIVER, socket(), piece, self.now_ms) {
                    HandoffAction::Answer(body) => self.answer(body, true),
                    HandoffAction::Wait => {}
                    HandoffAction::Restore(_) => self.make_socket(),
                }
            }
            Parcel::Restored(outcome) => {
                self.incoming.end(GIVER, socket(), outcome, self.now_ms);
                match outcome {
                    Some(Ok(())) => {
                        let missing = self.offered.as_ref().unwrap().queued_len();
                        self.answer(MessageBody::HandoffAck { socket: socket(), missing }, true);
                    }
                    Some(Err(code)) => self.answer(MessageBody::Error { socket: Some(socket()), code }, true),
                    None => {}
                }
            }
            Parcel::Release => match self.releases.begin(GIVER, socket(), REST, self.now_ms) {
                ReleaseAction::Answer(result) => self.send_result(result),
                ReleaseAction::Wait => {}
                ReleaseAction::Grant => {
                    let result = match self.dice.below(5) {
                        _ if !self.before => Some(Err(ErrorCode::Unknown)),
                        0 => Some(Err(ErrorCode::Busy)),
                        1 => None,
                        _ => Some(Ok(state(0))),
                    };
                    self.before &= !matches!(result, Some(Ok(_)));
                    let at_ms = self.now_ms + self.dice.below(160);
                    self.parcels.push((at_ms, Parcel::Grant(result)));
                }
            },
            Parcel::Grant(result) => {
                if let Some(result) = self.releases.end(GIVER, socket(), REST, result) {
                    self.send_result(result);
                }
            }
        }
        None
    }

    fn send_result(&mut self, result: Result<TcpState, ErrorCode>) {
        let body = match result {
            Ok(state) => MessageBody::Released { socket: socket(), state },
            Err(code) => MessageBody::Error { socket: Some(socket()), code },
        };
        self.answer(body, false);
    }

    /// The server's stack creates a socket or fails. The server's daemon may not learn the result.
    fn make_socket(&mut self) {
        let outcome = match self.dice.below(4) {
            0 if !self.there => Some(Err(ErrorCode::NotRestored)),
            1 => None,
            _ => Some(Ok(())),
        };
        self.there |= outcome == Some(Ok(())) || outcome.is_none() && self.dice.one_in(2);
        let at_ms = self.now_ms + self.dice.below(256) * 5;
        self.parcels.push((at_ms, Parcel::Restored(outcome)));
    }

    /// Delivers parcels until the transfer gets an input, or until its deadline.
    fn listen(&mut self) -> TransferInput {
        while let Some(parcel) = self.next(self.transfer.deadline_ms()) {
            if let Some(input) = self.arrive(parcel) {
                return input;
            }
            self.check();
        }
        self.late()
    }

    fn late(&mut self) -> TransferInput {
        self.now_ms = self.now_ms.max(self.transfer.deadline_ms());
        TransferInput::Timer
    }

    fn carry_out(&mut self, order: TransferOrder) -> TransferInput {
        if self.transfer.gives_way() && self.dice.one_in(10) {
            return TransferInput::Crowded;
        }
        let is_sync = matches!(
            order,
            TransferOrder::Export
                | TransferOrder::Restore
                | TransferOrder::Offer { .. }
                | TransferOrder::Release
                | TransferOrder::Listen
        );
        if !is_sync && self.dice.one_in(12) {
            return self.late();
        }
        match order {
            TransferOrder::Look => [TransferInput::Leaves, TransferInput::Leaves, TransferInput::Stays]
                [self.dice.below(3) as usize],
            TransferOrder::TakePlace(_) => TransferInput::Admitted,
            TransferOrder::Release => {
                self.send(|| Parcel::Release);
                TransferInput::Answered
            }
            TransferOrder::Listen => self.listen(),
            TransferOrder::Read => match self.dice.below(8) {
                0 => TransferInput::Refused(FinalResponse::Status(400)),
                1 => TransferInput::Left,
                _ => TransferInput::Wanted { hello: self.dice.one_in(2) },
            },
            TransferOrder::Dispatch => {
                [TransferInput::Undispatched, TransferInput::PeerDead][self.dice.below(2) as usize]
            }
            TransferOrder::Choose => match self.dice.below(8) {
                0 => TransferInput::Unserved,
                die => TransferInput::Chosen { takes: die > 1, advised: false },
            },
            TransferOrder::Export => self.export(),
            TransferOrder::Offer { missing } => {
                let pieces: Vec<Piece> = self.offered.as_ref().unwrap().pieces(missing).collect();
                pieces.into_iter().for_each(|piece| self.send(|| Parcel::Piece(piece.clone())));
                TransferInput::Answered
            }
            TransferOrder::Commit { replayed } => {
                let is_sent = !self.dice.one_in(4);
                // A released connection has no cookie, so its segments create no socket.
                self.there |= is_sent && replayed && self.transfer.has_cookie;
                TransferInput::Committed(is_sent)
            }
            TransferOrder::Restore => {
                assert!(!self.here);
                self.here = !self.dice.one_in(6);
                TransferInput::Restored(self.here)
            }
            TransferOrder::Reach => {
                assert!(self.here);
                TransferInput::Reached(self.dice.one_in(2))
            }
            TransferOrder::Answer(_) => {
                assert!(self.here);
                TransferInput::Done
            }
            TransferOrder::Pass | TransferOrder::Return => TransferInput::Done,
            TransferOrder::Keep | TransferOrder::End => TransferInput::Done,
        }
    }

    fn export(&mut self) -> TransferInput {
        assert!(self.here);
        if self.dice.one_in(8) {
            return TransferInput::NotExported;
        }
        self.here = false;
        let len = [1, 1_024, 3_000][self.dice.below(3) as usize];
        self.offered = lccp::TransferImage::new(state(len), b"", &vec![7; len as usize]);
        TransferInput::Exported { len: (!self.dice.one_in(6)).then_some(len) }
    }

    fn check(&self) {
        let owners = [self.here, self.there, self.before].into_iter().filter(|owns| *owns).count();
        let have = [self.here, self.there, self.before];
        assert!(owners <= 1, "here, there, before: {have:?}\n{}", self.history.join("\n"));
    }

    fn run(&mut self) {
        let mut orders = 0;
        while let Some(order) = self.transfer.order() {
            let left_ms = self.transfer.deadline_ms().checked_sub(self.now_ms);
            assert!(left_ms.is_some_and(|left_ms| left_ms <= PATIENCE_MS), "{order:?}: {left_ms:?}");
            let input = self.carry_out(order);
            self.history.push(format!("{:>6} {order:?}: {input:?}", self.now_ms));
            if let Some(TransferEvent::Settled { outcome, .. }) = self.transfer.handle(self.now_ms, input) {
                self.settled.push(outcome);
            }
            self.check();
            orders += 1;
            assert!(orders < ORDERS_MAX, "{order:?}, {input:?}: {:?}", self.transfer);
        }
        // Late parcels must not create a second socket.
        let end = (self.transfer.clone(), self.settled.clone());
        while let Some(parcel) = self.next(u64::MAX) {
            if let Some(input) = self.arrive(parcel) {
                assert_eq!(self.transfer.handle(self.now_ms, input), None);
            }
            self.check();
        }
        assert_eq!((self.transfer.clone(), self.settled.clone()), end);
    }
}

fn any_input() -> impl Strategy<Value = TransferInput> {
    let code = prop_oneof![Just(ErrorCode::NoCapacity), Just(ErrorCode::Busy), Just(ErrorCode::NotRestored)];
    let result = prop_oneof![
        Just(TransferInput::Answered),
        Just(TransferInput::PeerDead),
        Just(TransferInput::Undispatched),
        Just(TransferInput::Advised),
        Just(TransferInput::Released),
        (0u32..4_000).prop_map(|missing| TransferInput::Acknowledged { missing }),
        code.prop_map(TransferInput::Denied),
    ];
    let read = prop_oneof![
        any::<bool>().prop_map(|hello| TransferInput::Wanted { hello }),
        Just(TransferInput::Refused(FinalResponse::Http1Required)),
        Just(TransferInput::Left),
        (any::<bool>(), any::<bool>()).prop_map(|(takes, advised)| TransferInput::Chosen { takes, advised }),
        Just(TransferInput::Unserved),
    ];
    let done = prop_oneof![
        prop::option::of(0u32..4_000).prop_map(|len| TransferInput::Exported { len }),
        Just(TransferInput::NotExported),
        any::<bool>().prop_map(TransferInput::Committed),
        any::<bool>().prop_map(TransferInput::Restored),
        any::<bool>().prop_map(TransferInput::Reached),
        Just(TransferInput::Done),
        Just(TransferInput::Admitted),
        Just(TransferInput::Stays),
        Just(TransferInput::Leaves),
    ];
    prop_oneof![result, read, done, Just(TransferInput::Timer), Just(TransferInput::Crowded)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn transfer_leaves_one_owner_under_any_loss(
        moving: bool, dice in prop::collection::vec(any::<u8>(), 60..400)
    ) {
        let mut world = World::new(moving, dice);
        world.run();
        prop_assert_eq!(world.settled.len(), 1, "{:?}", world.settled);
    }

    #[test]
    fn transfer_ends_for_any_order_of_inputs(
        moving: bool, inputs in prop::collection::vec((any_input(), 0u64..20_000), 0..120)
    ) {
        let mut transfer = if moving { Transfer::moving(0) } else { Transfer::accepted(0) };
        let (mut settled, mut now_ms) = (0, 0);
        let timers = core::iter::repeat_n((TransferInput::Timer, 1), ORDERS_MAX);
        for (input, later_ms) in inputs.into_iter().chain(timers) {
            now_ms += later_ms;
            let notice = transfer.handle(now_ms, input);
            settled += usize::from(matches!(notice, Some(TransferEvent::Settled { .. })));
            prop_assert!(transfer.deadline_ms() <= now_ms + PATIENCE_MS);
        }
        prop_assert_eq!((transfer.order(), settled), (None, 1));
    }
}
