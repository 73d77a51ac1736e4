//! Complete messages: queries and their answers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::net::{IpAddr, Ipv4Addr};
use std::string::{String, ToString};

use proptest::prelude::*;

use super::*;
use crate::path::seed::Seed;
use crate::pool::policy;
use crate::pool::report::Report;
use crate::pool::shares::{MemberShare, PoolMember, shares};
use crate::pool::signals::Signals;

mod standards;

const KEY: Seed = Seed(1, 2);
const UPPER: &[u8] = b"\x03WWW\x07Example\x03COM\x00";
const LOUD: &[u8] = b"\x02NS\x04Loud\x07Example\x03COM\x00";

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn data(text: &str) -> Vec<u8> {
    match text.parse() {
        Ok(IpAddr::V4(address)) => address.octets().to_vec(),
        Ok(IpAddr::V6(address)) => address.octets().to_vec(),
        Err(_) => name(text).as_wire().to_vec(),
    }
}

fn soa() -> Vec<u8> {
    let numbers = [7u32, 3600, 600, 604_800, 60].map(u32::to_be_bytes).concat();
    [name("ns.example.com").as_wire(), name("host.example.com").as_wire(), &numbers].concat()
}

fn records(more: &[(&str, u16, &str)]) -> Vec<(Name, u16, u32, Vec<u8>)> {
    let all = [("example.com", rtype::NS, "ns.example.com"), ("ns.example.com", rtype::A, "192.0.2.53")];
    let all = all.iter().chain(more).map(|(owner, rtype, text)| (name(owner), *rtype, 300, data(text)));
    core::iter::once((name("example.com"), rtype::SOA, 300, soa())).chain(all).collect()
}

fn zone() -> Zone {
    let more = [
        ("a.b.example.com", rtype::A, "192.0.2.1"),
        ("*.wild.example.com", rtype::A, "192.0.2.77"),
        ("alias.example.com", rtype::CNAME, "www.example.com"),
        ("away.example.com", rtype::CNAME, "example.org"),
        ("one.example.com", rtype::CNAME, "two.example.com"),
        ("two.example.com", rtype::CNAME, "one.example.com"),
        ("sub.example.com", rtype::NS, "ns.sub.example.com"),
        ("ns.sub.example.com", rtype::A, "192.0.2.54"),
        ("many.example.com", rtype::A, "192.0.2.2"),
        ("many.example.com", rtype::A, "192.0.2.3"),
        ("ns.loud.example.com", rtype::A, "192.0.2.55"),
    ];
    // Record data keeps the letter case of the zone file.
    let loud = [
        (name("upper.example.com"), rtype::CNAME, 300, UPPER.to_vec()),
        (name("loud.example.com"), rtype::NS, 300, LOUD.to_vec()),
    ];
    let all = records(&more).into_iter().chain(loud);
    let mut zone = Zone::new(name("example.com"), all).unwrap();
    zone.balance(&name("www.example.com"), 0).unwrap();
    zone
}

fn settings(draw: Selection, none_alive: EmptyPool) -> NameSettings {
    NameSettings { name: name("www.example.com"), ttl_s: 5, top: 1, draw, empty_pool: none_alive }
}

fn address(text: &str, share: u16, lives: bool) -> Address {
    Address { address: text.parse().unwrap(), share, healthy: lives, counts: Arc::default() }
}

fn names_with(balanced: AddressPool) -> Catalog {
    Catalog::new([Arc::new(zone())], vec![Arc::new(balanced)], KEY, "ns1")
}

fn names() -> Catalog {
    let addresses = [address("192.0.2.11", 1, true), address("2001:db8::11", 1, true)];
    names_with(AddressPool::new(settings(Selection::RoundRobin, EmptyPool::All), &addresses, [0, 0]))
}

