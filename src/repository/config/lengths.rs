//! The lengths of padded axes that a model is prepared for where its runs have fixed shapes, as on CUDA cards.

use smallvec::SmallVec;

use super::{ConfigError, nearest::suggestion, origin::Origin, pb};
use crate::batching::Lengths;

/// Key prefix: `lengths.<axis>` lists lengths of a padded axis, ascending: `16,32,64`.
pub const LENGTHS: &str = "lengths.";

/// In a model of cells: what says how many rows a segment may leave for steps that read one each.
const STEPS: &str = "steps";

/// Lengths by default: from 16 on, no request is padded to more than one and a half times its own length.
const LADDER: [u32; 11] = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Lengths by default of each of several axes: at most twice its own.
const COARSE: [u32; 6] = [16, 32, 64, 128, 256, 512];
/// Most lengths of an axis, and most combinations of those of several axes.
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
    /// Those of a model whose padded axes have these names.
    ///
    /// # Errors
    /// When a parameter lists anything but lengths in ascending order, or more than are prepared.
    pub fn of(config: &pb::ModelConfig, symbols: &[String], origin: &Origin) -> Result<Self, ConfigError> {
        let by_default = if symbols.len() > 1 { &COARSE[..] } else { &LADDER };
        let axes = symbols.iter().map(|symbol| {
            let key = format!("{LENGTHS}{symbol}");
            let Some(parameter) = config.parameters.get(&key) else {
                return Ok(AxisLengths { lengths: by_default.to_vec(), is_given: false });
            };
            let lengths = listed(&parameter.string_value);
            let lengths = lengths.map_err(|fault| origin.error(&format!("parameters[{key}]"), fault))?;
            Ok(AxisLengths { lengths, is_given: true })
        });
        Ok(Self { axes: axes.collect::<Result<_, ConfigError>>()? })
    }

    /// Whether the configuration lists all of them, so that each must have a plan.
    pub fn are_given(&self) -> bool {
        self.axes.iter().all(|axis| axis.is_given)
    }

    /// All combinations, the shortest first; one, of no lengths, where no axis is padded.
    ///
    /// # Errors
    /// When there are too many.
    pub fn combinations(&self) -> Result<Vec<Lengths>, String> {
        let count = self.axes.iter().fold(1_usize, |count, axis| count.saturating_mul(axis.lengths.len()));
        if count > MOST {
            return Err(format!("its padded axes have {count} combinations of lengths, expected at most {MOST}"));
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
    /// Most rows that a segment leaves for steps that read one each, where the configuration says it.
    pub most_steps: Option<u32>,
}

impl CellLengths {
    /// Those of cells whose axes have these names.
    ///
    /// # Errors
    /// When the configuration lists lengths of an axis that no cell has, or anything but ascending lengths.
    pub fn of(config: &pb::ModelConfig, axes: &[&[String]]) -> Result<Self, String> {
        let origin = Origin::default();
        let known = || axes.iter().copied().flatten().map(String::as_str).chain([STEPS]);
        for axis in config.parameters.keys().filter_map(|key| key.strip_prefix(LENGTHS)) {
            if !known().any(|own| own == axis) {
                let hint = suggestion(axis, known());
                return Err(format!("instance.lengths.{axis}: no cell has an axis '{axis}'{hint}"));
            }
        }
        let of = |axes: &[String]| PreparedLengths::of(config, axes, &origin).map_err(|fault| fault.to_string());
        let steps = of(&[STEPS.to_owned()])?;
        let most_steps = steps.axes.iter().filter(|axis| axis.is_given).flat_map(|axis| axis.lengths.last());
        let most_steps = most_steps.copied().max();
        Ok(Self { cells: axes.iter().map(|axes| of(axes)).collect::<Result<_, _>>()?, most_steps })
    }
}

/// The lengths that a parameter lists.
fn listed(text: &str) -> Result<Vec<u32>, String> {
    let number = |part: &str| part.trim().parse().ok().filter(|length| *length > 0);
    let lengths: Option<Vec<u32>> = text.split(',').map(number).collect();
    let lengths = lengths.ok_or_else(|| format!("expected lengths from 1 on, as in '16,32,64', but found '{text}'"))?;
    if !lengths.is_sorted_by(|one, next| one < next) {
        return Err(format!("expected lengths in ascending order, but found '{text}'"));
    }
    if lengths.len() > MOST {
        return Err(format!("expected at most {MOST} lengths, but found {}", lengths.len()));
    }
    Ok(lengths)
}

/// The text of a `lengths.<axis>` parameter.
pub fn text_of(lengths: &[u32]) -> String {
    lengths.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(parameters: &[(&str, &str)], symbols: &[&str]) -> Result<PreparedLengths, String> {
        let mut config = pb::ModelConfig::default();
        for (key, value) in parameters {
            let string_value = (*value).to_owned();
            config.parameters.insert((*key).to_owned(), pb::ModelParameter { string_value });
        }
        let symbols: Vec<String> = symbols.iter().map(|symbol| (*symbol).to_owned()).collect();
        PreparedLengths::of(&config, &symbols, &Origin::default()).map_err(|error| error.to_string())
    }

    fn list(config: &mut pb::ModelConfig, axis: &str, lengths: &str) {
        let parameter = pb::ModelParameter { string_value: lengths.to_owned() };
        config.parameters.insert(format!("{LENGTHS}{axis}"), parameter);
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
        for (text, reason) in [
            ("16,16", "ascending order"),
            ("32,16", "ascending order"),
            ("0,16", "from 1 on"),
            ("16,", "from 1 on"),
            ("-4", "from 1 on"),
            ("many", "from 1 on"),
        ] {
            let refused = with(&[("lengths.tokens", text)], &["tokens"]).expect_err("it is no such list");
            assert!(refused.contains(reason) && refused.contains(text), "{refused}");
        }
    }

    #[test]
    fn cells_have_axes_of_their_own_each() {
        let mut config = pb::ModelConfig::default();
        list(&mut config, "past", "8, 24");
        let axes = ["past", "memory"].map(str::to_owned);
        let cells = CellLengths::of(&config, &[&[], &axes[1..], &axes]).expect("all is known");
        let counts: Vec<usize> = cells.cells.iter().map(|own| combinations(own).len()).collect();
        assert_eq!(counts, [1, LADDER.len(), 2 * COARSE.len()]);
        assert_eq!(cells.most_steps, None);
        list(&mut config, "steps", "7,90");
        assert_eq!(CellLengths::of(&config, &[&axes]).expect("all is known").most_steps, Some(90));
        let refused = CellLengths::of(&config, &[&axes[1..]]).expect_err("no cell has a past");
        assert_eq!(refused, "instance.lengths.past: no cell has an axis 'past'");
    }

    #[test]
    fn axes_are_combined_the_shortest_first() {
        let given = with(&[("lengths.height", "4,8"), ("lengths.width", "3,10")], &["height", "width"]);
        let given = given.expect("both ascend");
        assert_eq!(combinations(&given), [[4, 3], [8, 3], [4, 10], [8, 10]]);
        let mixed = with(&[("lengths.height", "4,8")], &["height", "width"]).expect("it ascends");
        assert!(!mixed.are_given());
        assert_eq!(combinations(&mixed).len(), 2 * COARSE.len());
        let many = with(&[], &["a", "b", "c"]).expect("nothing is given").combinations();
        assert!(many.expect_err("216").contains("216 combinations"));
    }
}
