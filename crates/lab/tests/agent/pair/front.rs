//! Two directors behind an ECMP router: downloads continue when one director stops and when it
//! returns.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use evener_lab::farm::{Builder, Farm};
use evener_lab::harness::engines;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::host::Host;
use evener_lab::servers::nginx::BIG_LEN;
use nix::sys::signal::Signal;

use super::Pair;
use crate::Agent;

/// Number of downloads through each director at the start.
const EACH: usize = 10;
/// The router hashes addresses, protocol and ports of each packet. Policy 1 would prefer a hash
/// stored with the packet. Over veth, this is the client socket's hash, which changes with each
/// timeout.
const HASH_BY_PORTS: [(&str, &str); 2] =
    [("ipv4/fib_multipath_hash_policy", "3"), ("ipv4/fib_multipath_hash_fields", "55")];
/// Client receive buffers in bytes: minimum, initial, maximum.
const RECEIVE_BUFFERS: &str = "4096 16384 65536";
/// Progress of a download, in bytes: more than the client's buffer, curl and a pipe hold.
const PROGRESS: u64 = 200_000;
/// Chunk and interval of the reader, so that each download takes about a minute.
const CHUNK: usize = 8_192;
const PACE: Duration = Duration::from_millis(32);

fn downloads_go_on(builder: Builder, method: &str) -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut pair = Pair::start(builder.bare(), method, &["hash"])?;
    let agents = pair.farm.servers().iter().map(|host| Agent::start(host, &pair.file, &[]));
    let _agents = agents.collect::<Result<Vec<_>>>()?;
    pair.wait_for_servers()?;
    pair.farm.router().netns().sysctl(&HASH_BY_PORTS)?;
    pair.farm.client(0).netns().sysctl(&[("ipv4/tcp_rmem", RECEIVE_BUFFERS)])?;
    pair.route_by(&[0, 1])?;
    let ports = pair.ports_by_director()?;
    let mut downloads = Downloads::start(&pair, ports.iter().flatten().copied())?;
    downloads.go_on("at first")?;
    for (director, ports) in ports.iter().enumerate() {
        let found = pair.clients_of(director)?;
        ensure!(found == *ports, "director {director} has the clients {found:?} in place of {ports:?}");
    }

    let first = pair.farm.director().clone();
    let default_route = first.run(&["ip", "route", "show", "default"])?;
    first.ip(&["link set eth0 down".to_owned()])?;
    pair.route_by(&[1])?;
    pair.go_on_by(1, &mut downloads, "the first director's link is down")?;

    // As after a power failure, the director loses all its sessions.
    pair.directors[0].daemon().signal(Signal::SIGQUIT)?;
    ensure!(pair.directors[0].daemon().wait(LONG)?.success(), "the first director failed to stop");
    first.ip(&["link set eth0 up".to_owned(), format!("route add {}", default_route.trim())])?;
    pair.directors[0].start_again()?;
    pair.wait_for_servers()?;
    ensure!(!pair.directors[0].status()?.adopted, "the first director has its old sessions");
    pair.route_by(&[0, 1])?;
    pair.go_on_by(0, &mut downloads, "the first director has returned")?;

    pair.route_by(&[0])?;
    pair.go_on_by(0, &mut downloads, "the second director's route is withdrawn")?;
    pair.route_by(&[0, 1])?;
    pair.go_on_by(1, &mut downloads, "the second director's route has returned")?;
    downloads.end()
}

#[test]
fn downloads_by_l2_go_on_when_a_director_behind_ecmp_leaves_and_returns() -> Result<()> {
    downloads_go_on(Farm::builder(), "l2")
}

#[test]
fn downloads_by_tunnel_go_on_when_a_director_behind_ecmp_leaves_and_returns() -> Result<()> {
    downloads_go_on(Farm::builder().remote(), "tunnel")
}

impl Pair {
    /// Routes packets for the service to these directors.
    fn route_by(&self, directors: &[usize]) -> Result<()> {
        let hops =
            directors.iter().map(|at| format!(" nexthop via {}", self.farm.directors()[*at].address()));
        let line = format!("route replace {}/32{}", self.farm.vip(0), hops.collect::<String>());
        self.farm.router().ip(&[line])
    }

    /// Finds [`EACH`] client ports per director with the router's own route lookups, because the
    /// key of its hash is secret.
    fn ports_by_director(&self) -> Result<[BTreeSet<u16>; 2]> {
        let (router, client) = (self.farm.router(), self.farm.client(0).address().to_string());
        let (service, interface) = (self.services[0].address, &router.interfaces()[0].name);
        let (vip, to) = (service.ip().to_string(), service.port().to_string());
        let mut ports = [BTreeSet::new(), BTreeSet::new()];
        let mut candidates = 20_000..21_000;
        while ports.iter().any(|ports| ports.len() < EACH) {
            let port = candidates.next().with_context(|| format!("a director has too few: {ports:?}"))?;
            let words = ["ip", "route", "get", &vip, "from", &client, "iif", interface, "ipproto", "tcp"];
            let route = router.run(&[&words[..], &["sport", &port.to_string(), "dport", &to]].concat())?;
            let hop = route.split_whitespace().skip_while(|word| *word != "via").nth(1);
            let is_hop = |host: &Host| hop == Some(host.address().to_string().as_str());
            let director = self.farm.directors().iter().position(is_hop);
            let ports = &mut ports[director.with_context(|| format!("no director's route: {route}"))?];
            if ports.len() < EACH {
                ports.insert(port);
            }
        }
        Ok(ports)
    }

