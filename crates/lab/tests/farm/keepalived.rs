//! Directors whose service address keepalived moves, with the files of
//! docs/operating/keepalived.md.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{AffinityEntry, Evener, program};
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::process::Proc;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

use crate::file;
use crate::lasting::{self, go_on};
use crate::outage::outage;
use crate::page::block;

on_both_engines! {
    address_moves_when_director_is_drained_and_both_serve_when_both_have_it,
    addresses_of_both_families_move_when_link_is_gone,
    gateway_of_nat_moves_with_address,
    open_connections_go_on_at_other_director,
    translated_connections_go_on_at_other_director,
    translated_connections_go_on_when_directors_of_three_die,
    affinity_outlives_director,
}

const PAGE: &str = "keepalived.md";
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Directors with their daemons and keepalived. Fields are dropped in order.
struct Group {
    keepalived: Vec<Proc>,
    directors: Vec<Evener>,
    farm: Farm,
}

impl Group {
    fn start(engine: &str) -> Result<Group> {
        Self::start_with(engine, 2, |text| text, |text| text)
    }

    /// Starts `count` directors with the page's files, evener.toml and keepalived.conf edited.
    fn start_with(
        engine: &str,
        count: u8,
        edit: impl Fn(String) -> String,
        edit_keepalived: impl Fn(String) -> String,
    ) -> Result<Group> {
        let farm = Farm::builder().servers(2).directors(count).build()?;
        let secret = farm.director().write("farm.key", SECRET)?;
        fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
        let text = block(PAGE, "[farm]")?.replace("/etc/evener/farm.key", &secret.to_string_lossy());
        let hosts = farm.directors().iter();
        let listed: Vec<String> = hosts.map(|host| host.address().to_string()).collect();
        let text = text.replace("[\"192.0.2.2\", \"192.0.2.3\"]", &format!("{listed:?}"));
        let text = file::engine(engine) + &edit(text);
        let directors = farm.directors().iter().map(|host| Evener::start(host, &text));
        let directors: Vec<Evener> = directors.collect::<Result<_>>()?;
        directors.iter().try_for_each(|director| director.wait_for_servers(2, LONG).map(drop))?;
        // The director whose script succeeds first keeps the address.
        let mut keepalived = Vec::new();
        for (host, priority) in farm.directors().iter().zip([100, 90, 80]) {
            keepalived.push(keepalived_on(host, priority, &edit_keepalived)?);
            wait::until("the first director has the address", || has_address(farm.director()))?;
        }
        Ok(Group { keepalived, directors, farm })
    }

    /// Returns which directors have the service address.
    fn owners(&self) -> Result<Vec<bool>> {
        self.farm.directors().iter().map(has_address).collect()
    }

    fn wait_for_owners(&self, wanted: &[bool]) -> Result<()> {
        wait::until(&format!("the owners are {wanted:?}"), || Ok(self.owners()? == wanted))
    }

    fn visit(&self) -> Result<String> {
        HttpConnection::open(self.farm.client(0), self.farm.service())?.who_and_close()
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
        engines::skipped("keepalived is not installed");
        return Ok(());
    }
    let group = Group::start(engine)?;
    group.wait_for_owners(&[true, false])?;
    group.has_told(0, "this host has 192.0.2.100 now")?;
    group.serves(0)?;

    group.directors[0].command(&["drain", "--director"])?;
    let drained = Instant::now();
    group.wait_for_owners(&[false, true])?;
    println!("the address moved {:?} after the drain", drained.elapsed());
    group.has_told(0, "this host no longer has 192.0.2.100")?;
    group.serves(1)?;
    // The director that returns waits.
    group.directors[0].command(&["undrain", "--director"])?;
    wait::until("the first director is ready", || Ok(group.directors[0].ready(&[])?.0 == 0))?;
    group.wait_for_owners(&[false, true])?;
    group.serves(1)?;

    // Directors that don't hear each other both take the address.
    for host in group.farm.directors() {
        host.run(&["nft", "add table inet deaf"])?;
        host.run(&["nft", "add chain inet deaf in { type filter hook input priority 0; }"])?;
        host.run(&["nft", "add rule inet deaf in ip protocol 112 drop"])?;
    }
    group.wait_for_owners(&[true, true])?;
    [0, 1].into_iter().try_for_each(|director| group.has_told(director, "both have 192.0.2.100"))?;
    (0..4).try_for_each(|_| group.visit().map(drop))
}

fn addresses_of_both_families_move_when_link_is_gone(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        engines::skipped("keepalived is not installed");
        return Ok(());
    }
    let both = "addresses = [\"192.0.2.100:80\", \"[2001:db8::100]:80\"]";
    let excluded = "    virtual_ipaddress_excluded {\n        2001:db8::100/128\n    }\n    track_script {";
    let group = Group::start_with(
        engine,
        2,
        |text| text.replace("address = \"192.0.2.100:80\"", both),
        |text| text.replace("    track_script {", excluded),
    )?;
    let visit =
        |family| HttpConnection::open(group.farm.client(0), group.farm.service_in(family))?.who_and_close();
    Family::BOTH.into_iter().try_for_each(|family| visit(family).map(drop))?;
    let host = group.farm.director();
    let time = outage(group.farm.client(0), group.farm.service(), || {
        host.ip(&["link set eth0 down".to_owned()])?;
        wait::until("the other director has the address", || has_address(&group.farm.directors()[1]))
    })?;
    println!("new connections failed for {time:?} after the link went");
    Family::BOTH.into_iter().try_for_each(|family| visit(family).map(drop))
}

