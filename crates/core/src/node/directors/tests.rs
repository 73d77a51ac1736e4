use super::*;
use alloc::borrow::ToOwned;
use alloc::vec;
use proptest::prelude::*;

const KEY: Key = Key([7; 32]);
const INTERVAL_MS: u64 = 500;
const SILENCE_MS: u64 = 3_000;

fn address(number: u8) -> IpAddr {
    [192, 0, 2, number].into()
}

fn settings(own: u8, all: u8) -> DirectorSettings {
    let others = (1..=all).filter(|number| *number != own).map(address).collect();
    DirectorSettings { own: address(own), others, interval_ms: INTERVAL_MS, silence_ms: SILENCE_MS, key: KEY }
}

fn report(fingerprint: u64) -> DirectorReport {
    DirectorReport {
        fingerprint: Some(fingerprint),
        release: Some("0.2.0".to_owned()),
        readiness: Some(Ok(())),
        changes: Some(Changes::default()),
        addresses: Vec::new(),
        held: Vec::new(),
        replicates: true,
    }
}

/// Directors on one network without loss.
struct Fleet {
    directors: Vec<Directors>,
    now_ms: u64,
    events: Vec<(IpAddr, DirectorEvent)>,
    /// All sent datagrams, with their destinations.
    sent: Vec<(IpAddr, Vec<u8>)>,
}

impl Fleet {
    fn new(count: u8) -> Fleet {
        let begin = |number: u8| {
            let mut one = Directors::new(settings(number, count), 100 + u64::from(number), 0);
            one.set_own(report(1));
            one
        };
        Fleet { directors: (1..=count).map(begin).collect(), now_ms: 0, events: Vec::new(), sent: Vec::new() }
    }

    fn deliver(&mut self, to: IpAddr, datagram: &[u8]) {
        let mut waiting = vec![(to, datagram.to_vec())];
        while let Some((to, datagram)) = waiting.pop() {
            self.sent.push((to, datagram.clone()));
            let at = self.directors.iter_mut().find(|one| one.settings.own == to);
            let effect = at.map(|one| one.receive(self.now_ms, &datagram)).unwrap_or_default();
            self.events.extend(effect.events.into_iter().map(|event| (to, event)));
            waiting.extend(effect.datagrams);
        }
    }

    /// Lets time pass. The directors in `but` neither send nor receive datagrams.
    fn run(&mut self, ms: u64, but: &[u8]) {
        let until = self.now_ms + ms;
        while self.now_ms < until {
            self.now_ms += 100;
            for at in 0..self.directors.len() {
                let own = self.directors[at].settings.own;
                if but.iter().any(|number| address(*number) == own)
                    || self.directors[at].next_at() > self.now_ms
                {
                    continue;
                }
                let effect = self.directors[at].tick(self.now_ms);
                self.events.extend(effect.events.into_iter().map(|event| (own, event)));
                for (to, datagram) in effect.datagrams {
                    if !but.iter().any(|number| address(*number) == to) {
                        self.deliver(to, &datagram);
                    }
                }
            }
        }
    }

    fn known(&self, by: u8, of: u8) -> KnownDirector {
        let all = self.directors[usize::from(by) - 1].known();
        all.into_iter().find(|one| one.address == address(of)).unwrap()
    }

    fn differences(&self, by: u8, of: u8) -> Vec<DirectorDifference> {
        self.directors[usize::from(by) - 1].differences(&self.known(by, of))
    }
}

#[test]
fn sixteen_directors_know_each_other_within_an_interval() {
    let mut fleet = Fleet::new(16);
    fleet.run(INTERVAL_MS, &[]);
    for by in 1..=16 {
        for of in (1..=16).filter(|of| *of != by) {
            let known = fleet.known(by, of);
            assert!(known.alive && known.report == Some(report(1)), "{by} knows {known:?}");
            assert_eq!(fleet.differences(by, of), []);
        }
    }
    assert!(fleet.events.iter().all(|(_, event)| matches!(event, DirectorEvent::Answers(_))));
}