/// Returns a query. If there are `options`, the query has EDNS.
fn query(owner: &str, rtype: u16, options: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(options.is_some())];
    bytes.extend(name(owner).as_wire());
    bytes.extend([rtype.to_be_bytes(), [0, 1]].concat());
    if let Some(options) = options {
        bytes.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0]);
        bytes.extend((options.len() as u16).to_be_bytes());
        bytes.extend(options);
    }
    bytes
}

fn request(bytes: &[u8], turn: u64) -> DnsRequest<'_> {
    let client = "203.0.113.7".parse().unwrap();
    DnsRequest { bytes, client, transport: Transport::Udp, now_s: 1_000_000, now_ms: 5_000, turn }
}

fn answer(names: &Catalog, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 65_535];
    let answered = names.answer(&request(bytes, 0), None, &mut out).unwrap();
    out.truncate(answered.len);
    out
}

/// Returns the code of an answer, the authoritative flag, the number of records in each section,
/// and the addresses.
fn read(answer: &[u8]) -> (u8, bool, [u8; 3], Vec<String>) {
    let text = |octets: &[u8]| octets.iter().map(ToString::to_string).collect::<Vec<_>>().join(".");
    let addresses =
        answer.windows(14).filter(|window| window[..4] == [0, 1, 0, 1] && window[8..10] == [0, 4]);
    let addresses = addresses.map(|window| text(&window[10..14])).collect();
    (answer[3] & 15, answer[2] & 4 != 0, [answer[7], answer[9], answer[11]], addresses)
}

#[test]
fn questions_have_the_answers_that_the_standards_want() {
    let names = names();
    let a = |text: &str| vec![String::from(text)];
    for (owner, rtype, code, is_authoritative, counts, addresses) in [
        ("www.example.com", rtype::A, 0, true, [1, 0, 0], a("192.0.2.11")),
        ("www.example.com", rtype::AAAA, 0, true, [1, 0, 0], vec![]),
        ("www.example.com", rtype::NS, 0, true, [0, 1, 0], vec![]),
        ("nobody.example.com", rtype::A, 3, true, [0, 1, 0], vec![]),
        // An empty non-terminal: only names below it have records.
        ("b.example.com", rtype::A, 0, true, [0, 1, 0], vec![]),
        ("x.y.wild.example.com", rtype::A, 0, true, [1, 0, 0], a("192.0.2.77")),
        ("wild.example.com", rtype::A, 0, true, [0, 1, 0], vec![]),
        ("alias.example.com", rtype::A, 0, true, [2, 0, 0], a("192.0.2.11")),
        ("alias.example.com", rtype::CNAME, 0, true, [1, 0, 0], vec![]),
        ("away.example.com", rtype::A, 0, true, [1, 0, 0], vec![]),
        ("one.example.com", rtype::A, 2, false, [0, 0, 0], vec![]),
        ("h.sub.example.com", rtype::A, 0, false, [0, 1, 1], a("192.0.2.54")),
        ("sub.example.com", rtype::DS, 0, true, [0, 1, 0], vec![]),
        ("example.com", rtype::ANY, 0, true, [1, 0, 0], vec![]),
        ("alias.example.com", rtype::ANY, 0, true, [1, 0, 0], vec![]),
        ("UPPER.Example.Com", rtype::A, 0, true, [2, 0, 0], a("192.0.2.11")),
        ("h.loud.example.com", rtype::A, 0, false, [0, 1, 1], a("192.0.2.55")),
        ("example.com", rtype::AXFR, 5, false, [0, 0, 0], vec![]),
        ("example.org", rtype::A, 5, false, [0, 0, 0], vec![]),
        ("com", rtype::A, 5, false, [0, 0, 0], vec![]),
    ] {
        let answer = answer(&names, &query(owner, rtype, None));
        assert_eq!(read(&answer), (code, is_authoritative, counts, addresses), "{owner} {rtype}");
        assert_eq!(&answer[..2], &[0xab, 0xcd], "the client's own number");
    }
}

