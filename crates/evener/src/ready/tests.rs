use super::*;
use std::collections::{BTreeMap, BTreeSet};

fn service(name: &str, address: &str, obstacle: Option<&str>) -> ServiceRecord {
    ServiceRecord {
        name: name.to_owned(),
        addresses: vec![address.parse().unwrap()],
        needs_route: false,
        needs_daemon: false,
        obstacle: obstacle.map(str::to_owned),
    }
}

fn interface(ifindex: u32, is_named: bool) -> NeededInterface {
    NeededInterface { ifindex, name: format!("eth{ifindex}"), is_named }
}

/// Record of a director with the kernel engine, two services, of which the second has no server,
/// and a group.
fn record() -> Record {
    let group = ServiceRecord { needs_daemon: true, ..service("pages", "192.0.2.1:8080", None) };
    Record {
        orphan_ms: 60_000,
        is_in_kernel: true,
        interfaces: vec![interface(2, false), interface(3, false)],
        services: vec![
            service("web", "192.0.2.100:80", None),
            service("mail", "[2001:db8::25]:25", Some("no server works: m1 is down")),
            group,
        ],
        ..Record::at(100_000)
    }
}

fn seen(age_ms: u64) -> Seen {
    Seen {
        now_ms: 100_000 + age_ms,
        carriers: BTreeMap::from([(2, true), (3, true)]),
        attached: BTreeSet::from([2, 3]),
    }
}

fn reason(record: &Record, seen: &Seen, subject: &str) -> String {
    let view = record.judge(seen, Some(subject));
    assert_eq!(view.ready, view.reason.is_empty());
    view.reason
}

#[test]
fn services_are_found_by_name_and_address() {
    let (record, seen) = (record(), seen(1_000));
    for subject in ["web", "192.0.2.100", "192.0.2.100:80", "::ffff:192.0.2.100"] {
        assert_eq!(reason(&record, &seen, subject), "", "{subject}");
    }
    for subject in ["mail", "2001:db8::25", "[2001:db8::25]", "[2001:db8::25]:25"] {
        assert_eq!(reason(&record, &seen, subject), "mail: no server works: m1 is down", "{subject}");
    }
    for subject in ["wbe", "192.0.2.100:81", "192.0.2.101", ""] {
        assert!(reason(&record, &seen, subject).starts_with("no service is called"), "{subject}");
    }
    let all = record.judge(&seen, None);
    assert_eq!((all.ready, all.services.len()), (false, 3));
    assert_eq!(all.reason, "mail: no server works: m1 is down");
    assert_eq!(Record::at(100_000).judge(&seen, None).reason, "the farm has no service");
}

#[test]
fn dead_daemon_counts_until_its_record_is_too_old() {
    let record = record();
    assert_eq!(reason(&record, &seen(60_000), "web"), "");
    let late = reason(&record, &seen(60_001), "web");
    assert!(late.contains("for 60 s: its last state of servers is valid for 60 s"), "{late}");
    assert_eq!(reason(&record, &seen(SILENCE_MS), "pages"), "");
    let silent = reason(&record, &seen(SILENCE_MS + 1), "pages");
    assert!(silent.contains("no data plane answers"), "{silent}");
    let by_packet = Record { is_in_kernel: false, ..record };
    assert_eq!(reason(&by_packet, &seen(SILENCE_MS), "web"), "");
    assert!(reason(&by_packet, &seen(SILENCE_MS + 1), "web").contains("no data plane answers"));
}

#[test]
fn drained_director_is_not_ready() {
    let drained = Record { is_drained: true, ..record() };
    assert!(reason(&drained, &seen(0), "web").starts_with("this director is drained"));
}

#[test]
fn interfaces_need_carrier_and_program() {
    let found = record();
    let named = Record { interfaces: vec![interface(2, true), interface(3, true)], ..found.clone() };
    let cases: [(Seen, &str, &str); 4] = [
        (Seen { carriers: BTreeMap::from([(2, true), (3, false)]), ..seen(0) }, "", "interface eth3 is down"),
        (
            Seen { carriers: BTreeMap::from([(2, false), (3, false)]), ..seen(0) },
            "interface eth2 is down",
            "interface eth2 is down",
        ),
        (Seen { carriers: BTreeMap::from([(2, true)]), ..seen(0) }, "", "interface eth3 is gone"),
        (
            Seen { attached: BTreeSet::new(), ..seen(0) },
            "interface eth2 has lost Evener's program",
            "interface eth2 has lost Evener's program",
        ),
    ];
    for (seen, of_found, of_named) in cases {
        assert_eq!(reason(&found, &seen, "web"), of_found, "{seen:?}");
        assert_eq!(reason(&named, &seen, "web"), of_named, "{seen:?}");
    }
}

#[test]
fn record_of_a_time_to_come_is_of_another_start_of_the_host() {
    let before = Record { at_ms: 900_000, ..record() };
    assert!(reason(&before, &seen(0), "web").contains("older than the last boot"));
}

#[test]
fn record_is_read_back_and_others_are_refused() {
    let folder = std::env::temp_dir().join(format!("evener-ready-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = path(&folder);
    assert!(Record::read(&file).unwrap_err().reason.contains("no daemon has run here yet"));
    record().write(&file).unwrap();
    assert_eq!(Record::read(&file), Ok(record()));
    let later = Record { format: FORMAT + 1, ..record() };
    later.write(&file).unwrap();
    assert!(Record::read(&file).unwrap_err().reason.contains("has format 2"));
    std::fs::write(&file, b"{\"format\":1").unwrap();
    assert!(Record::read(&file).unwrap_err().reason.contains("can't be understood"));
    std::fs::remove_dir_all(&folder).unwrap();
}