#[test]
fn silent_director_is_known_as_such_and_returns() {
    let mut fleet = Fleet::new(3);
    fleet.run(1_000, &[]);
    fleet.run(SILENCE_MS + 200, &[3]);
    assert!(!fleet.known(1, 3).alive && fleet.known(1, 2).alive);
    assert_eq!(fleet.known(1, 3).report, Some(report(1)), "what it said last");
    fleet.directors[0].set_own(report(9));
    assert_eq!(fleet.differences(1, 3), [], "nobody knows what a silent one has");
    fleet.events.clear();
    // The director restarts.
    fleet.directors[2] = Directors::new(settings(3, 3), 777, fleet.now_ms);
    fleet.run(1_000, &[]);
    assert!(fleet.known(1, 3).alive);
    assert!(fleet.events.contains(&(address(1), DirectorEvent::Answers(address(3)))));
}

#[test]
fn differences_are_known_soon_and_end() {
    let mut fleet = Fleet::new(2);
    fleet.run(1_000, &[]);
    let line = |text: &str| text.to_owned();
    let ours = Changes { digest: 1, lines: vec![line("a"), line("b")] };
    let theirs = Changes { digest: 2, lines: vec![line("b"), line("c")] };
    fleet.directors[0].set_own(DirectorReport { changes: Some(ours), ..report(1) });
    fleet.directors[1].set_own(DirectorReport {
        changes: Some(theirs),
        release: Some("0.3.0".to_owned()),
        readiness: Some(Err("no server works".to_owned())),
        ..report(2)
    });
    fleet.run(INTERVAL_MS, &[]);
    let expected = [
        DirectorDifference::File,
        DirectorDifference::Release { theirs: "0.3.0".to_owned() },
        DirectorDifference::Changes { theirs: vec![line("c")], ours: vec![line("a")] },
    ];
    assert_eq!(fleet.differences(1, 2), expected);
    let seen = fleet.known(1, 2).report.unwrap();
    assert_eq!(seen.readiness, Some(Err("no server works".to_owned())));
    fleet.directors[0].set_own(report(1));
    fleet.directors[1].set_own(report(1));
    fleet.run(INTERVAL_MS, &[]);
    assert_eq!(fleet.differences(1, 2), []);
    let unsaid = DirectorReport::default();
    fleet.directors[1].set_own(unsaid);
    fleet.run(INTERVAL_MS, &[]);
    assert_eq!(fleet.differences(1, 2), [], "a release that doesn't say is no other one");
}

#[test]
fn other_address_of_a_director_is_no_director() {
    let mut fleet = Fleet::new(2);
    // The second director reports that it has the third address, too.
    fleet.directors[0].reconfigure(settings(1, 3), 0);
    fleet.directors[1].set_own(DirectorReport { addresses: vec![address(2), address(3)], ..report(1) });
    let known =
        |fleet: &Fleet| -> Vec<IpAddr> { fleet.directors[0].known().iter().map(|one| one.address).collect() };
    assert_eq!(known(&fleet), [address(2), address(3)]);
    fleet.run(1_000, &[]);
    assert_eq!(known(&fleet), [address(2)]);
}

#[test]
fn another_secret_is_noticed_and_nothing_is_believed() {
    let mut fleet = Fleet::new(2);
    fleet.directors[1].settings.key = Key([8; 32]);
    fleet.run(2_000, &[]);
    let known = fleet.known(1, 2);
    assert!(!known.alive && known.report.is_none());
    assert_eq!(known.trouble, Some(Refusal::Forged));
    let refused = fleet.events.iter().filter(|(_, event)| matches!(event, DirectorEvent::Refused { .. }));
    assert_eq!(refused.count(), 2, "each tells it once");
}

#[test]
fn director_of_another_version_lives_and_is_not_read() {
    let mut fleet = Fleet::new(2);
    fleet.run(1_000, &[]);
    let echo = fleet.directors[1].links[&name_of(address(1))].association.echo();
    let of_later = |incarnation, sequence, echo| {
        let numbers = Numbers { incarnation, sequence };
        let (sender, receiver) = (name_of(address(2)), name_of(address(1)));
        Envelope { version: 9, kind: wire::KIND, sender, receiver, numbers, echo, body: b"\x01later" }
            .write(&KEY)
    };
    let datagram = of_later(102, 1_000, echo);
    let effect = fleet.directors[0].receive(fleet.now_ms, &datagram);
    let refusal = Refusal::Version { theirs: 9, ours: VERSION };
    let told = DirectorEvent::Refused { director: Some(address(2)), refusal };
    assert_eq!(effect.events, [told]);
    let known = fleet.known(1, 2);
    assert!(known.alive && known.report.is_none());
    assert_eq!(known.trouble, Some(refusal));
}

