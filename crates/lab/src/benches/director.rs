//! Measures the control plane: the time from an input until the XDP engine has applied it, and the
//! time of one iteration of the daemon's loop.
//!
//! Director and engine are Evener's. The code in between acts like the daemon's loop: it gives an
//! input, carries out outputs and publishes changes. The clock is simulated, probes are answered at
//! once, and messages to other hosts are dropped. As in the daemon, another thread plans and
//! applies changes. An iteration includes only the loop's own work.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use evener_core::director::{Applied, Change, Director, Input, Moment, Output, Snapshot, Start};
use evener_core::farm::choose::{ConnectionRequest, RequestContent};
use evener_core::farm::network::{Interface, KernelRoute, Network};
use evener_core::farm::plan::ServerName;
use evener_core::farm::{Farm, Method, Route, Server, Service, example};
use evener_core::net::wire::Mac;
use evener_core::path::content::{PathPattern, RequestClass, RequestKey};
use evener_core::path::seed::Seed;
use evener_core::pool::HealthCheck;
use evener_core::pool::health::Failure;
use evener_core::pool::policy::Fills;
use evener_dataplane::xdp::{Mode, Options, XdpEngine};
use evener_dataplane::{DataPlane, Engine as _};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::packets::Surroundings;
use crate::harness::table::Table;

/// Interface that receives packets.
const LINK: u32 = 2;
const LINK_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Number of measured server failures and reloads.
const FAILURES: usize = 200;
const RELOADS: usize = 40;
/// Farms: number of services, and of servers per service; near the maximum of slots.
const SIZES: [(usize, usize); 2] = [(64, 63), (16, 255)];
/// Farm whose loop is measured: services and servers per service. [`ROUTES`] and [`SETS`] are the
/// routes of the first service and the server sets of the routes.
const BUSY: (usize, usize) = (32, 120);
const ROUTES: usize = 10_000;
const SETS: usize = 30;
/// Duration of the measurement in simulated milliseconds.
const WATCHED_MS: u64 = 60_000;
/// Interval between changes of servers in milliseconds.
const CHANGE_MS: u64 = 500;
const INTERVAL_MS: u64 = 5_000;
/// Pause between two measurements in milliseconds: longer than a farm batches changes.
const REST_MS: u64 = 250;
/// Target for an iteration's processor time, in microseconds.
const TURN_GOAL_US: f64 = 5_000.0;

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    farms: Vec<Row>,
    turns: Turns,
}

/// Time in milliseconds from an input until the engine has applied it.
#[derive(Debug, Serialize)]
struct Row {
    services: usize,
    servers: usize,
    failure: Percentiles,
    reload: Percentiles,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
}

/// Iterations of the loop while requests are matched and metrics are scraped.
#[derive(Debug, Serialize)]
struct Turns {
    count: usize,
    matched: usize,
    scrapes: u64,
    /// Largest processor time of an iteration in milliseconds, and the kind of its input.
    cpu_max: f64,
    cpu_max_of: &'static str,
    /// The largest processor time without iterations that planned tables.
    quiet_cpu_max: f64,
    over_goal: usize,
    wall_p999: f64,
}

/// Measures in a separate network namespace, with the XDP engine on one interface.
pub(super) fn run() -> Result<Outcome> {
    let surroundings = Surroundings::new()?;
    surroundings.netns.enter(|| {
        let farms = SIZES.into_iter().map(|(services, servers)| {
            eprintln!("  a director with {services} services of {servers} servers each");
            row(services, servers)
        });
        let farms = farms.collect::<Result<_>>()?;
        eprintln!("  turns of a busy loop");
        Ok(Outcome { farms, turns: turns()? })
    })?
}

