//! Rooflines: the time of a layer from what it computes and what it moves. They generate tables before any policy runs;
//! nothing in them is fitted to a policy.

use paternoster_batching::{CostPoint, CostTable, Ns};

use super::table::ModelTable;

const NS_PER_S: f64 = 1e9;

/// One layer as a matrix product (`m` × `k`) · (`k` × `n`) for each row of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layer {
    /// Rows of the product per row of a batch: positions of a convolution, or tokens of a sentence.
    pub(super) m: u64,
    pub(super) k: u64,
    pub(super) n: u64,
    /// Whether all rows of a batch are multiplied by the same weights, so that they form a single product. Attention
    /// multiplies each row's own matrices.
    pub(super) shared: bool,
    /// Number of independent products per row (heads) if not shared; otherwise 1.
    pub(super) copies: u64,
    /// Whether a GPU kernel may split the sum over `k`. Dense products do; convolutions use smaller tiles.
    pub(super) parted: bool,
    /// Elements that one row reads and writes, excluding weights.
    pub(super) moved: u64,
}

impl Layer {
    /// A dense layer: each of `m` positions is multiplied by the same weights.
    pub(super) fn dense(m: u64, k: u64, n: u64) -> Self {
        Self { m, k, n, shared: true, copies: 1, parted: true, moved: m * (k + n) }
    }

    /// A convolution with a square window on a square image, given the size of its output.
    pub(super) fn convolution(side: u64, window: u64, inputs: u64, outputs: u64) -> Self {
        let m = side * side;
        Self { parted: false, moved: m * (inputs + outputs), ..Self::dense(m, inputs * window * window, outputs) }
    }

    /// A convolution of each channel by itself. It computes so little that moving data dominates, so it is counted as a
    /// product of the window with all channels at once.
    pub(super) fn depthwise(side: u64, window: u64, channels: u64) -> Self {
        let m = side * side;
        Self { parted: false, moved: 2 * m * channels, ..Self::dense(m, window * window, channels) }
    }

    /// `heads` products of a row's own matrices.
    pub(super) fn attention(heads: u64, m: u64, k: u64, n: u64) -> Self {
        Self { shared: false, copies: heads, moved: heads * (m * k + k * n + m * n), ..Self::dense(m, k, n) }
    }

    fn weights(&self) -> u64 {
        if self.shared { self.k * self.n } else { 0 }
    }
}

/// A device, as a roofline models it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Roofline {
    /// A GPU: tiles of the product are assigned to the multiprocessors in waves. The faster of two kernels is taken:
    /// large tiles, or small ones at half the rate. If there are fewer tiles than multiprocessors, the sum over `k` may
    /// be split among them, in pieces of at least 256.
    Gpu {
        multiprocessors: u64,
        /// Floating-point operations per second, over all multiprocessors, that a good kernel reaches.
        flops: f64,
        bytes_per_s: f64,
        element_bytes: u64,
        launch_ns: f64,
    },
    /// A systolic array that holds a tile of the weights while all rows stream through, with cycles as in SCALE-Sim
    /// (Samajdar et al., ISPASS'20, weight stationary): each tile is loaded, filled and drained before the next.
    Systolic { side: u64, hertz: f64, bytes_per_s: f64, element_bytes: u64, access_cycles: f64 },
}

/// Rows and columns of a GPU's tiles, and the fraction of `flops` that a kernel with them reaches; a small tile reuses
/// loaded data less often. Two sizes with rates 1 and 0.5 are within 14 % of the measured times of ResNet-50 at any
/// batch (`published.rs`). Large tiles alone would be 2.5 times too slow for one image, because a few tiles leave
/// multiprocessors idle.
const TILES: [(u64, u64, f64); 2] = [(128, 64, 1.0), (32, 32, 0.5)];
/// Minimum length of a piece of a split sum.
const PIECE: u64 = 256;

impl Roofline {
    /// Returns the nanoseconds of a layer for a batch of `rows` rows: the longer of computing and moving.
    pub(super) fn layer_ns(&self, layer: &Layer, rows: u64) -> f64 {
        let products = if layer.shared { 1 } else { rows * layer.copies };
        let m = if layer.shared { rows * layer.m } else { layer.m };
        let elements = layer.weights() + rows * layer.moved;
        match *self {
            Self::Gpu { multiprocessors, flops, bytes_per_s, element_bytes, launch_ns } => {
                let most = if layer.parted { (layer.k / PIECE).max(1) } else { 1 };
                let kernel_ns = |(tile_m, tile_n, reached): (u64, u64, f64)| {
                    let tiles = products * m.div_ceil(tile_m) * layer.n.div_ceil(tile_n);
                    let pieces = (multiprocessors / tiles).clamp(1, most);
                    let waves = (tiles * pieces).div_ceil(multiprocessors) as f64;
                    let tile_flops = (2 * tile_m * tile_n * layer.k) as f64 / pieces as f64;
                    waves * tile_flops * multiprocessors as f64 / (flops * reached) * NS_PER_S
                };
                let compute_ns = TILES.map(kernel_ns).into_iter().fold(f64::INFINITY, f64::min);
                let memory_ns = (elements * element_bytes) as f64 / bytes_per_s * NS_PER_S;
                launch_ns + compute_ns.max(memory_ns)
            }
            Self::Systolic { side, hertz, bytes_per_s, element_bytes, access_cycles } => {
                let tiles = products * layer.k.div_ceil(side) * layer.n.div_ceil(side);
                let cycles = (tiles * (m + 3 * side - 2)) as f64;
                let memory_s = access_cycles / hertz + (elements * element_bytes) as f64 / bytes_per_s;
                (cycles / hertz).max(memory_s) * NS_PER_S
            }
        }
    }

