//! Operators that compute each element from the elements at the same place.

use paternoster_onnx::pb::tensor_proto::DataType as Elem;
use smallvec::SmallVec;

use super::{Call, Lowering, Outcome, Reason, Rule, Value};
use crate::cuda::{
    ir::{Dims, Function, Kind, Node, Tensor},
    views,
};

pub(super) fn rule(op: &str) -> Option<Rule> {
    if unary(op).is_some() {
        return Some(one);
    }
    if arithmetic(op).is_some() {
        return Some(several);
    }
    if comparison(op).is_some() {
        return Some(compared);
    }
    Some(match op {
        "Identity" | "Dropout" => same,
        "Not" => not,
        "And" | "Or" | "Xor" => logical,
        "Where" => chosen,
        "Cast" => cast,
        "Clip" => clipped,
        "Reciprocal" => reciprocal,
        "LeakyRelu" => leaky,
        "HardSigmoid" => hard_sigmoid,
        "HardSwish" => hard_swish,
        "Gelu" => gelu,
        _ => return None,
    })
}

fn unary(op: &str) -> Option<Function> {
    Some(match op {
        "Sigmoid" => Function::Sigmoid,
        "Tanh" => Function::Tanh,
        "Relu" => Function::Relu,
        "Erf" => Function::Erf,
        "Exp" => Function::Exp,
        "Log" => Function::Log,
        "Sqrt" => Function::Sqrt,
        "Sin" => Function::Sin,
        "Cos" => Function::Cos,
        "Floor" => Function::Floor,
        "Ceil" => Function::Ceil,
        "Round" => Function::Round,
        "Neg" => Function::Neg,
        "Abs" => Function::Abs,
        "Sign" => Function::Sign,
        _ => return None,
    })
}

fn arithmetic(op: &str) -> Option<Function> {
    Some(match op {
        "Add" | "Sum" => Function::Add,
        "Sub" => Function::Sub,
        "Mul" => Function::Mul,
        "Div" => Function::Div,
        "Max" => Function::Max,
        "Min" => Function::Min,
        "Pow" => Function::Pow,
        "Mod" => Function::Mod,
        _ => return None,
    })
}

/// Returns the function, and whether its operands are swapped.
fn comparison(op: &str) -> Option<(Function, bool)> {
    Some(match op {
        "Equal" => (Function::Equal, false),
        "Less" => (Function::Less, false),
        "LessOrEqual" => (Function::AtMost, false),
        "Greater" => (Function::Less, true),
        "GreaterOrEqual" => (Function::AtMost, true),
        _ => return None,
    })
}

fn given(tensor: Tensor) -> Outcome {
    Ok(vec![Value::Tensor(tensor)])
}

fn same(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    given(lowering.tensor(call, 0)?)
}

fn one(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let function = unary(call.op()).ok_or("it has no function")?;
    let tensors = lowering.tensors(call)?;
    let kind = lowering.work.kind(&tensors[0]);
    let takes_whole = matches!(function, Function::Neg | Function::Abs | Function::Sign | Function::Relu);
    if kind == Kind::Bool || kind.is_whole() && !takes_whole {
        return Err(format!("it has elements of {kind:?}"));
    }
    given(lowering.apply(function, kind, &tensors)?)
}

fn several(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let function = arithmetic(call.op()).ok_or("it has no function")?;
    let mut tensors = lowering.tensors(call)?.into_iter();
    let mut result = tensors.next().ok_or("it has no operand")?;
    let kind = lowering.work.kind(&result);
    if kind == Kind::Bool {
        return Err("it has elements of Bool".to_owned());
    }
    let function = match (function, kind, call.int("fmod")) {
        (Function::Mod, Kind::F32, Some(1)) | (Function::Mod, Kind::I32 | Kind::I64, Some(1)) => Function::Remainder,
        (Function::Mod, Kind::F32, _) => return Err("it has elements of F32 without fmod".to_owned()),
        _ => function,
    };
    for mut other in tensors {
        // ONNX allows an exponent of another type than its base.
        if function == Function::Pow && lowering.work.kind(&other) != kind {
            if kind.is_whole() && !lowering.work.kind(&other).is_whole() {
                return Err("it raises integers to a power that may not be an integer".to_owned());
            }
            other = lowering.converted(&other, kind)?;
        }
        result = lowering.apply(function, kind, &[result, other])?;
    }
    given(result)
}

