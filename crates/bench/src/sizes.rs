//! Size distributions of requests.

use paternoster_lab::workload::{LengthDistribution, Trees};
use paternoster_model::{DataType, unfold::Topology};

/// A size distribution.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// One length per request, used for all varying dimensions.
    Lengths(LengthDistribution),
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
        LengthDistribution::NAMES.into_iter().chain(Trees::NAMES)
    }

    /// Returns a published workload by name.
    pub fn named(name: &str) -> Option<Self> {
        LengthDistribution::named(name).map(Self::Lengths).or_else(|| Trees::named(name).map(Self::Trees))
    }

    /// Returns the mean length of the first `count` requests, or `None` if there are none.
    pub fn mean_length(&self, seed: u64, count: usize) -> Option<f64> {
        let lengths: Vec<f64> = self.sampler(seed).take(count).map(|size| f64::from(size.length())).collect();
        (!lengths.is_empty()).then(|| lengths.iter().sum::<f64>() / lengths.len() as f64)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_length_is_that_of_the_requests_that_are_made() {
        let recorded = Sizes::Lengths(LengthDistribution::Recorded(vec![2, 3, 10]));
        assert_eq!([2, 3, 4].map(|count| recorded.mean_length(1, count)), [Some(2.5), Some(5.0), Some(4.25)]);
        assert_eq!(Sizes::Lengths(LengthDistribution::Recorded(Vec::new())).mean_length(1, 3), None);
        let trees = Sizes::named("trees-16").expect("it has a name");
        assert_eq!(trees.mean_length(1, 4), Some(31.0), "a complete tree of 16 leaves has 31 nodes");
    }
}
