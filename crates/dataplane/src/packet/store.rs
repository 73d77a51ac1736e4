//! Session file, which outlives the daemon: sessions, counters, and the servers and VIPs that their
//! numbers refer to. The file is mapped, so the state of a killed daemon is there for the next one.
//! On a tmpfs the file is plain memory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

use evener_core::farm::plan::VIPS_MAX;
use evener_core::net::wire::Mac;
use evener_core::path::cookie::{self, SharedKeys};
use evener_core::path::decide::{Memory, Reason};
use evener_core::path::fragments::Fragments;
use evener_core::path::guesses::{self, Guesses};
use evener_core::path::lease::Lease;
use evener_core::path::mark::{self, SharedMarker};
use evener_core::path::ports::{POOL_BUCKETS, POOLS, Ports};
use evener_core::path::reply_hops::Routes;
use evener_core::path::seed::Seed;
use evener_core::path::select::Counts;
use evener_core::path::sessions::{
    AFFINITY_WORDS, ALL_BUCKETS, AffinityCounts, Bucket4, Bucket6, Counted, FIRST_BUCKETS, SHARE_WORDS,
    Sessions, Shares, Table, buckets_for, extent_for,
};
use evener_core::path::tables::{NO_SERVER, SERVER_SLOTS, SERVICES_MAX, Tables, Vip};
use evener_core::path::unmatched::{self, Unmatched};
use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};

use super::Options;
use crate::shared::Shared;
use crate::xdp::abi;
use crate::{Counters, EngineError, ServerCounters, now_ticks};

/// Offsets in the first part of the file, in 64-bit words. The session tables and the ports follow.
mod layout {
    use super::{Range, SERVER_SLOTS, SERVICES_MAX, VIPS_MAX, abi};

    pub(super) const HEADER: Range<usize> = 0..512;
    pub(super) const ACTIVE: Range<usize> = after(HEADER, SERVER_SLOTS);
    pub(super) const SHARES: Range<usize> = after(ACTIVE, super::SHARE_WORDS);
    pub(super) const CURSORS: Range<usize> = after(SHARES, SERVICES_MAX);
    pub(super) const REASONS: Range<usize> = after(CURSORS, 64);
    /// Packets, bytes, connections and a spare word for each server.
    pub(super) const SERVERS: Range<usize> = after(REASONS, 4 * SERVER_SLOTS);
    /// Server entries by slot and VIPs, encoded as for the XDP engine.
    pub(super) const ENTRIES: Range<usize> = after(SERVERS, abi::SERVER_WORDS * SERVER_SLOTS);
    pub(super) const VIPS: Range<usize> = after(ENTRIES, abi::VIP_WORDS * VIPS_MAX);
    pub(super) const GUESSES: Range<usize> = after(VIPS, super::guesses::WORDS);
    /// Zero in files of programs without affinity, whose parts are otherwise the same.
    pub(super) const AFFINITY: Range<usize> = after(GUESSES, super::AFFINITY_WORDS);
    /// Affinity of each VIP in [`VIPS`]. Zero in such files, too.
    pub(super) const CLIENTS: Range<usize> = after(AFFINITY, abi::AFFINITY_ENTRY_WORDS * VIPS_MAX);
    /// A multiple of the page size on every machine.
    pub(super) const WORDS: usize = CLIENTS.end.next_multiple_of(super::PAGE_LEN as usize / 8);

    const fn after(before: Range<usize>, len: usize) -> Range<usize> {
        before.end..before.end + len
    }
}

