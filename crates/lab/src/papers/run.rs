//! Measures the points of an experiment that a file doesn't have yet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::machine::{Usage, Use};
use super::points::{Parameters, Point, PointFile};
use super::{Experiment, Extent};
use crate::evener;
use crate::harness::clock::utc_now;
use crate::harness::limits;
use crate::network::host::Host;
use crate::workloads::load::Report;

/// Expected time until a system runs.
pub(super) const START: Duration = Duration::from_secs(4);
/// Number of times that a point is measured which doesn't count.
const ATTEMPTS_MAX: usize = 2;

/// Wanted part of an experiment.
#[derive(Clone, Debug)]
pub struct Request {
    /// Number of the only wanted figure.
    pub figure: Option<u8>,
    pub extent: Extent,
    /// Time after which no further point begins.
    pub limit: Option<Duration>,
    /// Folder of the points.
    pub folder: PathBuf,
}

/// Result of a measurement.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) report: Report,
    pub(super) used: Use,
    pub(super) values: BTreeMap<String, f64>,
}

/// What a run has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub measured: usize,
    /// Points that the file had before.
    pub found: usize,
    /// Points that are left.
    pub left: usize,
    /// Points that were measured and don't count.
    pub excluded: usize,
}

/// Returns the expected time of a point.
pub(super) fn expected(parameters: &Parameters) -> Duration {
    Duration::from_secs_f64(parameters.warmup_seconds + parameters.seconds) + Duration::from_millis(300)
}

/// Measures what is left of an experiment, with progress on standard error.
pub fn run(experiment: &Experiment, request: &Request) -> Result<Progress> {
    let planned = experiment.points_of(request.extent, request.figure);
    if planned.is_empty() {
        let numbers: Vec<String> = experiment.figures.iter().map(|one| one.number.to_string()).collect();
        bail!("{} has the figures {}", experiment.name, numbers.join(", "));
    }
    evener::program()?;
    limits::allow_clients(planned.iter().map(experiment.clients).max().unwrap_or_default())?;
    let file = PointFile::open(&request.folder)?;
    let mut runner = Runner {
        experiment,
        file,
        surroundings: Surroundings::find()?,
        started: Instant::now(),
        limit: request.limit,
        measured: 0,
    };
    let found = planned.iter().filter(|point| runner.is_done(point)).count();
    // what doesn't count is measured once more at the end
    for attempts in 0..ATTEMPTS_MAX {
        let left: Vec<&Parameters> =
            planned.iter().filter(|point| runner.attempts(point) == Some(attempts)).collect();
        for of_system in left.chunk_by(|one, next| one.has_system_of(next)) {
            runner.measure(of_system, &planned)?;
        }
    }
    Ok(Progress {
        measured: runner.measured,
        found,
        left: planned.iter().filter(|point| !runner.is_done(point)).count(),
        excluded: planned.iter().filter(|point| runner.attempts(point) == Some(ATTEMPTS_MAX)).count(),
    })
}

struct Runner<'a> {
    experiment: &'a Experiment,
    file: PointFile,
    surroundings: Surroundings,
    started: Instant,
    limit: Option<Duration>,
    measured: usize,
}

