//! Two directors whose service address keepalived moves, with the files of
//! docs/operating/keepalived.md.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use evener_lab::evener::{AffinityEntry, Evener, program};
use evener_lab::family::Family;
use evener_lab::farm::Farm;
use evener_lab::host::Host;
use evener_lab::proc::Proc;
use evener_lab::skip;
use evener_lab::visit::Visit;
use evener_lab::wait::{self, LONG};

use crate::file;
use crate::lasting::{self, CONNECTIONS, go_on};
use crate::outage::outage;
use crate::page::block;

on_both_engines! {
    address_moves_when_director_is_drained_and_both_serve_when_both_have_it,
    addresses_of_both_families_move_when_link_is_gone,
    gateway_of_nat_moves_with_address,
    open_connections_go_on_at_other_director,
    translated_connections_go_on_at_other_director,
    affinity_outlives_director,
}

/// Age at which a connection must outlive its director.
const LASTING: Duration = Duration::from_millis(1_500);
const PAGE: &str = "keepalived.md";
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Two directors with their daemons and keepalived. Fields are dropped in order.
struct Pair {
    _keepalived: Vec<Proc>,
    directors: Vec<Evener>,
    farm: Farm,
}

impl Pair {
    fn start(engine: &str) -> Result<Pair> {
        Self::start_with(engine, |text| text, |text| text)
    }

    /// Starts the pair with the page's files, evener.toml and keepalived.conf edited.
    fn start_with(
        engine: &str,
        edit: impl Fn(String) -> String,
        edit_keepalived: impl Fn(String) -> String,
    ) -> Result<Pair> {
        let farm = Farm::builder().servers(2).directors(2).build()?;
        let secret = farm.director().write("farm.key", SECRET)?;
        fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
        let text = block(PAGE, "[farm]")?.replace("/etc/evener/farm.key", &secret.to_string_lossy());
        let text = file::engine(engine) + &edit(text);
        let directors = farm.directors().iter().map(|host| Evener::start(host, &text));
        let directors: Vec<Evener> = directors.collect::<Result<_>>()?;
        directors.iter().try_for_each(|director| director.wait_for_servers(2, LONG).map(drop))?;
        // The director whose script succeeds first keeps the address.
        let first = keepalived_on(farm.director(), 100, &edit_keepalived)?;
        wait::until("the first director has the address", || has_address(farm.director()))?;
        let keepalived = vec![first, keepalived_on(&farm.directors()[1], 90, &edit_keepalived)?];
        Ok(Pair { _keepalived: keepalived, directors, farm })
    }

    /// Returns which directors have the service address.
    fn owners(&self) -> Result<Vec<bool>> {
        self.farm.directors().iter().map(has_address).collect()
    }

    fn wait_for_owners(&self, wanted: [bool; 2]) -> Result<()> {
        wait::until(&format!("the owners are {wanted:?}"), || Ok(self.owners()? == wanted))
    }

    fn visit(&self) -> Result<String> {
        Visit::open(self.farm.client(0), self.farm.service())?.who_and_close()
    }

    fn connections(&self, director: usize) -> Result<u64> {
        Ok(self.directors[director].servers()?.iter().map(|server| server.connections).sum())
    }

    /// Waits until new connections go by this director. The router learns the new place of the
    /// address a moment after the address has moved.
    fn serves(&self, director: usize) -> Result<()> {
        wait::until(&format!("director {director} serves"), || {
            let before = self.connections(director)?;
            (0..4).try_for_each(|_| self.visit().map(drop))?;
            Ok(self.connections(director)? == before + 4)
        })
    }

    fn has_told(&self, director: usize, event: &str) -> Result<()> {
        wait::until(&format!("director {director} tells {event}"), || {
            Ok(self.directors[director].command(&["events", "--since", "5m"])?.contains(event))
        })
    }
}

