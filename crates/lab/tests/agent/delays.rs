//! The reported delay, which is the time to transmit the queued bytes, compared with the link's
//! rate.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evener_lab::farm::Farm;
use evener_lab::harness::process::Proc;
use serde_json::Value;

use crate::Agent;
use crate::requests::{config, load};

const MEGABITS: u32 = 4;
/// TCP payload share of a full frame: 1,448 of 1,514 bytes.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;
/// Time after which the delay must be correct, and end of the observation.
const KNOWN: Duration = Duration::from_secs(3);
const OBSERVED: Duration = Duration::from_secs(8);

/// A reported delay, the time since the downloads started, and the delay computed from the link's
/// rate.
#[derive(Debug)]
struct Told {
    at: Duration,
    seconds: f64,
    true_seconds: f64,
}

/// Starts several downloads of the big file from a server and records the agent's reports.
fn delays(farm: &Farm, server: usize, downloads: usize) -> Result<Vec<Told>> {
    let host = farm.server(server);
    let url = format!("http://{}/big", host.address());
    let words = ["curl", "--silent", "--max-time", "20", "--output", "/dev/null", &url];
    let began = Instant::now();
    let _clients: Vec<Proc> =
        (0..downloads).map(|_| farm.client(0).spawn("curl", &words)).collect::<Result<_>>()?;
    let mut told = Vec::new();
    while began.elapsed() < OBSERVED {
        thread::sleep(Duration::from_millis(100));
        let load: Value = load(host)?;
        let bytes = load["bytes_to_send"].as_f64().context("no bytes")?;
        let true_seconds = bytes * 8.0 / (f64::from(MEGABITS) * 1e6 * PAYLOAD);
        // Until the agent sees the first download, nothing is queued.
        let seconds = load["delay_seconds"].as_f64().unwrap_or_default();
        told.push(Told { at: began.elapsed(), seconds, true_seconds });
    }
    Ok(told)
}

#[test]
fn delay_is_true_from_the_third_second_on_behind_a_shaper() -> Result<()> {
    const DOWNLOADS: [usize; 3] = [1, 4, 8];
    let farm = Farm::builder().bare().servers(6).build()?;
    let cases: Vec<(usize, &str, usize)> = (0..)
        .zip(["tbf", "htb"].into_iter().flat_map(|shaper| DOWNLOADS.map(|downloads| (shaper, downloads))))
        .map(|(server, (shaper, downloads))| (server, shaper, downloads))
        .collect();
    let _agents: Vec<Agent> = cases
        .iter()
        .map(|(server, shaper, _)| {
            let host = farm.server(*server);
            match *shaper {
                "tbf" => host.limit(Some(MEGABITS))?,
                _ => host.limit_replies(MEGABITS)?,
            }
            let config = config(&farm, host, evener_lab::farm::WEB_PORT).replace("100ms", "500ms");
            Agent::start(host, &config, &[])
        })
        .collect::<Result<_>>()?;
    thread::scope(|scope| {
        let farm = &farm;
        let observed: Vec<_> = cases
            .iter()
            .map(|(server, shaper, downloads)| {
                let told = scope.spawn(|| delays(farm, *server, *downloads));
                (format!("{downloads} downloads behind {shaper}"), told)
            })
            .collect();
        observed.into_iter().try_for_each(|(case, told)| {
            let told = told.join().expect("no panic").with_context(|| case.clone())?;
            let known: Vec<&Told> = told.iter().filter(|told| told.at > KNOWN).collect();
            let is_true = |told: &&Told| (0.75..1.25).contains(&(told.seconds / told.true_seconds));
            ensure!(known.iter().all(is_true), "{case}: {told:#?}");
            let mut values: Vec<f64> = known.iter().map(|told| told.seconds).collect();
            values.dedup();
            ensure!(values.len() >= 4, "{case}: values change too rarely: {values:?}");
            Ok(())
        })
    })
}
