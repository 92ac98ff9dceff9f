//! Limits on the size of a model after an engine has expanded it: function calls inlined, bodies of branches and loops
//! traversed.
//!
//! Both can be exponential in the size of the file, and recursion never ends. ONNX Runtime 1.23 follows a recursive
//! call until the stack overflows (1.32 refuses it), and traverses a body twice at every level of nesting.

use std::collections::HashMap;

use super::{links::subgraphs, pb};

/// Maximum nodes of an expanded model; a node within `n` nested bodies counts 2ⁿ times. The largest networks have some
/// hundred thousand.
pub(super) const NODES_MAX: u64 = 1 << 20;
/// Maximum nesting depth of bodies.
pub(super) const BODIES_MAX: u32 = 8;
/// Maximum length of a chain of function calls.
pub(super) const CALLS_MAX: usize = 64;

/// Rejects a model that exceeds these limits.
///
/// # Errors
/// A message with the function or limit.
pub(super) fn check(model: &pb::ModelProto) -> Result<(), String> {
    let mut expansion = Expansion { functions: HashMap::new(), extents: vec![None; model.functions.len()], model };
    for (index, function) in model.functions.iter().enumerate() {
        let name = FunctionName::new(function.domain(), function.name(), function.overload());
        if expansion.functions.insert(name, index).is_some() {
            return Err(format!("function '{}' is defined twice", shown(function)));
        }
    }
    let mut calls = Vec::new();
    for index in 0..model.functions.len() {
        expansion.of_function(index, &mut calls)?;
    }
    let nodes = model.graph.as_ref().map_or(&[][..], |graph| &graph.node);
    expansion.of_nodes(nodes, &mut calls).map(drop)
}

/// The identity of a function in a call.
#[derive(PartialEq, Eq, Hash)]
struct FunctionName<'m> {
    domain: &'m str,
    name: &'m str,
    overload: &'m str,
}

impl<'m> FunctionName<'m> {
    fn new(domain: &'m str, name: &'m str, overload: &'m str) -> Self {
        // The domain of the standard operators has two names.
        Self { domain: if domain == "ai.onnx" { "" } else { domain }, name, overload }
    }
}

fn shown(function: &pb::FunctionProto) -> String {
    match function.domain() {
        "" => function.name().to_owned(),
        domain => format!("{domain}.{}", function.name()),
    }
}

#[derive(Clone, Copy, Default)]
struct Extent {
    nodes: u64,
    /// Nesting depth of bodies.
    bodies: u32,
}

struct Expansion<'m> {
    model: &'m pb::ModelProto,
    functions: HashMap<FunctionName<'m>, usize>,
    /// Extents of the functions visited so far, by index.
    extents: Vec<Option<Extent>>,
}

impl<'m> Expansion<'m> {
    /// Returns the extent of a function. `calls` are the functions being visited, outermost first.
    fn of_function(&mut self, index: usize, calls: &mut Vec<usize>) -> Result<Extent, String> {
        if let Some(known) = self.extents[index] {
            return Ok(known);
        }
        let name = |index: usize| shown(&self.model.functions[index]);
        if let Some(at) = calls.iter().position(|&caller| caller == index) {
            let chain: Vec<String> = calls[at..].iter().chain([&index]).map(|&function| name(function)).collect();
            return Err(format!("function '{}' calls itself: {}", name(index), chain.join(" > ")));
        }
        if calls.len() == CALLS_MAX {
            return Err(format!("function '{}' is called through more than {CALLS_MAX} others", name(index)));
        }
        calls.push(index);
        let extent = self.of_nodes(&self.model.functions[index].node, calls)?;
        calls.pop();
        self.extents[index] = Some(extent);
        Ok(extent)
    }

