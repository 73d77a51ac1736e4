//! Starts a kernel engine on a thread that receives many signals, as from a profiler's timer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use evener_dataplane::Engine;
use evener_dataplane::xdp::Mode;
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::frames::{Bench, two_servers};
use crate::hosts::Host;
use crate::kernel::kernel_engine;
use crate::skipped;

/// About a minute of signals, if loading hangs.
const SIGNALS_MAX: usize = 60_000;

static TAKEN: AtomicU64 = AtomicU64::new(0);

extern "C" fn take(_: libc::c_int) {
    TAKEN.fetch_add(1, Relaxed);
}

#[test]
fn programs_load_despite_signals() {
    if skipped() {
        return;
    }
    let action = SigAction::new(SigHandler::Handler(take), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler only adds to an atomic number.
    unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let (loader, loaded) = (pthread_self(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in (0..SIGNALS_MAX).take_while(|_| !loaded.load(Relaxed)) {
                    pthread_kill(loader, Signal::SIGURG).unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let engine = kernel_engine(Some(Mode::Tc), None, two_servers(&bench));
            loaded.store(true, Relaxed);
            Box::new(engine).leave(false).unwrap();
        });
    });
    assert!(TAKEN.load(Relaxed) > 0, "signals that were held back come later");
}
