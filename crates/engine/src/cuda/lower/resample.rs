//! Pad and Resize.

use super::{
    Call, Lowering, Outcome, Reason, Rule, Value, axis_of,
    fetch::{Along, check_size},
};
use crate::cuda::{
    constants,
    ir::{Function, Holder, Kind, Node, NodeId, Strides, Tensor, View},
};

pub(super) fn rule(op: &str) -> Option<Rule> {
    match op {
        "Pad" => Some(pad),
        "Resize" => Some(resize),
        _ => None,
    }
}

/// Lowers Pad with a constant value.
fn pad(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    match call.text("mode") {
        None | Some(b"constant") => {}
        Some(other) => return Err(format!("its mode is '{}', expected 'constant'", String::from_utf8_lossy(other))),
    }
    let pads = lowering.listed(call, "pads", 1)?.ok_or("it has no pads")?;
    let (_, tensor) = lowering.stored(call, 0)?;
    let rank = tensor.dims.len();
    let axes = match call.operand(3) {
        Some(_) => lowering.numbers(call, 3, "axes")?,
        None => (0..rank as i64).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(format!("it has {} pads for {} axes", pads.len(), axes.len()));
    }
    let mut by_axis = vec![(0, 0); rank];
    for (place, &axis) in axes.iter().enumerate() {
        by_axis[axis_of(axis, rank)?] = (pads[place], pads[axes.len() + place]);
    }
    if tensor.by_rows && by_axis.first() != Some(&(0, 0)) {
        return Err("it mixes or moves the rows of a batch".to_owned());
    }
    let value = match (call.operand(2), call.float("value")) {
        (Some(_), _) => {
            let value = lowering.tensor(call, 2)?;
            let fits = value.elements() == 1 && lowering.work.kind(&value) == lowering.work.kind(&tensor);
            let bits = lowering.single(&value).filter(|_| fits);
            bits.ok_or("its value is not one number, known when the plan is made, of its operand's type")?
        }
        (None, value) => value.unwrap_or(0.0).to_bits().into(),
    };
    Ok(vec![Value::Tensor(lowering.padded(&tensor, &by_axis, value)?)])
}

/// Lowers Resize: each entry is the nearest entry of the operand, or interpolated between the two nearest along an
/// axis.
fn resize(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let method = Method::of(call)?;
    let (_, tensor) = lowering.stored(call, 0)?;
    let axes = lowering.resized_axes(call, &tensor)?;
    let rank = tensor.dims.len();
    let dims: Vec<usize> = axes.iter().map(|axis| axis.out).collect();
    check_size(&dims)?;
    let changed: Vec<usize> = (0..rank).filter(|&axis| axes[axis].is_changed()).collect();
    if tensor.by_rows && changed.contains(&0) {
        return Err("it mixes or moves the rows of a batch".to_owned());
    }
    let along: Vec<Along> = (0..rank).map(|axis| Along::same(axis, rank)).collect();
    if method.mode == Mode::Nearest {
        let mut nearest = along;
        for &axis in &changed {
            let places = method.nearest(&axes[axis]);
            nearest[axis] = Along::Index(lowering.index(&places, axis, rank));
        }
        return Ok(vec![Value::Tensor(lowering.fetched(&tensor, &dims, &nearest, 0)?)]);
    }
    if changed.len() > 2 || lowering.work.kind(&tensor) != Kind::F32 {
        return Err(format!("it is linear over {} axes of {:?}", changed.len(), lowering.work.kind(&tensor)));
    }
    // The entries to read, and their weights: two for each changed axis.
    let mut taps: Vec<(Vec<Along>, Vec<Tensor>)> = vec![(along, Vec::new())];
    for &axis in &changed {
        let mut next = Vec::new();
        for (places, weights) in method.linear(&axes[axis]) {
            let index = lowering.index(&places, axis, rank);
            let weights = {
                let mut shape = vec![1; rank - axis];
                shape[0] = weights.len();
                lowering.constant(&weights, &shape)
            };
            next.extend(taps.iter().map(|(along, before)| {
                let mut along = along.clone();
                along[axis] = Along::Index(index);
                (along, before.iter().cloned().chain([weights.clone()]).collect())
            }));
        }
        taps = next;
    }
    let mut sum: Option<Tensor> = None;
    for (along, weights) in taps {
        let mut term = lowering.fetched(&tensor, &dims, &along, 0)?;
        for weight in weights {
            term = lowering.apply(Function::Mul, Kind::F32, &[term, weight])?;
        }
        sum = Some(match sum {
            Some(sum) => lowering.apply(Function::Add, Kind::F32, &[sum, term])?,
            None => term,
        });
    }
    Ok(vec![Value::Tensor(sum.ok_or("it reads nothing")?)])
}

