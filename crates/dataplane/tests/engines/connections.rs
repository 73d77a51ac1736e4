//! Complete TCP connections between the stacks of real hosts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use evener_core::net::wire::Mac;
use evener_core::path::decide::Reason;
use evener_core::path::mark::PASSED;
use evener_core::path::tables::ServerEntry;
use evener_dataplane::Engine;
use evener_dataplane::packet::PacketEngine;

use crate::hosts::{CLIENT, Host, VIP, index_of, mac_of, run};
use crate::{apply, count, options, server, session_file, skipped, tables};

/// A client, a director and a server that replies directly to the client.
struct Farm {
    client: Host,
    director: Host,
    server: Host,
}

impl Farm {
    fn set_up() -> Farm {
        let farm = Farm {
            client: Host::new("client"),
            director: Host::new("director"),
            server: Host::new("server"),
        };
        farm.client.cable("request", &farm.director, "in0");
        farm.director.cable("out0", &farm.server, "request");
        farm.server.cable("reply", &farm.client, "reply");
        let director_mac = farm.director.enter(|| mac_of("in0"));
        farm.client.enter(|| {
            run(&format!("ip addr add {CLIENT}/32 dev lo"));
            run(&format!("ip route add {VIP}/32 dev request src {CLIENT}"));
            run(&format!("ip neigh add {VIP} lladdr {director_mac} dev request"));
        });
        let client_mac = farm.client.enter(|| mac_of("reply"));
        farm.server.enter(|| {
            run(&format!("ip addr add {VIP}/32 dev lo"));
            run(&format!("ip route add {CLIENT}/32 dev reply src {VIP}"));
            run(&format!("ip neigh add {CLIENT} lladdr {client_mac} dev reply"));
        });
        farm
    }

    fn start(&self, server: impl Fn(u32) -> ServerEntry + Sync) -> PacketEngine {
        self.director.enter(|| {
            let mut engine = PacketEngine::start(options(session_file())).unwrap();
            let interfaces = ["in0", "out0"].map(|name| (index_of(name), mac_of(name)));
            apply(&mut engine, tables(&interfaces, &[server(interfaces[1].0)], false));
            engine
        })
    }

    /// Sends `data` to the service. Returns the bytes that arrived at the listener on `host`.
    fn upload(&self, host: &Host, data: &[u8]) -> Vec<u8> {
        let listener = host.enter(|| TcpListener::bind((VIP, 80)).unwrap());
        thread::scope(|scope| {
            let received = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                stream.write_all(b"thanks").unwrap();
                received
            });
            self.client.enter(|| {
                let wait = Duration::from_secs(20);
                let mut stream = TcpStream::connect_timeout(&SocketAddr::from((VIP, 80)), wait).unwrap();
                stream.set_read_timeout(Some(wait)).unwrap();
                stream.write_all(data).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut reply = String::new();
                stream.read_to_string(&mut reply).unwrap();
                assert_eq!(reply, "thanks");
            });
            received.join().unwrap()
        })
    }
}

fn data() -> Vec<u8> {
    (0..10u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn average_len(engine: &PacketEngine) -> u64 {
    let server = engine.counters().unwrap().servers[&1];
    server.bytes / server.packets
}

#[test]
fn offloaded_large_uploads_arrive_whole() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up();
    let mac = farm.server.enter(|| mac_of("request"));
    let engine = farm.start(|ifindex| server(mac, ifindex));
    let data = data();
    assert!(farm.upload(&farm.server, &data) == data, "what arrives is what was sent");
    assert!(average_len(&engine) > 8_000, "frames longer than a slot went through: {}", average_len(&engine));
    farm.director.enter(|| Box::new(engine).leave(false)).unwrap();
}

#[test]
fn uploads_are_cut_into_segments_where_the_way_out_cannot() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up();
    farm.director.enter(|| run("ip link set out0 gso_max_size 4000"));
    let mac = farm.server.enter(|| mac_of("request"));
    let engine = farm.start(|ifindex| server(mac, ifindex));
    let data = data();
    assert!(farm.upload(&farm.server, &data) == data, "what arrives is what was sent");
    farm.director.enter(|| Box::new(engine).leave(false)).unwrap();
}

#[test]
fn a_server_on_the_directors_own_host_is_reached() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up();
    farm.server.enter(|| run(&format!("ip addr del {VIP}/32 dev lo")));
    farm.director.enter(|| {
        run(&format!("ip addr add {VIP}/32 dev lo"));
        run(&format!("ip route add {CLIENT}/32 dev in0"));
    });
    let client_mac = farm.client.enter(|| mac_of("request"));
    farm.director.enter(|| run(&format!("ip neigh add {CLIENT} lladdr {client_mac} dev in0")));
    let engine = farm.start(|ifindex| ServerEntry { local: true, ..server(Mac::default(), ifindex) });
    let data = data();
    assert!(farm.upload(&farm.director, &data) == data, "what arrives is what was sent");
    assert!(count(&engine, Reason::Local) > 0);
    assert_eq!(count(&engine, Reason::Forwarded), 0);
    farm.director.enter(|| Box::new(engine).leave(false)).unwrap();
}

#[test]
fn decapsulated_packet_of_peer_goes_to_host_stack() {
    if skipped() {
        return;
    }
    let farm = Farm::set_up();
    farm.client.enter(|| run(&format!("ip link set request address {PASSED}")));
    farm.server.enter(|| run(&format!("ip addr del {VIP}/32 dev lo")));
    farm.director.enter(|| {
        run(&format!("ip addr add {VIP}/32 dev lo"));
        run(&format!("ip route add {CLIENT}/32 dev in0"));
        run(&format!("ip neigh add {CLIENT} lladdr {PASSED} dev in0"));
    });
    // By round robin, every connection would go to the other host.
    let (host, other) = (Mac::default(), farm.server.enter(|| mac_of("request")));
    let engine = farm.director.enter(|| {
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        let interfaces = ["in0", "out0"].map(|name| (index_of(name), mac_of(name)));
        let out = interfaces[1].0;
        let mut tables = tables(&interfaces, &[server(other, out)], false);
        tables.servers.insert(2, ServerEntry { local: true, ..server(host, out) });
        tables.vips.values_mut().for_each(|vip| vip.own = 2);
        apply(&mut engine, tables);
        engine
    });
    let data = data();
    assert!(farm.upload(&farm.director, &data) == data, "what arrives is what was sent");
    assert!(count(&engine, Reason::Local) > 0);
    assert_eq!(count(&engine, Reason::Forwarded), 0);
    farm.director.enter(|| Box::new(engine).leave(false)).unwrap();
}