#[test]
fn stranger_mirror_and_host_datagram_are_refused() {
    let mut fleet = Fleet::new(3);
    fleet.run(1_000, &[]);
    let from_first = fleet.directors[0].tick(fleet.now_ms + INTERVAL_MS).datagrams;
    let to_second = from_first.into_iter().find(|(to, _)| *to == address(2)).unwrap().1;
    fleet.deliver(address(2), &to_second);
    let refused = |fleet: &mut Fleet, at: usize, bytes: &[u8]| {
        let before = fleet.directors[at].counters();
        let effect = fleet.directors[at].receive(fleet.now_ms, bytes);
        assert!(effect.datagrams.is_empty(), "a refused datagram has no answer");
        let after = fleet.directors[at].counters();
        let names: Vec<&str> = after
            .named(&Refusal::NAMES)
            .zip(before.named(&Refusal::NAMES))
            .filter(|(after, before)| after.1 > before.1)
            .map(|(after, _)| after.0)
            .collect();
        names.join(" ")
    };
    assert_eq!(refused(&mut fleet, 1, &to_second), "replayed");
    assert_eq!(refused(&mut fleet, 2, &to_second), "misdirected");
    assert_eq!(refused(&mut fleet, 0, &[]), "malformed");
    assert_eq!(refused(&mut fleet, 0, &[0; 2_000]), "malformed");
    fleet.directors[1].reconfigure(settings(2, 2), fleet.now_ms);
    let from_third = fleet.directors[2].tick(fleet.now_ms + INTERVAL_MS).datagrams;
    let to_second = from_third.into_iter().find(|(to, _)| *to == address(2)).unwrap().1;
    assert_eq!(refused(&mut fleet, 1, &to_second), "stranger");
}

#[test]
fn address_that_two_directors_have_is_told_once() {
    let mut fleet = Fleet::new(3);
    let service = address(100);
    let hold = |fleet: &mut Fleet, number: usize, held: Vec<IpAddr>| {
        fleet.directors[number].set_own(DirectorReport { held, ..report(1) });
    };
    hold(&mut fleet, 0, vec![service]);
    fleet.run(5_000, &[]);
    let shared = |fleet: &Fleet| -> Vec<(IpAddr, DirectorEvent)> {
        let is_shared = |event: &DirectorEvent| matches!(event, DirectorEvent::AddressShared { .. });
        fleet.events.iter().filter(|(_, event)| is_shared(event)).cloned().collect()
    };
    // The address moves: for a moment both have it.
    hold(&mut fleet, 1, vec![service]);
    fleet.run(1_000, &[]);
    hold(&mut fleet, 0, Vec::new());
    fleet.run(10_000, &[]);
    assert_eq!(shared(&fleet), []);
    hold(&mut fleet, 0, vec![service]);
    fleet.run(10_000, &[]);
    let told = |at, director| (address(at), DirectorEvent::AddressShared { director, address: service });
    let mut both = shared(&fleet);
    both.sort_unstable_by_key(|(at, _)| *at);
    assert_eq!(both, [told(1, address(2)), told(2, address(1))]);
    let known = fleet.directors[0].known();
    let differences = known.iter().map(|one| fleet.directors[0].differences(one));
    assert_eq!(differences.collect::<Vec<_>>(), [vec![DirectorDifference::Shared(service)], vec![]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Recorded datagrams don't change the state of a director, in whatever order and at whatever
    /// time they are replayed.
    #[test]
    fn replayed_datagrams_change_nothing(played in prop::collection::vec((any::<prop::sample::Index>(), 0u64..2_000), 1..40)) {
        let mut fleet = Fleet::new(2);
        fleet.run(2_000, &[]);
        let recorded = fleet.sent.clone();
        // The second director restarts and has another report.
        fleet.directors[1] = Directors::new(settings(2, 2), 999, fleet.now_ms);
        fleet.directors[1].set_own(report(5));
        fleet.run(1_000, &[]);
        prop_assert_eq!(fleet.known(1, 2).report, Some(report(5)));
        for (which, pause_ms) in played {
            let (to, datagram) = &recorded[which.index(recorded.len())];
            fleet.deliver(*to, datagram);
            fleet.run(pause_ms, &[]);
            let known = fleet.known(1, 2);
            prop_assert!(known.alive);
            prop_assert_eq!(known.report, Some(report(5)));
        }
    }
}
