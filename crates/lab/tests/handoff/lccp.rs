//! Control messages between the nodes of a farm: servers acknowledge handed-off connections.

use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use etherparse::Ipv4Header;
use evener_core::net::wire::ETHERNET_LEN;
use evener_core::node::lccp::wire::{Addresses, LEN_MIN, LccpMessage, seal};
use evener_core::node::lccp::{
    Components, ErrorCode, HourlyKeys, LccpSession, LocalNode, MessageBody, PROTOCOL, Receptor, SocketId,
};
use evener_core::node::secret::{Secret, TAG_LEN};
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_lab::clients::transfer::there_and_back;
use evener_lab::evener::{Evener, Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::workloads::load::Load;
use nix::net::if_::if_nametoindex;
use socket2::{Domain, Protocol, Socket, Type};

use crate::talk::{Talk, get};
use crate::{farm, unbroken};

on_both_engines! {
    forwarders_do_as_they_are_told,
}

on_one_engine! {
    servers_say_what_they_took,
    a_lan_that_loses_every_fifth_packet,
    agents_that_are_gone_are_given_to_without_a_word,
    what_is_forged_or_played_back_does_nothing,
    who_is_not_understood_is_named,
    one_node_decides_for_all,
    who_decides_counts_what_it_has_decided,
}

/// Length of the IPv4 header before a message. Messages have no IP options.
const IP_LEN: usize = 20;
/// Positions of a message's version, sequence number and command.
const VERSION_AT: usize = 4;
const SEQUENCE: std::ops::Range<usize> = 20..28;
const COMMAND: std::ops::Range<usize> = 48..52;
const HANDOFF: [u8; 4] = [0, 0, 0, 5];

/// Returns a route for all servers that always needs user space.
fn all_asked() -> [String; 1] {
    [route("path = \"/*?*\"", &["web1", "web2"])]
}

fn servers_say_what_they_took(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &all_asked())?;
    handoff.wait_for_nodes()?;
    for family in Family::BOTH {
        for len in [10, 1_400, 100_000] {
            there_and_back(&handoff.farm, handoff.client(), handoff.service(family), len)
                .with_context(|| format!("{family}: {len} bytes"))?;
        }
        // A request head longer than a control message.
        let long = format!("GET /who HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(7_000));
        let reply = Talk::open(handoff.client(), handoff.service(family))?.request(&long)?;
        assert_eq!(reply.status, 200, "{family}");
    }
    // A server responds to its client before the director has counted the outcome.
    wait::until("what was handed over was acknowledged, each once", || {
        let status = handoff.evener.status()?;
        let given = status.punted["handed_off"];
        Ok(given > 0 && status.lccp["handoffs_acknowledged"] == given)
    })?;
    let lccp = handoff.evener.status()?.lccp;
    ensure!(lccp["handoffs_unanswered"] + lccp["not_restored"] == 0, "{lccp:?}");
    Ok(())
}

fn a_lan_that_loses_every_fifth_packet(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { health, ..Offer::new(engine, 2, &all_asked()) })?;
    handoff.wait_for_nodes()?;
    let loads = Family::BOTH.map(|family| {
        let load = |path: &str| Load {
            connections: 8,
            path: path.to_owned(),
            requests: Some(10),
            timeout: Duration::from_secs(60),
            ..Load::to(handoff.service(family))
        };
        [load("/2k"), load("/108k")]
    });
    handoff.farm.servers().iter().try_for_each(|server| server.lose(20))?;
    let running: Vec<_> = loads.into_iter().flatten().map(|load| load.start_on(handoff.client())).collect();
    for family in Family::BOTH {
        there_and_back(&handoff.farm, handoff.client(), handoff.service(family), 300_000)
            .with_context(|| format!("{family}"))?;
    }
    for load in running {
        assert_eq!(unbroken(load.join()?)?.requests, 80);
    }
    handoff.wait_for_punted("handed_off", 324)?;
    let status = handoff.evener.status()?;
    ensure!(status.lccp["handoffs_acknowledged"] >= 320, "{:?} {:?}", status.punted, status.lccp);
    ensure!(status.punted["spliced"] == 0, "{:?}", status.punted);
    Ok(())
}