/// Largest page size of any machine, in bytes. Parts of the file begin at multiples of it.
const PAGE_LEN: u64 = 65_536;
/// Number of header words. A file is adopted only if its header matches this program's.
const HEADER_WORDS: usize = 7;
const MAGIC: u64 = u64::from_le_bytes(*b"evener.s");
/// Header words with the bucket counts of the session tables.
const FOUR: usize = 4;
const SIX: usize = 5;
/// Version of the file. The version changes with [`layout`] and with the meaning of words, also of
/// words in `abi.h`.
const VERSION: u64 = 9;
/// Version without [`EXTENTS`] and otherwise equal; its sessions are adopted.
const VERSION_WITHOUT_EXTENTS: u64 = 8;
/// Header word with the version.
const AT_VERSION: usize = 1;
/// Hash key, behind the header words.
const SEED: Range<usize> = HEADER_WORDS..HEADER_WORDS + 2;
/// Number of buckets in use per session table, behind the hash key.
const EXTENTS: Range<usize> = SEED.end..SEED.end + 2;

#[derive(Debug)]
pub(super) struct Store {
    words: Shared<AtomicU64>,
    four: Shared<Bucket4>,
    six: Shared<Bucket6>,
    ports: Shared<Bucket6>,
    seed: Seed,
    ring_seed: Seed,
    /// Not in the file: without its daemon this engine answers ARP for no address.
    lease: AtomicU64,
    /// Not in the file: each start generates new keys.
    cookies: [AtomicU64; cookie::WORDS],
    marker: [AtomicU64; mark::WORDS],
    unmatched: [AtomicU64; unmatched::PLACES],
    /// Not in the file: the daemon sets scores and limits after each start.
    scores: Box<[AtomicU16]>,
    limits: Box<[AtomicU32]>,
    path: PathBuf,
    /// Lock on the file; another process must not adopt a file in use.
    _lock: Flock<File>,
}

impl Store {
    /// Opens the session file and adopts its contents, or creates a new file. A file of another
    /// boot or version is not adopted.
    pub(super) fn open(options: &Options) -> Result<(Store, Option<Tables>), EngineError> {
        let path = &options.session_file;
        let sizes = Sizes::of(options);
        let failed =
            |error| EngineError::system(format!("the session file {}", path.display()), "access", error);
        let header = header(sizes).map_err(failed)?;
        if let Some(mut store) = Self::adopt(path, &header).map_err(failed)? {
            store.ring_seed = options.ring_seed.unwrap_or(store.seed);
            let running = store.recorded();
            store.recover(&running);
            return Ok((store, Some(running)));
        }
        let mut store = Self::create(path, sizes, &header, options.seed).map_err(failed)?;
        store.ring_seed = options.ring_seed.unwrap_or(store.seed);
        Ok((store, None))
    }

    /// Repairs what a killed daemon left unfinished, and removes entries of servers that aren't
    /// `running`: a free slot may become another server's.
    fn recover(&self, running: &Tables) {
        let now = now_ticks();
        let known = |server: u16| running.servers.contains_key(&server);
        let (sessions, ports) = (self.sessions(), Ports::new(&self.ports));
        sessions.recover(now);
        sessions.sweep(0..sessions.buckets(), now, |_, value| known(value.server()));
        Table::new(&self.ports, Counted::NOTHING).recover(now);
        ports.sweep(now, |_, value| known(value.server()));
        let others = (NO_SERVER + 1..SERVER_SLOTS as u16).filter(|slot| !known(*slot));
        others.for_each(|slot| self.reset_server(slot));
    }

    /// Adopts an existing file. A file with other sizes keeps its sizes: its sessions are worth
    /// more than the configured room.
    fn adopt(path: &Path, header: &[u64; HEADER_WORDS]) -> io::Result<Option<Store>> {
        let file = match open_options().open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let about = file.metadata()?;
        let ours =
            about.is_file() && about.uid() == nix::unistd::geteuid().as_raw() && about.mode() & 0o077 == 0;
        let file = lock(file)?;
        let mut theirs = [0; 8 * HEADER_WORDS];
        if !ours || file.read_exact_at(&mut theirs, 0).is_err() {
            return Ok(None);
        }
        let mut theirs =
            theirs.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        let theirs: [u64; HEADER_WORDS] = std::array::from_fn(|_| theirs.next().unwrap_or_default());
        let sizes = Sizes { four: theirs[FOUR] as usize, six: theirs[SIX] as usize };
        let is_older = theirs[AT_VERSION] == VERSION_WITHOUT_EXTENTS;
        let is_same = |at: usize| theirs[at] == header[at] || (at == AT_VERSION && is_older);
        let same = (0..HEADER_WORDS).all(|at| at == FOUR || at == SIX || is_same(at));
        let is_whole = sizes.fits().is_some_and(|end| end == about.len());
        let store = (same && is_whole).then(|| Self::map(path, file, sizes)).transpose()?;
        if let Some(store) = store.as_ref().filter(|_| is_older) {
            // Extents are written first: a file with the new version must have extents.
            store.words[EXTENTS].iter().for_each(|word| word.store(ALL_BUCKETS, Release));
            store.words[AT_VERSION].store(VERSION, Release);
        }
        Ok(store)
    }

