//! Figures of measured points: CSV, SVG, a page of Markdown, and one HTML file.

mod html;
mod markdown;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::points::{self, Parameters, Point};
use super::{Claim, EXPERIMENTS, Experiment, Figure, Verdict};
use crate::harness::plot::{Line, Plot};

/// Figure with its points and our results.
#[derive(Debug)]
struct Drawn {
    figure: &'static Figure,
    lines: Vec<Line>,
    claims: Vec<Claim>,
    svg: String,
    /// When, with what and how long the points were measured.
    origin: String,
}

/// Experiment with the figures that have points.
#[derive(Debug)]
struct Section {
    experiment: &'static Experiment,
    figures: Vec<Drawn>,
}

/// Report of a folder's points.
#[derive(Debug, Default)]
pub struct Report {
    /// Files by name, with their text.
    pub files: BTreeMap<String, String>,
    /// Line for each figure, with its verdict.
    pub verdicts: Vec<String>,
}

impl Report {
    /// Makes all figures of a folder's points.
    pub fn of(folder: &Path) -> Result<Report> {
        let points = points::read(folder)?;
        let sections: Vec<Section> =
            EXPERIMENTS.into_iter().map(|experiment| section(experiment, &points)).collect::<Result<_>>()?;
        let sections: Vec<Section> =
            sections.into_iter().filter(|section| !section.figures.is_empty()).collect();
        if sections.is_empty() {
            bail!("No point in {} is of an experiment: see `evener-lab paper list`", folder.display());
        }
        let mut report = Report::default();
        for Section { experiment, figures } in &sections {
            for drawn in figures {
                let (name, number) = (drawn.name(experiment), drawn.figure.number);
                report.files.insert(format!("{name}.csv"), csv(&drawn.lines));
                report.files.insert(format!("{name}.svg"), drawn.svg.clone());
                let verdict = drawn.verdict().name();
                report.verdicts.push(format!("{} figure {number}: {verdict}", experiment.name));
            }
        }
        report.files.insert("report.md".to_owned(), markdown::page(&sections));
        report.files.insert("index.html".to_owned(), html::page(&sections));
        Ok(report)
    }

    /// Writes the files to a folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        self.files.iter().try_for_each(|(name, text)| {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("Writing {} failed", path.display()))
        })
    }
}

fn section(experiment: &'static Experiment, points: &[Point]) -> Result<Section> {
    let of_experiment: Vec<&Point> =
        points.iter().filter(|point| point.experiment == experiment.name).collect();
    let drawn = |figure| draw(figure, &of_experiment);
    let figures: Vec<Option<Drawn>> = experiment.figures.iter().map(drawn).collect::<Result<_>>()?;
    Ok(Section { experiment, figures: figures.into_iter().flatten().collect() })
}

/// Returns the points that are drawn. If points of one place have different durations, those of the
/// longest that all systems of the place have; without such a duration, each system's longest.
pub(super) fn longest<'a>(points: &[&'a Point]) -> Vec<&'a Point> {
    let is_drawn = |point: &Point| {
        let own = &point.parameters;
        let at_place: Vec<&Parameters> =
            points.iter().map(|other| &other.parameters).filter(|other| other.x == own.x).collect();
        let of_system = at_place.iter().copied().filter(|other| other.has_system_of(own));
        let longest = common_seconds(&at_place).or_else(|| of_system.map(|one| one.seconds).reduce(f64::max));
        longest == Some(own.seconds)
    };
    points.iter().copied().filter(|point| is_drawn(point)).collect()
}

/// Returns the longest duration that all systems of a place have.
fn common_seconds(at_place: &[&Parameters]) -> Option<f64> {
    let has = |system: &Parameters, seconds: f64| {
        at_place.iter().any(|other| other.has_system_of(system) && other.seconds == seconds)
    };
    let all = at_place.iter().map(|one| one.seconds);
    all.filter(|seconds| at_place.iter().all(|system| has(system, *seconds))).reduce(f64::max)
}

