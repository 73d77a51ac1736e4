//! Who is chosen for a request: immutable but for counts, so that many threads choose by it at once and none waits.
//!
//! The control plane makes a new one when something changes, and from time to time, since reports age; what was given out since
//! then is counted here.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher13;

use super::members::PER_DISPATCH;
use super::model::{GroupPolicy, LoadReading};
use super::reach::Reach;
use crate::farm::policy::score::gains;
use crate::farm::policy::{Policy, RoundRobin, Weighted, maglev};
use crate::net::http::{Url, host_of, normal_path};
use crate::path::content::{Asked, Class, HashKey, Route, Routes};
use crate::path::select::GAIN_UNIT;
use crate::path::sessions::Seed;

/// So many of a hundred choices by aged reports don't look at them: whatever somebody reports, nobody is forgotten.
const BLIND_PERCENT: u64 = 3;
/// Draws of one choice, at most.
const DRAWS: u64 = 4;
/// How many turns are looked at for another member than the first.
const OTHERS: u64 = 16;
/// Slots of the hash table, a prime.
const HASH_SLOTS: usize = 2_053;

/// A member that may be chosen.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its number in the views of whoever made this.
    pub id: usize,
    /// Where clients are sent.
    pub url: Arc<Url>,
    /// Whether clients never learn of it.
    pub anonymous: bool,
    /// Where connections to it may go, if it joined by itself and is fetched from.
    pub reach: Option<Arc<Reach>>,
    /// Its share relative to the others; 0 is never chosen.
    pub weight: u16,
    /// Its load as it is thought to be now, in thousandths of the paper's unit.
    pub load: u64,
    /// What of that is for what it was given here, and not by its report.
    pub added: u64,
    /// How often it was chosen, ever.
    pub dispatched: Arc<AtomicU64>,
}

/// Requests that only some members are for.
#[derive(Clone, Debug)]
pub struct RouteTo {
    /// Which.
    pub route: crate::farm::Route,
    /// The places of its members among the candidates.
    pub members: Vec<usize>,
}

/// What a client wants.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Who asks.
    pub client: IpAddr,
    /// The method, as written.
    pub method: &'a str,
    /// The host, as written.
    pub host: &'a [u8],
    /// The path and query, as written.
    pub target: &'a str,
}

/// All that a choice goes by.
#[derive(Debug)]
pub struct Dispatch {
    candidates: Vec<Candidate>,
    /// What each was given since this was made.
    given: Vec<AtomicU64>,
    /// All of them; behind that those of routes.
    sets: Vec<Set>,
    routes: Option<Routes>,
    policy: GroupPolicy,
    load: LoadReading,
    seed: Seed,
    turn: AtomicU64,
}

/// Candidates that a request may go to.
#[derive(Debug)]
struct Set {
    /// Each as often as its weight says.
    order: Vec<u16>,
    /// Those with a weight.
    members: Vec<usize>,
    /// How far the reports of these may draw requests to them, as [`gains`] has it.
    gains: Vec<u8>,
    cursor: AtomicU64,
}

impl Dispatch {
    /// By a policy, among candidates, of whom routes may name some.
    pub fn new(
        policy: GroupPolicy,
        load: LoadReading,
        candidates: Vec<Candidate>,
        routes: &[RouteTo],
        seed: Seed,
    ) -> Dispatch {
        let everyone: Vec<usize> = (0..candidates.len()).collect();
        let numbered: Vec<Route> = (1..)
            .zip(routes)
            .map(|(ring, RouteTo { route, .. })| Route {
                host: route.host.clone(),
                path: route.path.clone(),
                methods: route.methods.clone(),
                ring,
            })
            .collect();
        let members = core::iter::once(&everyone).chain(routes.iter().map(|route| &route.members));
        Dispatch {
            given: candidates.iter().map(|_| AtomicU64::new(0)).collect(),
            sets: members.map(|members| Set::new(policy, load, &candidates, members)).collect(),
            routes: (!numbered.is_empty()).then(|| Routes::compile(&numbered, 0, HashKey::new(seed))),
            candidates,
            policy,
            load,
            seed,
            turn: AtomicU64::new(0),
        }
    }

    /// Goes on with turns and draws where another one stopped.
    #[must_use]
    pub fn starting_at(mut self, turn: u64) -> Dispatch {
        self.turn = AtomicU64::new(turn.wrapping_mul(DRAWS));
        for set in &mut self.sets {
            set.cursor = AtomicU64::new(turn);
        }
        self
    }

