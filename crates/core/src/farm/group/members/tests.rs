use alloc::format;
use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::farm::group::{Claims, DispatchRequest, GroupMember, MessageOrigin, example};
use crate::path::content::PathPattern;
use crate::pool::HealthKind;
use crate::pool::policy::{Consumer, Policy, by_name};
use crate::pool::{ClockReading, Fact, ServerState};

const SECOND: u64 = 1_000;

fn at(seconds: u64) -> ClockReading {
    ClockReading {
        now_ms: seconds * SECOND,
        unix_ms: 1_800_000_000_000 + seconds * SECOND,
        ..ClockReading::default()
    }
}

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

fn group(policy: &str, listed: &[&str], kind: HealthKind) -> Group {
    let policy = by_name(policy).unwrap();
    let member = |name: &&str| GroupMember {
        name: (*name).into(),
        url: url(&format!("http://{name}.example")),
        weight: 1,
        backup: false,
        health_address: None,
        anonymous: false,
        control: None,
    };
    let mut group = Group { policy, members: listed.iter().map(member).collect(), ..example::group() };
    group.health.kind = kind;
    group
}

fn unprobed(listed: &[&str]) -> Members {
    Members::new(at(0), &group("least-load", listed, HealthKind::None), Seed(1, 2), None)
}

fn origin() -> MessageOrigin {
    MessageOrigin { from: Some([192, 0, 2, 31].into()), ..MessageOrigin::default() }
}

fn join(members: &mut Members, seconds: u64, lines: &[&str]) -> Result<JoinResult, MemberRefusal> {
    let joiners: Vec<Joiner> = lines.iter().map(|line| Joiner::parse(line).unwrap()).collect();
    let joined = members.join(at(seconds), &origin(), &joiners);
    // Without probes, the addresses of joined members are still checked.
    for state in members.snapshot(at(seconds)) {
        if members.group.health.kind == HealthKind::None {
            members.apply_fact(at(seconds), state.id, Fact::Probed(Ok(0)));
        }
    }
    joined
}

fn inform(
    members: &mut Members,
    seconds: u64,
    load: f64,
    stamp: Option<u64>,
    of: &str,
) -> Result<(), MemberRefusal> {
    let report = LoadInform { load, stamp_ms: stamp.map(|at_s| at(at_s).unix_ms), url: Some(url(of)) };
    members.inform(at(seconds), None, &report)
}

fn states(members: &Members, seconds: u64) -> Vec<(String, ServerState)> {
    members.snapshot(at(seconds)).into_iter().map(|member| (member.name, member.state)).collect()
}

/// Returns the URL of the member that is selected for a target.
fn chosen(members: &mut Members, seconds: u64, target: &str) -> Option<String> {
    let wanted =
        DispatchRequest { client: [10, 0, 0, 1].into(), method: "GET", host: b"www.example.com", target };
    let dispatch = members.dispatch(at(seconds));
    dispatch.choose(&wanted).map(|candidate| candidate.url.to_string())
}

fn queries(orders: &[MemberOrder]) -> usize {
    orders.iter().filter(|order| matches!(order, MemberOrder::Query { .. })).count()
}

#[test]
fn join_and_exit_apply_to_all_members_or_none() {
    let mut members = unprobed(&[]);
    assert_eq!(
        join(&mut members, 0, &["http://m1", "http://m2 weight=2"]),
        Ok(JoinResult { new: 2, known: 0 })
    );
    assert_eq!(
        join(&mut members, 1, &["http://m2 weight=3", "http://m3"]),
        Ok(JoinResult { new: 1, known: 1 })
    );
    assert_eq!(members.snapshot(at(1))[1].joiner.weight, 3);
    let stranger = members.remove_members(at(1), &[url("http://m1"), url("http://m4")]);
    assert_eq!(stranger, Err(MemberRefusal::NotHere(url("http://m4"))));
    assert_eq!(members.snapshot(at(1)).len(), 3);
    assert_eq!(
        members.remove_members(at(1), &[url("http://m1"), url("http://m1"), url("http://m3")]),
        Ok(())
    );
    assert_eq!(states(&members, 1), [("http://m2".into(), ServerState::Up)]);
}

