//! Prints the figures, for people and for programs.

use std::{
    io::{self, Write},
    path::Path,
};

use paternoster_bench::{
    compare::{LoadPoint, Outcome, Ratio},
    load::LoadFigures,
};
use paternoster_lab::report::{
    self,
    plot::{Lines, PlotError},
};
use serde_json::{Value, json};

use crate::cli::table::{Table, terminal_width};

const NS_PER_MS: f64 = 1e6;
const NS_PER_US: f64 = 1e3;
/// A figure of a run.
type Figure = fn(&LoadFigures) -> f64;

/// The figures that are compared with the first policy.
const RATIOS: [(&str, Figure); 3] = [("mean ×", mean_ms), ("p99 ×", p99_ms), ("requests/s ×", LoadFigures::throughput)];
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// All figures of a run.
#[derive(Clone, Debug)]
pub(super) struct Results {
    pub machine: String,
    /// Description of what was measured.
    pub setting: String,
    /// Mean length of the requests, if they have lengths.
    pub mean_length: Option<f64>,
    /// Peak in requests per second.
    pub peak: Option<f64>,
    pub objective_ms: Option<f64>,
    /// Why the energy of cards was not measured; `None` if it was, or if no card was used.
    pub energy_not_measured: Option<String>,
    pub points: Vec<(LoadPoint, Vec<Outcome>)>,
}

impl Results {
    /// Returns the numbers of wrong answers and failed requests, and the first of them; `None` if there were none.
    pub(super) fn faults(&self) -> Option<(u64, u64, String)> {
        let outcomes = self.points.iter().flat_map(|(_, outcomes)| outcomes);
        let total = outcomes.fold(LoadFigures::default(), |mut total, outcome| {
            total.merge(&outcome.total());
            total
        });
        (total.errors() > 0).then(|| (total.wrong, total.failed, total.first_fault.unwrap_or_default()))
    }