    /// The member for a request, which is counted as given to it; `None` where none of those that it may go to lives.
    pub fn choose(&self, wanted: &Wanted<'_>) -> Option<&Candidate> {
        let at = self.pick(self.set(wanted)?, wanted.client)?;
        let (candidate, given) = self.candidates.get(at).zip(self.given.get(at))?;
        given.fetch_add(1, Relaxed);
        candidate.dispatched.fetch_add(1, Relaxed);
        Some(candidate)
    }

    /// What each candidate was given since this was made, by [`Candidate::id`].
    pub fn given(&self) -> impl Iterator<Item = (usize, u64)> {
        self.candidates.iter().zip(&self.given).map(|(candidate, given)| (candidate.id, given.load(Relaxed)))
    }

    /// Who may be chosen.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The places of those that a request may go to, and the route that says so, counted from 0. Nothing is given.
    pub fn may_have(&self, wanted: &Wanted<'_>) -> (Option<u16>, &[usize]) {
        let (route, set) = self.routed(wanted);
        (route, self.sets.get(usize::from(set)).map_or(&[], |set| &set.members))
    }

    fn set(&self, wanted: &Wanted<'_>) -> Option<&Set> {
        let set = if self.routes.is_some() { self.routed(wanted).1 } else { 0 };
        self.sets.get(usize::from(set))
    }

    fn routed(&self, wanted: &Wanted<'_>) -> (Option<u16>, u16) {
        let Some(routes) = &self.routes else { return (None, 0) };
        let path = wanted.target.split(['?', '#']).next().unwrap_or_default();
        // What has no normal form is taken by no route that wants one.
        let (host, path) = (host_of(wanted.host).unwrap_or_default(), normal_path(path).unwrap_or_default());
        let class = Class::of(wanted.method.as_bytes());
        routes.find_all(&Asked { class, host: &host, path: &path, method: wanted.method.as_bytes() })
    }

    fn pick(&self, set: &Set, client: IpAddr) -> Option<usize> {
        match (self.policy, self.load) {
            (GroupPolicy::RoundRobin, _) => set.at(set.cursor.fetch_add(1, Relaxed)),
            (GroupPolicy::Hash, _) => set.at(self.hash_of(client)),
            (GroupPolicy::Random, _) => set.at(self.random()),
            (GroupPolicy::LeastLoad, LoadReading::Paper) => set
                .members
                .iter()
                .copied()
                .min_by(|one, other| self.compare(*one, *other, |candidate| candidate.load)),
            (GroupPolicy::PowerOfTwo, _) => self.lesser_of_two(set),
            (GroupPolicy::LeastLoad, LoadReading::Aged { .. }) if self.random() % 100 < BLIND_PERCENT => {
                set.at(self.random())
            }
            (GroupPolicy::LeastLoad, LoadReading::Aged { .. }) => self.lesser_of_two(set),
        }
    }

    /// Of two different members, drawn by their weights, the less loaded. Where what they were given says otherwise, the second one's
    /// report has its way with a part of the requests only.
    fn lesser_of_two(&self, set: &Set) -> Option<usize> {
        let (one, second) = (set.at(self.random())?, self.random());
        // Who has the other turns is spread evenly, so that another one is soon found.
        let others = (0..OTHERS).filter_map(|step| set.at(second.wrapping_add(step)));
        let other = others.into_iter().find(|other| *other != one).unwrap_or(one);
        let by_load = self.compare(other, one, |candidate| candidate.load).is_lt();
        let is_drawn = by_load
            && (self.compare(other, one, |candidate| candidate.added).is_lt()
                || self.random() % GAIN_UNIT <= set.gain(other));
        Some(if is_drawn { other } else { one })
    }

    /// Which of two is less loaded for its weight, by this load and what they were given since.
    fn compare(&self, one: usize, other: usize, load: fn(&Candidate) -> u64) -> core::cmp::Ordering {
        let load = |at: usize| {
            let (candidate, given) = (self.candidates.get(at)?, self.given.get(at)?.load(Relaxed));
            let load = load(candidate).saturating_add(given.saturating_mul(PER_DISPATCH));
            Some((u128::from(load) + 1, u128::from(candidate.weight)))
        };
        match (load(one), load(other)) {
            (Some((one, its_weight)), Some((other, their_weight))) => {
                (one * their_weight).cmp(&(other * its_weight))
            }
            _ => core::cmp::Ordering::Equal,
        }
    }

    /// A number that nobody can foresee who doesn't know the seed.
    fn random(&self) -> u64 {
        let turn = self.turn.fetch_add(1, Relaxed);
        let mut hasher = SipHasher13::new_with_keys(self.seed.0, self.seed.1);
        hasher.write_u64(turn);
        hasher.finish()
    }

