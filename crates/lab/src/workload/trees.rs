//! Trees of requests: parse trees of sentences, as they come with each.

use paternoster_model::unfold::Topology;
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use smallvec::SmallVec;

use super::{Above, LengthDistribution};

/// What trees requests bring: binary ones, node 0 the root, each node before its children and those of its left child
/// before those of its right one.
#[derive(Clone, Debug, PartialEq)]
pub enum Trees {
    /// Parse trees: as many leaves as are drawn, parted at each inner node anywhere with the same chance.
    Parsed {
        /// Leaves of a tree.
        leaves: LengthDistribution,
    },
    /// All the same: parted in halves at each inner node, so that so many leaves are complete where they are a power of
    /// two.
    Halved {
        /// Leaves of a tree.
        leaves: u32,
    },
}

impl Trees {
    /// Names of published workloads.
    pub const NAMES: [&str; 2] = ["trees", "trees-16"];

    /// A published workload by its name:
    /// - `trees`: binary parse trees of sentences, 19 leaves on average, 2 to 56 (TreeBank; BatchMaker §7.5).
    /// - `trees-16`: complete binary trees of 16 leaves, 31 nodes (BatchMaker fig. 15).
    pub fn named(name: &str) -> Option<Self> {
        let words = LengthDistribution::LogNormal { mu: 2.85, sigma: 0.45, min: 2, max: 56, above: Above::Clip };
        Some(match name {
            "trees" => Self::Parsed { leaves: words },
            "trees-16" => Self::Halved { leaves: 16 },
            _ => return None,
        })
    }

    /// Trees without end, the same for the same seed, which those that are all alike do not depend on. Nothing comes
    /// where no numbers of leaves do.
    pub fn sampler(&self, seed: u64) -> impl Iterator<Item = Topology> + Send + use<> {
        let trees: Box<dyn Iterator<Item = Topology> + Send> = match self {
            Self::Parsed { leaves } => {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                // The first stream draws the leaves.
                random.set_stream(1);
                Box::new(leaves.sampler(seed).map(move |leaves| tree(leaves, |leaves| random.random_range(1..leaves))))
            }
            Self::Halved { leaves } => {
                let one = tree(*leaves, |leaves| leaves / 2);
                Box::new(std::iter::repeat_with(move || one.clone()))
            }
        };
        trees
    }
}

/// A binary tree of so many leaves, at least one. `left` says how many leaves of those below an inner node are below
/// its left child: at least one, and not all.
pub fn tree(leaves: u32, mut left: impl FnMut(u32) -> u32) -> Topology {
    let mut children: Vec<SmallVec<[u32; 2]>> = Vec::with_capacity(2 * leaves as usize);
    // Leaves below nodes that are to come, with the parent that waits for the node's number.
    let mut open = vec![(leaves.max(1), None)];
    while let Some((leaves, parent)) = open.pop() {
        let node = children.len() as u32;
        if let Some(parent) = parent {
            let siblings: &mut SmallVec<[u32; 2]> = &mut children[parent as usize];
            siblings.push(node);
        }
        children.push(SmallVec::new());
        if leaves > 1 {
            let left = left(leaves).clamp(1, leaves - 1);
            open.push((leaves - left, Some(node)));
            open.push((left, Some(node)));
        }
    }
    Topology::new(children)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    fn drawn(name: &str, count: usize) -> Vec<Topology> {
        Trees::named(name).expect("it has a name").sampler(SEED).take(count).collect()
    }

    fn leaves(tree: &Topology) -> u32 {
        tree.leaves().count() as u32
    }

    fn table(tree: &Topology) -> Vec<Vec<u32>> {
        (0..tree.nodes()).map(|node| tree.children_of(node).to_vec()).collect()
    }

    #[test]
    fn a_node_stands_before_its_left_children_and_those_before_its_right_ones() {
        let parted = tree(4, |leaves| leaves - 1);
        assert_eq!(table(&parted), [vec![1, 6], vec![2, 5], vec![3, 4], vec![], vec![], vec![], vec![]]);
        assert_eq!(tree(1, |_| 1).nodes(), 1);
        assert_eq!(table(&tree(2, |_| 9)), [vec![1, 2], vec![], vec![]], "no child is left without leaves");
    }

    #[test]
    fn parse_trees_have_the_published_statistics() {
        let trees = drawn("trees", 20_000);
        let mut sizes: Vec<u32> = trees.iter().map(leaves).collect();
        sizes.sort_unstable();
        let mean = f64::from(sizes.iter().sum::<u32>()) / sizes.len() as f64;
        assert!((18.5..19.5).contains(&mean), "{mean} leaves on average");
        assert!((16..=18).contains(&sizes[sizes.len() / 2]), "the median is exp(2.85)");
        assert_eq!((sizes.first().map(|size| *size <= 4), sizes.last()), (Some(true), Some(&56)));
        for tree in &trees {
            assert_eq!(tree.nodes(), 2 * leaves(tree) - 1, "every inner node has two children");
            assert!((1..tree.nodes()).all(|node| tree.parents_of(node).len() == 1) && tree.is_root(0));
        }
    }

    #[test]
    fn parse_trees_are_parted_anywhere_with_the_same_chance() {
        let below_left = |tree: &Topology| {
            let right = tree.children_of(0)[1];
            tree.leaves().filter(|leaf| *leaf < right).count()
        };
        let of_nine: Vec<usize> =
            drawn("trees", 40_000).iter().filter(|tree| leaves(tree) == 9).map(below_left).collect();
        assert!(of_nine.len() > 800, "{} trees of nine leaves", of_nine.len());
        for left in 1..=8 {
            let share = of_nine.iter().filter(|found| **found == left).count() as f64 / of_nine.len() as f64;
            assert!((0.08..0.17).contains(&share), "{share} of the trees have {left} leaves on the left");
        }
    }

    #[test]
    fn complete_trees_have_sixteen_leaves_four_below_the_root() {
        for tree in drawn("trees-16", 3) {
            assert_eq!((tree.nodes(), leaves(&tree), tree.depth()), (31, 16, 4));
        }
    }

    #[test]
    fn the_seed_fixes_the_trees() {
        let some = |seed| Trees::named("trees").expect("it has a name").sampler(seed).take(50).collect::<Vec<_>>();
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
    }

    #[test]
    fn every_name_is_known_and_no_other() {
        for name in Trees::NAMES {
            assert!(Trees::named(name).is_some_and(|trees| trees.sampler(SEED).next().is_some()), "{name}");
        }
        assert_eq!(Trees::named("wmt15"), None, "sentences are no trees");
    }
}
