//! How long the engines of the CPU take for one program, and which of them is the fastest.

use paternoster_batching::Ns;
use serde::Serialize;

/// A program measured by several engines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineTable {
    /// The cell; `None` where the program is all of the model.
    pub cell: Option<String>,
    /// The first is what the others are compared with.
    pub engines: Vec<EngineTimes>,
}

/// A program by one engine, in one precision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineTimes {
    /// The engine's name in configurations.
    pub engine: String,
    /// The precision's.
    pub precision: String,
    /// Why it does not run the program; it has no points then.
    pub refused: Option<String>,
    /// The same sizes for every engine that runs it, smaller ones first.
    pub points: Vec<EnginePoint>,
}

/// One size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EnginePoint {
    /// Rows of the batch.
    pub rows: u32,
    /// Length of every padded axis; 0 where there is none.
    pub length: u32,
    /// The time that half of the runs stayed within.
    pub median_ns: Ns,
    /// How many runs were timed.
    pub runs: u32,
    /// The largest difference from the first engine's answers, as a share of the largest of them.
    pub deviation: f64,
}

/// An engine that saves less than this share of the time is not worth a change.
const WORTH: f64 = 0.05;

impl EngineTable {
    /// The fastest engine in fp32, and the fastest in any precision: by the mean of their ratios to the first engine,
    /// as a place in `engines`, with that mean. The first engine itself, with 1, where none is faster by enough.
    pub fn fastest(&self) -> [(usize, f64); 2] {
        let first = self.engines.first();
        let ratio = |times: &EngineTimes| {
            let pairs = first?.points.iter().zip(&times.points);
            let logarithms: Vec<f64> =
                pairs.map(|(base, point)| (point.median_ns as f64 / base.median_ns.max(1) as f64).ln()).collect();
            (!logarithms.is_empty()).then(|| (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
        };
        let of = |is_meant: &dyn Fn(&EngineTimes) -> bool| {
            let meant = self.engines.iter().enumerate().skip(1).filter(|(_, times)| is_meant(times));
            let ratios = meant.filter_map(|(at, times)| ratio(times).map(|ratio| (at, ratio)));
            let best = ratios.min_by(|(_, one), (_, other)| one.total_cmp(other));
            best.filter(|(_, ratio)| *ratio <= 1.0 - WORTH).unwrap_or((0, 1.0))
        };
        let in_fp32 = first.map(|first| first.precision.clone());
        [of(&|times| Some(&times.precision) == in_fp32.as_ref()), of(&|_| true)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(engine: &str, precision: &str, medians: &[Ns]) -> EngineTimes {
        let point = |&median_ns| EnginePoint { rows: 1, length: 0, median_ns, runs: 9, deviation: 0.0 };
        let points = medians.iter().map(point).collect();
        EngineTimes { engine: engine.to_owned(), precision: precision.to_owned(), refused: None, points }
    }

    fn fastest(others: &[(&str, &[Ns])]) -> [usize; 2] {
        let others = others.iter().map(|(precision, medians)| times("openvino", precision, medians));
        let engines = [times("onnxruntime", "ieee", &[100, 400])].into_iter().chain(others).collect();
        EngineTable { cell: None, engines }.fastest().map(|(at, _)| at)
    }

    #[test]
    fn an_engine_is_faster_by_the_mean_of_its_ratios() {
        assert_eq!(fastest(&[("ieee", &[90, 300]), ("bf16", &[50, 200])]), [1, 2]);
        assert_eq!(fastest(&[("ieee", &[110, 390]), ("bf16", &[50, 200])]), [0, 2]);
        assert_eq!(fastest(&[("ieee", &[50, 800]), ("bf16", &[98, 398])]), [0, 0], "a few percent are none");
        assert_eq!(fastest(&[("ieee", &[]), ("fp16", &[])]), [0, 0], "what does not run is not fast");
        assert_eq!(fastest(&[]), [0, 0]);
    }
}