    /// Waits until every download has progressed after an event, and checks that a director has
    /// forwarded packets.
    fn go_on_by(&self, director: usize, downloads: &mut Downloads, event: &str) -> Result<()> {
        let counted = || -> Result<u64> {
            Ok(self.directors[director].status()?.packets.get("forwarded").copied().unwrap_or_default())
        };
        let before = counted()?;
        downloads.go_on(event)?;
        let now = counted()?;
        ensure!(now > before, "{event}: director {director} still counts {now} forwarded packets");
        Ok(())
    }

    /// Returns the client ports with a session that a director has seen itself.
    fn clients_of(&self, director: usize) -> Result<BTreeSet<u16>> {
        let sessions = self.directors[director].sessions()?;
        let own = sessions.iter().filter(|session| session.state != "replicated");
        own.map(|session| Ok(session.client.parse::<SocketAddr>()?.port())).collect()
    }
}

/// Downloads with curl from the client. Each is read slowly ([`PACE`]) until [`Downloads::end`], so
/// that it lasts through all events.
struct Downloads {
    list: Vec<Download>,
    is_paced: Arc<AtomicBool>,
}

struct Download {
    port: u16,
    curl: Child,
    received: Arc<AtomicU64>,
}

impl Downloads {
    fn start(pair: &Pair, ports: impl Iterator<Item = u16>) -> Result<Downloads> {
        let is_paced = Arc::new(AtomicBool::new(true));
        let url = format!("http://{}/big", pair.services[0].address);
        let list = ports.map(|port| Download::start(pair.farm.client(0), port, &url, &is_paced));
        Ok(Downloads { list: list.collect::<Result<_>>()?, is_paced })
    }

    /// Waits until every download has progressed after an event.
    ///
    /// # Errors
    /// Fails if a download has ended.
    fn go_on(&mut self, event: &str) -> Result<()> {
        let goals: Vec<u64> = self.list.iter().map(|one| one.received.load(Relaxed) + PROGRESS).collect();
        let mut behind = || -> Result<Vec<u16>> {
            let all = self.list.iter_mut().zip(&goals);
            let behind = all.filter(|(one, goal)| one.received.load(Relaxed) < **goal);
            Ok(behind
                .filter_map(|(one, _)| {
                    one.curl.try_wait().is_ok_and(|status| status.is_none()).then_some(one.port)
                })
                .collect())
        };
        let behind = wait::for_value(LONG, &mut behind, Vec::is_empty)?;
        let mut over = Vec::new();
        for one in &mut self.list {
            if let Some(status) = one.curl.try_wait()? {
                over.push(one.outcome(status)?);
            }
        }
        ensure!(over.is_empty(), "{event}: {} of {} are over: {over:#?}", over.len(), self.list.len());
        behind.map(drop).map_err(|ports| anyhow!("{event}: downloads to {ports:?} do not go on"))
    }

    /// Reads the rest of all downloads.
    ///
    /// # Errors
    /// Fails if a download is incomplete.
    fn end(mut self) -> Result<()> {
        self.is_paced.store(false, Relaxed);
        let running = |list: &mut Vec<Download>| -> Result<usize> {
            let mut running = 0;
            for one in list {
                running += usize::from(one.curl.try_wait()?.is_none());
            }
            Ok(running)
        };
        let left = wait::for_value(LONG, || running(&mut self.list), |running| *running == 0)?;
        ensure!(left.is_ok(), "{left:?} downloads have no end");
        let mut broken = Vec::new();
        for one in &mut self.list {
            let status = one.curl.wait()?;
            if !status.success() {
                broken.push(one.outcome(status)?);
            }
        }
        ensure!(broken.is_empty(), "{} of {} are broken: {broken:#?}", broken.len(), self.list.len());
        Ok(())
    }
}

impl Download {
    fn start(client: &Host, port: u16, url: &str, is_paced: &Arc<AtomicBool>) -> Result<Download> {
        let port_text = port.to_string();
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--local-port", &port_text, url]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut curl = client.enter(|| command.spawn())?.context("The program curl is needed")?;
        let output = curl.stdout.take().context("curl has no output")?;
        let received = Arc::new(AtomicU64::new(0));
        let (count, is_paced) = (Arc::clone(&received), Arc::clone(is_paced));
        thread::spawn(move || read(output, &count, &is_paced));
        Ok(Download { port, curl, received })
    }

    /// Describes the end of a download.
    fn outcome(&mut self, status: ExitStatus) -> Result<String> {
        let mut error = String::new();
        if let Some(mut stderr) = self.curl.stderr.take() {
            stderr.read_to_string(&mut error)?;
        }
        let received = self.received.load(Relaxed);
        Ok(format!("port {}: {received} of {BIG_LEN} bytes, {status}: {}", self.port, error.trim()))
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let _ = self.curl.kill();
        let _ = self.curl.wait();
    }
}

/// Reads curl's output until curl ends.
fn read(mut output: ChildStdout, received: &AtomicU64, is_paced: &AtomicBool) {
    let mut chunk = [0; CHUNK];
    while let Ok(len @ 1..) = output.read(&mut chunk) {
        received.fetch_add(len as u64, Relaxed);
        if is_paced.load(Relaxed) {
            thread::sleep(PACE);
        }
    }
}