/// An axis of a resized tensor.
#[derive(Clone, Copy, Debug)]
struct Axis {
    length: usize,
    out: usize,
    /// Entries of the result per entry of the operand.
    scale: f32,
}

impl Axis {
    fn is_changed(&self) -> bool {
        self.out != self.length || self.scale.to_bits() != 1.0_f32.to_bits()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Nearest,
    Linear,
}

/// How entries are chosen (ONNX, operator Resize).
struct Method {
    mode: Mode,
    transformation: Vec<u8>,
    /// Empty for the operator's first version, which does not have the attribute.
    rounding: Vec<u8>,
}

impl Method {
    fn of(call: &Call<'_>) -> Result<Self, Reason> {
        let text = |name: &str, default: &'static [u8]| call.text(name).unwrap_or(default).to_vec();
        let refused = |name: &str, value: &[u8]| {
            let value = String::from_utf8_lossy(value);
            Err(format!("its {name} is '{value}', which has no lowering"))
        };
        let mode = match &text("mode", b"nearest")[..] {
            b"nearest" => Mode::Nearest,
            b"linear" => Mode::Linear,
            other => return refused("mode", other),
        };
        if call.int("antialias").unwrap_or(0) != 0 {
            return refused("antialias", b"1");
        }
        match call.text("keep_aspect_ratio_policy") {
            None | Some(b"stretch") => {}
            Some(other) => return refused("keep_aspect_ratio_policy", other),
        }
        let is_first = call.opset < 11;
        let transformation =
            text("coordinate_transformation_mode", if is_first { b"asymmetric" } else { b"half_pixel" });
        let rounding = text("nearest_mode", if is_first { b"" } else { b"round_prefer_floor" });
        match &transformation[..] {
            b"half_pixel" | b"pytorch_half_pixel" | b"align_corners" | b"asymmetric" => {}
            other => return refused("coordinate_transformation_mode", other),
        }
        match &rounding[..] {
            b"" | b"round_prefer_floor" | b"round_prefer_ceil" | b"floor" | b"ceil" => {}
            other => return refused("nearest_mode", other),
        }
        Ok(Self { mode, transformation, rounding })
    }

    /// Returns the position of an entry of the result among those of the operand.
    fn source(&self, axis: &Axis, place: usize) -> f32 {
        let (x, last) = (place as f32, axis.length as f32 - 1.0);
        match &self.transformation[..] {
            b"asymmetric" => x / axis.scale,
            b"align_corners" if axis.out == 1 => 0.0,
            b"align_corners" => x * last / (axis.out as f32 - 1.0),
            b"pytorch_half_pixel" if axis.out == 1 => 0.0,
            _ => (x + 0.5) / axis.scale - 0.5,
        }
    }

    /// Returns the nearest entry of the operand for each place.
    fn nearest(&self, axis: &Axis) -> Vec<i32> {
        let place = |place: usize| {
            let x = self.source(axis, place);
            let rounded = match &self.rounding[..] {
                b"floor" => x.floor(),
                b"ceil" => x.ceil(),
                b"round_prefer_floor" => (x - 0.5).ceil(),
                b"round_prefer_ceil" => (x + 0.5).floor(),
                _ if axis.scale < 1.0 => x.ceil(),
                _ => x.trunc(),
            };
            rounded.clamp(0.0, axis.length as f32 - 1.0) as i32
        };
        (0..axis.out).map(place).collect()
    }

