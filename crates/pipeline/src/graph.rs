//! The graph of a pipeline: which tensors each step reads and gives, by name. Checked once, without any model.

use std::{collections::HashMap, fmt, sync::Arc};

use super::{BuiltIn, Condition, Servable};

/// Most steps of a pipeline.
pub(crate) const MAX_STEPS: usize = 256;

/// Most pipelines within each other.
pub(crate) const MAX_DEPTH: usize = 8;

/// Says that more than [`MAX_DEPTH`] pipelines, which messages call so, are within each other.
pub(crate) fn too_deep(noun: &str) -> String {
    format!("{noun}s are nested more than {MAX_DEPTH} deep")
}

/// A tensor of the pipeline, by number.
pub type TensorIx = usize;

/// The steps of a pipeline, and how tensors pass between them.
#[derive(Debug)]
pub struct PipelineGraph {
    /// What messages call the pipeline.
    pub(crate) noun: &'static str,
    /// The names of all tensors. The pipeline's inputs come first, in order.
    pub(crate) tensors: Vec<String>,
    pub(crate) steps: Vec<GraphStep>,
    /// The pipeline's outputs, in order.
    pub(crate) outputs: Vec<TensorIx>,
    /// By tensor: the steps that give it, in the order of the configuration.
    pub(crate) producers: Vec<Vec<usize>>,
    /// By tensor: the steps that read it, each once.
    pub(crate) readers: Vec<Vec<usize>>,
    /// By step: the tensors that it reads, each once.
    pub(crate) reads: Vec<Vec<TensorIx>>,
}

/// A step as the configuration has it.
#[derive(Debug)]
pub struct Step {
    /// What it runs.
    pub runs: Runs,
    /// Its inputs.
    pub inputs: Vec<PortBinding>,
    /// The outputs that are used.
    pub outputs: Vec<PortBinding>,
    /// Which rows it runs for; all without a condition.
    pub when: Option<Condition>,
}

/// What a step runs.
#[derive(Clone, Debug)]
pub enum Runs {
    /// A model that is served by its name; the latest version unless one is given.
    Served {
        /// The model.
        model: String,
        /// Its version.
        version: Option<i64>,
    },
    /// A version that belongs to the pipeline alone.
    Own(Servable),
    /// A step of the server.
    BuiltIn(Arc<dyn BuiltIn>),
}

/// Connects an input or output of a step with a tensor of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortBinding {
    /// The name in the step's model.
    pub port: String,
    /// The name in the pipeline.
    pub tensor: String,
}

/// A step with its tensors by number.
#[derive(Debug)]
pub(crate) struct GraphStep {
    pub(crate) runs: Runs,
    pub(crate) inputs: Vec<(String, TensorIx)>,
    pub(crate) outputs: Vec<(String, TensorIx)>,
    pub(crate) when: Option<(TensorIx, Condition)>,
}

impl Runs {
    /// Returns the name of the model, or the kind of a step of the server.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Served { model, .. } => model,
            Self::Own(_) => "program",
            Self::BuiltIn(step) => step.kind(),
        }
    }
}

/// Formats it as messages name it.
impl fmt::Display for Runs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served { model, version: None } => write!(formatter, "model '{model}'"),
            Self::Served { model, version: Some(version) } => write!(formatter, "model '{model}', version {version}"),
            Self::Own(_) => formatter.write_str("the model's program"),
            Self::BuiltIn(step) => formatter.write_str(step.kind()),
        }
    }
}

