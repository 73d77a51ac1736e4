use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use std::vec;

use proptest::prelude::*;

use super::*;
use crate::node::lccp::{
    self, Body, Letting, Piece, Place, Releases, SILENCE_MS, SocketId, Takings, TcpState, Took,
};

/// The longest that a message takes, in milliseconds: one that says "no room" is heard before the next but one is said.
const DELAY_MAX_MS: u64 = 350;
/// The most orders that any connection takes: each can only repeat itself so often.
const ORDERS_MAX: usize = 200;

/// Hands in these, and gives what there is to be done then.
fn after(mut transfer: Transfer, inputs: &[Input]) -> (Option<Order>, Vec<Notice>) {
    let notices = inputs.iter().filter_map(|input| transfer.handle(0, *input)).collect();
    (transfer.order(), notices)
}

fn read() -> Vec<Input> {
    vec![Input::Wanted { hello: false }, Input::Undispatched]
}

const CHOSEN: Input = Input::Chosen { takes: true, advised: false };

fn settled_as(outcome: Outcome) -> Notice {
    Notice::Settled { outcome, word: None }
}

#[test]
fn a_connection_is_read_chosen_for_and_given() {
    let mut transfer = Transfer::accepted(1_000);
    let mut orders = vec![transfer.order().unwrap()];
    assert_eq!(transfer.deadline_ms(), 11_000);
    for input in [
        Input::Wanted { hello: false },
        Input::Said,
        Input::Advised,
        Input::Chosen { takes: true, advised: true },
        Input::Exported { len: Some(3_000) },
        Input::Said,
        Input::Acknowledged { missing: 1_024 },
        Input::Timer,
        Input::Said,
        Input::Acknowledged { missing: 3_000 },
        Input::Committed(true),
    ] {
        transfer.handle(2_000, input);
        orders.extend(transfer.order());
    }
    let offer = |missing| Order::Offer { missing };
    let expected = [
        [Order::Read, Order::Dispatch, Order::Listen, Order::Choose, Order::Export].as_slice(),
        &[offer(0), Order::Listen, Order::Listen, offer(1_024), Order::Listen],
        &[Order::Commit { replayed: false }],
    ];
    assert_eq!((orders, transfer.order()), (expected.concat(), None));
}

#[test]
fn what_the_server_cant_have_comes_back_and_is_carried() {
    let code = ErrorCode::NotRestored;
    for (inputs, expected) in [
        (vec![CHOSEN, Input::NotExported], Order::Keep),
        (vec![Input::Chosen { takes: false, advised: false }], Order::Keep),
        (vec![CHOSEN, Input::Exported { len: Some(5) }, Input::Said, Input::Denied(code)], Order::Restore),
        (vec![CHOSEN, Input::Exported { len: None }, Input::Committed(false)], Order::Restore),
    ] {
        let mut inputs = [read(), inputs].concat();
        assert_eq!(after(Transfer::accepted(0), &inputs).0, Some(expected), "{inputs:?}");
        if expected == Order::Restore {
            inputs.push(Input::Restored(true));
        }
        inputs.push(Input::Done);
        assert_eq!(after(Transfer::accepted(0), &inputs).0, Some(Order::TakePlace(Room::Carrying)));
        inputs.extend([Input::Seated, Input::Reached(true)]);
        let (order, notices) = after(Transfer::accepted(0), &inputs);
        assert_eq!((order, notices.last()), (None, Some(&settled_as(Outcome::Carried))));
    }
}

#[test]
fn who_may_have_it_keeps_it() {
    // It was told, and never answered: whatever comes later, it isn't taken back.
    let exported = Input::Exported { len: Some(5) };
    let mut inputs = [read(), vec![CHOSEN, exported]].concat();
    inputs.extend([Input::Said, Input::Denied(ErrorCode::NoRoom), Input::Timer].repeat(5));
    inputs.extend([Input::Said, Input::Timer]);
    let (order, notices) = after(Transfer::accepted(0), &inputs);
    assert_eq!(order, Some(Order::Commit { replayed: true }));
    assert_eq!(notices, [Notice::Unanswered]);
    inputs.extend([Input::Denied(ErrorCode::NotRestored), Input::Committed(false)]);
    assert_eq!(after(Transfer::accepted(0), &inputs).0, None);
    // It said to the last that it has no room.
    let mut inputs = [read(), vec![CHOSEN, exported]].concat();
    inputs.extend([Input::Said, Input::Denied(ErrorCode::NoRoom), Input::Timer].repeat(6));
    let (order, notices) = after(Transfer::accepted(0), &inputs);
    assert_eq!((order, notices), (Some(Order::Restore), vec![Notice::NotTaken]));
}

