//! Exchange of reports between this director and the other directors of the farm.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evener_core::farm::network::Network;
use evener_core::farm::plan;
use evener_core::node::directors::{
    Changes, DirectorEffect, DirectorReport, DirectorSettings, Directors, LABEL, ReplicatedSession,
};
use evener_core::node::secret::{Key, Secret};
use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use super::executor::Executor;
use super::hosts::{self, ReceivedDatagram};
use super::replication::{self, SessionReplicator, TURN};
use super::{now_ms, readiness};
use crate::board::DirectorsState;
use crate::config::Config;
use crate::events::DaemonEvent;
use crate::ready::Record;
use crate::runtime::{reader, receive_buffer, secret};
use crate::state::FarmState;

/// Label from which, with the farm's text, the farm's fingerprint is derived.
const FINGERPRINT_LABEL: &str = "evener fingerprint ";

/// Maximum number of sessions of other directors that wait while the tables change.
const WAITING_MAX: usize = 1 << 18;

/// Exchange of reports with other directors, if the file lists any.
#[derive(Default)]
pub(super) struct DirectorTalk {
    link: Option<DirectorLink>,
    /// Reason why there is no link to other directors.
    obstacle: Option<String>,
    replicator: SessionReplicator,
    /// Sessions of other directors that wait while the tables change.
    waiting: Vec<ReplicatedSession>,
}

struct DirectorLink {
    directors: Directors,
    /// The farm's secret when the link was opened. A secret that changes later takes effect only
    /// with a new link.
    secret: Secret,
    own: SocketAddr,
    /// All addresses of this director that the file lists.
    addresses: Vec<IpAddr>,
    socket: Arc<UdpSocket>,
    datagrams: mpsc::Receiver<ReceivedDatagram>,
    /// The farm's tag, its fingerprint, and a digest of the run-time changes.
    summed: (String, u64, Changes),
    turns: Interval,
}

/// Event of the exchange with other directors.
pub(super) enum DirectorInput {
    Datagram(Vec<u8>),
    Time,
    /// Sessions may be replicated.
    Turn,
}

impl DirectorTalk {
    /// Returns the next event. Cancel safe: no event is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> DirectorInput {
        let Some(link) = &mut self.link else { return pending().await };
        let in_ms = link.directors.next_at().saturating_sub(now_ms());
        let at = Instant::now() + Duration::from_millis(in_ms);
        tokio::select! {
            Some((_, datagram)) = link.datagrams.recv() => DirectorInput::Datagram(datagram),
            () = sleep_until(at) => DirectorInput::Time,
            _ = link.turns.tick() => DirectorInput::Turn,
        }
    }

    /// True if there is an obstacle that may disappear when this host's network is read again.
    pub(super) fn is_hindered(&self) -> bool {
        self.obstacle.is_some()
    }

    pub(super) fn step(&mut self, input: DirectorInput, executor: &Executor) {
        let Some(link) = &mut self.link else { return };
        let DirectorEffect { datagrams, events, replicated } = match input {
            DirectorInput::Datagram(bytes) => link.directors.receive(now_ms(), &bytes),
            DirectorInput::Time => link.directors.tick(now_ms()),
            DirectorInput::Turn => {
                self.replicator.turn(&mut link.directors, executor);
                let datagrams = link.directors.replication_datagrams(now_ms());
                DirectorEffect { datagrams, ..DirectorEffect::default() }
            }
        };
        let free = WAITING_MAX.saturating_sub(self.waiting.len());
        self.waiting.extend(replicated.into_iter().take(free));
        if !self.waiting.is_empty() && replication::enter(&self.waiting, executor) {
            self.waiting.clear();
        }
        for (to, datagram) in datagrams {
            let to = SocketAddr::new(to, link.own.port());
            if let Err(error) = link.socket.try_send_to(&datagram, to) {
                tracing::debug!(%to, %error, "failed to send a report to another director");
            }
        }
        events.into_iter().for_each(|event| executor.bus.publish(DaemonEvent::Director(event)));
    }

    /// Updates this director's report, and publishes the reports of the other directors.
    pub(super) fn report(&mut self, record: &Record, executor: &mut Executor) {
        let mut state =
            DirectorsState { at_ms: now_ms(), obstacle: self.obstacle.clone(), ..DirectorsState::default() };
        if let Some(link) = &mut self.link {
            link.sum_up(executor.farm_state());
            let view = record.judge(&readiness::seen_by(executor), None);
            let own = DirectorReport {
                fingerprint: Some(link.summed.1),
                release: Some(env!("CARGO_PKG_VERSION").to_owned()),
                readiness: Some(if view.ready { Ok(()) } else { Err(view.reason) }),
                changes: Some(link.summed.2.clone()),
                addresses: if link.addresses.len() > 1 { link.addresses.clone() } else { Vec::new() },
                held: executor.director.held_addresses(),
                replicates: true,
            };
            link.directors.set_own(own.clone());
            let others = link.directors.known().into_iter();
            state.others = others.map(|one| (one.clone(), link.directors.differences(&one))).collect();
            state.own = Some((link.own.ip(), own));
        }
        executor.show_directors(state);
    }

    /// Adopts the file in force: the list of directors, and the port of their exchange.
    pub(super) async fn follow(&mut self, executor: &Executor) {
        let (config, network) = (&executor.config, executor.director.network());
        match self.followed(config, network, executor.identity().is_some()).await {
            Ok(link) => (self.link, self.obstacle) = (Some(link), None),
            Err(obstacle) => (self.link, self.obstacle) = (None, Some(obstacle)),
        }
    }

    /// Returns the other directors, if any are known.
    pub(super) fn known(&self) -> Option<&Directors> {
        self.link.as_ref().map(|link| &link.directors)
    }

    async fn followed(
        &mut self,
        config: &Config,
        network: &Network,
        is_host: bool,
    ) -> Result<DirectorLink, String> {
        let place = DirectorIdentity::find(config, network, is_host)?;
        let before = self.link.take();
        if let Some(mut link) = before.filter(|link| link.own == place.own) {
            let key = Key(link.secret.derive(LABEL));
            link.directors.reconfigure(place.settings(config, key), now_ms());
            link.addresses = place.addresses;
            return Ok(link);
        }
        let secret = read_secret(place.secret_file.clone()).await?;
        place.open(config, secret).await.map_err(|error| {
            format!("failed to listen for reports of directors at UDP {}: {error}", place.own)
        })
    }
}

