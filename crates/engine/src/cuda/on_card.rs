//! A program for the CPU together with its plans for cards.

use std::{rc::Rc, sync::Arc};

use paternoster_device::{
    DeviceError, StreamId,
    cuda::{Address, Capture, Compiler, Cuda},
};
use paternoster_model::{Dims, IndexRange, Lengths};

use super::{LoadedPlan, Plan, Prepared, Weights, Workspace};
use crate::{Batch, CardProgram, CardWeights, CardWorkspace, EngineError, Execution, Program, RunParameters, RunSize};

/// A graph that runs on the CPU and on cards.
pub struct OnCard {
    host: Arc<dyn Program>,
    plans: Vec<(Lengths, Plan)>,
}

impl OnCard {
    /// Combines a program for the CPU with plans of the same graph, with the same inputs and outputs: one plan for each
    /// of the lengths that padded axes may have, or a single one with empty lengths if nothing is padded.
    pub fn new(host: Arc<dyn Program>, plans: Vec<(Lengths, Plan)>) -> Self {
        Self { host, plans }
    }
}

impl Program for OnCard {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        self.host.run(batch)
    }

    fn run_into(&self, batch: &Batch<'_>, given: &mut [Option<&mut [u8]>]) -> Result<Execution, EngineError> {
        self.host.run_into(batch, given)
    }

    fn is_steady(&self) -> bool {
        self.host.is_steady()
    }

    fn index_ranges(&self) -> &[Option<IndexRange>] {
        self.host.index_ranges()
    }

    fn needs_elements(&self) -> bool {
        self.host.needs_elements()
    }

    fn origin(&self) -> Option<[u8; 32]> {
        self.host.origin()
    }

    fn on_card(&self) -> Option<&dyn CardProgram> {
        Some(self)
    }
}

impl CardProgram for OnCard {
    fn lengths(&self) -> Vec<Lengths> {
        self.plans.iter().map(|(lengths, _)| lengths.clone()).collect()
    }

    fn output_dims(&self, lengths: usize, output: usize) -> Option<Dims> {
        let (_, plan) = self.plans.get(lengths)?;
        Some(plan.outputs().get(output)?.dims.clone())
    }

    fn compile(&self, compiler: &Compiler) -> Result<(), String> {
        self.plans.iter().try_for_each(|(_, plan)| plan.compile(compiler))
    }

    fn load(&self, card: &mut Cuda) -> Result<Box<dyn CardWeights>, DeviceError> {
        let plans = || self.plans.iter().map(|(_, plan)| plan);
        let weights = Rc::new(Weights::upload(card, plans())?);
        let loaded = plans().map(|plan| plan.load_with(card, Rc::clone(&weights)).map(Rc::new));
        Ok(Box::new(OnAllStreams(loaded.collect::<Result<_, _>>()?)))
    }
}

/// Loaded plans, by lengths.
struct OnAllStreams(Vec<Rc<LoadedPlan>>);

impl CardWeights for OnAllStreams {
    fn reserve(&self, card: &mut Cuda, stream: StreamId, max_rows: u32) -> Result<Box<dyn CardWorkspace>, DeviceError> {
        let loaded: Vec<&LoadedPlan> = self.0.iter().map(|loaded| &**loaded).collect();
        let workspaces = LoadedPlan::reserve_together(&loaded, card, stream, max_rows)?;
        let by_lengths = self.0.iter().cloned().zip(workspaces);
        let by_lengths = by_lengths.map(|(loaded, workspace)| OnStream { loaded, workspace, prepared: Vec::new() });
        Ok(Box::new(AllOnStream(by_lengths.collect())))
    }
}

/// Plans on one stream, by lengths. They share memory, since runs on a stream never overlap.
struct AllOnStream(Vec<OnStream>);

/// A plan on one stream.
struct OnStream {
    loaded: Rc<LoadedPlan>,
    workspace: Workspace,
    /// Prepared runs with their numbers of rows.
    prepared: Vec<(u32, Prepared)>,
}

impl CardWorkspace for AllOnStream {
    fn input(&self, lengths: usize, index: usize) -> Address {
        self.0[lengths].workspace.input(index)
    }

    fn output(&self, lengths: usize, index: usize) -> Address {
        self.0[lengths].workspace.output(index)
    }

    fn faults(&self, lengths: usize) -> Option<Address> {
        self.0[lengths].workspace.faults()
    }

    fn prepare(&mut self, card: &mut Cuda, size: RunSize) -> Result<(), DeviceError> {
        let OnStream { loaded, workspace, prepared } = &mut self.0[size.lengths];
        prepared.push((size.rows, loaded.prepare(card, workspace, size.rows)?));
        Ok(())
    }

    fn issue(
        &self,
        capture: &mut Capture<'_>,
        size: RunSize,
        parameters: RunParameters<'_>,
    ) -> Result<(), DeviceError> {
        let mut prepared = self.0[size.lengths].prepared.iter();
        let prepared = prepared.find(|(rows, _)| *rows == size.rows);
        let (_, prepared) = prepared.ok_or(DeviceError::MalformedWork("a run of this size was not prepared"))?;
        prepared.issue(capture, parameters)
    }
}
