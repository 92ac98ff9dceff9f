//! Layers of convolutional networks.

use paternoster_model::DataType;

use crate::{
    PortDim,
    build::{Graph, Value},
    weights::Seeded,
};

/// Variance gain for a layer followed by a rectifier (He et al., 2015); other layers have 1.
pub(super) const RECTIFIED: f32 = 2.0;

/// A convolutional network under construction. Batch normalization is assumed to be folded into the convolutions, as
/// exporters for inference do.
pub(super) struct Net {
    pub graph: Graph,
    weights: Seeded,
}

/// A convolution with square kernel and stride.
#[derive(Clone, Copy)]
pub(super) struct Conv {
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    pub stride: usize,
    /// Variance of the outputs relative to the mean square of the inputs.
    pub gain: f32,
}

impl Conv {
    /// Creates a convolution with stride 1, followed by a rectifier.
    pub(super) fn new(input: usize, output: usize, kernel: usize) -> Self {
        Self { input, output, kernel, stride: 1, gain: RECTIFIED }
    }

    pub(super) fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    pub(super) fn gain(self, gain: f32) -> Self {
        Self { gain, ..self }
    }
}

impl Net {
    pub(super) fn new(name: &str) -> Self {
        Self::sharing(name, name)
    }

    /// Creates a graph with the same random weights as another.
    pub(super) fn sharing(name: &str, weights_of: &str) -> Self {
        let seed = weights_of.bytes().fold(0, |seed: u64, byte| seed << 8 ^ seed >> 56 ^ u64::from(byte));
        Self { graph: Graph::new(name), weights: Seeded::new(seed) }
    }

    /// Adds the input `image`, FP32, batch first.
    pub(super) fn image(&mut self, dims: &[PortDim]) -> Value {
        self.graph.input("image", DataType::Fp32, dims)
    }

    /// Adds random weights. A sum over `fan_in` of them has the variance `gain`, relative to the mean square of the
    /// inputs.
    pub(super) fn weight(&mut self, name: &str, dims: &[usize], fan_in: usize, gain: f32) -> Value {
        let spread = (gain / fan_in as f32).sqrt();
        let data = self.weights.uniform(&self.graph.scoped(name), dims.iter().product(), spread);
        self.graph.raw(name, DataType::Fp32, dims, data)
    }

    /// Returns the numbers that [`Self::weight`] would use, so that the caller can change some of them.
    pub(super) fn drawn(&self, name: &str, count: usize, fan_in: usize, gain: f32) -> Vec<f32> {
        let data = self.weights.uniform(&self.graph.scoped(name), count, (gain / fan_in as f32).sqrt());
        data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// Adds a convolution with bias, padded so that stride 1 keeps the size.
    pub(super) fn conv(&mut self, name: &str, x: &Value, conv: Conv) -> Value {
        let Conv { input, output, kernel, stride, gain } = conv;
        let weight =
            self.weight(&format!("{name}.weight"), &[output, input, kernel, kernel], input * kernel * kernel, gain);
        self.convolve(name, x, &weight, output, kernel, stride, 1)
    }

    /// Adds a 3 × 3 convolution of each channel separately.
    pub(super) fn depthwise(&mut self, name: &str, x: &Value, channels: usize, stride: usize) -> Value {
        let weight = self.weight(&format!("{name}.weight"), &[channels, 1, 3, 3], 9, RECTIFIED);
        self.convolve(name, x, &weight, channels, 3, stride, channels)
    }

    #[expect(clippy::too_many_arguments, reason = "the parameters of the operator")]
    fn convolve(
        &mut self,
        name: &str,
        x: &Value,
        weight: &Value,
        output: usize,
        kernel: usize,
        stride: usize,
        groups: usize,
    ) -> Value {
        let bias = self.weight(&format!("{name}.bias"), &[output], 1, 1e-4);
        let (side, step, pad) = (kernel as i64, stride as i64, (kernel / 2) as i64);
        let call = self.graph.op("Conv", &[x, weight, &bias]);
        let call = call.attr("kernel_shape", [side, side]).attr("strides", [step, step]);
        call.attr("pads", [pad, pad, pad, pad]).attr("group", groups as i64).value()
    }

    /// Adds a convolution and a rectifier.
    pub(super) fn conv_relu(&mut self, name: &str, x: &Value, conv: Conv) -> Value {
        let y = self.conv(name, x, conv);
        self.relu(&y)
    }

    /// Adds a transposed convolution with bias that doubles the size.
    pub(super) fn upconv(&mut self, name: &str, x: &Value, conv: Conv) -> Value {
        let Conv { input, output, kernel, gain, .. } = conv;
        // With stride 2, an output element is the sum of a quarter of the kernel's products.
        let fan_in = (input * kernel * kernel).div_ceil(4);
        let weight = self.weight(&format!("{name}.weight"), &[input, output, kernel, kernel], fan_in, gain);
        let bias = self.weight(&format!("{name}.bias"), &[output], 1, 1e-4);
        let (side, pad) = (kernel as i64, (kernel / 2) as i64);
        // The output size is 2 · (input size − 1) + kernel − pads, so the end padding makes it twice the input size.
        let (begin, end) = if kernel % 2 == 0 { (pad - 1, pad - 1) } else { (pad, pad - 1) };
        let call = self.graph.op("ConvTranspose", &[x, &weight, &bias]);
        let call = call.attr("kernel_shape", [side, side]).attr("strides", [2, 2]);
        call.attr("pads", [begin, begin, end, end]).value()
    }

    pub(super) fn relu(&mut self, x: &Value) -> Value {
        self.graph.op("Relu", &[x]).value()
    }

    pub(super) fn add(&mut self, x: &Value, y: &Value) -> Value {
        self.graph.op("Add", &[x, y]).value()
    }

    /// Adds a max pool of squares of `kernel` with `stride`, padded by `pad`.
    pub(super) fn max_pool(&mut self, x: &Value, kernel: i64, stride: i64, pad: i64) -> Value {
        let call = self.graph.op("MaxPool", &[x]).attr("kernel_shape", [kernel, kernel]);
        call.attr("strides", [stride, stride]).attr("pads", [pad, pad, pad, pad]).value()
    }

    /// Returns the mean of each channel: `[batch, channels]`.
    pub(super) fn global_mean(&mut self, x: &Value) -> Value {
        let mean = self.graph.op("GlobalAveragePool", &[x]).value();
        self.graph.op("Flatten", &[&mean]).attr("axis", 1).value()
    }

    /// Adds a dense layer on `[batch, input]`.
    pub(super) fn dense(&mut self, name: &str, x: &Value, input: usize, output: usize, gain: f32) -> Value {
        let weight = self.weight(&format!("{name}.weight"), &[output, input], input, gain);
        let bias = self.weight(&format!("{name}.bias"), &[output], 1, 1e-4);
        self.graph.op("Gemm", &[x, &weight, &bias]).attr("transB", 1).value()
    }

    /// Declares `x` as an output under this name.
    pub(super) fn output(&mut self, name: &str, x: &Value, dims: &[PortDim]) {
        let named = self.graph.op("Identity", &[x]).named(name).value();
        self.graph.output(&named, DataType::Fp32, dims);
    }

    /// Prefixes the names that `build` creates.
    pub(super) fn scope<T>(&mut self, scope: impl Into<String>, build: impl FnOnce(&mut Self) -> T) -> T {
        self.graph.enter(scope);
        let result = build(self);
        self.graph.leave();
        result
    }
}
