//! A program of the CPU that has a plan for cards beside it.

use std::{collections::HashMap, rc::Rc, sync::Arc};

use super::{Loaded, Plan, Precision, Prepared, Workspace};
use crate::{
    device::{
        DeviceError,
        cuda::{Address, Capture, Compiler, Cuda},
    },
    engine::{Batch, CardProgram, CardWeights, CardWorkspace, EngineError, Execution, Program},
    model::IndexRange,
};

/// A graph that runs on the CPU and on cards.
pub struct OnCard {
    host: Arc<dyn Program>,
    plan: Plan,
    precision: Precision,
}

impl OnCard {
    /// A program of the CPU, and the plan of the same graph with the same inputs and outputs.
    pub fn new(host: Arc<dyn Program>, plan: Plan, precision: Precision) -> Self {
        Self { host, plan, precision }
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

    fn origin(&self) -> Option<[u8; 32]> {
        self.host.origin()
    }

    fn on_card(&self) -> Option<&dyn CardProgram> {
        Some(self)
    }
}

impl CardProgram for OnCard {
    fn compile(&self, compiler: &Compiler) -> Result<(), String> {
        self.plan.compile(compiler)
    }

    fn load(&self, card: &mut Cuda) -> Result<Box<dyn CardWeights>, DeviceError> {
        Ok(Box::new(Weights(Rc::new(self.plan.load(card, self.precision)?))))
    }
}

/// A plan that is loaded.
struct Weights(Rc<Loaded>);

impl CardWeights for Weights {
    fn reserve(&self, card: &mut Cuda, max_rows: u32) -> Result<Box<dyn CardWorkspace>, DeviceError> {
        let workspace = self.0.reserve(card, max_rows)?;
        Ok(Box::new(OnStream { loaded: Rc::clone(&self.0), workspace, prepared: HashMap::new() }))
    }
}

/// A plan on one stream.
struct OnStream {
    loaded: Rc<Loaded>,
    workspace: Workspace,
    /// By rows.
    prepared: HashMap<u32, Prepared>,
}

impl CardWorkspace for OnStream {
    fn input(&self, index: usize) -> Address {
        self.workspace.input(index)
    }

    fn output(&self, index: usize) -> Address {
        self.workspace.output(index)
    }

    fn faults(&self) -> Option<Address> {
        self.workspace.faults()
    }

    fn prepare(&mut self, card: &mut Cuda, rows: u32) -> Result<(), DeviceError> {
        let prepared = self.loaded.prepare(card, &self.workspace, rows)?;
        self.prepared.insert(rows, prepared);
        Ok(())
    }

    fn issue(&self, capture: &mut Capture<'_>, rows: u32, live: Address) -> Result<(), DeviceError> {
        let prepared = self.prepared.get(&rows);
        let prepared = prepared.ok_or(DeviceError::MalformedWork("a run of so many rows was not prepared"))?;
        prepared.issue(capture, live)
    }
}
