//! Directors whose service addresses BIRD or FRR announces, with the files of
//! docs/operating/bird.md.

mod outlive;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{Agent, Evener, program};
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::process::Proc;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::unit_files;
use serde_json::Value;

use crate::file;
use crate::outage::outage;
use crate::page;

on_both_engines! {
    route_follows_readiness_of_director,
    clients_reach_other_director_when_link_is_gone,
    translated_connections_go_by_each_director_with_source_nat,
}

on_one_engine! {
    routes_are_kept_as_they_should_be,
    bfd_survives_restart_upgrade_and_reload,
    frr_announces_ready_address,
}

/// Number of reloads, restarts and upgrades that BFD must survive.
const ROUNDS: u32 = 2;
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Returns the block of the page that begins with this line, with the farm's service addresses.
fn block(first: &str) -> Result<String> {
    let text = page::block("bird.md", first)?;
    Ok(text.replace("198.51.100.100", "192.0.2.100").replace("2001:db8:100::100", "2001:db8::100"))
}

/// Directors with their daemons, announcers and BIRD, and a router with BIRD. Fields are dropped in
/// order.
struct Front {
    birds: Vec<Proc>,
    announcers: Vec<Proc>,
    directors: Vec<Evener>,
    _agents: Vec<Agent>,
    /// Families of the service's addresses.
    families: Vec<Family>,
    farm: Farm,
}

/// Returns the page's configuration for a director.
fn config(farm: &Farm, engine: &str) -> Result<String> {
    let secret = farm.director().write("farm.key", SECRET)?;
    fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
    let text = block("[farm]")?.replace("/etc/evener/farm.key", &secret.to_string_lossy());
    let text = text.replacen("[farm]", "[farm]\norphan = \"10s\"", 1);
    Ok(file::engine(engine) + &text)
}

fn announce(host: &Host) -> Result<Proc> {
    let words = [program()?.to_string_lossy().into_owned(), "announce".to_owned()];
    let words = unit_files::words_for("evener-announce.service", &words)?;
    let mut announcer = host.spawn("announce", &words)?;
    announcer.wait_for("evener: ready", LONG)?;
    Ok(announcer)
}

fn bird(host: &Host, text: &str) -> Result<Proc> {
    let text = text.replace("protocol bfd {", "protocol bfd {\n    debug { states, events };");
    let config = host.write("bird.conf", &format!("log stderr all;\n{text}"))?;
    let file = |name: &str| host.file(name).to_string_lossy().into_owned();
    let (control, pid) = (file("bird.ctl"), file("bird.pid"));
    host.spawn("bird", &["bird", "-f", "-c", &config.to_string_lossy(), "-s", &control, "-P", &pid])
}

/// Returns the answer of a host's BIRD.
fn birdc(host: &Host, command: &str) -> Result<String> {
    let control = host.file("bird.ctl").to_string_lossy().into_owned();
    host.run(&[&["birdc", "-s", &control][..], &command.split(' ').collect::<Vec<_>>()].concat())
}

fn bird_on_director(farm: &Farm, number: usize) -> Result<Proc> {
    let host = &farm.directors()[number];
    let text = block("router id 192.0.2.2;")?
        .replace("192.0.2.2", &host.address().to_string())
        .replace("2001:db8::2", &host.address_in(Family::V6).to_string());
    bird(host, &text)
}

impl Front {
    fn start(engine: &str, announce_settings: &str) -> Result<Front> {
        Self::start_with(engine, |text| format!("{announce_settings}{text}"))
    }

    /// Starts all with the page's files, of which evener.toml is edited.
    fn start_with(engine: &str, edit: impl FnOnce(&str) -> String) -> Result<Front> {
        let farm = Farm::builder().servers(2).directors(2).build()?;
        Self::start_on(farm, engine, edit, no_agents)
    }

