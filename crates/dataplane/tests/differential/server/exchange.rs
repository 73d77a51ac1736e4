//! Request and response tracking: the core and the C program follow random exchanges alike and
//! change leaving segments alike.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use evener_core::path::cookie::FourTuple;
use evener_core::server::{Arrived, Exchange, ExchangeSpan, Leaving, Outcome, Payload, Reason, Tables};
use evener_dataplane::server::Hook;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::network::{PLAIN, Sockets, Tcp, client, keys_of, listen, service, tables};
use super::{Counts, Programs};
use crate::stories;

/// Number of random connections, each with several exchanges.
const EXCHANGES: u32 = 4_000;
/// Number of random segments that leave a server.
const LEAVING_SEGMENTS: u32 = 2_000;
/// The largest MSS that servers may offer.
const MSS: u16 = 1_400;
/// First sequence numbers of the client and the server.
const BEGIN: (u32, u32) = (4_000_000_000, 90_000);

/// Map `turns` of `bpf/server/server.h`.
struct Turns(MapHandle);

impl Turns {
    fn of(c: &Programs) -> Turns {
        Turns(MapHandle::from_pinned_path(c.dir.join("turns")).unwrap())
    }

    fn key(ends: &FourTuple) -> Vec<u8> {
        let address = |end: SocketAddr| match end.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let ports = [ends.client, ends.service].map(|end| end.port().to_be_bytes()).concat();
        [&address(ends.client)[..], &address(ends.service), &ports].concat()
    }

    fn set(&self, ends: &FourTuple, exchange: &Exchange) {
        let turn = |turn: ExchangeSpan| (u64::from(turn.begin) << 32 | u64::from(turn.end)).to_ne_bytes();
        let flags = [exchange.sent, exchange.chunked.into(), exchange.plain.into(), exchange.ahead]
            .map(u32::to_ne_bytes);
        let tail = exchange.tail.to_ne_bytes();
        let value = [&turn(exchange.request)[..], &turn(exchange.answered), &tail, &flags.concat()].concat();
        self.0.update(&Turns::key(ends), &value, MapFlags::ANY).unwrap();
    }

    fn get(&self, ends: &FourTuple) -> Exchange {
        let value = self.0.lookup(&Turns::key(ends), MapFlags::ANY).unwrap().unwrap();
        let word = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_ne_bytes(value[at..at + 4].try_into().unwrap());
        let turn = |word: u64| ExchangeSpan { begin: (word >> 32) as u32, end: word as u32 };
        Exchange {
            request: turn(word(0)),
            answered: turn(word(8)),
            tail: word(16),
            sent: half(24),
            chunked: half(28) & 0xffff != 0,
            plain: half(32) != 0,
            ahead: half(36),
            // The map holds no bytes of the head. A wrong byte shows at the end of the response.
            head: vec![0; half(28) as usize >> 16],
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A client's segment at an offset from the next sequence number. It acknowledges the server's
    /// bytes up to an offset from the last byte.
    Request {
        data: Vec<u8>,
        off: i32,
        acknowledged: i32,
        flags: u8,
    },
    Answer {
        data: Vec<u8>,
        off: i32,
        flags: u8,
    },
    /// Two segments of the server, sent in reverse order.
    Overtaken {
        first: Vec<u8>,
        next: Vec<u8>,
    },
    /// A repetition of the last step.
    Again,
}

/// Header fields that give the length of a body, or look-alikes.
const FIELDS: [&str; 22] = [
    "Content-Length: 0",
    "Content-Length: 5",
    "content-length:5",
    "CONTENT-LENGTH: \t 00005",
    "Content-Length:",
    "Content-Length: 5 ",
    "Content-Length: 5x",
    "Content-Length: 2147418112",
    "Content-Length: 2147418113",
    "Content-Length: 99999999999999999999",
    "X-Content-Length: 7",
    "Content-Lengths: 7",
    "Transfer-Encoding: chunked",
    "transfer-encoding:CHUNKED",
    "Transfer-Encoding:  chunked",
    "Transfer-Encoding: gzip, chunked",
    "Connection: keep-alive",
    "connection: x, Close",
    "Connection:",
    " folded",
    "Host: www.example.com",
    "Content\rLength: 5",
];

/// Returns a message head that is usually complete.
fn head(
    first: &'static [&'static str],
    fields: BoxedStrategy<Vec<&'static str>>,
) -> impl Strategy<Value = Vec<u8>> {
    let end = prop_oneof![12 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r\r\n")];
    let filling = prop_oneof![12 => Just(0usize), 1 => 0usize..60, 1 => 1_900usize..2_100];
    (prop::sample::select(first), fields, end, filling).prop_map(|(first, fields, end, filling)| {
        let long = format!("X: {}", "x".repeat(filling));
        let more = if filling > 0 { vec![long.as_str()] } else { vec![] };
        let lines = [vec![first], more, fields].concat();
        let heads: Vec<_> = lines.iter().flat_map(|line| [*line, "\r\n"]).collect();
        [heads.concat(), end.to_owned()].concat().into_bytes()
    })
}

fn some_fields() -> BoxedStrategy<Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(&FIELDS[..]), 0..3).boxed()
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let plain = prop_oneof![6 => Just(vec!["Host: www.example.com"]), 2 => some_fields()].boxed();
    prop_oneof![
        8 => head(&["GET / HTTP/1.1", "GET /a", "GET / HTTP/1.1"], plain),
        1 => head(&["POST / HTTP/1.1", "get / HTTP/1.1", "GETS / HTTP/1.1", "GET ", "", " GET / HTTP/1.1"], some_fields()),
        1 => prop::collection::vec(any::<u8>(), 1..40),
        1 => Just(b"GET ".to_vec()),
        1 => Just(b"\r\n".to_vec()),
        1 => Just([b"\r\n", PLAIN_REQUEST].concat()),
    ]
}

