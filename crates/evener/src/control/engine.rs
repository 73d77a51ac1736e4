//! Selects the engine: the one that the file names, or with `auto` the first that works.

use std::fs;
use std::path::{Path, PathBuf};

use evener_core::path::seed::Seed;
use evener_dataplane::idle::IdleEngine;
use evener_dataplane::packet::{self, PacketEngine};
use evener_dataplane::xdp::{self, XdpEngine, pins};
use evener_dataplane::{Engine, EngineError, Refusal};

use super::start::{StartError, seed};
use crate::config::{Config, EngineKind, XdpMode};

/// Starts the engine that the file selects. With `auto`, also returns why the kernel engine was not
/// chosen.
pub(super) fn start(
    config: &Config,
    directory: &Path,
    ring_seed: Seed,
    interfaces: impl Iterator<Item = u32>,
) -> Result<(Box<dyn Engine>, Option<String>), StartError> {
    if !config.takes_packets() {
        return Ok((Box::new(IdleEngine::new(seed()?)), None));
    }
    if config.engine.kind == EngineKind::Packet {
        return Ok((Box::new(packet(config, directory, ring_seed)?), None));
    }
    let error = match attached_xdp(config, directory, ring_seed, interfaces) {
        Ok(engine) => return Ok((Box::new(engine), None)),
        Err(StartError::Engine(error)) => error,
        Err(error) => return Err(error),
    };
    if let EngineError::Refused(refusal) = &error {
        keep_verifier_log(directory, refusal);
    }
    if config.engine.kind == EngineKind::Xdp {
        return Err(StartError::KernelEngine(error));
    }
    let note = format!(
        "uses the packet engine, which needs several times the processor time of the kernel engine: {error}"
    );
    tracing::warn!("{note}");
    Ok((Box::new(packet(config, directory, ring_seed)?), Some(note)))
}

/// Starts the kernel engine and attaches it to the farm's interfaces, so that a failure shows
/// before the farm is in force. If the attachment fails, an adopted data plane runs on until
/// another engine replaces it.
fn attached_xdp(
    config: &Config,
    directory: &Path,
    ring_seed: Seed,
    interfaces: impl Iterator<Item = u32>,
) -> Result<XdpEngine, StartError> {
    let mut engine = xdp(config, directory, ring_seed)?;
    match engine.attach_to(interfaces) {
        Ok(()) => Ok(engine),
        Err(error) => {
            let adopted = engine.running().is_some();
            leave(Box::new(engine), adopted);
            Err(StartError::Engine(error))
        }
    }
}

/// Writes the verifier's whole log to a file, and logs the file's path.
fn keep_verifier_log(directory: &Path, refusal: &Refusal) {
    let file = directory.join("verifier.log");
    match fs::write(&file, &refusal.log) {
        Ok(()) => tracing::warn!("the verifier's log is in {}", file.display()),
        Err(error) => tracing::warn!("failed to write the verifier's log to {}: {error}", file.display()),
    }
}

fn xdp(config: &Config, directory: &Path, ring_seed: Seed) -> Result<XdpEngine, StartError> {
    let mode = match config.engine.xdp_mode {
        // Packets from tunnels arrive at the traffic control hook only. So the program must be
        // attached to that hook, too.
        XdpMode::Auto if config.every_host().next().is_some() => Some(xdp::Mode::Tc),
        XdpMode::Auto => None,
        XdpMode::Native => Some(xdp::Mode::Native),
        XdpMode::Tc => Some(xdp::Mode::Tc),
        XdpMode::Generic => Some(xdp::Mode::Generic),
    };
    let options = xdp::Options {
        sessions_max: config.engine.sessions_max,
        sessions6_max: config.engine.sessions6_max,
        seed: seed()?,
        ring_seed: Some(ring_seed),
        mode,
        pins: Some(pins::directory()?),
    };
    let engine = XdpEngine::start(options)?;
    packet::clear_left(&session_file(directory));
    Ok(engine)
}

fn packet(config: &Config, directory: &Path, ring_seed: Seed) -> Result<PacketEngine, StartError> {
    pins::clear_left()?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(PacketEngine::start(packet::Options {
        sessions_max: config.engine.sessions_max,
        sessions6_max: config.engine.sessions6_max,
        seed: seed()?,
        ring_seed: Some(ring_seed),
        threads: config.engine.threads.unwrap_or(processors),
        session_file: session_file(directory),
    })?)
}

fn session_file(directory: &Path) -> PathBuf {
    directory.join("sessions")
}

/// Ends an engine that has served nothing yet. An adopted data plane runs on.
pub(super) fn leave(engine: Box<dyn Engine>, adopted: bool) {
    if let Err(error) = engine.leave(adopted) {
        tracing::warn!(%error, "failed to detach all programs of the engine; `evener doctor` shows the attached ones");
    }
}