/// Why steps make no graph. Steps are counted from 0.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GraphFault {
    /// There is nothing to run.
    #[error("expected at least one step")]
    NoSteps,
    /// There are too many.
    #[error("expected at most {MAX_STEPS} steps, but found {0}")]
    TooManySteps(usize),
    /// A port is mapped twice.
    #[error("step {step} maps '{port}' twice")]
    PortTwice {
        /// The step.
        step: usize,
        /// The name in its model.
        port: String,
    },
    /// Two steps without conditions give one tensor, or a step gives an input.
    #[error("step {step} gives the tensor '{tensor}', which {}", other.map_or_else(
        || "is an input".to_owned(),
        |other| format!("step {other} gives too"),
    ))]
    GivenTwice {
        /// The step.
        step: usize,
        /// The tensor.
        tensor: String,
        /// The step that gives it too; `None` if it is an input.
        other: Option<usize>,
    },
    /// A step reads what there is not.
    #[error("step {step} reads the tensor '{tensor}', which is neither an input nor given by a step")]
    Unknown {
        /// The step.
        step: usize,
        /// The tensor.
        tensor: String,
    },
    /// An output of the pipeline is missing.
    #[error("no step gives the output '{0}'")]
    NoOutput(String),
    /// Steps wait for each other.
    #[error("{}", waiting(.0))]
    Cycle(Vec<usize>),
}

fn waiting(steps: &[usize]) -> String {
    match steps {
        [only] => format!("step {only} waits for its own outputs"),
        several => {
            let names: Vec<String> = several.iter().map(usize::to_string).collect();
            format!("steps {} wait for each other's outputs", names.join(", "))
        }
    }
}

impl GraphFault {
    /// Returns the step at fault, if one is.
    pub fn step(&self) -> Option<usize> {
        match self {
            Self::PortTwice { step, .. } | Self::GivenTwice { step, .. } | Self::Unknown { step, .. } => Some(*step),
            Self::Cycle(steps) => steps.first().copied(),
            Self::NoSteps | Self::TooManySteps(_) | Self::NoOutput(_) => None,
        }
    }
}

impl PipelineGraph {
    /// Connects steps with each other and with the pipeline's inputs and outputs.
    ///
    /// # Errors
    /// If a tensor is missing or given twice, or steps wait for each other.
    pub fn new<S: AsRef<str>>(inputs: &[S], outputs: &[S], steps: Vec<Step>) -> Result<Self, GraphFault> {
        match steps.len() {
            0 => return Err(GraphFault::NoSteps),
            count if count > MAX_STEPS => return Err(GraphFault::TooManySteps(count)),
            _ => {}
        }
        let mut names = Names::new(inputs);
        for (number, step) in steps.iter().enumerate() {
            names.give(number, step)?;
        }
        let Names { tensors, by_name, .. } = names;
        let mut graph = Self {
            noun: "pipeline",
            producers: vec![Vec::new(); tensors.len()],
            readers: vec![Vec::new(); tensors.len()],
            reads: vec![Vec::new(); steps.len()],
            steps: Vec::with_capacity(steps.len()),
            outputs: Vec::with_capacity(outputs.len()),
            tensors,
        };
        for (number, Step { runs, inputs, outputs, when }) in steps.into_iter().enumerate() {
            let find = |tensor: &String| {
                let unknown = || GraphFault::Unknown { step: number, tensor: tensor.clone() };
                by_name.get(tensor).copied().ok_or_else(unknown)
            };
            let number_of = |ports: Vec<PortBinding>| -> Result<Vec<_>, GraphFault> {
                let mut numbered: Vec<(String, TensorIx)> = Vec::with_capacity(ports.len());
                for PortBinding { port, tensor } in ports {
                    if numbered.iter().any(|(other, _)| *other == port) {
                        return Err(GraphFault::PortTwice { step: number, port });
                    }
                    numbered.push((port, find(&tensor)?));
                }
                Ok(numbered)
            };
            let (inputs, outputs) = (number_of(inputs)?, number_of(outputs)?);
            let when = when.map(|when| Ok((find(&when.tensor)?, when))).transpose()?;
            for (_, tensor) in &outputs {
                graph.producers[*tensor].push(number);
            }
            let read = inputs.iter().map(|(_, tensor)| *tensor).chain(when.iter().map(|(tensor, _)| *tensor));
            for tensor in read {
                let readers: &mut Vec<usize> = &mut graph.readers[tensor];
                if readers.last() != Some(&number) {
                    readers.push(number);
                    graph.reads[number].push(tensor);
                }
            }
            graph.steps.push(GraphStep { runs, inputs, outputs, when });
        }
        for output in outputs {
            let output = output.as_ref();
            let given = by_name.get(output).ok_or_else(|| GraphFault::NoOutput(output.to_owned()))?;
            graph.outputs.push(*given);
        }
        graph.check_order()?;
        Ok(graph)
    }

