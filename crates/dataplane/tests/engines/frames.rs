//! Sends single frames and checks the resulting frames.

use std::os::unix::fs::PermissionsExt;

use evener_core::net::wire::{
    ARP_REPLY, ARP_REQUEST, Arp, ETHERTYPE_ARP, ETHERTYPE_IPV4, Ethernet, Mac, TCP_ACK, TCP_RST, TCP_SYN,
};
use evener_core::path::decide::Reason;
use evener_core::path::tables::NO_SERVER;
use evener_dataplane::link::{EtherType, LinkSocket, tcp_filter};
use evener_dataplane::packet::PacketEngine;
use evener_dataplane::{Engine, EngineError};
use zerocopy::{FromBytes, IntoBytes};

use crate::hosts::{CLIENT, Host, NEVER, SOON, VIP, index_of, mac_of, receive, run, segment, segment_to, up};
use crate::{apply, count, options, server, session_file, skipped, tables};

pub const SERVER: Mac = Mac([2, 0, 0, 0, 0, 1]);
const SERVER2: Mac = Mac([2, 0, 0, 0, 0, 2]);
const STRANGER: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// A director's two interfaces, each with a raw socket at the other end of its cable, all in one
/// namespace.
pub struct Bench {
    pub client: LinkSocket,
    pub server: LinkSocket,
    pub inside: (u32, Mac),
    pub outside: (u32, Mac),
    pub client_mac: Mac,
}

impl Bench {
    /// Creates the cables in the current namespace.
    pub fn set_up() -> Bench {
        run("ip link add in0 type veth peer name in1");
        run("ip link add out0 type veth peer name out1");
        ["in0", "in1", "out0", "out1"].into_iter().for_each(up);
        Bench::over_cables()
    }

    pub fn over_cables() -> Bench {
        let open = |name, kind| LinkSocket::open(index_of(name), kind).unwrap();
        Bench {
            client: open("in1", EtherType::All),
            server: open("out1", EtherType::Only(ETHERTYPE_IPV4)),
            inside: (index_of("in0"), mac_of("in0")),
            outside: (index_of("out0"), mac_of("out0")),
            client_mac: mac_of("in1"),
        }
    }

    pub fn interfaces(&self) -> [(u32, Mac); 2] {
        [self.inside, self.outside]
    }

    pub fn send(&self, port: u16, flags: u8) -> Vec<u8> {
        let frame = segment(self.client_mac, self.inside.1, port, flags);
        self.client.send(&frame).unwrap();
        frame
    }

    /// Returns the MAC of the server that a frame reaches. Checks that only the MACs changed.
    pub fn reaches(&self, port: u16, flags: u8) -> Mac {
        let sent = self.send(port, flags);
        let received = receive(&self.server, SOON).expect("the frame arrives");
        let (ethernet, body) = Ethernet::ref_from_prefix(&received).unwrap();
        assert_eq!(ethernet.src, self.outside.1);
        assert_eq!(body, &sent[14..]);
        ethernet.dst
    }
}

pub fn two_servers(bench: &Bench) -> evener_core::path::tables::Tables {
    let servers = [SERVER, SERVER2].map(|mac| server(mac, bench.outside.0));
    tables(&bench.interfaces(), &servers, true)
}

#[test]
fn frames_reach_servers_in_turn_and_stay_with_them() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        apply(&mut engine, two_servers(&bench));
        let first: Vec<Mac> = (0..40).map(|port| bench.reaches(1000 + port, TCP_SYN)).collect();
        let later: Vec<Mac> = (0..40).map(|port| bench.reaches(1000 + port, TCP_ACK)).collect();
        assert_eq!(first, later);
        assert_eq!(first.iter().filter(|mac| **mac == SERVER).count(), 20);

        let counters = engine.counters().unwrap();
        assert_eq!(counters.reasons[&Reason::Forwarded], 80);
        for slot in [1, 2] {
            let server = counters.servers[&slot];
            assert_eq!((server.packets, server.bytes, server.connections), (40, 40 * 54, 20));
        }
        assert!(!counters.servers.contains_key(&NO_SERVER));
        engine.reset_server(1).unwrap();
        let now = engine.counters().unwrap();
        assert!(!now.servers.contains_key(&1));
        assert_eq!(now.gone, counters.servers[&1]);
        Box::new(engine).leave(false).unwrap();
    });
}

