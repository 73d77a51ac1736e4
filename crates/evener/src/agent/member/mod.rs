//! This host as a member of server groups. Core's [`GroupMembership`] decides the next step, and
//! this module executes it.

mod control;
mod director;
mod shown;
mod wanted;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evener_core::farm::group::{
    DirectorAnswer, GroupMembership, Joiner, LoadInform, MembershipOrder, MembershipTrouble,
};
use evener_core::net::http::Url;
use evener_core::node::group::{Verb, write_inform, write_joiners};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::load::host::count_own_request;
use super::load::queries::QueryAccess;
use super::load::{Load, LoadExporter};
use crate::io::member_probe::probe_member;
use crate::runtime::member_token;
use crate::runtime::secret::random;
use control::ControlAddress;
use director::DirectorClient;
use shown::MembershipViews;
pub(super) use shown::{MembershipView, read as read_shown};
pub(super) use wanted::{MembershipConfig, wanted};

/// Timeout of leaving a group whose director doesn't answer.
const LEAVING: Duration = Duration::from_secs(4);
/// Maximum wait for the first measurement of the load.
const MEASURING: Duration = Duration::from_secs(3);

/// All groups that this host is a member of, or wants to join.
pub(super) struct Memberships {
    running: Vec<MemberHandle>,
    shown: Arc<MembershipViews>,
    next_number: usize,
}

struct MemberHandle {
    wanted: MembershipConfig,
    /// Ends the task. True if the group is to be notified.
    end: oneshot::Sender<bool>,
    task: JoinHandle<()>,
}

impl Memberships {
    /// Creates an empty list. States are written to this folder.
    pub(super) fn new(directory: &Path) -> Memberships {
        Memberships { running: Vec::new(), shown: Arc::new(MembershipViews::new(directory)), next_number: 0 }
    }

    /// Joins these groups, and leaves all other groups. Unchanged memberships stay.
    pub(super) fn follow(&mut self, wanted: Vec<MembershipConfig>, exporter: &LoadExporter) {
        let mut before = std::mem::take(&mut self.running);
        for one in wanted {
            if let Some(at) = before.iter().position(|known| known.wanted == one && !known.task.is_finished())
            {
                self.running.push(before.swap_remove(at));
                continue;
            }
            // A member with other settings joins again, without leaving.
            if let Some(at) = before.iter().position(|known| known.wanted.is_same_member(&one)) {
                let _ = before.swap_remove(at).end.send(false);
            }
            let (end, ended) = oneshot::channel();
            let member = MemberTask::new(&one, self.next_number, exporter, &self.shown);
            let task = tokio::spawn(member.run(ended));
            self.running.push(MemberHandle { wanted: one, end, task });
            self.next_number += 1;
        }
        // These tasks end by themselves, once their groups are notified.
        for gone in before {
            let _ = gone.end.send(true);
        }
    }

    /// Ends all memberships. Groups are notified unless `keep` is set.
    pub(super) async fn end(self, keep: bool) {
        let ending = self.running.into_iter().map(|MemberHandle { end, task, .. }| {
            let _ = end.send(!keep);
            task
        });
        for task in ending.collect::<Vec<_>>() {
            let _ = timeout(LEAVING + Duration::from_secs(1), task).await;
        }
        self.shown.clear();
    }
}

/// Task of one membership.
struct MemberTask {
    wanted: MembershipConfig,
    number: usize,
    membership: GroupMembership,
    director: DirectorClient,
    control: ControlAddress,
    load: watch::Receiver<Load>,
    queries: Arc<QueryAccess>,
    shown: Arc<MembershipViews>,
    began: Instant,
    /// URL with which the member has joined.
    url: Option<Url>,
    /// Time of the last report, in milliseconds since 1970. Later reports have later times.
    stamp_ms: u64,
    is_rate_logged: bool,
    /// Number of consecutive reports without a request rate.
    without_rate: u32,
    /// Text of the director's last response.
    sentence: String,
}