    /// Has messages call the pipeline an ensemble, as its clients do.
    #[must_use]
    pub fn called_ensemble(self) -> Self {
        Self { noun: "ensemble", ..self }
    }

    /// Returns the steps in an order in which each comes after those whose tensors it reads.
    pub(crate) fn order(&self) -> Vec<usize> {
        let mut missing: Vec<usize> = self.reads.iter().map(Vec::len).collect();
        let mut producers: Vec<usize> = self.producers.iter().map(Vec::len).collect();
        let mut order: Vec<usize> = Vec::with_capacity(self.steps.len());
        let mut complete: Vec<TensorIx> = (0..self.tensors.len()).filter(|&tensor| producers[tensor] == 0).collect();
        let mut started: Vec<usize> = (0..self.steps.len()).filter(|&step| missing[step] == 0).collect();
        loop {
            while let Some(step) = started.pop() {
                order.push(step);
                for (_, tensor) in &self.steps[step].outputs {
                    producers[*tensor] -= 1;
                    if producers[*tensor] == 0 {
                        complete.push(*tensor);
                    }
                }
            }
            let Some(tensor) = complete.pop() else { return order };
            for &reader in &self.readers[tensor] {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    started.push(reader);
                }
            }
        }
    }

    fn check_order(&self) -> Result<(), GraphFault> {
        let order = self.order();
        if order.len() == self.steps.len() {
            return Ok(());
        }
        // Other steps may wait for those in a cycle.
        Err(GraphFault::Cycle((0..self.steps.len()).filter(|&step| self.waits_for_itself(step)).collect()))
    }

    fn waits_for_itself(&self, step: usize) -> bool {
        let mut reached = vec![false; self.steps.len()];
        let mut next = vec![step];
        while let Some(one) = next.pop() {
            for &reader in self.steps[one].outputs.iter().flat_map(|(_, tensor)| &self.readers[*tensor]) {
                if !std::mem::replace(&mut reached[reader], true) {
                    next.push(reader);
                }
            }
        }
        reached[step]
    }
}

/// The tensors, while the steps that give them are gone through.
struct Names {
    tensors: Vec<String>,
    by_name: HashMap<String, TensorIx>,
    /// By tensor: the step that gives it, and whether that has a condition; `None` for inputs.
    given_by: Vec<Option<(usize, bool)>>,
}

impl Names {
    fn new<S: AsRef<str>>(inputs: &[S]) -> Self {
        let tensors: Vec<String> = inputs.iter().map(|name| name.as_ref().to_owned()).collect();
        let by_name = tensors.iter().enumerate().map(|(number, name)| (name.clone(), number)).collect();
        Self { given_by: vec![None; tensors.len()], tensors, by_name }
    }

