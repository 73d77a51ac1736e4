//! The papers' experiments, repeatable on one machine, in parts and on several days.
//!
//! An [`Experiment`] plans points and measures them one by one; [`run()`] decides which are left
//! and keeps them in a [file of points](points). [`report`] makes figures of the file, with
//! verdicts on what the paper says.

mod dpr;
mod groups;
mod lba;
mod lccp;
mod machine;
pub mod points;
mod policies;
pub mod report;
mod run;
mod workloads;

use std::time::Duration;

use anyhow::Result;

use crate::harness::plot::{Line, LinePoint};
use crate::harness::table::{Table, median};
use points::{Parameters, Point};
pub use run::{Progress, Request, run};

/// Experiments by name.
pub const EXPERIMENTS: [&Experiment; 6] = [
    &dpr::EXPERIMENT,
    &lccp::EXPERIMENT,
    &lba::EXPERIMENT,
    &groups::EXPERIMENT,
    &policies::EXPERIMENT,
    &workloads::EXPERIMENT,
];

/// Number of points and their duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// Few short points, for a first look.
    Quick,
    /// All points, three times each.
    #[default]
    Normal,
    /// All points as in the paper's own protocol.
    Full,
}

/// Experiment of a paper.
#[derive(Debug)]
pub struct Experiment {
    pub name: &'static str,
    /// Title of the paper, and the section.
    pub paper: &'static str,
    /// Set-up in our words, and what differs from the paper's.
    pub setup: &'static str,
    pub figures: &'static [Figure],
    /// Returns the points in the order of measurement. Points of a system are adjacent.
    plan: fn(Extent) -> Vec<Parameters>,
    /// Returns the number of clients of a point.
    clients: fn(&Parameters) -> usize,
    /// Starts a system.
    start: fn(&Parameters) -> Result<Box<dyn System>>,
}

/// Figure of a paper.
#[derive(Debug)]
pub struct Figure {
    /// Number in the paper.
    pub number: u8,
    pub title: &'static str,
    /// Sweep whose points the figure has.
    pub sweep: &'static str,
    pub x: &'static str,
    pub y: &'static str,
    /// Digits after the decimal point in tables.
    pub digits: usize,
    lines: fn(&[&Point]) -> Vec<Line>,
    claims: fn(&[&Point]) -> Vec<Claim>,
}

/// Statement of a paper about a figure, beside our result.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Statement with the numbers of the paper's text.
    pub paper: &'static str,
    /// Our numbers.
    pub ours: String,
    /// `None` if points are missing.
    pub holds: Option<bool>,
}

/// Judgement of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    HoldsInPart,
    DoesNotHold,
    NotDecided,
}

/// Running system under test.
trait System {
    /// Measures a point. Dropping the system ends it.
    fn measure(&self, parameters: &Parameters) -> Result<run::Measured>;
}

impl Experiment {
    /// Returns the points of these figures; of all without a number.
    fn points_of(&self, extent: Extent, figure: Option<u8>) -> Vec<Parameters> {
        let sweeps: Vec<&str> = self
            .figures
            .iter()
            .filter(|one| figure.is_none_or(|number| one.number == number))
            .map(|one| one.sweep)
            .collect();
        let planned = (self.plan)(extent).into_iter();
        planned.filter(|point| sweeps.contains(&point.sweep.as_str())).collect()
    }

    /// Expected time of all points.
    fn expected(&self, extent: Extent) -> Duration {
        let points = (self.plan)(extent);
        let systems = points.chunk_by(Parameters::has_system_of).count();
        points.iter().map(run::expected).sum::<Duration>() + run::START * systems as u32
    }
}

impl Verdict {
    pub fn of(claims: &[Claim]) -> Verdict {
        let decided: Option<Vec<bool>> = claims.iter().map(|claim| claim.holds).collect();
        match decided {
            None => Verdict::NotDecided,
            Some(all) if all.is_empty() => Verdict::NotDecided,
            Some(all) if all.iter().all(|holds| *holds) => Verdict::Holds,
            Some(all) if all.iter().any(|holds| *holds) => Verdict::HoldsInPart,
            Some(_) => Verdict::DoesNotHold,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::HoldsInPart => "holds in part",
            Verdict::DoesNotHold => "does not hold",
            Verdict::NotDecided => "not decided",
        }
    }
}

/// Returns the table of experiments with their expected minutes.
pub fn list() -> Table {
    let mut table = Table::new(&["experiment", "figures", "quick", "min", "full"]);
    for experiment in EXPERIMENTS {
        let figures: Vec<String> =
            experiment.figures.iter().map(|figure| figure.number.to_string()).collect();
        let minutes = [Extent::Quick, Extent::Normal, Extent::Full]
            .map(|extent| format!("{:.0}", experiment.expected(extent).as_secs_f64() / 60.0));
        table.row([experiment.name.to_owned(), figures.join(", ")].into_iter().chain(minutes));
    }
    table
}

/// Returns the lines of a value: one for each system, in the order of their first points.
fn lines_of(points: &[&Point], value: &str) -> Vec<Line> {
    let mut systems: Vec<&str> = Vec::new();
    for point in points {
        if !systems.contains(&point.parameters.system.as_str()) {
            systems.push(&point.parameters.system);
        }
    }
    let line = |system: &str| {
        let of_system: Vec<&Point> =
            points.iter().copied().filter(|point| point.parameters.system == system).collect();
        Line {
            name: system.to_owned(),
            points: repeats(&of_system, |p| p.parameters.x, |p| p.values.get(value).copied()),
        }
    };
    systems.into_iter().map(line).collect()
}

/// Combines the repeats of points by their place on the axis.
fn repeats(
    points: &[&Point],
    place: impl Fn(&Point) -> f64,
    value: impl Fn(&Point) -> Option<f64>,
) -> Vec<LinePoint> {
    let mut sorted: Vec<&&Point> = points.iter().collect();
    sorted.sort_by(|one, other| place(one).total_cmp(&place(other)));
    let of_place = |group: &[&&Point]| {
        let counts = group.iter().any(|point| point.counts());
        let used = group.iter().filter(|point| point.counts() == counts);
        let mut values: Vec<f64> = used.filter_map(|point| value(point)).collect();
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        let median = median(values);
        Some(LinePoint { x: place(group.first()?), least, median, greatest, counts })
    };
    sorted.chunk_by(|one, next| place(one) == place(next)).filter_map(of_place).collect()
}

/// Returns the line of a system.
fn line<'a>(lines: &'a [Line], name: &str) -> Option<&'a Line> {
    lines.iter().find(|line| line.name == name)
}

/// Returns the ratios of two lines at their common counting points.
fn ratios(line: &Line, base: &Line) -> Vec<f64> {
    line.counted().filter_map(|point| Some(point.median / base.at(point.x)?)).collect()
}

#[cfg(test)]
mod tests;
