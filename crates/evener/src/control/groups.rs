//! The loop's part in server groups: it tells core's `Members` facts, and carries out what they order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{SystemTime, UNIX_EPOCH};

use evener_core::director;
use evener_core::farm::group::{Group, MemberState, Members, Moment, Order, Queried, Reach, TokenThrottle};
use evener_core::farm::plan::ServerName;
use evener_core::net::http::Url;
use evener_core::node::group::Message;
use evener_core::path::seed::Seed;
use evener_core::pool::{Fact, State};
use tokio::sync::mpsc;

use super::now_ms;
use crate::board::request::{GroupAnswer, GroupAsker};
use crate::config::{Config, GroupService, Tls};
use crate::events::{Bus, Event};
use crate::io::member_probe::probe_member;
use crate::record::Recorder;
use crate::redirect::{
    Ask, Asker, Attendant, Desk, Front, ListenError, Opened, Question, Reply, Responders, Rules, Shown,
    ShownGroup, Telling, ask_for_load, ask_for_report, read_tls,
};
use crate::runtime::descriptors::Room;
use crate::runtime::group_tokens::GroupTokens;
use crate::runtime::spelling::meant;

/// Results of probes that wait for the loop.
const RESULTS: usize = 256;

/// What was found out of a member.
pub(super) struct Found {
    group: String,
    member: usize,
    answer: Answer,
}

/// What came of a question to a member.
enum Answer {
    Fact(Fact),
    /// Of a LOAD-QUERY.
    Queried(Queried),
}

/// All groups.
pub(super) struct Groups {
    running: BTreeMap<String, Running>,
    /// By which members join, of each group that has some; and those of a file that is not in force yet.
    tokens: BTreeMap<String, GroupTokens>,
    next_tokens: BTreeMap<String, GroupTokens>,
    /// How often tokens of all groups are looked up.
    throttle: TokenThrottle,
    /// None while there was never a group.
    responders: Option<Responders>,
    attendant: Attendant,
    telling: Telling,
    directory: PathBuf,
    seed: Seed,
    bus: Bus,
    results: mpsc::Sender<Found>,
    pub(super) found: mpsc::Receiver<Found>,
    /// What members say.
    pub(super) asked: mpsc::Receiver<Ask>,
    shown: Arc<Shown>,
    /// Where this daemon listens: no member is there.
    own: Arc<[SocketAddr]>,
}

/// A group that is answered for.
struct Running {
    group: Arc<Group>,
    members: Members,
    front: Arc<Front>,
    /// Authorities that have signed members' certificates, if they may show some.
    client_ca: Option<PathBuf>,
}

impl Running {
    fn rules(&mut self, now: Moment, own: &Arc<[SocketAddr]>) -> Rules {
        let names = self.members.snapshot(now).into_iter().map(|member| (member.id, member.name)).collect();
        Rules {
            status: self.group.status,
            dispatch: self.members.dispatch(now),
            names,
            own: Arc::clone(own),
            retry_after_s: self.members.retry_after_s(),
        }
    }
}

impl Groups {
    /// None yet.
    pub(super) fn new(directory: &Path, seed: Seed, bus: Bus, recorder: &Arc<Recorder>) -> Groups {
        let (results, found) = mpsc::channel(RESULTS);
        let telling = Telling::new(Arc::clone(recorder));
        let (asks, asked) = mpsc::channel(RESULTS);
        Groups {
            running: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next_tokens: BTreeMap::new(),
            throttle: TokenThrottle::default(),
            responders: None,
            attendant: Attendant::start(telling.clone(), asks),
            telling,
            asked,
            directory: directory.to_owned(),
            seed,
            bus,
            results,
            found,
            shown: Arc::default(),
            own: Arc::new([]),
        }
    }

    /// Where it is to be seen what they are.
    pub(super) fn shown(&self) -> Arc<Shown> {
        Arc::clone(&self.shown)
    }

    /// Gets all that a file's groups need and that can be refused; nothing changes by that.
    ///
    /// # Errors
    /// What is refused.
    pub(super) fn open(&mut self, config: &Config) -> Result<Option<Opened>, ListenError> {
        self.next_tokens = tokens(config)?;
        if self.responders.is_none() {
            if config.groups.is_empty() {
                return Ok(None);
            }
            let threads = available_parallelism().map_or(1, NonZero::get);
            let taker = self.attendant.taker();
            self.responders =
                Some(Responders::start(threads, Room::make().redirected, &taker, &self.telling)?);
        }
        let Some(responders) = &self.responders else { return Ok(None) };
        let mut opened = responders.open(&wanted(config))?;
        for GroupService { group, tls, client_ca, .. } in &config.groups {
            if let Some(Tls { certificate, key }) = tls {
                let read = read_tls(&group.name, certificate, key, client_ca.as_deref())?;
                opened.tls.insert(group.name.clone(), read);
            }
        }
        Ok(Some(opened))
    }

