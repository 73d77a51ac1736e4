//! Clients reuse their ports while servers still have the previous connection in TIME-WAIT, as
//! behind proxies, NAT routers and load generators.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::clients::http_connection::HttpConnection;
use crate::harness::cpu;
use crate::network::host::Host;

/// Number of connections from each port.
const USES: usize = 3;
/// Pause between two connections from a port. The rate limit of resets for the same addresses and
/// ports has passed by then.
pub const PAUSE: Duration = Duration::from_millis(3_200);
/// Lengths of request bodies in bytes, for requests of 1, 4 and 40 segments.
const BODIES: [usize; 3] = [0, 5_000, 56_000];
/// First of the reused ports.
const PORT: u16 = 40_000;

/// Number of reused ports in TIME-WAIT that a server meets, per client and service.
pub const MET_AGAIN: u64 = ((USES - 1) * BODIES.len()) as u64;

/// Reuses ports of all these clients, each with requests of one length, to each of the services.
/// The server closes the connections. Clients with an odd index use no TCP timestamps.
///
/// # Errors
/// Fails if a request fails or a client has to retransmit.
pub fn ports_are_used_again(clients: &[Host], services: &[SocketAddr]) -> Result<()> {
    for (client, timestamps) in clients.iter().zip(["1", "0"].iter().cycle()) {
        client.netns().sysctl(&[("ipv4/tcp_timestamps", timestamps)])?;
        wait_long_for_answers(client)?;
    }
    let before = counters_of(clients)?;
    let uses = clients.iter().flat_map(|client| {
        let requests = services.iter().flat_map(|service| BODIES.map(|body| (*service, body)));
        requests.zip(PORT..).map(move |((service, body), port)| (client.clone(), port, service, body))
    });
    let threads: Vec<_> = uses
        .map(|(client, port, service, body)| {
            let what = format!("{} from port {port} to {service}, {body} bytes", client.name());
            (what, thread::spawn(move || use_again(&client, port, service, body)))
        })
        .collect();
    for (what, thread) in threads {
        thread.join().map_err(|_| anyhow!("a thread panicked"))?.context(what)?;
    }
    for ((client, before), after) in clients.iter().zip(before).zip(counters_of(clients)?) {
        ensure!(
            sent_twice(&before) == sent_twice(&after),
            "{} sent something twice; its counters rose by {:?}",
            client.name(),
            rises(&before, &after)
        );
    }
    Ok(())
}

/// Runs on one processor. The packet engine reads each processor's frames separately, and drops a
/// segment that overtakes the first segment of its connection.
fn use_again(client: &Host, port: u16, service: SocketAddr, body: usize) -> Result<()> {
    cpu::stay_on_one(port.into())?;
    for number in 0..USES {
        if number > 0 {
            thread::sleep(PAUSE);
        }
        let visit =
            HttpConnection::open_from(client, port, service).with_context(|| format!("use {number}"))?;
        visit
            .upload_and_close(&format!("again-{}-{port}", client.name()), body)
            .with_context(|| format!("use {number}"))?;
    }
    Ok(())
}

/// Makes a host's TCP retransmit only lost segments, and not segments whose acknowledgment is late
/// or reordered on a busy machine. A needless retransmission would count as loss, and a late FIN to
/// a closed port triggers a RST that ends TIME-WAIT. The large initial window sends a request at
/// once and from one processor. Segments that wait for an acknowledgment are sent from the
/// processor that receives it.
pub fn wait_long_for_answers(host: &Host) -> Result<()> {
    host.netns().sysctl(&[
        ("ipv4/tcp_early_retrans", "0"),
        // neither a short silence about a segment (up to Linux 6.16; later versions always use it)
        // nor three duplicate acknowledgments mean a loss
        ("ipv4/tcp_recovery", "0"),
        ("ipv4/tcp_reordering", "127"),
    ])?;
    for family in ["-4", "-6"] {
        let routes = host.run(&["ip", family, "route", "show", "default"])?;
        for route in routes.lines() {
            let words = route.split_whitespace();
            let change = ["ip", family, "route", "change"].into_iter().chain(words);
            host.run(&change.chain(["rto_min", "30s", "initcwnd", "64"]).collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

/// Number of a client's retransmissions, except SYNs and segments that the server already had
/// (DSACK, RFC 2883), which were only reordered.
fn sent_twice(counts: &BTreeMap<String, i64>) -> i64 {
    let count = |name: &str| counts.get(name).copied().unwrap_or_default();
    count("RetransSegs") - count("TCPSynRetrans") - count("TCPDSACKRecv")
}

/// Number of a client's SYN retransmissions.
///
/// # Errors
/// Fails if the kernel's counters can't be read.
pub fn syns_sent_twice(client: &Host) -> Result<i64> {
    Ok(counters(client)?.get("TCPSynRetrans").copied().unwrap_or_default())
}

/// Returns the increases of counters since `before`.
fn rises<'a>(before: &BTreeMap<String, i64>, after: &'a BTreeMap<String, i64>) -> BTreeMap<&'a str, i64> {
    let rise = |name: &String, count: i64| count - before.get(name).copied().unwrap_or_default();
    let rises = after.iter().map(|(name, count)| (name.as_str(), rise(name, *count)));
    rises.filter(|(_, rise)| *rise != 0).collect()
}

fn counters_of(clients: &[Host]) -> Result<Vec<BTreeMap<String, i64>>> {
    clients.iter().map(counters).collect()
}

/// Returns the kernel's TCP counters in a host's namespace.
fn counters(host: &Host) -> Result<BTreeMap<String, i64>> {
    let mut counts = BTreeMap::new();
    for file in ["snmp", "netstat"] {
        let text = host.run(&["cat", &format!("/proc/net/{file}")])?;
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Tcp")).collect();
        for pair in lines.chunks(2) {
            let [names, values] = pair else { continue };
            let pairs = names.split_whitespace().zip(values.split_whitespace()).skip(1);
            counts.extend(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))));
        }
    }
    ensure!(counts.contains_key("RetransSegs") && counts.contains_key("TCPSynRetrans"), "{counts:?}");
    Ok(counts)
}