    fn start_on(
        farm: Farm,
        engine: &str,
        edit: impl FnOnce(&str) -> String,
        agents: impl FnOnce(&[Host], &str) -> Result<Vec<Agent>>,
    ) -> Result<Front> {
        let addresses: Vec<String> =
            farm.directors().iter().map(|host| format!("{:?}", host.address().to_string())).collect();
        let listed = format!("directors = [{}]", addresses.join(", "));
        let text = config(&farm, engine)?;
        let text = edit(&text.replace("directors = [\"192.0.2.2\", \"192.0.2.3\"]", &listed));
        let agents = agents(farm.servers(), &text)?;
        let directors = farm.directors().iter().map(|host| Evener::start_by(host, &text, &[], &["--keep"]));
        let directors: Vec<Evener> = directors.collect::<Result<_>>()?;
        farm.router().run(&["sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1"])?;
        farm.router().run(&["sysctl", "-qw", "net.ipv6.fib_multipath_hash_policy=1"])?;
        let mut router = block("router id 192.0.2.1;")?;
        for (number, host) in farm.directors().iter().enumerate().skip(2) {
            let neighbor = format!("neighbor {} as 65001;", host.address());
            router += &format!("protocol bgp director{} from director {{ {neighbor} }}\n", number + 1);
        }
        let mut birds = vec![bird(farm.router(), &router)?];
        for number in 0..farm.directors().len() {
            birds.push(bird_on_director(&farm, number)?);
        }
        let announcers: Vec<Proc> = farm.directors().iter().map(announce).collect::<Result<_>>()?;
        let families =
            Family::BOTH.into_iter().filter(|family| text.contains(&farm.vip_in(*family, 0).to_string()));
        let families = families.collect();
        let front = Front { birds, announcers, directors, _agents: agents, families, farm };
        front.wait_for_paths(&vec![true; front.directors.len()])?;
        Ok(front)
    }

    /// Returns which directors the router sends clients of an address to.
    fn paths(&self, family: Family) -> Result<Vec<bool>> {
        let vip = self.farm.vip_in(family, 0).to_string();
        let flag = if family == Family::V4 { "-4" } else { "-6" };
        let routes = self.farm.router().run(&["ip", flag, "route", "show", &vip])?;
        let is_path = |host: &Host| {
            let via = host.address_in(family).to_string();
            routes.split_whitespace().any(|word| word == via)
        };
        Ok(self.farm.directors().iter().map(is_path).collect())
    }

    fn wait_for_paths(&self, wanted: &[bool]) -> Result<()> {
        for family in self.families.iter().copied() {
            wait::until(&format!("the router's {family:?} paths are {wanted:?}"), || {
                Ok(self.paths(family)? == wanted)
            })?;
        }
        Ok(())
    }

    /// Opens some connections to each address. All must be answered.
    fn visit(&self) -> Result<()> {
        self.families.iter().try_for_each(|family| {
            let service = self.farm.service_in(*family);
            (0..8).try_for_each(|_| {
                HttpConnection::open(self.farm.client(0), service)?.who_and_close().map(drop)
            })
        })
    }

    fn connections(&self, director: usize) -> Result<u64> {
        Ok(self.directors[director].servers()?.iter().map(|server| server.connections).sum())
    }

    /// Returns a director's own routes to service addresses.
    fn routes(&self, director: usize) -> Result<String> {
        routes(&self.farm.directors()[director], "91")
    }

    /// Plugs an unplugged director in again.
    fn plug(&self, director: usize) -> Result<()> {
        let host = &self.farm.directors()[director];
        host.ip(&["link set eth0 up".to_owned(), "route add default via 192.0.2.1".to_owned()])
    }

    fn has_told(&self, director: usize, text: &str) -> Result<()> {
        wait::until(&format!("director {director} tells {text:?}"), || {
            Ok(self.announcers[director].log().contains(text))
        })
    }
}

fn no_agents(_: &[Host], _: &str) -> Result<Vec<Agent>> {
    Ok(Vec::new())
}

/// Returns a host's routes of both families by this protocol.
fn routes(host: &Host, protocol: &str) -> Result<String> {
    let of = |family: &str| host.run(&["ip", family, "route", "show", "table", "all", "proto", protocol]);
    Ok(of("-4")? + &of("-6")?)
}