    pub(super) fn print(&self, as_json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if as_json {
            return writeln!(out, "{:#}", self.json());
        }
        writeln!(out, "{}; on {}", self.setting, self.machine)?;
        if let Some(peak) = self.peak {
            writeln!(out, "peak of the first policy: {peak:.1} requests/s")?;
        }
        let table = self.table().within(terminal_width(&out));
        writeln!(out, "{table}")?;
        if self.points.iter().any(|(_, outcomes)| outcomes.len() > 1) {
            writeln!(out, "× is the median over the rounds of the ratio to the first policy (least–greatest)")?;
        }
        if let Some(reason) = &self.energy_not_measured {
            writeln!(out, "energy was not measured: {reason}")?;
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let is_compared = self.points.iter().any(|(_, outcomes)| outcomes.len() > 1);
        let goodput = self.objective_ms.map(|ms| format!("in {ms} ms/s"));
        let mut titles = vec!["load", "policy", "requests/s"];
        titles.extend(goodput.as_deref());
        titles.push("mean ms");
        titles.extend(QUANTILES.map(|(name, _)| name));
        let has_energy = self.points.iter().flat_map(|(_, outcomes)| outcomes).any(|one| one.total().joules.is_some());
        titles.extend(has_energy.then_some("J/request"));
        titles.push("errors");
        titles.extend(RATIOS.iter().map(|(name, _)| *name).filter(|_| is_compared));
        let mut table = Table::new(&titles).with_keys(2).with_text(&["load", "policy"]);
        for (point, outcomes) in &self.points {
            for (number, outcome) in outcomes.iter().enumerate() {
                let total = outcome.total();
                let mut cells = vec![point.name.clone(), outcome.name.clone(), digits(total.throughput())];
                cells.extend(self.goodput(&total).map(digits));
                cells.push(digits(mean_ms(&total)));
                cells.extend(QUANTILES.map(|(_, quantile)| digits(quantile_ms(&total, quantile))));
                if has_energy {
                    cells.push(total.joules_per_request().map(digits).unwrap_or_default());
                }
                cells.push(total.errors().to_string());
                if number > 0 {
                    let ratios = RATIOS.map(|(_, figure)| outcome.ratio(&outcomes[0], figure));
                    cells.extend(ratios.map(|ratio| ratio.map(words).unwrap_or_default()));
                }
                table.row(cells);
            }
        }
        table
    }

    fn goodput(&self, figures: &LoadFigures) -> Option<f64> {
        self.objective_ms.map(|ms| figures.goodput((ms * NS_PER_MS) as u64))
    }

    pub(super) fn json(&self) -> Value {
        let points = self.points.iter().map(|(point, outcomes)| {
            let policies = outcomes.iter().map(|outcome| {
                let ratio = |figure: Figure| {
                    let ratio = outcome.ratio(&outcomes[0], figure);
                    let object = |Ratio { median, least, greatest }: Ratio| {
                        json!({ "median": median, "least": least, "greatest": greatest })
                    };
                    ratio.map(object)
                };
                let rounds: Vec<Value> = outcome.rounds.iter().map(|figures| self.figures_json(figures)).collect();
                json!({
                    "policy": outcome.name,
                    "total": self.figures_json(&outcome.total()),
                    "rounds": rounds,
                    "to_the_first": {
                        "mean": ratio(mean_ms),
                        "p99": ratio(p99_ms),
                        "requests_per_s": ratio(LoadFigures::throughput),
                    },
                })
            });
            json!({ "load": point.name, "at": point.at, "policies": policies.collect::<Vec<_>>() })
        });
        json!({
            "machine": self.machine,
            "setting": self.setting,
            "mean_length": self.mean_length,
            "peak_requests_per_s": self.peak,
            "objective_ms": self.objective_ms,
            "energy_not_measured": self.energy_not_measured,
            "loads": points.collect::<Vec<_>>(),
        })
    }

    fn figures_json(&self, figures: &LoadFigures) -> Value {
        let mut object = json!({
            "requests": figures.latencies.count(),
            "requests_per_s": figures.throughput(),
            "goodput_per_s": self.goodput(figures),
            "mean_ms": mean_ms(figures),
            "wrong": figures.wrong,
            "failed": figures.failed,
            "seconds": figures.seconds,
            "joules": figures.joules,
            "joules_per_request": figures.joules_per_request(),
        });
        for (name, quantile) in QUANTILES {
            object[format!("{name}_ms")] = quantile_ms(figures, quantile).into();
        }
        object
    }

    pub(super) fn write_csv(&self, path: &Path) -> io::Result<()> {
        let titles = [
            "load",
            "at",
            "policy",
            "round",
            "requests",
            "requests_per_s",
            "goodput_per_s",
            "mean_ms",
            "p50_ms",
            "p90_ms",
            "p99_ms",
            "p99.9_ms",
            "wrong",
            "failed",
            "joules_per_request",
            "machine",
            "setting",
        ];
        let rows = self.points.iter().flat_map(|(point, outcomes)| {
            let of_point = outcomes.iter().flat_map(move |outcome| {
                let rounds = outcome.rounds.iter().enumerate();
                rounds.map(move |(round, figures)| self.csv_row(point, &outcome.name, round, figures))
            });
            of_point.collect::<Vec<_>>()
        });
        report::write_csv(path, &titles, rows)
    }

    pub(super) fn write_requests_csv(&self, path: &Path) -> io::Result<()> {
        let rows = self.points.iter().flat_map(|(point, outcomes)| {
            outcomes.iter().flat_map(move |outcome| {
                outcome.rounds.iter().enumerate().flat_map(move |(round, figures)| {
                    figures.each.iter().map(move |request| {
                        let (sent, latency_us) = (request.sent_s, request.latency_ns as f64 / NS_PER_US);
                        let head = [point.name.clone(), outcome.name.clone(), (round + 1).to_string()];
                        head.into_iter().chain([format!("{sent:.6}"), format!("{latency_us:.1}")]).collect::<Vec<_>>()
                    })
                })
            })
        });
        report::write_csv(path, &["load", "policy", "round", "sent_s", "latency_us"], rows)
    }

    fn csv_row(&self, point: &LoadPoint, policy: &str, round: usize, figures: &LoadFigures) -> Vec<String> {
        let quantiles = QUANTILES.map(|(_, quantile)| digits(quantile_ms(figures, quantile)));
        let head = [
            point.name.clone(),
            point.at.to_string(),
            policy.to_owned(),
            (round + 1).to_string(),
            figures.latencies.count().to_string(),
            digits(figures.throughput()),
            self.goodput(figures).map(digits).unwrap_or_default(),
            digits(mean_ms(figures)),
        ];
        let tail = [
            figures.wrong.to_string(),
            figures.failed.to_string(),
            figures.joules_per_request().map(digits).unwrap_or_default(),
            self.machine.clone(),
            self.setting.clone(),
        ];
        head.into_iter().chain(quantiles).chain(tail).collect()
    }

    /// Plots mean and 99th percentile of each policy over the loads. The best window is one line, even if it is a
    /// different window at each load.
    pub(super) fn write_svg(&self, path: &Path) -> Result<(), PlotError> {
        let policies = self.points.first().map_or(0, |(_, outcomes)| outcomes.len());
        let line = |policy: usize, figure: Figure| {
            let points = self
                .points
                .iter()
                .filter_map(|(point, outcomes)| Some((point.at, figure(&outcomes.get(policy)?.total()))));
            points.collect::<Vec<_>>()
        };
        let series = (0..policies).flat_map(|policy| {
            let names: Vec<&str> = self.points.iter().map(|(_, outcomes)| outcomes[policy].name.as_str()).collect();
            let same = names.windows(2).all(|pair| pair[0] == pair[1]);
            let name = if same { names[0] } else { "window (best at each load)" };
            [(format!("{name}: mean"), line(policy, mean_ms)), (format!("{name}: p99"), line(policy, p99_ms))]
        });
        let x = match self.points.first() {
            Some((point, _)) if point.name.ends_with("of peak") => "load, as a share of the peak of the first policy",
            Some((point, _)) if point.name.ends_with("in flight") => "requests in flight",
            _ => "mean rate (requests/s)",
        };
        let lines = Lines {
            title: format!("latency on {}", self.machine),
            x: x.to_owned(),
            y: "latency (ms)".to_owned(),
            log_y: true,
            series: series.collect(),
        };
        lines.write_svg(path)
    }
}

fn mean_ms(figures: &LoadFigures) -> f64 {
    figures.latencies.mean_ns() / NS_PER_MS
}

fn quantile_ms(figures: &LoadFigures, quantile: f64) -> f64 {
    figures.latencies.quantile_ns(quantile) as f64 / NS_PER_MS
}

fn p99_ms(figures: &LoadFigures) -> f64 {
    quantile_ms(figures, 0.99)
}

/// Formats three significant digits, or all digits before the decimal point.
fn digits(value: f64) -> String {
    let after = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    if value > 0.0 && value < 1.0 { format!("{value:.3}") } else { format!("{value:.after$}") }
}

fn words(Ratio { median, least, greatest }: Ratio) -> String {
    format!("{median:.2} ({least:.2}–{greatest:.2})")
}

#[cfg(test)]
mod tests {
    use paternoster_bench::load::LoadPattern;
    use paternoster_lab::workload::Arrivals;

