//! Figures as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use serde::Serialize;

const SIZE: (u32, u32) = (980, 480);
/// Width of the legend, at the right of the chart, and the height of a line of it.
const LEGEND: u32 = 280;
const LEGEND_LINE: i32 = 20;

/// Line of a figure: results of one system, point by point.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Line {
    pub name: String,
    /// In the order of `x`.
    pub points: Vec<LinePoint>,
}

/// Repeats of one point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinePoint {
    pub x: f64,
    pub least: f64,
    pub median: f64,
    pub greatest: f64,
    /// True if a repeat counts; the values are then of the counting ones alone. Points that don't
    /// count are drawn hollow.
    pub counts: bool,
}

#[derive(Debug)]
pub struct Plot<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub lines: &'a [Line],
}

impl LinePoint {
    /// Returns a point of one measurement.
    pub fn single(x: f64, y: f64) -> LinePoint {
        LinePoint { x, least: y, median: y, greatest: y, counts: true }
    }
}

impl Line {
    /// Median at a place, if the point counts.
    pub fn at(&self, x: f64) -> Option<f64> {
        self.counted().find(|point| point.x == x).map(|point| point.median)
    }

    /// Points that count.
    pub fn counted(&self) -> impl Iterator<Item = &LinePoint> {
        self.points.iter().filter(|point| point.counts)
    }

    /// Greatest median of the counting points.
    pub fn peak(&self) -> Option<f64> {
        self.counted().map(|point| point.median).max_by(f64::total_cmp)
    }
}

impl Plot<'_> {
    /// Returns the figure, with a bar from the least to the greatest repeat of each point.
    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        // the library's errors borrow their context
        self.draw(&mut svg).map_err(|error| anyhow!("Plotting {:?} failed: {error}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error + '_>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let most = |of: fn(&LinePoint) -> f64| {
            let values = self.lines.iter().flat_map(|line| &line.points).map(of);
            1.05 * values.fold(1.0, f64::max)
        };
        let (area, legend) = root.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..most(|point| point.x), 0.0..most(|point| point.greatest))
            .map_err(|error| error.to_string())?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x).y_desc(self.y).draw().map_err(|error| error.to_string())?;
        for ((number, Line { name, points }), row) in self.lines.iter().enumerate().zip(2..) {
            let colour = Palette99::pick(number).to_rgba();
            let y = row * LEGEND_LINE;
            let sample = PathElement::new([(0, y), (18, y)], colour.stroke_width(2));
            legend.draw(&sample).map_err(|error| error.to_string())?;
            let name = Text::new(name.as_str(), (24, y - 6), ("sans-serif", 12));
            legend.draw(&name).map_err(|error| error.to_string())?;
            let medians = points.iter().map(|point| (point.x, point.median));
            chart
                .draw_series(LineSeries::new(medians, colour.stroke_width(2)))
                .map_err(|error| error.to_string())?;
            let bars = points.iter().map(|point| {
                PathElement::new([(point.x, point.least), (point.x, point.greatest)], colour.stroke_width(1))
            });
            chart.draw_series(bars).map_err(|error| error.to_string())?;
            let dots = points.iter().map(|point| Circle::new((point.x, point.median), 3, colour.filled()));
            chart.draw_series(dots).map_err(|error| error.to_string())?;
            let hollow = points.iter().filter(|point| !point.counts).map(|point| (point.x, point.median));
            let rings = hollow.clone().map(|at| Circle::new(at, 4, WHITE.filled()));
            chart.draw_series(rings).map_err(|error| error.to_string())?;
            let rings = hollow.map(|at| Circle::new(at, 4, colour.stroke_width(2)));
            chart.draw_series(rings).map_err(|error| error.to_string())?;
        }
        root.present().map_err(|error| error.to_string())?;
        Ok(())
    }
}