fn compared(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let (function, is_turned) = comparison(call.op()).ok_or("it has no function")?;
    let mut tensors = lowering.tensors(call)?;
    if is_turned {
        tensors.reverse();
    }
    given(lowering.apply(function, Kind::Bool, &tensors)?)
}

fn not(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensors = lowering.tensors(call)?;
    given(lowering.apply(Function::Not, Kind::Bool, &tensors)?)
}

fn logical(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let function = match call.op() {
        "And" => Function::And,
        "Or" => Function::Or,
        _ => Function::Xor,
    };
    let tensors = lowering.tensors(call)?;
    given(lowering.apply(function, Kind::Bool, &tensors)?)
}

fn chosen(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensors = lowering.tensors(call)?;
    let [_, chosen, other] = &tensors[..] else { return Err("it does not have three operands".to_owned()) };
    let kind = lowering.work.kind(chosen);
    if lowering.work.kind(other) != kind {
        return Err(format!("it chooses between {kind:?} and {:?}", lowering.work.kind(other)));
    }
    given(lowering.apply(Function::Select, kind, &tensors)?)
}

fn cast(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let to = call.int("to").and_then(|to| Elem::try_from(i32::try_from(to).ok()?).ok());
    let kind = match to {
        Some(Elem::Float) => Kind::F32,
        Some(Elem::Int64) => Kind::I64,
        Some(Elem::Int32) => Kind::I32,
        Some(Elem::Bool) => Kind::Bool,
        Some(other) => return Err(format!("it casts to {}", other.as_str_name())),
        None => return Err("it casts to an unknown type".to_owned()),
    };
    let tensors = lowering.tensors(call)?;
    given(lowering.converted(&tensors[0], kind)?)
}

fn clipped(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let mut result = lowering.tensor(call, 0)?;
    let kind = lowering.work.kind(&result);
    for (index, attribute, function) in [(1, "min", Function::Max), (2, "max", Function::Min)] {
        let bound = match (call.operand(index), call.float(attribute)) {
            (Some(_), _) => lowering.tensor(call, index)?,
            (None, Some(bound)) => lowering.number(Kind::F32, bound.to_bits().into(), false, &[]),
            (None, None) => continue,
        };
        result = lowering.apply(function, kind, &[result, bound])?;
    }
    given(result)
}

impl Lowering<'_> {
    /// Applies a function to tensors that are broadcast to one shape (ONNX, "Broadcasting in ONNX", multidirectional).
    pub(crate) fn apply(&mut self, function: Function, kind: Kind, tensors: &[Tensor]) -> Result<Tensor, Reason> {
        let kinds: Vec<Kind> = tensors.iter().map(|tensor| self.work.kind(tensor)).collect();
        let operands = if function == Function::Select { &kinds[1..] } else { &kinds[..] };
        if operands.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(format!("its operands are of {operands:?}"));
        }
        let tensors = self.broadcast(tensors)?;
        let nodes: SmallVec<[usize; 3]> = tensors.iter().map(|tensor| tensor.node).collect();
        let node = self.work.expressions.add(kind, Node::Apply(function, nodes));
        let Tensor { by_rows, dims, .. } = tensors.into_iter().next().ok_or("it has no operand")?;
        Ok(Tensor { by_rows, dims, node })
    }

    /// Applies a function to a tensor and a constant.
    pub(crate) fn with_number(&mut self, function: Function, tensor: &Tensor, number: f32) -> Result<Tensor, Reason> {
        let number = self.number(Kind::F32, number.to_bits().into(), false, &[]);
        self.apply(function, Kind::F32, &[tensor.clone(), number])
    }

    /// Returns alpha · x + beta, clamped to [0, 1].
    fn ramp(&mut self, x: &Tensor, alpha: f32, beta: f32) -> Result<Tensor, Reason> {
        let scaled = self.with_number(Function::Mul, x, alpha)?;
        let shifted = self.with_number(Function::Add, &scaled, beta)?;
        let from_zero = self.with_number(Function::Max, &shifted, 0.0)?;
        self.with_number(Function::Min, &from_zero, 1.0)
    }

    /// Converts a tensor to another type.
    pub(crate) fn converted(&mut self, tensor: &Tensor, kind: Kind) -> Result<Tensor, Reason> {
        let function = match kind {
            _ if self.work.kind(tensor) == kind => return Ok(tensor.clone()),
            Kind::F32 => Function::ToF32,
            Kind::I64 => Function::ToI64,
            Kind::I32 => Function::ToI32,
            Kind::Bool => Function::ToBool,
        };
        self.apply(function, kind, std::slice::from_ref(tensor))
    }

    /// Broadcasts tensors to one shape.
    pub(crate) fn broadcast(&mut self, tensors: &[Tensor]) -> Result<Vec<Tensor>, Reason> {
        let rank = tensors.iter().map(|tensor| tensor.dims.len()).max().unwrap_or(0);
        let by_rows = tensors.iter().any(|tensor| tensor.by_rows);
        let mut dims: Dims = SmallVec::from_elem(1, rank);
        for tensor in tensors {
            for (to, &length) in dims[rank - tensor.dims.len()..].iter_mut().zip(&tensor.dims) {
                match (*to, length) {
                    (1, _) => *to = length,
                    (_, 1) => {}
                    (known, length) if known == length => {}
                    (known, length) => return Err(format!("axes of length {known} and {length} cannot be broadcast")),
                }
            }
        }
        let fits = |tensor: &Tensor| {
            if tensor.by_rows {
                tensor.dims.len() == rank && tensor.dims[0] == dims[0]
            } else {
                !by_rows || tensor.dims.len() < rank || tensor.dims[0] == 1
            }
        };
        if !tensors.iter().all(fits) {
            return Err("it combines the rows of a batch with another axis".to_owned());
        }
        let spread = |tensor: &Tensor| {
            let mut tensor = tensor.clone();
            while tensor.dims.len() < rank {
                tensor = views::with_axis(&mut self.work.expressions, &tensor, 0);
            }
            views::expanded(&mut self.work.expressions, &tensor, &dims, by_rows)
        };
        Ok(tensors.iter().map(spread).collect())
    }
}

