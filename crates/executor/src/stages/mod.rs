//! The programs of a version, whole or cut into stages, and the connections between the stages.

use std::{fmt, sync::Arc};

use paternoster_batching::StageKnobs;
use paternoster_engine::{Program, ProgramPort};
use paternoster_model::{
    BoundaryTensor, DataType, Exit, ExitTo, InputSource, ModelSpec, Sink, StagePlan, StageSpec, TensorSpec,
};
use smallvec::SmallVec;

use super::CellPrograms;

/// The compiled programs of a version: one for the whole model, one per stage of a plan, or one per cell.
#[derive(Clone)]
pub struct StagePrograms(pub(super) Programs);

#[derive(Clone)]
pub(super) enum Programs {
    Whole(Arc<dyn Program>),
    Cut(Arc<Stages>),
    /// Requests unfold into cells.
    Cells(Arc<CellPrograms>),
}

/// The stages of a cut version.
pub(super) struct Stages {
    pub(super) stages: Vec<Stage>,
    /// For each boundary, its tensors.
    pub(super) boundaries: Vec<Vec<BoundaryTensor>>,
}

/// One stage.
pub(super) struct Stage {
    pub(super) program: Arc<dyn Program>,
    pub(super) inputs: Vec<(TensorSpec, InputSource)>,
    /// In the program's order.
    pub(super) outputs: Vec<Output>,
    /// Exits, which refer to `outputs` by index.
    pub(super) exits: Vec<Exit>,
}

/// One output of a stage's program, and its uses.
pub(super) struct Output {
    pub(super) tensor: TensorSpec,
    /// The tensor at the stage's boundary that it is written to.
    pub(super) boundary: Option<usize>,
    /// The model's outputs that it provides.
    pub(super) replies: SmallVec<[usize; 1]>,
    /// Whether it is needed after its rows have gone on, for responses or by an exit.
    pub(super) kept: bool,
}

impl StagePrograms {
    /// Combines a plan with the programs of its stages, in order. Each program has the tensors of [`Self::ports`].
    ///
    /// # Errors
    /// If the plan is inconsistent, or does not match the programs or the specification: a tensor that no earlier stage
    /// makes, or that is made twice; an output that no stage gives; strings between stages; an exit without a value of
    /// one FP32 per row, or whose rows would lack a tensor or an output.
    pub fn cut(spec: &ModelSpec, plan: StagePlan, programs: Vec<Arc<dyn Program>>) -> Result<Self, String> {
        check(spec, &plan, programs.len()).map_err(|fault| format!("the stages of model '{}' {fault}", spec.name))?;
        let stages = plan.stages.into_iter().zip(programs);
        let stages = stages.map(|(stage, program)| Stage::new(spec, stage, program)).collect();
        Ok(Self(Programs::Cut(Arc::new(Stages { stages, boundaries: plan.boundaries }))))
    }

    /// Returns the inputs and outputs of a stage's program, in order. A tensor with two uses is a single output of the
    /// program.
    pub fn tensors(stage: &StageSpec) -> (Vec<&TensorSpec>, Vec<&TensorSpec>) {
        let inputs = stage.inputs.iter().map(|(tensor, _)| tensor).collect();
        let mut outputs: Vec<&TensorSpec> = Vec::with_capacity(stage.outputs.len());
        for (tensor, _) in &stage.outputs {
            if outputs.iter().all(|output| output.name != tensor.name) {
                outputs.push(tensor);
            }
        }
        (inputs, outputs)
    }

    /// Returns the same as ports of a program.
    pub fn ports(stage: &StageSpec) -> (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) {
        let (inputs, outputs) = Self::tensors(stage);
        (inputs.into_iter().map(ProgramPort::from).collect(), outputs.into_iter().map(ProgramPort::from).collect())
    }

    /// Returns the number of stages or cell types.
    pub fn count(&self) -> usize {
        match &self.0 {
            Programs::Whole(_) => 1,
            Programs::Cut(stages) => stages.stages.len(),
            Programs::Cells(cells) => cells.count(),
        }
    }

    /// Returns the settings of the stages for the core.
    pub(super) fn knobs(&self) -> Vec<StageKnobs> {
        let stages = match &self.0 {
            Programs::Whole(_) => return vec![StageKnobs::default()],
            Programs::Cells(cells) => return cells.stage_knobs(),
            Programs::Cut(stages) => stages,
        };
        let knobs = stages.stages.iter().map(|stage| {
            let mut reads: SmallVec<[u16; 2]> =
                stage.inputs.iter().filter_map(|(_, source)| read_from(*source)).collect();
            reads.sort_unstable();
            reads.dedup();
            StageKnobs { reads, decides: !stage.exits.is_empty(), ..StageKnobs::default() }
        });
        knobs.collect()
    }

