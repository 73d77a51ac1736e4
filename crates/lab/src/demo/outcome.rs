use serde::Serialize;

use super::{bytes, thousands};
use crate::evener::Server;
use crate::harness::table::Table;
use crate::network::faults::Traffic;
use crate::workloads::load::Report;

/// Results of the demonstration.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Results of each kind of clients.
    pub clients: Vec<Clients>,
    /// Servers at the end, as the daemon shows them.
    pub servers: Vec<Server>,
    /// Traffic on the director's interface while clients were active.
    pub director: Traffic,
    /// Bytes that the servers sent meanwhile.
    pub served_bytes: u64,
    /// Requests answered while no daemon ran.
    pub answered_without_daemon: u64,
    /// New connections of the drained server.
    pub taken_while_draining: u64,
    /// Requests per second of each variant; direct connections first.
    pub speeds: Vec<Speed>,
    pub seconds: f64,
}

/// Results of one kind of clients.
#[derive(Debug, Serialize)]
pub struct Clients {
    /// Description of the clients.
    pub who: &'static str,
    pub report: Report,
}

/// Speed of one variant.
#[derive(Debug, Serialize)]
pub struct Speed {
    /// Variant between clients and servers.
    pub way: &'static str,
    /// Median of a few rounds.
    pub requests_per_second: f64,
}

impl Outcome {
    /// True if no request failed and each event had its effect.
    pub fn is_whole(&self) -> bool {
        self.broken() == 0 && self.answered_without_daemon > 0 && self.taken_while_draining == 0
    }

    fn broken(&self) -> u64 {
        self.clients.iter().map(|clients| clients.report.errors.total()).sum()
    }

    pub fn print(&self) {
        println!("\nClients, and how many of their requests broke:");
        print!("{}", self.clients_table());
        println!("\nConnections by server:");
        print!("{}", self.shares_table());
        println!("\nWhat went where:");
        print!("{}", self.bytes_table());
        println!("\nA new connection for each request of 2 KB:");
        print!("{}", self.speeds_table());
        println!();
        self.print_verdict();
    }

    fn clients_table(&self) -> Table {
        let mut table = Table::new(&["", "connections", "requests", "bytes", "broken", "99% within"]);
        for Clients { who, report } in &self.clients {
            table.row([
                (*who).to_owned(),
                thousands(report.connections),
                thousands(report.requests),
                bytes(report.bytes),
                report.errors.total().to_string(),
                format!("{:.1} ms", report.p99_us as f64 / 1e3),
            ]);
        }
        table
    }

    fn shares_table(&self) -> Table {
        let mut shares = std::collections::BTreeMap::<&str, u64>::new();
        for (server, share) in self.clients.iter().flat_map(|clients| &clients.report.servers) {
            *shares.entry(server).or_default() += share.connections;
        }
        let total: u64 = shares.values().sum();
        let mut table = Table::new(&["", "connections", "share"]);
        for (server, connections) in shares {
            let percent = 100.0 * connections as f64 / total.max(1) as f64;
            table.row([server.to_owned(), thousands(connections), format!("{percent:.1} %")]);
        }
        table
    }

    fn bytes_table(&self) -> Table {
        let mut table = Table::default();
        let served = self.served_bytes;
        let through = self.director.received_bytes;
        table.row(["sent by the servers, straight to the clients".to_owned(), bytes(served)]);
        table.row(["through the director".to_owned(), bytes(through)]);
        table.row(["ratio".to_owned(), format!("{:.0} : 1", served as f64 / through.max(1) as f64)]);
        table
    }

    fn speeds_table(&self) -> Table {
        let straight = self.speeds.first().map(|speed| speed.requests_per_second).unwrap_or_default();
        let mut table = Table::new(&["", "requests/s", "of straight"]);
        for Speed { way, requests_per_second } in &self.speeds {
            let ratio = requests_per_second / straight;
            table.row([(*way).to_owned(), thousands(*requests_per_second as u64), format!("{ratio:.2}x")]);
        }
        table
    }

    fn print_verdict(&self) {
        println!("{} requests were answered while no daemon ran.", thousands(self.answered_without_daemon));
        if self.taken_while_draining > 0 {
            println!("The drained server was given {} new connections.", self.taken_while_draining);
        }
        for Clients { who, report } in
            self.clients.iter().filter(|clients| !clients.report.examples.is_empty())
        {
            println!("What broke ({who}):");
            report.examples.iter().for_each(|example| println!("  {example}"));
        }
        println!("{} broken, in {:.0} s.", self.broken(), self.seconds);
    }
}