#[test]
fn non_query_is_refused_or_unanswered() {
    let names = names();
    let good = query("www.example.com", rtype::A, Some(&[]));
    let mut out = vec![0; 65_535];
    for len in 0..good.len() {
        let answered = names.answer(&request(&good[..len], 0), None, &mut out);
        match len {
            0..12 => assert_eq!(answered, None, "{len}"),
            _ => assert_eq!(answered.unwrap().outcome.rcode, Rcode::FormErr, "{len}"),
        }
    }
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    let mut code =
        |bytes: &[u8]| names.answer(&request(bytes, 0), None, &mut out).map(|done| done.outcome.rcode);
    assert_eq!(code(&changed(2, 0x81)), None, "an answer");
    assert_eq!(code(&changed(2, 0x29)), Some(Rcode::NotImp), "an update");
    assert_eq!(code(&changed(5, 2)), Some(Rcode::FormErr), "two questions");
    assert_eq!(code(&changed(7, 1)), Some(Rcode::FormErr), "an answer's record");
    assert_eq!(code(&changed(12, 0xc0)), Some(Rcode::FormErr), "a pointer where a label belongs");
    assert_eq!(code(&[&good[..], &[0]].concat()), Some(Rcode::FormErr), "more than a message");
    let twice = [&changed(11, 2)[..], &good[good.len() - 11..]].concat();
    assert_eq!(code(&twice), Some(Rcode::FormErr), "EDNS twice");
    let chaos = good.len() - 12;
    assert_eq!(code(&changed(chaos, 3)), Some(Rcode::Refused), "another class");
    assert_eq!(code(&changed(good.len() - 5, 1)), Some(Rcode::BadVers), "another version of EDNS");
}

#[test]
fn malformed_edns_options_are_refused() {
    let names = names();
    let code = |options: &[u8]| answer(&names, &query("www.example.com", rtype::A, Some(options)))[3] & 15;
    let subnet = |bytes: &[u8]| [&[0, 8, 0, bytes.len() as u8], bytes].concat();
    assert_eq!(code(&subnet(&[0, 1, 24, 0, 203, 0, 113])), 0);
    assert_eq!(code(&subnet(&[0, 1, 0, 0])), 0);
    assert_eq!(code(&subnet(&[0, 0, 0, 0])), 0);
    assert_eq!(code(&subnet(&[0, 2, 56, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0])), 0);
    for wrong in [
        &[0, 1, 24, 0, 203, 0, 113, 7][..],
        &[0, 1, 24, 0, 203, 0],
        &[0, 1, 23, 0, 203, 0, 113],
        &[0, 1, 33, 0, 203, 0, 113, 7, 1],
        &[0, 1, 24, 24, 203, 0, 113],
        &[0, 3, 8, 0, 1],
        &[0, 0, 8, 0, 1],
        &[1, 1, 8, 0, 1],
        &[0, 1],
    ] {
        assert_eq!(code(&subnet(wrong)), 1, "{wrong:?}");
    }
    assert_eq!(code(&[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]), 0);
    assert_eq!(code(&[0, 10, 0, 7, 1, 2, 3, 4, 5, 6, 7]), 1, "a cookie that is too short");
    assert_eq!(code(&[0, 10, 0, 9]), 1, "an option that is cut off");
    let identified = answer(&names, &query("www.example.com", rtype::A, Some(&[0, 3, 0, 0])));
    assert!(identified.ends_with(b"\0\x03\0\x03ns1"));
}