impl Runner<'_> {
    /// Returns how often a point was measured; `None` if it counts.
    fn attempts(&self, parameters: &Parameters) -> Option<usize> {
        let name = self.experiment.name;
        let of_point = self.file.points().iter();
        let of_point = of_point.filter(|one| one.experiment == name && one.parameters == *parameters);
        let (mut attempts, mut counts) = (0, false);
        for point in of_point {
            attempts += 1;
            counts |= point.counts();
        }
        (!counts).then_some(attempts)
    }

    fn is_done(&self, parameters: &Parameters) -> bool {
        self.attempts(parameters).is_none_or(|attempts| attempts >= ATTEMPTS_MAX)
    }

    fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.started.elapsed() >= limit)
    }

    /// Starts a system and measures these points of it.
    fn measure(&mut self, points: &[&Parameters], planned: &[Parameters]) -> Result<()> {
        let Some(first) = points.first().filter(|_| !self.is_over()) else { return Ok(()) };
        let system = (self.experiment.start)(first);
        let system =
            system.with_context(|| format!("{}: {} did not start", self.experiment.name, first.system))?;
        for parameters in points {
            if self.is_over() {
                break;
            }
            let measured = system.measure(parameters);
            let measured = measured.with_context(|| {
                format!("{}: {} at {} was not measured", self.experiment.name, first.system, parameters.x)
            })?;
            let point = self.point(parameters, measured)?;
            let result = point.excluded.clone().unwrap_or_else(|| shown(&point.values));
            self.file.add(point)?;
            self.measured += 1;
            self.show(parameters, planned, &result);
        }
        Ok(())
    }

    fn point(&self, parameters: &Parameters, measured: Measured) -> Result<Point> {
        let Measured { report, used, values } = measured;
        let failed = report.errors.total();
        report.examples.iter().for_each(|example| eprintln!("  failed: {example}"));
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        Ok(Point {
            experiment: self.experiment.name.to_owned(),
            parameters: parameters.clone(),
            at: utc_now()?,
            commit: self.surroundings.commit.clone(),
            kernel: self.surroundings.kernel.clone(),
            values: values.into_iter().map(|(name, value)| (name, rounded(value))).collect(),
            requests: report.requests,
            failed,
            idle: rounded(used.idle),
            others: rounded(used.others),
            generator: rounded(used.generator),
            excluded: used.excluded(report.requests, failed),
        })
    }

    fn show(&self, parameters: &Parameters, planned: &[Parameters], result: &str) {
        let left: Vec<&Parameters> = planned.iter().filter(|point| !self.is_done(point)).collect();
        let systems = left.chunk_by(|one, next| one.has_system_of(next)).count();
        let time = left.iter().map(|point| expected(point)).sum::<Duration>() + START * systems as u32;
        let minutes = (time.as_secs_f64() / 60.0).ceil();
        eprintln!(
            "{} of {}: {}, {} {}: {result}; {minutes:.0} min left",
            planned.len() - left.len(),
            planned.len(),
            parameters.system,
            parameters.sweep,
            parameters.x,
        );
    }
}

fn shown(values: &BTreeMap<String, f64>) -> String {
    let values = values.iter().map(|(name, value)| format!("{name} {value:.1}"));
    values.collect::<Vec<_>>().join(", ")
}

/// Where and with what points are measured.
struct Surroundings {
    commit: String,
    kernel: String,
}

impl Surroundings {
    fn find() -> Result<Surroundings> {
        let kernel = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
        let describe = ["describe", "--always", "--dirty=+", "--exclude=*"];
        let output = Command::new("git").args(describe).output().ok();
        let commit = output.filter(|output| output.status.success()).map_or_else(
            || "unknown".to_owned(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        );
        Ok(Surroundings { commit, kernel })
    }
}

/// Runs a load with a warm-up on a host, and measures it from the warm-up's end. Values are
/// requests per second, mean milliseconds of a request, and megabits per second that the host
/// received, which one long reply at the end doesn't distort.
pub(super) fn measure(
    client: &Host,
    parameters: &Parameters,
    load: impl FnOnce(Duration, Duration) -> Result<Report> + Send,
) -> Result<Measured> {
    let [warmup, duration] = [parameters.warmup_seconds, parameters.seconds].map(Duration::from_secs_f64);
    thread::scope(|scope| {
        let running = scope.spawn(|| load(warmup, duration));
        thread::sleep(warmup);
        let (before, usage, started) = (client.traffic()?, Usage::read()?, Instant::now());
        thread::sleep(duration);
        let (traffic, elapsed) = (client.traffic()?.since(&before), started.elapsed().as_secs_f64());
        let used = Usage::read()?.since(&usage)?;
        let report = running.join().map_err(|_| anyhow!("The clients' thread panicked"))??;
        let values = [
            ("requests_per_second", report.requests_per_second),
            ("mean_ms", report.mean_us / 1e3),
            ("megabits", traffic.received_bytes as f64 * 8.0 / 1e6 / elapsed),
        ];
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Measured { report, used, values })
    })
}
