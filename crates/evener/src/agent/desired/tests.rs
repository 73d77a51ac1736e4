//! Roles of a host in the file, and the desired state that follows.

use super::*;
use crate::config;
use crate::io::network::{KernelRoute, Network};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn network() -> Network {
    let interface = |name: &str, addresses: &[(&str, u8)]| Interface {
        name: name.to_owned(),
        addresses: addresses.iter().map(|(address, len)| (ip(address), *len)).collect(),
        up: true,
        mtu: if name == "lo" { 65_536 } else { 1_500 },
        loopback: name == "lo",
        ethernet: name != "lo",
        ..Interface::default()
    };
    let route = |destination: &str, len, ifindex, gateway: Option<&str>| KernelRoute {
        destination: (ip(destination), len),
        priority: 0,
        ifindex: Some(ifindex),
        on_link: gateway.is_none(),
        gateway: gateway.map(ip),
    };
    Network {
        interfaces: BTreeMap::from([
            (1, interface("lo", &[("127.0.0.1", 8), ("::1", 128)])),
            (2, interface("eth0", &[("10.0.0.11", 24), ("2001:db8::11", 64)])),
            (3, interface("eth1", &[("10.0.1.11", 24)])),
        ]),
        routes: vec![
            route("0.0.0.0", 0, 3, Some("10.0.1.1")),
            route("10.0.0.0", 24, 2, None),
            route("10.0.1.0", 24, 3, None),
            route("2001:db8::", 64, 2, None),
        ],
        ..Network::default()
    }
}

fn desired_state(text: &str, identity: &AgentIdentity) -> Result<DesiredState, String> {
    let config = config::parse(text, "test").map_err(|problems| problems.render(false))?;
    let network = network();
    let roles = roles(&config, identity, &network)?;
    desired(
        &roles,
        &config.farm.directors,
        &network,
        &HostFacts { software: [2].into(), ..HostFacts::default() },
    )
}

#[test]
fn server_of_dns_name_only_reports_load() {
    let name = |server: &str| {
        format!(
            "[dns]\nlisten = \"192.0.2.53:53\"\nzone = [{{ name = \"example.com\" }}]\n[[dns.name]]\n\
             name = \"www.example.com\"\nserver = [{{ name = \"web1\", address = \"{server}\" }}]\n"
        )
    };
    for server in ["10.0.0.11", "[2001:db8::11]:8080"] {
        assert!(desired_state(&name(server), &AgentIdentity::default()).unwrap().addresses.is_empty());
    }
    assert!(
        desired_state(&name("10.0.0.12"), &AgentIdentity::default())
            .unwrap_err()
            .contains("not a server of the file")
    );
    let by_name = AgentIdentity { host: Some("web1".to_owned()), ..AgentIdentity::default() };
    assert!(desired_state(&name("10.0.0.12"), &by_name).is_ok());
}

fn service(keys: &str, server: &str) -> String {
    format!(
        "[[service]]\nname = \"web\"\naddresses = [\"192.0.2.100:80\", \"[2001:db8:1::100]:80\"]\n{keys}\n\
         [[service.server]]\nname = \"web1\"\naddress = \"{server}\"\n"
    )
}

fn placed(desired: &DesiredState) -> Vec<String> {
    desired.addresses.iter().map(|placed| format!("{} {}", placed.interface, placed.address)).collect()
}

#[test]
fn a_host_finds_itself_by_its_addresses_or_its_name() {
    let nobody = AgentIdentity::default();
    assert_eq!(placed(&desired_state(&service("", "10.0.0.11"), &nobody).unwrap()).len(), 2);
    let error = desired_state(&service("", "10.0.0.12"), &nobody).unwrap_err();
    assert!(error.contains("10.0.0.11, 2001:db8::11, 10.0.1.11"), "{error}");
    let named = |name: &str| AgentIdentity { host: Some(name.to_owned()), ..AgentIdentity::default() };
    assert_eq!(placed(&desired_state(&service("", "10.0.0.12"), &named("web1")).unwrap()).len(), 2);
    assert!(desired_state(&service("", "10.0.0.11"), &named("web2")).unwrap_err().contains("\"web2\""));
    let serves = |name: &str| AgentIdentity { services: vec![name.to_owned()], ..AgentIdentity::default() };
    assert!(desired_state(&service("", "10.0.0.11"), &serves("web")).unwrap_err().contains("discover"));
    assert!(desired_state(&service("", "10.0.0.11"), &serves("wbe")).unwrap_err().contains("\"wbe\""));
}

