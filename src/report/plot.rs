//! Plots as SVG files.

use std::{
    error::Error,
    ops::Range,
    path::{Path, PathBuf},
};

use plotters::{
    coord::{Shift, combinators::BindKeyPoints, ranged1d::ValueFormatter},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// Width and height of a plot of lines, the names of its series left out.
const LINES_SIZE: (u32, u32) = (720, 400);
/// Height of a row of names below a plot of lines.
const NAMES_HEIGHT: u32 = 18;
/// Letters of a name for which there is room where names stand in so many columns.
const NAME_COLUMNS: [(usize, usize); 3] = [(4, 20), (3, 28), (2, 45)];
/// Points of a line from which on they are not marked.
const MANY: usize = 25;
const BARS_SIZE: (u32, u32) = (640, 320);
const FONT: &str = "sans-serif";
const TITLE_SIZE: u32 = 16;
const NAME_SIZE: u32 = 15;
/// Distance of the names below a plot of lines from its left border.
const NAMES_LEFT: usize = 74;
/// Colours that the colour-blind tell apart too, in the order of the series; they come again after the last.
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(160, 160, 160),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
];
/// Width of all bars of one group, where groups are 1 apart.
const GROUP: f64 = 0.64;

type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

/// Why a plot could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw '{}': {reason}", path.display())]
pub struct PlotError {
    /// The file.
    pub path: PathBuf,
    /// What went wrong.
    pub reason: String,
}

/// Lines over a common axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// What is above the plot.
    pub title: String,
    /// What is below the horizontal axis, with its unit.
    pub x: String,
    /// What is beside the vertical axis, with its unit.
    pub y: String,
    /// Whether the vertical axis is logarithmic; points at or below zero are then left out.
    pub log_y: bool,
    /// Each line's name, and its points in the order in which they are joined.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Bars in groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// What is above the plot.
    pub title: String,
    /// What is below the horizontal axis.
    pub x: String,
    /// What is beside the vertical axis, with its unit.
    pub y: String,
    /// The groups' names.
    pub groups: Vec<String>,
    /// Each series' name, and its height in each group.
    pub series: Vec<(String, Vec<f64>)>,
}

impl Lines {
    /// Writes the plot; points that are no numbers are left out.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_svg(&self, path: &Path) -> Result<(), PlotError> {
        let mut drawn = self.clone();
        for (_, points) in &mut drawn.series {
            points.retain(|&(x, y)| x.is_finite() && y.is_finite() && (!self.log_y || y > 0.0));
        }
        drawn.draw(path).map_err(|reason| PlotError { path: path.to_owned(), reason: reason.to_string() })
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let points = || self.series.iter().flat_map(|(_, points)| points);
        let xs = extent(points().map(|point| point.0), 0.02);
        let columns = self.name_columns();
        let rows = self.series.len().div_ceil(columns) as u32;
        let size = (LINES_SIZE.0, LINES_SIZE.1 + rows * NAMES_HEIGHT + NAMES_HEIGHT / 2);
        let root = SVGBackend::new(path, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (plot, names) = root.split_vertically(LINES_SIZE.1);
        let mut builder = builder(&plot, &self.title)?;
        if self.log_y {
            let Range { start, end } = extent(points().map(|point| point.1.log10()), 0.05);
            let (least, greatest) = (10_f64.powf(start), 10_f64.powf(end));
            let ys = (least..greatest).log_scale().with_key_points(log_ticks(least, greatest));
            self.fill(&mut builder.build_cartesian_2d(xs, ys)?)?;
        } else {
            let top = extent(points().map(|point| point.1), 0.05).end;
            let bottom = points().map(|point| point.1).fold(0.0, f64::min);
            self.fill(&mut builder.build_cartesian_2d(xs, bottom..top)?)?;
        }
        self.name_series(&names, columns)?;
        Ok(root.present()?)
    }

    /// In how many columns the names of the series have room.
    fn name_columns(&self) -> usize {
        let longest = self.series.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        NAME_COLUMNS.into_iter().find(|&(_, letters)| longest <= letters).map_or(1, |(columns, _)| columns)
    }

    /// Writes the names of the series below the plot, by rows.
    fn name_series(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, columns: usize) -> Result<(), Box<dyn Error>> {
        let width = (LINES_SIZE.0 as usize - NAMES_LEFT) / columns;
        for (index, (name, _)) in self.series.iter().enumerate() {
            let x = (NAMES_LEFT + index % columns * width) as i32;
            let y = (index / columns) as i32 * NAMES_HEIGHT as i32 + NAMES_HEIGHT as i32 / 2;
            area.draw(&PathElement::new([(x, y), (x + 14, y)], colour(index).stroke_width(2)))?;
            let style = (FONT, NAME_SIZE).into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw_text(name, &style, (x + 20, y))?;
        }
        Ok(())
    }