/// The accept program works without the agent, so handoffs go to the server as to a node without an
/// agent.
fn agents_that_are_gone_are_given_to_without_a_word(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 2, &all_asked())?;
    handoff.wait_for_nodes()?;
    handoff.agents.iter_mut().try_for_each(|agent| agent.process().kill9())?;
    for family in Family::BOTH {
        let reply = Talk::open(handoff.client(), handoff.service(family))?.request(&get("x", "/who"))?;
        assert_eq!(reply.status, 200, "{family}");
    }
    handoff.wait_for_punted("handed_off", 2)?;
    assert_eq!((handoff.lccp("handoffs_acknowledged")?, handoff.punted("spliced")?), (0, 0));
    handoff.agents.iter_mut().try_for_each(|agent| agent.start_again())?;
    handoff.wait_for_nodes()?;
    for family in Family::BOTH {
        let reply = Talk::open(handoff.client(), handoff.service(family))?.request(&get("x", "/who"))?;
        assert_eq!(reply.status, 200, "{family}");
    }
    handoff.wait_for_punted("handed_off", 4)?;
    handoff.wait_for_lccp("handoffs_acknowledged", 2)
}

/// Captures the control messages that arrive at a host.
struct Receiver(LinkSocket);

impl Receiver {
    fn open(host: &Host) -> Result<Receiver> {
        let open =
            || -> Result<LinkSocket> { Ok(LinkSocket::open(if_nametoindex("eth0")?, EtherType::All)?) };
        Ok(Receiver(host.enter(open)??))
    }

    /// Returns the captured frames so far.
    fn received(&self) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 4_096];
        let mut frames = Vec::new();
        while let Ok((len, _)) = self.0.recv(&mut buffer) {
            let is_ipv4 = buffer[12..14] == [8, 0];
            if is_ipv4 && buffer[ETHERNET_LEN + 9] == PROTOCOL {
                frames.push(buffer[..len].to_vec());
            }
        }
        frames
    }
}

/// Returns a frame with a different message, and optionally a different source address.
fn with_message(frame: &[u8], source: Option<IpAddr>, message: &[u8]) -> Result<Vec<u8>> {
    let (mut ip, _) = Ipv4Header::from_slice(&frame[ETHERNET_LEN..])?;
    if let Some(IpAddr::V4(source)) = source {
        ip.source = source.octets();
    }
    ip.total_len = u16::try_from(IP_LEN + message.len())?;
    ip.header_checksum = ip.calc_header_checksum();
    Ok([&frame[..ETHERNET_LEN], &ip.to_bytes(), message].concat())
}

/// Returns forgeries that a host without the secret can derive from a captured message: a
/// repetition, truncations, modifications, and a newer sequence number sealed with another secret.
fn forgeries(frame: &[u8]) -> Result<Vec<Vec<u8>>> {
    let message = &frame[ETHERNET_LEN + IP_LEN..];
    let mut changed = message.to_vec();
    changed[SEQUENCE.start + 3] ^= 1;
    let mut sealed = changed[..message.len() - TAG_LEN].to_vec();
    sealed[SEQUENCE.start + 4] ^= 1;
    let address = |at: usize| -> IpAddr { [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]].into() };
    let addresses = Addresses { source: address(ETHERNET_LEN + 12), destination: address(ETHERNET_LEN + 16) };
    let keys = keys(&Secret::new([9; 32]))?;
    let forged = seal(sealed, addresses, keys.own().1);
    let cut = [0, 1, 43, message.len() - TAG_LEN, message.len() - 1].map(|len| &message[..len]);
    let messages = cut.into_iter().chain([message, &changed, &forged]);
    messages.map(|message| with_message(frame, None, message)).collect()
}