#[test]
fn silent_members_are_queried_removed_and_may_return() {
    let mut members = unprobed(&[]);
    join(&mut members, 0, &["http://m1 control=http://m1:9184"]).unwrap();
    assert_eq!(queries(&members.poll(at(44))), 0);
    assert_eq!(members.poll_timeout().min(at(45).now_ms), members.poll_timeout());
    let orders = members.poll(at(45));
    assert!(
        orders
            .iter()
            .any(|order| matches!(order, MemberOrder::Query { url: at, .. } if *at == url("http://m1:9184")))
    );
    assert_eq!(states(&members, 45), [("http://m1".into(), ServerState::Silent)]);
    assert_eq!(queries(&members.poll(at(46))), 0);
    inform(&mut members, 47, 3.0, None, "http://m1").unwrap();
    assert_eq!(states(&members, 47), [("http://m1".into(), ServerState::Up)]);
    members.poll(at(92));
    let orders = members.poll(at(107));
    assert!(
        members.take_events().iter().any(|(_, event)| *event == MemberEvent::Changed(MemberChange::Removed))
    );
    assert!(matches!(&orders[..], [MemberOrder::Save { .. }, MemberOrder::Publish(_)]), "{orders:?}");
    let again = inform(&mut members, 108, 3.0, None, "http://m1");
    assert_eq!(again, Err(MemberRefusal::Unknown("http://m1".into())));
    assert_eq!(join(&mut members, 109, &["http://m1"]), Ok(JoinResult { new: 1, known: 0 }));
}

#[test]
fn the_listed_need_not_report_and_stay() {
    let mut members = unprobed(&["m1"]);
    assert_eq!(queries(&members.poll(at(1_000))), 0);
    assert_eq!(states(&members, 1_000), [("m1".into(), ServerState::Up)]);
    members.remove_members(at(1_000), &[url("http://m1.example")]).unwrap();
    assert_eq!(states(&members, 1_000), [("m1".into(), ServerState::Draining)]);
    assert_eq!(chosen(&mut members, 1_000, "/"), None);
    assert_eq!(
        join(&mut members, 1_001, &["http://m1.example weight=9"]),
        Ok(JoinResult { new: 1, known: 0 })
    );
    let state = &members.snapshot(at(1_001))[0];
    assert_eq!((state.joiner.weight, state.state), (1, ServerState::Up));
    members.poll(at(1_061));
    assert_eq!(states(&members, 1_061), [("m1".into(), ServerState::Up)]);
}

#[test]
fn restart_after_kill_keeps_members() {
    let settings = group("least-load", &["m1", "m2"], HealthKind::Tcp);
    let mut members = Members::new(at(0), &settings, Seed(1, 2), None);
    join(&mut members, 0, &["http://192.0.2.31:8080/a weight=3 anonymous path=/img/* host=*.example.com"])
        .unwrap();
    for member in 0..3 {
        members.apply_fact(
            at(1),
            member,
            Fact::Probed(if member == 1 { Err(Failure::Refused) } else { Ok(5) }),
        );
    }
    members.set_operator_state(at(1), "m1", OperatorState::Drain);
    inform(&mut members, 2, 1.0, Some(2), "http://192.0.2.31:8080/a").unwrap();
    let record = members.record();
    let mut again = Members::new(at(5), &settings, Seed(1, 2), Some(&record));
    again.set_operator_state(at(5), "m1", OperatorState::Drain);
    assert_eq!(states(&again, 5), states(&members, 5));
    assert_eq!(again.record(), record);
    assert_eq!(inform(&mut again, 6, 1.0, Some(2), "http://192.0.2.31:8080/a"), Err(MemberRefusal::Stale));
    assert_eq!(again.remove_members(at(6), &[url("http://192.0.2.31:8080/a")]), Ok(()));
}