/// Returns what `evener doctor` finds, whatever its exit status.
fn doctor(host: &Host) -> Result<String> {
    let output = host.output(&[program()?.as_os_str(), "doctor".as_ref()])?;
    Ok(String::from_utf8(output.stdout)?)
}

fn state(host: &Host) -> Result<Value> {
    let program = program()?.to_string_lossy().into_owned();
    Ok(serde_json::from_str(&host.run(&[&program, "announce", "--status", "--json"])?)?)
}

fn lacks(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !Path::new(program).exists());
    if let Some(program) = missing {
        engines::skipped(&format!("{program} is not installed"));
    }
    missing.is_some()
}

fn route_follows_readiness_of_director(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    let mut front = Front::start(engine, "[announce]\nhold = \"1s\"\n")?;
    wait::until("clients reach both directors", || {
        front.visit()?;
        Ok(front.connections(0)? > 0 && front.connections(1)? > 0)
    })?;

    front.directors[0].command(&["drain", "--director"])?;
    let drained = Instant::now();
    wait::until("the route is withdrawn", || Ok(front.routes(0)?.is_empty()))?;
    println!("the routes went {:?} after the drain", drained.elapsed());
    front.wait_for_paths(&[false, true])?;
    front.has_told(0, "192.0.2.100 is withdrawn: this director is drained")?;
    front.visit()?;
    front.directors[0].command(&["undrain", "--director"])?;
    front.wait_for_paths(&[true, true])?;

    let dead = Instant::now();
    front.directors[0].daemon().kill9()?;
    front.wait_for_paths(&[false, true])?;
    println!("the router left the director with the dead daemon out after {:?}", dead.elapsed());
    if engine == "xdp" {
        ensure!(front.routes(0)?.contains("metric 1000"), "{}", front.routes(0)?);
        front.has_told(0, "192.0.2.100 has metric 1000 now: the daemon is silent")?;
    }
    wait::until("the orphan's routes are withdrawn", || Ok(front.routes(0)?.is_empty()))?;
    front.directors[0].start_again()?;
    front.wait_for_paths(&[true, true])?;

    for server in 0..2 {
        front.farm.stop_web(server)?;
    }
    front.wait_for_paths(&[false, false])?;
    front.has_told(1, "192.0.2.100 is withdrawn: web: no server works")
}