fn draw(figure: &'static Figure, points: &[&Point]) -> Result<Option<Drawn>> {
    let of_sweep: Vec<&Point> =
        points.iter().copied().filter(|point| point.parameters.sweep == figure.sweep).collect();
    let used = longest(&of_sweep);
    let (Some(first), Some(last)) = (used.first(), used.last()) else { return Ok(None) };
    let seconds = |point: &Point| point.parameters.seconds;
    let least = used.iter().map(|point| seconds(point)).fold(f64::MAX, f64::min);
    let most = used.iter().map(|point| seconds(point)).fold(0.0, f64::max);
    let seconds = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let lines = (figure.lines)(&used);
    let plot = Plot { title: figure.title, x: figure.x, y: figure.y, lines: &lines };
    let svg = plot.svg()?;
    let repeats = used.iter().map(|point| point.parameters.repeat).max().unwrap_or_default() + 1;
    let excluded = used.iter().filter(|point| !point.counts()).count();
    let (requests, failed) = used
        .iter()
        .fold((0, 0), |(requests, failed), point| (requests + point.requests, failed + point.failed));
    let day = |point: &Point| point.at.split(' ').next().unwrap_or_default().to_owned();
    let days = if day(first) == day(last) { day(first) } else { format!("{} to {}", day(first), day(last)) };
    let mut origin = format!(
        "{} points of {seconds} s, {repeats} of each place; {days}, Linux {}, commit {}.",
        used.len(),
        distinct(&used, |point| &point.kernel),
        distinct(&used, |point| &point.commit),
    );
    origin += &format!(" {failed} of {} requests failed.", requests + failed);
    if excluded > 0 {
        origin += &format!(" {excluded} measurements don't count, for instance: {}.", reason(&used));
    }
    let claims = (figure.claims)(&used);
    Ok(Some(Drawn { figure, lines, claims, svg, origin }))
}

/// Returns the different texts of points, in their order.
fn distinct<'a>(points: &[&'a Point], text: impl Fn(&'a Point) -> &'a str) -> String {
    let mut texts: Vec<&str> = Vec::new();
    for text in points.iter().map(|point| text(point)) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join(", ")
}

/// Returns the first reason for which a point doesn't count.
fn reason<'a>(points: &[&'a Point]) -> &'a str {
    points.iter().find_map(|point| point.excluded.as_deref()).unwrap_or_default()
}

impl Drawn {
    fn verdict(&self) -> Verdict {
        Verdict::of(&self.claims)
    }

    /// Name of the figure's files, without extension.
    fn name(&self, experiment: &Experiment) -> String {
        format!("{}-figure-{}", experiment.name, self.figure.number)
    }

    /// Places on the axis of any line, in order.
    fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> =
            self.lines.iter().flat_map(|line| &line.points).map(|point| point.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    /// Rows of a table of medians: a heading, and a row for each line. What doesn't count is in
    /// parentheses.
    fn rows(&self) -> Vec<Vec<String>> {
        let places = self.places();
        let heading =
            std::iter::once(self.figure.x.to_owned()).chain(places.iter().map(|place| format!("{place:.0}")));
        let row = |line: &Line| {
            let cell = |place: &f64| {
                let digits = self.figure.digits;
                match line.points.iter().find(|point| point.x == *place) {
                    Some(point) if point.counts => format!("{:.digits$}", point.median),
                    Some(point) => format!("({:.digits$})", point.median),
                    None => "-".to_owned(),
                }
            };
            std::iter::once(line.name.clone()).chain(places.iter().map(cell)).collect()
        };
        std::iter::once(heading.collect()).chain(self.lines.iter().map(row)).collect()
    }
}

impl Claim {
    fn outcome(&self) -> &'static str {
        match self.holds {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not decided",
        }
    }
}

fn csv(lines: &[Line]) -> String {
    let mut text = "system,x,least,median,greatest,counts\n".to_owned();
    for line in lines {
        for point in &line.points {
            text += &format!(
                "\"{}\",{},{},{},{},{}\n",
                line.name.replace('"', "\"\""),
                point.x,
                point.least,
                point.median,
                point.greatest,
                point.counts,
            );
        }
    }
    text
}