#[test]
fn reports_are_in_order_and_can_be() {
    let mut members = unprobed(&[]);
    join(&mut members, 0, &["http://m1", "http://m2"]).unwrap();
    for load in [f64::NAN, f64::INFINITY, -1.0, f64::from(LOAD_MAX) * 2.0] {
        assert_eq!(inform(&mut members, 1, load, None, "http://m1"), Err(MemberRefusal::Load));
    }
    assert_eq!(inform(&mut members, 1, 2.5, Some(9), "http://m1"), Ok(()));
    assert_eq!(inform(&mut members, 2, 0.0, Some(9), "http://m1"), Err(MemberRefusal::Stale));
    assert_eq!(inform(&mut members, 2, 0.0, Some(8), "http://m1"), Err(MemberRefusal::Stale));
    assert_eq!(inform(&mut members, 2, 0.0, Some(9), "http://m2"), Ok(()));
    assert_eq!(inform(&mut members, 2, 0.0, Some(400), "http://m1"), Err(MemberRefusal::Ahead));
    let state = &members.snapshot(at(4))[0];
    assert_eq!((state.reported, state.age_ms), (Some(2_500), Some(3_000)));
    assert_eq!(state.cause, "reported 2.5 3 s ago");
    let several = LoadInform { load: 1.0, stamp_ms: None, url: None };
    let from = Some([192, 0, 2, 31].into());
    assert_eq!(members.inform(at(5), from, &several), Err(MemberRefusal::Several));
    members.remove_members(at(5), &[url("http://m2")]).unwrap();
    assert_eq!(members.inform(at(5), from, &several), Ok(()));
    assert_eq!(members.inform(at(5), None, &several).unwrap_err().status(), 409);
    join(&mut members, 6, &["http://192.0.2.31:8080"]).unwrap();
    assert_eq!(
        members.inform(at(6), from, &several),
        Ok(()),
        "its own address goes before whence another joined"
    );
    assert_eq!(members.snapshot(at(6)).last().unwrap().reported, Some(1_000));
}

#[test]
fn join_is_limited_to_allowed_addresses() {
    let mut members = unprobed(&["m1"]);
    for line in [
        "http://127.0.0.1:9180 anonymous",
        "http://[::ffff:127.0.0.1]:9180",
        "http://169.254.169.254",
        "http://198.51.100.1",
        "http://192.0.2.31 control=http://198.51.100.1:9184",
    ] {
        let refused = join(&mut members, 0, &[line]).unwrap_err();
        assert_eq!((matches!(refused, MemberRefusal::Outside(..)), refused.status()), (true, 403), "{line}");
    }
    assert_eq!(members.snapshot(at(0)).len(), 1);
    assert!(join(&mut members, 0, &["http://192.0.2.31:81", "http://m1.example:81"]).is_ok());
}

#[test]
fn member_by_name_is_chosen_only_while_resolved() {
    let mut members = unprobed(&[]);
    let joiner = Joiner::parse("http://m1").unwrap();
    members.join(at(0), &origin(), &[joiner]).unwrap();
    assert!(
        members.poll(at(0)).iter().any(|order| matches!(order, MemberOrder::Probe { reach: Some(_), .. }))
    );
    assert_eq!(chosen(&mut members, 0, "/"), None, "nobody knows yet");
    members.apply_fact(at(1), 0, Fact::Probed(Err(Failure::NotProbed("no answer of a name server".into()))));
    assert_eq!(chosen(&mut members, 1, "/"), None, "nor now");
    members.apply_fact(at(2), 0, Fact::Probed(Ok(0)));
    assert_eq!(chosen(&mut members, 2, "/").as_deref(), Some("http://m1"));
    members.apply_fact(at(4), 0, Fact::Probed(Err(Failure::NotProbed("no answer of a name server".into()))));
    assert_eq!(chosen(&mut members, 4, "/").as_deref(), Some("http://m1"));
    members.apply_fact(
        at(6),
        0,
        Fact::Probed(Err(Failure::Forbidden("127.0.0.1 is a loopback address".into()))),
    );
    assert_eq!(chosen(&mut members, 6, "/"), None);
    assert_eq!(states(&members, 6), [("http://m1".into(), ServerState::Down)]);
}

