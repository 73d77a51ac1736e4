//! The director answers SYNs of a client's real TCP stack.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use evener_core::net::wire::Mac;
use evener_core::path::content::{HashKey, RouteIndex};
use evener_core::path::cookie::{Keys, Schedule};
use evener_core::path::seed::Seed;
use evener_core::path::tables::{Handoff, NO_SERVER, RehandoffMode, Tables};
use evener_dataplane::Engine;
use evener_dataplane::packet::PacketEngine;
use evener_dataplane::xdp::Mode;

use crate::hosts::{CLIENT, Host, VIP, index_of, mac_of, run};
use crate::kernel::kernel_engine;
use crate::{apply, key, options, server, session_file, skipped, tables};

const SERVER: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn handing_off() -> Tables {
    let inside = (index_of("in0"), mac_of("in0"));
    let mut tables = tables(&[inside], &[server(SERVER, inside.0)], false);
    tables.vips.values_mut().for_each(|vip| {
        vip.handoff =
            Some(Handoff { mss: 1460, punt: NO_SERVER, held: NO_SERVER, later: RehandoffMode::Stay })
    });
    tables.routes.insert(0, Arc::new(RouteIndex::compile(&[], 0, HashKey::new(Seed(1, 2)))));
    tables
}

/// Checks that a client's TCP accepts the director's SYN-ACK. The client's SYN has a partial
/// checksum, which the director's link must complete before the director checks it.
fn connects(engine: &dyn Engine, client: &Host) {
    let keys = Keys { key: Seed(15, 16), epoch: 15 };
    engine.memory().cookies.set(&Schedule::fixed(&keys, engine.now()));
    client.enter(|| {
        let to = SocketAddr::new(VIP.into(), key().port);
        TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
    });
}

/// Runs `work` with every engine on a director with these tables, and a client on its link. Hosts
/// leave checksums to the hardware as far as possible.
pub fn on_every_engine(tables: fn() -> Tables, work: impl Fn(&mut dyn Engine, &Host) + Sync) {
    let (director, client) = (Host::new("director"), Host::new("client"));
    director.cable("in0", &client, "in1");
    let mac = director.enter(|| {
        run("ethtool -K in0 tx off");
        mac_of("in0")
    });
    client.enter(|| {
        run("ethtool -K in1 rx off");
        run(&format!("ip addr add {CLIENT}/24 dev in1"));
        run(&format!("ip neigh add 198.51.100.1 lladdr {mac} dev in1"));
        run(&format!("ip route add {VIP} via 198.51.100.1"));
    });
    director.enter(|| {
        for mode in [Mode::Tc, Mode::Generic] {
            let mut engine = kernel_engine(Some(mode), None, tables());
            // Generic XDP does not see that a checksum is partial, so there the sender computes
            // full checksums.
            let half = if mode == Mode::Tc { "on" } else { "off" };
            client.enter(|| run(&format!("ethtool -K in1 tx {half}")));
            work(&mut engine, &client);
            Box::new(engine).leave(false).unwrap();
        }
        client.enter(|| run("ethtool -K in1 tx on"));
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        apply(&mut engine, tables());
        work(&mut engine, &client);
        Box::new(engine).leave(false).unwrap();
    });
}

#[test]
fn a_clients_tcp_takes_the_answer_to_its_syn_from_every_engine() {
    if skipped() {
        return;
    }
    on_every_engine(handing_off, |engine, client| connects(engine, client));
}