#[test]
fn nobody_makes_a_socket_of_what_no_cookie_vouches_for() {
    let moved =
        [Input::Leaves, Input::Seated, Input::Said, Input::Released, Input::Restored(true), Input::Done];
    let unheard = [CHOSEN, Input::Exported { len: None }];
    let inputs = [moved.as_slice(), &read(), &unheard].concat();
    assert_eq!(after(Transfer::moving(0), &inputs).0, Some(Order::Restore));
    let inputs = [read(), unheard.to_vec()].concat();
    assert_eq!(after(Transfer::accepted(0), &inputs).0, Some(Order::Commit { replayed: true }));
}

#[test]
fn what_a_server_doesnt_let_go_stays_or_ends() {
    let (leaves, busy) = ([Input::Leaves, Input::Seated], Input::Denied(ErrorCode::Busy));
    let ends = |inputs: &[Input]| after(Transfer::moving(0), &[&leaves, inputs].concat()).0;
    assert_eq!(after(Transfer::moving(0), &[Input::Stays]).0, Some(Order::Pass));
    assert_eq!(after(Transfer::moving(0), &[Input::Timer]).0, Some(Order::Return));
    assert_eq!(ends(&[Input::Said, busy]), Some(Order::Return));
    for inputs in [
        vec![Input::Unheard],
        vec![Input::Said, Input::Denied(ErrorCode::Unknown)],
        [Input::Said, Input::Timer].repeat(RELEASES_MS.len()),
        vec![Input::Said, Input::Released, Input::Restored(false)],
    ] {
        assert_eq!(ends(&inputs), Some(Order::End), "{inputs:?}");
    }
}

#[test]
fn a_place_is_given_up_while_its_connection_is_a_socket_here() {
    let crowded = |inputs: &[Input]| after(Transfer::accepted(0), &[inputs, &[Input::Crowded]].concat());
    let reset = Some(Order::Answer(Word::Reset));
    assert_eq!(crowded(&[]), (reset, vec![settled_as(Outcome::Crowded)]));
    // What is kept back belongs to this host again before it ends.
    assert_eq!(crowded(&read()), (Some(Order::Keep), vec![settled_as(Outcome::Crowded)]));
    let choosing = [read(), vec![Input::Crowded, Input::Done]].concat();
    assert_eq!(after(Transfer::accepted(0), &choosing).0, reset);
    let exporting = [read(), vec![CHOSEN]].concat();
    assert_eq!(crowded(&exporting), (Some(Order::Export), vec![]));
    // What was settled isn't again.
    let refused = [Input::Refused(Word::Status(400))];
    let word = Some(Word::Status(400));
    assert_eq!(crowded(&refused), (None, vec![Notice::Settled { outcome: Outcome::Refused, word }]));
}

/// A server whose host is so busy that each of its answers comes this late: it lets the connection go when it is first asked.
fn released_after(late_ms: u64) -> Option<Order> {
    let mut transfer = Transfer::moving(0);
    let (mut releases, mut now_ms, mut answers) = (Releases::default(), 0, Vec::new());
    for input in [Input::Leaves, Input::Seated] {
        transfer.handle(now_ms, input);
    }
    loop {
        let input = match transfer.order()? {
            Order::Release => {
                match releases.begin(GIVER, socket(), REST, now_ms) {
                    Letting::LetGo => {
                        releases.end(GIVER, socket(), REST, Some(Ok(state(0))));
                        answers.push(now_ms + late_ms);
                    }
                    Letting::Answer(Ok(_)) => answers.push(now_ms + late_ms),
                    answer => panic!("{answer:?}"),
                }
                Input::Said
            }
            Order::Listen => {
                let first = answers.first().copied().filter(|at_ms| *at_ms <= transfer.deadline_ms());
                now_ms = first.unwrap_or(transfer.deadline_ms());
                if first.is_some() { Input::Released } else { Input::Timer }
            }
            order => return Some(order),
        };
        transfer.handle(now_ms, input);
    }
}