#[test]
fn dead_server_is_omitted_and_dead_pool_follows_empty_pool_setting() {
    let dead = [address("192.0.2.11", 1, false), address("192.0.2.12", 1, false)];
    let one_lives = [address("192.0.2.11", 1, false), address("192.0.2.12", 1, true)];
    let resolve = |none_alive: EmptyPool, addresses: &[Address]| {
        let names =
            names_with(AddressPool::new(settings(Selection::RoundRobin, none_alive), addresses, [0, 0]));
        let answers = (0..4).map(|_| read(&answer(&names, &query("www.example.com", rtype::A, None))));
        answers.map(|(code, _, _, addresses)| (code, addresses)).collect::<BTreeSet<_>>()
    };
    let given = |all: &[&str]| all.iter().map(|one| (0, vec![(*one).to_string()])).collect::<BTreeSet<_>>();
    assert_eq!(resolve(EmptyPool::All, &one_lives), given(&["192.0.2.12"]));
    assert_eq!(resolve(EmptyPool::All, &dead), given(&["192.0.2.11", "192.0.2.12"]));
    assert_eq!(resolve(EmptyPool::Fixed(vec!["192.0.2.99".parse().unwrap()]), &dead), given(&["192.0.2.99"]));
    assert_eq!(resolve(EmptyPool::Refuse, &dead), BTreeSet::from([(5, vec![])]));
    assert_eq!(resolve(EmptyPool::Refuse, &one_lives), given(&["192.0.2.12"]));
}

#[test]
fn addresses_are_answered_by_share() {
    let addresses =
        [address("192.0.2.11", 3, true), address("192.0.2.12", 1, true), address("192.0.2.13", 0, true)];
    let count = |draw: Selection| {
        let names = names_with(AddressPool::new(settings(draw, EmptyPool::All), &addresses, [0, 0]));
        let before: Vec<u64> = addresses.iter().map(|one| one.counts.given()).collect();
        let (bytes, mut out) = (query("www.example.com", rtype::A, None), vec![0; 512]);
        for turn in 0..4_000 {
            names.answer(&request(&bytes, turn), None, &mut out).unwrap();
        }
        let given = addresses.iter().zip(before).map(|(one, before)| one.counts.given() - before);
        given.collect::<Vec<_>>()
    };
    assert_eq!(count(Selection::RoundRobin), [3_000, 1_000, 0]);
    assert_eq!(count(Selection::Failover), [4_000, 0, 0]);
    let random = count(Selection::Random);
    // The bounds are twelve standard deviations away, and the seed is fixed.
    assert!((2_670..3_330).contains(&random[0]) && random[0] + random[1] == 4_000, "{random:?}");
    let by_client = count(Selection::SourceHash);
    assert!(by_client.contains(&4_000), "one network keeps to one server: {by_client:?}");
}

#[test]
fn the_next_ones_stand_behind_the_first() {
    let all =
        [address("192.0.2.11", 9, true), address("192.0.2.12", 1, true), address("192.0.2.13", 1, true)];
    for draw in [Selection::RoundRobin, Selection::Random, Selection::SourceHash, Selection::Failover] {
        let wanted = NameSettings { top: 2, ..settings(draw, EmptyPool::All) };
        let names = names_with(AddressPool::new(wanted, &all, [0, 0]));
        for _ in 0..20 {
            let (_, _, _, addresses) = read(&answer(&names, &query("www.example.com", rtype::A, None)));
            assert_eq!(addresses.iter().collect::<BTreeSet<_>>().len(), 2, "{draw:?} {addresses:?}");
        }
    }
}

#[test]
fn answer_states_client_subnet_scope() {
    let scope = |draw: Selection| {
        let names = names_with(AddressPool::new(
            settings(draw, EmptyPool::All),
            &[address("192.0.2.11", 1, true)],
            [0, 0],
        ));
        let option = [0, 8, 0, 7, 0, 1, 24, 0, 203, 0, 113];
        let answer = answer(&names, &query("www.example.com", rtype::A, Some(&option)));
        let at = answer.windows(4).position(|window| window == [0, 8, 0, 7]).unwrap();
        (answer[at + 6], answer[at + 7])
    };
    assert_eq!(scope(Selection::SourceHash), (24, 24));
    assert_eq!(scope(Selection::Random), (24, 0));
}

