//! The lengths of padded axes for which a model is prepared on devices that run fixed shapes, such as CUDA cards.

use std::collections::BTreeMap;

use paternoster_model::Lengths;
use smallvec::SmallVec;

use super::{SettingError, knobs::LengthList, nearest::suggestion};

/// The lengths in a configuration, by padded axis.
type Given = BTreeMap<String, LengthList>;

/// The key, in a model of cells, for the rows that a segment emits and the steps of a later segment read one by one.
const STEPS: &str = "steps";

/// Default lengths of a single padded axis. From 16 on, a request is padded to at most 1.5 times its own length.
const LADDER: [u32; 11] = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Default lengths of each of several padded axes: at most twice the request's own.
const COARSE: [u32; 6] = [16, 32, 64, 128, 256, 512];
/// Maximum number of combinations of the lengths of several axes.
const MOST: usize = 64;

/// The lengths that a model is prepared for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreparedLengths {
    /// By padded axis.
    axes: Vec<AxisLengths>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct AxisLengths {
    lengths: Vec<u32>,
    is_given: bool,
}

impl PreparedLengths {
    /// Returns the lengths of a model whose padded axes are `symbols`.
    pub fn of(given: &Given, symbols: &[String]) -> Self {
        let by_default = if symbols.len() > 1 { &COARSE[..] } else { &LADDER };
        let axes = symbols.iter().map(|symbol| {
            let given = given.get(symbol);
            let lengths = given.map_or_else(|| by_default.to_vec(), |given| given.0.clone());
            AxisLengths { lengths, is_given: given.is_some() }
        });
        Self { axes: axes.collect() }
    }

    /// Whether the configuration lists the lengths of every axis. Each combination must then have a plan.
    pub fn are_given(&self) -> bool {
        self.axes.iter().all(|axis| axis.is_given)
    }

    /// Returns all combinations of lengths, the shortest first. Without padded axes there is one empty combination.
    ///
    /// # Errors
    /// Fails if there are too many.
    pub fn combinations(&self) -> Result<Vec<Lengths>, SettingError> {
        let count = self.axes.iter().fold(1_usize, |count, axis| count.saturating_mul(axis.lengths.len()));
        if count > MOST {
            return Err(format!("its padded axes have {count} combinations of lengths, expected at most {MOST}").into());
        }
        let mut combinations = vec![Lengths::new()];
        for axis in &self.axes {
            let longer = combinations.iter().flat_map(|own| {
                axis.lengths.iter().map(move |&length| own.iter().copied().chain([length]).collect::<SmallVec<_>>())
            });
            combinations = longer.collect();
        }
        combinations.sort_by_key(|lengths| lengths.iter().map(|&length| u64::from(length)).product::<u64>());
        Ok(combinations)
    }
}

/// The lengths that a model of cells is prepared for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellLengths {
    /// By cell.
    pub cells: Vec<PreparedLengths>,
    /// Maximum rows that a segment emits and later steps read one by one, if the configuration limits them.
    pub most_steps: Option<u32>,
}

impl CellLengths {
    /// Returns the lengths of cells whose padded axes are `axes`.
    ///
    /// # Errors
    /// Rejects lengths of an axis that no cell has.
    pub fn of(given: &Given, axes: &[&[String]]) -> Result<Self, SettingError> {
        let known = || axes.iter().copied().flatten().map(String::as_str).chain([STEPS]);
        for axis in given.keys() {
            if !known().any(|own| own == axis) {
                let hint = suggestion(axis, known());
                let fault = SettingError::unknown(format!("no cell has an axis '{axis}'{hint}"));
                return Err(fault.at(format!("instance.lengths.{axis}")));
            }
        }
        let most_steps = given.get(STEPS).and_then(|steps| steps.0.last().copied());
        Ok(Self { cells: axes.iter().map(|axes| PreparedLengths::of(given, axes)).collect(), most_steps })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        ConfigError,
        ConfigErrorKind::{Unknown, Value},
        parameters::tests::{folded, parameter},
        tests::refusals::{Refusals, part},
    };

    fn with(parameters: &[(&str, &str)], symbols: &[&str]) -> Result<PreparedLengths, ConfigError> {
        let symbols: Vec<String> = symbols.iter().map(|symbol| (*symbol).to_owned()).collect();
        folded(parameters).map(|settings| PreparedLengths::of(&settings.own.instance.lengths, &symbols))
    }

    fn combinations(lengths: &PreparedLengths) -> Vec<Vec<u32>> {
        lengths.combinations().expect("there are few").iter().map(|lengths| lengths.to_vec()).collect()
    }

    #[test]
    fn a_model_without_padded_axes_has_one_combination_of_none() {
        let none = with(&[], &[]).expect("nothing is given");
        assert_eq!(combinations(&none), [Vec::<u32>::new()]);
    }

    #[test]
    fn lengths_are_listed_in_ascending_order() {
        let given = with(&[("lengths.tokens", "8, 64,100")], &["tokens"]).expect("they ascend");
        assert_eq!(combinations(&given), [[8], [64], [100]]);
        assert!(given.are_given());
    }

    #[test]
    fn cells_have_axes_of_their_own_each() {
        let given = |parameters: &[(&str, &str)]| folded(parameters).expect("they ascend").own.instance.lengths;
        let past = given(&[("lengths.past", "8, 24")]);
        let axes = ["past", "memory"].map(str::to_owned);
        let cells = CellLengths::of(&past, &[&[], &axes[1..], &axes]).expect("all is known");
        let counts: Vec<usize> = cells.cells.iter().map(|own| combinations(own).len()).collect();
        assert_eq!(counts, [1, LADDER.len(), 2 * COARSE.len()]);
        assert_eq!(cells.most_steps, None);
        let both = given(&[("lengths.past", "8, 24"), ("lengths.steps", "7,90")]);
        assert_eq!(CellLengths::of(&both, &[&axes]).expect("all is known").most_steps, Some(90));
    }

    #[test]
    fn axes_are_combined_the_shortest_first() {
        let given = with(&[("lengths.height", "4,8"), ("lengths.width", "3,10")], &["height", "width"]);
        let given = given.expect("both ascend");
        assert_eq!(combinations(&given), [[4, 3], [8, 3], [4, 10], [8, 10]]);
        let mixed = with(&[("lengths.height", "4,8")], &["height", "width"]).expect("it ascends");
        assert!(!mixed.are_given());
        assert_eq!(combinations(&mixed).len(), 2 * COARSE.len());
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        part(all, "lengths", parameter).refuses(&[
            (Value, "parameters[lengths.tokens]", "lengths.tokens: 16,16"),
            (Value, "parameters[lengths.tokens]", "lengths.tokens: 32,16"),
            (Value, "parameters[lengths.tokens]", "lengths.tokens: 0,16"),
            (Value, "parameters[lengths.tokens]", "lengths.tokens: 16,"),
            (Value, "parameters[lengths.tokens]", "lengths.tokens: -4"),
            (Value, "parameters[lengths.tokens]", "lengths.tokens: many"),
        ]);
        let past = folded(&[("lengths.past", "8, 24")]).expect("they ascend").own.instance.lengths;
        all.add(
            Unknown,
            "instance.lengths.past",
            "lengths of an axis that no cell has",
            CellLengths::of(&past, &[&["memory".to_owned()]]),
        );
        let many = with(&[], &["a", "b", "c"]).expect("nothing is given");
        all.add(Value, "", "three axes without lengths", many.combinations());
    }
}
