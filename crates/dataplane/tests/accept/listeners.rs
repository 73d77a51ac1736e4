//! All kinds of listeners.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

use evener_core::net::wire::TCP_RST;
use evener_core::path::mark::PUNTED;
use evener_dataplane::server::{AttachPoints, Reason};
use socket2::{Domain, Protocol, Socket, Type};

use crate::hosts::{NEVER, SOON, VIP, run};
use crate::skipped;
use crate::world::{CLIENT6, FAMILIES, PORT, REQUEST, VIP6, accept, listen, on_a_server, read, set, vip};

/// Port of the listener that is used instead of the service's port.
const OTHER_PORT: u16 = 8_099;
const MPTCP: i32 = 262;

fn bound(address: SocketAddr, protocol: Protocol, prepare: impl FnOnce(&Socket)) -> TcpListener {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol)).unwrap();
    prepare(&socket);
    socket.bind(&address.into()).unwrap();
    socket.listen(128).unwrap();
    socket.into()
}

#[test]
fn a_listener_for_both_families_accepts_both() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let any = SocketAddr::new("::".parse().unwrap(), PORT);
        let listener = bound(any, Protocol::TCP, |socket| socket.set_only_v6(false).unwrap());
        for (v6, client) in [(false, "::ffff:198.51.100.7".parse().unwrap()), (true, CLIENT6)] {
            let call = world.call(v6, 40_000);
            world.send(&call, &call.first(REQUEST));
            let (mut stream, peer) = accept(&listener, SOON).expect("a connection");
            assert_eq!(peer, SocketAddr::new(client.into(), 40_000));
            assert_eq!(read(&mut stream, REQUEST.len()), REQUEST);
            world.reply(&call, &mut stream, b"hello");
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 2)]);
    });
}

#[test]
fn listeners_that_share_a_port_share_connections() {
    if skipped() {
        return;
    }
    const CALLS: u16 = 64;
    on_a_server(Some(PORT), |world| {
        for v6 in FAMILIES {
            let share = || {
                let shared = |socket: &Socket| socket.set_reuse_port(true).unwrap();
                bound(SocketAddr::new(vip(v6), PORT), Protocol::TCP, shared)
            };
            let listeners = [share(), share()];
            for number in 0..CALLS {
                let call = world.call(v6, 40_000 + number);
                world.send(&call, &call.first(REQUEST));
            }
            let mut got = [0; 2];
            while got.iter().sum::<u16>() < CALLS {
                let before = got;
                for (listener, got) in listeners.iter().zip(&mut got) {
                    while let Some((mut stream, _)) = accept(listener, NEVER) {
                        assert_eq!(read(&mut stream, REQUEST.len()), REQUEST);
                        *got += 1;
                    }
                }
                assert_ne!(before, got, "connections are missing");
            }
            assert!(got.iter().all(|got| *got > CALLS / 8), "{got:?}");
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 2 * u64::from(CALLS))]);
    });
}

/// With every-host selection, a host can serve a service itself and also read requests for other
/// hosts. The source address of the frame tells the two apart.
#[test]
fn punted_connection_reaches_punt_listener() {
    if skipped() {
        return;
    }
    let punted = |frame: &[u8]| [&frame[..6], &PUNTED.0, &frame[12..]].concat();
    on_a_server(Some(PORT), |world| {
        let mut tables = world.tables(Some(PORT));
        tables.services.values_mut().for_each(|offer| offer.punt_listener = Some(OTHER_PORT));
        let places = AttachPoints { accept: [world.ifindex].into(), ..AttachPoints::default() };
        world.server.apply(&tables, &places).unwrap();
        for v6 in FAMILIES {
            let [own, punt_listener] = [PORT, OTHER_PORT].map(|port| listen(v6, port));
            for (way, receiver, other) in
                [(<[u8]>::to_vec as fn(&[u8]) -> _, &own, &punt_listener), (punted, &punt_listener, &own)]
            {
                world.way = way;
                let call =
                    world.call(v6, if receiver.as_raw_fd() == own.as_raw_fd() { 40_000 } else { 40_001 });
                let mut stream = world.open(&call, receiver);
                assert!(accept(other, NEVER).is_none());
                world.reply(&call, &mut stream, b"hello");
            }
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 4)]);
        // Without a punt listener, one listener serves both.
        world.serve(Some(PORT));
        let own = listen(false, PORT);
        world.open(&world.call(false, 40_002), &own);
    });
}

