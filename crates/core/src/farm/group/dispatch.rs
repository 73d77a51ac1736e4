//! Selection of a member for a request. A [`Dispatch`] is immutable except for its counters, so
//! many threads use it without locks.
//!
//! The control plane replaces the [`Dispatch`] when a member changes, and periodically, since
//! reports age. The [`Dispatch`] counts the requests that it dispatched since its creation.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher13;

use super::reach::Reach;
use crate::net::http::{Url, host_of, normal_path};
use crate::path::content::{HashKey, RequestClass, RequestKey, RouteIndex, RoutePattern};
use crate::path::seed::Seed;
use crate::pool::policy::{Choice, Weighted, in_turn, maglev};
use crate::pool::shares::{PERMILLE, most_permille};

/// Number of entries that are searched for a second member.
const OTHERS: u64 = 16;
/// Number of entries of the hash table, a prime.
const HASH_SLOTS: usize = 2_053;

/// Load that a dispatched request adds until the next report, in thousandths of the paper's unit.
/// That is as much as one more runnable process adds.
pub const PER_DISPATCH: u64 = 10_000;

/// A member that may be selected.
#[derive(Clone, Debug)]
pub struct MemberCandidate {
    /// Number of the member, assigned by the caller of [`Dispatch::new`].
    pub id: usize,
    /// URL that clients are redirected to.
    pub url: Arc<Url>,
    /// True if clients must not learn the URL.
    pub anonymous: bool,
    /// Allowed addresses of connections, if the member joined by itself and is proxied.
    pub reach: Option<Arc<Reach>>,
    /// True if the member is selected only while no candidate is available that is not a backup.
    pub backup: bool,
    /// Share relative to the other candidates. A candidate with weight 0 is never selected.
    pub weight: u16,
    /// Part of the weight that is in force because of the load, in thousandths.
    pub permille: u64,
    /// Current estimate of the load, in thousandths of the paper's unit.
    pub load: u64,
    /// Number of requests dispatched to the member.
    pub dispatched: Arc<AtomicU64>,
}

/// A route, and the members that serve its requests.
#[derive(Clone, Debug)]
pub struct RouteTo {
    pub route: crate::farm::Route,
    /// Indexes of the members among the candidates.
    pub members: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct DispatchRequest<'a> {
    pub client: IpAddr,
    /// Method as the client wrote it.
    pub method: &'a str,
    /// Host as the client wrote it.
    pub host: &'a [u8],
    /// Path and query, as written.
    pub target: &'a str,
}

/// Selects members for requests, by its policy and the candidates' state at its creation.
#[derive(Debug)]
pub struct Dispatch {
    candidates: Vec<MemberCandidate>,
    /// Number of requests dispatched to each candidate since the creation.
    given: Vec<AtomicU64>,
    /// Set of all candidates, followed by the candidate set of each route.
    sets: Vec<CandidateSet>,
    routes: Option<RouteIndex>,
    choice: Choice,
    seed: Seed,
    draws: AtomicU64,
}

/// Candidates for a request.
#[derive(Debug)]
struct CandidateSet {
    /// Ring of candidates, in which each candidate has as many entries as its share.
    order: Vec<u16>,
    /// Indexes of the candidates with a weight above 0.
    members: Vec<usize>,
    cursor: AtomicU64,
}

