//! The serial oracle: computes the expected result of each request without batches, lanes or slots.

use paternoster_model::{CellId, Next};
use paternoster_testing::sim::{content, external};

use super::{
    rng::mix,
    scenario::Scenario,
    values::START,
    world::{Kind, Request, Shape, World, children, token},
};

/// Returns the program of a stage or cell on a device.
pub(super) fn program(model: usize, cell: usize) -> u64 {
    (model as u64) << 16 | cell as u64
}

/// Returns where a row goes after a stage, ignoring repetitions, which change no value.
pub(super) fn next_of(scenario: &Scenario, model: usize, stage: usize, number: u64, row: u32) -> Next {
    let own = &scenario.models[model];
    if !own.knobs.stages[stage].decides {
        return Next::On;
    }
    match (chance(scenario, number, row, stage as u64) % 1000, own.skip) {
        (0..80, _) => Next::Done,
        (80..90, _) => Next::Failed,
        (90..240, Some((from, to))) if usize::from(from) == stage => Next::Skip(CellId(to)),
        _ => Next::On,
    }
}

/// Whether a row repeats a stage that it has repeated `before` times.
pub(super) fn repeats(scenario: &Scenario, model: usize, stage: usize, number: u64, row: u32, before: u8) -> bool {
    scenario.models[model].knobs.stages[stage].decides
        && before < 2
        && chance(scenario, !number, row, stage as u64) % 1000 < 60
}

/// Whether a row fails every task of a stage that it is in. A stage that the next one does not read never fails: on a
/// lane that runs ahead the response may be complete before such a task has ended.
pub(super) fn is_bad(scenario: &Scenario, model: usize, stage: usize, number: u64, row: u32) -> bool {
    let stages = &scenario.models[model].knobs.stages;
    let is_read = stages.get(stage + 1).is_none_or(|next| next.reads.contains(&(stage as u16)));
    let chance = chance(scenario, number, row, 0xff);
    is_read && chance % 1000 < scenario.bad_rows && chance / 1000 % stages.len() as u64 == stage as u64
}

fn chance(scenario: &Scenario, number: u64, row: u32, of: u64) -> u64 {
    mix(scenario.seed ^ mix(number << 20 | u64::from(row) << 8 | of))
}

/// Whether a node is the last of its loop.
pub(super) fn is_last(world: &World, number: u64, node: u32) -> bool {
    let request = &world.requests[number as usize];
    world.cells.shape == Shape::Loop
        && node == (mix(world.scenario.seed ^ mix(number)) % u64::from(request.nodes)) as u32
}

/// Returns the values of a request's rows or responses; `None` if it fails.
pub(super) fn reply(world: &World, number: u64) -> Option<Vec<u64>> {
    let request = &world.requests[number as usize];
    match world.kind(request.model) {
        Kind::Stages => (0..request.rows).map(|row| of_row(&world.scenario, request.model, number, row)).collect(),
        Kind::Cells => of_nodes(world, request, number).map(|value| vec![value]),
        Kind::Decoupled => {
            let of_step = |step| content(program(request.model, 0), 0, &[external(number, u64::from(step))]);
            Some((0..request.nodes).map(of_step).collect())
        }
    }
}

/// Returns the value of a row after the stage where it is done.
fn of_row(scenario: &Scenario, model: usize, number: u64, row: u32) -> Option<u64> {
    let stages = &scenario.models[model].knobs.stages;
    let mut contents = [0; 8];
    let mut stage = 0;
    loop {
        let inputs: Vec<u64> = match stage {
            0 => vec![external(number, u64::from(row))],
            _ => stages[stage].reads.iter().map(|&boundary| contents[usize::from(boundary)]).collect(),
        };
        let is_last = stage + 1 == stages.len();
        contents[stage] = content(program(model, stage), 0, &inputs);
        // A value that is returned beside one that a later stage reads is the second output.
        let given = content(program(model, stage), u16::from(!is_last), &inputs);
        if is_bad(scenario, model, stage, number, row) {
            return None;
        }
        stage = match next_of(scenario, model, stage, number, row) {
            Next::On if !is_last => stage + 1,
            Next::On | Next::Done => return Some(given),
            Next::Skip(target) => usize::from(target.0),
            Next::Failed | Next::Pause => return None,
        };
    }
}

/// Returns the value of the last step, or of the root.
fn of_nodes(world: &World, request: &Request, number: u64) -> Option<u64> {
    let shape = world.cells.shape;
    let nodes = match shape {
        Shape::Loop => {
            (0..request.nodes).find(|&node| is_last(world, number, node)).map_or(request.nodes, |node| node + 1)
        }
        Shape::Chain | Shape::Chunks(_) | Shape::Tree => request.nodes,
    };
    if request.bad_node.is_some_and(|bad| bad < nodes) {
        return None;
    }
    let (mut states, mut given): (Vec<u64>, u64) = (Vec::new(), 0);
    for node in 0..nodes {
        let token = token(number, u64::from(node));
        let (cell, inputs) = match (shape, children(node, request.nodes)) {
            (Shape::Tree, [Some(left), Some(right)]) => (1, vec![states[left as usize], states[right as usize]]),
            (Shape::Tree, _) => (0, vec![token]),
            _ => (0, vec![token, states.last().copied().unwrap_or(START)]),
        };
        let program = program(request.model, cell);
        states.push(content(program, 0, &inputs));
        given = content(program, 1, &inputs);
    }
    Some(given)
}