    /// Goes on with the groups of a file; members and open connections stay.
    pub(super) fn follow(&mut self, config: &Config, opened: Option<Opened>) {
        let now = moment();
        self.tokens = std::mem::take(&mut self.next_tokens);
        self.own = listening(config);
        let gone: Vec<String> = self.running.keys().filter(|name| !has(config, name)).cloned().collect();
        for name in gone {
            if let Some(running) = self.running.remove(&name) {
                running.front.end();
            }
        }
        for GroupService { group, client_ca, .. } in &config.groups {
            if group.joining.insecure {
                let message = "INSECURE: whoever reaches this service's address may join it and gets its clients, and may \
                               make members leave; give it a token_file in place of `insecure`";
                tracing::warn!(service = group.name, "{message}");
            }
            match self.running.get_mut(&group.name) {
                Some(running) => {
                    running.group = Arc::new(group.clone());
                    running.members.reload(now, group);
                }
                None => drop(self.running.insert(group.name.clone(), self.begin(now, group))),
            }
            self.publish(now, &group.name);
            let tls = opened.as_ref().and_then(|opened| opened.tls.get(&group.name));
            if let Some(running) = self.running.get_mut(&group.name) {
                running.client_ca.clone_from(client_ca);
                running.front.secure(tls.cloned());
            }
        }
        let fronts = self.running.iter().map(|(name, running)| (name.clone(), Arc::clone(&running.front)));
        let fronts: BTreeMap<String, Arc<Front>> = fronts.collect();
        if let Some((responders, opened)) = self.responders.as_mut().zip(opened) {
            responders.follow(opened, &fronts, &wanted(config));
        }
        self.settle();
    }

    fn begin(&self, now: Moment, group: &Group) -> Running {
        let record = fs::read_to_string(record_path(&self.directory, &group.name)).ok();
        let mut members = Members::new(now, group, self.seed, record.as_deref());
        members.keep_drained(now, self.drained(&group.name));
        let mut running = Running {
            group: Arc::new(group.clone()),
            client_ca: None,
            front: Arc::new(Front::new(&group.name, Rules::none(group.status))),
            members,
        };
        let rules = running.rules(now, &self.own);
        running.front.publish(rules);
        running
    }

    /// A question has come back.
    pub(super) fn take(&mut self, Found { group, member, answer }: Found) {
        if let Some(Running { members, .. }) = self.running.get_mut(&group) {
            match answer {
                Answer::Fact(fact) => members.take(moment(), member, fact),
                Answer::Queried(queried) => members.queried(moment(), member, queried),
            }
        }
        self.settle();
    }

    /// A member says something.
    pub(super) fn answer(&mut self, ask: Ask) {
        let Ask { group, from, verb, authorization, certificate, body, answer } = ask;
        let asker = Asker::Stranger {
            from: from.ip(),
            authorization: authorization.as_deref(),
            certificate: certificate.as_ref(),
        };
        let reply = match self.desk(&group) {
            Some(mut desk) => desk.answer(moment(), asker, &verb, &body),
            None => {
                Reply { status: 503, kind: "text/plain", body: "this group is no longer served\n".to_owned() }
            }
        };
        if reply.status >= 400 {
            tracing::debug!(group, %from, verb, status = reply.status, why = reply.body.trim_end(), "refused");
        } else {
            // What is refused changes nothing, and who guesses tokens costs no more than the look.
            self.settle();
        }
        // Who asked may have gone; that is no matter.
        let _ = answer.send(reply);
    }

    /// The same of who came by another way.
    pub(super) fn ordered(&mut self, group: &str, asker: &GroupAsker, message: Message) -> GroupAnswer {
        let asker = match asker {
            GroupAsker::Stranger { from, authorization } => {
                Asker::Stranger { from: *from, authorization: authorization.as_deref(), certificate: None }
            }
            GroupAsker::Operator => Asker::Operator,
        };
        let Some(mut desk) = self.desk(group) else {
            let known = meant(group, self.running.keys().map(String::as_str));
            return GroupAnswer {
                status: 404,
                body: format!("there is no server group {group}; {known}"),
                is_json: false,
            };
        };
        let Reply { status, kind, body } = desk.answer_read(moment(), asker, message);
        self.settle();
        GroupAnswer { status, body, is_json: kind == "application/json" }
    }