#[test]
fn missing_listener_is_reset() {
    if skipped() {
        return;
    }
    for listener in [PORT, OTHER_PORT] {
        on_a_server(Some(listener), |world| {
            for v6 in FAMILIES {
                let call = world.call(v6, 40_000);
                world.send(&call, &call.first(REQUEST));
                assert_eq!(world.receive(&call, SOON).unwrap().flags & TCP_RST, TCP_RST);
            }
            assert_eq!(world.counts(), [(Reason::NoListener, 2)]);
        });
    }
}

#[test]
fn a_listener_that_speaks_mptcp_is_refused_by_the_kernel() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        if Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(MPTCP))).is_err() {
            println!("skipped: this kernel has no MPTCP");
            return;
        }
        let listener = bound(SocketAddr::new(vip(false), PORT), Protocol::from(MPTCP), |_| {});
        let call = world.call(false, 40_000);
        world.is_reset(&call, &call.first(REQUEST), &listener);
        assert_eq!(world.counts(), [(Reason::Refused, 1)]);
    });
}

#[test]
fn connection_forbidden_by_sysctl_is_refused_with_reset() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let listener = listen(false, PORT);
        for (number, setting) in (0..).zip(["tcp_window_scaling", "tcp_sack", "tcp_timestamps"]) {
            set(&format!("ipv4/{setting}"), "0");
            let call = world.call(false, 40_000 + number).at(5_000, 7);
            world.is_reset(&call, &call.first(REQUEST), &listener);
            set(&format!("ipv4/{setting}"), "1");
        }
        assert_eq!(world.counts(), [(Reason::Refused, 3)]);
    });
}

#[test]
fn another_ports_listener_accepts_in_the_services_name() {
    if skipped() {
        return;
    }
    on_a_server(Some(OTHER_PORT), |world| {
        for v6 in FAMILIES {
            let punted = listen(v6, OTHER_PORT);
            let call = world.call(v6, 40_000);
            // The local port of the accepted socket is the service's port.
            let mut stream = world.open(&call, &punted);
            world.reply(&call, &mut stream, b"hello");
            // A listener on the service's own port gets no connection.
            let served = listen(v6, PORT);
            let call = world.call(v6, 40_001);
            world.open(&call, &punted);
            assert!(accept(&served, NEVER).is_none());
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 4)]);
    });
}

#[test]
fn local_route_serves_address_without_interface() {
    if skipped() {
        return;
    }
    on_a_server(Some(OTHER_PORT), |world| {
        run(&format!("ip addr del {VIP}/32 dev lo"));
        run(&format!("ip addr del {VIP6}/128 dev lo"));
        run(&format!("ip route add local {VIP}/32 dev lo"));
        run(&format!("ip -6 route add local {VIP6}/128 dev lo"));
        for v6 in FAMILIES {
            let free = |socket: &Socket| {
                if v6 { socket.set_freebind_v6(true) } else { socket.set_freebind_v4(true) }.unwrap();
            };
            let punted = bound(SocketAddr::new(vip(v6), OTHER_PORT), Protocol::TCP, free);
            let call = world.call(v6, 40_000);
            let mut stream = world.open(&call, &punted);
            world.reply(&call, &mut stream, b"hello");
        }
        assert_eq!(world.counts(), [(Reason::Accepted, 2)]);
    });
}