/// Starts `count` directors with method nat, whose gateway moves with the address.
fn group_with_gateway(engine: &str, count: u8, policy: &str) -> Result<Group> {
    let group = Group::start_with(
        engine,
        count,
        |text| text.replace("policy = \"hash\"", &format!("{policy}method = \"nat\"")),
        |text| text.replace("192.0.2.100/32\n", "192.0.2.100/32\n        192.0.2.254/24\n"),
    )?;
    for server in group.farm.servers() {
        server.ip(&["route replace default via 192.0.2.254".to_owned()])?;
    }
    group.serves(0)?;
    Ok(group)
}

fn gateway_of_nat_moves_with_address(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        engines::skipped("keepalived is not installed");
        return Ok(());
    }
    let group = group_with_gateway(engine, 2, "policy = \"round-robin\"\n")?;
    group.directors[0].command(&["drain", "--director"])?;
    group.wait_for_owners(&[false, true])?;
    group.serves(1)
}

/// Opens connections, lets them last, and moves the address twice: by a drain, and by an unplugged
/// cable. All connections must go on.
fn connections_outlive_directors(group: &Group) -> Result<()> {
    let open = || lasting::open(group.farm.client(0), &[group.farm.service()]);
    let mut visits = open()?;
    lasting::are_known_to(&visits, &group.directors[1])?;
    group.directors[0].command(&["drain", "--director"])?;
    group.wait_for_owners(&[false, true])?;
    group.serves(1)?;
    go_on(&mut visits, "after the drain")?;
    group.directors[0].command(&["undrain", "--director"])?;
    wait::until("the first director is ready", || Ok(group.directors[0].ready(&[])?.0 == 0))?;
    let mut later = open()?;
    lasting::are_known_to(&later, &group.directors[0])?;
    group.farm.directors()[1].ip(&["link set eth0 down".to_owned()])?;
    wait::until("the first director has the address", || has_address(group.farm.director()))?;
    go_on(&mut visits, "after the cable was unplugged")?;
    go_on(&mut later, "opened later")
}

fn open_connections_go_on_at_other_director(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        engines::skipped("keepalived is not installed");
        return Ok(());
    }
    // The default policy chooses by load, so the directors choose differently.
    connections_outlive_directors(&Group::start_with(
        engine,
        2,
        |text| text.replace("policy = \"hash\"\n", ""),
        |text| text,
    )?)
}

fn affinity_outlives_director(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        engines::skipped("keepalived is not installed");
        return Ok(());
    }
    let group = Group::start_with(
        engine,
        2,
        |text| text.replace("policy = \"hash\"", "policy = \"round-robin\"\naffinity = \"10m\""),
        |text| text,
    )?;
    let servers = (0..3).map(|_| group.visit()).collect::<Result<Vec<_>>>()?;
    let server = &servers[0];
    ensure!(servers.iter().all(|one| one == server), "{servers:?}");
    wait::until("the second director knows the client", || {
        let known: Vec<AffinityEntry> = group.directors[1].json(&["affinity"])?;
        Ok(known.iter().any(|entry| entry.server == *server))
    })?;
    for director in [0, 1] {
        group.directors[director].command(&["drain", "--director"])?;
        group.wait_for_owners(&[director == 1, director == 0])?;
        group.serves(1 - director)?;
        for _ in 0..4 {
            assert_eq!(group.visit()?, *server);
        }
        group.directors[director].command(&["undrain", "--director"])?;
        wait::until("the director is ready", || Ok(group.directors[director].ready(&[])?.0 == 0))?;
    }
    Ok(())
}

fn translated_connections_go_on_at_other_director(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        engines::skipped("keepalived is not installed");
        return Ok(());
    }
    connections_outlive_directors(&group_with_gateway(engine, 2, "")?)
}

/// Kills all of a director, and unplugs it, as when its host loses power; then the next one.
fn translated_connections_go_on_when_directors_of_three_die(engine: &str) -> Result<()> {
    if !Path::new("/usr/sbin/keepalived").exists() {
        engines::skipped("keepalived is not installed");
        return Ok(());
    }
    let mut group = group_with_gateway(engine, 3, "")?;
    let mut visits = lasting::open(group.farm.client(0), &[group.farm.service()])?;
    for director in &group.directors {
        lasting::are_known_to(&visits, director)?;
    }
    for gone in [0, 1] {
        group.farm.directors()[gone].ip(&["link set eth0 down".to_owned()])?;
        group.directors[gone].daemon().kill9()?;
        group.keepalived[gone].kill9()?;
        wait::until("the next director has the address", || has_address(&group.farm.directors()[gone + 1]))?;
        group.serves(gone + 1)?;
        go_on(&mut visits, &format!("after director {gone} died"))?;
    }
    Ok(())
}