fn keys(secret: &Secret) -> Result<HourlyKeys> {
    Ok(HourlyKeys::at(secret, SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs()))
}

/// Returns the number of the client's connections at a server.
fn connections(handoff: &Handoff) -> Result<usize> {
    let sockets = handoff.farm.server(0).run(&["ss", "-Htan"])?;
    let client = handoff.client().address().to_string();
    Ok(sockets.lines().filter(|line| line.contains(&client) && !line.contains("TIME-WAIT")).count())
}

fn what_is_forged_or_played_back_does_nothing(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 1, &[route("path = \"/*?*\"", &["web1"])])?;
    handoff.wait_for_nodes()?;
    let (server, director) = (handoff.farm.server(0).clone(), handoff.farm.director().clone());
    let (at_server, at_director) = (Receiver::open(&server)?, Receiver::open(&director)?);
    for _ in 0..3 {
        let reply = Talk::open(handoff.client(), handoff.service(Family::V4))?.request(&get("x", "/who"))?;
        assert_eq!(reply.server, "web1");
    }
    wait::until("these are over", || Ok(connections(&handoff)? == 0))?;
    let (to_server, to_director) = (at_server.received(), at_director.received());
    let is_handoff = |frame: &&Vec<u8>| frame[ETHERNET_LEN + IP_LEN..][COMMAND] == HANDOFF;
    // A late reply causes more handoff messages.
    ensure!(to_server.iter().filter(is_handoff).count() >= 3);
    ensure!(to_director.len() >= 3, "nothing was acknowledged");
    handoff.wait_for_punted("handed_off", 3)?;
    handoff.wait_for_lccp("handoffs_acknowledged", 3)?;

    let before = handoff.evener.status()?;
    for (host, frames) in [(&server, &to_server), (&director, &to_director)] {
        let raw = host.raw_to(0)?;
        for frame in frames.iter().map(|frame| forgeries(frame)).collect::<Result<Vec<_>>>()?.concat() {
            raw.send(&frame)?;
        }
    }
    let count = to_director.len() as u64;
    for (reason, times) in [("replayed", count), ("forged", 2 * count), ("malformed", 5 * count)] {
        wait::until(&format!("{times} are {reason}"), || {
            Ok(handoff.lccp(reason)? == before.lccp[reason] + times)
        })?;
    }
    for notice in ["came twice or late", "its tag is wrong", "malformed message"] {
        wait::until(notice, || Ok(handoff.agents[0].process().log().contains(notice)))?;
    }
    let after = handoff.evener.status()?;
    assert_eq!(connections(&handoff)?, 0, "a connection that nobody has");
    assert_eq!((after.lccp["handoffs_acknowledged"], after.punted["handed_off"]), (3, 3));
    ensure!(after.sessions <= before.sessions, "{} sessions, then {}", before.sessions, after.sessions);

    // A sender that has the secret but is no node of the configuration.
    let secret = Secret::parse(&fs::read_to_string(&handoff.secret)?)?;
    let stranger = IpAddr::from(handoff.client().address());
    let own = LocalNode { address: stranger, incarnation: 7, components: Components::new(&[]) };
    let init = LccpSession::new(own, director.address().into(), 0).init(&keys(&secret)?);
    let at_client = Receiver::open(handoff.client())?;
    director.raw_to(0)?.send(&with_message(&to_director[0], Some(stranger), &init)?)?;
    let reply = Talk::open(handoff.client(), handoff.service(Family::V4))?.request(&get("x", "/who"))?;
    assert_eq!(reply.server, "web1");
    assert_eq!(handoff.lccp("hellos")?, after.lccp["hellos"]);
    assert_eq!(at_client.received(), Vec::<Vec<u8>>::new(), "nobody answers");
    handoff.wait_for_lccp("handoffs_acknowledged", 4)
}

