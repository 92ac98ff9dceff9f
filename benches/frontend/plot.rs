//! The table as a picture: bars of requests per second, server beside server.

use std::{error::Error, path::Path};

use plotters::prelude::*;

use crate::{CONCURRENCIES, report::Row, report::median, servers::Kind};

const SIZE: (u32, u32) = (640, 320);
/// Widths in units of the distance between two concurrencies.
const BAR: f64 = 0.32;

/// Writes the picture as SVG.
pub fn write_svg(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let series = [
        ("bare tonic echo", Kind::Echo, RGBColor(160, 160, 160), -BAR),
        ("paternoster", Kind::Paternoster, RGBColor(31, 119, 180), 0.0),
    ];
    let rate = |kind, concurrency| median(rows, kind, concurrency).rate;
    let highest = CONCURRENCIES.iter().flat_map(|&at| series.map(|(_, kind, ..)| rate(kind, at))).fold(0.0, f64::max);

    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("small requests over gRPC, closed loop, two cores", ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.6..CONCURRENCIES.len() as f64 - 0.4, 0.0..highest * 1.1)?;
    let concurrency = |place: &f64| {
        let whole = (place.round() - place).abs() < 1e-6 && *place >= 0.0;
        let at = CONCURRENCIES.get(*place as usize).filter(|_| whole);
        at.map_or_else(String::new, usize::to_string)
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(CONCURRENCIES.len() + 1)
        .x_label_formatter(&concurrency)
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .x_desc("requests in flight")
        .y_desc("requests per second")
        .draw()?;
    for (name, kind, colour, offset) in series {
        let bars = CONCURRENCIES.iter().enumerate().map(|(place, &at)| {
            let left = place as f64 + offset;
            Rectangle::new([(left, 0.0), (left + BAR, rate(kind, at))], colour.filled())
        });
        chart
            .draw_series(bars)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}