    fn hash_of(&self, client: IpAddr) -> u64 {
        // The same on every host, whatever its seed is.
        let mut hasher = SipHasher13::new();
        match client.to_canonical() {
            IpAddr::V4(client) => hasher.write(&client.octets()),
            IpAddr::V6(client) => hasher.write(&client.octets()),
        }
        hasher.finish()
    }
}

impl Set {
    fn new(policy: GroupPolicy, load: LoadReading, candidates: &[Candidate], members: &[usize]) -> Set {
        let found = members.iter().filter_map(|at| Some((*at, candidates.get(*at)?)));
        let weighted: Vec<Weighted> = found
            .filter_map(|(at, candidate)| {
                let seed = seed_of(&candidate.url);
                Some(Weighted { slot: u16::try_from(at).ok()?, weight: candidate.weight, seed })
            })
            .collect();
        let order = match policy {
            GroupPolicy::Hash => maglev(&weighted, HASH_SLOTS),
            _ => RoundRobin.order(&weighted),
        };
        let members = weighted.iter().filter(|member| member.weight > 0);
        let members: Vec<usize> = members.map(|member| usize::from(member.slot)).collect();
        let reported =
            |candidate: &Candidate| (candidate.weight, candidate.load.saturating_sub(candidate.added));
        let gains = match load {
            LoadReading::Aged { gain_percent } => {
                let reported = members.iter().filter_map(|at| candidates.get(*at)).map(reported);
                gains(&reported.collect::<Vec<_>>(), gain_percent)
            }
            LoadReading::Paper => Vec::new(),
        };
        Set { order, members, gains, cursor: AtomicU64::new(0) }
    }

    /// How far a member's report may draw requests to it.
    fn gain(&self, member: usize) -> u64 {
        let place = self.members.iter().position(|one| *one == member);
        place.and_then(|place| self.gains.get(place)).map_or(u64::from(u8::MAX), |gain| u64::from(*gain))
    }

    fn at(&self, number: u64) -> Option<usize> {
        let len = self.order.len() as u64;
        let at = usize::try_from(number.checked_rem(len)?).ok()?;
        self.order.get(at).map(|slot| usize::from(*slot))
    }
}