fn has_address(host: &Host) -> Result<bool> {
    Ok(host.run(&["ip", "-o", "address", "show", "dev", "eth0"])?.contains("192.0.2.100/32"))
}

fn keepalived_on(host: &Host, priority: u8, edit: impl Fn(String) -> String) -> Result<Proc> {
    // keepalived runs a script only if nobody but root can change it or its folders.
    let script = host.write("ready", &format!("#!/bin/sh\nexec {} ready\n", program()?.display()))?;
    fs::set_permissions(&script, Permissions::from_mode(0o700))?;
    let text = block(PAGE, "global_defs {")?
        .replace("/usr/bin/evener ready", &script.to_string_lossy())
        .replace("    enable_script_security\n", "")
        .replace("priority 100", &format!("priority {priority}"));
    let config = host.write("keepalived.conf", &edit(text))?;
    let file = |name: &str| host.file(name).to_string_lossy().into_owned();
    let (pid, vrrp) = (file("keepalived.pid"), file("vrrp.pid"));
    let words = ["keepalived", "-n", "-l", "-P", "-p", &pid, "-r", &vrrp, "-f", &config.to_string_lossy()];
    host.spawn("keepalived", &words)
}

fn address_moves_when_director_is_drained_and_both_serve_when_both_have_it(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        skip::skipped("keepalived is not installed");
        return Ok(());
    }
    let pair = Pair::start(engine)?;
    pair.wait_for_owners([true, false])?;
    pair.has_told(0, "this host has 192.0.2.100 now")?;
    pair.serves(0)?;

    pair.directors[0].command(&["drain", "--director"])?;
    let drained = Instant::now();
    pair.wait_for_owners([false, true])?;
    println!("the address moved {:?} after the drain", drained.elapsed());
    pair.has_told(0, "this host no longer has 192.0.2.100")?;
    pair.serves(1)?;
    // The director that returns waits.
    pair.directors[0].command(&["undrain", "--director"])?;
    wait::until("the first director is ready", || Ok(pair.directors[0].ready(&[])?.0 == 0))?;
    pair.wait_for_owners([false, true])?;
    pair.serves(1)?;

    // Directors that don't hear each other both take the address.
    for host in pair.farm.directors() {
        host.run(&["nft", "add table inet deaf"])?;
        host.run(&["nft", "add chain inet deaf in { type filter hook input priority 0; }"])?;
        host.run(&["nft", "add rule inet deaf in ip protocol 112 drop"])?;
    }
    pair.wait_for_owners([true, true])?;
    [0, 1].into_iter().try_for_each(|director| pair.has_told(director, "both have 192.0.2.100"))?;
    (0..4).try_for_each(|_| pair.visit().map(drop))
}

fn addresses_of_both_families_move_when_link_is_gone(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        skip::skipped("keepalived is not installed");
        return Ok(());
    }
    let both = "addresses = [\"192.0.2.100:80\", \"[2001:db8::100]:80\"]";
    let excluded = "    virtual_ipaddress_excluded {\n        2001:db8::100/128\n    }\n    track_script {";
    let pair = Pair::start_with(
        engine,
        |text| text.replace("address = \"192.0.2.100:80\"", both),
        |text| text.replace("    track_script {", excluded),
    )?;
    let visit = |family| Visit::open(pair.farm.client(0), pair.farm.service_in(family))?.who_and_close();
    Family::BOTH.into_iter().try_for_each(|family| visit(family).map(drop))?;
    let host = pair.farm.director();
    let time = outage(pair.farm.client(0), pair.farm.service(), || {
        host.ip(&["link set eth0 down".to_owned()])?;
        wait::until("the other director has the address", || has_address(&pair.farm.directors()[1]))
    })?;
    println!("new connections failed for {time:?} after the link went");
    Family::BOTH.into_iter().try_for_each(|family| visit(family).map(drop))
}