    /// Creates the file under a temporary name and renames it, so that its own name never refers to
    /// an incomplete file.
    fn create(path: &Path, sizes: Sizes, header: &[u64; HEADER_WORDS], seed: Seed) -> io::Result<Store> {
        let draft = path.with_extension("new");
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = lock(open_options().create_new(true).open(&draft)?)?;
        // Allocates the whole file now. A mapped page without backing memory would later raise
        // SIGBUS.
        let bytes = i64::try_from(sizes.end()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if let Err(error) = fallocate(file.as_fd(), FallocateFlags::empty(), 0, bytes) {
            let _ = fs::remove_file(&draft);
            return Err(error.into());
        }
        let mut store = Self::map(path, file, sizes)?;
        store.seed = seed;
        let extents = [sizes.four, sizes.six].map(|buckets| extent_for(FIRST_BUCKETS, buckets));
        for (value, word) in header.iter().chain(&[seed.0, seed.1]).chain(&extents).zip(&*store.words) {
            word.store(*value, Relaxed);
        }
        fs::rename(draft, path)?;
        Ok(store)
    }

    fn map(path: &Path, file: Flock<File>, sizes: Sizes) -> io::Result<Store> {
        let fd = file.as_fd();
        let words: Shared<AtomicU64> = Shared::map(fd, layout::WORDS)?;
        let four = Shared::map_at(fd, sizes.four_at(), sizes.four)?;
        let six = Shared::map_at(fd, sizes.six_at(), sizes.six)?;
        let ports = Shared::map_at(fd, sizes.ports_at(), POOLS * POOL_BUCKETS)?;
        let seed = Seed(words[SEED.start].load(Relaxed), words[SEED.start + 1].load(Relaxed));
        let (ring_seed, lease, path) = (seed, AtomicU64::new(0), path.to_owned());
        let cookies = [const { AtomicU64::new(0) }; cookie::WORDS];
        let marker = [const { AtomicU64::new(0) }; mark::WORDS];
        let unmatched = [const { AtomicU64::new(0) }; unmatched::PLACES];
        let scores = (0..SERVER_SLOTS).map(|_| AtomicU16::new(0)).collect();
        let limits = (0..SERVER_SLOTS).map(|_| AtomicU32::new(0)).collect();
        Ok(Store {
            words,
            four,
            six,
            ports,
            seed,
            ring_seed,
            lease,
            cookies,
            marker,
            unmatched,
            scores,
            limits,
            path,
            _lock: file,
        })
    }

    fn sessions(&self) -> Sessions<'_> {
        let counted = Counted {
            active: &self.words[layout::ACTIVE],
            shares: Shares(&self.words[layout::SHARES]),
            affinity: AffinityCounts(&self.words[layout::AFFINITY]),
        };
        Sessions::new(&self.four, &self.six, counted).within(&self.words[EXTENTS])
    }

