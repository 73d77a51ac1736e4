//! TLS connections are routed by the server name in the ClientHello and stay encrypted up to the
//! server.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::harness::process::Proc;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::servers::nginx_tls::{self, PORT};

on_both_engines! { hellos_go_by_their_name, hellos_in_pieces, hellos_in_several_records }

/// A farm whose servers have a certificate for all names and return their name.
pub(crate) struct Stage {
    pub(crate) handoff: Handoff,
    _webs: Vec<Proc>,
}

pub(crate) fn stage(engine: &str) -> Result<Stage> {
    let farm = Farm::builder().bare().servers(3).build()?;
    let webs = farm.servers().iter().map(nginx_tls::start).collect::<Result<_>>()?;
    let routes = [
        route("host = \"a.example\"", &["web1"]),
        route("host = \"*.b.example\"", &["web2"]),
        // A path route does not apply: only the server can decrypt the path.
        route("path = \"/who\"", &["web1"]),
        route("", &["web3"]),
    ];
    let health = "[service.health]\nkind = \"tcp\"\ninterval = \"500ms\"\n".to_owned();
    let offer = Offer { health, port: PORT, ..Offer::new(engine, 3, &routes) };
    Ok(Stage { handoff: Handoff::start(farm, offer)?, _webs: webs })
}

/// Returns the server that responds for a name, to a request of curl(1) sent to address `to`.
pub(crate) fn who(client: &Host, name: &str, to: SocketAddr) -> Result<String> {
    let connect_to = format!("{name}:443:{}:{}", host_of(to), to.port());
    let url = format!("https://{name}/who");
    Ok(client.curl(&["--insecure", "--connect-to", &connect_to, &url])?.trim().to_owned())
}

fn host_of(address: SocketAddr) -> String {
    if address.is_ipv6() { format!("[{}]", address.ip()) } else { address.ip().to_string() }
}

const NAMES: [(&str, &str); 4] =
    [("a.example", "web1"), ("x.b.example", "web2"), ("x.y.b.example", "web2"), ("b.example", "web3")];

fn hellos_go_by_their_name(engine: &str) -> Result<()> {
    let Stage { handoff, _webs } = &stage(engine)?;
    for family in Family::BOTH {
        for (name, server) in NAMES {
            for _ in 0..3 {
                let answer = who(handoff.client(), name, handoff.service(family));
                assert_eq!(answer.with_context(|| format!("{family}: {name}"))?, server, "{name}");
            }
        }
        // ClientHellos to an IP address contain no server name (RFC 6066, section 3).
        let url = format!("https://{}/who", host_of(handoff.service(family)));
        assert_eq!(handoff.client().curl(&["--insecure", &url])?, "web3\n", "{family}");
    }
    let punted = handoff.evener.status()?.punted;
    assert!(punted.values().all(|count| *count == 0), "the data plane decides all of it: {punted:?}");
    Ok(())
}

fn hellos_in_pieces(engine: &str) -> Result<()> {
    let Stage { handoff, _webs } = &stage(engine)?;
    let mut count = 0;
    for family in Family::BOTH {
        for (name, server) in NAMES {
            for len in [3, 100] {
                let relay = Relay::open(handoff.client(), handoff.service(family), len)?;
                let answer = who(handoff.client(), name, relay.address);
                assert_eq!(answer.with_context(|| format!("{family}: {name}"))?, server, "{name}");
                relay.thread.join().ok().context("the relay panicked")??;
                count += 1;
            }
        }
    }
    handoff.wait_for_punted("handed_off", count)
}

/// A ClientHello can be split into several records (RFC 8446, section 5.1). openssl(1) does this on
/// request, and long protocol names make the ClientHello longer than a record.
fn hellos_in_several_records(engine: &str) -> Result<()> {
    let Stage { handoff, _webs } = &stage(engine)?;
    let protocols = format!("http/1.1,{},{}", "x".repeat(200), "y".repeat(200));
    for family in Family::BOTH {
        for (name, server) in NAMES {
            let to = handoff.service(family);
            let script = format!(
                "printf 'GET /who HTTP/1.0\\r\\nHost: {name}\\r\\n\\r\\n' | openssl s_client -quiet -ign_eof \
                 -max_send_frag 512 -alpn {protocols} -servername {name} -connect {to} 2>/dev/null; true"
            );
            let answer = handoff.client().run(&["sh", "-c", &script])?;
            assert_eq!(answer.lines().last(), Some(server), "{family}: {name}: {answer}");
        }
    }
    Ok(())
}

/// Relays one connection and splits its first bytes after `len` bytes.
struct Relay {
    address: SocketAddr,
    thread: JoinHandle<Result<()>>,
}

impl Relay {
    fn open(client: &Host, service: SocketAddr, len: usize) -> Result<Relay> {
        let listener = client.enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))??;
        let (address, client) = (listener.local_addr()?, client.clone());
        let thread = thread::spawn(move || client.enter(|| pass_on(&listener, service, len))?);
        Ok(Relay { address, thread })
    }
}

fn pass_on(listener: &TcpListener, service: SocketAddr, len: usize) -> Result<()> {
    let (mut near, _) = listener.accept()?;
    let mut far = TcpStream::connect(service)?;
    far.set_nodelay(true)?;
    let mut first = vec![0; 4096];
    let got = near.read(&mut first)?;
    let (head, tail) = first[..got].split_at(len);
    far.write_all(head)?;
    thread::sleep(Duration::from_millis(20));
    far.write_all(tail)?;
    let (mut from_near, mut to_far) = (near.try_clone()?, far.try_clone()?);
    let upwards = thread::spawn(move || io::copy(&mut from_near, &mut to_far));
    // Either end may finish with a reset.
    let _ = io::copy(&mut far, &mut near);
    let _ = near.shutdown(std::net::Shutdown::Both);
    let _ = upwards.join();
    Ok(())
}
