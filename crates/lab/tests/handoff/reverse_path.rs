//! Servers that reply on another interface than requests arrive on.

use anyhow::Result;
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::LONG;

on_both_engines! { strict_filter_of_two_links_drops_no_client }

/// The stack looks up the route back to the client for later packets, unless the socket has cached
/// it.
fn strict_filter_of_two_links_drops_no_client(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(1).build()?;
    farm.server(0).netns().sysctl(&[("ipv4/conf/all/rp_filter", "1")])?;
    let mut handoff = Handoff::start(farm, Offer::new(engine, 1, &[route("path = \"/*\"", &["web1"])]))?;
    handoff.farm.answer_by_second_cable(handoff.farm.server(0))?;
    // Connections work only if the agent's programs are attached to all links of the server.
    handoff.agents[0].process().wait_for("interface=\"eth1\" hook=\"accept\"", LONG)?;
    // The second request is punted.
    for path in ["who", "./who"] {
        let url = format!("http://{}/{path}", handoff.farm.service());
        for _ in 0..4 {
            assert_eq!(handoff.client().curl(&["--path-as-is", &url])?, "web1\n", "{path}");
        }
    }
    Ok(())
}
