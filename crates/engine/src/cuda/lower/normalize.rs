//! Batch normalization with known statistics: folded into the weights before it, or else a multiplication and an
//! addition.

use super::{Call, Lowering, Outcome, Reason, Rule, Value};
use crate::cuda::{
    constants,
    ir::{BufferId, Convolution, Factor, Function, Holder, Kind, Node, NodeId, Operation, Product, Tensor},
};

pub(super) fn rule(op: &str) -> Option<Rule> {
    match op {
        "BatchNormalization" => Some(batch_norm),
        _ => None,
    }
}

/// Lowers `(x - mean) / √(variance + epsilon) · scale + shift` by channel (axis 1), computed as `x · factor + offset`.
fn batch_norm(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    if call.int("training_mode").unwrap_or(0) != 0 || (1..5).any(|output| !call.result(output).is_empty()) {
        return Err("it is in training mode".to_owned());
    }
    if call.int("spatial") == Some(0) {
        return Err("its statistics are not by channel".to_owned());
    }
    let tensor = lowering.tensors(call)?.swap_remove(0);
    if lowering.work.kind(&tensor) != Kind::F32 || tensor.dims.len() < 2 {
        return Err(format!("its operand is {:?} {:?}", lowering.work.kind(&tensor), tensor.dims));
    }
    let channels = tensor.dims[1];
    let mut vector = |index: usize, what: &str| lowering.vector(call, index, channels, what);
    let (scale, shift) = (vector(1, "scale")?, vector(2, "shift")?);
    let (mean, variance) = (vector(3, "mean")?, vector(4, "variance")?);
    let epsilon = call.float("epsilon").unwrap_or(1e-5);
    let factor: Vec<f32> =
        scale.iter().zip(&variance).map(|(scale, variance)| scale / (variance + epsilon).sqrt()).collect();
    let offset: Vec<f32> =
        shift.iter().zip(mean.iter().zip(&factor)).map(|(shift, (mean, factor))| shift - mean * factor).collect();
    let is_read_once = call.operand(0).is_some_and(|name| lowering.uses(name) == 1);
    if is_read_once && let Some(folded) = lowering.folded(&tensor, &factor, &offset)? {
        return Ok(vec![Value::Tensor(folded)]);
    }
    let [factor, offset] = [factor, offset].map(|numbers| {
        let vector = lowering.constant(&numbers, &[channels]);
        lowering.by_channel(&vector, tensor.dims.len())
    });
    let scaled = lowering.apply(Function::Mul, Kind::F32, &[tensor, factor])?;
    Ok(vec![Value::Tensor(lowering.apply(Function::Add, Kind::F32, &[scaled, offset])?)])
}