/// Nodes with another secret, a wrong clock and another protocol version: the daemon names each
/// with a remedy.
fn who_is_not_understood_is_named(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 2, &all_asked())?;
    handoff.agents[1].stop()?;
    let server = handoff.farm.server(1);
    let (own, director) = (IpAddr::from(server.address()), IpAddr::from(handoff.farm.director().address()));
    let protocol = Protocol::from(i32::from(PROTOCOL));
    let socket = server.enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(protocol)))??;
    let secret = Secret::parse(&fs::read_to_string(&handoff.secret)?)?;
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let init = |keys: &HourlyKeys| {
        let own = LocalNode { address: own, incarnation: 7, components: Components::new(&[]) };
        LccpSession::new(own, director, 0).init(keys)
    };
    let now = HourlyKeys::at(&secret, now_s);
    let mut other_version = init(&now)[..LEN_MIN - TAG_LEN].to_vec();
    other_version[VERSION_AT] = 0;
    let addresses = Addresses { source: own, destination: director };
    let cases = [
        ("forged", init(&keys(&Secret::new([9; 32]))?), "it has another farm's secret"),
        ("key", init(&HourlyKeys::at(&secret, now_s + 86_400)), "24 hours ahead of this node's"),
        ("key", init(&HourlyKeys::at(&secret, now_s - 86_400)), "24 hours behind this node's"),
        ("version", seal(other_version, addresses, now.own().1), "it has protocol version 0"),
    ];
    wait::until("the agent is missed", || {
        let nodes = handoff.evener.status()?.nodes;
        Ok(nodes.get(&own.to_string()).is_some_and(|state| state != "known"))
    })?;
    for (reason, message, says) in cases {
        wait::until(says, || {
            socket.send_to(&message, &SocketAddr::new(director, 0).into())?;
            let refused = handoff.evener.status()?.nodes_refused.remove(&own.to_string());
            let refused = refused.unwrap_or_default();
            let is = |key: &str, text: &str| refused.get(key).is_some_and(|found| found.contains(text));
            Ok(is("reason", reason) && is("text", says))
        })?;
    }
    let log = handoff.evener.daemon().log();
    let version = format!("a control message from {own}: it has protocol version 0");
    assert_eq!(log.matches(&version).count(), 1, "once:\n{log}");
    let shown = handoff.evener.command(&["status"])?;
    ensure!(shown.contains("refused nodes") && shown.contains("upgrade it"), "{shown}");
    handoff.agents[1].start_again()?;
    handoff.wait_for_nodes()?;
    assert_eq!(handoff.evener.status()?.nodes_refused.len(), 0, "it is understood");
    Ok(())
}