#[test]
fn listed_servers_are_silent_and_discovered_ones_answer() {
    let silent = desired_state(&service("", "10.0.0.11"), &AgentIdentity::default()).unwrap();
    assert_eq!(placed(&silent), ["lo 192.0.2.100", "lo 2001:db8:1::100"]);
    assert_eq!(silent.settings["ipv4/conf/all/arp_ignore"].value, 1);
    assert_eq!(silent.settings["ipv4/conf/all/arp_announce"].right, [2]);
    assert_eq!(silent.programs, None);
    let discovered = "[[service]]\nname = \"any\"\naddresses = [\"192.0.2.101:80\", \"[2001:db8::101]:80\"]\ndiscover = \"arp\"\n";
    let serves = AgentIdentity { services: vec!["any".into()], ..AgentIdentity::default() };
    let answering = desired_state(discovered, &serves).unwrap();
    assert_eq!(placed(&answering), ["eth0 2001:db8::101", "lo 192.0.2.101"]);
    assert_eq!(answering.settings["ipv4/conf/all/arp_ignore"].value, 0);
    // Silent and answering addresses at once. Silence is a setting of the host, so answering
    // addresses are put on the link's interface.
    let both = desired_state(&(service("", "10.0.0.11") + discovered), &serves).unwrap();
    assert_eq!(
        placed(&both),
        ["eth0 2001:db8::101", "eth1 192.0.2.101", "lo 192.0.2.100", "lo 2001:db8:1::100"]
    );
    assert_eq!(both.settings["ipv4/conf/all/arp_ignore"].value, 1);
}

#[test]
fn tunnels_are_opened_where_directors_are() {
    let nobody = AgentIdentity::default();
    let keys = "method = \"tunnel\"\nencapsulation = \"gue\"\nmtu = 1400";
    assert!(desired_state(&service(keys, "10.0.0.11"), &nobody).unwrap_err().contains("directors"));
    // One director is on the link, and one is behind the default route.
    let directors = "[farm]\ndirectors = [\"10.0.0.1\", \"10.9.0.1\"]\n";
    let desired = desired_state(&format!("{directors}{}", service(keys, "10.0.0.11")), &nobody).unwrap();
    assert_eq!(placed(&desired), ["lo 192.0.2.100", "lo 2001:db8:1::100"]);
    let (tables, places) = desired.programs.unwrap();
    assert_eq!(places.tunnels, BTreeMap::from([(2, false), (3, true)]));
    assert_eq!(places.answers, BTreeSet::from([2, 3]));
    assert_eq!(tables.addresses, BTreeSet::from([ip("10.0.0.11")]));
    assert_eq!(tables.directors, BTreeSet::from([ip("10.0.0.1"), ip("10.9.0.1")]));
    let offers: Vec<_> = tables.services.values().map(|offer| offer.mss).collect();
    assert_eq!(offers, [Some(1400 - 20 - 12 - 40), Some(1400 - 20 - 12 - 60)]);
    assert_eq!(desired.settings["ipv4/conf/eth1/rp_filter"].right, [0, 2]);
}

#[test]
fn probes_are_let_in_beside_clients_packets() {
    let farm = "[farm]\nsecret_file = \"key\"\ndirectors = [\"10.0.0.1\"]\n";
    let ports = |keys: &str| {
        let text = format!("{farm}{}", service(keys, "10.0.0.11"));
        let (tables, _) = desired_state(&text, &AgentIdentity::default()).unwrap().programs.unwrap();
        let keys = tables.services.into_iter();
        keys.map(|(key, offer)| (key.protocol, key.port, offer.listener)).collect::<BTreeSet<_>>()
    };
    let health = |keys: &str| format!("[service.health]\n{keys}\n");
    let tcp = |port, listener| (Protocol::Tcp, port, listener);
    let another = health("kind = \"http\"\nport = 8080");
    let tunnel = "method = \"tunnel\"\n";
    assert_eq!(ports(tunnel), BTreeSet::from([tcp(80, None)]));
    assert_eq!(ports(&format!("{tunnel}{another}")), BTreeSet::from([tcp(80, None), tcp(8080, None)]));
    let handoff = format!("method = \"handoff\"\n{another}");
    assert_eq!(ports(&handoff), BTreeSet::from([tcp(80, Some(80)), tcp(8080, Some(8080))]));
    let udp = format!("{tunnel}protocol = \"udp\"\n");
    let datagrams = (Protocol::Udp, 80, None);
    assert_eq!(
        ports(&format!("{udp}{}", health("kind = \"tcp\""))),
        BTreeSet::from([datagrams, tcp(80, None)])
    );
    assert_eq!(ports(&format!("{udp}{}", health("kind = \"none\""))), BTreeSet::from([datagrams]));
}

