//! Behaviour that standards require: letter case, CNAME chains, compression, signatures and client
//! subnets.

use super::*;

#[test]
fn names_keep_the_letters_of_the_file_and_of_the_question() {
    let names = names();
    let mut query_bytes = query("upper.example.com", rtype::A, None);
    query_bytes[12..]
        .iter_mut()
        .filter(|byte| byte.is_ascii_lowercase())
        .step_by(2)
        .for_each(u8::make_ascii_uppercase);
    let answer = answer(&names, &query_bytes);
    assert_eq!(answer[12..12 + 19], query_bytes[12..12 + 19], "the question comes back as it was");
    assert!(answer.windows(UPPER.len()).any(|part| part == UPPER), "{answer:02x?}");
}

#[test]
fn a_chain_of_names_is_followed_to_its_end() {
    let link = |number: usize| format!("c{number}.example.com");
    let chain = |count: usize| {
        let target = |number| if number == count { "ns.example.com".into() } else { link(number) };
        let links = (0..count).map(|number| {
            let target = name(&target(number + 1)).as_wire().to_vec();
            (name(&link(number)), rtype::CNAME, 300, target)
        });
        let zone = Zone::new(name("example.com"), records(&[]).into_iter().chain(links)).unwrap();
        let names = Catalog::new([Arc::new(zone)], vec![], KEY, "");
        let bytes = query("c0.example.com", rtype::A, None);
        let mut out = vec![0; 65_535];
        let dns_request = DnsRequest { transport: Transport::Tcp, ..request(&bytes, 0) };
        let answered = names.answer(&dns_request, None, &mut out).unwrap();
        read(&out[..answered.len])
    };
    assert_eq!(chain(30), (0, true, [31, 0, 0], vec!["192.0.2.53".into()]));
    assert_eq!(chain(64), (0, true, [65, 0, 0], vec!["192.0.2.53".into()]));
    assert_eq!(chain(90), (0, true, [65, 0, 0], vec![]), "its client goes on");
}

#[test]
fn cname_loop_is_detected_from_any_entry() {
    for (before, around) in (0..6).flat_map(|before| (1..14).map(move |around| (before, around))) {
        let count = before + around;
        let links = (0..count).map(|number| {
            let next = if number + 1 == count { before } else { number + 1 };
            let target = name(&format!("c{next}.example.com")).as_wire().to_vec();
            (name(&format!("c{number}.example.com")), rtype::CNAME, 300, target)
        });
        let zone = Zone::new(name("example.com"), records(&[]).into_iter().chain(links)).unwrap();
        let names = Catalog::new([Arc::new(zone)], vec![], KEY, "");
        let bytes = query("c0.example.com", rtype::A, None);
        let dns_request = DnsRequest { transport: Transport::Tcp, ..request(&bytes, 0) };
        let outcome = names.answer(&dns_request, None, &mut vec![0; 65_535]).unwrap().outcome;
        assert_eq!(outcome.rcode, Rcode::ServFail, "{before} before {around}");
    }
}

