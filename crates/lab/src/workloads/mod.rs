//! Load on servers, and what came of it: published workloads, and clients that run them.

pub mod catalog;
pub mod distributions;
pub mod load;
pub mod log_replay;
pub mod page_users;
pub mod policy_comparison;
pub mod queue_simulation;
pub mod server_groups;
pub mod specweb96;
pub mod surge;
pub mod webstone;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use evener_sim::Random;

use crate::servers::{cgi, nginx};

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Requests a file of this length in bytes.
    Request(usize),
    /// Requests a file of this length in one of several directories.
    RequestIn(usize, usize),
    /// Requests a program's reply of this length in bytes, for which the program uses so much
    /// processor time.
    Program(usize, Duration),
    Rest(Duration),
}

impl Step {
    /// Returns the path of a request.
    pub fn path(self) -> Option<String> {
        match self {
            Step::Request(len) => Some(format!("/{}{len}", nginx::BY_LENGTH)),
            Step::RequestIn(directory, len) => Some(format!("/{}{directory}/{len}", nginx::BY_LENGTH)),
            Step::Program(len, time) => Some(format!("/{}{len}?cpu_us={}", cgi::FOLDER, time.as_micros())),
            Step::Rest(_) => None,
        }
    }
}

/// Published workload. With the same seed, the same files are requested in the same order.
pub trait Workload: Sync {
    /// Returns the requests for all files that servers need.
    fn files(&self) -> Vec<Step>;

    /// Returns the endless steps of a client.
    fn steps(&self, client: usize) -> Box<dyn Iterator<Item = Step> + Send + '_>;
}

/// Endless sequence that all clients share.
#[derive(Debug)]
struct Shared<T> {
    all: Vec<T>,
    next: AtomicUsize,
}

impl<T: Copy + Sync> Shared<T> {
    fn new(all: Vec<T>) -> Shared<T> {
        Shared { all, next: AtomicUsize::new(0) }
    }

    fn next(&self) -> Option<T> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.get(turn % self.all.len().max(1)).copied()
    }
}

/// Writes the files of a workload below a web server's folder.
pub fn write_files(folder: &Path, workload: &dyn Workload) -> Result<()> {
    for step in workload.files() {
        let (Some(path), Step::Request(len) | Step::RequestIn(_, len)) = (step.path(), step) else {
            continue;
        };
        nginx::write_page(&folder.join(path.trim_start_matches('/')), len)?;
    }
    Ok(())
}

/// Returns the requests for files of these lengths.
fn files(mut lengths: Vec<usize>) -> Vec<Step> {
    lengths.sort_unstable();
    lengths.dedup();
    lengths.into_iter().map(Step::Request).collect()
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for place in (1..items.len()).rev() {
        items.swap(place, random.below(place + 1));
    }
}
