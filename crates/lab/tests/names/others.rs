//! NSD and Knot beside Evener: the same zones and queries must have the same responses. Each
//! permitted difference has a reason below.
//!
//! The generated zones resemble the public FerretDataset: small, with many cases in which RFCs
//! 1034, 2181 and 4592 need careful reading.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use domain::base::iana::Rtype;
use domain::base::{Message, ParsedName, RecordSection};
use domain::rdata::AllRecordData;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::process::Proc;
use evener_lab::network::host::Host;

use crate::dice::Dice;

/// Number of zones, multiplied by `EVENER_VOLUME`; docs/developers/proof.md has the measurement.
const ZONES: usize = 330;
const QUERIES: usize = 20;
const NSD: u16 = 5301;
const KNOT: u16 = 5302;
const EVENER: u16 = 5303;
/// Number of outstanding queries.
const WINDOW: usize = 64;
const SECRET: &str = "e5e973e5a6b2a43f48e7dc849e37bfcf";

/// The parts of a response that are compared. Order, letter case and EDNS do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    rcode: String,
    is_authoritative: bool,
    is_truncated: bool,
    answer: Vec<String>,
    authority: Vec<String>,
    additional: Vec<String>,
}

struct Query {
    name: String,
    rtype: u16,
}

/// Three servers with the same zones.
struct Servers {
    evener: Evener,
    _others: [Proc; 2],
    farm: Farm,
}

fn start(zones: &[(String, String)], limits: &str) -> Result<Servers> {
    let farm = Farm::builder().bare().servers(0).clients(1).build()?;
    let host = farm.director();
    let paths: Vec<String> = zones
        .iter()
        .map(|(name, text)| Ok(host.write(&format!("{name}zone"), text)?.display().to_string()))
        .collect::<Result<_>>()?;
    let zones = || zones.iter().map(|(name, _)| name.as_str()).zip(&paths);
    let (nsd, knot) = (start_nsd(host, zones())?, start_knot(host, zones())?);
    let at = SocketAddr::from((host.address(), EVENER));
    let secret = host.write("cookie.key", SECRET)?;
    host.run(&["chmod", "600", &secret.display().to_string()])?;
    let mut file =
        format!("[dns]\nlisten = [\"{at}\"]\ncookie_secret_file = \"{}\"\n{limits}", secret.display());
    for (name, path) in zones() {
        write!(file, "[[dns.zone]]\nname = \"{name}\"\nfile = \"{path}\"\n")?;
    }
    Ok(Servers { evener: Evener::start(host, &file)?, _others: [nsd, knot], farm })
}

fn start_nsd<'z>(host: &Host, zones: impl Iterator<Item = (&'z str, &'z String)>) -> Result<Proc> {
    let file = |name: &str| host.file(name).display().to_string();
    let mut text = format!(
        "server:\n ip-address: {}@{NSD}\n username: \"\"\n chroot: \"\"\n database: \"\"\n pidfile: \"{}\"\n xfrdfile: \"{}\"\n \
         zonelistfile: \"{}\"\n server-count: 1\n rrl-ratelimit: 0\n minimal-responses: yes\n answer-cookie: yes\n \
         cookie-secret: \"{SECRET}\"\nremote-control:\n control-enable: no\n",
        host.address(),
        file("nsd.pid"),
        file("nsd.xfrd"),
        file("nsd.list"),
    );
    for (name, path) in zones {
        write!(text, "zone:\n name: \"{name}\"\n zonefile: \"{path}\"\n")?;
    }
    let config = host.write("nsd.conf", &text)?.display().to_string();
    let mut nsd = host.spawn("nsd", &["nsd", "-d", "-c", &config])?;
    nsd.wait_until_listening(host, (host.address(), NSD).into())?;
    Ok(nsd)
}

