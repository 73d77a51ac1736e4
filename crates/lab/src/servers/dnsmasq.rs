//! A real DNS server, dnsmasq, and a small client. Answers may be longer than one packet.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::harness::process::Proc;
use crate::harness::wait::LONG;
use crate::network::family::Family;
use crate::network::host::Host;

pub const PORT: u16 = 53;
/// Name with a text record that contains the server's name.
pub const WHO: &str = "who.test";
/// Name with text records that fill several packets.
pub const BIG: &str = "big.test";
/// Number of texts of [`BIG`], and length of each in bytes.
const TEXTS: usize = 20;
const TEXT_LEN: usize = 250;
/// Number of attempts of a query.
const TRIES: usize = 3;
/// Record type and class (RFC 1035, section 3.2).
const TXT: u16 = 16;
const IN: u16 = 1;
/// EDNS options record (RFC 6891), and padding option (RFC 7830).
const OPT: u16 = 41;
const PADDING: u16 = 12;
/// Length of a message's header in bytes.
const HEADER_LEN: usize = 12;

/// DNS server on a host. Dropping the value stops it.
#[derive(Debug)]
pub struct Server {
    _dnsmasq: Proc,
}

impl Server {
    /// Starts a server on all addresses of the host.
    pub fn start(host: &Host) -> Result<Server> {
        Self::start_with(host, &[])
    }

    /// Starts a server with further options.
    pub fn start_with(host: &Host, options: &[String]) -> Result<Server> {
        let mut words: Vec<String> = [
            "dnsmasq",
            "--keep-in-foreground",
            "--log-facility=-",
            "--conf-file=/dev/null",
            "--user=root",
            "--pid-file=",
            "--no-resolv",
            "--no-hosts",
            "--cache-size=0",
            "--edns-packet-max=32000",
        ]
        .map(str::to_owned)
        .into();
        words.push(format!("--txt-record={WHO},{}", host.name()));
        // equal texts would be merged
        words.extend((0..TEXTS).map(|number| format!("--txt-record={BIG},{}", text(number))));
        words.extend_from_slice(options);
        let mut dnsmasq = host.spawn("dnsmasq", &words)?;
        dnsmasq.wait_for("started", LONG)?;
        Ok(Server { _dnsmasq: dnsmasq })
    }
}

fn text(number: usize) -> String {
    let mut text = format!("{number:02}");
    text.extend(std::iter::repeat_n('x', TEXT_LEN - 2));
    text
}

/// Client on a host, with one port for its whole life.
#[derive(Debug)]
pub struct Client {
    socket: UdpSocket,
}

impl Client {
    /// Opens a client of `service`, with this timeout for each answer.
    pub fn open(host: &Host, service: SocketAddr, timeout: Duration) -> Result<Client> {
        let any = SocketAddr::new(Family::of(service.ip()).any(), 0);
        let socket = host.enter(|| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind(any)?;
            socket.connect(service)?;
            Ok(socket)
        })??;
        socket.set_read_timeout(Some(timeout))?;
        Ok(Client { socket })
    }

    /// Returns the name of the server that answers.
    pub fn who(&self) -> Result<String> {
        let answer = self.query(WHO, 0)?;
        answer.into_iter().next().context("The answer is empty")
    }

    /// Queries the texts of a name, with `padding` extra bytes in the query.
    pub fn query(&self, name: &str, padding: usize) -> Result<Vec<String>> {
        let mut buffer = vec![0; 65_535];
        let mut exchange = || -> io::Result<usize> {
            self.socket.send(&question(name, padding))?;
            self.socket.recv(&mut buffer)
        };
        // datagrams may be lost, and so is the first one that exceeds a path MTU, so every client
        // retries
        let len = (0..TRIES).find_map(|_| exchange().ok()).context("Nobody answered")?;
        texts(buffer.get(..len).unwrap_or_default())
    }

    /// Queries texts that fill several packets, and checks every byte.
    pub fn big(&self, padding: usize) -> Result<()> {
        let mut found = self.query(BIG, padding)?;
        found.sort();
        let right = (0..TEXTS).map(text).eq(found.iter().cloned());
        ensure!(right, "{} texts came, or others than were asked for: {found:?}", found.len());
        Ok(())
    }
}

/// Returns a query for texts that accepts answers of any length (RFC 1035, section 4.1; RFC 6891).
pub fn question(name: &str, padding: usize) -> Vec<u8> {
    let mut message = vec![0x4e, 0x56, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend([TXT.to_be_bytes(), IN.to_be_bytes()].concat());
    let options = match padding {
        0 => Vec::new(),
        len => [&PADDING.to_be_bytes()[..], &(len as u16).to_be_bytes(), &vec![0; len]].concat(),
    };
    message.push(0);
    message.extend([OPT.to_be_bytes(), 32_000u16.to_be_bytes(), [0, 0], [0, 0]].concat());
    message.extend((options.len() as u16).to_be_bytes());
    message.extend(options);
    message
}

/// Returns the texts in an answer.
fn texts(message: &[u8]) -> Result<Vec<String>> {
    let number = |at: usize| match message.get(at..at + 2) {
        Some(&[high, low]) => Ok(usize::from(high) << 8 | usize::from(low)),
        _ => bail!("The answer ends at byte {}", message.len()),
    };
    ensure!(number(2)? & 0x820f == 0x8000, "The server refused, or cut its answer short: {message:02x?}");
    // end of a name: its last label, or a pointer to another name (RFC 1035, section 4.1.4)
    let behind_name = |mut at: usize| loop {
        match message.get(at) {
            Some(0) => return Ok(at + 1),
            Some(len) if *len >= 0xc0 => return Ok(at + 2),
            Some(len) => at += 1 + usize::from(*len),
            None => bail!("A name in the answer has no end"),
        }
    };
    let mut at = behind_name(HEADER_LEN)? + 4;
    let mut texts = Vec::new();
    for _ in 0..number(6)? {
        at = behind_name(at)?;
        let (kind, len) = (number(at)?, number(at + 8)?);
        let data = message.get(at + 10..at + 10 + len).context("A record is cut off")?;
        if kind == usize::from(TXT) {
            // each text is one string, behind its length
            texts.push(String::from_utf8_lossy(data.get(1..).unwrap_or_default()).into_owned());
        }
        at += 10 + len;
    }
    Ok(texts)
}
