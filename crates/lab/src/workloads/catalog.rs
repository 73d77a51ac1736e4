//! Workloads by name, for commands.

use std::time::Duration;

use super::Workload;
use super::load::Mix;
use super::server_groups::{PATTERNS, Pattern};
use super::specweb96::SpecWeb96;
use super::surge::Surge;
use super::webstone::{STATIC, WebStone};

/// Published workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// WebStone's own list of files
    Webstone,
    /// The access log's mix of the LSMAC paper, with a mean of 108.5 KB
    Log,
    /// The same mix, written by a CGI program
    Cgi,
    /// SPECweb96's classes, in as many directories as --rate needs
    Specweb96,
    /// SURGE: 2,000 files of at most 5 MB, users with pauses
    Surge,
    /// The LCCP paper's set of SURGE: 10,000 files, no pauses
    SurgeLccp,
    /// A pattern of the server groups' paper: --pattern has its number
    Groups,
    /// SPECweb96's classes with exact shares in each hundred requests, for short measurements
    Mix,
}

/// Parameters of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    pub seed: u64,
    /// Requests per second, for the size of SPECweb96's set.
    pub rate: f64,
    /// Number of a server groups' pattern, from 1.
    pub pattern: usize,
    /// Processor time of a program's reply.
    pub program_time: Duration,
}

impl Name {
    /// Returns the workload; `None` if there is no pattern of that number.
    pub fn workload(self, parameters: &Parameters) -> Option<Box<dyn Workload>> {
        let Parameters { seed, rate, pattern, program_time } = *parameters;
        Some(match self {
            Name::Webstone => Box::new(WebStone::new(&STATIC, seed)),
            Name::Log => Box::new(WebStone::new(&WebStone::log_mix(), seed)),
            Name::Cgi => Box::new(WebStone::new(&WebStone::log_mix(), seed).by_program(program_time)),
            Name::Specweb96 => Box::new(SpecWeb96::new(rate, seed)),
            Name::Surge => Box::new(Surge::new(2_000, 5_000_000, seed)),
            Name::SurgeLccp => Box::new(Surge::of_lccp(seed)),
            Name::Groups => Box::new(Pattern::new(pattern.checked_sub(1)?)?),
            Name::Mix => Box::new(Mix::new(seed)),
        })
    }
}

/// Number of patterns of the server groups' paper.
pub const PATTERNS_MAX: usize = PATTERNS.len();
