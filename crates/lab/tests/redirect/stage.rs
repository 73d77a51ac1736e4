//! A group on a director, and its clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::LONG;

/// The group's port, which is unprivileged.
pub(crate) const PORT: u16 = 8000;
/// The command that removes all of root's capabilities.
const UNPRIVILEGED: [&str; 5] = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];

pub(crate) struct Stage {
    pub(crate) evener: Evener,
    pub(crate) farm: Farm,
}

impl Stage {
    /// Starts a group of all servers of a farm.
    pub(crate) fn start(servers: u8, keys: &str) -> Result<Stage> {
        let farm = Farm::builder().bare().servers(servers).clients(2).build()?;
        let members: String = (0..farm.servers().len()).map(|number| member(&farm, number, "")).collect();
        Stage::start_with(farm, &[], keys, &members)
    }

    /// Starts a group of these members, with words before the daemon's command.
    pub(crate) fn start_with(farm: Farm, before: &[&str], keys: &str, members: &str) -> Result<Stage> {
        let before = [before, &UNPRIVILEGED].concat();
        let evener = Evener::start_by(farm.director(), &file(&farm, keys, members), &before, &[])?;
        Ok(Stage { evener, farm })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (self.farm.director().address(), PORT).into()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    /// Returns the response for a client that follows redirects.
    pub(crate) fn follow(&self, path: &str) -> Result<String> {
        Ok(self.farm.client(0).curl(&["--location", &self.url(path)])?.trim().to_owned())
    }

    /// Returns status and location of a response.
    pub(crate) fn answer(&self, arguments: &[&str], path: &str) -> Result<(String, String)> {
        let url = self.url(path);
        let format = ["--output", "/dev/null", "--write-out", "%{http_code} %{redirect_url}", &url];
        let words = [&["curl", "--silent", "--max-time", "10", "--path-as-is"], arguments, &format].concat();
        let output = self.farm.client(0).run(&words)?;
        let (status, location) = output.split_once(' ').context("curl said nothing")?;
        Ok((status.to_owned(), location.to_owned()))
    }

    pub(crate) fn connect(&self, client: usize) -> Result<TcpStream> {
        let stream = self.farm.client(client).enter(|| TcpStream::connect(self.address()))??;
        stream.set_read_timeout(Some(LONG))?;
        Ok(stream)
    }

    /// Sends bytes and returns all bytes until the connection ends.
    pub(crate) fn say(&self, bytes: &[u8]) -> Result<String> {
        let mut stream = self.connect(0)?;
        stream.write_all(bytes)?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the number of requests with this outcome.
    pub(crate) fn counted(&self, outcome: &str) -> Result<u64> {
        let services: serde_json::Value = self.evener.json(&["services"])?;
        Ok(services[0]["requests"][outcome].as_u64().unwrap_or_default())
    }
}

pub(crate) fn file(farm: &Farm, keys: &str, members: &str) -> String {
    let address = SocketAddr::from((farm.director().address(), PORT));
    format!(
        "[[service]]\nname = \"shop\"\naddress = \"{address}\"\nmethod = \"redirect\"\n{keys}\n\
         [service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"300ms\"\ntimeout = \"200ms\"\n{members}"
    )
}

pub(crate) fn member(farm: &Farm, number: usize, keys: &str) -> String {
    let host = farm.server(number);
    format!("\n[[service.server]]\nname = \"{}\"\nurl = \"http://{}\"\n{keys}\n", host.name(), host.address())
}

pub(crate) fn statuses(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("HTTP/1.")?.get(2..5));
    lines.filter(|status| status.bytes().all(|byte| byte.is_ascii_digit())).collect()
}