    /// Where a group's messages are answered.
    fn desk(&mut self, name: &str) -> Option<Desk<'_>> {
        let Running { group, members, client_ca, .. } = self.running.get_mut(name)?;
        let (tokens, throttle) = (self.tokens.get(name), &mut self.throttle);
        Some(Desk { group, members, tokens, throttle, certifies: client_ca.is_some() })
    }

    /// Time has passed.
    pub(super) fn time(&mut self) {
        let now = moment();
        if self.next_at() <= now.now_ms {
            self.settle();
        }
    }

    /// When there is something to do next, in milliseconds of the monotonic clock.
    pub(super) fn next_at(&self) -> u64 {
        self.running.values().map(|running| running.members.poll_timeout()).min().unwrap_or(u64::MAX)
    }

    /// Whether there are none, or each has a member that lives.
    pub(super) fn are_serving(&self) -> bool {
        let now = moment();
        let serves = |running: &Running| {
            let members = running.members.snapshot(now);
            // Who waits for members to join is ready for them.
            members.is_empty() || members.iter().any(|member| member.state == State::Up)
        };
        self.running.values().all(serves)
    }

    /// Whether it is known of every member whether it lives.
    pub(super) fn are_settled(&self) -> bool {
        let now = moment();
        let known = |running: &Running| running.members.snapshot(now).iter().all(is_known);
        self.running.values().all(known)
    }

    /// Whether a service is one of them.
    pub(super) fn has(&self, service: &str) -> bool {
        self.running.contains_key(service)
    }

    /// Drains a member, or ends that.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn drain(&mut self, service: &str, server: &str, drain: bool) -> Result<String, String> {
        let now = moment();
        let running =
            self.running.get_mut(service).ok_or_else(|| format!("there is no service {service}"))?;
        if !running.members.drain(now, server, drain) {
            let members = running.members.snapshot(now);
            let meant = meant(server, members.iter().map(|member| member.name.as_str()));
            return Err(format!("service {service} has no server {server}; {meant}"));
        }
        let full = format!("{service}/{server}");
        let mut drained = self.drained(service);
        let changed = if drain { drained.insert(server.to_owned()) } else { drained.remove(server) };
        self.settle();
        let text = drained.iter().map(|name| format!("{name}\n")).collect::<String>();
        replace(&drained_path(&self.directory, service), &text)
            .map_err(|error| format!("{full}: done, but it will be forgotten at a restart: {error}"))?;
        Ok(match (drain, changed) {
            (true, true) => format!("{full} drains: no more clients are sent to it"),
            (true, false) => format!("{full} was draining already"),
            (false, true) => format!("{full} gets clients again"),
            (false, false) => format!("{full} was not drained"),
        })
    }

    fn drained(&self, service: &str) -> BTreeSet<String> {
        let text = fs::read_to_string(drained_path(&self.directory, service)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Carries out what all groups order, and shows what they are then.
    fn settle(&mut self) {
        let now = moment();
        let names: Vec<String> = self.running.keys().cloned().collect();
        for name in names {
            let orders = self.running.get_mut(&name).map(|running| running.members.poll(now));
            for order in orders.into_iter().flatten() {
                self.execute(now, &name, order);
            }
        }
        let shown = self.running.values().map(|running| ShownGroup {
            group: Arc::clone(&running.group),
            front: Arc::clone(&running.front),
            members: running.members.snapshot(now),
            at_ms: now.now_ms,
        });
        self.shown.publish(shown.collect());
    }

    fn execute(&mut self, now: Moment, name: &str, order: Order) {
        match order {
            Order::Probe { member, url, reach } => self.probe(name, member, url, reach),
            Order::Query { member, url, is_named, reach } => self.query(name, member, url, is_named, reach),
            Order::Ask { member, url, reach } => self.ask(name, member, url, reach),
            Order::Save => self.save(name),
            Order::Publish => self.publish(now, name),
            Order::Tell(event) => {
                self.bus.tell(Event::Member { service: name.to_owned(), event: Box::new(event) });
            }
            Order::TellAnswers { member, refuses, error } => {
                let server = || ServerName { service: name.to_owned(), server: member.clone() };
                if let Some(refuses) = refuses {
                    self.bus.tell(Event::Farm(director::Event::Wished { server: server(), refuses }));
                }
                if let Some(error) = error {
                    self.bus.tell(Event::Farm(director::Event::Reports { server: server(), error }));
                }
            }
        }
    }

    fn probe(&self, name: &str, member: usize, url: Url, reach: Option<Reach>) {
        let Some(running) = self.running.get(name) else { return };
        let (group, own) = (Arc::clone(&running.group), Arc::clone(&self.own));
        self.find_out(name, member, async move {
            Answer::Fact(Fact::Probed(probe_member(&url, reach.as_ref(), &group.health, &own).await))
        });
    }

    fn query(&self, name: &str, member: usize, url: Url, is_named: bool, reach: Option<Reach>) {
        let Some(running) = self.running.get(name) else { return };
        let from = running.group.addresses.iter().map(SocketAddr::ip).collect();
        let (own, ca) = (Arc::clone(&self.own), running.client_ca.clone());
        let question = Question { url, is_named, reach, own, from, ca };
        self.find_out(name, member, async move { Answer::Queried(ask_for_load(question).await) });
    }

    fn ask(&self, name: &str, member: usize, url: Url, reach: Option<Reach>) {
        let settings = self.running.get(name).and_then(|running| running.group.report.clone());
        let (Some(settings), own) = (settings, Arc::clone(&self.own)) else { return };
        self.find_out(name, member, async move {
            Answer::Fact(Fact::Reported(ask_for_report(url, reach, own, settings).await))
        });
    }

    fn find_out(&self, group: &str, member: usize, answer: impl Future<Output = Answer> + Send + 'static) {
        let (group, results) = (group.to_owned(), self.results.clone());
        tokio::spawn(async move {
            let answer = answer.await;
            // The loop ends first only when the daemon does.
            let _ = results.send(Found { group, member, answer }).await;
        });
    }

    fn publish(&mut self, now: Moment, name: &str) {
        let Some(running) = self.running.get_mut(name) else { return };
        let rules = running.rules(now, &self.own);
        running.front.publish(rules);
    }

    fn save(&self, name: &str) {
        let Some(running) = self.running.get(name) else { return };
        let path = record_path(&self.directory, name);
        if let Err(error) = replace(&path, &running.members.record()) {
            tracing::warn!(%error, service = name, "its members will be forgotten at a restart");
        }
    }

    /// Forgets who had joined, and who was drained.
    pub(super) fn forget(&self) {
        for name in self.running.keys() {
            let _ = fs::remove_file(record_path(&self.directory, name));
            let _ = fs::remove_file(drained_path(&self.directory, name));
        }
    }
}

fn has(config: &Config, name: &str) -> bool {
    config.groups.iter().any(|service| service.group.name == name)
}

/// Whether it is known of a member whether it lives.
pub(super) fn is_known(member: &MemberState) -> bool {
    member.state != State::Down || member.latency_us.is_some() || member.last_failure.is_some()
}

/// The tokens that a file names.
fn tokens(config: &Config) -> Result<BTreeMap<String, GroupTokens>, ListenError> {
    let named =
        config.groups.iter().filter_map(|service| Some((&service.group, service.token_file.as_ref()?)));
    let read = named.map(|(group, file)| {
        let tokens = GroupTokens::read(file);
        let service = group.name.clone();
        tokens
            .map_err(|source| ListenError::Tokens { service: service.clone(), source })
            .map(|read| (service, read))
    });
    read.collect()
}

/// All addresses on which this daemon listens.
fn listening(config: &Config) -> Arc<[SocketAddr]> {
    let groups = config.groups.iter().flat_map(|service| &service.group.addresses);
    groups.chain(&config.admin.listen).chain(&config.dns.listen).copied().collect()
}

/// Where it is to be answered, and for which service.
fn wanted(config: &Config) -> Vec<(SocketAddr, &str)> {
    let groups = config.groups.iter().map(|service| &service.group);
    groups.flat_map(|group| group.addresses.iter().map(|address| (*address, group.name.as_str()))).collect()
}

pub(super) fn moment() -> Moment {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment { now_ms: now_ms(), unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX) }
}

/// Names of services have no slash.
fn record_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("group.{name}"))
}

fn drained_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("group.{name}.drained"))
}

/// Writes a file anew, whole or not at all.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}