fn start_knot<'z>(host: &Host, zones: impl Iterator<Item = (&'z str, &'z String)>) -> Result<Proc> {
    let folder = host.file("knot").display().to_string();
    host.run(&["mkdir", "-p", &folder])?;
    let mut text = format!(
        "server:\n    listen: {}@{KNOT}\n    rundir: \"{folder}\"\n    udp-workers: 1\n    tcp-workers: 1\n    background-workers: 1\n\
         log:\n  - target: stderr\n    any: warning\ndatabase:\n    storage: \"{folder}\"\n\
         template:\n  - id: default\n    journal-content: none\n    zonefile-sync: -1\n    semantic-checks: off\nzone:\n",
        host.address(),
    );
    for (name, path) in zones {
        write!(text, "  - domain: {name}\n    file: \"{path}\"\n")?;
    }
    let config = host.write("knot.conf", &text)?.display().to_string();
    let mut knot = host.spawn("knot", &["knotd", "-c", &config])?;
    knot.wait_until_listening(host, (host.address(), KNOT).into())?;
    Ok(knot)
}

/// Encodes a query with an EDNS buffer size of 1,232 bytes and an optional cookie.
fn bytes(number: u16, query: &Query, cookie: &[u8]) -> Vec<u8> {
    let mut bytes = [&number.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 1]].concat();
    for label in query.name.trim_end_matches('.').split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend([query.rtype.to_be_bytes(), [0, 1]].concat());
    let option = [&[0, 10, 0, cookie.len() as u8], cookie].concat();
    let options = if cookie.is_empty() { &[] } else { &option[..] };
    bytes.extend([0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, options.len() as u8]);
    bytes.extend(options);
    bytes
}

/// Sends all queries to a server. Returns the responses with their lengths, in the order of the
/// queries.
fn ask(client: &Host, at: SocketAddr, queries: &[Query], cookie: &[u8]) -> Result<Vec<(Said, usize)>> {
    client.enter(|| -> Result<_> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(at)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut answers = Vec::new();
        for window in queries.chunks(WINDOW) {
            let mut received = BTreeMap::new();
            for (number, query) in (0..).zip(window) {
                socket.send(&bytes(number, query, cookie))?;
            }
            let mut buffer = [0; 4_096];
            for _ in window {
                let len =
                    socket.recv(&mut buffer).with_context(|| format!("an answer of {at} is missing"))?;
                let message = &buffer[..len];
                let number = u16::from_be_bytes([message[0], message[1]]);
                received.insert(number, (read(message)?, len));
            }
            ensure!(received.len() == window.len(), "{at} answered some queries twice");
            answers.extend(received.into_values());
        }
        Ok(answers)
    })?
}

fn read(message: &[u8]) -> Result<Said> {
    let message = Message::from_octets(message)?;
    let header = message.header();
    let section = |section: RecordSection<'_, &[u8]>| -> Result<Vec<String>> {
        let mut records = Vec::new();
        for record in section {
            let record = record?;
            if record.rtype() == Rtype::OPT {
                continue;
            }
            let record =
                record.into_record::<AllRecordData<&[u8], ParsedName<&[u8]>>>()?.context("no data")?;
            let (owner, ttl_s, rtype) = (record.owner(), record.ttl().as_secs(), record.rtype());
            // Name compression of the other servers ignores letter case; Evener keeps the letters
            // of the file.
            records.push(format!("{owner} {ttl_s} {rtype} {}", record.data()).to_ascii_lowercase());
        }
        records.sort();
        Ok(records)
    };
    let (_, answer, authority, additional) = message.sections()?;
    Ok(Said {
        rcode: header.rcode().to_string(),
        is_authoritative: header.aa(),
        is_truncated: header.tc(),
        answer: section(answer)?,
        authority: section(authority)?,
        additional: section(additional)?,
    })
}

/// Returns the reason for a permitted difference from both other servers.
fn reason(query: &Query, own: &Said, other: &Said) -> Option<&'static str> {
    let owner = |record: &String| record.split(' ').next().unwrap_or_default().to_owned();
    let meets_itself = other.answer.iter().any(|record| {
        let target = record.rsplit(' ').next().unwrap_or_default();
        record.contains(" cname ")
            && other.answer.iter().any(|one| owner(one) == target.trim_end_matches('.'))
    });
    let same_but_additional = Said { additional: own.additional.clone(), ..other.clone() } == *own;
    match () {
        () if own.rcode == "SERVFAIL" && other.rcode == "NOERROR" && meets_itself => {
            Some("RFC 1034, section 3.6.2: a circle of CNAME records is an error")
        }
        () if query.rtype == 255 && own.answer.iter().any(|record| record.contains(" hinfo ")) => {
            Some("RFC 8482: ANY has one HINFO record")
        }
        () if same_but_additional && own.additional.is_empty() && !own.answer.is_empty() => {
            Some("addresses behind an answer are nobody's due, and bytes that forged queries would have")
        }
        () => None,
    }
}