    fn give(&mut self, number: usize, step: &Step) -> Result<(), GraphFault> {
        for PortBinding { tensor, .. } in &step.outputs {
            let is_conditional = step.when.is_some();
            let Some(&known) = self.by_name.get(tensor) else {
                self.by_name.insert(tensor.clone(), self.tensors.len());
                self.tensors.push(tensor.clone());
                self.given_by.push(Some((number, is_conditional)));
                continue;
            };
            let other = match self.given_by[known] {
                Some((other, true)) if is_conditional && other != number => continue,
                given => given.map(|(other, _)| other),
            };
            return Err(GraphFault::GivenTwice { step: number, tensor: tensor.clone(), other });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Test;

    fn ports(pairs: &[(&str, &str)]) -> Vec<PortBinding> {
        let port =
            |(port, tensor): &(&str, &str)| PortBinding { port: (*port).to_owned(), tensor: (*tensor).to_owned() };
        pairs.iter().map(port).collect()
    }

    fn step(inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> Step {
        let runs = Runs::Served { model: "m".to_owned(), version: None };
        Step { runs, inputs: ports(inputs), outputs: ports(outputs), when: None }
    }

    fn when(step: Step, tensor: &str) -> Step {
        Step { when: Some(Condition { tensor: tensor.to_owned(), test: Test::AtLeast(1.0) }), ..step }
    }

    fn fault(inputs: &[&str], outputs: &[&str], steps: Vec<Step>) -> String {
        PipelineGraph::new(inputs, outputs, steps).expect_err("it is refused").to_string()
    }

    #[test]
    fn steps_come_after_those_they_read_from_whatever_their_order_in_the_text() {
        let steps =
            vec![step(&[("x", "b"), ("y", "c")], &[("z", "out")]), step(&[("x", "in")], &[("y", "b"), ("z", "c")])];
        let graph = PipelineGraph::new(&["in"], &["out"], steps).expect("a graph");
        assert_eq!(graph.order(), [1, 0]);
        assert_eq!(graph.reads, [vec![2, 3], vec![0]]);
    }

    #[test]
    fn a_cycle_names_its_steps() {
        let steps = vec![
            step(&[("x", "in")], &[("y", "a")]),
            step(&[("x", "a"), ("z", "c")], &[("y", "b")]),
            step(&[("x", "b")], &[("y", "c")]),
            step(&[("x", "c")], &[("y", "d")]),
        ];
        assert_eq!(fault(&["in"], &["b"], steps), "steps 1, 2 wait for each other's outputs");
        assert_eq!(fault(&[], &["a"], vec![step(&[("x", "a")], &[("y", "a")])]), "step 0 waits for its own outputs");
    }

    #[test]
    fn what_is_missing_or_given_twice_is_named() {
        assert_eq!(fault(&["in"], &["out"], vec![]), "expected at least one step");
        let unknown = vec![step(&[("x", "inn")], &[("y", "out")])];
        let text = "step 0 reads the tensor 'inn', which is neither an input nor given by a step";
        assert_eq!(fault(&["in"], &["out"], unknown), text);
        let twice = vec![step(&[("x", "in")], &[("y", "a")]), step(&[("x", "in")], &[("y", "a")])];
        let text = "step 1 gives the tensor 'a', which step 0 gives too";
        assert_eq!(fault(&["in"], &["a"], twice), text);
        let input = vec![step(&[("x", "in")], &[("y", "in")])];
        assert!(fault(&["in"], &["in"], input).ends_with("which is an input"));
        let other = vec![step(&[("x", "in")], &[("y", "a")])];
        assert_eq!(fault(&["in"], &["out"], other), "no step gives the output 'out'");
        let port = vec![step(&[("x", "in"), ("x", "in")], &[("y", "a")])];
        assert_eq!(fault(&["in"], &["a"], port), "step 0 maps 'x' twice");
    }

    #[test]
    fn steps_with_conditions_may_give_one_tensor() {
        let steps = vec![
            when(step(&[("x", "in")], &[("y", "a")]), "in"),
            when(step(&[("x", "in")], &[("y", "a")]), "in"),
            step(&[("x", "a")], &[("y", "out")]),
        ];
        let graph = PipelineGraph::new(&["in"], &["out"], steps).expect("a graph");
        assert_eq!(graph.producers, [vec![], vec![0, 1], vec![2]]);
        assert_eq!(graph.order().last(), Some(&2), "after both");
    }
}