/// Returns bytes of a body, or of no known framing.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let parts = [
        "",
        "hello",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "\r\n0\r\n\r\n",
        "0",
        "\r",
        "\n",
        "\r\n",
        "0\r\n",
        "6\r\na0\r\n\r\n",
        "hellohello",
    ];
    prop::sample::select(parts.to_vec()).prop_map(|text| text.as_bytes().to_vec())
}

fn answer() -> impl Strategy<Value = Vec<u8>> {
    let length = Just(vec!["Content-Length: 5"]);
    let chunks = Just(vec!["Server: x", "Transfer-Encoding: chunked"]);
    let last = Just(vec!["Content-Length: 5", "Connection: close"]);
    let fields = prop_oneof![5 => length, 5 => chunks, 1 => last, 3 => some_fields()].boxed();
    let usual = head(
        &["HTTP/1.1 200 OK", "HTTP/1.1 599 x", "HTTP/1.1 204 x", "HTTP/1.1 304 x", "HTTP/1.1 404"],
        fields.clone(),
    );
    let other = head(
        &[
            "HTTP/1.0 200 OK",
            "HTTP/1.1 199 x",
            "HTTP/1.1 600 x",
            "HTTP/1.1 100 Continue",
            "HTTP/1.1",
            "http/1.1 200 OK",
        ],
        fields,
    );
    let whole = prop_oneof![8 => usual, 1 => other];
    prop_oneof![
        6 => (whole, body()).prop_map(|(head, body)| [head, body].concat()),
        5 => body(),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

/// Changes one byte in some cases.
fn damaged(data: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let bytes = b"\r\n \t:\0\x1a\x0b0c-H".to_vec();
    let change = prop::option::weighted(0.1, (any::<prop::sample::Index>(), prop::sample::select(bytes)));
    (data, change).prop_map(|(mut data, change)| {
        if let Some((at, byte)) = change.filter(|_| !data.is_empty()) {
            let at = at.index(data.len());
            data[at] = byte;
        }
        data
    })
}

fn step() -> impl Strategy<Value = Step> {
    let off = || prop_oneof![14 => Just(0i32), 1 => -2i32..3, 1 => Just(-60)];
    let client_flags = prop_oneof![12 => Just(0x18u8), 1 => Just(0x38), 1 => Just(0x19)];
    let server_flags = prop_oneof![14 => Just(0x18u8), 1 => Just(0x19), 1 => Just(0x14), 1 => Just(0x12)];
    prop_oneof![
        4 => (damaged(request()), off(), off(), client_flags)
            .prop_map(|(data, off, acknowledged, flags)| Step::Request { data, off, acknowledged, flags }),
        6 => (damaged(answer()), off(), server_flags)
            .prop_map(|(data, off, flags)| Step::Answer { data, off, flags }),
        1 => Just(Step::Again),
    ]
}

/// Responses with a known length, as lists of segments.
const PLAIN_ANSWERS: [&[&str]; 10] = [
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
    &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "he", "llo"],
    &["HTTP/1.1 404 Not Found\r\ncontent-length:0\r\nServer: x\r\n\r\n"],
    &["HTTP/1.1 304 Not Modified\r\nContent-Length: 5000\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nContent-", "Length: 5\r", "\n\r\nhe", "llo"],
    &["H", "TTP/1.1 200 OK\r\n", "Content-Length: 0\r\n\r", "\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r", "\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r", "\n", "0\r", "\n\r", "\n"],
    &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n0\r\n", "\r\nab\r\n0\r\n\r\n"],
];
const PLAIN_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n";

/// A plain response and the next request. Any step may be repeated.
fn turn() -> impl Strategy<Value = Vec<Step>> {
    let parts = prop::sample::select(&PLAIN_ANSWERS[..]);
    let again = prop::option::weighted(0.3, any::<prop::sample::Index>());
    (parts, again, prop::bool::weighted(0.2), prop::bool::weighted(0.2)).prop_map(
        |(parts, again, overtaken, empty)| {
            let answer = |part: &&str| Step::Answer { data: part.as_bytes().to_vec(), off: 0, flags: 0x18 };
            let mut steps: Vec<_> = parts.iter().map(answer).collect();
            if let ([first, next, rest @ ..], true) = (parts, overtaken) {
                let [first, next] = [first, next].map(|part| part.as_bytes().to_vec());
                steps =
                    [Step::Overtaken { first, next }].into_iter().chain(rest.iter().map(answer)).collect();
            }
            // Some clients send an empty line after a request.
            let request = |data: Vec<u8>| Step::Request { data, off: 0, acknowledged: 0, flags: 0x18 };
            steps.extend(empty.then(|| request(b"\r\n".to_vec())));
            steps.push(request(PLAIN_REQUEST.to_vec()));
            if let Some(at) = again {
                steps.insert(at.index(steps.len()) + 1, Step::Again);
            }
            steps
        },
    )
}

/// Several plain exchanges, then other steps.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let other = prop::collection::vec(step(), 1..4);
    (prop::collection::vec(turn(), 0..4), other).prop_map(|(turns, other)| [turns.concat(), other].concat())
}