fn is_lower(query: &Query, zone: &str) -> bool {
    let names = zone.lines().skip(3).flat_map(|line| line.split(' ')).filter(|word| word.ends_with('.'));
    names.chain([query.name.as_str()]).all(|name| !name.contains(|letter: char| letter.is_ascii_uppercase()))
}

#[test]
fn evener_answers_made_up_zones_as_nsd_and_knot_do() -> Result<()> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut dice = Dice(7 * number("PROPTEST_RNG_SEED"));
    let zones: Vec<(String, String)> =
        (0..ZONES * number("EVENER_VOLUME") as usize).map(|number| dice.zone(number)).collect();
    let queries: Vec<Query> = zones
        .iter()
        .flat_map(|(zone, text)| (0..QUERIES).map(|_| dice.query(zone, text)).collect::<Vec<_>>())
        .map(|(name, rtype)| Query { name, rtype })
        .collect();
    let servers = start(&zones, "rate = 0\ntotal_rate = 0\n")?;
    let at = |port| SocketAddr::from((servers.farm.director().address(), port));
    let client = servers.farm.client(0);
    let own = ask(client, at(EVENER), &queries, &[])?;
    let others = [ask(client, at(NSD), &queries, &[])?, ask(client, at(KNOT), &queries, &[])?];
    let (mut reasons, mut wrong, mut longer) = (BTreeMap::<&str, usize>::new(), Vec::new(), 0);
    for (at, query) in queries.iter().enumerate() {
        let ((output, len), all) = (&own[at], others.each_ref().map(|other| &other[at]));
        let [nsd, knot] = all.map(|(output, _)| output);
        match [nsd, knot].into_iter().any(|other| other == output) {
            // Name compression in Evener requires the same letter case.
            true if is_lower(query, &zones[at / QUERIES].1) => {
                longer += usize::from(all.iter().all(|(other, least)| other == output && len > least));
            }
            true => {}
            false => match reason(query, output, nsd).or_else(|| reason(query, output, knot)) {
                Some(reason) => *reasons.entry(reason).or_default() += 1,
                None => wrong.push(format!(
                    "{} {}\n Evener {output:?}\n NSD {nsd:?}\n Knot {knot:?}",
                    query.name, query.rtype
                )),
            },
        }
    }
    println!("{} queries; different for a reason: {reasons:#?}", queries.len());
    ensure!(longer == 0, "{longer} answers are longer than both others'");
    if !wrong.is_empty() {
        bail!(
            "{} differ without a reason:\n{}",
            wrong.len(),
            wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n")
        );
    }
    Ok(())
}

