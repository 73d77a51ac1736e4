//! Selection by load in a real farm. `crates/core/src/farm/group/members/simulation.rs` simulates
//! many more cases.

use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::harness::engines;
use evener_lab::workloads::load::Report;
use evener_lab::workloads::policy_comparison::{Contest, Sharing};

/// With one report per second, the group knows the slow member by then.
const WARMUP: Duration = Duration::from_secs(12);
const MEASURED: Duration = Duration::from_secs(15);

#[test]
fn a_slow_member_gets_its_share_and_clients_wait_little_longer_than_by_the_fewest_connections() -> Result<()>
{
    if !engines::has_root() {
        return Ok(());
    }
    let contest = Contest {
        rates: vec![50.0, 50.0, 20.0],
        per_second: 80.0,
        warmup: WARMUP,
        duration: MEASURED,
        timeout: Duration::from_secs(10),
    };
    let farm = contest.farm()?;
    let group = contest.run(&farm, Sharing::Group)?;
    // Least connections needs no time to learn.
    let fewest = Contest { warmup: Duration::from_secs(3), ..contest }
        .run(&farm, Sharing::Nat("least-connections"))?;
    let told = |report: &Report| {
        let shares = report.servers.iter().map(|(name, share)| (name, share.requests)).collect::<Vec<_>>();
        format!("{shares:?}, p50 {} us, p99 {} us, {:?}", report.p50_us, report.p99_us, report.examples)
    };
    let told = format!("group: {}\nleast-connections: {}", told(&group), told(&fewest));
    ensure!(group.errors.total() + fewest.errors.total() == 0, "{told}");
    let slow = group.servers.get("web3").map_or(0, |share| share.requests) as f64 / group.requests as f64;
    ensure!((0.03..=0.2).contains(&slow), "{slow:.3}: {told}");
    // The test compares two times of the same requests on the same servers, which sleep. A busy
    // machine adds little to both.
    ensure!(group.p99_us <= 2 * fewest.p99_us, "{told}");
    Ok(())
}
