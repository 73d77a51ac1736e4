//! Two directors with one secret: a flow whose packets come to the other one goes on.

use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::{Builder, Farm};
use evener_lab::{skip, wait};

use crate::Agent;

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// Downloads that are open while their packets come to another director.
const DOWNLOADS: usize = 12;
/// Flows of which the choice is compared.
const FLOWS: u16 = 40;

struct Pair {
    farm: Farm,
    directors: Vec<Evener>,
    _agents: Vec<Agent>,
}

impl Pair {
    fn start(builder: Builder, method: &str, policy: &str) -> Result<Pair> {
        let farm = builder.servers(4).directors(2).build()?;
        let addresses: Vec<String> = farm.directors().iter().map(|host| host.address().to_string()).collect();
        let servers: String = farm
            .servers()
            .iter()
            .map(|host| {
                format!("[[service.server]]\nname = \"{}\"\naddress = \"{}\"\n", host.name(), host.address())
            })
            .collect();
        let text = |secret: &str| {
            format!(
                "[farm]\ndirectors = {addresses:?}\nsecret_file = \"{secret}\"\n[[service]]\nname = \"web\"\naddress = \"{}\"\n\
                 method = \"{method}\"\npolicy = \"{policy}\"\nannounce = false\n{servers}[service.health]\nkind = \"tcp\"\n\
                 interval = \"500ms\"\n",
                farm.service()
            )
        };
        let keyed = |host: &evener_lab::host::Host| -> Result<String> {
            let secret = host.write("farm.key", SECRET)?.display().to_string();
            host.run(&["chmod", "600", &secret])?;
            Ok(text(&secret))
        };
        let agents = farm.servers().iter().map(|host| Agent::start(host, &keyed(host)?, &[]));
        let agents = agents.collect::<Result<Vec<_>>>()?;
        let directors = farm.directors().iter().map(|host| Evener::start(host, &keyed(host)?));
        let directors = directors.collect::<Result<Vec<_>>>()?;
        for director in &directors {
            director.wait_for_servers(4, Duration::from_secs(20))?;
        }
        Ok(Pair { farm, directors, _agents: agents })
    }

    /// Has the router send what is for the service to a director.
    fn route_to(&self, director: usize) -> Result<()> {
        let (vip, via) = (self.farm.vip(0), self.farm.directors()[director].address());
        self.farm.router().ip(&[format!("route replace {vip}/32 via {via}")])
    }
}

fn downloads_go_on(builder: Builder, method: &str) -> Result<()> {
    if !skip::has_root() {
        return Ok(());
    }
    let pair = Pair::start(builder, method, "hash")?;
    pair.route_to(0)?;
    let url = format!("http://{}/big", pair.farm.service());
    let client = pair.farm.client(0);
    let words = [
        "curl",
        "--silent",
        "--show-error",
        "--limit-rate",
        "1000k",
        "--max-time",
        "60",
        "--output",
        "/dev/null",
        &url,
    ];
    let mut downloads = (0..DOWNLOADS)
        .map(|number| client.spawn(&format!("curl{number}"), &words))
        .collect::<Result<Vec<_>>>()?;
    wait::until("all downloads are open", || {
        let open = pair.directors[0].sessions()?.into_iter().filter(|session| session.state == "established");
        Ok(open.count() >= DOWNLOADS)
    })?;
    pair.route_to(1)?;
    let mut broken = Vec::new();
    for download in &mut downloads {
        let status = download.wait(Duration::from_secs(70))?;
        if !status.success() {
            broken.push(download.log());
        }
    }
    ensure!(broken.is_empty(), "{} of {DOWNLOADS} are broken: {broken:?}", broken.len());
    Ok(())
}

#[test]
fn downloads_by_l2_go_on_by_the_other_director() -> Result<()> {
    downloads_go_on(Farm::builder().bare(), "l2")
}

#[test]
fn downloads_by_tunnel_go_on_by_the_other_director() -> Result<()> {
    downloads_go_on(Farm::builder().bare().remote(), "tunnel")
}

/// Every policy whose choice goes by the hash of a flow that has no session.
#[test]
fn directors_with_one_file_explain_flows_alike() -> Result<()> {
    if !skip::has_root() {
        return Ok(());
    }
    for policy in ["hash", "power-of-two"] {
        let pair = Pair::start(Farm::builder().bare(), "l2", policy)?;
        let service = pair.farm.service().to_string();
        for port in 0..FLOWS {
            let client = format!("198.51.100.7:{}", 20_000 + port);
            let explained = |director: &Evener| -> Result<serde_json::Value> {
                let answer: serde_json::Value = director.json(&["explain", &client, &service])?;
                Ok(answer["server"].clone())
            };
            let [one, other] = [explained(&pair.directors[0])?, explained(&pair.directors[1])?];
            ensure!(one == other && one.is_string(), "{policy}: {client} goes to {one} and to {other}");
        }
    }
    Ok(())
}