impl MemberTask {
    fn new(
        wanted: &MembershipConfig,
        number: usize,
        exporter: &LoadExporter,
        shown: &Arc<MembershipViews>,
    ) -> MemberTask {
        let (ca, own) = (wanted.settings.ca.clone(), wanted.settings.tls.clone());
        MemberTask {
            wanted: wanted.clone(),
            number,
            membership: GroupMembership::new(0, wanted.settings.report_ms),
            director: DirectorClient::new(wanted.group.clone(), ca, own),
            control: ControlAddress::new(wanted, Arc::clone(exporter.queries())),
            load: exporter.load(),
            queries: Arc::clone(exporter.queries()),
            shown: Arc::clone(shown),
            began: Instant::now(),
            url: wanted.url.clone(),
            stamp_ms: 0,
            is_rate_logged: false,
            without_rate: 0,
            sentence: String::new(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn run(mut self, mut ended: oneshot::Receiver<bool>) {
        let mut query_watch = self.queries.watch();
        self.show();
        let leaves = loop {
            let due = self.began + Duration::from_millis(self.membership.poll_timeout().min(86_400_000));
            tokio::select! {
                // If the owner of the task is gone, the group is not notified.
                leaves = &mut ended => break leaves.unwrap_or(false),
                Ok(()) = query_watch.changed() => {
                    let now_ms = self.now_ms();
                    self.membership.queried(now_ms);
                }
                () = sleep_until(due) => tokio::select! {
                    leaves = &mut ended => break leaves.unwrap_or(false),
                    () = self.step() => {}
                },
            }
        };
        if leaves && self.membership.is_to_leave() {
            let leaving = timeout(LEAVING, self.send_exit()).await;
            if leaving.is_err() {
                tracing::warn!(
                    "{}: no answer in time to the message that this member leaves",
                    self.wanted.name()
                );
            }
        }
        self.queries.forget(self.number);
        self.shown.forget(self.number);
    }

    /// Executes the due steps, one after the other.
    async fn step(&mut self) {
        let now_ms = self.now_ms();
        if self.membership.poll(now_ms).is_none() {
            return;
        }
        let works = self.works().await;
        let mut order = self.membership.probed(self.now_ms(), works);
        while let Some(one) = order {
            let was_member = self.membership.is_member();
            let (answer, reason) = match one {
                MembershipOrder::Probe => break,
                MembershipOrder::Join => self.join().await,
                MembershipOrder::Report { is_stamped } => self.report(is_stamped).await,
            };
            let mut draw = [0; 8];
            // Without random numbers, members report at the same time, which is harmless.
            let _ = random(&mut draw);
            order = self.membership.answered(self.now_ms(), answer, u64::from_le_bytes(draw));
            if !was_member && self.membership.is_member() {
                tracing::info!("{}: joined", self.wanted.name());
            }
            self.sentence = reason;
        }
        let news = self.membership.news();
        self.log_trouble(news);
        self.show();
    }

    /// Logs a change of the state once.
    fn log_trouble(&self, news: Option<Option<MembershipTrouble>>) {
        match news {
            None => {}
            Some(None) => tracing::info!("{}: is a member and reports its load", self.wanted.name()),
            Some(Some(_)) => tracing::warn!("{}: {}; retrying", self.wanted.name(), self.state()),
        }
    }

    /// Describes the state in words.
    fn state(&self) -> String {
        match (self.membership.trouble(), self.membership.is_member()) {
            (Some(trouble @ MembershipTrouble::Director(_)), _) if !self.sentence.is_empty() => {
                format!("{trouble}: {}", self.sentence)
            }
            (Some(trouble), _) => trouble.to_string(),
            (None, true) => "a member".to_owned(),
            (None, false) => "not yet a member".to_owned(),
        }
    }

    fn show(&self) {
        let member = self.membership.is_member();
        let shown = MembershipView {
            group: self.wanted.group.to_string(),
            url: self.url.as_ref().map(Url::to_string),
            member,
            is_well: member && self.membership.trouble().is_none(),
            state: self.state(),
        };
        self.shown.set(self.number, shown);
    }

    /// True if the server answers at its URL.
    async fn works(&mut self) -> bool {
        if self.wanted.url.is_none() {
            // The URL is this host's address towards the group, which may have changed.
            let located = self.director.locate().await;
            let found = located.ok().and_then(|located| default_url("http", located.own, 80));
            if found.is_some() && self.url.is_some() && self.url != found {
                self.membership.rejoin();
            }
            self.url = found.or(self.url.take());
        }
        // If the group can't be reached, the attempt to join will report it.
        let Some(url) = self.url.clone() else { return true };
        count_own_request();
        let probed = probe_member(&url, None, None, &self.wanted.health, &[]).await;
        if let Err(failure) = &probed {
            tracing::debug!(%url, %failure, "the server doesn't answer");
        }
        probed.is_ok()
    }

    async fn join(&mut self) -> (DirectorAnswer, String) {
        let located = match self.director.locate().await {
            Ok(located) => located,
            Err(error) => return (DirectorAnswer::NoAnswer, error),
        };
        let directors =
            located.addresses.iter().map(SocketAddr::ip).chain(self.wanted.directors.iter().copied());
        let directors: BTreeSet<IpAddr> = directors.map(|address| address.to_canonical()).collect();
        self.queries.permit(self.number, directors);
        let control = match self.control.at(located.own) {
            Ok(control) => control,
            Err(error) => return (DirectorAnswer::Unsent, error.to_string()),
        };
        let Some(url) = self.url.clone() else {
            return (
                DirectorAnswer::Unsent,
                "this host has no address by which it reaches the group".to_owned(),
            );
        };
        let settings = &self.wanted.settings;
        let joiner = Joiner {
            url,
            weight: settings.weight,
            anonymous: settings.anonymous,
            control,
            paths: settings.paths.clone(),
            hosts: settings.hosts.clone(),
        };
        self.send(Verb::Add, &write_joiners(&[joiner])).await
    }

    async fn report(&mut self, is_stamped: bool) -> (DirectorAnswer, String) {
        let measured = self.load.wait_for(|load| load.load.is_some());
        let load = match timeout(MEASURING, measured).await {
            Ok(Ok(load)) => load.clone(),
            _ => return (DirectorAnswer::Unsent, "this host's load can't be measured".to_owned()),
        };
        self.log_rate(load.requests_per_second.is_some());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or_default();
        // After a backward step of the clock, times continue from the last report.
        self.stamp_ms = now_ms.max(self.stamp_ms.saturating_add(1));
        let rounded = (load.load.unwrap_or_default() * 10.0).round() / 10.0;
        let report = LoadInform {
            load: rounded,
            stamp_ms: is_stamped.then_some(self.stamp_ms),
            url: self.url.clone(),
        };
        self.send(Verb::Inform, &write_inform(&report)).await
    }

    /// Logs once that the request rate is missing in loads.
    fn log_rate(&mut self, is_known: bool) {
        self.without_rate = if is_known { 0 } else { self.without_rate.saturating_add(1) };
        // The first reports may have no previous count to compare with.
        if self.without_rate > 2 && !std::mem::replace(&mut self.is_rate_logged, true) {
            tracing::info!(
                "{}: the number of requests is unknown, since most connections use TLS, HTTP/2 or another protocol than HTTP/1, or `status_url` doesn't answer. The load counts running processes only (10 m); set `status_url` in [agent] to a status page of the server",
                self.wanted.name()
            );
        }
    }

    async fn send_exit(&mut self) {
        let Some(url) = self.url.clone() else { return };
        let (answer, reason) = self.send(Verb::Exit, &format!("{url}\n")).await;
        match answer {
            DirectorAnswer::Status(200..=299) => tracing::info!("{}: left", self.wanted.name()),
            // The group does not have the member, or has removed it.
            DirectorAnswer::Status(404) => {}
            _ => tracing::warn!(
                "{}: failed to tell the director that this member leaves: {reason}",
                self.wanted.name()
            ),
        }
    }

    async fn send(&mut self, verb: Verb, body: &str) -> (DirectorAnswer, String) {
        // Reads the file, since tokens are renewed.
        let token = match (&self.wanted.token_file, &self.url) {
            (Some(path), Some(url)) => {
                let token =
                    member_token::read(path).and_then(|tokens| tokens.speaking_for(url).map(str::to_owned));
                match token {
                    Ok(token) => Some(token),
                    Err(error) => return (DirectorAnswer::Unsent, error.to_string()),
                }
            }
            _ => None,
        };
        self.director.send(verb, token.as_deref(), body).await
    }
}

/// Returns the URL of an address and port of this host.
fn default_url(scheme: &str, address: IpAddr, port: u16) -> Option<Url> {
    Url::parse(&format!("{scheme}://{}", SocketAddr::new(address, port))).ok()
}
