//! BatchMaker's card and its three models (sections 2.2 and 7), all of hidden size 1024 in FP32.
//!
//! The times of an LSTM step are those of the paper's figure 3: 185 µs at 64 rows (section 7.3) and 784 µs at 512,
//! constant below 64, and doubling with the rows beyond 512. At 256 rows the throughput is 20 % below that at 512
//! (section 7.4); the time at 128 rows is on a straight line between logarithms. The encoder is the same cell.
//!
//! The paper does not give the times of the other cells. Their products are mapped to a roofline of the card (80
//! multiprocessors, 15.7 Tflop/s in FP32 of which 70 % is reached, which also yields the 784 µs; 900 GB/s, 5 µs per
//! launch). The decoder is an LSTM and a projection to 30,000 words: it takes 80 % of a translation's computation at
//! 256 rows, where the paper finds about 75 %, and gains 4 % beyond 256 rows. Each tree cell is one product: the word
//! of a leaf makes three gates, and two children make five.

use paternoster_batching::CostPoint;
use paternoster_model::CellId;

use super::{
    cells::{SimulatedSegment, any_steps},
    roofline::{Layer, Roofline},
    table::{DeviceTable, ModelTable},
};

pub(super) const V100: Roofline = Roofline::Gpu {
    multiprocessors: 80,
    flops: 0.7 * 15.7e12,
    bytes_per_s: 900e9,
    element_bytes: 4,
    launch_ns: 5000.0,
};

const HIDDEN: u64 = 1024;
const WORDS: u64 = 30_000;
/// For each number of rows, the microseconds of an LSTM step.
const LSTM: [(u32, u64); 7] =
    [(1, 185), (64, 185), (128, 295), (256, 470), (512, 784), (1024, 2 * 784), (2048, 4 * 784)];

/// Returns the card with `lstm`, `lstm-chunks`, whose tasks may run several steps, `seq2seq` and `tree-lstm`.
pub(super) fn v100() -> DeviceTable {
    let lstm: Vec<CostPoint> =
        LSTM.map(|(rows, us)| CostPoint { rows, length: 1, took_ns: us * 1000 }).into_iter().collect();
    let rows = LSTM.map(|(rows, _)| rows);
    let product = |k, n| V100.points(&rows, &[1], |_| vec![Layer::dense(1, k, n)]);
    let projection = product(HIDDEN, WORDS);
    let add =
        |(step, projected): (&CostPoint, &CostPoint)| CostPoint { took_ns: step.took_ns + projected.took_ns, ..*step };
    let decoder = lstm.iter().zip(&projection).map(add).collect();
    let (leaf, inner) = (product(HIDDEN, 3 * HIDDEN), product(2 * HIDDEN, 5 * HIDDEN));
    let of_steps =
        |name| ModelTable::of_cells(name, vec![lstm.clone()], &[512], vec![SimulatedSegment::Chain(CellId(0))]);
    let mut chunks = of_steps("lstm-chunks");
    chunks.cells.iter_mut().flat_map(|graph| &mut graph.cells).for_each(|cell| cell.chunks = Some(any_steps(true)));
    let models = vec![
        of_steps("lstm"),
        chunks,
        ModelTable::of_cells(
            "seq2seq",
            vec![lstm, decoder],
            &[512, 256],
            vec![SimulatedSegment::Chain(CellId(0)), SimulatedSegment::Decode(CellId(1))],
        ),
        ModelTable::of_cells(
            "tree-lstm",
            vec![leaf, inner],
            &[64, 64],
            vec![SimulatedSegment::Tree { leaf: CellId(0), inner: CellId(1) }],
        ),
    ];
    DeviceTable { name: "v100".to_owned(), idle_watts: 40.0, busy_watts: 300.0, models }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(model: &str, cell: usize, rows: u32) -> f64 {
        let table = v100();
        let points = &table.model(model).expect("it is built in").latencies.stages[cell];
        points.iter().find(|point| point.rows == rows).expect("it was measured").took_ns as f64 / 1e3
    }

    #[test]
    fn a_step_of_the_lstm_takes_what_the_paper_says() {
        let step = |rows| us("lstm", 0, rows);
        assert_eq!([1, 64, 512, 1024].map(step), [185.0, 185.0, 784.0, 1568.0]);
        let rate = |rows: u32| f64::from(rows) / step(rows);
        assert!((rate(512) / rate(256) - 1.2).abs() < 0.005, "a fifth more with 512 than with 256");
        assert!(rate(64) < rate(128) && rate(128) < rate(256) && rate(1024) == rate(512));
        assert!((512.0 / step(512) / 24.0 * 1e6 - 27_136.0).abs() < 100.0, "the most sentences of 24 words a second");
    }

    #[test]
    fn most_of_a_translation_is_decoding_and_256_rows_are_nearly_the_best_for_it() {
        let (encoder, decoder) = (us("seq2seq", 0, 256), us("seq2seq", 1, 256));
        let share = decoder / (encoder + decoder);
        assert!((0.75..0.82).contains(&share), "{share}");
        let rate = |rows: u32| f64::from(rows) / us("seq2seq", 1, rows);
        let gains = [rate(256) / rate(64), rate(512) / rate(256)];
        assert!(gains[0] > 1.5 && (1.0..1.06).contains(&gains[1]), "{gains:?}");
    }

    #[test]
    fn cells_that_come_later_go_first() {
        for model in v100().models {
            let cells = model.cells.expect("it has cells").cells;
            assert!(cells.is_sorted_by(|one, next| one.priority > next.priority), "{}", model.name);
        }
    }
}
