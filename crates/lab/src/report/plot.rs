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
/// Height of a row of names below a plot.
const NAMES_HEIGHT: u32 = 18;
/// Letters of a name for which there is room where names stand in so many columns.
const NAME_COLUMNS: [(usize, usize); 3] = [(4, 20), (3, 28), (2, 45)];
/// Points of a line from which on they are not marked.
const MANY: usize = 25;
const BARS_SIZE: (u32, u32) = (640, 320);
const FONT: &str = "sans-serif";
const TITLE_SIZE: u32 = 16;
const NAME_SIZE: u32 = 15;
/// Distance of the names below a plot from its left border.
const NAMES_LEFT: usize = 74;
/// Colours that the colour-blind tell apart too, in the order of the series. Those of further series are computed.
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(110, 110, 110),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
];
/// Share of a turn between the hues of two computed colours: the golden angle, so that no two of them coincide.
const GOLDEN_TURN: f64 = 0.381_966;
/// Mean width of a letter as a share of the font's size; titles and names that are wider are set smaller.
const LETTER: f64 = 0.55;
/// Smallest size of a font.
const LEAST_SIZE: u32 = 9;
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
        let names = Names(self.series.iter().map(|(name, _)| name.as_str()).collect());
        let root = SVGBackend::new(path, (LINES_SIZE.0, LINES_SIZE.1 + names.height())).into_drawing_area();
        root.fill(&WHITE)?;
        let (plot, below) = root.split_vertically(LINES_SIZE.1);
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
        names.draw(&below)?;
        Ok(root.present()?)
    }

    fn fill<'a, 'b: 'a, X, Y>(&self, chart: &mut Chart<'a, 'b, X, Y>) -> Result<(), Box<dyn Error>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut mesh = chart.configure_mesh();
        let y = if self.log_y { format!("{}, logarithmic", self.y) } else { self.y.clone() };
        mesh.x_desc(&self.x).y_desc(&y).x_label_formatter(&number).y_label_formatter(&number).draw()?;
        // The first series is the subject. It is drawn last, and on a wider ground, so that no other line hides it.
        for (index, (_, points)) in self.series.iter().enumerate().rev() {
            let mark = if points.len() < MANY { 3 } else { 0 };
            let width = if index == 0 { 3 } else { 2 };
            let line = LineSeries::new(points.iter().copied(), colour(index).stroke_width(width));
            chart.draw_series(line.point_size(mark))?;
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
        let heights = || self.series.iter().flat_map(|(_, heights)| heights.iter().copied());
        let highest = extent(heights().chain([0.0]), 0.1).end;
        let lowest = heights().fold(0.0, f64::min);
        let names = Names(self.series.iter().map(|(name, _)| name.as_str()).collect());
        let root = SVGBackend::new(path, (BARS_SIZE.0, BARS_SIZE.1 + names.height())).into_drawing_area();
        root.fill(&WHITE)?;
        let (plot, below) = root.split_vertically(BARS_SIZE.1);
        let groups = self.groups.len();
        let across = -0.6..groups as f64 - 0.4;
        let mut chart = builder(&plot, &self.title)?.build_cartesian_2d(across, lowest..highest)?;
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
        for (index, (_, heights)) in self.series.iter().enumerate() {
            let colour = colour(index);
            let bars = heights.iter().take(groups).enumerate().map(|(group, &height)| {
                let left = group as f64 - GROUP / 2.0 + index as f64 * width;
                Rectangle::new([(left, 0.0), (left + width, height)], colour.filled())
            });
            chart.draw_series(bars)?;
        }
        drop(chart);
        names.draw(&below)?;
        Ok(root.present()?)
    }
}

/// The names of the series, which are below the plot so that they hide nothing of it.
struct Names<'a>(Vec<&'a str>);

impl Names<'_> {
    /// In how many columns they have room.
    fn columns(&self) -> usize {
        let longest = self.0.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        NAME_COLUMNS.into_iter().find(|&(_, letters)| longest <= letters).map_or(1, |(columns, _)| columns)
    }

    fn height(&self) -> u32 {
        self.0.len().div_ceil(self.columns()) as u32 * NAMES_HEIGHT + NAMES_HEIGHT / 2
    }

    /// Writes them by rows.
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        let columns = self.columns();
        let width = (area.dim_in_pixel().0 as usize - NAMES_LEFT) / columns;
        for (index, name) in self.0.iter().enumerate() {
            let x = (NAMES_LEFT + index % columns * width) as i32;
            let y = (index / columns) as i32 * NAMES_HEIGHT as i32 + NAMES_HEIGHT as i32 / 2;
            area.draw(&PathElement::new([(x, y), (x + 14, y)], colour(index).stroke_width(3)))?;
            let (shown, size) = fitted(name, NAME_SIZE, width.saturating_sub(24) as u32);
            let style = (FONT, size).into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw_text(&shown, &style, (x + 20, y))?;
        }
        Ok(())
    }
}