#[test]
fn reload_removes_members_no_longer_allowed() {
    let mut members = unprobed(&[]);
    join(&mut members, 0, &["http://192.0.2.31:81"]).unwrap();
    assert!(chosen(&mut members, 0, "/").is_some());
    let mut less = group("least-load", &[], HealthKind::None);
    less.allow = vec!["198.51.100.0/24".parse().unwrap()];
    members.reload(at(1), &less);
    assert_eq!(chosen(&mut members, 1, "/"), None);
}

#[test]
fn a_report_never_stands_for_a_probe() {
    let settings = group("least-load", &[], HealthKind::Tcp);
    let mut members = Members::new(at(0), &settings, Seed(1, 2), None);
    join(&mut members, 0, &["http://192.0.2.31:1", "http://192.0.2.31:2"]).unwrap();
    let probes =
        members.poll(at(0)).iter().filter(|order| matches!(order, MemberOrder::Probe { .. })).count();
    assert_eq!(probes, 2);
    assert!(chosen(&mut members, 0, "/").is_some(), "nobody knows yet");
    members.apply_fact(at(1), 0, Fact::Probed(Err(Failure::Refused)));
    members.apply_fact(at(1), 1, Fact::Probed(Ok(10)));
    inform(&mut members, 1, 0.0, None, "http://192.0.2.31:1").unwrap();
    inform(&mut members, 1, 900.0, None, "http://192.0.2.31:2").unwrap();
    assert!((0..20).all(|_| chosen(&mut members, 1, "/").as_deref() == Some("http://192.0.2.31:2")));
    for seconds in [3, 5, 7] {
        members.apply_fact(at(seconds), 1, Fact::Probed(Err(Failure::Timeout)));
    }
    assert_eq!(chosen(&mut members, 7, "/"), None);
}

#[test]
fn loads_are_read_as_the_paper_has_them() {
    let mut members = unprobed(&[]);
    join(&mut members, 0, &["http://m1", "http://m2"]).unwrap();
    inform(&mut members, 1, 25.0, None, "http://m1").unwrap();
    inform(&mut members, 1, 0.0, None, "http://m2").unwrap();
    let order: Vec<String> = (0..6).map(|_| chosen(&mut members, 1, "/").unwrap()).collect();
    // The loads of `m2` and `m1` are compared for each request: `m2` has 0, 10 and 20, then 30
    // against 25, 30 against 35, and 40 against 35.
    let wanted = ["m2", "m2", "m2", "m1", "m2", "m1"].map(|name| format!("http://{name}"));
    assert_eq!(order, wanted);
    inform(&mut members, 9, 0.0, None, "http://m1").unwrap();
    assert_eq!(chosen(&mut members, 9, "/").as_deref(), Some("http://m1"));
}

#[test]
fn routed_request_goes_only_to_route_members() {
    let mut members = unprobed(&["m1"]);
    join(&mut members, 0, &["http://m2 path=/img/*", "http://m3 path=/img/a/* host=img.example.com"])
        .unwrap();
    assert!((0..20).all(|_| chosen(&mut members, 0, "/img/x").as_deref() == Some("http://m2")));
    let all: BTreeSet<_> = (0..90).filter_map(|_| chosen(&mut members, 0, "/")).collect();
    assert_eq!(all.len(), 3);
    members.set_operator_state(at(1), "http://m2", OperatorState::Drain);
    let without_route = Some("http://m1.example");
    assert!((0..20).all(|_| chosen(&mut members, 1, "/img/x").as_deref() == without_route));
    members.remove_members(at(2), &[url("http://m2")]).unwrap();
    assert!(chosen(&mut members, 2, "/img/x").is_some());
}