    /// Returns the programs, by stage or cell.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = &Arc<dyn Program>> + '_> {
        match &self.0 {
            Programs::Whole(program) => Box::new(std::iter::once(program)),
            Programs::Cut(stages) => Box::new(stages.stages.iter().map(|stage| &stage.program)),
            Programs::Cells(cells) => Box::new(cells.cells.iter().map(|cell| &cell.program)),
        }
    }

    /// Whether programs compute on cards that lanes of the CPU drive.
    pub(super) fn use_cards(&self) -> bool {
        self.iter().any(|program| program.uses_card())
    }

    /// Returns the cells, if requests unfold.
    pub fn cells(&self) -> Option<&Arc<CellPrograms>> {
        match &self.0 {
            Programs::Cells(cells) => Some(cells),
            Programs::Whole(_) | Programs::Cut(_) => None,
        }
    }

    /// Whether past runs predict the duration of the next one. Never true for stages and cells, because they follow one
    /// another on lanes: each would occupy the thread that serves connections.
    pub(super) fn is_steady(&self) -> bool {
        match &self.0 {
            Programs::Whole(program) => program.is_steady(),
            Programs::Cut(_) | Programs::Cells(_) => false,
        }
    }
}

impl<P: Program + 'static> From<Arc<P>> for StagePrograms {
    fn from(program: Arc<P>) -> Self {
        Self(Programs::Whole(program))
    }
}

impl From<CellPrograms> for StagePrograms {
    fn from(cells: CellPrograms) -> Self {
        Self(Programs::Cells(Arc::new(cells)))
    }
}

impl From<Arc<dyn Program>> for StagePrograms {
    fn from(program: Arc<dyn Program>) -> Self {
        Self(Programs::Whole(program))
    }
}

impl fmt::Debug for StagePrograms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StagePrograms({})", self.count())
    }
}

impl Stage {
    /// Creates a stage of a plan that has been checked.
    fn new(spec: &ModelSpec, stage: StageSpec, program: Arc<dyn Program>) -> Self {
        let mut outputs: Vec<Output> = Vec::with_capacity(stage.outputs.len());
        // By the plan's index: the index of the tensor among the program's outputs.
        let mut place = Vec::with_capacity(stage.outputs.len());
        for (tensor, sink) in stage.outputs {
            let known = outputs.iter().position(|output| output.tensor.name == tensor.name);
            let index = known.unwrap_or_else(|| {
                outputs.push(Output { tensor, boundary: None, replies: SmallVec::new(), kept: false });
                outputs.len() - 1
            });
            place.push(index);
            let output = &mut outputs[index];
            match sink {
                Sink::Boundary(tensor) => output.boundary = Some(usize::from(tensor)),
                Sink::Exit => output.kept = true,
                Sink::Reply(reply) => {
                    output.kept = true;
                    output.replies.push(reply);
                    output.tensor = spec.outputs[reply].clone();
                }
            }
        }
        let mut exits = stage.exits;
        for exit in &mut exits {
            exit.value = place[exit.value];
            outputs[exit.value].kept = true;
            let ExitTo::Done(answers) = &mut exit.to else { continue };
            for answer in answers.iter_mut().flatten() {
                *answer = place[*answer];
                outputs[*answer].kept = true;
            }
        }
        Self { program, inputs: stage.inputs, outputs, exits }
    }
}

/// Returns the error text of a fault in a stage.
pub(super) fn fault_of(spec: &ModelSpec, stage: usize, what: &str, fault: &str) -> String {
    format!("{what} of stage {stage} of model '{}': {fault}", spec.name)
}

fn read_from(source: InputSource) -> Option<u16> {
    match source {
        InputSource::Request(_) => None,
        InputSource::Boundary { boundary, .. } => Some(boundary),
    }
}

