//! One query, answered for a small zone, and what holds of every answer.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use evener_core::dns::{
    Address, AddressPool, Catalog, DnsRequest, EmptyPool, Limit, Name, NameSettings, RateBucket, Selection,
    Transport, UDP_MAX, Zone, rtype,
};
use evener_core::path::seed::Seed;

const KEY: Seed = Seed(1, 2);
const HEADER: usize = 12;

static NAMES: LazyLock<Catalog> = LazyLock::new(names);

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn names() -> Catalog {
    let apex = name("example.com");
    let times = [7u32, 3_600, 600, 604_800, 60].map(u32::to_be_bytes).concat();
    let soa = [name("ns.example.com").as_wire(), name("host.example.com").as_wire(), &times].concat();
    let address = |last: u8| vec![192, 0, 2, last];
    let text = |len: u8| [vec![len], vec![b'x'; usize::from(len)]].concat();
    let mut records = vec![
        (apex.clone(), rtype::SOA, 300, soa),
        (apex.clone(), rtype::NS, 300, name("ns.example.com").as_wire().to_vec()),
        (name("ns.example.com"), rtype::A, 300, address(53)),
        (name("*.wild.example.com"), rtype::A, 300, address(77)),
        (name("alias.example.com"), rtype::CNAME, 300, name("www.example.com").as_wire().to_vec()),
        (name("one.example.com"), rtype::CNAME, 300, name("two.example.com").as_wire().to_vec()),
        (name("two.example.com"), rtype::CNAME, 300, name("one.example.com").as_wire().to_vec()),
        (name("sub.example.com"), rtype::NS, 300, name("ns.sub.example.com").as_wire().to_vec()),
        (name("ns.sub.example.com"), rtype::A, 300, address(54)),
    ];
    records.extend((0..20).map(|number| (name("many.example.com"), 16, 300, text(100 + number))));
    let mut zone = Zone::new(apex, records).unwrap();
    let www = name("www.example.com");
    zone.balance(&www, 0).unwrap();
    let settings = NameSettings {
        name: www,
        ttl_s: 5,
        top: 3,
        draw: Selection::SourceHash,
        empty_pool: EmptyPool::Refuse,
    };
    let one = |address: &str, lives| Address {
        address: address.parse().unwrap(),
        share: 1,
        healthy: lives,
        counts: Arc::default(),
    };
    let addresses = [one("192.0.2.11", true), one("192.0.2.12", true), one("2001:db8::13", false)];
    Catalog::new([Arc::new(zone)], vec![Arc::new(AddressPool::new(settings, &addresses, [0, 0]))], KEY, "lb1")
}

/// Behind a name. A pointer leads back, so every reader comes to an end.
fn behind_name(answer: &[u8], mut at: usize) -> usize {
    loop {
        match usize::from(answer[at]) {
            0 => return at + 1,
            high @ 0xc0.. => {
                let to = (high & 0x3f) << 8 | usize::from(answer[at + 1]);
                assert!((HEADER..at).contains(&to), "a pointer at {at} to {to}");
                return at + 2;
            }
            len => {
                assert!(len < 64, "a label of {len} octets");
                at += 1 + len;
            }
        }
    }
}

fn number(answer: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([answer[at], answer[at + 1]]))
}

/// Answers what is behind the first octet, which says how it comes, and tells what came of it in a
/// word.
pub fn answer_and_check(bytes: &[u8]) -> String {
    let Some((how, query)) = bytes.split_first() else { return "nothing".to_owned() };
    let transport = if how & 1 == 0 { Transport::Udp } else { Transport::Tcp };
    let client: IpAddr = if how & 2 == 0 { [198, 51, 100, 7].into() } else { [0x20; 16].into() };
    // One answer, of which the first query takes the only one.
    let limit = Limit { per_second: 1, burst: 1, ..Limit::default() };
    let mut allowance = RateBucket::new(limit, KEY, Arc::default());
    let is_limited = how & 4 != 0 && allowance.spend(client, 1).is_ok();
    let limit =
        (how & 4 == 0 || is_limited).then_some(&mut allowance).filter(|_| transport == Transport::Udp);
    let request =
        DnsRequest { bytes: query, client, transport, now_s: 1_000, now_ms: 1, turn: u64::from(*how) };
    let mut out = vec![0xaa; 65_535];
    let Some(answered) = NAMES.answer(&request, limit, &mut out) else { return "unanswered".to_owned() };
    let answer = &out[..answered.len];
    assert!(query.len() >= HEADER && query[2] & 0x80 == 0, "an answer to what is no query");
    assert!(answer[..2] == query[..2] && answer[2] & 0x80 != 0);
    assert!(transport == Transport::Tcp || answer.len() <= UDP_MAX);
    assert!(!answered.outcome.limited || answer.len() <= query.len(), "more than was sent");
    let mut at = HEADER;
    for _ in 0..number(answer, 4) {
        at = behind_name(answer, at) + 4;
    }
    for _ in 0..number(answer, 6) + number(answer, 8) + number(answer, 10) {
        at = behind_name(answer, at) + 10;
        at += number(answer, at - 2);
    }
    assert_eq!(at, answer.len(), "it ends where its records do");
    let also = match answered.outcome {
        outcome if outcome.limited => ", limited",
        outcome if outcome.truncated => ", truncated",
        _ => "",
    };
    format!("{}{also}", answered.outcome.rcode.name())
}