#[test]
fn listed_route_without_working_member_has_none() {
    let mut settings = group("round-robin", &["m1", "m2"], HealthKind::None);
    let route = crate::farm::Route {
        host: None,
        path: Some(PathPattern::parse("/img/*").unwrap()),
        methods: vec![],
        servers: vec!["m2".into()],
    };
    settings.routes = vec![route].into();
    let mut members = Members::new(at(0), &settings, Seed(1, 2), None);
    assert_eq!(chosen(&mut members, 0, "/img/x").as_deref(), Some("http://m2.example"));
    members.set_operator_state(at(1), "m2", OperatorState::Drain);
    assert_eq!(chosen(&mut members, 1, "/img/x"), None);
}

#[test]
fn members_are_cut_to_what_credentials_allow() {
    let mut settings = group("round-robin", &["m1"], HealthKind::None);
    settings.members[0].weight = 7;
    let record = "evener group members 1\n\
        http://m1.example path=/* @joined @up\n\
        http://m2 weight=1000 path=/img/* path=/* host=a.example @joined @up\n\
        http://m3 weight=1000 path=/* host=* @joined @up @operator\n\
        http://m4 weight=2 path=/img/* @joined @up\n";
    let record = record.replace("host=*", "host=*.example");
    let mut members = Members::new(at(0), &settings, Seed(1, 2), Some(&record));
    members.take_events();
    let paths = ["/img/*"].map(|path| PathPattern::parse(path).unwrap()).to_vec();
    let of_line = Claims { paths, weight_max: 2, ..Claims::default() };
    let allowed = |at: &Url| if *at == url("http://m1.example") { vec![] } else { vec![&of_line] };
    for (seconds, names) in [(0, vec!["m1", "http://m2"]), (1, vec![])] {
        members.cut(at(seconds), allowed);
        let cut = (names.into_iter()).map(|name| (name.into(), MemberEvent::Changed(MemberChange::Cut)));
        assert_eq!(members.take_events(), cut.collect::<Vec<_>>());
    }
    let lines: Vec<_> = members.snapshot(at(1)).into_iter().map(|member| member.joiner.to_string()).collect();
    let left = [
        "http://m1.example weight=7",
        "http://m2 weight=2 path=/img/* host=a.example",
        "http://m3 weight=1000 path=/* host=*.example",
        "http://m4 weight=2 path=/img/*",
    ];
    assert_eq!(lines, left);
}