/// Starts a pair with method nat, whose gateway moves with the address.
fn pair_with_gateway(engine: &str, policy: &str) -> Result<Pair> {
    let pair = Pair::start_with(
        engine,
        |text| text.replace("policy = \"hash\"", &format!("{policy}method = \"nat\"")),
        |text| text.replace("192.0.2.100/32\n", "192.0.2.100/32\n        192.0.2.254/24\n"),
    )?;
    for server in pair.farm.servers() {
        server.ip(&["route replace default via 192.0.2.254".to_owned()])?;
    }
    pair.serves(0)?;
    Ok(pair)
}

fn gateway_of_nat_moves_with_address(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        skip::skipped("keepalived is not installed");
        return Ok(());
    }
    let pair = pair_with_gateway(engine, "policy = \"round-robin\"\n")?;
    pair.directors[0].command(&["drain", "--director"])?;
    pair.wait_for_owners([false, true])?;
    pair.serves(1)
}

/// Opens connections, lets them last, and moves the address twice: by a drain, and by an unplugged
/// cable. All connections must go on.
fn connections_outlive_directors(pair: &Pair) -> Result<()> {
    let open = || lasting::open(pair.farm.client(0), &[pair.farm.service()]);
    let mut visits = open()?;
    wait::until("the second director knows the sessions", || {
        let listed = pair.directors[1].command(&["sessions", "--limit", "1000"])?;
        Ok(listed.lines().filter(|line| line.contains("replicated")).count() >= CONNECTIONS)
    })?;
    pair.directors[0].command(&["drain", "--director"])?;
    pair.wait_for_owners([false, true])?;
    pair.serves(1)?;
    go_on(&mut visits, "after the drain")?;
    pair.directors[0].command(&["undrain", "--director"])?;
    wait::until("the first director is ready", || Ok(pair.directors[0].ready(&[])?.0 == 0))?;
    let mut later = open()?;
    std::thread::sleep(LASTING);
    pair.farm.directors()[1].ip(&["link set eth0 down".to_owned()])?;
    wait::until("the first director has the address", || has_address(pair.farm.director()))?;
    go_on(&mut visits, "after the cable was unplugged")?;
    go_on(&mut later, "opened later")
}

fn open_connections_go_on_at_other_director(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        skip::skipped("keepalived is not installed");
        return Ok(());
    }
    // The default policy chooses by load, so the directors choose differently.
    connections_outlive_directors(&Pair::start_with(
        engine,
        |text| text.replace("policy = \"hash\"\n", ""),
        |text| text,
    )?)
}

fn affinity_outlives_director(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        skip::skipped("keepalived is not installed");
        return Ok(());
    }
    let pair = Pair::start_with(
        engine,
        |text| text.replace("policy = \"hash\"", "policy = \"round-robin\"\naffinity = \"10m\""),
        |text| text,
    )?;
    let servers = (0..3).map(|_| pair.visit()).collect::<Result<Vec<_>>>()?;
    let server = &servers[0];
    ensure!(servers.iter().all(|one| one == server), "{servers:?}");
    wait::until("the second director knows the client", || {
        let known: Vec<AffinityEntry> = pair.directors[1].json(&["affinity"])?;
        Ok(known.iter().any(|entry| entry.server == *server))
    })?;
    for director in [0, 1] {
        pair.directors[director].command(&["drain", "--director"])?;
        pair.wait_for_owners([director == 1, director == 0])?;
        pair.serves(1 - director)?;
        for _ in 0..4 {
            assert_eq!(pair.visit()?, *server);
        }
        pair.directors[director].command(&["undrain", "--director"])?;
        wait::until("the director is ready", || Ok(pair.directors[director].ready(&[])?.0 == 0))?;
    }
    Ok(())
}

fn translated_connections_go_on_at_other_director(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        skip::skipped("keepalived is not installed");
        return Ok(());
    }
    connections_outlive_directors(&pair_with_gateway(engine, "")?)
}