    fn of_nodes(&mut self, nodes: &'m [pb::NodeProto], calls: &mut Vec<usize>) -> Result<Extent, String> {
        let mut extent = Extent::default();
        for node in nodes {
            extent.nodes = extent.nodes.saturating_add(1);
            let called = FunctionName::new(node.domain(), node.op_type(), node.overload());
            if let Some(&function) = self.functions.get(&called) {
                let inner = self.of_function(function, calls)?;
                extent.nodes = extent.nodes.saturating_add(inner.nodes);
                extent.bodies = extent.bodies.max(inner.bodies);
            }
            for body in subgraphs(node) {
                let inner = self.of_nodes(&body.node, calls)?;
                extent.nodes = extent.nodes.saturating_add(inner.nodes.saturating_mul(2));
                extent.bodies = extent.bodies.max(inner.bodies + 1);
            }
            if extent.bodies > BODIES_MAX {
                return Err(format!("more than {BODIES_MAX} bodies of branches or loops are within each other"));
            }
            if extent.nodes > NODES_MAX {
                return Err(format!("it grows to more than {NODES_MAX} nodes once functions and bodies are expanded"));
            }
        }
        Ok(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str) -> pb::NodeProto {
        pb::NodeProto { op_type: Some(name.to_owned()), domain: Some("own".to_owned()), ..Default::default() }
    }

    fn within(node: pb::NodeProto) -> pb::NodeProto {
        let body = pb::GraphProto { node: vec![node], ..Default::default() };
        let attribute = pb::AttributeProto { g: Some(Box::new(body)), ..Default::default() };
        pb::NodeProto { op_type: Some("If".to_owned()), attribute: vec![attribute], ..Default::default() }
    }

    fn function(name: &str, nodes: Vec<pb::NodeProto>) -> pb::FunctionProto {
        let (name, domain) = (Some(name.to_owned()), Some("own".to_owned()));
        pb::FunctionProto { name, domain, node: nodes, ..Default::default() }
    }

    fn checked(nodes: Vec<pb::NodeProto>, functions: Vec<pb::FunctionProto>) -> Result<(), String> {
        let graph = Some(pb::GraphProto { node: nodes, ..Default::default() });
        check(&pb::ModelProto { graph, functions, ..Default::default() })
    }

    #[test]
    fn functions_on_a_cycle_are_refused_with_the_chain() {
        let refused = checked(vec![], vec![function("f", vec![call("f")])]).expect_err("it has no end");
        assert_eq!(refused, "function 'own.f' calls itself: own.f > own.f");
        let through_a_body = function("g", vec![within(call("f"))]);
        let refused = checked(vec![call("f")], vec![function("f", vec![call("g")]), through_a_body]);
        assert_eq!(refused, Err("function 'own.f' calls itself: own.f > own.g > own.f".to_owned()));
    }

    #[test]
    fn functions_that_double_are_counted_as_they_expand() {
        let doubling = |levels: usize| {
            let body = |level: usize| match level {
                0 => vec![call("Relu")],
                level => vec![call(&format!("f{}", level - 1)); 2],
            };
            let functions = (0..levels).map(|level| function(&format!("f{level}"), body(level))).collect();
            checked(vec![call(&format!("f{}", levels - 1))], functions)
        };
        assert_eq!(doubling(16), Ok(()));
        let refused = doubling(60).expect_err("2⁶⁰ nodes");
        assert!(refused.contains("more than 1048576 nodes"), "{refused}");
    }

    #[test]
    fn long_chains_of_calls_are_refused() {
        let chain = |length: usize| {
            let link = |at: usize| function(&format!("f{at}"), vec![call(&format!("f{}", at + 1))]);
            checked(vec![], (0..length).map(link).collect())
        };
        assert_eq!(chain(CALLS_MAX), Ok(()));
        let refused = chain(100_000).expect_err("the stack has an end");
        assert_eq!(refused, "function 'own.f64' is called through more than 64 others");
    }

    #[test]
    fn bodies_are_counted_through_functions_too() {
        let deep = |levels: u32, node| (0..levels).fold(node, |node, _| within(node));
        assert_eq!(checked(vec![deep(BODIES_MAX, call("Relu"))], vec![]), Ok(()));
        let refused = checked(vec![deep(BODIES_MAX + 1, call("Relu"))], vec![]).expect_err("too deep");
        assert_eq!(refused, "more than 8 bodies of branches or loops are within each other");
        let callee = function("f", vec![deep(5, call("Relu"))]);
        assert_eq!(checked(vec![deep(3, call("f"))], vec![callee.clone()]), Ok(()));
        assert_eq!(checked(vec![deep(4, call("f"))], vec![callee]), Err(refused));
    }

    #[test]
    fn functions_are_told_apart_by_domain_and_overload() {
        let mut other = function("f", vec![]);
        other.overload = Some("two".to_owned());
        let mut calling = call("f");
        calling.overload = Some("two".to_owned());
        assert_eq!(checked(vec![], vec![function("f", vec![calling]), other.clone()]), Ok(()));
        assert!(checked(vec![], vec![other.clone(), other]).is_err_and(|text| text.contains("defined twice")));
    }
}
