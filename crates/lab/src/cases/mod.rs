//! Text cases: packet in, verdict, packet out. One set of files, read by people and run on the core
//! and on both engines; `cases/README.md` explains the format.

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

/// Key of the flow hash in every case, so that a case's choices are the same on every engine and in
/// every run.
pub const SEED: Seed = Seed(0x6576_656e_6572_2d31, 0x6361_7365_732d_3031);

/// The epoch of cookies' keys in which every case begins.
pub const FIRST_EPOCH: u32 = 5;

/// The keys of cookies in an epoch.
pub fn keys(epoch: u32) -> Keys {
    Keys { key: SEED, epoch }
}

/// The key of marks in every case.
pub const MARKER: Marker = Marker { key: SEED, generation: 9 };

/// One file of cases.
#[derive(Clone, Debug)]
pub struct CaseFile {
    /// Where it was read from.
    pub path: PathBuf,
    /// The director's interfaces, by the number they have in the file.
    pub interfaces: BTreeMap<u32, Mac>,
    /// The host's routing table.
    pub routes: Arc<Vec<Route>>,
    /// In the order of the file.
    pub cases: Vec<Case>,
}

impl CaseFile {
    /// The same cases, in each of which everybody is traced from the beginning whose packets it
    /// begins with: they take the slow path.
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

/// Where an untagged frame's packet is from.
fn source(frame: &[u8]) -> Option<IpAddr> {
    match frame.get(12..14)? {
        [0x08, 0x00] => Some(Ipv4Addr::from(*frame.get(26..)?.first_chunk::<4>()?).into()),
        [0x86, 0xdd] => Some(Ipv6Addr::from(*frame.get(22..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// A story that begins without any session.
#[derive(Clone, Debug)]
pub struct Case {
    /// The case's claim.
    pub name: String,
    /// Where it begins, counted from 1.
    pub line: usize,
    /// Sessions that the table is sized for.
    pub sessions_max: usize,
    /// The director's tables at first. Interfaces have the numbers of the file.
    pub tables: Arc<Tables>,
    /// The most active sessions of each server slot that there may be; 0 for any number.
    pub limits: Vec<(u16, u32)>,
    /// The host's routing table.
    pub routes: Arc<Vec<Route>>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One thing that happens, or is to be found.
#[derive(Clone, Debug)]
pub struct Step {
    /// The line that says so, counted from 1.
    pub line: usize,
    /// That line.
    pub text: String,
    /// The action.
    pub action: Action,
}

/// The action of a [`Step`].
#[derive(Clone, Debug)]
pub enum Action {
    /// A frame comes in.
    Packet(Packet),
    /// So many sessions are noted; in these states, if any are listed (sorted).
    Sessions {
        /// How many.
        count: usize,
        /// Their states, or nothing.
        states: Vec<State>,
    },
    /// The farm changes; this is what the director knows from now on.
    Change(Arc<Tables>),
    /// How long addresses may be answered for.
    Lease(Lease),
    /// Cookies are made and believed by these keys.
    Keys(Keys),
    /// Packets from or to these are told from now on, and others aren't.
    Trace(BTreeSet<IpAddr>),
    /// So many guesses at cookies were wrong that no more are looked at.
    Guessed,
    /// Time passes without a packet.
    Wait {
        /// How much, in milliseconds.
        ms: u64,
    },
}

/// How long addresses may be answered for, from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Until another word.
    Endless,
    /// For so long, in milliseconds.
    Ms(u64),
}

impl Lease {
    /// The tick that it ends with, if it is `now`.
    fn until(self, now: u32) -> Option<u32> {
        match self {
            Lease::Endless => None,
            Lease::Ms(ms) => Some(now.wrapping_add(ticks(ms))),
        }
    }
}

/// A frame and what must become of it.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Number of the interface that it comes in by.
    pub ingress: u32,
    /// Its bytes, from the Ethernet header on.
    pub frame: Vec<u8>,
    /// The expected result.
    pub expected: Seen,
}

/// The result of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Where it went.
    pub exit: Exit,
    /// The counted reasons.
    pub reasons: BTreeMap<Reason, u64>,
    /// Its bytes as it went; without meaning where none could be seen.
    pub frame: Vec<u8>,
    /// Frames that were held and went with it, in order.
    pub released: Vec<(Exit, Vec<u8>)>,
}

/// Where a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Out of the interface of this number.
    Interface(u32),
    /// To the host's own stack.
    Host,
    /// Nowhere.
    Nowhere,
    /// Nowhere yet: it waits for another.
    Held,
    /// To the host's own stack or nowhere: whoever looks from outside can't tell.
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
    /// Whether what was seen is what was expected, as far as it could be seen.
    pub fn agrees(&self, expected: &Seen) -> bool {
        let exit = match (self.exit, expected.exit) {
            // A packet for a server on this host is to be seen on its way there.
            (Exit::Unseen, Exit::Host) => !expected.reasons.contains_key(&Reason::Local),
            (Exit::Unseen, Exit::Nowhere | Exit::Held) => true,
            (seen, expected) => seen == expected,
        };
        let bytes = !self.shows_frame() || self.frame == expected.frame;
        exit && bytes && self.reasons == expected.reasons && self.released == expected.released
    }

    /// Whether [`Seen::frame`] means anything.
    fn shows_frame(&self) -> bool {
        matches!(self.exit, Exit::Interface(_) | Exit::Host)
    }
}

/// A frame from words, as cases have them; stations have no names here.
///
/// # Errors
/// What is wrong with the words.
pub fn frame(words: &str) -> Result<Vec<u8>> {
    let world = world::World::default();
    frame::frame(&mut words::Words::of(words), &world, None)
        .map_err(|why| anyhow::anyhow!("`{words}`: {why}"))
}

/// The cases that belong to the project.
pub fn directory() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "cases"].iter().collect()
}

/// Reads every `.case` file of a directory, sorted by name.
///
/// # Errors
/// The first line that makes no sense, as `file:line: why`.
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
            // Names as one would type them at the project's root.
            let shown = Path::new("cases").join(path.file_name().unwrap_or_default());
            parse(&shown, &text)
        })
        .collect()
}
