//! Which steps a request needs, given the tensors that it wants.

use super::{PipelineGraph, graph::TensorIx};

/// The steps and tensors that some wanted tensors need.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// By step: whether it is needed.
    pub(crate) steps: Box<[bool]>,
    /// By tensor: the needed steps that read it; the response counts as one more. A tensor without any is not kept.
    pub(crate) readers: Box<[usize]>,
}

impl Demand {
    /// Follows the wanted tensors back to the inputs. Conditions count as what they read.
    pub(crate) fn new(graph: &PipelineGraph, wanted: &[TensorIx]) -> Self {
        let mut steps: Box<[bool]> = vec![false; graph.steps.len()].into();
        let mut readers: Box<[usize]> = vec![0; graph.tensors.len()].into();
        let mut next = wanted.to_vec();
        wanted.iter().for_each(|&tensor| readers[tensor] += 1);
        while let Some(tensor) = next.pop() {
            for &step in &graph.producers[tensor] {
                if std::mem::replace(&mut steps[step], true) {
                    continue;
                }
                for &read in &graph.reads[step] {
                    readers[read] += 1;
                    next.push(read);
                }
            }
        }
        Self { steps, readers }
    }

    /// Whether a tensor is read.
    pub(crate) fn reads(&self, tensor: TensorIx) -> bool {
        self.readers[tensor] > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Condition, PortBinding, Runs, Step, Test};

    fn step(reads: &[&str], gives: &[&str], when: Option<&str>) -> Step {
        let ports = |names: &[&str]| {
            let port = |name: &&str| PortBinding { port: format!("port of {name}"), tensor: (*name).to_owned() };
            names.iter().map(port).collect()
        };
        let when = when.map(|tensor| Condition { tensor: tensor.to_owned(), test: Test::AtLeast(0.0) });
        let runs = Runs::Served { model: "m".to_owned(), version: None };
        Step { runs, inputs: ports(reads), outputs: ports(gives), when }
    }

    #[test]
    fn what_a_wanted_tensor_does_not_depend_on_is_not_needed() {
        let steps = vec![
            step(&["in"], &["a"], None),
            step(&["a"], &["b", "unread"], Some("score")),
            step(&["in"], &["score"], None),
            step(&["a"], &["other"], None),
            step(&["in"], &["b"], Some("in")),
        ];
        let graph = PipelineGraph::new(&["in"], &["b", "other"], steps).expect("a graph");
        let name = |tensor: usize| graph.tensors[tensor].as_str();
        let needed = |wanted: &[TensorIx]| {
            let demand = Demand::new(&graph, wanted);
            let steps: Vec<usize> = (0..5).filter(|&step| demand.steps[step]).collect();
            let tensors = (0..graph.tensors.len()).filter(|&tensor| demand.reads(tensor)).map(name).collect::<Vec<_>>();
            (steps, tensors.join(" "))
        };
        let [b, other] = graph.outputs[..] else { panic!("two outputs") };
        assert_eq!(needed(&[b, other]), (vec![0, 1, 2, 3, 4], "in a b score other".to_owned()));
        assert_eq!(needed(&[other]), (vec![0, 3], "in a other".to_owned()));
        assert_eq!(
            needed(&[b]),
            (vec![0, 1, 2, 4], "in a b score".to_owned()),
            "all that may give it, and its condition"
        );
        assert_eq!(needed(&[]), (vec![], String::new()));
    }
}
