//! Size distributions of requests.

use crate::{
    model::{DataType, unfold::Topology},
    workload::{Lengths, Trees},
};

/// A size distribution.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// One length per request, used for all varying dimensions.
    Lengths(Lengths),
    /// One binary tree per request: varying dimensions have an entry per node, and one input holds the children of the
    /// nodes.
    Trees(Trees),
}

/// The size of one request.
#[derive(Clone, Debug)]
pub(super) enum Size {
    Length(u32),
    Tree(Topology),
}

impl Sizes {
    /// Returns the names of published workloads.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Lengths::NAMES.into_iter().chain(Trees::NAMES)
    }

    /// Returns a published workload by name.
    pub fn named(name: &str) -> Option<Self> {
        Lengths::named(name).map(Self::Lengths).or_else(|| Trees::named(name).map(Self::Trees))
    }

    /// Returns an infinite sequence of sizes, determined by the seed; empty if the workload is empty.
    pub(super) fn sampler(&self, seed: u64) -> Box<dyn Iterator<Item = Size>> {
        match self {
            Self::Lengths(lengths) => Box::new(lengths.sampler(seed).map(Size::Length)),
            Self::Trees(trees) => Box::new(trees.sampler(seed).map(Size::Tree)),
        }
    }
}

impl Size {
    /// Returns the length of a varying dimension.
    pub(super) fn length(&self) -> u32 {
        match self {
            Self::Length(length) => *length,
            Self::Tree(tree) => tree.nodes(),
        }
    }

    /// Encodes the children of each node, left and right, as integers of this datatype; −1 stands for no child. `None`
    /// if the size is not a tree.
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
