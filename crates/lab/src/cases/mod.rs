//! Text cases: incoming packet, verdict, outgoing packet. The same files run on the core and on
//! both engines. `cases/README.md` explains the format.

mod arp;
mod frame;
mod ground;
mod hello;
mod icmp;
mod ip;
mod kernel;
mod packet;
mod routes;
mod run;
mod sniffer;
mod spec;
mod text;
mod transport;
mod words;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use evener_core::net::wire::Mac;
use evener_core::path::cookie::Keys;
use evener_core::path::decide::Reason;
use evener_core::path::mark::Marker;
use evener_core::path::seed::Seed;
use evener_core::path::sessions::{State, ticks};
use evener_core::path::tables::Tables;
use evener_dataplane::events::CLIENTS_MAX;

pub use kernel::play as play_on_kernel;
pub use packet::Cables;
pub use routes::{Next, Route};
pub use run::{Subject, Tally, run};
pub use spec::Spec;
pub use text::parse;

/// Key of the flow hash in every case, so that selections are the same on every engine and in every
/// run.
pub const SEED: Seed = Seed(0x6576_656e_6572_2d31, 0x6361_7365_732d_3031);

/// Initial epoch of the SYN cookie keys.
pub const FIRST_EPOCH: u32 = 5;

/// Returns the SYN cookie keys of an epoch.
pub fn keys(epoch: u32) -> Keys {
    Keys { key: SEED, epoch }
}

/// Key of the marks in every case.
pub const MARKER: Marker = Marker { key: SEED, generation: 9 };

#[derive(Clone, Debug)]
pub struct CaseFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Interfaces of the director, by their number in the file.
    pub interfaces: BTreeMap<u32, Mac>,
    pub routes: Arc<Vec<Route>>,
    /// Cases in the order of the file.
    pub cases: Vec<Case>,
}

impl CaseFile {
    /// Returns the same cases with a trace from the start for the first packets' sources. Traced
    /// packets take the slow path.
    pub fn traced(&self) -> CaseFile {
        let mut file = self.clone();
        for case in &mut file.cases {
            let frames = case.steps.iter().filter_map(|step| match &step.action {
                Action::Packet(packet) => source(&packet.frame),
                _ => None,
            });
            let mut clients = BTreeSet::new();
            for client in frames {
                if clients.len() < CLIENTS_MAX {
                    clients.insert(client);
                }
            }
            let step = Step { line: case.line, text: "traced".to_owned(), action: Action::Trace(clients) };
            case.steps.insert(0, step);
        }
        file
    }
}