fn row(services: usize, servers: usize) -> Result<Row> {
    let mut daemon = Daemon::serving(farm(services, servers, 1))?;
    let mut failures = Vec::new();
    for round in 0..FAILURES {
        let server = name(round % services, round % servers);
        for result in [Err(Failure::Timeout), Ok(1_000)] {
            daemon.rest()?;
            let is_failure = result.is_err();
            daemon.tell(Input::Probed { server: server.clone(), result })?;
            failures.extend(daemon.applied_after.take().filter(|_| is_failure));
        }
    }
    let mut reloads = Vec::new();
    for round in 0..RELOADS {
        daemon.rest()?;
        let farm = farm(services, servers, 2 - round as u16 % 2);
        daemon.tell(reload(farm))?;
        let Some(elapsed) = daemon.applied_after.take() else { bail!("A reload changed nothing") };
        reloads.push(elapsed);
    }
    if failures.len() < FAILURES / 2 {
        bail!("Of {FAILURES} failures of servers {} changed the tables", failures.len());
    }
    Ok(Row { services, servers, failure: percentiles(failures), reload: percentiles(reloads) })
}

fn percentiles(mut elapsed: Vec<Duration>) -> Percentiles {
    elapsed.sort_unstable();
    let at = |part: f64| {
        elapsed[((elapsed.len() as f64 * part) as usize).min(elapsed.len() - 1)].as_secs_f64() * 1e3
    };
    Percentiles { p50: at(0.5), p99: at(0.99) }
}

/// Measures the loop of a busy farm.
fn turns() -> Result<Turns> {
    let (services, servers) = BUSY;
    let mut busy = farm(services, servers, 1);
    if let Some(service) = busy.services.first_mut() {
        service.method = Method::Handoff;
        service.routes = (0..ROUTES).map(route).collect::<Vec<_>>().into();
    }
    let mut daemon = Daemon::serving(busy)?;
    let (over, scrapes) = (AtomicBool::new(false), AtomicU64::new(0));
    let board = Arc::clone(&daemon.board);
    daemon.turns.clear();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                black_box(scrape(&latest(&board)));
                scrapes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let done = watch(&mut daemon);
        over.store(true, Ordering::Relaxed);
        done
    })?;
    Ok(summary(&daemon.turns, scrapes.into_inner()))
}

/// Simulates a minute in which servers fail and recover, all servers are probed, and every route is
/// matched.
fn watch(daemon: &mut Daemon) -> Result<()> {
    let (services, servers) = BUSY;
    let until_ms = daemon.now_ms + WATCHED_MS;
    let (mut change_at, mut reread_at, mut requested) = (daemon.now_ms, daemon.now_ms, 0);
    while daemon.now_ms < until_ms {
        let next = daemon.director.next_at().min(change_at).min(reread_at);
        daemon.now_ms = daemon.now_ms.max(next);
        if daemon.now_ms >= change_at {
            let change = (change_at / CHANGE_MS) as usize;
            let server = name(change / 2 % services, change / 2 % servers);
            let result = if change.is_multiple_of(2) { Err(Failure::Timeout) } else { Ok(1_000) };
            daemon.tell(Input::Probed { server, result })?;
            change_at += CHANGE_MS;
        } else if daemon.now_ms >= reread_at {
            daemon.tell(Input::Network(Box::new(network(servers))))?;
            reread_at += 10_000;
        } else {
            daemon.tell(Input::Time { active: BTreeMap::new() })?;
        }
        while let Some(server) = daemon.probed.pop_front() {
            daemon.tell(Input::Probed { server, result: Ok(1_000) })?;
            if requested < ROUTES {
                daemon.choose(requested);
                requested += 1;
            }
        }
    }
    Ok(())
}

fn summary(turns: &[Turn], scrapes: u64) -> Turns {
    let mut walls: Vec<f64> = turns.iter().map(|turn| turn.wall_us).collect();
    walls.sort_by(f64::total_cmp);
    let (cpu_max, cpu_max_of) = greatest(turns.iter());
    let (quiet, _) = greatest(turns.iter().filter(|turn| !turn.planned));
    let p999 = walls.get((walls.len() * 999 / 1_000).min(walls.len().saturating_sub(1)));
    Turns {
        count: turns.len(),
        matched: turns.iter().filter(|turn| turn.of == "a choice").count(),
        scrapes,
        cpu_max: cpu_max / 1e3,
        cpu_max_of,
        quiet_cpu_max: quiet / 1e3,
        over_goal: turns.iter().filter(|turn| turn.cpu_us > TURN_GOAL_US).count(),
        wall_p999: p999.copied().unwrap_or_default() / 1e3,
    }
}