/// This director's addresses among the directors of a file, and the file of the farm's secret.
struct DirectorIdentity {
    own: SocketAddr,
    addresses: Vec<IpAddr>,
    secret_file: PathBuf,
}

impl DirectorIdentity {
    fn find(config: &Config, network: &Network, is_host: bool) -> Result<DirectorIdentity, String> {
        let listed = &config.farm.directors;
        if is_host {
            return Err("every host decides here: `evener hosts` lists them".to_owned());
        }
        let (addresses, others): (Vec<IpAddr>, Vec<IpAddr>) =
            listed.iter().partition(|address| network.is_local(**address));
        let Some(own) = addresses.first() else {
            return Err(match listed.len() {
                0 => "the file lists no [farm] directors".to_owned(),
                _ => format!(
                    "none of [farm] directors is an address of this host ({})",
                    network.own_addresses()
                ),
            });
        };
        if others.is_empty() {
            return Err("[farm] directors lists no other one".to_owned());
        }
        let Some(secret_file) = config.farm.secret_file.clone() else {
            return Err("without [farm] secret_file directors can't know each other".to_owned());
        };
        let own = SocketAddr::new(*own, config.farm.peers.port);
        Ok(DirectorIdentity { own, addresses, secret_file })
    }

    fn settings(&self, config: &Config, key: Key) -> DirectorSettings {
        let others = config.farm.directors.iter().copied();
        DirectorSettings {
            own: self.own.ip(),
            others: others.filter(|address| !self.addresses.contains(address)).collect(),
            interval_ms: config.farm.peers.interval_ms,
            silence_ms: config.farm.peers.silence_ms,
            key,
        }
    }

    async fn open(&self, config: &Config, secret: Secret) -> io::Result<DirectorLink> {
        let socket = Arc::new(UdpSocket::bind(self.own).await?);
        // The bulk of another director's sessions comes in bursts.
        receive_buffer::widen(&SockRef::from(&socket))?;
        let datagrams = hosts::receiver_of(&socket);
        let settings = self.settings(config, Key(secret.derive(LABEL)));
        Ok(DirectorLink {
            directors: Directors::new(settings, secret::random_number()?, now_ms()),
            secret,
            own: self.own,
            addresses: self.addresses.clone(),
            socket,
            datagrams,
            summed: (String::new(), 0, Changes::default()),
            turns: turns(),
        })
    }
}

impl DirectorLink {
    /// Derives the farm's fingerprint again if the farm has changed.
    fn sum_up(&mut self, state: &FarmState) {
        if self.summed.0 == state.tag {
            return;
        }
        let label = format!("{FINGERPRINT_LABEL}{}", state.file.common_text());
        let summed = self.secret.derive(&label);
        let fingerprint = summed.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte));
        let of = |(service, server): &(String, Option<String>)| match server {
            Some(server) => format!("{service}/{server}"),
            None => service.clone(),
        };
        let lines = state.overrides.iter().flat_map(|(place, overrides)| {
            overrides.iter().map(move |one| {
                let value = one.value.as_ref().map_or_else(|| "unset".to_owned(), ToString::to_string);
                format!("{}: {} = {value}", of(place), one.key)
            })
        });
        let mut lines: Vec<String> = lines.collect();
        lines.sort_unstable();
        let digest = plan::digest(&lines.join("\n"));
        self.summed = (state.tag.clone(), fingerprint, Changes { digest, lines });
    }
}

fn turns() -> Interval {
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    turns
}

/// Reads the farm's secret on a separate thread, since a file system may hang.
async fn read_secret(path: PathBuf) -> Result<Secret, String> {
    let read = move || {
        reader::blocking_within(reader::TIMEOUT, "the farm's secret", move || {
            secret::read(&path).map_err(|error| error.to_string())
        })
    };
    spawn_blocking(read).await.map_err(|error| error.to_string())??
}