/// Names are compressed with pointers to earlier names. Decoding restores the original names.
#[test]
fn names_that_stand_already_are_pointed_at() {
    let servers = (0..6).flat_map(|number| {
        let host = format!("ns{number}.hosting.example.com");
        let address = (name(&host), rtype::A, 300, vec![192, 0, 2, number]);
        [(name("sub.example.com"), rtype::NS, 300, name(&host).as_wire().to_vec()), address]
    });
    let mail = [0, 10].iter().chain(name("mail.hosting.example.com").as_wire()).copied().collect();
    let service =
        [0, 1, 0, 1, 0, 80].iter().chain(name("ns1.hosting.example.com").as_wire()).copied().collect();
    let more = [(name("m.example.com"), rtype::MX, 300, mail), (name("s.example.com"), 33, 300, service)];
    let all = records(&[]).into_iter().chain(servers).chain(more);
    let zone = Zone::new(name("example.com"), all).unwrap();
    let names = Catalog::new([Arc::new(zone)], vec![], KEY, "");
    let referral = answer(&names, &query("www.sub.example.com", rtype::A, None));
    assert_eq!(read(&referral).2, [0, 6, 6]);
    // Header, question, the first server's name in full, five names with a label and a pointer, and
    // six addresses.
    let question = 12 + 21 + 4;
    assert_eq!(referral.len(), question + (12 + 4 + 8 + 2) + 5 * (12 + 4 + 2) + 6 * (12 + 4));
    let mx = answer(&names, &query("m.example.com", rtype::MX, None));
    assert!(mx.ends_with(b"\x00\x0a\x04mail\x07hosting\xc0\x0e"), "{mx:02x?}");
    let srv = answer(&names, &query("s.example.com", 33, None));
    assert!(
        srv.ends_with(name("ns1.hosting.example.com").as_wire()),
        "types of later standards are written out"
    );
}

#[test]
fn resolver_flags_of_query_are_not_echoed() {
    let mut bytes = query("www.example.com", rtype::A, None);
    bytes[3] |= 0x10 | 0x20;
    assert_eq!(answer(&names(), &bytes)[3] & 0x30, 0, "CD and AD (RFC 4035, section 3.1.6)");
}

#[test]
fn error_answer_has_edns_like_its_query() {
    let names = names();
    let bad_option = query("www.example.com", rtype::A, Some(&[0, 8, 0, 9]));
    let bare = [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0];
    let formerr = answer(&names, &bad_option);
    assert_eq!((formerr[3] & 15, formerr.len(), formerr[11]), (1, 12 + 11, 1));
    assert!(formerr.ends_with(&bare));
    let mut two_questions = query("www.example.com", rtype::A, None);
    two_questions[5] = 2;
    assert_eq!(answer(&names, &two_questions).len(), 12);
    let mut update = query("www.example.com", rtype::A, Some(&[]));
    update[2] |= 0x28;
    assert!(answer(&names, &update).ends_with(&bare));
}