/// Returns the largest processor time of an iteration in microseconds, and the kind of its input.
fn greatest<'a>(turns: impl Iterator<Item = &'a Turn>) -> (f64, &'static str) {
    turns
        .fold((0.0, "nothing"), |most, turn| if turn.cpu_us > most.0 { (turn.cpu_us, turn.of) } else { most })
}

/// One iteration of the loop.
struct Turn {
    of: &'static str,
    planned: bool,
    cpu_us: f64,
    wall_us: f64,
}

/// Engine, and cache of hash tables.
struct Workshop {
    engine: XdpEngine,
    fills: Fills,
}

/// Result of the thread that applies changes.
struct Back {
    workshop: Workshop,
    answer: Applied,
    /// Time when the engine had applied the change.
    had_at: Option<Instant>,
}

impl Workshop {
    fn carry_out(mut self, change: Change) -> Result<Back> {
        let planned = change.plan(&mut self.fills);
        let mut had_at = None;
        if let Some(tables) = planned.tables()? {
            self.engine.apply(tables)?;
            had_at = Some(Instant::now());
        }
        let answer = planned.answer(Arc::clone(self.engine.tables()), None);
        Ok(Back { workshop: self, answer, had_at })
    }
}

/// State of the daemon's loop.
struct Daemon {
    director: Director,
    plane: Arc<dyn DataPlane>,
    /// `None` while a change is in progress.
    workshop: Option<Workshop>,
    under_way: Option<JoinHandle<Result<Back>>>,
    now_ms: u64,
    board: Arc<Mutex<Arc<Snapshot>>>,
    probed: VecDeque<ServerName>,
    turns: Vec<Turn>,
    /// Time from the last input until the engine had applied its change.
    applied_after: Option<Duration>,
}

impl Daemon {
    /// Starts a daemon whose servers all have been resolved and are up.
    fn serving(farm: Farm) -> Result<Daemon> {
        let engine = XdpEngine::start(Options {
            sessions_max: 1 << 16,
            sessions6_max: 1 << 10,
            seed: Seed(1, 2),
            ring_seed: None,
            mode: Some(Mode::Tc),
            pins: None,
        })?;
        let now_ms = 1_000_000;
        let most = farm.services.iter().map(|service| service.servers.len()).max().unwrap_or_default();
        let start = Start {
            farm,
            network: network(most),
            links: BTreeMap::from([(LINK, LINK_MAC)]),
            operator: BTreeMap::new(),
            host: None,
            seed: Seed(1, 2),
            running: None,
            groups: BTreeMap::new(),
        };
        let director = Director::new(start, Moment { ms: now_ms, lease_holds: true, ..Moment::default() });
        let board = Arc::new(Mutex::new(Arc::clone(director.snapshot())));
        let (probed, turns) = (VecDeque::new(), Vec::new());
        let plane = engine.data_plane();
        let workshop = Some(Workshop { engine, fills: Fills::default() });
        let (under_way, applied_after) = (None, None);
        let mut daemon =
            Daemon { director, plane, workshop, under_way, now_ms, board, probed, turns, applied_after };
        while !(daemon.director.is_serving(daemon.moment()) && daemon.director.is_settled()) {
            daemon.rest()?;
        }
        Ok(daemon)
    }

    /// Lets time pass until all inputs are in force and all servers are up.
    fn rest(&mut self) -> Result<()> {
        let until_ms = self.now_ms + REST_MS;
        while self.now_ms < until_ms {
            self.now_ms = self.director.next_at().clamp(self.now_ms, until_ms);
            self.tell(Input::Time { active: BTreeMap::new() })?;
            while let Some(server) = self.probed.pop_front() {
                self.tell(Input::Probed { server, result: Ok(1_000) })?;
            }
        }
        // Gives the kernel time to end its grace period.
        thread::sleep(Duration::from_millis(REST_MS / 10));
        self.applied_after = None;
        Ok(())
    }

