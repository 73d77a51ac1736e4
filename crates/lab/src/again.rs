//! Clients whose ports come again while servers still wait for stragglers of the connection before
//! (TIME-WAIT), as behind proxies, address-sharing routers, and every load generator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::cpu;
use crate::host::Host;
use crate::visit::Visit;

/// How often each port is used.
const USES: usize = 3;
/// Between two uses: so long that a reset of the same ends is let go the second time.
pub const PAUSE: Duration = Duration::from_millis(3_200);
/// Bytes of a body, for requests of 1, 4 and 40 segments.
const BODIES: [usize; 3] = [0, 5_000, 56_000];
/// The first of the ports.
const PORT: u16 = 40_000;

/// How often a server meets a port that it has in TIME-WAIT, by each client for each service.
pub const MET_AGAIN: u64 = ((USES - 1) * BODIES.len()) as u64;

/// Uses ports of all these clients again and again, each with requests of one length, to each of
/// the services; the server closes. Clients with an odd number, counted from 0, do without
/// timestamps.
///
/// # Errors
/// When anything breaks, or a client has to say something twice.
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

/// Stays on one processor: the packet engine reads what each one receives by itself, and a segment
/// that overtakes the first of its connection is dropped.
fn use_again(client: &Host, port: u16, service: SocketAddr, body: usize) -> Result<()> {
    cpu::stay_on_one(port.into())?;
    for number in 0..USES {
        if number > 0 {
            thread::sleep(PAUSE);
        }
        let visit = Visit::open_from(client, port, service).with_context(|| format!("use {number}"))?;
        visit
            .upload_and_close(&format!("again-{}-{port}", client.name()), body)
            .with_context(|| format!("use {number}"))?;
    }
    Ok(())
}

/// Has a host's TCP send again what was lost, and not what a busy machine is slow to answer, or
/// what another processor overtook: that would be said to be lost, too, and a late FIN that meets a
/// closed port has its RST end TIME-WAIT. A request leaves at once, from the processor that writes
/// it: segments that wait for an acknowledgment leave from the processor on which it comes.
pub fn wait_long_for_answers(host: &Host) -> Result<()> {
    host.netns().sysctl(&[
        ("ipv4/tcp_early_retrans", "0"),
        // neither a moment's silence about a segment (up to Linux 6.16; later ones always heed it)
        // nor three acknowledgments of others mean a loss
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

/// Segments that a client has sent again, but for SYNs, and for what the server had already (DSACK,
/// RFC 2883): that overtook something.
fn sent_twice(counts: &BTreeMap<String, i64>) -> i64 {
    let count = |name: &str| counts.get(name).copied().unwrap_or_default();
    count("RetransSegs") - count("TCPSynRetrans") - count("TCPDSACKRecv")
}

/// SYNs that a client has sent again.
///
/// # Errors
/// When the kernel's counters can't be read.
pub fn syns_sent_twice(client: &Host) -> Result<i64> {
    Ok(counters(client)?.get("TCPSynRetrans").copied().unwrap_or_default())
}

/// By how much counters are above those of before.
fn rises<'a>(before: &BTreeMap<String, i64>, after: &'a BTreeMap<String, i64>) -> BTreeMap<&'a str, i64> {
    let rise = |name: &String, count: i64| count - before.get(name).copied().unwrap_or_default();
    let rises = after.iter().map(|(name, count)| (name.as_str(), rise(name, *count)));
    rises.filter(|(_, rise)| *rise != 0).collect()
}

fn counters_of(clients: &[Host]) -> Result<Vec<BTreeMap<String, i64>>> {
    clients.iter().map(counters).collect()
}

/// The kernel's counters of TCP in a host's namespace.
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