#[test]
fn limited_network_gets_no_amplification() {
    let names = names();
    let mut allowance =
        RateBucket::new(Limit { per_second: 10, burst: 5, ..Limit::default() }, KEY, Arc::default());
    let bytes = query("www.example.com", rtype::A, Some(&[]));
    let mut out = vec![0; 1_232];
    let mut resolve =
        |dns_request: DnsRequest<'_>| names.answer(&dns_request, Some(&mut allowance), &mut out).unwrap();
    for turn in 0..20 {
        let answered = resolve(request(&bytes, turn));
        assert_eq!(answered.outcome.limited, turn >= 5, "{turn}");
        assert_eq!(answered.outcome.truncated, turn >= 5, "it may ask by TCP");
        assert!(!answered.outcome.limited || answered.len <= bytes.len());
    }
    let elsewhere = DnsRequest { client: "198.51.100.7".parse().unwrap(), ..request(&bytes, 0) };
    assert!(!resolve(elsewhere).outcome.limited, "others have theirs");
    let later = DnsRequest { now_ms: 5_200, ..request(&bytes, 0) };
    assert_eq!(
        [resolve(later), resolve(later), resolve(later)].map(|done| done.outcome.limited),
        [false, false, true]
    );
}

#[test]
fn networks_without_number_get_no_more_bytes_together_than_they_sent() {
    let names = names();
    let limit = Limit { per_second: 200, burst: 1_000, total_per_second: 50 };
    let total: Arc<SharedBudget> = Arc::default();
    // Two threads, each with its own buckets for networks.
    let mut allowances = [0, 1].map(|_| RateBucket::new(limit, KEY, Arc::clone(&total)));
    let bytes = query("www.example.com", rtype::A, Some(&[]));
    let (mut out, mut whole, mut truncated, mut beyond) = (vec![0; 1_232], 0, 0, 0);
    for turn in 0..10_000_u32 {
        let client = IpAddr::V4(Ipv4Addr::from_bits(turn << 8));
        let dns_request = DnsRequest { client, now_ms: 5_000 + turn / 10, ..request(&bytes, turn.into()) };
        let answered = names.answer(&dns_request, allowances.get_mut(turn as usize % 2), &mut out);
        match answered {
            Some(answered) if !answered.outcome.limited => whole += 1,
            Some(answered) => {
                assert!(answered.len <= bytes.len() && answered.outcome.truncated);
                (truncated, beyond) = (truncated + 1, beyond + 1);
            }
            None => beyond += 1,
        }
    }
    assert!((99..=100).contains(&whole), "50 at once, and as many in a second: {whole}");
    assert!((beyond * 2 / 5..beyond * 3 / 5).contains(&truncated), "{truncated} of {beyond}");
}

#[test]
fn client_with_cookie_is_not_limited() {
    let names = names();
    let mut allowance =
        RateBucket::new(Limit { per_second: 1, burst: 1, ..Limit::default() }, KEY, Arc::default());
    let first = query("www.example.com", rtype::A, Some(&[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]));
    let answer = answer(&names, &first);
    let at = answer.windows(4).position(|window| window == [0, 10, 0, 24]).unwrap();
    let cookie = answer[at..at + 28].to_vec();
    let mut limited = |cookie: &[u8], change: fn(&mut DnsRequest<'_>)| {
        let bytes = query("www.example.com", rtype::A, Some(cookie));
        let (mut dns_request, mut out) = (request(&bytes, 0), vec![0; 1_232]);
        change(&mut dns_request);
        names.answer(&dns_request, Some(&mut allowance), &mut out).unwrap().outcome.limited
    };
    limited(&[], |_| ());
    assert!(!limited(&cookie, |_| ()));
    assert!(!limited(&cookie, |dns_request| dns_request.now_s += 3_600));
    assert!(limited(&cookie, |dns_request| dns_request.now_s += 3_601), "it is old");
    assert!(
        limited(&cookie, |dns_request| dns_request.client = "203.0.113.8".parse().unwrap()),
        "it is another's"
    );
    let forged = [&cookie[..27], &[cookie[27] ^ 1]].concat();
    assert!(limited(&forged, |_| ()), "it is no cookie of ours");
}