/// A server that was asked has let the connection go, perhaps: to end it then, for want of an answer, is to reset a client whom nobody
/// has refused. So whoever is still heard is waited for, and he remembers for as long what he has answered.
#[test]
fn a_server_that_is_heard_is_waited_for() {
    for late_ms in [1, 500, 1_399, 1_401, 2_000, SILENCE_MS] {
        assert_eq!(released_after(late_ms), Some(Order::Restore), "{late_ms} ms late");
    }
    // Who says nothing for longer isn't heard any more.
    assert_eq!(released_after(PATIENCE_MS), Some(Order::End));
    let tries_ms: u64 = RELEASES_MS.iter().sum();
    assert!((SILENCE_MS + 1..PATIENCE_MS).contains(&tries_ms), "{tries_ms} ms");
}

/// How long each question waits for its answer, until nothing is asked any more.
fn waits(mut transfer: Transfer, before: &[Input], question: fn(Order) -> bool) -> Vec<u64> {
    for input in before {
        transfer.handle(1_000, *input);
    }
    let (mut now_ms, mut waits) = (1_000, Vec::new());
    while transfer.order().is_some_and(question) {
        transfer.handle(now_ms, Input::Said);
        assert_eq!(transfer.order(), Some(Order::Listen));
        waits.push(transfer.deadline_ms() - now_ms);
        now_ms = transfer.deadline_ms();
        transfer.handle(now_ms, Input::Timer);
    }
    waits
}

#[test]
fn what_nobody_answers_is_repeated_after_longer_and_longer_pauses() {
    let wanted = [Input::Wanted { hello: false }];
    let exported = [&read()[..], &[CHOSEN, Input::Exported { len: Some(5) }]].concat();
    let leaves = [Input::Leaves, Input::Seated];
    assert_eq!(waits(Transfer::accepted(1_000), &wanted, |order| order == Order::Dispatch), DISPATCHES_MS);
    let offers = |order| matches!(order, Order::Offer { .. });
    assert_eq!(waits(Transfer::accepted(1_000), &exported, offers), OFFERS_MS);
    assert_eq!(waits(Transfer::moving(1_000), &leaves, |order| order == Order::Release), RELEASES_MS);
}

#[test]
fn a_client_whose_server_can_not_be_had_is_answered_by_what_it_understands() {
    let outcome = |outcome, word| Notice::Settled { outcome, word: Some(word) };
    for hello in [false, true] {
        let word = if hello { Word::Reset } else { Word::Status(503) };
        let inputs = [Input::Wanted { hello }, Input::Undispatched, Input::Unserved];
        let expected = (Some(Order::Answer(word)), vec![outcome(Outcome::Unserved, word)]);
        assert_eq!(after(Transfer::accepted(0), &inputs), expected);
        let late = [Input::Wanted { hello }, Input::Undispatched, Input::Timer, Input::Done];
        assert_eq!(after(Transfer::accepted(0), &late), expected, "nobody chose in time");
    }
    let late = (Some(Order::Answer(Word::TimedOut)), vec![outcome(Outcome::Late, Word::TimedOut)]);
    assert_eq!(after(Transfer::accepted(0), &[Input::Timer]), late);
    let left = (None, vec![settled_as(Outcome::Left)]);
    assert_eq!(after(Transfer::accepted(0), &[Input::Left]), left);
    let carried = [&read()[..], &[Input::Chosen { takes: false, advised: false }, Input::Done]].concat();
    let failed = outcome(Outcome::Carried, Word::Status(502));
    for inputs in
        [&[Input::Timer][..], &[Input::Seated, Input::Reached(false)], &[Input::Seated, Input::Timer]]
    {
        let (order, notices) = after(Transfer::accepted(0), &[&carried, inputs].concat());
        assert_eq!((order, notices.last()), (Some(Order::Answer(Word::Status(502))), Some(&failed)));
    }
}

