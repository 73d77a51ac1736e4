//! Runs so many farms, on all processors, and says which is the first that breaks a promise, if one
//! does.

#![allow(clippy::unwrap_used)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use evener_sim::run;

fn main() -> ExitCode {
    let seeds: u64 = std::env::args().nth(1).map_or(1_000, |seeds| seeds.parse().unwrap());
    let (next, found) = (AtomicU64::new(1), AtomicU64::new(u64::MAX));
    let look = || {
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed > seeds.min(found.load(Relaxed)) {
                return;
            }
            // A farm that panics breaks the promise that none does.
            if thread::spawn(move || run(seed).broken.is_some()).join().unwrap_or(true) {
                found.fetch_min(seed, Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(look);
        }
    });
    let seed = found.into_inner();
    if seed > seeds {
        return ExitCode::SUCCESS;
    }
    let broken = thread::spawn(move || run(seed).broken).join();
    let broken = broken
        .map_or("a panic".to_owned(), |broken| broken.map_or_else(String::new, |one| one.kind().to_owned()));
    println!("{seed} {broken}");
    ExitCode::FAILURE
}