#[test]
fn non_service_packet_is_counted_and_passed_to_host() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        apply(&mut engine, two_servers(&bench));
        let good = segment(bench.client_mac, bench.inside.1, 1000, TCP_SYN);
        // A frame with two VLAN tags is inspected; a frame with three passes unchanged.
        let mut tagged = good.clone();
        tagged.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7]);
        bench.client.send(&tagged).unwrap();
        bench.client.send(&segment(bench.client_mac, STRANGER, 1000, TCP_SYN)).unwrap();
        let mut options = good.clone();
        options[14] = 0x46;
        bench.client.send(&options).unwrap();
        assert_eq!(receive(&bench.server, NEVER), None);
        assert_eq!(count(&engine, Reason::Vlan), 1);
        assert_eq!(count(&engine, Reason::OtherHost), 1);
        assert_eq!(count(&engine, Reason::IpOptions), 1);
        assert_eq!(count(&engine, Reason::Forwarded), 0);
        Box::new(engine).leave(false).unwrap();
    });
}

#[test]
fn tagged_frames_are_for_services_too_and_leave_their_lan_without_a_tag() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        apply(&mut engine, two_servers(&bench));
        let plain = segment(bench.client_mac, bench.inside.1, 1000, TCP_SYN);
        for tags in [&[0x81, 0, 0, 5][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]] {
            let mut tagged = plain.clone();
            tagged.splice(12..12, tags.iter().copied());
            bench.client.send(&tagged).unwrap();
            let received = receive(&bench.server, SOON).expect("the frame arrives");
            assert_eq!(&received[12..], &plain[12..]);
            assert_eq!(received[6..12], bench.outside.1.0);
        }
        assert_eq!(count(&engine, Reason::Forwarded), 2);
        Box::new(engine).leave(false).unwrap();
    });
}

#[test]
fn arp_for_an_announced_address_is_answered() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        apply(&mut engine, two_servers(&bench));
        let ethernet =
            Ethernet { dst: Mac::BROADCAST, src: bench.client_mac, ethertype: ETHERTYPE_ARP.into() };
        let arp = Arp {
            hardware_type: 1.into(),
            protocol_type: ETHERTYPE_IPV4.into(),
            hardware_len: 6,
            protocol_len: 4,
            operation: ARP_REQUEST.into(),
            sender_mac: bench.client_mac,
            sender_ip: CLIENT.to_bits().into(),
            target_mac: Mac::default(),
            target_ip: VIP.to_bits().into(),
        };
        bench.client.send(&[ethernet.as_bytes(), arp.as_bytes()].concat()).unwrap();
        let answer = receive(&bench.client, SOON).expect("an answer");
        let answer = Arp::ref_from_bytes(&answer[14..42]).unwrap();
        assert_eq!(answer.operation.get(), ARP_REPLY);
        assert_eq!(answer.sender_mac, bench.inside.1);
        assert_eq!(answer.sender_ip.get(), VIP.to_bits());
        assert_eq!(receive(&bench.client, NEVER), None, "one answer, not two");
        assert_eq!(count(&engine, Reason::ArpAnswered), 1);
        Box::new(engine).leave(false).unwrap();
    });
}