    /// Gives an input, and the answers of the changes that follow. The real loop would continue
    /// meanwhile; here nothing else happens.
    fn tell(&mut self, input: Input) -> Result<()> {
        let of = match input {
            Input::Time { .. } => "time",
            Input::Probed { .. } => "a probe",
            Input::Network(_) => "the network",
            Input::Reload { .. } => "a reload",
            _ => "another fact",
        };
        let began = Instant::now();
        self.turn(of, input)?;
        while let Some(under_way) = self.under_way.take() {
            let Ok(back) = under_way.join() else { bail!("The thread that makes changes has failed") };
            let Back { workshop, answer, had_at } = back?;
            self.workshop = Some(workshop);
            if let Some(had_at) = had_at {
                self.applied_after = Some(had_at - began);
            }
            self.turn("an answer", Input::Applied(Box::new(answer)))?;
        }
        Ok(())
    }

    /// Runs one iteration: an input, the outputs that follow, and publication.
    fn turn(&mut self, of: &'static str, input: Input) -> Result<()> {
        let (began, cpu_began, mut planned) = (Instant::now(), cpu()?, of == "an answer");
        self.director.handle(self.moment(), input);
        while let Some(order) = self.director.poll_output() {
            match order {
                Output::Apply(change) => {
                    planned = true;
                    let workshop = self.workshop.take();
                    self.under_way =
                        workshop.map(|workshop| thread::spawn(move || workshop.carry_out(*change)));
                }
                Output::Forget { retired, .. } => {
                    for slot in retired {
                        if let Some(workshop) = &mut self.workshop {
                            workshop.engine.reset_server(slot)?;
                        }
                        self.director.handle(self.moment(), Input::Released { slot });
                    }
                }
                Output::Probe(probe) => self.probed.push_back(probe.server),
                _ => {}
            }
        }
        let shown = self.director.snapshot();
        if !Arc::ptr_eq(shown, &latest(&self.board)) {
            *self.board.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(shown);
        }
        // The daemon's loop reads the time of its next wakeup.
        black_box(self.director.next_at());
        let (wall_us, cpu_us) =
            (began.elapsed().as_secs_f64() * 1e6, (cpu()? - cpu_began).as_secs_f64() * 1e6);
        self.turns.push(Turn { of, planned, cpu_us, wall_us });
        Ok(())
    }

    /// Runs an iteration that selects the server of a request.
    fn choose(&mut self, number: usize) {
        let (began, cpu_began) = (Instant::now(), cpu().unwrap_or_default());
        let path = format!("/part{number}/page");
        let requested = RequestKey {
            class: RequestClass::Get,
            host: b"shop.example",
            path: path.as_bytes(),
            method: b"GET",
        };
        let plan = self.director.plan();
        if let Some(vip) = plan.tables.vips.values().find(|vip| vip.handoff.is_some()) {
            let client = Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(number as u32)), 1_024));
            let request = ConnectionRequest { client, content: RequestContent::Key(requested), named: None };
            // The result is irrelevant; only the time counts.
            let _ = black_box(plan.choose(&self.plane.memory(), vip, &request));
        }
        let cpu_us = (cpu().unwrap_or_default().saturating_sub(cpu_began)).as_secs_f64() * 1e6;
        self.turns.push(Turn {
            of: "a choice",
            planned: false,
            cpu_us,
            wall_us: began.elapsed().as_secs_f64() * 1e6,
        });
    }

    fn moment(&self) -> Moment {
        Moment { ms: self.now_ms, lease_holds: true, ..Moment::default() }
    }
}

/// Processor time of this thread.
fn cpu() -> Result<Duration> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32))
}