/// A member's place in hash tables comes from its URL alone.
fn seed_of(url: &Url) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(url.as_str().as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::path::content::PathPattern;

    fn candidates(described: &[(u16, u64)]) -> Vec<Candidate> {
        let made = described.iter().enumerate().map(|(id, (weight, load))| Candidate {
            id,
            url: Arc::new(Url::parse(&format!("http://m{id}.example")).unwrap()),
            anonymous: false,
            reach: None,
            weight: *weight,
            load: *load,
            added: 0,
            dispatched: Arc::default(),
        });
        made.collect()
    }

    const AGED: LoadReading = LoadReading::Aged { gain_percent: 150 };

    fn dispatch(policy: GroupPolicy, load: LoadReading, described: &[(u16, u64)]) -> Dispatch {
        Dispatch::new(policy, load, candidates(described), &[], Seed(7, 9))
    }

    fn wanted(client: u32) -> Wanted<'static> {
        Wanted { client: IpAddr::V4(client.into()), method: "GET", host: b"www.example.com", target: "/a?b" }
    }

    /// How often each was chosen of so many times.
    fn shares(dispatch: &Dispatch, times: u32) -> Vec<u32> {
        let mut shares: BTreeMap<usize, u32> = dispatch.given().map(|(id, _)| (id, 0)).collect();
        for client in 0..times {
            *shares.get_mut(&dispatch.choose(&wanted(client)).unwrap().id).unwrap() += 1;
        }
        shares.into_values().collect()
    }

    #[test]
    fn turns_go_by_weight() {
        let dispatch = dispatch(GroupPolicy::RoundRobin, AGED, &[(1, 0), (2, 0), (0, 0)]);
        assert_eq!(shares(&dispatch, 300), [100, 200, 0]);
    }

    #[test]
    fn the_papers_queue_gives_to_the_least_loaded_until_it_is_not() {
        let dispatch = dispatch(
            GroupPolicy::LeastLoad,
            LoadReading::Paper,
            &[(1, 100_000), (1, 60_000), (1, 1_000_000)],
        );
        let first: Vec<usize> = (0..6).map(|client| dispatch.choose(&wanted(client)).unwrap().id).collect();
        assert_eq!(first, [1, 1, 1, 1, 0, 1]);
        assert_eq!(dispatch.given().collect::<Vec<_>>(), [(0, 1), (1, 5), (2, 0)]);
    }

    #[test]
    fn two_choices_even_out_and_spare_the_loaded() {
        let equal = dispatch(GroupPolicy::LeastLoad, AGED, &[(1, 50_000), (1, 50_000), (1, 50_000)]);
        let shares_of_equals = shares(&equal, 3_000);
        assert!(shares_of_equals.iter().all(|share| (950..1_050).contains(share)), "{shares_of_equals:?}");
        let loaded = dispatch(GroupPolicy::LeastLoad, AGED, &[(1, 0), (1, 100_000_000), (1, 0)]);
        let shares_of_loaded = shares(&loaded, 900);
        // Only where nobody looks: a third of three in a hundred.
        assert!((3..20).contains(&shares_of_loaded[1]), "{shares_of_loaded:?}");
    }

    /// It is believed, but for half again of a fair share at the most; the paper's reading believes all of it.
    #[test]
    fn a_report_that_nothing_bears_out_gains_little() {
        let loads = [(1, 0), (1, 500_000_000), (1, 500_000_000), (1, 500_000_000)];
        let share = |load| shares(&dispatch(GroupPolicy::LeastLoad, load, &loads), 4_000)[0];
        let aged = share(AGED);
        assert!((1_200..=1_620).contains(&aged), "{aged} of 4000");
        assert!(share(LoadReading::Aged { gain_percent: 3_200 }) > 1_700);
        assert_eq!(share(LoadReading::Paper), 4_000);
    }

    #[test]
    fn a_client_stays_with_its_member_when_another_goes() {
        let whole = dispatch(GroupPolicy::Hash, AGED, &[(1, 0), (1, 0), (1, 0)]);
        let less = dispatch(GroupPolicy::Hash, AGED, &[(1, 0), (0, 0), (1, 0)]);
        let at = |dispatch: &Dispatch, client| dispatch.choose(&wanted(client)).unwrap().id;
        let moved =
            (0..1_000).filter(|client| at(&whole, *client) != 1 && at(&whole, *client) != at(&less, *client));
        assert!(moved.count() < 60);
        assert!((0..1_000).all(|client| at(&whole, client) == at(&whole, client)));
    }

    #[test]
    fn routes_name_the_members_and_what_none_takes_goes_to_all() {
        let route = |path: &str, members: &[usize]| RouteTo {
            route: crate::farm::Route {
                host: None,
                path: Some(PathPattern::parse(path).unwrap()),
                methods: vec![],
                servers: vec![],
            },
            members: members.to_vec(),
        };
        let routes = [route("/img/*", &[1]), route("/none/*", &[])];
        let candidates = candidates(&[(1, 0), (1, 0)]);
        let dispatch = Dispatch::new(GroupPolicy::RoundRobin, AGED, candidates, &routes, Seed(1, 2));
        let to = |target| dispatch.choose(&Wanted { target, ..wanted(1) }).map(|candidate| candidate.id);
        assert!((0..4).all(|_| to("/img/a?b") == Some(1) && to("/x/../%69mg/a") == Some(1)));
        assert_eq!(to("/none/x"), None);
        assert_eq!([to("/"), to("/")], [Some(0), Some(1)]);
        assert_eq!(dispatch.may_have(&Wanted { target: "/img/", ..wanted(1) }), (Some(0), &[1][..]));
    }

    #[test]
    fn nobody_is_nobody() {
        for policy in GroupPolicy::ALL {
            for load in [AGED, LoadReading::Paper] {
                assert!(dispatch(policy, load, &[]).choose(&wanted(1)).is_none());
                assert!(dispatch(policy, load, &[(0, 0)]).choose(&wanted(1)).is_none());
            }
        }
    }

    proptest! {
        #[test]
        fn whoever_is_chosen_has_a_weight_and_is_counted_once(
            described in proptest::collection::vec((0u16..4, any::<u64>()), 1..20), policy in 0usize..5, client: u32
        ) {
            let policy = GroupPolicy::ALL[policy];
            for load in [AGED, LoadReading::Paper] {
                let dispatch = dispatch(policy, load, &described);
                let alive = described.iter().any(|(weight, _)| *weight > 0);
                let chosen = dispatch.choose(&wanted(client)).map(|candidate| (candidate.id, candidate.weight));
                prop_assert_eq!(chosen.is_some(), alive);
                prop_assert!(chosen.is_none_or(|(_, weight)| weight > 0));
                let given: u64 = dispatch.given().map(|(_, given)| given).sum();
                prop_assert_eq!(given, u64::from(alive));
            }
        }
    }
}