    fn fill<'a, 'b: 'a, X, Y>(&self, chart: &mut Chart<'a, 'b, X, Y>) -> Result<(), Box<dyn Error>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&self.x).y_desc(&self.y).x_label_formatter(&number).y_label_formatter(&number).draw()?;
        for (index, (_, points)) in self.series.iter().enumerate() {
            let mark = if points.len() < MANY { 3 } else { 0 };
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour(index).stroke_width(2)).point_size(mark))?;
        }
        Ok(())
    }
}

impl Bars {
    /// Writes the plot.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_svg(&self, path: &Path) -> Result<(), PlotError> {
        self.draw(path).map_err(|reason| PlotError { path: path.to_owned(), reason: reason.to_string() })
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let highest = extent(self.series.iter().flat_map(|(_, heights)| heights.iter().copied()), 0.1).end;
        let root = SVGBackend::new(path, BARS_SIZE).into_drawing_area();
        let groups = self.groups.len();
        let mut chart = builder(&root, &self.title)?.build_cartesian_2d(-0.6..groups as f64 - 0.4, 0.0..highest)?;
        let name_of = |place: &f64| {
            let whole = (place.round() - place).abs() < 1e-6 && *place >= -1e-6;
            self.groups.get(place.round() as usize).filter(|_| whole).cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(groups + 1)
            .x_label_formatter(&name_of)
            .y_label_formatter(&number)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .draw()?;
        let width = GROUP / self.series.len().max(1) as f64;
        for (index, (name, heights)) in self.series.iter().enumerate() {
            let colour = colour(index);
            let bars = heights.iter().take(groups).enumerate().map(|(group, &height)| {
                let left = group as f64 - GROUP / 2.0 + index as f64 * width;
                Rectangle::new([(left, 0.0), (left + width, height)], colour.filled())
            });
            chart
                .draw_series(bars)?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
        }
        name_series(&mut chart)?;
        drop(chart);
        Ok(root.present()?)
    }
}

fn builder<'a, 'b>(
    root: &'a DrawingArea<SVGBackend<'b>, Shift>,
    title: &str,
) -> Result<ChartBuilder<'a, 'a, SVGBackend<'b>>, Box<dyn Error>>
where
    'b: 'a,
{
    root.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(root);
    builder.caption(title, (FONT, TITLE_SIZE)).margin(10).x_label_area_size(36).y_label_area_size(64);
    Ok(builder)
}

fn name_series<'a, 'b: 'a, X, Y>(chart: &mut Chart<'a, 'b, X, Y>) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let mut names = chart.configure_series_labels();
    Ok(names.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?)
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// From the least to the greatest, with this share of their distance more on both sides; never empty.
fn extent(values: impl Iterator<Item = f64>, more: f64) -> Range<f64> {
    let (least, greatest) = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, greatest), value| (least.min(value), greatest.max(value)));
    if least > greatest {
        return 0.0..1.0;
    }
    let more = if greatest > least { (greatest - least) * more } else { (greatest.abs() * more).max(0.5) };
    least - more..greatest + more
}

/// Returns the labelled values of a logarithmic axis. A long axis has only powers of ten, a shorter one also two and
/// five times each, and the shortest has round numbers at equal distances. Every axis has labels, and none overlap.
fn log_ticks(least: f64, greatest: f64) -> Vec<f64> {
    let decades = least.log10().floor() as i32..=greatest.log10().ceil() as i32;
    let ticks = |factors: &[f64]| -> Vec<f64> {
        let all = decades.clone().flat_map(|decade| factors.iter().map(move |factor| factor * 10_f64.powi(decade)));
        all.filter(|tick| (least..=greatest).contains(tick)).collect()
    };
    let powers = ticks(&[1.0]);
    if powers.len() >= 4 {
        let each = powers.len().div_ceil(10);
        return powers.into_iter().step_by(each).collect();
    }
    let halves = ticks(&[1.0, 2.0, 5.0]);
    if halves.len() >= 3 {
        return halves;
    }
    let apart = (greatest - least) / 4.0;
    let decade = 10_f64.powf(apart.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade).into_iter().find(|&step| step >= apart);
    let step = step.unwrap_or(apart);
    let first = (least / step).ceil();
    (0..5).map(|place| (first + f64::from(place)) * step).filter(|&tick| tick <= greatest).collect()
}