fn check(spec: &ModelSpec, plan: &StagePlan, programs: usize) -> Result<(), String> {
    let count = plan.stages.len();
    if count == 0 || plan.boundaries.len() + 1 != count || programs != count {
        let boundaries = plan.boundaries.len();
        return Err(format!("are {count} with {programs} programs and {boundaries} boundaries"));
    }
    if count > 1 && !spec.has_batch_axis() {
        return Err("need a batch axis".to_owned());
    }
    let mut given = vec![None; spec.outputs.len()];
    for (number, stage) in plan.stages.iter().enumerate() {
        let at = |fault: String| format!("do not fit: stage {number} {fault}");
        check_inputs(spec, plan, number).map_err(at)?;
        check_outputs(plan, number, &mut given).map_err(at)?;
        for exit in &stage.exits {
            check_exit(plan, number, exit, &given).map_err(at)?;
        }
    }
    match given.iter().position(Option::is_none) {
        Some(missing) => Err(format!("never give output '{}'", spec.outputs[missing].name)),
        None => Ok(()),
    }
}

fn check_inputs(spec: &ModelSpec, plan: &StagePlan, number: usize) -> Result<(), String> {
    for (tensor, source) in &plan.stages[number].inputs {
        let exists = match *source {
            InputSource::Request(input) => input < spec.inputs.len(),
            InputSource::Boundary { boundary, tensor } => {
                let (boundary, tensor) = (usize::from(boundary), usize::from(tensor));
                boundary < number && tensor < plan.boundaries[boundary].len()
            }
        };
        if !exists {
            return Err(format!("reads '{}' from {source:?}, which is not there by then", tensor.name));
        }
    }
    Ok(())
}

/// Records in `given` which stage gives each of the model's outputs.
fn check_outputs(plan: &StagePlan, number: usize, given: &mut [Option<usize>]) -> Result<(), String> {
    let mut left = vec![0; plan.boundaries.get(number).map_or(0, Vec::len)];
    for (tensor, sink) in &plan.stages[number].outputs {
        match *sink {
            Sink::Exit => {}
            Sink::Reply(reply) => match given.get_mut(reply) {
                Some(by @ None) => *by = Some(number),
                Some(Some(by)) => return Err(format!("gives output {reply}, as stage {by} does")),
                None => return Err(format!("gives output {reply}, which the model has not")),
            },
            Sink::Boundary(_) if tensor.datatype == DataType::Bytes => {
                return Err(format!("leaves strings in '{}', whose rows have no fixed size", tensor.name));
            }
            Sink::Boundary(place) => match left.get_mut(usize::from(place)) {
                Some(made) => *made += 1,
                None => return Err(format!("leaves '{}' where its boundary has no tensor", tensor.name)),
            },
        }
    }
    match left.iter().position(|&made| made != 1) {
        Some(place) => Err(format!("makes '{}' {} times", plan.boundaries[number][place].name, left[place])),
        None => Ok(()),
    }
}

fn check_exit(plan: &StagePlan, number: usize, exit: &Exit, given: &[Option<usize>]) -> Result<(), String> {
    let outputs = &plan.stages[number].outputs;
    let value = outputs.get(exit.value).ok_or("decides by an output that it has not")?;
    if value.0.datatype != DataType::Fp32 {
        return Err(format!("decides by '{}', which is {}, not FP32", value.0.name, value.0.datatype));
    }
    match &exit.to {
        ExitTo::Done(answers) => {
            let answered = |(reply, answer): (usize, &Option<usize>)| match answer {
                Some(answer) => *answer < outputs.len(),
                None => given[reply].is_some(),
            };
            if answers.len() == given.len() && answers.iter().enumerate().all(answered) {
                return Ok(());
            }
            Err("ends rows whose outputs nothing has given by then".to_owned())
        }
        ExitTo::Stage(target) => {
            let target = usize::from(*target);
            if target <= number || target >= plan.stages.len() {
                return Err(format!("sends rows to stage {target}"));
            }
            // Rows that skip stages have no data at the boundaries after those stages.
            let skipped = |boundary: u16| (number + 1..target).contains(&usize::from(boundary));
            let later = plan.stages[target..].iter().flat_map(|stage| &stage.inputs);
            if let Some((tensor, _)) = later.into_iter().find(|(_, source)| read_from(*source).is_some_and(skipped)) {
                return Err(format!("sends rows past the stage that makes '{}', which they need", tensor.name));
            }
            let gives = |(_, sink): &(TensorSpec, Sink)| matches!(sink, Sink::Reply(_));
            if plan.stages[number + 1..target].iter().any(|stage| stage.outputs.iter().any(gives)) {
                return Err("sends rows past a stage that gives outputs".to_owned());
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