#[test]
fn this_host_chooses_alone_where_the_node_that_decides_for_all_gives_no_answer() {
    let wanted = Input::Wanted { hello: false };
    let asked = |inputs: &[Input]| after(Transfer::accepted(0), &[&[wanted, Input::Said], inputs].concat());
    let choose = Some(Order::Choose);
    let (order, notices) = asked(&[Input::Timer, Input::Said, Input::Timer]);
    assert_eq!((order, notices), (choose, vec![Notice::DispatchAsked, Notice::Alone { silent: true }]));
    for input in [Input::Unheard, Input::Denied(ErrorCode::Unknown)] {
        let (order, notices) = asked(&[input]);
        assert_eq!((order, notices), (choose, vec![Notice::DispatchAsked, Notice::Alone { silent: false }]));
    }
    assert_eq!(asked(&[Input::Advised]), (choose, vec![Notice::DispatchAsked, Notice::Advised]));
    for (advised, unbelieved) in [(true, None), (false, Some(&Notice::Unbelieved))] {
        let (order, notices) = asked(&[Input::Advised, Input::Chosen { takes: true, advised }]);
        assert_eq!((order, notices.get(2)), (Some(Order::Export), unbelieved));
    }
    let unadvised = [Input::Undispatched, CHOSEN];
    assert_eq!(asked(&unadvised).1, [Notice::DispatchAsked], "nobody named one");
}

#[test]
fn a_transfer_is_small() {
    assert_eq!(size_of::<Transfer>(), 24);
}

/// Chance, from the seed of a test.
struct Dice(Vec<u8>);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        u64::from(self.0.pop().unwrap_or_default()) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.below(sides) == sides - 1
    }
}

/// Something under way.
#[derive(Debug)]
enum Parcel {
    Piece(Piece),
    Release,
    /// The server's stack is done.
    Restored(Option<Result<(), ErrorCode>>),
    LetGo(Option<Result<TcpState, ErrorCode>>),
    /// To what was said of it being offered, or else released: an exchange hears no answers to another one.
    Answer(Body, bool),
}

/// A connection, this host and its server, and a network that loses, doubles and delays.
struct World {
    now_ms: u64,
    dice: Dice,
    transfer: Transfer,
    offered: Option<lccp::Transfer>,
    parcels: Vec<(u64, Parcel)>,
    takings: Takings,
    releases: Releases,
    /// Until when the new server has no room.
    full_until_ms: u64,
    /// Whether this host, the server that is to have it, and the one that had it have a socket of it.
    here: bool,
    there: bool,
    before: bool,
    settled: Vec<Outcome>,
    /// In words, for who wants to know how it came so far.
    history: Vec<String>,
}

const GIVER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 2));
const REST: Place = Place { rcv_nxt: 5, snd_nxt: 9 };

fn socket() -> SocketId {
    SocketId::new("203.0.113.7:40000".parse().unwrap(), "192.0.2.100:80".parse().unwrap()).unwrap()
}

fn state(receive_len: u32) -> TcpState {
    TcpState { snd_una: 9, snd_nxt: 9, rcv_nxt: 5, mss: 1_448, receive_len, ..TcpState::default() }
}