impl Dispatch {
    /// Creates a selection among candidates. Each route names the candidates for its requests.
    /// Because of a low load, a candidate gains at most `gain_percent` of its fair share within its
    /// set.
    pub fn new(
        choice: Choice,
        gain_percent: u64,
        candidates: Vec<MemberCandidate>,
        routes: &[RouteTo],
        seed: Seed,
    ) -> Dispatch {
        let everyone: Vec<usize> = (0..candidates.len()).collect();
        let numbered: Vec<RoutePattern> = (1..)
            .zip(routes)
            .map(|(ring, RouteTo { route, .. })| RoutePattern {
                host: route.host.clone(),
                path: route.path.clone(),
                methods: route.methods.clone(),
                ring,
            })
            .collect();
        let members = core::iter::once(&everyone).chain(routes.iter().map(|route| &route.members));
        Dispatch {
            given: candidates.iter().map(|_| AtomicU64::new(0)).collect(),
            sets: members
                .map(|members| CandidateSet::new(choice, gain_percent, &candidates, members))
                .collect(),
            routes: (!numbered.is_empty()).then(|| RouteIndex::compile(&numbered, 0, HashKey::new(seed))),
            candidates,
            choice,
            seed,
            draws: AtomicU64::new(0),
        }
    }

    /// Takes over the cursors and the count of random draws of an earlier selection. So requests
    /// stay evenly spread if most members and shares are unchanged.
    #[must_use]
    pub fn continuing(mut self, before: &Dispatch) -> Dispatch {
        self.draws = AtomicU64::new(before.draws.load(Relaxed));
        for (set, before) in self.sets.iter_mut().zip(&before.sets) {
            set.cursor = AtomicU64::new(before.place_in(set.order.len()));
        }
        self
    }

    /// Selects the member for a request and counts it; `None` if no candidate for the request
    /// works.
    pub fn choose(&self, wanted: &DispatchRequest<'_>) -> Option<&MemberCandidate> {
        let at = self.pick(self.set(wanted)?, wanted.client)?;
        let (candidate, given) = self.candidates.get(at).zip(self.given.get(at))?;
        given.fetch_add(1, Relaxed);
        candidate.dispatched.fetch_add(1, Relaxed);
        Some(candidate)
    }

    /// Returns the number of requests that were dispatched to each candidate since the creation.
    /// The first number is [`MemberCandidate::id`].
    pub fn given(&self) -> impl Iterator<Item = (usize, u64)> {
        self.candidates.iter().zip(&self.given).map(|(candidate, given)| (candidate.id, given.load(Relaxed)))
    }

    pub fn candidates(&self) -> &[MemberCandidate] {
        &self.candidates
    }

    /// Returns the index of the route of a request, if one matches, and the indexes of the
    /// candidates for the request. Unlike [`Dispatch::choose`], this counts no request.
    pub fn may_have(&self, wanted: &DispatchRequest<'_>) -> (Option<u16>, &[usize]) {
        let (route, set) = self.routed(wanted);
        (route, self.sets.get(usize::from(set)).map_or(&[], |set| &set.members))
    }

    fn set(&self, wanted: &DispatchRequest<'_>) -> Option<&CandidateSet> {
        let set = if self.routes.is_some() { self.routed(wanted).1 } else { 0 };
        self.sets.get(usize::from(set))
    }

    fn routed(&self, wanted: &DispatchRequest<'_>) -> (Option<u16>, u16) {
        let Some(routes) = &self.routes else { return (None, 0) };
        let path = wanted.target.split(['?', '#']).next().unwrap_or_default();
        // A malformed target becomes an empty path, which matches no route that has a path.
        let (host, path) = (host_of(wanted.host).unwrap_or_default(), normal_path(path).unwrap_or_default());
        let class = RequestClass::of(wanted.method.as_bytes());
        routes.find_all(&RequestKey { class, host: &host, path: &path, method: wanted.method.as_bytes() })
    }

    fn pick(&self, set: &CandidateSet, client: IpAddr) -> Option<usize> {
        match self.choice {
            Choice::Turn => set.at(set.cursor.fetch_add(1, Relaxed)),
            Choice::Hash => set.at(self.hash_of(client)),
            Choice::Random => set.at(self.random()),
            Choice::Head => set.members.iter().copied().min_by(|one, other| self.compare(*one, *other)),
            Choice::Two => self.lesser_of_two(set),
        }
    }