/// A query signed with an unknown key gets the error BADKEY (RFC 8945, section 5.2.1).
#[test]
fn signed_query_gets_badkey() {
    let names = names();
    let rest = b"\x08hmac-md5\x07sig-alg\x03reg\x03int\x00\x00\x00\x65\x00\x00\x00\x01\x2c\x00\x04MAC!\xab\xcd\x00\x00\x00\x00";
    let signed = |key: &[u8]| {
        let mut bytes = query("www.example.com", rtype::A, Some(&[]));
        bytes[11] += 1;
        bytes.extend([key, &[0, 250, 0, 255, 0, 0, 0, 0], &(rest.len() as u16).to_be_bytes(), rest].concat());
        bytes
    };
    let key = b"\x03Key\x07example\x03com\x00";
    for written in [&key[..], b"\x03Key\xc0\x10"] {
        let answer = answer(&names, &signed(written));
        assert_eq!((answer[3] & 15, answer[7], answer[11]), (9, 0, 2));
        let error = b"\x00\x00\x00\x65\x00\x00\x00\x01\x2c\x00\x00\xab\xcd\x00\x11\x00\x00";
        assert!(answer.ends_with(error), "{answer:02x?}");
        assert!(answer.windows(4).any(|part| part == b"\x03Key"));
    }
    let good = signed(key);
    let code = |bytes: &[u8]| answer(&names, bytes)[3] & 15;
    assert_eq!(code(&signed(b"\x03Key\xc0\xff")), 1, "a pointer that leads on");
    assert_eq!(code(&good[..good.len() - 1]), 1, "cut");
    let mut behind = [&good[..], &[0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    behind[11] += 1;
    assert_eq!(code(&behind), 1, "a signature stands last");
}

#[test]
fn hash_answers_same_server_to_network_with_scope() {
    let all: Vec<Address> = (1..=9).map(|last| address(&format!("192.0.2.{last}"), 1, true)).collect();
    let names = names_with(AddressPool::new(settings(Selection::SourceHash, EmptyPool::All), &all, [0, 0]));
    let resolve = |client: &str, option: &[u8]| {
        let bytes = query("www.example.com", rtype::A, Some(option));
        let dns_request = DnsRequest { client: client.parse().unwrap(), ..request(&bytes, 0) };
        let mut out = vec![0; 1_232];
        let answered = names.answer(&dns_request, None, &mut out).unwrap();
        out.truncate(answered.len);
        let at = option.get(..6).and_then(|head| out.windows(6).position(|part| part == head));
        (read(&out).3, at.map(|at| out[at + 7]))
    };
    let of_network = |network: &str| {
        (0..=255).map(|host| resolve(&format!("{network}.{host}"), &[]).0).collect::<BTreeSet<_>>()
    };
    let networks: BTreeSet<_> = (0..40).map(|third| of_network(&format!("203.0.{third}"))).collect();
    assert!(networks.iter().all(|servers| servers.len() == 1) && networks.len() > 3, "{networks:?}");
    // Client subnets with more bits than are used, and with fewer.
    let subnet =
        |bits: u8, octets: &[u8]| [&[0, 8, 0, 4 + octets.len() as u8, 0, 1, bits, 0], octets].concat();
    let scope_of = |bits, octets: &[u8]| resolve("198.51.100.7", &subnet(bits, octets));
    assert_eq!(scope_of(32, &[203, 0, 9, 77]).1, Some(24));
    assert_eq!(scope_of(32, &[203, 0, 9, 77]).0, resolve("203.0.9.1", &[]).0);
    assert_eq!(scope_of(24, &[203, 0, 9]), (resolve("203.0.9.1", &[]).0, Some(24)));
    assert_eq!(scope_of(16, &[203, 0]), (resolve("203.0.0.1", &[]).0, Some(16)));
    // For a client that withholds its address, the resolver's address is used (RFC 7871, section
    // 7.1.2). Family 0 has the same effect.
    assert_eq!(scope_of(0, &[]), (resolve("198.51.100.1", &[]).0, Some(0)));
    assert_eq!(resolve("198.51.100.7", &[0, 8, 0, 4, 0, 0, 0, 0]), (resolve("198.51.100.1", &[]).0, Some(0)));
}

#[test]
fn a_server_s_address_may_stand_at_a_wildcard() {
    let more = [
        ("sub.example.com", rtype::NS, "ns.hosts.example.com"),
        ("*.hosts.example.com", rtype::A, "192.0.2.66"),
        ("far.example.com", rtype::NS, "ns.example.org"),
    ];
    let zone = Zone::new(name("example.com"), records(&more)).unwrap();
    let names = Catalog::new([Arc::new(zone)], vec![], KEY, "");
    let referral = |text: &str| read(&answer(&names, &query(text, rtype::A, None)));
    assert_eq!(referral("www.sub.example.com"), (0, false, [0, 1, 1], vec!["192.0.2.66".into()]));
    assert_eq!(referral("www.far.example.com"), (0, false, [0, 1, 0], vec![]));
}

#[test]
fn a_record_in_other_letters_is_the_same_record() {
    let mail = |text: &[u8]| (name("m.example.com"), rtype::MX, 300, [&[0, 10], text].concat());
    let more = [mail(UPPER), mail(name("www.example.com").as_wire()), mail(LOUD)];
    let zone = Zone::new(name("example.com"), records(&[]).into_iter().chain(more)).unwrap();
    let names = Catalog::new([Arc::new(zone)], vec![], KEY, "");
    let mx = answer(&names, &query("m.example.com", rtype::MX, None));
    assert_eq!(read(&mx).2, [2, 0, 0]);
    assert!(mx.windows(4).any(|part| part == b"\x03WWW"), "the first is kept");
}
