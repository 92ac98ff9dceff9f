//! The rule of `Scan`: follows its body once, with states and entries that depend on the rows as the operands do.
//!
//! That suffices for every step if the body gives each state in the form in which it takes it.

mod form;

use std::collections::HashMap;

use paternoster_model::DataType;

pub(crate) use self::form::{ScanForm, has_states};
use super::{
    Facts,
    call::{Call, Outcome, axis_of},
    fact::{Fact, Flow, Origin},
    flow::mixed,
    size::{Dim, Symbols},
};
use crate::{Port, links::Links, pb};

const ALONG: &str = "runs along the batch";
const TURNED: &str = "gives its outputs in the opposite order of its inputs";

/// How a `Scan` runs, as seen by what is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// Along the rows: an entry of each is a row.
    Along,
    /// Along another axis: an entry has all rows.
    Across,
}

/// Returns whether a `Scan` with states runs along the steps that are followed.
pub(super) fn recurs(call: &Call<'_>) -> bool {
    let form = || ScanForm::of(call.node);
    call.follows_steps && has_states(call.node) && form().and_then(|form| course(call, &form)) == Some(Course::Along)
}

/// Returns how a `Scan` runs; `None` if only some of its inputs have the rows along its axis.
fn course(call: &Call<'_>, form: &ScanForm<'_>) -> Option<Course> {
    let mut along = 0;
    for (index, input) in (form.states..).zip(&form.inputs) {
        let dims = call.dims(index)?;
        let axis = axis_of(input.axis, dims.len())?;
        if call.rows(index) == Some(axis) {
            dims[axis].as_ref().filter(|length| length.is_batch())?;
            along += 1;
        }
    }
    match along {
        0 => Some(Course::Across),
        _ => (along == form.inputs.len()).then_some(Course::Along),
    }
}

/// Returns the outcome and the element type of each result. `outer` returns facts about tensors around the body.
pub(super) fn outcomes(
    call: &Call<'_>,
    symbols: &mut Symbols,
    outer: &dyn Fn(&str) -> Option<Fact>,
) -> Option<Vec<(Outcome, Option<DataType>)>> {
    let form = ScanForm::of(call.node)?;
    let course = course(call, &form)?;
    let given = form.body.input.iter().enumerate().map(|(index, input)| {
        let operand = call.operand(index)?;
        let fact = match index.checked_sub(form.states) {
            None => Fact { value: None, reals: None, ..operand.clone() },
            Some(scanned) => entry(operand, form.inputs[scanned].axis)?,
        };
        Some(Fact { datatype: fact.datatype.or_else(|| Port::of(input).datatype), ..fact })
    });
    let given = given.collect::<Option<Vec<Fact>>>()?;
    let made = body(form.body, &given, symbols, call.opset, outer)?;
    // A state that mixes rows mixes those of all that is made of it.
    let mixing = made[..form.states].iter().find_map(|fact| match fact.flow {
        Flow::Mixed(mixing) => Some(mixing.cause),
        _ => None,
    });
    let keeps_form = given[..form.states].iter().zip(&made).all(|(taken, given)| {
        let is_known = taken.dims.as_ref().is_some_and(|dims| dims.iter().all(Option::is_some));
        let keeps_rows = mixing.is_some() || taken.flow == given.flow;
        is_known && taken.dims == given.dims && taken.datatype == given.datatype && keeps_rows
    });
    if !keeps_form {
        return None;
    }
    let scanned = call.dims(form.states)?;
    let steps = scanned.get(axis_of(form.inputs[0].axis, scanned.len())?)?.clone();
    let direction = form.is_reversed();
    let outcome = |(index, fact): (usize, &Fact)| {
        let stacked = index.checked_sub(form.states).map(|output| form.outputs[output]);
        let mut dims = fact.dims.clone();
        let mut axis = None;
        if let (Some(stacked), Some(dims)) = (stacked, &mut dims) {
            let at = axis_of(stacked.axis, dims.len() + 1)?;
            dims.insert(at, steps.clone());
            axis = Some(at);
        }
        let track = match (fact.flow, course) {
            (Flow::Mixed(mixing), _) => Err(mixing.cause),
            (Flow::Count, _) => Err("counts the rows"),
            (Flow::Rows(rows), Course::Across) => Ok(Some(rows + usize::from(axis.is_some_and(|axis| axis <= rows)))),
            (Flow::Constant, Course::Across) => Ok(None),
            (Flow::Constant, Course::Along) if call.follows_steps || form.states == 0 => match stacked {
                Some(stacked) if Some(stacked.reversed) == direction => Ok(axis),
                Some(_) => Err(TURNED),
                None => Err("is the last step"),
            },
            (Flow::Rows(_) | Flow::Constant, Course::Along) => Err(ALONG),
        };
        let track = mixing.map_or(track, Err);
        Some((Outcome { dims, value: None, track }, fact.datatype))
    };
    made.iter().enumerate().map(outcome).collect()
}

/// Returns the fact of one entry of a scanned tensor.
fn entry(of: &Fact, axis: i64) -> Option<Fact> {
    let dims = of.dims.as_ref()?;
    let axis = axis_of(axis, dims.len())?;
    let rest = dims.iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, dim)| dim.clone());
    let dims: Vec<Dim> = rest.collect();
    let flow = match of.flow {
        Flow::Rows(rows) if rows == axis => Flow::Constant,
        Flow::Rows(rows) => Flow::Rows(rows - usize::from(axis < rows)),
        flow => flow,
    };
    Some(Fact { datatype: of.datatype, dims: Some(dims), value: None, reals: None, flow })
}

/// Follows a body, and returns the facts of its outputs.
fn body(
    graph: &pb::GraphProto,
    given: &[Fact],
    symbols: &mut Symbols,
    opset: i64,
    outer: &dyn Fn(&str) -> Option<Fact>,
) -> Option<Vec<Fact>> {
    let links = Links::new(graph);
    let unknown = |tensor| Fact::opaque(mixed(Origin::Tensor(tensor), "is not defined by the graph"));
    let fact = |tensor| match links.maker(tensor) {
        None => outer(links.name(tensor)).unwrap_or_else(|| unknown(tensor)),
        Some(_) => unknown(tensor),
    };
    let facts = (0..links.tensors()).map(fact).collect();
    let mut inner = Facts { symbols: std::mem::take(symbols), facts, steps: None };
    inner.weights(graph, &links);
    for (input, fact) in graph.input.iter().zip(given) {
        if let Some(tensor) = links.find(input.name()) {
            inner.facts[tensor] = fact.clone();
        }
    }
    for &id in links.order() {
        inner.follow(graph, &links, id, opset, &HashMap::new());
    }
    *symbols = inner.symbols;
    let output = |output: &pb::ValueInfoProto| {
        let fact = match links.find(output.name()) {
            Some(tensor) => inner.facts[tensor].clone(),
            None => outer(output.name())?,
        };
        let datatype = fact.datatype.or_else(|| Port::of(output).datatype);
        Some(Fact { datatype, ..fact })
    };
    graph.output.iter().map(output).collect()
}
