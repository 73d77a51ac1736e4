//! A director that serves DNS names, and clients that query it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;

pub(crate) const PORT: u16 = 5300;
/// The command that removes all of root's capabilities.
const UNPRIVILEGED: [&str; 5] = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
pub(crate) const NAME: &str = "www.example.com";

pub(crate) struct Stage {
    pub(crate) evener: Evener,
    pub(crate) farm: Farm,
}

impl Stage {
    /// Starts a director with a name for all servers of a farm.
    pub(crate) fn start(servers: u8, keys: &str) -> Result<Stage> {
        let farm = Farm::builder().bare().servers(servers).clients(2).build()?;
        let config = file(&farm, keys);
        Ok(Stage { evener: Evener::start_by(farm.director(), &config, &UNPRIVILEGED, &[])?, farm })
    }

    /// Runs dig with these words and returns the output.
    pub(crate) fn dig(&self, words: &[&str]) -> Result<String> {
        dig(&self.farm, 0, words)
    }

    /// Returns the addresses of a response.
    pub(crate) fn addresses(&self, words: &[&str]) -> Result<Vec<String>> {
        Ok(self.dig(&[words, &["+short"]].concat())?.lines().map(str::to_owned).collect())
    }

    /// Returns how often each address comes first, over `count` queries.
    pub(crate) fn given(&self, count: usize) -> Result<BTreeMap<String, usize>> {
        let mut given = BTreeMap::new();
        for _ in 0..count {
            let first = self.addresses(&[NAME])?.into_iter().next().unwrap_or_default();
            *given.entry(first).or_default() += 1;
        }
        Ok(given)
    }

    /// Returns the states of the name's addresses.
    pub(crate) fn states(&self) -> Result<BTreeMap<String, String>> {
        let names: serde_json::Value = self.evener.json(&["names"])?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let names = names.as_array().cloned().unwrap_or_default();
        Ok(names.iter().map(|name| (text(&name["address"]), text(&name["state"]))).collect())
    }

    pub(crate) fn counted(&self, outcome: &str) -> Result<u64> {
        let status: serde_json::Value = self.evener.json(&["status"])?;
        Ok(status["dns"][outcome].as_u64().unwrap_or_default())
    }

    pub(crate) fn address(&self, server: usize) -> String {
        self.farm.server(server).address().to_string()
    }

    pub(crate) fn at(&self) -> SocketAddr {
        (self.farm.director().address(), PORT).into()
    }
}

pub(crate) fn dig(farm: &Farm, client: usize, words: &[&str]) -> Result<String> {
    let (at, port) = (format!("@{}", farm.director().address()), PORT.to_string());
    let how = ["dig", "+norecurse", "+tries=1", "+timeout=5", &at, "-p", &port];
    farm.client(client).run(&[&how[..], words].concat())
}

pub(crate) fn file(farm: &Farm, keys: &str) -> String {
    let at = SocketAddr::from((farm.director().address(), PORT));
    let servers: Vec<String> =
        farm.servers().iter().map(|server| format!("\"{}\"", server.address())).collect();
    format!(
        "[dns]\nlisten = [\"{at}\"]\n[[dns.zone]]\nname = \"example.com\"\n\
         [[dns.name]]\nname = \"{NAME}\"\nservers = [{}]\n{keys}\n\
         [dns.name.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"300ms\"\ntimeout = \"200ms\"\n",
        servers.join(", ")
    )
}