impl World {
    fn new(moving: bool, dice: Vec<u8>) -> World {
        let mut dice = Dice(dice);
        let mut takings = Takings::default();
        takings.serve(BTreeSet::from([socket().server()]));
        World {
            now_ms: 0,
            transfer: if moving { Transfer::moving(0) } else { Transfer::accepted(0) },
            offered: None,
            parcels: Vec::new(),
            takings,
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
        // The window of a session lets no message through twice; a giver that says something again does so by another.
        let most = if matches!(parcel(), Parcel::Answer(..)) { 5 } else { 4 };
        let copies = [1, 1, 1, 0, 2][self.dice.below(most) as usize];
        for _ in 0..copies {
            let delay_ms = if self.dice.one_in(2) { self.dice.below(DELAY_MAX_MS) } else { 1 };
            self.parcels.push((self.now_ms + delay_ms, parcel()));
        }
    }

    fn answer(&mut self, body: Body, is_offered: bool) {
        self.send(|| Parcel::Answer(body.clone(), is_offered));
    }

    /// What comes next of that which is under way, until then.
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

    /// What a server does about a parcel; what this host hears of it.
    fn arrive(&mut self, parcel: Parcel) -> Option<Input> {
        match parcel {
            Parcel::Answer(_, is_offered) if is_offered != self.offered.is_some() => {}
            Parcel::Answer(Body::HandoffAck { missing, .. }, _) => {
                return Some(Input::Acknowledged { missing });
            }
            Parcel::Answer(Body::Released { .. }, _) => return Some(Input::Released),
            Parcel::Answer(Body::Error { code, .. }, _) => return Some(Input::Denied(code)),
            Parcel::Answer(body, _) => panic!("{body:?}"),
            Parcel::Piece(_) if self.now_ms < self.full_until_ms => {
                self.answer(Body::Error { socket: Some(socket()), code: ErrorCode::NoRoom }, true);
            }
            Parcel::Piece(piece) => {
                if self.dice.one_in(12) {
                    self.takings.serve(BTreeSet::new());
                }
                match self.takings.take(GIVER, socket(), piece, self.now_ms) {
                    Took::Answer(body) => self.answer(body, true),
                    Took::Wait => {}
                    Took::Restore(_) => self.make_socket(),
                }
            }
            Parcel::Restored(outcome) => {
                self.takings.end(GIVER, socket(), outcome, self.now_ms);
                match outcome {
                    Some(Ok(())) => {
                        let missing = self.offered.as_ref().unwrap().queued_len();
                        self.answer(Body::HandoffAck { socket: socket(), missing }, true);
                    }
                    Some(Err(code)) => self.answer(Body::Error { socket: Some(socket()), code }, true),
                    None => {}
                }
            }
            Parcel::Release => match self.releases.begin(GIVER, socket(), REST, self.now_ms) {
                Letting::Answer(said) => self.say(said),
                Letting::Wait => {}
                Letting::LetGo => {
                    let said = match self.dice.below(5) {
                        _ if !self.before => Some(Err(ErrorCode::Unknown)),
                        0 => Some(Err(ErrorCode::Busy)),
                        1 => None,
                        _ => Some(Ok(state(0))),
                    };
                    self.before &= !matches!(said, Some(Ok(_)));
                    let at_ms = self.now_ms + self.dice.below(160);
                    self.parcels.push((at_ms, Parcel::LetGo(said)));
                }
            },
            Parcel::LetGo(said) => {
                if let Some(said) = self.releases.end(GIVER, socket(), REST, said) {
                    self.say(said);
                }
            }
        }
        None
    }

    fn say(&mut self, said: Result<TcpState, ErrorCode>) {
        let body = match said {
            Ok(state) => Body::Released { socket: socket(), state },
            Err(code) => Body::Error { socket: Some(socket()), code },
        };
        self.answer(body, false);
    }

    /// The server's stack makes a socket, or doesn't; or nobody can tell.
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

    /// Whatever comes until the deadline, of which this host hears the first.
    fn listen(&mut self) -> Input {
        while let Some(parcel) = self.next(self.transfer.deadline_ms()) {
            if let Some(input) = self.arrive(parcel) {
                return input;
            }
            self.check();
        }
        self.late()
    }

    fn late(&mut self) -> Input {
        self.now_ms = self.now_ms.max(self.transfer.deadline_ms());
        Input::Timer
    }

    fn carry_out(&mut self, order: Order) -> Input {
        if self.transfer.gives_way() && self.dice.one_in(10) {
            return Input::Crowded;
        }
        let is_sync = matches!(
            order,
            Order::Export | Order::Restore | Order::Offer { .. } | Order::Release | Order::Listen
        );
        if !is_sync && self.dice.one_in(12) {
            return self.late();
        }
        match order {
            Order::Look => [Input::Leaves, Input::Leaves, Input::Stays][self.dice.below(3) as usize],
            Order::TakePlace(_) => Input::Seated,
            Order::Release => {
                self.send(|| Parcel::Release);
                Input::Said
            }
            Order::Listen => self.listen(),
            Order::Read => match self.dice.below(8) {
                0 => Input::Refused(Word::Status(400)),
                1 => Input::Left,
                _ => Input::Wanted { hello: self.dice.one_in(2) },
            },
            Order::Dispatch => [Input::Undispatched, Input::Unheard][self.dice.below(2) as usize],
            Order::Choose => match self.dice.below(8) {
                0 => Input::Unserved,
                die => Input::Chosen { takes: die > 1, advised: false },
            },
            Order::Export => self.export(),
            Order::Offer { missing } => {
                let pieces: Vec<Piece> = self.offered.as_ref().unwrap().pieces(missing).collect();
                pieces.into_iter().for_each(|piece| self.send(|| Parcel::Piece(piece.clone())));
                Input::Said
            }
            Order::Commit { replayed } => {
                let is_sent = !self.dice.one_in(4);
                // What was let go before has no cookie, and its segments make no socket.
                self.there |= is_sent && replayed && self.transfer.vouched;
                Input::Committed(is_sent)
            }
            Order::Restore => {
                assert!(!self.here);
                self.here = !self.dice.one_in(6);
                Input::Restored(self.here)
            }
            Order::Reach => {
                assert!(self.here);
                Input::Reached(self.dice.one_in(2))
            }
            Order::Answer(_) => {
                assert!(self.here);
                Input::Done
            }
            Order::Pass | Order::Return => Input::Done,
            Order::Keep | Order::End => Input::Done,
        }
    }

    fn export(&mut self) -> Input {
        assert!(self.here);
        if self.dice.one_in(8) {
            return Input::NotExported;
        }
        self.here = false;
        let len = [1, 1_024, 3_000][self.dice.below(3) as usize];
        self.offered = lccp::Transfer::new(state(len), b"", &vec![7; len as usize]);
        Input::Exported { len: (!self.dice.one_in(6)).then_some(len) }
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
            if let Some(Notice::Settled { outcome, .. }) = self.transfer.handle(self.now_ms, input) {
                self.settled.push(outcome);
            }
            self.check();
            orders += 1;
            assert!(orders < ORDERS_MAX, "{order:?}, {input:?}: {:?}", self.transfer);
        }
        // What comes late makes no second socket of it.
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

fn any_input() -> impl Strategy<Value = Input> {
    let code = prop_oneof![Just(ErrorCode::NoRoom), Just(ErrorCode::Busy), Just(ErrorCode::NotRestored)];
    let said = prop_oneof![
        Just(Input::Said),
        Just(Input::Unheard),
        Just(Input::Undispatched),
        Just(Input::Advised),
        Just(Input::Released),
        (0u32..4_000).prop_map(|missing| Input::Acknowledged { missing }),
        code.prop_map(Input::Denied),
    ];
    let read = prop_oneof![
        any::<bool>().prop_map(|hello| Input::Wanted { hello }),
        Just(Input::Refused(Word::Http1Required)),
        Just(Input::Left),
        (any::<bool>(), any::<bool>()).prop_map(|(takes, advised)| Input::Chosen { takes, advised }),
        Just(Input::Unserved),
    ];
    let done = prop_oneof![
        prop::option::of(0u32..4_000).prop_map(|len| Input::Exported { len }),
        Just(Input::NotExported),
        any::<bool>().prop_map(Input::Committed),
        any::<bool>().prop_map(Input::Restored),
        any::<bool>().prop_map(Input::Reached),
        Just(Input::Done),
        Just(Input::Seated),
        Just(Input::Stays),
        Just(Input::Leaves),
    ];
    prop_oneof![said, read, done, Just(Input::Timer), Just(Input::Crowded)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn exactly_one_has_a_connection_whatever_the_network_does(
        moving: bool, dice in prop::collection::vec(any::<u8>(), 60..400)
    ) {
        let mut world = World::new(moving, dice);
        world.run();
        prop_assert_eq!(world.settled.len(), 1, "{:?}", world.settled);
    }

    #[test]
    fn whatever_comes_in_whatever_order_a_transfer_ends(
        moving: bool, inputs in prop::collection::vec((any_input(), 0u64..20_000), 0..120)
    ) {
        let mut transfer = if moving { Transfer::moving(0) } else { Transfer::accepted(0) };
        let (mut settled, mut now_ms) = (0, 0);
        let timers = core::iter::repeat_n((Input::Timer, 1), ORDERS_MAX);
        for (input, later_ms) in inputs.into_iter().chain(timers) {
            now_ms += later_ms;
            let notice = transfer.handle(now_ms, input);
            settled += usize::from(matches!(notice, Some(Notice::Settled { .. })));
            prop_assert!(transfer.deadline_ms() <= now_ms + PATIENCE_MS);
        }
        prop_assert_eq!((transfer.order(), settled), (None, 1));
    }
}