fn routes_are_kept_as_they_should_be(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).directors(1).build()?;
    let settings = |text: &str| -> Result<String> {
        Ok(format!("[announce]\nhold = \"100ms\"\n{text}{}", config(&farm, engine)?))
    };
    let director = Evener::start(farm.director(), &settings("")?)?;
    let host = farm.director();
    let mut announcer = announce(host)?;
    let wait_for = |what: &str, protocol: &str, lines: &[&str]| {
        wait::until(what, || {
            let routes = routes(host, protocol)?;
            Ok(routes.lines().count() == lines.len() && lines.iter().all(|line| routes.contains(line)))
        })
    };
    let (both, family4) =
        (["blackhole 192.0.2.100 metric 100", "blackhole 2001:db8::100 dev lo"], "192.0.2.100/32");
    wait_for("both routes are there", "91", &both)?;
    let found = doctor(host)?;
    ensure!(found.contains("192.0.2.100 is announced, metric 100."), "{found}");

    host.run(&["ip", "route", "del", "blackhole", family4, "proto", "91"])?;
    announcer.wait_for("was deleted by somebody, and is restored", LONG)?;
    wait_for("the route is restored", "91", &both)?;
    host.run(&["ip", "route", "add", "blackhole", "192.0.2.200/32", "proto", "91"])?;
    announcer.wait_for("was added by somebody, and is removed", LONG)?;
    wait_for("the stranger's route is removed", "91", &both)?;
    host.run(&["ip", "route", "add", "blackhole", family4, "metric", "7"])?;
    announcer.wait_for("is another program's route to a service address", LONG)?;
    director.reload(&settings("metric = 7\n")?)?;
    announcer.wait_for("another program has a route to it with the same metric; retrying", LONG)?;
    ensure!(state(host)?["problem"].is_string(), "{}", state(host)?);
    host.run(&["ip", "route", "del", "blackhole", family4, "proto", "boot", "metric", "7"])?;
    wait_for(
        "the route takes the other's place",
        "91",
        &["192.0.2.100 metric 7", "2001:db8::100 dev lo metric 7"],
    )?;
    director.reload(&settings("")?)?;
    wait_for("the metric is as before", "91", &both)?;

    // A second announcer would fight with the first.
    let words = [program()?.into_os_string(), "announce".into()];
    ensure!(host.output(&words)?.status.code() == Some(5));
    // What happens while no announcer runs is found by the next one.
    announcer.kill9()?;
    director.command(&["drain", "--director"])?;
    ensure!(state(host)?["running"] == false);
    let found = doctor(host)?;
    ensure!(found.contains("`evener announce` does not run"), "{found}");
    wait_for("the routes are still there", "91", &both)?;
    let mut announcer = announce(host)?;
    wait_for("the drained director's routes are gone", "91", &[])?;
    ensure!(state(host)?["addresses"][0]["state"] == "withdrawn", "{}", state(host)?);
    director.command(&["undrain", "--director"])?;
    wait_for("the routes are back", "91", &both)?;

    // Other settings, with the announcer and before it starts.
    director.reload(&settings("protocol = 92\n")?)?;
    wait_for("the routes have the new protocol", "92", &both)?;
    wait_for("none has the old one", "91", &[])?;
    announcer.kill9()?;
    director.reload(&settings("protocol = 92\ntable = 180\nmetric = 200\ndrained = \"raise\"\n")?)?;
    let mut announcer = announce(host)?;
    let moved =
        ["blackhole 192.0.2.100 table 180 metric 200", "blackhole 2001:db8::100 dev lo table 180 metric 200"];
    wait_for("the routes are in the new table alone", "92", &moved)?;
    director.command(&["drain", "--director"])?;
    let raised = moved.map(|line| line.replace("metric 200", "metric 1000"));
    wait_for("the routes have the raised metric", "92", &raised.each_ref().map(String::as_str))?;

    ensure!(announcer.sigterm(LONG)? == 0);
    wait_for("the announcer leaves nothing", "92", &[])
}

fn bfd_survives_restart_upgrade_and_reload(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    let mut front = Front::start(engine, "")?;
    let flaps = |front: &Front| front.birds[0].log().matches("changed state from Up").count();
    ensure!(flaps(&front) == 0, "{}", front.birds[0].log());
    let text = fs::read_to_string(front.directors[0].file())?;
    let other = text.replace("policy = \"hash\"", "policy = \"round-robin\"");
    for _ in 0..ROUNDS {
        let director = &mut front.directors[0];
        director.reload(&other)?;
        director.reload(&text)?;
        ensure!(director.stop()? == 0);
        director.start_again()?;
        ensure!(director.stop()? == 0);
        director.upgrade()?;
        director.daemon().kill9()?;
        director.start_again()?;
    }
    front.wait_for_paths(&[true, true])?;
    ensure!(flaps(&front) == 0, "{}", front.birds[0].log());
    // The log tells of sessions that end.
    front.farm.directors()[0].ip(&["link set eth0 down".to_owned()])?;
    wait::until("the router tells that BFD has failed", || Ok(flaps(&front) == 1))
}

fn clients_reach_other_director_when_link_is_gone(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    let front = Front::start(engine, "[announce]\nhold = \"1s\"\n")?;
    front.visit()?;
    let (host, client) = (&front.farm.directors()[0], front.farm.client(0));
    let link = |state: &str| host.ip(&[format!("link set {} {state}", host.interfaces()[0].name)]);
    let time = outage(client, front.farm.service(), || {
        link("down")?;
        front.wait_for_paths(&[false, true])
    })?;
    println!("new connections failed for {time:?} after the link went");
    front.visit()?;
    link("up")?;
    front.wait_for_paths(&[true, true])
}

