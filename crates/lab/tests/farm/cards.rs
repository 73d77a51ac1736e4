//! Farms whose director has network cards with drivers other than veth. They run in guests with
//! such cards; see `scripts/kernels`.

use anyhow::{Context, Result};
use evener_lab::clients::transfer;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

use crate::file;
use crate::stage::{Plan, Way};

/// Bytes of each upload and each download.
const LEN: usize = 300_000;
const MTUS: [u16; 2] = [1_500, 9_000];

#[test]
#[ignore = "needs the network cards of a guest; scripts/kernels runs it"]
fn l2() -> Result<()> {
    serves_over_cards(Way::L2)
}

#[test]
#[ignore = "needs the network cards of a guest; scripts/kernels runs it"]
fn nat() -> Result<()> {
    serves_over_cards(Way::Nat)
}

/// Serves clients over the cards. Prints one line per MTU with tabs between `card`, driver, number
/// of receive queues, MTU, method and XDP mode.
fn serves_over_cards(way: Way) -> Result<()> {
    let plan = Plan::new("xdp", way, Family::V4);
    for mtu in MTUS {
        let farm = way.builder().servers(2).cards().build()?;
        farm.widen(mtu)?;
        let stage = plan.start(farm, "", file::ALWAYS_UP, &[1; 2])?;
        let director = stage.farm.director();
        let status = stage.evener.command(&["status"])?;
        let mode = status.lines().find(|line| line.contains(" on eth0")).unwrap_or(&status);
        let description = description(director)?;
        if mtu > 1_500 && description.starts_with("vmxnet3") {
            println!(
                "\ncard\t{description}\t{mtu}\tnot tried: Linux's own forwarding loses long frames of qemu's card"
            );
            continue;
        }
        let card = format!("{description}\t{mtu}\t{way:?}\t{}", mode.trim());
        for _ in 0..2 {
            transfer::there_and_back(&stage.farm, stage.client(), stage.service, LEN)
                .with_context(|| card.clone())?;
        }
        println!("\ncard\t{card}");
    }
    Ok(())
}

/// An inherited mount of sysfs shows the interfaces of another namespace.
const LIST_QUEUES: &str = "mount -t sysfs sysfs /sys; ls /sys/class/net/eth0/queues";

/// Returns the driver and the number of receive queues of `eth0`.
fn description(host: &Host) -> Result<String> {
    let info = host.run(&["ethtool", "-i", "eth0"])?;
    let driver = info.lines().find_map(|line| line.strip_prefix("driver: ")).unwrap_or("unknown");
    let queues = host.run(&["unshare", "-m", "sh", "-c", LIST_QUEUES]);
    let queues = queues.map_or(0, |text| text.lines().filter(|line| line.starts_with("rx-")).count());
    Ok(format!("{driver}\t{queues}"))
}
