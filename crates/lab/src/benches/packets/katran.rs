//! Measures Katran's balancer like the director, built from the user's copy of its source. This
//! project contains no code of Katran.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::{MapCore as _, MapHandle, MapType, ObjectBuilder, OpenObject, libbpf_sys};
use nix::sched::sched_getcpu;

use super::frames::{self, ROUTER, SERVERS};
use super::programs::Programs;
use crate::harness::cleanup;

/// Commit of Katran in the published figures (docs/developers/figures.md).
pub(super) const KNOWN: &str = "19f08fec82fb7b5fb14d935a80057bdc0897c8de";
const BALANCER: &str = "katran/lib/bpf/balancer.bpf.c";
/// Folders of Katran's source that the balancer needs.
const PARTS: [&str; 2] = ["katran/lib/bpf", "katran/lib/linux_includes"];
const VIPS_MAX: u32 = 512;
const RING_SIZE: u32 = 65_537;
/// Indexes of Katran's counters, behind those of VIPs.
const LRU_MISSES: u32 = VIPS_MAX + 1;
const FALLBACKS: u32 = VIPS_MAX + 3;
const SENT: u32 = VIPS_MAX + 17;
const PASSED: u32 = VIPS_MAX + 19;

/// Compiled balancer. Dropping the value removes its files.
#[derive(Debug)]
pub(super) struct Source {
    /// Commit of the source; `None` if unknown.
    commit: Option<String>,
    folder: PathBuf,
    prefix: String,
}

impl Source {
    /// Compiles a checkout of Katran, or the HEAD of a bare repository, in a temporary folder.
    pub(super) fn build(given: &Path) -> Result<Source> {
        let prefix = cleanup::next_prefix()?;
        let folder = cleanup::directory().join(format!("{prefix}katran"));
        let mut source = Source { commit: None, folder, prefix };
        fs::create_dir_all(&source.folder)?;
        let tree = source.unpack(given)?;
        fs::write(source.folder.join("wrapper.h"), include_str!("../../../bpf/wrapper.h"))?;
        fs::write(source.folder.join("katran.bpf.c"), include_str!("../../../bpf/katran.bpf.c"))?;
        for (object, shown) in [("measured.o", "0"), ("shown.o", "1")] {
            source.compile(&tree, object, shown)?;
        }
        Ok(source)
    }

    /// Description of the balancer.
    pub(super) fn name(&self) -> String {
        match &self.commit {
            Some(commit) => format!("Katran, commit {commit}"),
            None => "Katran, of files without a commit".to_owned(),
        }
    }

    /// Returns the folder of the source. The files of a commit are extracted from the repository,
    /// so changes in a checkout are ignored.
    fn unpack(&mut self, given: &Path) -> Result<PathBuf> {
        let is_there = given.join(BALANCER).is_file();
        let mut repository = Command::new("git");
        // the repository may belong to another user
        repository.args(["-c", "safe.directory=*"]);
        if given.join(".git").exists() {
            repository.arg("-C").arg(given);
        } else if is_there {
            return Ok(fs::canonicalize(given)?);
        } else {
            repository.arg("--git-dir").arg(given);
        }
        let head = output(repository.args(["rev-parse", "--verify", "HEAD"]))?;
        let what = given.display();
        if !head.status.success() {
            bail!(
                "{what} has neither {BALANCER} nor a commit: --katran takes a checkout of Katran's repository, or a bare repository, as they \
                 were published"
            );
        }
        let commit = String::from_utf8_lossy(&head.stdout).trim().to_owned();
        let archive = self.folder.join("source.tar");
        let mut command = Command::new("git");
        command.args(repository.get_args().take_while(|word| *word != "rev-parse"));
        let packed = output(command.arg("archive").arg("--output").arg(&archive).arg(&commit).args(PARTS))?;
        if !packed.status.success() {
            bail!(
                "Commit {commit} of {what} has no {}: is it Katran's? {KNOWN} has it",
                PARTS.join(" or no ")
            );
        }
        let unpacked = output(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&self.folder))?;
        ensure!(unpacked.status.success(), "tar refused what git had packed: {}", first_line(&unpacked));
        self.commit = Some(commit);
        Ok(self.folder.clone())
    }

    /// Compiles like Katran's Makefile-bpf, except for the CPU version, which is the director's,
    /// and without a limit on new connections.
    fn compile(&self, tree: &Path, object: &str, shown: &str) -> Result<()> {
        let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
        let architecture = env::consts::ARCH;
        let compiled = output(
            Command::new(clang)
                .args([
                    "-target",
                    "bpf",
                    "-O2",
                    "-g",
                    "-mcpu=v3",
                    "-D__KERNEL__",
                    "-DMAX_CONN_RATE=0xffffffff",
                ])
                .args(["-Wno-unused-value", "-Wno-pointer-sign", "-Wno-compare-distinct-pointer-types"])
                // the C library's headers require the host's architecture
                .arg(format!("-D__{architecture}__"))
                .arg(format!("-DSHOWN={shown}"))
                .arg("-I")
                .arg(tree)
                .arg(format!("-I/usr/include/{architecture}-linux-gnu"))
                .arg("-c")
                .arg(self.folder.join("katran.bpf.c"))
                .arg("-o")
                .arg(self.folder.join(object)),
        )?;
        if !compiled.status.success() {
            bail!(
                "{} can't be built ({}): give --katran commit {KNOWN}, with which this works, and run `make setup` for the headers",
                self.name(),
                first_error(&compiled)
            );
        }
        Ok(())
    }

    fn open(&self, object: &str) -> Result<OpenObject> {
        let mut open = ObjectBuilder::default().open_file(self.folder.join(object))?;
        for mut program in open.progs_mut() {
            // programs without the wrapper are not measured
            let is_measured = program.name() == "katran";
            program.set_autoload(is_measured);
        }
        Ok(open)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        cleanup::reap(&self.prefix);
    }
}