fn reciprocal(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensors = lowering.tensors(call)?;
    let one = lowering.number(Kind::F32, 1.0_f32.to_bits().into(), false, &[]);
    given(lowering.apply(Function::Div, Kind::F32, &[one, tensors[0].clone()])?)
}

/// Computes max(x, alpha · x) if alpha is at most 1, and min(x, alpha · x) otherwise.
fn leaky(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensors = lowering.tensors(call)?;
    let alpha = call.float("alpha").unwrap_or(0.01);
    let scaled = lowering.with_number(Function::Mul, &tensors[0], alpha)?;
    let function = if alpha <= 1.0 { Function::Max } else { Function::Min };
    given(lowering.apply(function, Kind::F32, &[tensors[0].clone(), scaled])?)
}

fn hard_sigmoid(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensors = lowering.tensors(call)?;
    let (alpha, beta) = (call.float("alpha").unwrap_or(0.2), call.float("beta").unwrap_or(0.5));
    given(lowering.ramp(&tensors[0], alpha, beta)?)
}

/// Computes x · max(0, min(1, x / 6 + 1 / 2)).
fn hard_swish(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let x = lowering.tensors(call)?.swap_remove(0);
    let ramp = lowering.ramp(&x, 1.0 / 6.0, 0.5)?;
    given(lowering.apply(Function::Mul, Kind::F32, &[x, ramp])?)
}

/// Computes x · (1 + erf(x / √2)) / 2, or its approximation with tanh.
fn gelu(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let x = lowering.tensors(call)?.swap_remove(0);
    let bell = if call.text("approximate") == Some(b"tanh") {
        let square = lowering.apply(Function::Mul, Kind::F32, &[x.clone(), x.clone()])?;
        let cubic = lowering.with_number(Function::Mul, &square, 0.044_715)?;
        let bent = lowering.with_number(Function::Add, &cubic, 1.0)?;
        let scaled = lowering.with_number(Function::Mul, &x, (2.0 / std::f32::consts::PI).sqrt())?;
        let inner = lowering.apply(Function::Mul, Kind::F32, &[scaled, bent])?;
        lowering.apply(Function::Tanh, Kind::F32, &[inner])?
    } else {
        let scaled = lowering.with_number(Function::Mul, &x, std::f32::consts::FRAC_1_SQRT_2)?;
        lowering.apply(Function::Erf, Kind::F32, &[scaled])?
    };
    let shifted = lowering.with_number(Function::Add, &bell, 1.0)?;
    let half = lowering.with_number(Function::Mul, &x, 0.5)?;
    given(lowering.apply(Function::Mul, Kind::F32, &[half, shifted])?)
}
