//! Server groups within the control loop: passes members' messages to core, and executes the
//! groups' orders.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use evener_core::director::{Director, Input, MemberFact, Moment};
use evener_core::farm::group::{GroupRules, MemberOrder, TokenThrottle};
use evener_core::net::http::{Response, Url};
use evener_core::node::group::GroupMessage;
use evener_core::pool::Fact;
use tokio::sync::mpsc;

use super::group_files::GroupFiles;
use crate::board::request::{GroupReply, GroupSender};
use crate::config::{Config, GroupService};
use crate::io::member_probe::probe_member;
use crate::record::Recorder;
use crate::redirect::{
    Clients, Frontend, Frontends, GroupContext, GroupSockets, JSON, ListenError, MemberMessage, MemberQuery,
    MessageSender, RequestLog, Responders, Rules, fetch_report, query_load,
};
use crate::runtime::descriptors::ClientLimits;
use crate::runtime::files;
use crate::runtime::group_tokens::GroupTokens;
use crate::runtime::spelling::meant;

/// Capacity of the queue of members' messages.
const MESSAGES: usize = 256;

/// Frontends, credentials and threads of groups.
pub(super) struct GroupControl {
    fronts: Arc<Frontends>,
    /// File of authorities that sign members' certificates, by group.
    client_cas: BTreeMap<String, PathBuf>,
    /// Tokens that let members join, by group. `next_tokens` belong to a file that is not in force
    /// yet.
    tokens: BTreeMap<String, Arc<GroupTokens>>,
    next_tokens: BTreeMap<String, Arc<GroupTokens>>,
    /// Rate limit of token lookups, across all groups.
    throttle: TokenThrottle,
    /// `None` until the first group.
    responders: Option<Responders>,
    messages: mpsc::Sender<MemberMessage>,
    request_log: RequestLog,
    directory: PathBuf,
    facts: mpsc::Sender<Input>,
    /// Addresses on which this daemon listens. No member can have one of these addresses.
    own: Arc<[SocketAddr]>,
}

impl GroupControl {
    /// Creates the control without groups. Also returns the receiver of members' messages.
    pub(super) fn new(
        directory: &Path,
        facts: mpsc::Sender<Input>,
        recorder: &Arc<Recorder>,
    ) -> (GroupControl, mpsc::Receiver<MemberMessage>) {
        let request_log = RequestLog::new(Arc::clone(recorder));
        let (messages, receiver) = mpsc::channel(MESSAGES);
        let groups = GroupControl {
            fronts: Arc::default(),
            client_cas: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next_tokens: BTreeMap::new(),
            throttle: TokenThrottle::default(),
            responders: None,
            messages,
            request_log,
            directory: directory.to_owned(),
            facts,
            own: Arc::new([]),
        };
        (groups, receiver)
    }

    /// Returns the frontends of all groups.
    pub(super) fn fronts(&self) -> Arc<Frontends> {
        Arc::clone(&self.fronts)
    }