    /// Returns the points of one stage at each padded length and each number of rows.
    pub(super) fn points(&self, rows: &[u32], lengths: &[u64], layers: impl Fn(u64) -> Vec<Layer>) -> Vec<CostPoint> {
        let mut points = Vec::with_capacity(rows.len() * lengths.len());
        for &length in lengths {
            let layers = layers(length);
            for &rows in rows {
                let ns: f64 = layers.iter().map(|layer| self.layer_ns(layer, u64::from(rows))).sum();
                points.push(CostPoint { rows, length, took_ns: ns.round() as Ns });
            }
        }
        points
    }
}

/// Builds a model whose stages are these lists of layers, without lengths.
pub(super) fn chain(roofline: &Roofline, name: &str, rows: &[u32], stages: &[Vec<Layer>]) -> ModelTable {
    let points = |layers: &Vec<Layer>| roofline.points(rows, &[1], |_| layers.clone());
    let max_batch_rows = rows.iter().copied().max().unwrap_or(1);
    let latencies = CostTable { stages: stages.iter().map(points).collect() };
    ModelTable { name: name.to_owned(), max_batch_rows, latencies, steps: None, cells: None, scatter: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Roofline =
        Roofline::Systolic { side: 128, hertz: 1e9, bytes_per_s: 1e12, element_bytes: 1, access_cycles: 0.0 };
    const GPU: Roofline =
        Roofline::Gpu { multiprocessors: 10, flops: 1e13, bytes_per_s: 1e12, element_bytes: 4, launch_ns: 1000.0 };

    #[test]
    fn an_array_takes_long_for_its_tiles_and_little_for_each_row() {
        let layer = Layer::dense(2, 256, 256);
        assert_eq!(ARRAY.layer_ns(&layer, 1), 4.0 * (382.0 + 2.0), "four tiles, two rows each");
        assert_eq!(ARRAY.layer_ns(&layer, 64), 4.0 * (382.0 + 128.0));
        assert_eq!(ARRAY.layer_ns(&Layer::attention(3, 2, 100, 5), 2), 6.0 * 384.0, "each row has products of its own");
    }

    #[test]
    fn a_gpu_takes_waves_of_tiles() {
        let layer = Layer::dense(128, 1024, 640);
        let wave_ns = 2.0 * 128.0 * 640.0 * 1024.0 / 1e13 * 1e9;
        assert_eq!(GPU.layer_ns(&layer, 1), 1000.0 + wave_ns, "ten tiles, one on each multiprocessor");
        assert_eq!(GPU.layer_ns(&layer, 3), 1000.0 + 3.0 * wave_ns);
        let narrow = Layer::dense(128, 1024, 64);
        let quarter_ns = wave_ns / 4.0;
        assert!((GPU.layer_ns(&narrow, 1) - 1000.0 - quarter_ns).abs() < 1e-6, "one tile in four pieces of 256");
        let whole = Layer { parted: false, ..Layer::dense(32, 1024, 32) };
        let small_ns = wave_ns / 8.0 * 2.0;
        assert_eq!(GPU.layer_ns(&whole, 1), 1000.0 + small_ns, "an eighth of a tile at half the rate");
    }

    #[test]
    fn a_gpu_takes_the_tiles_that_are_faster() {
        let wave_ns = 2.0 * 128.0 * 640.0 * 1024.0 / 1e13 * 1e9;
        let images = Layer { parted: false, ..Layer::dense(128, 1024, 64) };
        assert_eq!(
            GPU.layer_ns(&images, 1),
            1000.0 + wave_ns / 4.0,
            "eight small tiles, a quarter of a large one's time"
        );
        assert_eq!(GPU.layer_ns(&images, 2), 1000.0 + wave_ns / 2.0, "sixteen in two waves");
        assert_eq!(GPU.layer_ns(&images, 4), 1000.0 + wave_ns, "as fast as four large ones");
        assert_eq!(GPU.layer_ns(&images, 10), 1000.0 + wave_ns, "a wave of large ones");
    }

    #[test]
    fn what_moves_much_and_computes_little_is_bound_by_memory() {
        let layer = Layer { moved: 1_000_000, ..Layer::dense(1, 64, 64) };
        let bytes = 4.0 * (64.0 * 64.0 + 1_000_000.0);
        assert!((GPU.layer_ns(&layer, 1) - 1000.0 - bytes / 1000.0).abs() < 1e-6);
    }
}