/// Two daemons with the same file: one receives the clients, the other is the dispatcher.
fn one_node_decides_for_all(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).directors(2).answering().build()?;
    let chief = farm.directors()[1].clone();
    let offer = Offer {
        farm: format!("dispatcher = \"{}\"\n", chief.address()),
        keys: "announce = false\n".to_owned(),
        ..Offer::new(engine, 2, &all_asked())
    };
    let handoff = Handoff::start(farm, offer)?;
    let alone = |handoff: &Handoff| -> Result<bool> {
        Ok(handoff.evener.status()?.dispatcher.is_some_and(|dispatcher| !dispatcher.responding))
    };
    ensure!(alone(&handoff)?, "a dispatcher that isn't there decides");
    let served_by = |handoff: &Handoff| -> Result<Vec<String>> {
        let request =
            |family| Talk::open(handoff.client(), handoff.service(family))?.request(&get("x", "/who"));
        (0..4).flat_map(|_| Family::BOTH).map(|family| Ok(request(family)?.server)).collect()
    };
    served_by(&handoff)?;
    assert_eq!((handoff.lccp("dispatch_requested")?, handoff.lccp("dispatch_local")?), (0, 8));

    let mut dispatcher = Evener::start(&chief, &handoff.file())?;
    dispatcher.wait_for_servers(2, LONG)?;
    wait::until("it is asked", || Ok(!alone(&handoff)?))?;
    dispatcher.command(&["drain", "web/web1"])?;
    // The dispatcher's reply counts only within a tenth of a second. A busy machine can miss this
    // limit, so the requests are repeated.
    let served_as_decided = || -> Result<Vec<String>> {
        for _ in 0..100 {
            let before = handoff.lccp("dispatch_answered")?;
            let servers = served_by(&handoff)?;
            if handoff.lccp("dispatch_answered")? == before + 8 {
                return Ok(servers);
            }
        }
        bail!("the dispatcher never answers eight times in a row")
    };
    assert_eq!(served_as_decided()?, ["web2"; 8], "as the dispatcher says");
    ensure!(dispatcher.status()?.lccp["dispatch_served"] >= 8);
    // A reply that names a drained server is rejected.
    handoff.evener.command(&["drain", "web/web2"])?;
    assert_eq!(served_as_decided()?, ["web1"; 8]);
    ensure!(handoff.lccp("dispatch_rejected")? >= 8);

    dispatcher.daemon().kill9()?;
    let before = handoff.lccp("dispatch_local")?;
    assert_eq!(served_by(&handoff)?, ["web1"; 8], "by its own tables");
    ensure!(alone(&handoff)?, "it doesn't say so");
    assert_eq!(handoff.lccp("dispatch_local")?, before + 8);
    let answered = handoff.lccp("dispatch_answered")?;
    let doctor = handoff.evener.command(&["status"])?;
    ensure!(doctor.contains("decides by its own tables"), "{doctor}");
    handoff.evener.command(&["undrain", "web/web2"])?;
    dispatcher.start_again()?;
    wait::until("it is asked again", || {
        served_by(&handoff)?;
        Ok(handoff.lccp("dispatch_answered")? > answered && !alone(&handoff)?)
    })?;
    Ok(())
}

/// With least connections, the next connection goes to the server with the fewest, even if another
/// node receives the clients.
fn who_decides_counts_what_it_has_decided(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).directors(2).answering().build()?;
    let chief = farm.directors()[1].clone();
    let offer = Offer {
        farm: format!("dispatcher = \"{}\"\n", chief.address()),
        keys: "announce = false\npolicy = \"least-connections\"\n".to_owned(),
        ..Offer::new(engine, 2, &all_asked())
    };
    let handoff = Handoff::start(farm, offer)?;
    let dispatcher = Evener::start(&chief, &handoff.file())?;
    dispatcher.wait_for_servers(2, LONG)?;
    wait::until("it is asked", || {
        Ok(handoff.evener.status()?.dispatcher.is_some_and(|dispatcher| dispatcher.responding))
    })?;
    let open = || -> Result<(String, Talk)> {
        let mut talk = Talk::open(handoff.client(), handoff.service(Family::V4))?;
        Ok((talk.request(&get("x", "/who"))?.server, talk))
    };
    let counted = |name: &str| -> Result<u64> { Ok(dispatcher.server(name)?.sessions) };
    let talks: Vec<(String, Talk)> = (0..8).map(|_| open()).collect::<Result<_>>()?;
    assert_eq!((counted("web1")?, counted("web2")?), (4, 4));
    // The first server's connections end, so it gets the next ones.
    let (ended, kept): (Vec<_>, Vec<_>) = talks.into_iter().partition(|(server, _)| server == "web1");
    assert_eq!((ended.len(), kept.len()), (4, 4));
    drop(ended);
    wait::until("their end is told", || Ok(counted("web1")? == 0))?;
    assert_eq!(counted("web2")?, 4);
    let next: Vec<(String, Talk)> = (0..4).map(|_| open()).collect::<Result<_>>()?;
    assert!(next.iter().all(|(server, _)| server == "web1"), "{:?}", dispatcher.servers()?);
    drop((kept, next));
    wait::until("nothing is left", || Ok(counted("web1")? + counted("web2")? == 0))
}