    /// Returns the entries before and after each place, with their weights.
    fn linear(&self, axis: &Axis) -> [(Vec<i32>, Vec<f32>); 2] {
        let last = axis.length - 1;
        let places = (0..axis.out).map(|place| self.source(axis, place).clamp(0.0, last as f32));
        let places: Vec<f32> = places.collect();
        let first = |x: &f32| (*x as usize).min(last);
        let before = places.iter().map(|x| (first(x) as i32, 1.0 - (x - first(x) as f32))).unzip();
        let behind = places.iter().map(|x| ((first(x) + 1).min(last) as i32, x - first(x) as f32)).unzip();
        [before, behind]
    }
}

impl Lowering<'_> {
    /// Adds a table of indices by place along an axis.
    fn index(&mut self, places: &[i32], axis: usize, rank: usize) -> NodeId {
        let bytes = places.iter().flat_map(|place| place.to_le_bytes()).collect();
        let buffer = self.work.constant(Kind::I32, bytes);
        let mut strides = Strides::from_elem(0, rank);
        strides[axis] = 1;
        self.work.expressions.add(Kind::I32, Node::Load(View { buffer, offset: 0, strides }))
    }

    /// Returns the bits of a known tensor of one element.
    fn single(&self, tensor: &Tensor) -> Option<u64> {
        let view = match self.work.expressions.node(tensor.node) {
            Node::Number(bits) => return Some(*bits),
            Node::Load(view) => view,
            _ => return None,
        };
        let Holder::Constant(bytes) = &self.work.buffers[view.buffer].holder else { return None };
        constants::bits(self.work.kind(tensor), bytes, usize::try_from(view.offset).ok()?)
    }

    /// Returns the axes of the result, given by scales or by sizes.
    fn resized_axes(&mut self, call: &Call<'_>, tensor: &Tensor) -> Result<Vec<Axis>, Reason> {
        let rank = tensor.dims.len();
        let mut axes: Vec<Axis> = tensor.dims.iter().map(|&length| Axis { length, out: length, scale: 1.0 }).collect();
        let named: Vec<usize> = match call.ints("axes") {
            Some(named) => named.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<_, _>>()?,
            None => (0..rank).collect(),
        };
        let place = if call.opset < 11 { 1 } else { 2 };
        // The unused operand of the two may be present but empty.
        let sizes = call.operand(3).and_then(|name| self.known_of(name)).filter(|known| !known.elements.is_empty());
        if let Some(sizes) = sizes {
            if sizes.elements.len() != named.len() {
                return Err(format!("it has {} sizes for {} axes", sizes.elements.len(), named.len()));
            }
            for (number, &axis) in sizes.elements.iter().zip(&named) {
                let own = &mut axes[axis];
                own.out = usize::try_from(number.factor).ok().filter(|out| (1..1 << 31).contains(out)).unwrap_or(0);
                if own.out == 0 || number.by_rows != (tensor.by_rows && axis == 0) {
                    return Err("its sizes are not numbers from 1 on, or count rows elsewhere".to_owned());
                }
                own.scale = own.out as f32 / own.length as f32;
            }
            return Ok(axes);
        }
        if call.operand(3).is_some_and(|_| call.operand(place).is_none()) {
            return Err("its sizes are not known when the plan is made".to_owned());
        }
        let scales = self.tensor(call, place)?;
        let scales = self.floats(&scales).ok_or("its scales are not known when the plan is made")?;
        if scales.len() != named.len() {
            return Err(format!("it has {} scales for {} axes", scales.len(), named.len()));
        }
        for (&scale, &axis) in scales.iter().zip(&named) {
            let out = (axes[axis].length as f32 * scale).floor();
            if !(1.0..2e9).contains(&out) {
                return Err(format!("its scale {scale} leaves {out} entries of {}", axes[axis].length));
            }
            axes[axis] = Axis { scale, out: out as usize, ..axes[axis] };
        }
        Ok(axes)
    }
}