/// A random connection, followed by the core and the C program.
struct Story<'a> {
    c: &'a Programs,
    tables: &'a Tables,
    sockets: &'a Sockets,
    turns: &'a Turns,
    ends: FourTuple,
    known: Exchange,
    /// Next sequence numbers of the client and the server.
    next: (u32, u32),
    met: &'a RefCell<BTreeMap<String, u64>>,
}

impl Story<'_> {
    fn begin(&mut self, request: &[u8]) {
        let (sequence, acknowledgment) = BEGIN;
        self.known = Exchange::begin(&Payload { sequence, acknowledgment, urgent: false, data: request });
        self.turns.set(&self.ends, &self.known);
        self.next = (sequence.wrapping_add(request.len() as u32), acknowledgment);
    }

    fn go_on(&mut self, step: &Step) -> TestCaseResult {
        let before = self.known.clone();
        match step {
            Step::Request { data, off, acknowledged, flags } => {
                let sequence = self.next.0.wrapping_add_signed(*off);
                let acknowledgment = self.next.1.wrapping_add_signed(*acknowledged);
                let frame =
                    Tcp { sequence, acknowledgment, flags: *flags, options: &[], data }.frame(&self.ends);
                self.comes(&frame)?;
                self.next.0 = sequence.wrapping_add(data.len() as u32);
            }
            Step::Answer { data, off, flags } => {
                let sequence = self.next.1.wrapping_add_signed(*off);
                let segment =
                    Tcp { sequence, acknowledgment: self.next.0, flags: *flags, options: &[], data };
                self.leaves(&segment.between(self.ends.service, self.ends.client))?;
                self.next.1 = sequence.wrapping_add(data.len() as u32);
            }
            Step::Overtaken { first, next } => {
                let (sequence, acknowledgment) = (self.next.1, self.next.0);
                let then = sequence.wrapping_add(first.len() as u32);
                for (sequence, data) in [(then, next), (sequence, first)] {
                    let segment = Tcp { sequence, acknowledgment, flags: 0x18, options: &[], data };
                    self.leaves(&segment.between(self.ends.service, self.ends.client))?;
                }
                self.next.1 = then.wrapping_add(next.len() as u32);
            }
            Step::Again => {}
        }
        let c = self.turns.get(&self.ends);
        let known = Exchange { head: vec![0; self.known.head.len()], ..self.known.clone() };
        prop_assert_eq!(known, c, "core and C after {:?}, from {:?}", step, before);
        let what = match (before.plain, &self.known) {
            (false, _) => "in doubt",
            (true, Exchange { plain: false, .. }) => "into doubt",
            (_, now) if now.request != before.request => "asked",
            (_, now) if now.answered != before.answered && now.ahead != before.ahead => "overtaken",
            (_, now) if now.answered != before.answered && now.chunked => "chunks",
            (_, now) if now.answered != before.answered && !before.head.is_empty() => "answered in pieces",
            (_, now) if now.answered != before.answered => "answered",
            _ => "no change",
        };
        *self.met.borrow_mut().entry(what.to_owned()).or_default() += 1;
        Ok(())
    }

    fn comes(&mut self, frame: &[u8]) -> TestCaseResult {
        let Some(arrived) = Arrived::read(self.tables, frame) else { return Ok(()) };
        let Some(_) = self.c.run(Hook::Accept, frame)? else { return Ok(()) };
        let outcome = arrived.outcome(&keys_of(0), self.sockets);
        prop_assert!(matches!(outcome, Outcome::Known | Outcome::Straggler), "{outcome:?}");
        self.known = arrived.follow(outcome, false, Some(self.known.clone())).unwrap();
        Ok(())
    }

    fn leaves(&mut self, frame: &[u8]) -> TestCaseResult {
        let Some(_) = self.c.run(Hook::Egress, frame)? else { return Ok(()) };
        if let Some(leaving) = Leaving::read(self.tables, frame) {
            self.known = leaving.follow(Some(self.known.clone())).unwrap();
        }
        Ok(())
    }
}