#[test]
fn zones_that_do_not_hold_together_are_refused_with_all_that_is_wrong() {
    let refused = |more: &[(&str, u16, &str)]| Zone::new(name("example.com"), records(more)).unwrap_err();
    let text = |errors: Vec<RecordError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let errors = text(refused(&[
        ("example.org", rtype::A, "192.0.2.1"),
        ("x.example.com", rtype::CNAME, "y.example.com"),
        ("x.example.com", rtype::A, "192.0.2.1"),
        ("d.example.com", rtype::DNAME, "example.org"),
        ("s.example.com", rtype::RRSIG, "192.0.2.1"),
        ("t.example.com", rtype::DNSKEY, "192.0.2.1"),
    ]));
    assert_eq!(
        errors,
        [
            "example.org is not in zone example.com",
            "d.example.com has a DNAME record, which Evener does not support",
            "s.example.com has DNSSEC records, which Evener does not support: use the unsigned zone",
            "x.example.com has a CNAME record and other records",
        ]
    );
    let empty = text(Zone::new(name("example.com"), []).unwrap_err());
    assert_eq!(empty.len(), 2, "{empty:?}");
    let mut zone = zone();
    for (balanced, why) in [
        ("www.example.org", "is not in zone"),
        ("many.example.com", "has addresses in the zone file"),
        ("h.sub.example.com", "because the zone file delegates"),
        ("alias.example.com", "has a CNAME record"),
    ] {
        let error = zone.balance(&name(balanced), 1).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(zone.serial(), Some(7));
}

#[test]
fn names_are_read_as_people_write_them() {
    for good in [
        "example.com",
        "example.com.",
        "EXAMPLE.com",
        "_dns.x",
        "*.example.com",
        ".",
        "a.*.b",
        "0/25.2.0.192.in-addr.arpa",
        r"first\.last.example.com",
        r"a\032b\(c\000\255\;.example.com",
    ] {
        let read = name(good);
        assert_eq!(read, Name::from_wire(read.as_wire()).unwrap());
        assert_eq!(read, name(&read.to_string()));
    }
    let long = format!("{}.com", "x".repeat(64));
    let many = "x.".repeat(128);
    for wrong in ["a..b", ".a", "..", "a b", "ä.de", "a;b", "a\\", r"a\256", &long, &many] {
        assert!(Name::parse(wrong).is_err(), "{wrong}");
    }
    assert_eq!(name(r"A\066c.\*"), name(r"abc.*"));
}

/// Returns the data of an HTTPS record (RFC 9460, section 2.2), with parameters by number.
fn binding(params: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0, 1, 0];
    for (key, value) in params {
        bytes.extend(key.to_be_bytes());
        bytes.extend((value.len() as u16).to_be_bytes());
        bytes.extend_from_slice(value);
    }
    bytes
}

