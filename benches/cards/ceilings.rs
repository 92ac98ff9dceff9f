//! What the card can do: how fast its memory is copied, and square matrices are multiplied.

use std::{fmt, rc::Rc, time::Duration};

use paternoster_device::{
    DeviceError,
    cuda::{
        Cuda, KernelElement,
        products::{MatrixProduct, Multiplication, Operand, WORKSPACE_BYTES},
    },
};
use paternoster_engine::Precision;
use serde::Serialize;

use crate::{STREAM, timing};

/// The card's own speeds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ceilings {
    /// Bytes a second that a copy reads and writes.
    pub(crate) bytes_per_second: f64,
    /// Floating-point operations a second of a product of square matrices, by precision.
    pub(crate) flops: Vec<(String, f64)>,
}

impl Ceilings {
    /// Measures them.
    pub(crate) fn measure(cuda: &mut Cuda, is_quick: bool, lasting: Duration) -> Result<Self, DeviceError> {
        let (bytes, side) = if is_quick { (1 << 20, 64) } else { (1 << 30, 8192) };
        let mut flops = Vec::new();
        for (name, precision) in Precision::NAMES {
            let seconds = product(cuda, precision, side, lasting)?;
            flops.push((name.to_owned(), 2.0 * (side as f64).powi(3) / seconds));
        }
        let seconds = copy(cuda, bytes, lasting)?;
        Ok(Self { bytes_per_second: 2.0 * bytes as f64 / seconds, flops })
    }

    /// Seconds that so many operations on so many bytes take at least.
    pub(crate) fn floor(&self, precision: Precision, flops: f64, bytes: f64) -> f64 {
        let name = precision.to_string();
        let peak = self.flops.iter().find(|(known, _)| *known == name).map_or(f64::INFINITY, |(_, peak)| *peak);
        (flops / peak).max(bytes / self.bytes_per_second)
    }
}

impl fmt::Display for Ceilings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "copy: {:.2} TB/s read and written", self.bytes_per_second / 1e12)?;
        self.flops
            .iter()
            .try_for_each(|(name, flops)| writeln!(formatter, "square matrices, {name}: {:.1} TFLOP/s", flops / 1e12))
    }
}

fn copy(cuda: &mut Cuda, bytes: usize, lasting: Duration) -> Result<f64, DeviceError> {
    let (from, to) = (cuda.memory(bytes)?, cuda.memory(bytes)?);
    let graph = cuda.capture(STREAM, 0, |capture| capture.copy(from.address(), to.address(), bytes))?;
    timing::seconds(cuda, &Rc::new(graph), &[], lasting)
}

fn product(cuda: &mut Cuda, precision: Precision, side: usize, lasting: Duration) -> Result<f64, DeviceError> {
    let element = match precision {
        Precision::Ieee | Precision::Tf32 => KernelElement::F32,
        Precision::Bf16 => KernelElement::Bf16,
        Precision::Fp16 => KernelElement::F16,
    };
    let bytes = side * side * element.bytes();
    let matrices = [cuda.memory(bytes)?, cuda.memory(bytes)?, cuda.memory(bytes)?];
    let [a, b, d] = matrices.each_ref().map(|memory| memory.address());
    let beside = cuda.memory(WORKSPACE_BYTES)?;
    let operand = |address| Operand { address, leading: side, is_transposed: false, batch_stride: 0 };
    let product = MatrixProduct {
        m: side,
        n: side,
        k: side,
        batches: 1,
        a: operand(a),
        b: operand(b),
        d,
        bias: None,
        alpha: 1.0,
        factors: element,
        result: element,
        multiplication: if precision == Precision::Tf32 { Multiplication::Tf32 } else { Multiplication::Ieee },
        workspace: beside.address(),
    };
    let product = cuda.product(&product)?;
    let graph = cuda.capture(STREAM, 0, |capture| capture.product(&product))?;
    timing::seconds(cuda, &Rc::new(graph), &[], lasting)
}
