//! Figures as SVG.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use serde::Serialize;

const SIZE: (u32, u32) = (720, 480);

/// Line of a figure: results of one system, point by point.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

#[derive(Debug)]
pub(super) struct Figure<'a> {
    pub(super) file: &'static str,
    pub(super) title: &'static str,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) lines: &'a [Line],
}

/// Writes a figure to a folder, which is created if necessary.
pub(super) fn write(folder: &Path, figure: &Figure<'_>) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("Making {} failed", folder.display()))?;
    let path = folder.join(figure.file);
    // the library's errors borrow their context
    draw(&path, figure).map_err(|why| anyhow!("Plotting {} failed: {why}", path.display()))
}

fn draw(path: &Path, figure: &Figure<'_>) -> Result<(), String> {
    let sentence = |why: &dyn std::fmt::Display| why.to_string();
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|why| sentence(&why))?;
    let most = |of: fn(&(f64, f64)) -> f64| {
        let values = figure.lines.iter().flat_map(|line| &line.points).map(of);
        1.05 * values.fold(1.0, f64::max)
    };
    let mut chart = ChartBuilder::on(&root)
        .caption(figure.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..most(|point| point.0), 0.0..most(|point| point.1))
        .map_err(|why| sentence(&why))?;
    chart.configure_mesh().x_desc(figure.x).y_desc(figure.y).draw().map_err(|why| sentence(&why))?;
    for (number, Line { name, points }) in figure.lines.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3))
            .map_err(|why| sentence(&why))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(|why| sentence(&why))?;
    root.present().map_err(|why| sentence(&why))
}
