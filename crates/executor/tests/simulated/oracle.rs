//! The serial oracle: the result of each row of each request, computed without batches, lanes or buffers.

use paternoster_batching::{CellId, ModelId, Next, ReqId};
use paternoster_testing::sim::{content, external};

use super::{
    rng::mix,
    scenario::{Model, Scenario},
};

/// Returns the device's program of a stage.
pub(crate) fn program(model: ModelId, stage: u16) -> u64 {
    u64::from(model.0) << 16 | u64::from(stage)
}

/// How a row ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WayEnd {
    /// With this reply, after this stage.
    Reply { stage: u16, content: u64 },
    /// It fails.
    Fails,
}

/// Returns where a row goes after a stage, ignoring repetitions, which do not change its content.
pub(crate) fn next_of(scenario: &Scenario, model: ModelId, stage: u16, req: ReqId, row: u32) -> Next {
    let Model { knobs, skip, .. } = &scenario.models[model.0 as usize];
    if !knobs.stages[usize::from(stage)].decides {
        return Next::On;
    }
    let chance = mix(scenario.seed ^ mix(req.0 << 20 | u64::from(row) << 8 | u64::from(stage))) % 1000;
    match (chance, skip) {
        (0..80, _) => Next::Done,
        (80..90, _) => Next::Failed,
        (90..240, &Some((from, to))) if from == stage => Next::Skip(CellId(to)),
        _ => Next::On,
    }
}

/// Returns whether a row fails every task of a stage that it is in. Stages whose output the next does not read never
/// fail: on a lane that looks ahead, the reply may be computed before the task has ended.
pub(crate) fn is_bad(scenario: &Scenario, model: ModelId, stage: u16, req: ReqId, row: u32) -> bool {
    let stages = &scenario.models[model.0 as usize].knobs.stages;
    let is_read = stages.get(usize::from(stage) + 1).is_none_or(|next| next.reads.contains(&stage));
    let chance = mix(scenario.seed ^ mix(req.0 << 20 | u64::from(row) << 8 | 0xff));
    let own = chance % 1000 < scenario.bad_rows && chance / 1000 % stages.len() as u64 == u64::from(stage);
    own && is_read
}

/// Returns whether a row repeats a stage that it has repeated `before` times.
pub(crate) fn repeats(scenario: &Scenario, model: ModelId, stage: u16, req: ReqId, row: u32, before: u8) -> bool {
    scenario.models[model.0 as usize].knobs.stages[usize::from(stage)].decides
        && before < 2
        && mix(scenario.seed ^ mix(!(req.0 << 20 | u64::from(row) << 8 | u64::from(stage)))) % 1000 < 60
}

/// Returns how a row ends.
pub(crate) fn way_end(scenario: &Scenario, model: ModelId, req: ReqId, row: u32) -> WayEnd {
    let stages = &scenario.models[model.0 as usize].knobs.stages;
    let mut contents = [0; 8];
    let mut stage = 0;
    loop {
        let at = usize::from(stage);
        let own = if stage == 0 {
            content(program(model, stage), 0, &[external(req.0, u64::from(row))])
        } else {
            let mut inputs = [0; 8];
            let reads = &stages[at].reads;
            inputs.iter_mut().zip(reads).for_each(|(input, &boundary)| *input = contents[usize::from(boundary)]);
            content(program(model, stage), 0, &inputs[..reads.len()])
        };
        contents[at] = own;
        if is_bad(scenario, model, stage, req, row) {
            return WayEnd::Fails;
        }
        stage = match next_of(scenario, model, stage, req, row) {
            Next::On if at + 1 < stages.len() => stage + 1,
            Next::On | Next::Done => return WayEnd::Reply { stage, content: own },
            Next::Skip(target) => target.0,
            // Rows of several stages cannot pause.
            Next::Failed | Next::Pause => return WayEnd::Fails,
        };
    }
}