    /// Draws two different members by weight and returns the one with less load.
    fn lesser_of_two(&self, set: &CandidateSet) -> Option<usize> {
        let (one, second) = (set.at(self.random())?, self.random());
        // The entries of members are spread evenly, so another member is found within a few
        // entries.
        let others = (0..OTHERS).filter_map(|step| set.at(second.wrapping_add(step)));
        let other = others.into_iter().find(|other| *other != one).unwrap_or(one);
        Some(if self.compare(other, one).is_lt() { other } else { one })
    }

    /// Compares the load per weight of two members. The load includes the requests dispatched since
    /// the creation.
    fn compare(&self, one: usize, other: usize) -> core::cmp::Ordering {
        let load = |at: usize| {
            let (candidate, given) = (self.candidates.get(at)?, self.given.get(at)?.load(Relaxed));
            let load = candidate.load.saturating_add(given.saturating_mul(PER_DISPATCH));
            Some((u128::from(load) + 1, u128::from(candidate.weight)))
        };
        match (load(one), load(other)) {
            (Some((one, its_weight)), Some((other, their_weight))) => {
                (one * their_weight).cmp(&(other * its_weight))
            }
            _ => core::cmp::Ordering::Equal,
        }
    }

    /// Returns a random number that clients can't predict, since they don't know the seed.
    fn random(&self) -> u64 {
        let turn = self.draws.fetch_add(1, Relaxed);
        let mut hasher = SipHasher13::new_with_keys(self.seed.0, self.seed.1);
        hasher.write_u64(turn);
        hasher.finish()
    }

    fn hash_of(&self, client: IpAddr) -> u64 {
        // The hash has no key, so that every host computes the same hash.
        let mut hasher = SipHasher13::new();
        match client.to_canonical() {
            IpAddr::V4(client) => hasher.write(&client.octets()),
            IpAddr::V6(client) => hasher.write(&client.octets()),
        }
        hasher.finish()
    }
}

impl CandidateSet {
    fn new(
        choice: Choice,
        gain_percent: u64,
        candidates: &[MemberCandidate],
        members: &[usize],
    ) -> CandidateSet {
        let all = || members.iter().filter_map(|at| Some((*at, candidates.get(*at)?)));
        let backup = all().all(|(_, candidate)| candidate.backup || candidate.weight == 0);
        let found = || all().filter(|(_, candidate)| candidate.backup == backup);
        let shares = shares(gain_percent, found().map(|(_, candidate)| candidate));
        let weighted: Vec<Weighted> = found()
            .zip(shares)
            .filter_map(|((at, candidate), weight)| {
                let seed = seed_of(&candidate.url);
                Some(Weighted { slot: u16::try_from(at).ok()?, weight, seed })
            })
            .collect();
        let order = match choice {
            Choice::Hash => maglev(&weighted, HASH_SLOTS),
            _ => in_turn(&weighted),
        };
        let members = weighted.iter().filter(|member| member.weight > 0);
        let members: Vec<usize> = members.map(|member| usize::from(member.slot)).collect();
        CandidateSet { order, members, cursor: AtomicU64::new(0) }
    }

    /// Returns the cursor's position, scaled to a ring of another length.
    fn place_in(&self, len: usize) -> u64 {
        let (len, own) = (len as u64, self.order.len() as u64);
        let place = self.cursor.load(Relaxed).checked_rem(own).unwrap_or_default();
        place.saturating_mul(len).div_ceil(own.max(1))
    }

    fn at(&self, number: u64) -> Option<usize> {
        let len = self.order.len() as u64;
        let at = usize::try_from(number.checked_rem(len)?).ok()?;
        self.order.get(at).map(|slot| usize::from(*slot))
    }
}

