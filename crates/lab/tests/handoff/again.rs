//! Client ports that are reused while a server holds the previous connection in TIME-WAIT.

use anyhow::{Context, Result, ensure};
use evener_lab::clients::handmade_tcp::HandmadeTcp;
use evener_lab::clients::reused_ports::{self, MET_AGAIN, PAUSE};
use evener_lab::evener::{Handoff, Offer, Plan, Team, route};
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::{counted, farm};

on_both_engines! {
    ports_are_used_again,
    ports_are_used_again_where_every_host_decides,
    an_acknowledgment_comes_behind_the_data,
    an_end_is_taken_at_once,
}

/// Checks that sockets in TIME-WAIT were removed for new connections, `times` at most, and that no
/// other reset was delayed.
fn cleared(count: impl Fn(&str) -> Result<u64>, times: u64) -> Result<()> {
    let [cleared, held] = [count("time_wait_evicted")?, count("reset_delayed")?];
    // A repeated FIN can end TIME-WAIT in the client's stack, on a busy machine more than half of
    // the time. The server's last acknowledgment then meets no socket, like an early segment. A
    // socket that should be removed but stays breaks a connection, which the client notices.
    ensure!(
        (1..=times).contains(&cleared) && held <= times - cleared,
        "{cleared} of {times} were cleared, {held} held"
    );
    Ok(())
}

fn ports_are_used_again(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(2).build()?;
    let handoff = Handoff::start(farm, Offer::new(engine, 1, &[]))?;
    reused_ports::wait_long_for_answers(handoff.farm.server(0))?;
    let services = Family::BOTH.map(|family| handoff.service(family));
    reused_ports::ports_are_used_again(handoff.farm.clients(), &services)?;
    cleared(|reason| counted(handoff.farm.server(0), reason), 2 * 2 * MET_AGAIN)
}

fn ports_are_used_again_where_every_host_decides(engine: &str) -> Result<()> {
    let farm = Farm::builder().every_host(2).clients(2).build()?;
    let keys = "method = \"handoff\"\npolicy = \"round-robin\"\n";
    let routes = route("path = \"/*\"", &["web1"]);
    let team = Team::start(farm, Plan { routes, ..Plan::new(engine, keys, 2) })?;
    team.farm.servers().iter().try_for_each(reused_ports::wait_long_for_answers)?;
    let services = [0, 1].map(|host| (team.farm.own_vip(Family::V4, host), WEB_PORT).into());
    reused_ports::ports_are_used_again(team.farm.clients(), &services)?;
    let tunnels = team.hosts[0].status()?.tunnels;
    cleared(|reason| Ok(tunnels.get(reason).copied().unwrap_or_default()), 2 * 2 * MET_AGAIN)
}

/// A server that closes first keeps its connections in TIME-WAIT, one after the other from the same
/// port. The client's FIN must not be held, or be received repeatedly, while the previous socket is
/// removed.
fn an_end_is_taken_at_once(engine: &str) -> Result<()> {
    const USES: u64 = 40;
    let handoff = farm(engine, 1, &[route("path = \"/*\"", &["web1"])])?;
    let server = handoff.farm.server(0);
    handoff.client().netns().sysctl(&[("ipv4/ip_local_port_range", "20000 20003")])?;
    let ends = server.capture_inside(0, "src portrange 20000-20003 and tcp[13] & 1 != 0")?;
    // The response is so long that the client acknowledges the server's FIN before it has read
    // everything and closes.
    let load =
        Load { path: "/108k".to_owned(), requests: Some(USES), ..Load::to(handoff.service(Family::V4)) };
    let report = load.run_on(handoff.client())?;
    ensure!(report.requests == USES && report.errors.total() == 0, "{report:?}");
    cleared(|reason| counted(server, reason), USES)?;
    let ends = ends.stop()?;
    // Some FINs may have been retransmitted.
    ensure!((1..=3 * USES as usize).contains(&ends.len()), "{} ends: {:?}", ends.len(), ends.first());
    Ok(())
}

/// The acknowledgment of the handshake arrives behind the data, as if two CPUs had reordered the
/// segments.
fn an_acknowledgment_comes_behind_the_data(engine: &str) -> Result<()> {
    const SEGMENT_LEN: usize = 1_400;
    let farm = Farm::builder().bare().servers(1).build()?;
    let handoff = Handoff::start(farm, Offer::new(engine, 1, &[]))?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let requests = [1, 4, 20].map(|segments| {
        let body = vec![b'x'; (segments - 1) * SEGMENT_LEN];
        let head = format!(
            "PUT /upload/hand{segments} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), &body].concat()
    });
    for use_ in 0..3 {
        if use_ > 0 {
            std::thread::sleep(PAUSE);
        }
        for (port, request) in (0..).zip(&requests) {
            for (family, port) in Family::BOTH.into_iter().zip([port, port + 100]) {
                let what = || format!("{family}, use {use_}, {} bytes", request.len());
                let mut call = hand.call(port, handoff.service(family)).with_context(what)?;
                for (number, segment) in request.chunks(SEGMENT_LEN).enumerate() {
                    call.send_data(number * SEGMENT_LEN, segment)?;
                }
                call.acknowledge(0)?;
                call.listen(|call| call.end().is_some()).with_context(what)?;
                let received = String::from_utf8_lossy(call.received());
                ensure!(received.starts_with("HTTP/1.1 20"), "{}: {received:.60?}", what());
                call.finish(request.len())?;
                call.listen(|call| call.acked() > request.len()).with_context(what)?;
            }
        }
    }
    cleared(|reason| counted(handoff.farm.server(0), reason), 2 * 2 * 3)
}