#[test]
fn svcb_hints_match_selected_addresses() {
    let (one, two, six) = ("192.0.2.11", "192.0.2.12", "2001:db8::11");
    let bound = |addresses: &[Address], none_alive: EmptyPool| {
        let mut zone = zone();
        let stale = binding(&[(1, b"\x02h2"), (4, &[192, 0, 2, 99]), (5, b"ech")]);
        zone.add(&name("www.example.com"), rtype::HTTPS, 300, stale);
        let settings = NameSettings { top: 2, ..settings(Selection::RoundRobin, none_alive) };
        let names = Catalog::new(
            [Arc::new(zone)],
            vec![Arc::new(AddressPool::new(settings, addresses, [0, 0]))],
            KEY,
            "",
        );
        let message = answer(&names, &query("www.example.com", rtype::HTTPS, None));
        let given = addresses.iter().map(|one| one.counts.given()).sum::<u64>();
        assert_eq!(given, 0, "a hint is no answer");
        message
    };
    let both: Vec<u8> = [data(one), data(two)].concat();
    for (addresses, params) in [
        (
            vec![address(one, 1, true), address(two, 1, true), address(six, 1, true)],
            binding(&[(1, b"\x02h2"), (4, &both), (5, b"ech"), (6, &data(six))]),
        ),
        (
            vec![address(one, 1, false), address(two, 1, true), address(six, 1, false)],
            binding(&[(1, b"\x02h2"), (4, &data(two)), (5, b"ech")]),
        ),
        (vec![address(six, 1, true)], binding(&[(1, b"\x02h2"), (5, b"ech"), (6, &data(six))])),
    ] {
        let message = bound(&addresses, EmptyPool::All);
        let record = [&[0, 65, 0, 1, 0, 0, 0, 5][..], &(params.len() as u16).to_be_bytes(), &params].concat();
        assert!(message.ends_with(&record), "{message:?}");
    }
    assert_eq!(bound(&[address(one, 1, false)], EmptyPool::Refuse)[3] & 15, 5);
    let names = names();
    let none = read(&answer(&names, &query("www.example.com", rtype::HTTPS, None)));
    assert_eq!((none.0, none.2), (0, [0, 1, 0]), "without a record there is none");
}

/// A client that queries both address types reaches every server in turn.
#[test]
fn turns_of_one_version_are_not_the_others() {
    let addresses =
        ["192.0.2.11", "192.0.2.12", "2001:db8::11", "2001:db8::12"].map(|text| address(text, 1, true));
    let names =
        names_with(AddressPool::new(settings(Selection::RoundRobin, EmptyPool::All), &addresses, [0, 0]));
    for _ in 0..10 {
        for rtype in [rtype::A, rtype::AAAA] {
            answer(&names, &query("www.example.com", rtype, None));
        }
    }
    assert_eq!(addresses.map(|one| one.counts.given()), [5, 5, 5, 5]);
}

#[test]
fn shares_fall_as_loads_rise() {
    let delay = |us: Option<u64>| PoolMember {
        weight: 10,
        tenths: 10,
        signals: Signals { report: Report { delay_us: us, ..Report::default() }, ..Signals::default() },
    };
    let weighing = policy::for_packets("expected-delay").unwrap().weighing;
    let known = [delay(Some(100_000)), delay(Some(200_000)), delay(None), delay(Some(80_000_000))];
    let shared: Vec<_> =
        shares(weighing, u64::MAX, &known).iter().map(|one| (one.share, one.is_known)).collect();
    assert_eq!(shared, [(1_000, true), (500, true), (500, false), (30, true)]);
    let starting = PoolMember { tenths: 3, ..delay(None) };
    assert_eq!(shares(None, 150, &[delay(None), starting]).map_shares(), [1_000, 300]);
    let weights = [PoolMember { weight: 7, ..delay(None) }, delay(None)];
    assert_eq!(shares(None, 150, &weights).map_shares(), [7, 10]);
    let endless = [delay(Some(u64::MAX)), delay(Some(u64::MAX)), delay(Some(u64::MAX / 2))];
    assert_eq!(shares(weighing, u64::MAX, &endless).map_shares(), [499, 499, 1_000]);
}