#[test]
fn a_killed_daemons_sessions_and_counts_are_carried_on() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let file = session_file();
        let start = || PacketEngine::start(options(file.clone()));
        let mut engine = start().unwrap();
        assert_eq!(engine.running(), None);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let both = two_servers(&bench);
        apply(&mut engine, both.clone());
        let first: Vec<Mac> = (0..10).map(|port| bench.reaches(1000 + port, TCP_SYN)).collect();
        assert!(matches!(start(), Err(EngineError::System { .. })), "two must not share a file");
        // Like a kill, a drop undoes nothing.
        drop(engine);
        make_older(&file);

        let mut engine = start().unwrap();
        let running = engine.running().unwrap();
        assert_eq!((&running.servers, &running.vips), (&both.servers, &both.vips));
        assert_eq!(engine.memory().counts.active[1].load(std::sync::atomic::Ordering::Relaxed), 5);
        // Without sessions, each flow would now go to the first server.
        let mut drained = both.clone();
        drained.rings = tables(&[], &[both.servers[&1]], true).rings;
        apply(&mut engine, drained);
        let later: Vec<Mac> = (0..10).map(|port| bench.reaches(1000 + port, TCP_ACK)).collect();
        assert_eq!(first, later);
        assert_eq!(count(&engine, Reason::Forwarded), 20);
        Box::new(engine).leave(true).unwrap();
        assert!(file.exists());

        let engine = Box::new(start().unwrap());
        assert_eq!(count(&*engine, Reason::Forwarded), 20);
        engine.leave(false).unwrap();
        assert!(!file.exists());
    });
}

/// Rewrites the file as a daemon leaves it that always uses the whole session table.
fn make_older(file: &std::path::Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    let word = |at: u64, value: u64| file.write_all_at(&value.to_ne_bytes(), 8 * at).unwrap();
    word(1, 8);
    (9..11).for_each(|at| word(at, 0));
}

#[test]
fn session_file_keeps_its_size_and_foreign_file_is_refused() {
    let file = session_file();
    let mut options = options(file.clone());
    if skipped() {
        return;
    }
    let engine = PacketEngine::start(options.clone()).unwrap();
    let buckets = engine.buckets();
    drop(engine);
    options.sessions_max *= 2;
    let engine = PacketEngine::start(options.clone()).unwrap();
    assert!(engine.running().is_some(), "sessions are worth more than the room that is asked for");
    assert_eq!(engine.buckets(), buckets);
    Box::new(engine).leave(false).unwrap();

    let target = session_file();
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    assert!(PacketEngine::start(options).is_err());
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    std::fs::remove_file(file).unwrap();
    std::fs::remove_file(target).unwrap();
}

#[test]
fn the_guard_keeps_the_host_from_answering() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        // The VIP is local and nothing listens on the port, so the stack would send a reset.
        run(&format!("ip addr add {VIP}/32 dev lo"));
        run(&format!("ip route add {CLIENT}/32 dev in0"));
        run(&format!("ip neigh add {CLIENT} lladdr {} dev in0", bench.client_mac));
        let resets = tcp_filter(VIP, std::net::SocketAddrV4::new(CLIENT, 1000));
        let client = LinkSocket::open_filtered(index_of("in1"), EtherType::All, &resets).unwrap();
        bench.send(1000, TCP_SYN);
        let reset = receive(&client, SOON).expect("a reset, without a guard");
        assert_eq!(reset[47] & TCP_RST, TCP_RST);

        let file = session_file();
        let start = || PacketEngine::start(options(file.clone())).unwrap();
        let mut engine = start();
        apply(&mut engine, two_servers(&bench));
        bench.reaches(1000, TCP_SYN);
        assert_eq!(receive(&client, NEVER), None);
        // A port without a service belongs to the host itself.
        bench.client.send(&segment_to(81, bench.client_mac, bench.inside.1, 1000, TCP_SYN)).unwrap();
        assert!(receive(&client, SOON).is_some());

        // After a kill, the guard stays, and the next engine adopts it.
        drop(engine);
        bench.send(1000, TCP_SYN);
        assert_eq!(receive(&client, NEVER), None);
        let mut engine = start();
        apply(&mut engine, two_servers(&bench));
        assert!(run("nft list tables").contains("netdev evener"));
        Box::new(engine).leave(false).unwrap();
        assert!(!run("nft list tables").contains("evener"));
    });
}