    use super::*;

    fn outcome(name: &str, latencies_ms: &[u64], wrong: u64) -> Outcome {
        let rounds = latencies_ms.iter().map(|ms| {
            let first_fault = (wrong > 0).then(|| "wrong answer: y differs".to_owned());
            let mut figures = LoadFigures { seconds: 0.5, wrong, first_fault, ..LoadFigures::default() };
            figures.latencies.record(ms * 1_000_000);
            figures
        });
        Outcome { name: name.to_owned(), rounds: rounds.collect() }
    }

    fn results(outcomes: Vec<Outcome>, objective_ms: Option<f64>) -> Results {
        let load = LoadPattern::Open(Arrivals::Poisson { rate: 2.0 });
        Results {
            machine: "2 cores".to_owned(),
            setting: "model 'm'".to_owned(),
            mean_length: Some(22.0),
            peak: Some(4.0),
            objective_ms,
            energy_not_measured: None,
            points: vec![(LoadPoint { name: "0.5 of peak".to_owned(), at: 0.5, load }, outcomes)],
        }
    }

    fn two() -> Results {
        results(vec![outcome("window", &[100, 200], 0), outcome("lazy", &[50, 300], 1)], Some(120.0))
    }

    #[test]
    fn the_table_sets_policies_beside_the_first() {
        let expected = "\
+-------------+--------+------------+-------------+---------+------+-----+-----+-------+--------+------------------+
| load        | policy | requests/s | in 120 ms/s | mean ms | p50  | p90 | p99 | p99.9 | errors | mean ×           |
+-------------+--------+------------+-------------+---------+------+-----+-----+-------+--------+------------------+
| 0.5 of peak | window | 2.00       | 1.00        | 150     | 100  | 200 | 200 | 200   | 0      |                  |
| 0.5 of peak | lazy   | 2.00       | 1.00        | 175     | 50.0 | 300 | 300 | 300   | 2      | 1.00 (0.50–1.50) |
+-------------+--------+------------+-------------+---------+------+-----+-----+-------+--------+------------------+
+--------+------------------+------------------+
| policy | p99 ×            | requests/s ×     |
+--------+------------------+------------------+
| window |                  |                  |
| lazy   | 1.00 (0.50–1.50) | 1.00 (1.00–1.00) |
+--------+------------------+------------------+";
        assert_eq!(two().table().within(Some(116)), expected);
    }