fn latest(board: &Mutex<Arc<Snapshot>>) -> Arc<Snapshot> {
    Arc::clone(&board.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the part of a scrape about servers.
fn scrape(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for server in snapshot.servers() {
        let (ServerName { service, server: name }, up) = (&server.name, server.state.name());
        // Writing to a string can't fail.
        let _ = writeln!(text, "evener_server_up{{service=\"{service}\",server=\"{name}\"}} {up}");
        let _ = writeln!(
            text,
            "evener_probe_failures_total{{service=\"{service}\",server=\"{name}\"}} {}",
            server.probe_failures
        );
    }
    text
}

fn name(service: usize, server: usize) -> ServerName {
    ServerName { service: format!("service{service}"), server: format!("web{server}") }
}

/// Returns the address of a server. Every service runs on all hosts.
fn host(number: usize) -> IpAddr {
    IpAddr::from([10, 9, (number / 250) as u8, (number % 250) as u8 + 1])
}

fn farm(services: usize, servers: usize, weight: u16) -> Farm {
    let service = |number: usize| Service {
        method: Method::Tunnel,
        health: HealthCheck { interval_ms: INTERVAL_MS, rise: 1, fall: 1, ..HealthCheck::default() },
        ..example::service(
            &format!("service{number}"),
            SocketAddr::from(([10, 8, 0, number as u8 + 1], 80)),
            (0..servers)
                .map(|server| Server {
                    // Makes each reload a change: one server of each service changes its weight.
                    weight: if server == 0 { weight } else { 1 },
                    ..example::server(&format!("web{server}"), host(server))
                })
                .collect(),
        )
    };
    Farm { services: (0..services).map(service).collect(), ..Farm::default() }
}

fn route(number: usize) -> Route {
    let set = number % SETS;
    Route {
        host: None,
        path: PathPattern::parse(&format!("/part{number}/*")).ok(),
        methods: Vec::new(),
        servers: (0..4).map(|server| format!("web{}", 4 * set + server)).collect(),
    }
}

fn reload(farm: Farm) -> Input {
    let most = farm.services.iter().map(|service| service.servers.len()).max().unwrap_or_default();
    Input::Reload {
        farm: Box::new(farm),
        network: Box::new(network(most)),
        links: BTreeMap::from([(LINK, LINK_MAC)]),
        groups: BTreeMap::new(),
    }
}

/// Returns the network: one link with all servers.
fn network(servers: usize) -> Network {
    let link = Interface {
        name: "out".to_owned(),
        mac: LINK_MAC,
        addresses: vec![(IpAddr::from([10, 9, 255, 1]), 16)],
        up: true,
        carrier: true,
        mtu: 1_500,
        loopback: false,
        ethernet: true,
    };
    let on_link = KernelRoute {
        destination: (IpAddr::from([10, 9, 0, 0]), 16),
        priority: 0,
        ifindex: Some(LINK),
        on_link: true,
        gateway: None,
    };
    let mac = |number: usize| Mac([2, 0, 0, 1, (number / 250) as u8, (number % 250) as u8]);
    Network {
        interfaces: BTreeMap::from([(LINK, link)]),
        gateways: Vec::new(),
        routes: vec![on_link],
        neighbours: (0..servers).map(|number| ((LINK, host(number)), mac(number))).collect(),
    }
}

impl Outcome {
    pub(super) fn print(&self) {
        println!("From a fact to the kernel engine having it, in milliseconds:");
        let mut table =
            Table::new(&["farm", "a server's failure, p50", "p99", "a reload of all, p50", "p99"]);
        for Row { services, servers, failure, reload } in &self.farms {
            let farm = format!("{services} services of {servers} servers");
            let cells = [failure.p50, failure.p99, reload.p50, reload.p99].map(|ms| format!("{ms:.2}"));
            table.row([farm].into_iter().chain(cells));
        }
        println!("{table}");
        let Turns { count, matched, scrapes, cpu_max, cpu_max_of, quiet_cpu_max, over_goal, wall_p999 } =
            &self.turns;
        println!(
            "{count} turns of the loop, {matched} requests matched to {ROUTES} routes, {scrapes} scrapes meanwhile:"
        );
        println!(
            "  greatest processor time of a turn {cpu_max:.2} ms ({cpu_max_of}), without tables {quiet_cpu_max:.2} ms;"
        );
        println!("  {over_goal} turns over 5 ms; by the clock, p99.9 of all turns {wall_p999:.2} ms");
        println!();
    }
}