impl Lowering<'_> {
    /// Returns an operand of `length` numbers that are known.
    fn vector(&mut self, call: &Call<'_>, index: usize, length: usize, what: &str) -> Result<Vec<f32>, Reason> {
        let tensor = self.tensor(call, index)?;
        let numbers = self.floats(&tensor).ok_or_else(|| format!("its {what} is not known when the plan is made"))?;
        if tensor.dims.as_slice() != [length] {
            return Err(format!("its {what} has the axes {:?}, expected [{length}]", tensor.dims));
        }
        Ok(numbers)
    }

    /// Returns the elements of a one-dimensional constant.
    pub(crate) fn floats(&self, tensor: &Tensor) -> Option<Vec<f32>> {
        let view = self.work.expressions.stored(tensor.node)?;
        let Holder::Constant(bytes) = &self.work.buffers[view.buffer].holder else { return None };
        let (&[length], &[stride]) = (tensor.dims.as_slice(), view.strides.as_slice()) else { return None };
        let number = |place: usize| {
            let at = usize::try_from(view.offset + place as i64 * stride).ok()?;
            constants::bits(Kind::F32, bytes, at).map(|bits| f32::from_bits(bits as u32))
        };
        (self.work.kind(tensor) == Kind::F32).then(|| (0..length).map(number).collect()).flatten()
    }

    /// Applies a factor and an offset by channel to the result of a convolution or product by changing its weights and
    /// bias. `None` if the tensor is something else. Nothing else may read the tensor.
    fn folded(&mut self, tensor: &Tensor, factor: &[f32], offset: &[f32]) -> Result<Option<Tensor>, Reason> {
        let Some((source, bias)) = self.with_bias(tensor) else { return Ok(None) };
        let Some(buffer) = self.whole_node(source, tensor) else { return Ok(None) };
        let writes = |operation: &Operation| operation.writes().contains(&buffer);
        let Some(place) = self.work.operations.iter().rposition(writes) else { return Ok(None) };
        let offset: Vec<f32> = match &bias {
            Some(bias) => offset.iter().zip(factor).zip(bias).map(|((to, factor), bias)| to + factor * bias).collect(),
            None => offset.to_vec(),
        };
        let scaled = match &self.work.operations[place] {
            Operation::Convolution(convolution) => self.scaled_filter(convolution, factor),
            Operation::Product(product) if tensor.dims.len() == 2 => self.scaled_columns(product, factor),
            _ => None,
        };
        let Some(scaled) = scaled else { return Ok(None) };
        let weights = self.constant_buffer(&scaled);
        match &mut self.work.operations[place] {
            Operation::Convolution(convolution) => convolution.w = weights,
            Operation::Product(product) => product.b.buffer = weights,
            _ => {}
        }
        let source = Tensor { node: source, ..tensor.clone() };
        let offset = self.constant(&offset, &[offset.len()]);
        let offset = self.by_channel(&offset, tensor.dims.len());
        self.apply(Function::Add, Kind::F32, &[source, offset]).map(Some)
    }

    /// Splits a tensor into a stored one and a vector that is added by channel.
    fn with_bias(&self, tensor: &Tensor) -> Option<(NodeId, Option<Vec<f32>>)> {
        let expressions = &self.work.expressions;
        match expressions.node(tensor.node) {
            Node::Load(_) => Some((tensor.node, None)),
            Node::Apply(Function::Add, operands) => {
                let &[first, second] = operands.as_slice() else { return None };
                let by_channel = |node: NodeId| {
                    let view = expressions.stored(node)?;
                    let Holder::Constant(bytes) = &self.work.buffers[view.buffer].holder else { return None };
                    let mut others = view.strides.iter().enumerate().filter(|(axis, _)| *axis != 1);
                    if others.any(|(_, &stride)| stride != 0) {
                        return None;
                    }
                    let number = |channel: usize| {
                        let at = usize::try_from(view.offset + channel as i64 * view.strides[1]).ok()?;
                        constants::bits(Kind::F32, bytes, at).map(|bits| f32::from_bits(bits as u32))
                    };
                    (0..tensor.dims[1]).map(number).collect::<Option<Vec<f32>>>()
                };
                [(first, second), (second, first)].into_iter().find_map(|(source, bias)| {
                    expressions.stored(source)?;
                    by_channel(bias).map(|bias| (source, Some(bias)))
                })
            }
            _ => None,
        }
    }

    /// Returns the buffer that an expression reads in full, over the axes of a tensor.
    fn whole_node(&self, node: NodeId, tensor: &Tensor) -> Option<BufferId> {
        self.whole_buffer(&Tensor { node, ..tensor.clone() })
    }

    /// Returns the numbers of a constant buffer.
    fn numbers_of(&self, buffer: BufferId) -> Option<Vec<f32>> {
        let Holder::Constant(bytes) = &self.work.buffers[buffer].holder else { return None };
        Some(bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect())
    }

    /// Returns a convolution's filter, multiplied by a factor for each channel of the result.
    fn scaled_filter(&self, convolution: &Convolution, factor: &[f32]) -> Option<Vec<f32>> {
        let mut filter = self.numbers_of(convolution.w)?;
        let entries: usize = convolution.kernel.iter().product();
        let (inputs, outputs) = (convolution.inputs / convolution.groups, convolution.outputs / convolution.groups);
        for (place, numbers) in filter.chunks_exact_mut(entries).enumerate() {
            let channel = if convolution.is_transposed {
                // By channel of the operand, then by channel of the result within the group.
                place / outputs / inputs * outputs + place % outputs
            } else {
                place / inputs
            };
            numbers.iter_mut().for_each(|number| *number *= factor[channel]);
        }
        Some(filter)
    }

    /// Returns the right operand of a product, multiplied by a factor for each column.
    fn scaled_columns(&self, product: &Product, factor: &[f32]) -> Option<Vec<f32>> {
        // Its bias would have to be multiplied too.
        if product.bias.is_some() || factor.len() != product.n {
            return None;
        }
        let mut numbers = self.numbers_of(product.b.buffer)?;
        let Factor { offset, leading, is_transposed, .. } = product.b;
        let first = usize::try_from(offset).ok()?;
        for (column, factor) in factor.iter().enumerate() {
            for row in 0..product.k {
                let at = if is_transposed { column * leading + row } else { row * leading + column };
                *numbers.get_mut(first + at)? *= factor;
            }
        }
        Some(numbers)
    }
}
