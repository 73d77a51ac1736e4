//! Two directors with the same file and secret select the same servers, and each can forward the
//! other's connections.

mod explain;
mod front;

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::{Builder, Farm, WEB_PORT};
use evener_lab::harness::wait::LONG;
use evener_lab::servers::nginx::OTHER_PORT;

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const SERVERS: usize = 4;

/// Two running directors. Fields are dropped in order.
struct Pair {
    directors: Vec<Evener>,
    /// Configuration file of both directors.
    file: String,
    services: Vec<PolicyService>,
    farm: Farm,
}

/// A service named after its policy.
struct PolicyService {
    policy: &'static str,
    address: SocketAddr,
}

impl Pair {
    /// Starts two directors of [`SERVERS`] servers, with one service per policy.
    fn start(builder: Builder, method: &str, policies: &[&'static str]) -> Result<Pair> {
        let farm = builder.servers(SERVERS as u8).directors(2).build()?;
        let services: Vec<PolicyService> = [WEB_PORT, OTHER_PORT]
            .into_iter()
            .zip(policies)
            .map(|(port, policy)| PolicyService { policy, address: (farm.vip(0), port).into() })
            .collect();
        let file = file(&farm, method, &services)?;
        let directors = farm.directors().iter().map(|host| Evener::start(host, &file));
        Ok(Pair { directors: directors.collect::<Result<_>>()?, file, services, farm })
    }

    /// Waits until both directors report all servers up.
    fn wait_for_servers(&self) -> Result<()> {
        let up = SERVERS * self.services.len();
        self.directors.iter().try_for_each(|director| director.wait_for_servers(up, LONG).map(drop))
    }

    /// Fails unless exactly the servers of this name are down at a director.
    fn only_is_down(&self, director: usize, name: Option<&str>) -> Result<()> {
        let servers = self.directors[director].servers()?;
        let is_right = servers.iter().all(|one| (one.state == "up") == (Some(one.name.as_str()) != name));
        ensure!(is_right, "director {director} has other servers down than {name:?}: {servers:?}");
        Ok(())
    }
}

/// Returns the configuration of both directors. Probe timeouts are long enough for a busy machine.
fn file(farm: &Farm, method: &str, services: &[PolicyService]) -> Result<String> {
    let secret = farm.director().write("farm.key", SECRET)?;
    fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
    let directors: Vec<String> = farm.directors().iter().map(|host| host.address().to_string()).collect();
    let mut text = format!("[farm]\ndirectors = {directors:?}\nsecret_file = \"{}\"\n", secret.display());
    for PolicyService { policy, address } in services {
        text += &format!(
            "[[service]]\nname = \"{policy}\"\naddress = \"{address}\"\nmethod = \"{method}\"\npolicy = \"{policy}\"\n\
             announce = false\n[service.health]\nkind = \"tcp\"\ninterval = \"1s\"\ntimeout = \"900ms\"\n"
        );
        for host in farm.servers() {
            let (name, address) = (host.name(), host.address());
            text += &format!("[[service.server]]\nname = \"{name}\"\naddress = \"{address}\"\n");
        }
    }
    Ok(text)
}