    fn guesses(&self) -> Guesses<'_> {
        Guesses(&self.words[layout::GUESSES])
    }

    /// Returns the session memory, together with the parts that are not in the file.
    pub(super) fn memory<'a>(&'a self, fragments: &'a dyn Fragments, routes: &'a dyn Routes) -> Memory<'a> {
        Memory {
            sessions: self.sessions(),
            counts: Counts {
                cursors: &self.words[layout::CURSORS],
                active: &self.words[layout::ACTIVE],
                scores: &self.scores,
                limits: &self.limits,
            },
            ports: Ports::new(&self.ports),
            fragments,
            routes,
            seed: self.seed,
            ring_seed: self.ring_seed,
            lease: Lease(&self.lease),
            cookies: SharedKeys(&self.cookies),
            marker: SharedMarker(&self.marker),
            unmatched: Unmatched(&self.unmatched),
            guesses: self.guesses(),
        }
    }

    pub(super) fn reasons(&self) -> &[AtomicU64] {
        &self.words[layout::REASONS]
    }

    /// Counters of a server: packets, bytes, connections. `slot` is below [`SERVER_SLOTS`].
    pub(super) fn server(&self, slot: u16) -> [&AtomicU64; 3] {
        let at = layout::SERVERS.start + 4 * usize::from(slot);
        [&self.words[at], &self.words[at + 1], &self.words[at + 2]]
    }

    /// Returns all counters; servers without counts are left out.
    pub(super) fn counters(&self) -> Counters {
        let reasons =
            Reason::ALL.iter().zip(self.reasons()).map(|(r, count)| (*r, count.load(Relaxed))).collect();
        let servers = (NO_SERVER + 1..SERVER_SLOTS as u16)
            .map(|slot| (slot, self.server_counters(slot)))
            .filter(|(_, counters)| *counters != ServerCounters::default())
            .collect();
        Counters { reasons, servers, gone: self.server_counters(NO_SERVER) }
    }

    fn server_counters(&self, slot: u16) -> ServerCounters {
        let [packets, bytes, connections] = self.server(slot).map(|count| count.load(Relaxed));
        ServerCounters { packets, bytes, connections }
    }

    /// Adds a server's counters to the counters of removed servers, at slot `NO_SERVER`, and resets
    /// the server's counters. `slot` is below [`SERVER_SLOTS`].
    pub(super) fn reset_server(&self, slot: u16) {
        for (gone, count) in self.server(NO_SERVER).into_iter().zip(self.server(slot)) {
            gone.fetch_add(count.swap(0, Relaxed), Relaxed);
        }
        self.scores[usize::from(slot)].store(0, Relaxed);
        self.limits[usize::from(slot)].store(0, Relaxed);
    }

    /// Number of buckets of the session tables.
    pub(super) fn buckets(&self) -> [usize; 2] {
        [self.four.len(), self.six.len()]
    }

    /// Records the servers and VIPs that the numbers in sessions refer to, and sets each VIP's
    /// share of the session tables. Callers must record tables before the data plane uses them.
    pub(super) fn record(&self, tables: &Tables) {
        self.sessions().share(tables);
        self.guesses().keep(tables);
        for (slot, place) in (0..).zip(self.words[layout::ENTRIES].chunks_exact(abi::SERVER_WORDS)) {
            let entry = tables.servers.get(&slot).map(|server| abi::server(server, Mac::default()));
            put(place, &entry.unwrap_or_default(), abi::SERVER_FLAGS_WORD);
        }
        let mut vips = tables.vips.iter();
        for (place, client) in self.vip_places() {
            let vip = vips.next();
            let affinity = vip.map(|(key, vip)| abi::affinity(key, vip.affinity)).unwrap_or_default();
            client.iter().zip(affinity).for_each(|(word, value)| word.store(value, Relaxed));
            put(place, &vip.map(|(key, vip)| abi::vip(key, vip, 0)).unwrap_or_default(), 0);
        }
    }

    /// Returns the place of each recorded VIP, and that of its affinity.
    fn vip_places(&self) -> impl Iterator<Item = (&[AtomicU64], &[AtomicU64])> {
        let clients = self.words[layout::CLIENTS].chunks_exact(abi::AFFINITY_ENTRY_WORDS);
        self.words[layout::VIPS].chunks_exact(abi::VIP_WORDS).zip(clients)
    }

    /// Returns the tables recorded by [`Store::record`].
    fn recorded(&self) -> Tables {
        let load =
            |place: &[AtomicU64]| -> Vec<u64> { place.iter().map(|word| word.load(Relaxed)).collect() };
        let mut tables = Tables::default();
        for (slot, place) in (0..).zip(self.words[layout::ENTRIES].chunks_exact(abi::SERVER_WORDS)) {
            tables.servers.extend(abi::server_of(&load(place)).map(|server| (slot, server)));
        }
        for (place, client) in self.vip_places() {
            tables.vips.extend(abi::vip_of(&load(place)).map(|(key, vip, _)| {
                let affinity = abi::affinity_of(&key, &load(client));
                (key, Vip { affinity, ..vip })
            }));
        }
        tables
    }

    /// Removes the file, so that no later daemon adopts it.
    pub(super) fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn lock(file: File) -> io::Result<Flock<File>> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => {
            io::Error::new(io::ErrorKind::ResourceBusy, "another process uses it")
        }
        other => other.into(),
    })
}