/// A report increases a server's share by at most half: with two servers, with four servers, and
/// with two servers of different weight.
#[test]
fn report_gain_is_capped() {
    let uses = |weight, permille| PoolMember {
        weight,
        tenths: 10,
        signals: Signals {
            report: Report { utilisation_permille: Some(permille), ..Report::default() },
            latency_us: Some(permille),
            ..Signals::default()
        },
    };
    let of = |policy, gain, servers: &[PoolMember]| {
        let shared = shares(policy::for_packets(policy).unwrap().weighing, gain, servers).map_shares();
        let all: u32 = shared.iter().copied().map(u32::from).sum();
        u32::from(shared[0]) * 1_000 / all
    };
    let idle = |weight, others: &[u16]| -> Vec<PoolMember> {
        core::iter::once(uses(weight, 0)).chain(others.iter().map(|weight| uses(*weight, 100_000))).collect()
    };
    for (weight, others, most) in
        [(1, &[1][..], 750), (1, &[1, 1, 1], 375), (1, &[3], 375), (2, &[1, 1, 1, 1], 500), (1, &[1; 9], 150)]
    {
        let gained = of("utilisation", 150, &idle(weight, others));
        assert!((most - 30..=most).contains(&gained), "{gained} of 1000, {most} at the most");
        assert!(of("utilisation", 3_200, &idle(weight, others)) > most + 30);
    }
    assert!(
        of("peak-ewma", 150, &[uses(1, 1_000), uses(1, 9_000)]) > 800,
        "what Evener measured is believed"
    );
}

trait MapShares {
    fn map_shares(&self) -> Vec<u16>;
}

impl MapShares for Vec<MemberShare> {
    fn map_shares(&self) -> Vec<u16> {
        self.iter().map(|one| one.share).collect()
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), turn in any::<u64>()) {
        let mut out = vec![0; 65_535];
        let _ = names().answer(&request(&bytes, turn), None, &mut out);
    }

    #[test]
    fn mutated_query_never_panics_and_answer_fits(
        at in 0usize..80, to in any::<u8>(), room in 12usize..1_300, transport in any::<bool>(),
    ) {
        let option = [0, 8, 0, 7, 0, 1, 24, 0, 203, 0, 113, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 3, 0, 0];
        let mut bytes = query("many.example.com", rtype::A, Some(&option));
        let len = bytes.len();
        bytes[at % len] = to;
        let transport = if transport { Transport::Tcp } else { Transport::Udp };
        let mut out = vec![0; room];
        let answered = names().answer(&DnsRequest { transport, ..request(&bytes, 0) }, None, &mut out);
        if let Some(answered) = answered {
            prop_assert!(answered.len <= room && out[2] & 0x80 != 0);
            prop_assert!(transport == Transport::Tcp || answered.len <= UDP_MAX);
        }
    }

    #[test]
    fn answer_is_complete_or_truncated(count in 1u8..120, len in 0u16..5_000) {
        let many: Vec<_> = (0..count).map(|last| (name("x.example.com"), rtype::A, 300, vec![192, 0, 2, last])).collect();
        let zone = Zone::new(name("example.com"), records(&[]).into_iter().chain(many)).unwrap();
        let names = Catalog::new([Arc::new(zone)], Vec::new(), KEY, "");
        let mut bytes = query("x.example.com", rtype::A, Some(&[]));
        let at = bytes.len() - 8;
        bytes[at..at + 2].copy_from_slice(&len.to_be_bytes());
        let answer = answer(&names, &bytes);
        let is_truncated = answer[2] & 2 != 0;
        prop_assert!(answer.len() <= usize::from(len).clamp(512, UDP_MAX));
        prop_assert_eq!(answer[7], if is_truncated { 0 } else { count });
        let whole = 12 + 19 + usize::from(count) * 16 + 11;
        prop_assert!(!is_truncated || whole + 200 > usize::from(len).clamp(512, UDP_MAX), "there was room");
    }
}

#[test]
fn turns_go_on_when_servers_change() {
    let addresses = [address("192.0.2.11", 1, true), address("192.0.2.12", 1, true)];
    let mut turn = [0, 0];
    let mut given = BTreeMap::new();
    for _ in 0..10 {
        let names =
            names_with(AddressPool::new(settings(Selection::RoundRobin, EmptyPool::All), &addresses, turn));
        let (_, _, _, all) = read(&answer(&names, &query("www.example.com", rtype::A, None)));
        *given.entry(all).or_insert(0) += 1;
        turn = names.balanced().get(0).unwrap().turns();
    }
    assert_eq!(given.into_values().collect::<Vec<_>>(), [5, 5]);
}