/// Returns a text and the size of its font so that it is about as wide as `width` pixels at most.
fn fitted(text: &str, size: u32, width: u32) -> (String, u32) {
    let letters = text.chars().count();
    let room = |size: u32| (f64::from(width) / (LETTER * f64::from(size))) as usize;
    let size = (LEAST_SIZE..=size).rev().find(|&size| letters <= room(size)).unwrap_or(LEAST_SIZE);
    if letters <= room(size) {
        return (text.to_owned(), size);
    }
    let kept: String = text.chars().take(room(size).saturating_sub(1)).collect();
    (format!("{kept}…"), size)
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
    let (title, size) = fitted(title, TITLE_SIZE, root.dim_in_pixel().0 - 20);
    builder.caption(title, (FONT, size)).margin(10).x_label_area_size(36).y_label_area_size(64);
    // Half of the last label of the horizontal axis is beyond its end.
    builder.margin_right(28);
    Ok(builder)
}

/// Returns the colour of a series; no two series have the same.
fn colour(index: usize) -> RGBColor {
    if let Some(&colour) = COLOURS.get(index) {
        return colour;
    }
    let further = index - COLOURS.len();
    let lightness = [0.30, 0.62][further % 2];
    let HSLColor(hue, saturation, lightness) = HSLColor((further as f64 * GOLDEN_TURN).fract(), 0.75, lightness);
    let (red, green, blue) = HSLColor(hue, saturation, lightness).to_backend_color().rgb;
    RGBColor(red, green, blue)
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
    for (unit, letter) in [(1e9, "G"), (1e6, "M")] {
        if value.abs() >= unit {
            return number(&(value / unit)) + letter;
        }
    }
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
        assert_eq!([1.5e6, 2e7, 3.25e9].map(|value| number(&value)), ["1.5M", "20M", "3.25G"], "they have room");
    }

    #[test]
    fn no_two_series_have_the_same_colour() {
        let colours: Vec<RGBColor> = (0..40).map(colour).collect();
        let apart = |one: &RGBColor, other: &RGBColor| {
            let of = |a: u8, b: u8| u32::from(a.abs_diff(b));
            of(one.0, other.0) + of(one.1, other.1) + of(one.2, other.2)
        };
        for (at, one) in colours.iter().enumerate() {
            assert!(colours[..at].iter().all(|other| apart(one, other) >= 10), "series {at} has {one:?}");
        }
    }

    #[test]
    fn the_first_series_is_drawn_over_the_others() {
        let same = vec![(0.0, 1.0), (1.0, 2.0)];
        let series = ["ours", "other"].map(|name| (name.to_owned(), same.clone())).to_vec();
        let svg = drawn(|path| Lines { series, ..Lines::default() }.write_svg(path));
        let place = |colour: &str| svg.rfind(&format!("<polyline fill=\"none\" opacity=\"1\" stroke=\"{colour}\""));
        let names = svg.find("ours").expect("it is named");
        let last = |colour: &str| svg[..names].rfind(&format!("stroke=\"{colour}\"")).expect("it is drawn");
        assert!(place("#1F77B4").is_some() && last("#1F77B4") > last("#FF7F0E"), "{svg}");
    }

    #[test]
    fn long_titles_and_names_are_set_smaller_and_then_cut() {
        assert_eq!(fitted("short", 16, 700), ("short".to_owned(), 16));
        let (whole, size) = fitted(&"x".repeat(100), 16, 700);
        assert_eq!((whole.len(), size), (100, 12));
        let (cut, size) = fitted(&"x".repeat(400), 16, 700);
        assert!(size == 9 && cut.ends_with('…') && cut.chars().count() < 145, "{cut}");
    }

    #[test]
    fn a_logarithmic_axis_says_so() {
        let svg = drawn(|path| lines(true, &[(0.25, 3.0), (0.6, 8.0)]).write_svg(path));
        assert!(svg.contains("p99 (ms), logarithmic"), "{svg}");
    }
}