/// Returns the shares of candidates. If load reduces no weight, they are the weights. Otherwise
/// they are the reduced weights, scaled so that the largest share is at most a thousand.
fn shares<'c>(gain_percent: u64, candidates: impl Iterator<Item = &'c MemberCandidate> + Clone) -> Vec<u16> {
    if candidates.clone().all(|candidate| candidate.permille >= PERMILLE) {
        return candidates.map(|candidate| candidate.weight).collect();
    }
    let parts: Vec<(u16, u64)> =
        candidates.map(|candidate| (candidate.weight, candidate.permille.min(PERMILLE))).collect();
    let most = most_permille(&parts, gain_percent);
    let heaviest = parts.iter().map(|(weight, _)| u64::from(*weight)).max().unwrap_or(1).max(1);
    let share = |(weight, permille): (u16, u64)| {
        let share = u64::from(weight) * permille.min(most) / heaviest;
        u16::try_from(share.max(u64::from(weight > 0))).unwrap_or(u16::MAX)
    };
    parts.into_iter().map(share).collect()
}

/// Seed of a member's entries in the hash table. It depends on the member's URL alone.
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

    const CHOICES: [Choice; 5] = [Choice::Head, Choice::Two, Choice::Turn, Choice::Hash, Choice::Random];

    fn candidates(described: &[(u16, u64)]) -> Vec<MemberCandidate> {
        let made = described.iter().enumerate().map(|(id, (weight, load))| MemberCandidate {
            id,
            url: Arc::new(Url::parse(&format!("http://m{id}.example")).unwrap()),
            anonymous: false,
            reach: None,
            backup: false,
            weight: *weight,
            permille: PERMILLE,
            load: *load,
            dispatched: Arc::default(),
        });
        made.collect()
    }

    fn dispatch(choice: Choice, described: &[(u16, u64)]) -> Dispatch {
        Dispatch::new(choice, 150, candidates(described), &[], Seed(7, 9))
    }

    fn wanted(client: u32) -> DispatchRequest<'static> {
        DispatchRequest {
            client: IpAddr::V4(client.into()),
            method: "GET",
            host: b"www.example.com",
            target: "/a?b",
        }
    }

    /// Returns how often each member was selected in `times` dispatches.
    fn shares(dispatch: &Dispatch, times: u32) -> Vec<u32> {
        let mut shares: BTreeMap<usize, u32> = dispatch.given().map(|(id, _)| (id, 0)).collect();
        for client in 0..times {
            *shares.get_mut(&dispatch.choose(&wanted(client)).unwrap().id).unwrap() += 1;
        }
        shares.into_values().collect()
    }

    #[test]
    fn turns_go_by_weight() {
        let dispatch = dispatch(Choice::Turn, &[(1, 0), (2, 0), (0, 0)]);
        assert_eq!(shares(&dispatch, 300), [100, 200, 0]);
    }

    #[test]
    fn paper_queue_selects_least_loaded_member() {
        let dispatch = dispatch(Choice::Head, &[(1, 100_000), (1, 60_000), (1, 1_000_000)]);
        let first: Vec<usize> = (0..6).map(|client| dispatch.choose(&wanted(client)).unwrap().id).collect();
        assert_eq!(first, [1, 1, 1, 1, 0, 1]);
        assert_eq!(dispatch.given().collect::<Vec<_>>(), [(0, 1), (1, 5), (2, 0)]);
    }

    #[test]
    fn two_choices_balance_dispatch_counts() {
        let equal = dispatch(Choice::Two, &[(1, 0), (1, 0), (1, 0)]);
        let shares_of_equals = shares(&equal, 3_000);
        assert!(shares_of_equals.iter().all(|share| (950..1_050).contains(share)), "{shares_of_equals:?}");
        let loaded = dispatch(Choice::Two, &[(1, 0), (1, 100_000_000), (1, 0)]);
        assert_eq!(shares(&loaded, 900)[1], 0);
    }

    #[test]
    fn turns_follow_loads_within_gain_limit() {
        let of = |gain_percent, parts: &[(u16, u64)]| {
            let weights: Vec<(u16, u64)> = parts.iter().map(|(weight, _)| (*weight, 0)).collect();
            let mut candidates = candidates(&weights);
            for (candidate, (_, permille)) in candidates.iter_mut().zip(parts) {
                candidate.permille = *permille;
            }
            shares(&Dispatch::new(Choice::Turn, gain_percent, candidates, &[], Seed(7, 9)), 4_000)
        };
        assert_eq!(of(150, &[(1, 1_000), (1, 1_000), (2, 1_000)]), [1_000, 1_000, 2_000]);
        assert_eq!(of(u64::MAX, &[(1, 1_000), (1, 500), (1, 500)]), [2_000, 1_000, 1_000]);
        let liar = of(150, &[(1, 1_000), (1, 30), (1, 30), (1, 30)])[0];
        assert!((1_460..=1_500).contains(&liar), "{liar} of 4000");
    }

    #[test]
    fn turns_go_on_where_the_choice_before_stopped() {
        let of = |weights: &[(u16, u64)]| dispatch(Choice::Turn, weights);
        let mut before = of(&[(1, 0), (1, 0), (1, 0)]);
        let mut ids = Vec::new();
        for client in 0..9 {
            ids.push(before.choose(&wanted(client)).unwrap().id);
            before = of(&[(1, 0), (1, 0), (1, 0)]).continuing(&before);
        }
        assert_eq!(ids, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        let more = of(&[(20, 0), (19, 0), (21, 0)]).continuing(&before);
        assert_eq!(more.sets[0].cursor.load(Relaxed), 0);
    }

    #[test]
    fn a_client_stays_with_its_member_when_another_goes() {
        let whole = dispatch(Choice::Hash, &[(1, 0), (1, 0), (1, 0)]);
        let less = dispatch(Choice::Hash, &[(1, 0), (0, 0), (1, 0)]);
        let at = |dispatch: &Dispatch, client| dispatch.choose(&wanted(client)).unwrap().id;
        let moved =
            (0..1_000).filter(|client| at(&whole, *client) != 1 && at(&whole, *client) != at(&less, *client));
        assert!(moved.count() < 60);
        assert!((0..1_000).all(|client| at(&whole, client) == at(&whole, client)));
    }

    #[test]
    fn routed_request_goes_to_route_members_else_all() {
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
        let dispatch = Dispatch::new(Choice::Turn, 150, candidates, &routes, Seed(1, 2));
        let to =
            |target| dispatch.choose(&DispatchRequest { target, ..wanted(1) }).map(|candidate| candidate.id);
        assert!((0..4).all(|_| to("/img/a?b") == Some(1) && to("/x/../%69mg/a") == Some(1)));
        assert_eq!(to("/none/x"), None);
        assert_eq!([to("/"), to("/")], [Some(0), Some(1)]);
        assert_eq!(dispatch.may_have(&DispatchRequest { target: "/img/", ..wanted(1) }), (Some(0), &[1][..]));
    }

    #[test]
    fn empty_group_chooses_no_member() {
        for choice in CHOICES {
            assert!(dispatch(choice, &[]).choose(&wanted(1)).is_none());
            assert!(dispatch(choice, &[(0, 0)]).choose(&wanted(1)).is_none());
        }
    }

    proptest! {
        #[test]
        fn chosen_member_has_weight_and_one_count(
            described in proptest::collection::vec((0u16..4, any::<u64>()), 1..20), choice in prop::sample::select(&CHOICES), client: u32
        ) {
            let dispatch = dispatch(choice, &described);
            let alive = described.iter().any(|(weight, _)| *weight > 0);
            let chosen = dispatch.choose(&wanted(client)).map(|candidate| (candidate.id, candidate.weight));
            prop_assert_eq!(chosen.is_some(), alive);
            prop_assert!(chosen.is_none_or(|(_, weight)| weight > 0));
            let given: u64 = dispatch.given().map(|(_, given)| given).sum();
            prop_assert_eq!(given, u64::from(alive));
        }
    }
}