/// A number as short as an axis wants it.
fn number(value: &f64) -> String {
    let digits = match value.abs() {
        1000.0.. => 0,
        0.1.. => 2,
        small if small > 0.0 => (1.0 - small.log10().floor()).min(9.0) as usize,
        _ => 0,
    };
    let shown = format!("{value:.digits$}");
    if digits == 0 { shown } else { shown.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(write: impl FnOnce(&Path) -> Result<(), PlotError>) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plot.svg");
        write(&path).expect("it is written");
        std::fs::read_to_string(&path).expect("it is there")
    }

    fn lines(log_y: bool, points: &[(f64, f64)]) -> Lines {
        Lines {
            title: "latency by load".to_owned(),
            x: "load".to_owned(),
            y: "p99 (ms)".to_owned(),
            log_y,
            series: vec![("window".to_owned(), points.to_vec()), ("lazy".to_owned(), vec![(0.5, 2.0)])],
        }
    }

    #[test]
    fn a_plot_of_lines_names_its_axes_and_series() {
        for log_y in [false, true] {
            let svg = drawn(|path| lines(log_y, &[(0.25, 10.0), (0.6, 20.0), (0.9, 400.0)]).write_svg(path));
            for word in ["latency by load", "load", "p99 (ms)", "window", "lazy"] {
                assert!(svg.contains(word), "'{word}' is missing");
            }
            assert!(svg.matches("<polyline").count() >= 2, "there is a line for each series");
        }
    }

    #[test]
    fn names_of_series_stand_below_the_plot_as_many_in_a_row_as_have_room() {
        let height = |letters: usize, series: usize| {
            let name = |number| (format!("{number:0letters$}"), vec![(0.0, 1.0)]);
            let lines = Lines { series: (0..series).map(name).collect(), ..Lines::default() };
            let svg = drawn(|path| lines.write_svg(path));
            let height = svg.split("height=\"").nth(1).and_then(|rest| rest.split('"').next()?.parse::<u32>().ok());
            height.expect("the picture has a height")
        };
        let rows = |rows: u32| 409 + 18 * rows;
        assert_eq!([height(20, 4), height(20, 5), height(45, 5), height(60, 5)], [rows(1), rows(2), rows(3), rows(5)]);
    }

    #[test]
    fn lines_of_many_points_have_no_marks() {
        let points = |count: u32| (0..count).map(|x| (f64::from(x), 1.0)).collect::<Vec<_>>();
        let marks = |count| {
            let lines = Lines { series: vec![("one".to_owned(), points(count))], ..Lines::default() };
            drawn(|path| lines.write_svg(path)).matches("r=\"3\"").count()
        };
        assert_eq!([marks(24), marks(25)], [24, 0]);
    }

    #[test]
    fn points_that_cannot_be_drawn_are_left_out() {
        let hostile = [(0.1, f64::NAN), (f64::INFINITY, 1.0), (0.2, 0.0), (0.3, -1.0), (0.4, 5.0)];
        for (log_y, left) in [(false, 3), (true, 1)] {
            let svg = drawn(|path| lines(log_y, &hostile).write_svg(path));
            assert_eq!(svg.matches("<circle").count(), left + 1, "points of the first line, and one of the second");
        }
        assert!(drawn(|path| Lines::default().write_svg(path)).contains("</svg>"), "nothing at all can be drawn");
    }

    #[test]
    fn a_plot_of_bars_names_its_groups_and_series() {
        let bars = Bars {
            title: "rates".to_owned(),
            x: "requests in flight".to_owned(),
            y: "requests/s".to_owned(),
            groups: vec!["1".to_owned(), "eight".to_owned()],
            series: vec![("echo".to_owned(), vec![10.0, 30.0]), ("server".to_owned(), vec![20.0, 5.0])],
        };
        let svg = drawn(|path| bars.write_svg(path));
        for word in ["rates", "requests in flight", "requests/s", "eight", "echo", "server"] {
            assert!(svg.contains(word), "'{word}' is missing");
        }
        assert!(drawn(|path| Bars::default().write_svg(path)).contains("</svg>"), "nothing at all can be drawn");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = lines(false, &[]).write_svg(Path::new("/nowhere/plot.svg")).expect_err("there is no such folder");
        assert!(error.to_string().contains("'/nowhere/plot.svg'"), "{error}");
    }

    #[test]
    fn a_logarithmic_axis_of_any_length_has_labels_that_do_not_overlap() {
        for (least, greatest) in
            [(3.0, 9.0), (11.0, 14.0), (30.0, 90.0), (8.0, 450.0), (0.9, 20_000.0), (95.0, 8_500.0)]
        {
            let ticks = log_ticks(least, greatest);
            assert!((2..=10).contains(&ticks.len()), "{least} to {greatest}: {ticks:?}");
            let place = |tick: &f64| (tick / least).log10() / (greatest / least).log10();
            let places: Vec<f64> = ticks.iter().map(place).collect();
            assert!(places.windows(2).all(|two| two[1] - two[0] > 0.05), "{least} to {greatest}: {ticks:?}");
            assert!(places.iter().all(|place| (0.0..=1.0).contains(place)), "{least} to {greatest}: {ticks:?}");
        }
        let svg = drawn(|path| lines(true, &[(0.25, 3.0), (0.6, 8.0)]).write_svg(path));
        assert!(["2", "4", "6", "8"].iter().all(|tick| svg.contains(&format!("\n{tick}\n</text>"))), "{svg}");
    }

    #[test]
    fn numbers_on_axes_are_short() {
        assert_eq!(
            [0.0, 0.002, 0.25, 1.0, 2.5, 11.5, 40.0, 12_345.6].map(|value| number(&value)),
            ["0", "0.002", "0.25", "1", "2.5", "11.5", "40", "12346"]
        );
    }
}