    /// Opens the sockets and files of a file's groups, without an effect on groups in force.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn open(
        &mut self,
        config: &Config,
        files: &GroupFiles,
    ) -> Result<Option<GroupSockets>, ListenError> {
        self.next_tokens = files.tokens();
        if self.responders.is_none() {
            if config.groups.is_empty() {
                return Ok(None);
            }
            let threads = available_parallelism().map_or(1, NonZero::get);
            let places = ClientLimits::make().redirected;
            let clients = Clients::new(places, self.messages.clone(), self.request_log.clone());
            self.responders = Some(Responders::start(threads, clients)?);
        }
        let Some(responders) = &self.responders else { return Ok(None) };
        let mut opened = responders.open(&wanted(config))?;
        opened.tls = files.tls();
        Ok(Some(opened))
    }

    /// Adopts the groups of a file that core has adopted. Open connections continue.
    pub(super) fn follow(&mut self, config: &Config, opened: Option<GroupSockets>) {
        self.tokens = std::mem::take(&mut self.next_tokens);
        self.own = listening(config);
        let mut fronts = BTreeMap::clone(&self.fronts.all());
        fronts.retain(|name, front| {
            let stays = config.groups.iter().any(|service| service.group.name == *name);
            if !stays {
                front.end();
            }
            stays
        });
        for warning in config.unverified() {
            tracing::warn!("{warning}");
        }
        for GroupService { group, client_ca, .. } in &config.groups {
            if group.joining.insecure {
                let message = "INSECURE: any host that reaches this service's address may join the group, get its clients and remove members; set token_file instead of `insecure`";
                tracing::warn!(service = group.name, "{message}");
            }
            if let Some(front) = fronts.get(&group.name) {
                front.listen_at(&self.own);
                front.secure(opened.as_ref().and_then(|opened| opened.tls.get(&group.name)).cloned());
            }
            match client_ca {
                Some(client_ca) => drop(self.client_cas.insert(group.name.clone(), client_ca.clone())),
                None => drop(self.client_cas.remove(&group.name)),
            }
        }
        if let Some((responders, opened)) = self.responders.as_mut().zip(opened) {
            responders.follow(opened, &fronts, &wanted(config));
        }
        self.fronts.publish(fronts);
    }

    /// Restricts joined members to the claims that the credentials of the file in force allow.
    pub(super) fn cut(&self, director: &mut Director, now: Moment, config: &Config) {
        for GroupService { group, client_ca, .. } in &config.groups {
            let tokens = self.tokens.get(&group.name);
            let by_file = (group.joining.insecure || client_ca.is_some()).then_some(&group.claims);
            let allowed = |url: &Url| {
                let lines = tokens.map(|tokens| tokens.claims(url)).unwrap_or_default();
                lines.into_iter().chain(by_file).collect()
            };
            director.message(now, &group.name, |now, _, members| {
                members.cut(now, allowed);
                Ok(())
            });
        }
    }

    /// Returns the stored members of the file's groups that aren't served yet.
    pub(super) fn kept(&self, config: &Config) -> BTreeMap<String, String> {
        let names = config.groups.iter().map(|service| &service.group.name);
        let new = names.filter(|name| self.fronts.of(name).is_none());
        let kept = |name: &String| Some((name.clone(), fs::read_to_string(self.record_path(name)).ok()?));
        new.filter_map(kept).collect()
    }

    /// Handles a member's message.
    pub(super) fn answer(&mut self, director: &mut Director, now: Moment, message: MemberMessage) {
        let MemberMessage { group, from, verb, authorization, certificate, body, answer } = message;
        let sender = MessageSender::Stranger {
            from: from.ip(),
            authorization: authorization.as_deref(),
            certificate: certificate.as_ref(),
        };
        let reply =
            self.with_group(director, now, &group, |mut context| context.answer(sender, &verb, &body));
        let reply = reply.unwrap_or_else(|| Response::sentence(503, "this group is no longer served"));
        if reply.status >= 400 {
            tracing::debug!(group, %from, verb, status = reply.status, why = reply.body.trim_end(), "refused");
        }
        // The client may have disconnected.
        let _ = answer.send(reply);
    }

    /// Like [`GroupControl::answer`], for a message through the admin interface.
    pub(super) fn ordered(
        &mut self,
        director: &mut Director,
        now: Moment,
        group: &str,
        sender: &GroupSender,
        message: GroupMessage,
    ) -> GroupReply {
        let message_sender = match sender {
            GroupSender::Stranger { from, authorization } => MessageSender::Stranger {
                from: *from,
                authorization: authorization.as_deref(),
                certificate: None,
            },
            GroupSender::Operator => MessageSender::Operator,
        };
        let reply =
            self.with_group(director, now, group, |mut context| context.answer_read(message_sender, message));
        match reply {
            Some(Response { status, kind, body, .. }) => {
                GroupReply { status, body, is_json: kind == Some(JSON) }
            }
            None => {
                let (status, body) = match sender {
                    // Group names are disclosed only to clients that may read the farm's state.
                    GroupSender::Stranger { .. } => {
                        (401, format!("there is no server group {group} that accepts this token"))
                    }
                    GroupSender::Operator => {
                        let known = meant(group, self.fronts.all().keys().map(String::as_str));
                        (404, format!("there is no server group {group}; {known}"))
                    }
                };
                GroupReply { status, body, is_json: false }
            }
        }
    }

    /// Runs `answer` with a group's context. Returns `None` if the group does not exist.
    fn with_group(
        &mut self,
        director: &mut Director,
        now: Moment,
        group: &str,
        answer: impl FnOnce(GroupContext<'_>) -> Result<Response, Response>,
    ) -> Option<Response> {
        let (tokens, throttle) = (self.tokens.get(group).map(Arc::as_ref), &mut self.throttle);
        let certifies = self.client_cas.contains_key(group);
        director.message(now, group, |now, group, members| {
            answer(GroupContext { now, group, members, tokens, throttle, certifies })
        })
    }

    /// Executes a group's order.
    pub(super) fn execute(&self, config: &Config, name: &str, order: MemberOrder) {
        let own = Arc::clone(&self.own);
        match order {
            MemberOrder::Probe { member, url, address, check, reach } => {
                self.spawn_query(name, member, async move {
                    MemberFact::Server(Fact::Probed(
                        probe_member(&url, address, reach.as_ref(), &check, &own).await,
                    ))
                })
            }
            MemberOrder::Query { member, url, is_named, reach } => {
                let here = config.groups.iter().filter(|service| service.group.name == name);
                let from = here.flat_map(|service| &service.group.addresses).map(SocketAddr::ip).collect();
                let ca = self.client_cas.get(name).cloned();
                let question = MemberQuery { url, is_named, reach, own, from, ca };
                self.spawn_query(
                    name,
                    member,
                    async move { MemberFact::Queried(query_load(question).await) },
                );
            }
            MemberOrder::FetchReport { member, url, settings, reach } => {
                self.spawn_query(name, member, async move {
                    MemberFact::Server(Fact::Reported(fetch_report(url, reach, own, settings).await))
                })
            }
            MemberOrder::Save { record } => {
                if let Err(error) = files::replace(&self.record_path(name), record.as_bytes()) {
                    tracing::warn!(%error, service = name, "failed to save the group's members; they are lost at a restart");
                }
            }
            MemberOrder::Publish(rules) => self.publish(name, rules),
        }
    }

    fn publish(&self, name: &str, rules: GroupRules) {
        let rules = Rules::new(rules, &self.own);
        match self.fronts.of(name) {
            Some(front) => front.publish(rules),
            // The group's first rules create its frontend.
            None => {
                let mut fronts = BTreeMap::clone(&self.fronts.all());
                fronts.insert(name.to_owned(), Arc::new(Frontend::new(name, rules)));
                self.fronts.publish(fronts);
            }
        }
    }

    fn spawn_query(
        &self,
        group: &str,
        member: usize,
        fact: impl Future<Output = MemberFact> + Send + 'static,
    ) {
        let (group, facts) = (group.to_owned(), self.facts.clone());
        tokio::spawn(async move {
            let fact = fact.await;
            // The receiver is gone only when the daemon ends.
            let _ = facts.send(Input::Member { group, member, fact }).await;
        });
    }

    /// Stops serving all groups.
    pub(super) fn end(&mut self) {
        self.responders = None;
    }

    /// Removes the files of joined members.
    pub(super) fn forget(&self) {
        for name in self.fronts.all().keys() {
            let _ = fs::remove_file(self.record_path(name));
        }
    }

    fn record_path(&self, name: &str) -> PathBuf {
        record_path(&self.directory, name)
    }
}

/// Returns the path of the file with a group's members. Names of services contain no slash.
pub(super) fn record_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("group.{name}"))
}

/// Returns all addresses on which this daemon listens.
fn listening(config: &Config) -> Arc<[SocketAddr]> {
    let groups = config.groups.iter().flat_map(|service| &service.group.addresses);
    groups.chain(&config.admin.listen).chain(&config.dns.listen).copied().collect()
}

/// Returns the addresses to listen on, each with its service.
fn wanted(config: &Config) -> Vec<(SocketAddr, &str)> {
    let groups = config.groups.iter().map(|service| &service.group);
    groups.flat_map(|group| group.addresses.iter().map(|address| (*address, group.name.as_str()))).collect()
}