/// Bucket counts of the session tables, which determine all offsets in the file.
#[derive(Clone, Copy)]
struct Sizes {
    four: usize,
    six: usize,
}

impl Sizes {
    fn of(options: &Options) -> Sizes {
        Sizes { four: buckets_for(options.sessions_max), six: buckets_for(options.sessions6_max) }
    }

    fn four_at(self) -> u64 {
        8 * layout::WORDS as u64
    }

    fn six_at(self) -> u64 {
        (self.four_at() + (self.four * size_of::<Bucket4>()) as u64).next_multiple_of(PAGE_LEN)
    }

    fn ports_at(self) -> u64 {
        (self.six_at() + (self.six * size_of::<Bucket6>()) as u64).next_multiple_of(PAGE_LEN)
    }

    /// Returns the file's length in bytes; `None` if a bucket count is out of range.
    fn fits(self) -> Option<u64> {
        let can_be = |buckets: usize| (2..=u32::MAX as usize).contains(&buckets);
        (can_be(self.four) && can_be(self.six)).then(|| self.end())
    }

    /// Length of the file in bytes.
    fn end(self) -> u64 {
        self.ports_at() + (POOLS * POOL_BUCKETS * size_of::<Bucket6>()) as u64
    }
}

fn header(sizes: Sizes) -> io::Result<[u64; HEADER_WORDS]> {
    // Ticks are counted from the boot, so sessions of an earlier boot are meaningless.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    let boot = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    // A new network namespace may have the inode number of a removed one, and so its file, but
    // never its cookie.
    let namespace = network_namespace_cookie()?;
    let boot = (boot >> 64) as u64 ^ boot as u64;
    let Sizes { four, six } = sizes;
    Ok([MAGIC, VERSION, boot, namespace, four as u64, six as u64, layout::WORDS as u64])
}

/// Returns the cookie of this network namespace, unique in this boot (SO_NETNS_COOKIE, Linux 5.14);
/// 0 on older kernels.
fn network_namespace_cookie() -> io::Result<u64> {
    use std::os::fd::AsRawFd;
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None)?;
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `cookie`, which is as long.
    let answer = unsafe {
        let (place, len) = ((&raw mut cookie).cast(), &raw mut len);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, place, len)
    };
    Ok(if answer == 0 { cookie } else { 0 })
}

/// Writes an entry so that a reader never sees a partial entry as valid. The word at index `there`,
/// which is nonzero in a valid entry, is cleared first and written last.
fn put(place: &[AtomicU64], entry: &[u64], there: usize) {
    if place.iter().zip(entry).all(|(word, value)| word.load(Relaxed) == *value) {
        return;
    }
    place[there].store(0, Release);
    for at in (0..place.len()).filter(|at| *at != there).chain([there]) {
        place[at].store(entry[at], Release);
    }
}

const _: () = assert!(Reason::ALL.len() <= 64);