#[test]
fn connections_are_taken_by_every_link_and_by_loopback() {
    let farm = "[farm]\nsecret_file = \"key\"\ndirectors = [\"10.0.0.1\"]\n";
    let text = format!("{farm}{}", service("method = \"handoff\"", "10.0.0.11"));
    let desired = desired_state(&text, &AgentIdentity::default()).unwrap();
    let (tables, places) = desired.programs.unwrap();
    assert_eq!((places.accept, places.answers), (BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3])));
    assert!(places.tunnels.is_empty());
    let offers: BTreeSet<_> = tables.services.values().map(|offer| (offer.listener, offer.mss)).collect();
    assert_eq!(offers, BTreeSet::from([(Some(80), None)]));
    for link in ["lo", "eth0"] {
        let path = format!("ipv4/conf/{link}/rp_filter");
        assert_eq!(desired.settings[&path], SysctlSetting { right: &[0, 2], value: 2 }, "{link}");
    }
    // A host that only reads connections accepts none through the loopback interface.
    let config = config::parse(&text, "test").unwrap();
    let listeners = BTreeMap::from([(ip("192.0.2.100"), 1_000), (ip("2001:db8:1::100"), 1_001)]);
    let roles = resident_roles(&config, &network(), &listeners);
    let reading = super::desired(&roles, &[], &network(), &HostFacts::default()).unwrap();
    assert_eq!(reading.programs.unwrap().1.accept, BTreeSet::from([2, 3]));
    assert!(reading.settings.keys().all(|path| !path.ends_with("rp_filter")), "{:?}", reading.settings);
}

#[test]
fn every_host_agent_accepts_and_has_punt_listener() {
    let secret = "[farm]\nsecret_file = \"key\"\ndirectors = [\"10.0.0.1\"]\n";
    let text = |keys: &str, server: &str| {
        format!("{secret}{}", service(&format!("method = \"handoff\"\n{keys}"), server))
    };
    let every_host = "placement = \"every-host\"";
    let local_server = |text: &str, hook| {
        let config = config::parse(text, "test").unwrap();
        let network = network();
        let listeners = [("192.0.2.100", 4001), ("2001:db8:1::100", 4002)].map(|(at, port)| (ip(at), port));
        let roles = resident_roles(&config, &network, &listeners.into());
        let host = HostFacts { hook: Some(hook), ..HostFacts::default() };
        let sources: Vec<_> = config.tunnel_sources().into_iter().collect();
        desired(&roles, &sources, &network, &host).unwrap()
    };
    let ports = |desired: &DesiredState| -> Vec<(Option<u16>, Option<u16>)> {
        let (tables, _) = desired.programs.as_ref().unwrap();
        tables.services.values().map(|offer| (offer.listener, offer.punt_listener)).collect()
    };
    let accept = |desired: &DesiredState| desired.programs.as_ref().unwrap().1.accept.clone();
    let host = local_server(&text(every_host, "10.0.0.11"), Hook::Tc);
    assert_eq!(ports(&host), [(Some(80), Some(4001)), (Some(80), Some(4002))]);
    assert_eq!(accept(&host), BTreeSet::from([1, 2, 3]));
    assert_eq!(host.settings["ipv4/conf/lo/accept_local"].value, 1);
    assert!(host.programs.as_ref().unwrap().0.marks.is_some());
    // Only GUE has room for marks, and GUE is the default between hosts.
    let needs_marks = |desired: &DesiredState| {
        let (tables, _) = desired.programs.as_ref().unwrap();
        tables.services.values().all(|offer| offer.is_marked)
    };
    assert!(needs_marks(&host));
    let ipip = format!("{every_host}\nencapsulation = \"ipip\"");
    assert!(!needs_marks(&local_server(&text(&ipip, "10.0.0.11"), Hook::Tc)));
    // An engine with copies of frames delivers all packets through the loopback interface.
    let host = local_server(&text(every_host, "10.0.0.11"), Hook::Generic);
    assert_eq!(accept(&host), BTreeSet::from([1]));
    // A host without own servers only reads connections, as a director does.
    for text in [text(every_host, "10.0.0.12"), text("", "10.0.0.11")] {
        let reads = local_server(&text, Hook::Tc);
        assert_eq!(ports(&reads), [(Some(4001), Some(4001)), (Some(4002), Some(4002))]);
    }
    assert_eq!(accept(&local_server(&text("", "10.0.0.12"), Hook::Tc)), BTreeSet::from([2, 3]));
}

#[test]
fn nat_server_needs_no_settings() {
    let text = "[[service]]\nname = \"web\"\naddress = \"192.0.2.100:80\"\nmethod = \"nat\"\n\
                [[service.server]]\nname = \"web1\"\naddress = \"10.0.0.11:8080\"\n";
    assert_eq!(desired_state(text, &AgentIdentity::default()).unwrap(), DesiredState::default());
}