/// Record types that Evener's zone library does not know, and text beyond ASCII.
#[test]
fn data_in_its_own_form_is_read_as_nsd_and_knot_do() -> Result<()> {
    const RECORDS: [(u16, &str); 22] = [
        (19, "X25 \"311061700956\""),
        (20, "ISDN 150862028003217 004"),
        (18, "AFSDB 1 afs.example.net."),
        (21, "RT 2 relay"),
        (26, "PX 10 map.example. map"),
        (29, "LOC 42 21 54.123 N 71 06 18 W -24m 30m 100m 7.5m"),
        (29, "LOC 0 S 180 E 12.34m"),
        (36, "KX 10 kx"),
        (37, "CERT PKIX 65000 RSASHA256 ( AQID\n BAUG )"),
        (42, "APL 1:192.0.2.0/24 !1:198.51.100.64/28 2:2001:db8::/32"),
        (49, "DHCID AAIBY2/AuCccgoJbsaxcQc9TUapptP69lOjxfNuVAA2kjEA="),
        (53, "SMIMEA 3 1 1 ( 0011223344\n 5566 )"),
        (62, "CSYNC 66 3 A NS AAAA TYPE1234"),
        (99, "SPF \"v=spf1 -all\""),
        (104, "NID 10 0014:4fff:ff20:ee64"),
        (105, "L32 10 192.0.2.1"),
        (106, "L64 10 2001:0DB8:1140:1000"),
        (107, "LP 10 l64"),
        (108, "EUI48 00-00-5E-00-53-2A"),
        (109, "EUI64 00-00-5e-ef-10-00-00-2a"),
        (256, "URI 10 1 \"ftp://ftp.example.com/a\\032b\""),
        (16, "TXT \"gr\u{fc}n\" \"\\\u{fc}\" unquoted-\u{df}"),
    ];
    // A separate zone for each record: a server that does not know a type rejects the whole zone.
    let zone = |(number, (_, record)): (usize, &(u16, &str))| {
        let text = format!(
            "$TTL 60\n@ SOA ns host 1 1h 1h 1h 60\n@ NS ns\nns A 192.0.2.53\n$ORIGIN sub.z{number}.example.\nr IN {record}\n"
        );
        (format!("z{number}.example."), text)
    };
    let zones: Vec<(String, String)> = RECORDS.iter().enumerate().map(zone).collect();
    let servers = start(&zones, "rate = 0\ntotal_rate = 0\n")?;
    let query = |(number, (rtype, _)): (usize, &(u16, &str))| Query {
        name: format!("r.sub.z{number}.example."),
        rtype: *rtype,
    };
    let queries: Vec<Query> = RECORDS.iter().enumerate().map(query).collect();
    let at = |port| SocketAddr::from((servers.farm.director().address(), port));
    let answers = |port| ask(servers.farm.client(0), at(port), &queries, &[]);
    let (evener, nsd, knot) = (answers(EVENER)?, answers(NSD)?, answers(KNOT)?);
    let mut wrong = Vec::new();
    for (at, (_, record)) in RECORDS.iter().enumerate() {
        let [evener, nsd, knot] = [&evener[at].0, &nsd[at].0, &knot[at].0];
        if evener.answer.len() != 1 || ![nsd, knot].contains(&evener) {
            wrong.push(format!("{record}\n Evener {evener:?}\n NSD {nsd:?}\n Knot {knot:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A resolver with a cookie from NSD is accepted by Evener, because both share the secret (RFC
/// 9018, section 5).
#[test]
fn a_cookie_of_another_server_is_believed() -> Result<()> {
    let zone = "$TTL 60\n@ SOA ns host 1 1h 1h 1w 60\n@ NS ns\nns A 192.0.2.53\n";
    let servers = start(&[("example.com.".to_owned(), zone.to_owned())], "rate = 1\nburst = 1\n")?;
    let (client, host) = (servers.farm.client(0), servers.farm.director().address());
    let port = NSD.to_string();
    let answer = client.run(&[
        "dig",
        &format!("@{host}"),
        "-p",
        &port,
        "+cookie=0123456789abcdef",
        "ns.example.com",
    ])?;
    let cookie =
        answer.lines().find_map(|line| line.strip_prefix("; COOKIE: ")).context("NSD has no cookies")?;
    let digits = cookie.split(' ').next().unwrap_or_default();
    let cookie: Vec<u8> = (0..digits.len() / 2)
        .map(|at| Ok(u8::from_str_radix(&digits[2 * at..2 * at + 2], 16)?))
        .collect::<Result<_>>()?;
    ensure!(cookie.len() == 24, "{answer}");
    let queries: Vec<Query> = (0..50).map(|_| Query { name: "ns.example.com.".into(), rtype: 1 }).collect();
    let limited = |cookie: &[u8]| -> Result<usize> {
        let answers = ask(client, (host, EVENER).into(), &queries, cookie)?;
        Ok(answers.iter().filter(|(output, _)| output.is_truncated).count())
    };
    let forged = [&cookie[..23], &[cookie[23] ^ 1]].concat();
    // One thread receives all queries of a socket. It answers at most one query per second without
    // a cookie.
    ensure!(limited(&forged)? > 0);
    ensure!(limited(&cookie)? == 0);
    let status: serde_json::Value = servers.evener.json(&["status"])?;
    ensure!(status["dns"]["limited"].as_u64() > Some(0), "{status}");
    Ok(())
}