#[test]
fn turns_are_followed_alike() {
    let tables = tables(None);
    let Some(c) = Programs::start_handing_over(&tables) else { return };
    let _listeners = listen();
    let (turns, sockets) = (Turns::of(&c), Sockets::open(20_000));
    let met = RefCell::new(BTreeMap::new());
    let first = prop_oneof![3 => Just(PLAIN_REQUEST.to_vec()), 1 => damaged(request())];
    let story = (any::<bool>(), first, steps());
    let outcome = stories::runner(EXCHANGES, 0).run(&story, |(v6, request, steps)| {
        let ends = FourTuple { client: client(v6, 20_000), service: service(v6, PLAIN) };
        let known = Exchange::begin(&Payload { sequence: 0, acknowledgment: 0, urgent: false, data: &[] });
        let (c, tables, sockets, turns, met) = (&c, &tables, &sockets, &turns, &met);
        let mut story = Story { c, tables, sockets, turns, ends, known, next: BEGIN, met };
        story.begin(&request);
        let mut last = None;
        for step in &steps {
            let again = matches!(step, Step::Again);
            let at = story.next;
            if let (true, Some((step, next))) = (again, &last) {
                story.next = *next;
                story.go_on(step)?;
            } else {
                story.go_on(step)?;
                last = (!again).then(|| (step.clone(), at));
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let met = met.into_inner();
    let wanted = [
        "in doubt",
        "into doubt",
        "asked",
        "chunks",
        "answered",
        "answered in pieces",
        "overtaken",
        "no change",
    ];
    assert!(wanted.iter().all(|what| met.get(*what).is_some_and(|count| *count > 50)), "{met:?}");
}

/// IP version 6, port, flags, options, damage, and the length at which the frame is cut off.
type Left = (bool, u16, u8, Vec<u8>, Option<(usize, u8)>, usize);

/// A leaving segment with an MSS option among its options.
fn leaving() -> impl Strategy<Value = Left> {
    let option = prop_oneof![
        4 => any::<u16>().prop_map(|mss| [&[2, 4][..], &mss.to_be_bytes()].concat()),
        2 => Just([&[2, 4][..], &MSS.to_be_bytes()].concat()),
        4 => (1_300u16..1_500).prop_map(|mss| [&[2, 4][..], &mss.to_be_bytes()].concat()),
        4 => Just(vec![1]),
        1 => Just(vec![3, 3, 7]),
        1 => Just(vec![4, 2]),
        1 => Just(vec![8, 10, 0, 0, 0, 1, 0, 0, 0, 2]),
        1 => Just(vec![0]),
        1 => Just(vec![2, 3, 9]),
        1 => Just(vec![99, 1]),
        1 => Just(vec![99, 40]),
    ];
    let options = prop::collection::vec(option, 0..6).prop_map(|options| {
        let mut options = options.concat();
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 0);
        options
    });
    let flags =
        prop_oneof![4 => Just(0x02u8), 6 => Just(0x12), 2 => Just(0x04), 1 => Just(0x14), 1 => any::<u8>()];
    let damage = prop::option::weighted(0.2, (12usize..80, any::<u8>()));
    let port = prop::sample::select(vec![PLAIN, 81, 82, 83, 84, 85]);
    let cut = prop_oneof![6 => Just(2_000usize), 1 => 54usize..100];
    (any::<bool>(), port, flags, options, damage, cut)
}

#[test]
fn segments_that_leave_are_changed_alike() {
    let tables = tables(Some(MSS));
    let Some(c) = Programs::start(&tables) else { return };
    let met = RefCell::new(BTreeMap::<Option<Reason>, u64>::new());
    let port_of_client = RefCell::new(1_024u16);
    let outcome =
        stories::runner(LEAVING_SEGMENTS, 0).run(&leaving(), |(v6, port, flags, options, damage, cut)| {
            // Each client port is used once, so each reset is the connection's first.
            let number = port_of_client.replace_with(|port| *port + 1);
            let (src, dst) = (service(v6, port), client(v6, number));
            let data = vec![b'x'; 5];
            let tcp = Tcp { sequence: 1, acknowledgment: 2, flags, options: &options, data: &data };
            let mut before = tcp.between(src, dst);
            if let Some(byte) = damage.and_then(|(at, to)| Some((before.get_mut(at)?, to))) {
                *byte.0 = byte.1;
            }
            before.truncate(cut);
            let Some(ran) = c.run(Hook::Egress, &before)? else { return Ok(()) };
            let leaving = Leaving::read(&tables, &before);
            let mut after = before.clone();
            let clamped = leaving.and_then(|leaving| leaving.clamp(&mut after));
            let held = leaving
                .is_some_and(|leaving| leaving.is_held(true, || false))
                .then_some(Reason::ResetDelayed);
            let counts: Counts = clamped.into_iter().chain(held).map(|reason| (reason, 1)).collect();
            prop_assert_eq!(&ran.counted, &counts, "{:?}: {:02x?}", leaving, before);
            prop_assert_eq!(ran.goes_on, held.is_none());
            prop_assert!(held.is_some() || ran.frame == after, "core {after:02x?}\nC    {:02x?}", ran.frame);
            *met.borrow_mut().entry(clamped.or(held)).or_default() += 1;
            Ok(())
        });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let met = met.into_inner();
    assert!(met.len() == 3 && met.values().all(|count| *count > 100), "{met:?}");
}
