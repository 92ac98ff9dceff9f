//! Rules of elementwise operators, including arithmetic on individually known integers.

use crate::{
    infer::{
        call::{Call, Outcome, Outcomes},
        meet::{Rows, broadcast},
        size::{Dim, Size, Symbols},
    },
    pb::tensor_proto::DataType as Elem,
};

/// Broadcasts all operands together.
pub(super) fn broadcasting(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    let facts: Vec<_> = call.operands.iter().flatten().collect();
    let shapes = facts.iter().map(|fact| fact.dims.as_deref()).collect::<Option<Vec<_>>>()?;
    let dims = broadcast(&shapes)?;
    let rows = facts.iter().zip(&shapes).fold(Rows::default(), |rows, (fact, dims)| rows.with(dims, fact.rows()));
    let track = rows.track(dims.len());
    let value = arithmetic(call, symbols).filter(|_| dims.len() <= 1);
    Some(vec![Outcome { dims: Some(dims), value, track }])
}

/// Elementwise in the first operand; the others are parameters.
pub(super) fn of_first(call: &Call<'_>) -> Outcomes {
    if (1..call.operands.len()).any(|index| call.rows(index).is_some()) {
        return None;
    }
    let dims = call.dims(0)?.to_vec();
    let kept = match call.node.op_type() {
        "Identity" => true,
        // A cast to another type may change the numbers. The lengths of tensors fit into 32 bits.
        "Cast" => call.int("to").is_some_and(|to| [Elem::Int32 as i64, Elem::Int64 as i64].contains(&to)),
        _ => false,
    };
    let value = call.value(0).filter(|_| kept).map(<[Dim]>::to_vec);
    Some(vec![Outcome { dims: Some(dims), value, track: Ok(call.rows(0)) }])
}

/// `Dropout`: the result and its mask.
pub(super) fn dropout(call: &Call<'_>) -> Outcomes {
    let training = match call.operand(2) {
        Some(operand) => operand.numbers().is_none_or(|flags| flags.iter().any(|&flag| flag != 0)),
        None => false,
    };
    let track = if training { Err("draws random numbers") } else { Ok(call.rows(0)) };
    let dims = call.dims(0)?;
    Some(vec![Outcome::new(dims.to_vec(), track), Outcome::new(dims.to_vec(), track)])
}

fn arithmetic(call: &Call<'_>, symbols: &mut Symbols) -> Option<Vec<Dim>> {
    type Step = fn(&mut Symbols, &Size, &Size) -> Dim;
    let step: Step = match call.node.op_type() {
        "Add" | "Sum" => Symbols::sum,
        "Sub" => Symbols::difference,
        "Mul" => |_, left, right| left.times(right),
        "Div" => Symbols::quotient,
        "Mod" => Symbols::remainder,
        "Min" => Symbols::least,
        "Max" => Symbols::greatest,
        "Where" => return chosen(call),
        "Equal" => |symbols, left, right| equal(symbols, left, right),
        _ => return None,
    };
    let first = call.value(0)?;
    (1..call.operands.len()).try_fold(first.to_vec(), |left, index| {
        let right = call.value(index)?;
        let pairs = pairs(&left, right)?;
        Some(pairs.into_iter().map(|(left, right)| step(symbols, left.as_ref()?, right.as_ref()?)).collect())
    })
}

/// Pairs the elements of two lists; a single element is paired with each of the other list.
fn pairs<'d>(left: &'d [Dim], right: &'d [Dim]) -> Option<Vec<(&'d Dim, &'d Dim)>> {
    match (left, right) {
        _ if left.len() == right.len() => Some(left.iter().zip(right).collect()),
        ([one], _) => Some(right.iter().map(|other| (one, other)).collect()),
        (_, [one]) => Some(left.iter().map(|other| (other, one)).collect()),
        _ => None,
    }
}

/// Compares sizes; unknown if the result depends on a symbol. Lengths of inputs are never negative.
fn equal(symbols: &Symbols, left: &Size, right: &Size) -> Dim {
    let negative = |size: &Size| size.known().is_some_and(|number| number < 0);
    let length = |size: &Size| size.symbol().is_some_and(|symbol| symbols.name(symbol).is_some());
    match (left.known(), right.known()) {
        _ if left == right => Some(Size::from(1)),
        (Some(_), Some(_)) => Some(Size::from(0)),
        _ if negative(left) && length(right) || negative(right) && length(left) => Some(Size::from(0)),
        _ => None,
    }
}

fn chosen(call: &Call<'_>) -> Option<Vec<Dim>> {
    let (condition, yes, no) = (call.value(0)?, call.value(1)?, call.value(2)?);
    let length = condition.len().max(yes.len()).max(no.len());
    let at = |list: &'_ [Dim], index: usize| list.get(if list.len() == 1 { 0 } else { index }).cloned();
    (0..length)
        .map(|index| {
            let (yes, no) = (at(yes, index)?, at(no, index)?);
            Some(match at(condition, index)?.and_then(|flag| flag.known()) {
                Some(0) => no,
                Some(_) => yes,
                None => yes.filter(|yes| Some(yes) == no.as_ref()),
            })
        })
        .collect()
}