/// Acts as a server's agent towards the director.
struct Node {
    socket: Socket,
    director: IpAddr,
    session: LccpSession,
    keys: HourlyKeys,
}

impl Node {
    fn start(host: &Host, handoff: &Handoff) -> Result<Node> {
        let protocol = Protocol::from(i32::from(PROTOCOL));
        let socket = host.enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(protocol)))??;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let director = IpAddr::from(handoff.farm.director().address());
        let components = Components::new(&[Receptor::Distributor]);
        let own = LocalNode { address: host.address().into(), incarnation: 7, components };
        let keys = keys(&Secret::parse(&fs::read_to_string(&handoff.secret)?)?)?;
        let mut node = Node { socket, director, session: LccpSession::new(own, director, 0), keys };
        wait::until("the director knows this node", || {
            let init = node.session.init(&node.keys);
            node.send(&init)?;
            node.received()?;
            Ok(node.session.is_known())
        })?;
        Ok(node)
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        self.socket.send_to(message, &SocketAddr::new(self.director, 0).into())?;
        Ok(())
    }

    /// Returns the next message. Greetings are answered and skipped.
    fn received(&mut self) -> Result<Option<LccpMessage>> {
        let mut buffer = [0; 2_048];
        let Ok(len) = (&self.socket).read(&mut buffer) else { return Ok(None) };
        let received = self.session.receive(0, &self.keys, &buffer[IP_LEN..len]);
        received.answer.map_or(Ok(()), |answer| self.send(&answer))?;
        Ok(received.message)
    }

    /// Sends a message to the forwarder and returns the reply.
    fn tell(&mut self, body: &MessageBody) -> Result<MessageBody> {
        let (mut answer, mut first) = (None, None);
        wait::until("the forwarder answers", || {
            let message = self.session.send(&self.keys, Receptor::Forwarder, body.clone());
            let (sequence, message) = message.context("The director isn't known any more")?;
            self.send(&message)?;
            // The forwarder answers each repetition.
            let first = *first.get_or_insert(sequence);
            answer = self.received()?.filter(|received| received.echo.sequence >= first);
            Ok(answer.is_some())
        })?;
        Ok(answer.context("It said nothing")?.body)
    }
}

/// A node hands a client's connection to a server itself.
fn forwarders_do_as_they_are_told(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 2, &all_asked())?;
    handoff.agents[1].stop()?;
    let mut node = Node::start(handoff.farm.server(1), &handoff)?;
    for family in Family::BOTH {
        let client: SocketAddr =
            if family == Family::V4 { "203.0.113.7:40000" } else { "[2001:db8:7::7]:40000" }.parse()?;
        let socket = SocketId::new(client, handoff.service(family)).context("They are of one family")?;
        let state = |state: &str| -> Result<bool> {
            let sessions = handoff.evener.sessions()?;
            let session = sessions.iter().find(|session| session.client == client.to_string());
            Ok(session.is_some_and(|session| session.server == "web1" && session.state == state))
        };
        let server = SocketAddr::new(handoff.farm.server(0).address().into(), 80);
        let nobody = MessageBody::Forward { socket, server: "192.0.2.250:80".parse()? };
        assert_eq!(
            node.tell(&nobody)?,
            MessageBody::Error { socket: Some(socket), code: ErrorCode::NoServer }
        );
        assert_eq!(node.tell(&MessageBody::Forward { socket, server })?, MessageBody::ForwardAck { socket });
        ensure!(state("established")?, "{family}: {:?}", handoff.evener.sessions()?);
        let close = node.session.send(&node.keys, Receptor::Forwarder, MessageBody::Close { socket });
        node.send(&close.context("The director isn't known any more")?.1)?;
        wait::until("it closes", || state("closing"))?;
    }
    Ok(())
}