/// Returns the source address of an untagged frame.
fn source(frame: &[u8]) -> Option<IpAddr> {
    match frame.get(12..14)? {
        [0x08, 0x00] => Some(Ipv4Addr::from(*frame.get(26..)?.first_chunk::<4>()?).into()),
        [0x86, 0xdd] => Some(Ipv6Addr::from(*frame.get(22..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// Sequence of steps that starts without sessions.
#[derive(Clone, Debug)]
pub struct Case {
    /// Claim of the case.
    pub name: String,
    /// First line of the case, counted from 1.
    pub line: usize,
    /// Number of sessions that the table is sized for.
    pub sessions_max: usize,
    /// Initial tables of the director, with the interface numbers of the file.
    pub tables: Arc<Tables>,
    /// Maximum active sessions by server slot; 0 for no limit.
    pub limits: Vec<(u16, u32)>,
    pub routes: Arc<Vec<Route>>,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// Line number, counted from 1.
    pub line: usize,
    /// Text of the line.
    pub text: String,
    pub action: Action,
}

#[derive(Clone, Debug)]
pub enum Action {
    Packet(Packet),
    /// Expected number of sessions, and their states if any are listed (sorted).
    Sessions {
        count: usize,
        /// Expected states; empty for any.
        states: Vec<State>,
    },
    /// The farm changes to these tables.
    Change(Arc<Tables>),
    /// The lease for shared addresses changes.
    Lease(Lease),
    /// The keys of SYN cookies change.
    Keys(Keys),
    /// The traced clients change.
    Trace(BTreeSet<IpAddr>),
    /// The limit of failed cookie guesses is reached: further cookies are not checked.
    Guessed,
    /// Time passes without a packet.
    Wait {
        ms: u64,
    },
}

/// Lease for shared addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The lease never ends.
    Endless,
    /// The lease ends after this time in milliseconds.
    Ms(u64),
}

impl Lease {
    /// Returns the tick at which the lease ends if it starts at `now`.
    fn until(self, now: u32) -> Option<u32> {
        match self {
            Lease::Endless => None,
            Lease::Ms(ms) => Some(now.wrapping_add(ticks(ms))),
        }
    }
}

/// Frame and its expected result.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Number of the ingress interface.
    pub ingress: u32,
    /// Bytes from the Ethernet header on.
    pub frame: Vec<u8>,
    pub expected: Seen,
}

/// Result of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Exit of the frame.
    pub exit: Exit,
    pub reasons: BTreeMap<Reason, u64>,
    /// Bytes of the outgoing frame; undefined if the frame can't be seen.
    pub frame: Vec<u8>,
    /// Held frames that were released with the frame, in order.
    pub released: Vec<(Exit, Vec<u8>)>,
}

/// Exit of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Out of the interface with this number.
    Interface(u32),
    /// To the host's own stack.
    Host,
    Nowhere,
    /// Held until another frame arrives.
    Held,
    /// To the host's own stack or dropped, which is not visible from outside.
    Unseen,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Interface(number) => write!(f, "out of interface {number}"),
            Exit::Host => f.write_str("to the host's own stack"),
            Exit::Nowhere => f.write_str("nowhere"),
            Exit::Held => f.write_str("nowhere yet"),
            Exit::Unseen => f.write_str("to the host's own stack or nowhere"),
        }
    }
}

impl Seen {
    /// True if the observed result equals the expected one, as far as it is visible.
    pub fn agrees(&self, expected: &Seen) -> bool {
        let exit = match (self.exit, expected.exit) {
            // A packet for a server on this host is visible on the loopback interface.
            (Exit::Unseen, Exit::Host) => !expected.reasons.contains_key(&Reason::Local),
            (Exit::Unseen, Exit::Nowhere | Exit::Held) => true,
            (seen, expected) => seen == expected,
        };
        let bytes = !self.shows_frame() || self.frame == expected.frame;
        exit && bytes && self.reasons == expected.reasons && self.released == expected.released
    }

    /// True if [`Seen::frame`] is defined.
    fn shows_frame(&self) -> bool {
        matches!(self.exit, Exit::Interface(_) | Exit::Host)
    }
}

/// Encodes a frame from words, as in cases, but without names of hosts.
///
/// # Errors
/// Returns the error in the words.
pub fn frame(words: &str) -> Result<Vec<u8>> {
    let world = world::World::default();
    frame::frame(&mut words::Words::of(words), &world, None)
        .map_err(|why| anyhow::anyhow!("`{words}`: {why}"))
}

/// Returns the folder of the project's cases.
pub fn directory() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "cases"].iter().collect()
}

/// Reads all `.case` files of a folder, sorted by name.
///
/// # Errors
/// Returns the first invalid line as `file:line: why`.
pub fn load(directory: &Path) -> Result<Vec<CaseFile>> {
    let listing =
        fs::read_dir(directory).with_context(|| format!("Reading {} failed", directory.display()))?;
    let mut paths: Vec<PathBuf> = listing.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "case"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text =
                fs::read_to_string(&path).with_context(|| format!("Reading {} failed", path.display()))?;
            // Shows paths relative to the project's root.
            let shown = Path::new("cases").join(path.file_name().unwrap_or_default());
            parse(&shown, &text)
        })
        .collect()
}