#[test]
fn invalid_joiner_is_refused() {
    let mut members = unprobed(&[]);
    let own = join(&mut members, 0, &["http://m1", "http://192.0.2.120/x"]);
    assert_eq!(own, Err(MemberRefusal::Own(url("http://192.0.2.120/x"))));
    assert_eq!(members.snapshot(at(0)).len(), 0);
    let lines: Vec<String> = (0..=MEMBERS_MAX).map(|number| format!("http://m{number}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(join(&mut members, 0, &lines), Err(MemberRefusal::Full));
    assert_eq!(join(&mut members, 0, &lines[1..]), Ok(JoinResult { new: MEMBERS_MAX, known: 0 }));
    assert_eq!(join(&mut members, 0, &lines[..1]), Err(MemberRefusal::Full));
    assert_eq!(join(&mut members, 0, &lines[1..]), Ok(JoinResult { new: 0, known: MEMBERS_MAX }));
    let paths: String = (0..16).map(|number| format!(" path=/{number} host=h{number}")).collect();
    let many: Vec<String> = (1..18).map(|number| format!("http://m{number}{paths}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(join(&mut members, 0, &many), Err(MemberRefusal::Routes));
    assert_eq!(join(&mut members, 0, &many[1..]), Ok(JoinResult { new: 0, known: 16 }));
}

#[test]
fn returning_member_starts_slowly() {
    let mut settings = group("round-robin", &["m1", "m2"], HealthKind::Tcp);
    settings.slow_start_ms = 100_000;
    let record = "evener group members 1\nhttp://m1.example @up\n";
    let mut members = Members::new(at(0), &settings, Seed(1, 2), Some(record));
    members.apply_fact(at(10), 1, Fact::Probed(Ok(1)));
    let shares = |members: &mut Members, seconds| {
        let dispatch = members.dispatch(at(seconds));
        let wanted = DispatchRequest { client: [10, 0, 0, 1].into(), method: "GET", host: b"h", target: "/" };
        let of = |_| dispatch.choose(&wanted).is_some_and(|candidate| candidate.id == 1);
        (0..300).filter(|at| of(*at)).count()
    };
    assert!((20..35).contains(&shares(&mut members, 11)));
    assert!((90..110).contains(&shares(&mut members, 60)));
    assert_eq!(shares(&mut members, 110), 150);
    assert!(members.snapshot(at(60))[1].cause.ends_with("slow start 50 %"));
}

#[test]
fn reload_keeps_joined_members_and_their_state() {
    let mut members = unprobed(&["m1", "m2"]);
    join(&mut members, 0, &["http://m3", "http://m2.example"]).unwrap();
    members.set_operator_state(at(0), "m1", OperatorState::Drain);
    members.reload(at(1), &group("round-robin", &["m1", "m4"], HealthKind::None));
    let names: Vec<String> = states(&members, 1).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["m1", "http://m2.example", "http://m3", "m4"]);
    assert_eq!(states(&members, 1)[0].1, ServerState::Draining);
}

#[derive(Clone, Debug)]
enum Happening {
    Join(u8),
    Leave(u8),
    Inform(u8, u32, Option<u64>),
    Probed(u8, bool),
    Drain(u8, bool),
    Wait(u64),
}

fn facts() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        (0u8..6).prop_map(Happening::Join),
        (0u8..6).prop_map(Happening::Leave),
        (0u8..6, any::<u32>(), proptest::option::of(0u64..200))
            .prop_map(|(m, load, at)| Happening::Inform(m, load, at)),
        (0u8..10, any::<bool>()).prop_map(|(m, good)| Happening::Probed(m, good)),
        (0u8..6, any::<bool>()).prop_map(|(m, drained)| Happening::Drain(m, drained)),
        (1u64..70).prop_map(Happening::Wait),
    ];
    proptest::collection::vec(one, 0..60)
}

fn policies() -> impl Strategy<Value = &'static Policy> {
    prop::sample::select(Consumer::Redirect.policies().collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn only_healthy_undrained_members_are_chosen_and_record_is_complete(facts in facts(), policy in policies()) {
        let settings = group(policy.name, &["m1"], HealthKind::Tcp);
        let mut members = Members::new(at(0), &settings, Seed(3, 4), None);
        let mut now = 0;
        for fact in facts {
            let name = |number: u8| format!("http://m{number}.example");
            match fact {
                Happening::Join(number) => drop(join(&mut members, now, &[&name(number)])),
                Happening::Leave(number) => drop(members.remove_members(at(now), &[url(&name(number))])),
                Happening::Inform(number, load, stamp) => drop(inform(&mut members, now, load.into(), stamp, &name(number))),
                Happening::Probed(member, good) => members.apply_fact(at(now), member.into(), Fact::Probed(if good { Ok(1) } else { Err(Failure::Timeout) })),
                Happening::Drain(number, drained) => {
                    let state = if drained { OperatorState::Drain } else { OperatorState::Ready };
                    members.set_operator_state(at(now), &name(number), state);
                }
                Happening::Wait(seconds) => now += seconds,
            }
            members.poll(at(now));
            prop_assert!(members.poll_timeout() > at(now).now_ms, "it would be asked again at once");
            let states = members.snapshot(at(now));
            prop_assert!(states.iter().any(|member| member.is_listed) && states.len() <= 6);
            let up = states.iter().any(|member| matches!(member.state, ServerState::Up | ServerState::Silent));
            if let Some(one) = chosen(&mut members, now, "/") {
                let state = states.iter().find(|member| member.joiner.url.as_str() == one).unwrap().state;
                prop_assert!(state != ServerState::Draining && (!up || state != ServerState::Down), "{one} is {state:?}");
            } else {
                prop_assert!(!up);
            }
            let again = Members::new(at(now), &settings, Seed(5, 6), Some(&members.record()));
            prop_assert_eq!(again.record(), members.record());
        }
    }
}

#[test]
fn drained_member_stays_drained_after_rejoin() {
    let mut members = unprobed(&[]);
    members.set_operator_state(at(0), "http://m2", OperatorState::Drain);
    join(&mut members, 0, &["http://m1", "http://m2"]).unwrap();
    let states =
        |members: &Members| states(members, 1).into_iter().map(|(_, state)| state).collect::<Vec<_>>();
    assert_eq!(states(&members), [ServerState::Up, ServerState::Draining]);
    members.set_operator_state(at(1), "http://m1", OperatorState::Drain);
    members.set_operator_state(at(1), "HTTP://m2/", OperatorState::Ready);
    members.remove_members(at(1), &[url("http://m1"), url("http://m2")]).unwrap();
    join(&mut members, 1, &["http://m1", "http://m2"]).unwrap();
    assert_eq!(states(&members), [ServerState::Draining, ServerState::Up]);
    let mut again =
        Members::new(at(1), &group("least-load", &[], HealthKind::None), Seed(1, 2), Some(&members.record()));
    assert!(states(&again).iter().all(|state| *state == ServerState::Up), "no record has drains");
    again.set_operator_state(at(1), "http://m1", OperatorState::Drain);
    again.remove_members(at(1), &[url("http://m1")]).unwrap();
    join(&mut again, 1, &["http://m1"]).unwrap();
    assert!(
        again.snapshot(at(1)).iter().any(|one| one.name == "http://m1" && one.state == ServerState::Draining)
    );
}

#[test]
fn backup_member_is_chosen_while_no_other_works() {
    let mut group = group("round-robin", &["m1", "m2"], HealthKind::None);
    group.members[1].backup = true;
    let mut members = Members::new(at(0), &group, Seed(1, 2), None);
    for _ in 0..4 {
        assert_eq!(chosen(&mut members, 1, "/").as_deref(), Some("http://m1.example"));
    }
    let waiting = members.snapshot(at(1)).pop().unwrap();
    assert_eq!(waiting.standing, Standing::WaitingBackup);
    assert_eq!(waiting.cause, "backup: the others can serve");
    members.set_operator_state(at(2), "m1", OperatorState::Drain);
    assert_eq!(chosen(&mut members, 2, "/").as_deref(), Some("http://m2.example"));
    assert_eq!(members.snapshot(at(2)).pop().unwrap().standing, Standing::Normal);
}

#[test]
fn failed_members_are_chosen_below_the_threshold_but_no_forbidden_one() {
    let mut group = group("round-robin", &["m1", "m2", "m3", "m4"], HealthKind::Tcp);
    (group.health.rise, group.health.fall, group.panic_percent) = (1, 1, 50);
    let mut members = Members::new(at(0), &group, Seed(1, 2), None);
    let ids: Vec<usize> = members.snapshot(at(0)).iter().map(|member| member.id).collect();
    members.apply_fact(at(1), ids[0], Fact::Probed(Ok(5)));
    members.apply_fact(at(1), ids[1], Fact::Probed(Err(Failure::Timeout)));
    let all = |members: &mut Members| -> BTreeSet<String> {
        (0..12).filter_map(|_| chosen(members, 2, "/")).collect()
    };
    assert_eq!(all(&mut members).len(), 1, "one of two is half of them");
    members.apply_fact(at(1), ids[2], Fact::Probed(Err(Failure::Timeout)));
    members.apply_fact(at(1), ids[3], Fact::Probed(Err(Failure::Forbidden("loopback".into()))));
    assert_eq!(all(&mut members).len(), 3);
    let standing: Vec<Standing> = members.snapshot(at(2)).iter().map(|member| member.standing).collect();
    use Standing::{Disbelieved, Normal};
    assert_eq!(standing, [Normal, Disbelieved, Disbelieved, Normal]);
}
