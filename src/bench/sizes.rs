//! How large requests are, from one to the next.

use crate::{
    model::{DataType, unfold::Topology},
    workload::{Lengths, Trees},
};

/// How large requests are.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// One length a request, in all dimensions that vary.
    Lengths(Lengths),
    /// One binary tree a request: dimensions that vary have an entry for each node, and one input names the nodes'
    /// children.
    Trees(Trees),
}

/// The size of one request.
#[derive(Clone, Debug)]
pub(super) enum Size {
    Length(u32),
    Tree(Topology),
}

impl Sizes {
    /// Names of published workloads.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Lengths::NAMES.into_iter().chain(Trees::NAMES)
    }

    /// A published workload by its name.
    pub fn named(name: &str) -> Option<Self> {
        Lengths::named(name).map(Self::Lengths).or_else(|| Trees::named(name).map(Self::Trees))
    }

    /// Sizes without end, the same for the same seed; nothing where the workload gives none.
    pub(super) fn sampler(&self, seed: u64) -> Box<dyn Iterator<Item = Size>> {
        match self {
            Self::Lengths(lengths) => Box::new(lengths.sampler(seed).map(Size::Length)),
            Self::Trees(trees) => Box::new(trees.sampler(seed).map(Size::Tree)),
        }
    }
}

impl Size {
    /// Entries of a dimension that varies.
    pub(super) fn length(&self) -> u32 {
        match self {
            Self::Length(length) => *length,
            Self::Tree(tree) => tree.nodes(),
        }
    }

    /// The children of each node, in this type of whole numbers: left and right, -1 where there is none. Nothing where
    /// there are no nodes.
    pub(super) fn children(&self, datatype: DataType) -> Option<Vec<u8>> {
        let Self::Tree(tree) = self else { return None };
        let size = datatype.size_bytes()?;
        let of_node = |node: u32| {
            let children = tree.children_of(node);
            [0, 1].map(|child| children.get(child).map_or(-1, |&child| i64::from(child)))
        };
        let children = (0..tree.nodes()).flat_map(of_node);
        Some(children.flat_map(|child| child.to_le_bytes().into_iter().take(size)).collect())
    }
}