fn translated_connections_go_by_each_director_with_source_nat(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    let keys = "method = \"nat\"\nsource_nat = true\npolicy = \"round-robin\"";
    let front = Front::start_with(engine, |text| {
        let text = text.replace("policy = \"hash\"", keys).replace(", \"[2001:db8::100]:80\"", "");
        format!("[announce]\nhold = \"1s\"\n{text}")
    })?;
    wait::until("clients reach both directors", || {
        front.visit()?;
        Ok(front.connections(0)? > 0 && front.connections(1)? > 0)
    })
}

fn frr_announces_ready_address(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird", "/usr/lib/frr/bgpd"]) {
        return Ok(());
    }
    let farm = Farm::builder().servers(2).directors(1).build()?;
    let text = format!("[announce]\nhold = \"1s\"\n{}", config(&farm, engine)?);
    let director = Evener::start(farm.director(), &text)?;
    let _router = bird(farm.router(), &block("router id 192.0.2.1;")?)?;
    let host = farm.director();
    let _frr = frr(host)?;
    let _announcer = announce(host)?;
    let is_announced = |metric: Option<u32>| {
        let (farm, wanted) = (&farm, metric.map(|metric| format!("BGP.med: {metric}")));
        move || -> Result<bool> {
            let routes = birdc(farm.router(), "show route all protocol director1")?;
            let count = [farm.vip(0).to_string(), farm.vip_in(Family::V6, 0).to_string()];
            let count = count.iter().filter(|vip| routes.contains(*vip)).count();
            Ok(match &wanted {
                Some(med) => count == 2 && routes.matches(med.as_str()).count() == 2,
                None => count == 0,
            })
        }
    };
    wait::until("the router has both routes", is_announced(Some(100)))?;
    HttpConnection::open(farm.client(0), farm.service())?.who_and_close()?;
    director.command(&["drain", "--director"])?;
    wait::until("the router has none", is_announced(None))?;
    director.command(&["undrain", "--director"])?;
    wait::until("the router has both again", is_announced(Some(100)))?;
    director.reload(&text.replace("[announce]", "[announce]\ndrained = \"raise\""))?;
    director.command(&["drain", "--director"])?;
    wait::until("the router has both with a higher MED", is_announced(Some(1000)))
}

/// Starts FRR's programs on a director, with the page's file.
fn frr(host: &Host) -> Result<Vec<Proc>> {
    // The programs drop their privileges, so their files are in a folder of their own.
    let folder = host.file("frr");
    host.run(&["install", "-d", "-o", "frr", "-g", "frr", &folder.to_string_lossy()])?;
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (zserv, control, folder) = (file("zserv.api"), file("bfdd.sock"), file(""));
    let start = |name: &str| -> Result<Proc> {
        let (path, pid) = (format!("/usr/lib/frr/{name}"), file(&format!("{name}.pid")));
        let words = [
            path.as_str(),
            "-i",
            &pid,
            "-z",
            &zserv,
            "--vty_socket",
            &folder,
            "--log",
            "stdout",
            "-f",
            "/dev/null",
        ];
        let more: &[&str] = if name == "bfdd" { &["--bfdctl", &control] } else { &[] };
        let program = host.spawn(name, &[&words[..], more].concat())?;
        wait::until(&format!("{name} answers"), || Ok(Path::new(&file(&format!("{name}.vty"))).exists()))?;
        Ok(program)
    };
    let programs = ["zebra", "bfdd", "bgpd"].map(start).into_iter().collect::<Result<_>>()?;
    let config = host.write("frr.conf", &block("frr defaults datacenter")?)?;
    let answer = host.run(&["vtysh", "--vty_socket", &folder, "-f", &config.to_string_lossy()])?;
    ensure!(!answer.contains('%'), "{answer}");
    Ok(programs)
}
