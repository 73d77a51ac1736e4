//! Service addresses that the operator has added to the director, as for other load balancers.

use anyhow::{Result, ensure};
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::workloads::load::Load;

use crate::talk::{Talk, get};
use crate::unbroken;

on_both_engines! {
    a_service_address_may_be_the_directors_own,
    servers_may_answer_through_their_director,
}

fn has(host: &Host, farm: &Farm, device: &str) -> Result<bool> {
    let addresses = host.run(&["ip", "-brief", "addr", "show", "dev", device])?;
    Ok(Family::BOTH.iter().all(|family| addresses.contains(&format!(" {}/", farm.vip_in(*family, 0)))))
}

fn a_service_address_may_be_the_directors_own(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let director = farm.director().clone();
    let [four, six] = Family::BOTH.map(|family| farm.vip_in(family, 0));
    director.ip(&[format!("addr add {four}/32 dev eth0"), format!("addr add {six}/128 dev eth0 nodad")])?;
    let routes = [route("path = \"/0k\"", &["web1"])];
    let mut handoff = Handoff::start(farm, Offer::new(engine, 2, &routes))?;
    for family in Family::BOTH {
        let service = handoff.service(family);
        for _ in 0..4 {
            director.run(&["ip", "neighbour", "flush", "dev", "eth0"])?;
            let load = Load { path: "/2k".to_owned(), requests: Some(4), ..Load::to(service) };
            let report = unbroken(load.run_on(handoff.client())?)?;
            ensure!(report.servers.len() == 2, "{family}: {report:?}");
        }
        let (request, mut talk) = (get("www.example.com", "/0k"), Talk::open(handoff.client(), service)?);
        ensure!(talk.request(&request)?.server == "web1", "{family}, by the data plane");
        let mut slow = Talk::open(handoff.client(), service)?;
        slow.send_slowly(&request, 5)?;
        ensure!(slow.reply()?.server == "web1", "{family}, read in application space");
    }
    ensure!(handoff.evener.stop()? == 0);
    ensure!(has(&director, &handoff.farm, "eth0")?, "what the operator gave stays");
    Ok(())
}

/// The servers' default router is the director, which has the service's address: the director
/// receives replies with its own address as source.
fn servers_may_answer_through_their_director(engine: &str) -> Result<()> {
    let farm = Farm::builder().routed().servers(2).build()?;
    // The default of some distributions.
    farm.director().netns().sysctl(&[("ipv4/conf/all/rp_filter", "1")])?;
    farm.forward_on_directors()?;
    let mut handoff = Handoff::start(farm, Offer::new(engine, 2, &[]))?;
    for family in Family::BOTH {
        let load = Load { path: "/108k".to_owned(), requests: Some(8), ..Load::to(handoff.service(family)) };
        let report = unbroken(load.run_on(handoff.client())?)?;
        ensure!(report.servers.len() == 2, "{family}: {report:?}");
    }
    ensure!(handoff.evener.stop()? == 0);
    Ok(())
}