fn output(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().with_context(|| format!("The program {program} did not start; `make setup` installs it"))
}

fn first_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned()
}

fn first_error(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("error: "));
    line.map_or_else(|| first_line(output), str::to_owned)
}

/// Loads the balancer for one VIP and as many servers as the director has. Its LRU map of flows
/// belongs to the current CPU, so the caller must be pinned.
pub(super) fn load(source: &Source, flows_max: usize, vip: Ipv4Addr) -> Result<Programs> {
    let programs = Programs::load(source.open("measured.o")?, source.open("shown.o")?)
        .with_context(|| format!("The kernel refuses {}", source.name()))?;
    configure(&programs, flows_max, vip)
        .with_context(|| format!("{} has other maps than {KNOWN} has, which is known here", source.name()))?;
    Ok(programs)
}

/// Writes the maps as `KatranLb` does (`katran/lib/KatranLb.cpp`; structures in
/// `balancer_structs.h`).
fn configure(programs: &Programs, flows_max: usize, vip: Ipv4Addr) -> Result<()> {
    let number = |number: u32| number.to_ne_bytes().to_vec();
    let address = |address: Ipv4Addr| [&address.octets()[..], &[0; 12]].concat();
    // port 80, TCP; no flags, and the first ring
    programs.fill("vip_map", [([address(vip), vec![0, 80, 6, 0]].concat(), vec![0; 8])])?;
    programs.fill("ctl_array", [(number(0), [&ROUTER.0[..], &[0; 2]].concat())])?;
    let real =
        |server: u8| (number(server.into()), [address(frames::address_of(server)), vec![0; 4]].concat());
    programs.fill("reals", (1..=SERVERS).map(real))?;
    let slot = |slot: u32| (number(slot), number(slot % u32::from(SERVERS) + 1));
    programs.fill("ch_rings", (0..RING_SIZE).map(slot))?;
    let like = programs.map("fallback_cache")?;
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let (kind, name) = (MapType::LruHash, Some("katran_lru"));
    let flows = MapHandle::create(
        kind,
        name,
        like.key_size(),
        like.value_size(),
        u32::try_from(flows_max)?,
        &options,
    )?;
    let cpu = u32::try_from(sched_getcpu()?)?;
    programs.fill("lru_mapping", [(number(cpu), flows.as_fd().as_raw_fd().to_ne_bytes().to_vec())])
}

pub(super) struct Counted {
    pub(super) forwarded: u64,
    pub(super) passed: u64,
    pub(super) begun: u64,
    /// Packets without SYN that were not in the LRU map, and packets without such a map.
    pub(super) unexpected: u64,
}

pub(super) fn counted(programs: &Programs) -> Result<Counted> {
    let stats = |place| programs.count("stats", place);
    let ([forwarded, _], [passed, _]) = (stats(SENT)?, stats(PASSED)?);
    let ([started, unknown], [fallbacks, _]) = (stats(LRU_MISSES)?, stats(FALLBACKS)?);
    Ok(Counted { forwarded, passed, begun: started, unexpected: unknown + fallbacks })
}

#[cfg(test)]
mod tests;