    #[test]
    fn one_policy_needs_no_ratios() {
        let table = results(vec![outcome("window", &[100], 0)], None).table().to_string();
        assert!(!table.contains('×') && !table.contains("ms/s"), "{table}");
    }

    #[test]
    fn joules_of_a_request_are_shown_where_energy_is_measured() {
        let mut measured = outcome("window", &[100, 200], 0);
        measured.rounds.iter_mut().for_each(|figures| figures.joules = Some(3.0));
        let shown = results(vec![measured, outcome("lazy", &[50], 0)], None);
        let table = shown.table().to_string();
        assert!(table.contains("| J/request |") && table.contains("| 3.00      |"), "{table}");
        let json = shown.json();
        assert_eq!(json["loads"][0]["policies"][0]["total"]["joules"], 6.0);
        assert_eq!(json["loads"][0]["policies"][1]["total"]["joules_per_request"], Value::Null);
    }

    #[test]
    fn faults_are_those_of_all_runs() {
        assert_eq!(two().faults(), Some((2, 0, "wrong answer: y differs".to_owned())));
        assert_eq!(results(vec![outcome("window", &[1], 0)], None).faults(), None);
    }

    #[test]
    fn programs_get_every_round() {
        let json = two().json();
        let lazy = &json["loads"][0]["policies"][1];
        assert_eq!(lazy["rounds"].as_array().map(Vec::len), Some(2));
        assert_eq!(lazy["total"]["requests"], 2);
        assert_eq!(lazy["to_the_first"]["mean"]["least"], 0.5);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.csv");
        two().write_csv(&path).expect("it is written");
        let written = std::fs::read_to_string(&path).expect("it is there");
        assert_eq!(written.lines().count(), 1 + 4, "titles and four runs");
        assert!(written.contains("\n0.5 of peak,0.5,lazy,2,1,2.00,0.00,300,"), "{written}");
    }

    #[test]
    fn the_plot_has_two_lines_a_policy() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.svg");
        two().write_svg(&path).expect("it is drawn");
        let drawn = std::fs::read_to_string(&path).expect("it is there");
        for name in ["window: mean", "window: p99", "lazy: mean", "lazy: p99", "share of the peak"] {
            assert!(drawn.contains(name), "'{name}' is missing");
        }
    }
}
