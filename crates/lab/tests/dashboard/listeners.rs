//! Live streams whose clients never read.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::LONG;
use evener_lab::network::host::Host;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::PAGE;
use crate::browser::Browser;

const IDLE: usize = 1_000;
/// Limit of the daemon's memory growth for idle streams, in bytes.
const MEMORY_MAX: u64 = 32 << 20;

/// Opens a live stream without reading it.
fn listen(host: &Host, from: [u8; 4]) -> Result<TcpStream> {
    let admin = SocketAddr::from(([127, 0, 0, 1], 9180));
    let mut stream = host.enter(|| -> Result<TcpStream> {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect(&admin.into())?;
        Ok(socket.into())
    })??;
    stream.write_all(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    Ok(stream)
}

/// Reads until a text has arrived `times` times.
fn read_until(stream: &mut TcpStream, text: &str, times: usize) -> Result<()> {
    stream.set_read_timeout(Some(LONG))?;
    let (mut all, mut piece) = (String::new(), [0; 65_536]);
    while all.matches(text).count() < times {
        let count = stream.read(&mut piece)?;
        ensure!(count > 0, "the stream has ended");
        all += &String::from_utf8_lossy(&piece[..count]);
    }
    Ok(())
}

#[test]
fn thousand_pages_that_never_read_take_no_place_of_others() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most.min(16_384), most)?;
    let farm = Farm::builder().bare().servers(2).clients(1).build()?;
    let director = farm.director();
    let mut file = format!(
        "[[service]]\nname = \"shop\"\naddress = \"{}:8000\"\nmethod = \"redirect\"\nhealth.kind = \"none\"\n",
        director.address()
    );
    for host in farm.servers() {
        file += &format!("[[service.server]]\nurl = \"http://{}\"\n", host.address());
    }
    let mut evener = Evener::start(director, &file)?;
    let mut other = listen(director, [127, 0, 0, 2])?;
    read_until(&mut other, "event: snapshot", 1)?;
    let before = evener.daemon().memory()?;
    let idle = (0..IDLE).map(|_| listen(director, [127, 0, 0, 1])).collect::<Result<Vec<_>>>()?;
    read_until(&mut other, "event: delta", 2)?;
    // From the same source address as the idle streams.
    let browser = Browser::start(director)?;
    browser.open(PAGE)?;
    browser.wait_for("#connection-text", "Live")?;
    let frame = browser.script("return document.body.dataset.frame")?;
    browser.wait_until(&format!("document.body.dataset.frame !== {frame}"))?;
    browser.wait_for("#connection-text", "Live")?;
    assert_eq!(evener.servers()?.len(), 2);
    let taken = evener.daemon().memory()?.saturating_sub(before);
    ensure!(taken < MEMORY_MAX, "{IDLE} pages that never read take {taken} bytes");
    let open = director.run(&["ss", "-Htn", "state", "established", "sport = :9180"])?;
    ensure!(open.lines().count() < 256 + 64, "of {IDLE} connections {} are open", open.lines().count());
    drop(idle);
    read_until(&mut other, "event: delta", 1)
}
