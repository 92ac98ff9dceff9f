//! The settings of a model: Triton's `ModelConfig` and, typed, the settings that it has no fields for. Every form of a
//! configuration is read into [`Settings`] once. Completion, checks and conversion read no text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Deref,
    str::FromStr,
};

use paternoster_batching::PolicyKind;
use paternoster_engine::{OnnxEngine, Precision};
use paternoster_model::{AxisLength, AxisLengthError, SymbolId};
use serde::{Deserialize, Serialize, Serializer};

use super::{
    ConfigError, Origin, SettingError,
    knobs::{LengthList, given},
    model::{
        Batching, Cell, Cells, ExitSettings, Generate, Off, PipelineStep, PolicyName, Rollout, SegmentSettings, Stages,
        Text,
    },
    model_config::sequence_batching,
    pb,
    values::{Parsed, PartName, Symbol},
};

/// The backend that runs ONNX graphs.
pub const ONNXRUNTIME: &str = "onnxruntime";
/// Triton's name for the backend that runs ONNX graphs with OpenVINO.
pub const OPENVINO: &str = "openvino";
/// The built-in backend that answers a request with many responses.
pub const REPEAT: &str = "repeat";
/// Triton's name for an ONNX model.
pub const ONNX_PLATFORM: &str = "onnxruntime_onnx";
/// Default file name of the program.
pub const ONNX_FILENAME: &str = "model.onnx";

/// The path of the policy's name.
pub const POLICY: &str = "batching.policy";

/// A model's configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The settings that `ModelConfig` has fields for. Its `parameters` are only those without effect.
    pub config: pb::ModelConfig,
    /// All other settings.
    pub own: OwnSettings,
}

impl Settings {
    /// Whether requests unfold into cells.
    pub fn has_cells(&self) -> bool {
        self.names_cells() || self.own.generate.is_some()
    }

    /// Whether the configuration names cells, which have a program each.
    pub fn names_cells(&self) -> bool {
        !self.own.cells.is_empty() || !self.own.unfold.is_empty()
    }

    /// Whether requests belong to sequences.
    pub fn has_sequences(&self) -> bool {
        sequence_batching(&self.config).is_some()
    }

    /// Whether requests run as cells: they unfold, or belong to sequences.
    pub fn runs_cells(&self) -> bool {
        self.has_cells() || self.has_sequences()
    }

    /// Whether the configuration asks that recurrent layers be served by cells: by the policy's name, or by its knobs
    /// under `auto`.
    pub fn asks_for_cells(&self) -> bool {
        match self.policy() {
            Some(PolicyName::Auto) | None => self.own.batching.cellular.is_some(),
            Some(name) => *name == PolicyName::Of(PolicyKind::Cellular),
        }
    }

    /// Rejects knobs of a policy where none is named, so that they would have no effect. Where one is named, those of
    /// others may be there too, for when the name changes.
    pub(super) fn refuse_stray_knobs(&self, origin: &Origin) -> Result<(), ConfigError> {
        let auto = PolicyName::Auto;
        if self.policy().is_some_and(|policy| *policy != auto) {
            return Ok(());
        }
        let unfolds = self.runs_cells();
        let is_stray = |kind: &&PolicyKind| **kind != PolicyKind::Serial && !auto.has_knobs_of(**kind, unfolds);
        let sections = given(&self.own.batching);
        let mut strays = PolicyKind::ALL.iter().filter(is_stray).map(|kind| kind.name());
        let Some(name) = strays.find(|name| sections.iter().any(|section| section == name)) else { return Ok(()) };
        let message = format!("these knobs need the policy '{name}': give its name in '{POLICY}'");
        Err(origin.error(&format!("batching.{name}"), message))
    }

    /// Whether a request may have any number of responses.
    pub fn is_decoupled(&self) -> bool {
        self.config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled)
    }

    /// Returns the policy, if the configuration names one.
    pub fn policy(&self) -> Option<&PolicyName> {
        self.own.batching.policy.as_ref().map(|policy| &policy.0)
    }
}

/// The settings that `ModelConfig` has no fields for, by the keys of `model.yaml`; there `pad` and `axes` are keys of
/// tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnSettings {
    /// Padded axes, by input.
    pub pad: BTreeMap<String, Parsed<Pad>>,
    /// The names of dimensions, by tensor.
    pub axes: BTreeMap<String, Parsed<Axes>>,
    /// The engine that runs the model on the CPU.
    pub engine: Option<Parsed<OnnxEngine>>,
    /// Whether the model stays loaded where requests load models.
    pub pin: Option<bool>,
    /// Which versions answer requests that name none.
    pub rollout: Option<Rollout>,
    /// How the model runs on its devices.
    pub instance: OwnInstance,
    /// How requests share batches.
    pub batching: Batching,
    /// Where the model is cut.
    pub stages: Option<Stages>,
    /// Where rows leave before the last stage.
    pub exits: Vec<ExitSettings>,
    /// The cell types, by name; empty for a model without cells.
    pub cells: CellTypes,
    /// The segments of each request, in order; empty for a model without cells.
    pub unfold: Vec<SegmentSettings>,
    /// The steps of a pipeline that Triton's `ensemble_scheduling` cannot express; else empty.
    pub pipeline: Vec<PipelineStep>,
    /// How the model takes texts, if it does.
    pub text: Option<Text>,
    /// How the model generates tokens, if it does.
    pub generate: Option<Generate>,
}

/// The cell types of a model, by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Cells")]
pub struct CellTypes {
    types: BTreeMap<PartName, Cell>,
    /// Whether the configuration has none so that recurrent layers in the graph are served as a whole.
    pub is_off: bool,
}

impl From<Cells> for CellTypes {
    fn from(given: Cells) -> Self {
        match given {
            Cells::Word(Off::Off) => Self { types: BTreeMap::new(), is_off: true },
            Cells::Types(types) => Self { types: types.0, is_off: false },
        }
    }
}

impl Serialize for CellTypes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_off { Off::Off.serialize(serializer) } else { self.types.serialize(serializer) }
    }
}

impl Deref for CellTypes {
    type Target = BTreeMap<PartName, Cell>;

    fn deref(&self) -> &Self::Target {
        &self.types
    }
}

/// Iterates over the names and numbers in an expression.
fn words(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|letter: char| !AxisLength::is_in_word(letter)).filter(|word| !word.is_empty())
}

/// How a model runs on its devices, beyond what instance groups can express.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnInstance {
    /// Lengths that cards are prepared for, by padded axis.
    pub lengths: BTreeMap<String, LengthList>,
    /// Precision of matrix products and convolutions.
    pub precision: Option<Parsed<Precision>>,
}

impl OwnSettings {
    /// Returns the names of the padded axes, in the order of their [`SymbolId`].
    pub fn padded_axes(&self) -> Vec<&str> {
        let symbols: BTreeSet<&str> = self.pad.values().flat_map(|pad| &pad.0.symbols).map(String::as_str).collect();
        symbols.into_iter().collect()
    }

    /// Reads the name of an axis as an expression of padded axes; `None` for a name without a padded axis.
    ///
    /// # Errors
    /// If padded axes are in the name, but it is no expression of only them.
    pub fn axis_length(&self, name: &str) -> Result<Option<AxisLength>, AxisLengthError> {
        let padded = self.padded_axes();
        let axis_of = |name: &str| padded.iter().position(|own| *own == name).map(|index| SymbolId(index as u16));
        match AxisLength::parse(name, &axis_of) {
            Ok(length) if !length.axes().is_empty() => Ok(Some(length)),
            Err(error) if words(name).any(|word| axis_of(word).is_some()) => Err(error),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Replaces the short forms of `over` in segments.
    ///
    /// # Errors
    /// As [`Segment::name_over`].
    pub(super) fn name_over(&mut self, origin: &Origin) -> Result<(), ConfigError> {
        for (number, segment) in self.unfold.iter_mut().enumerate() {
            let path = format!("unfold[{number}].{}", segment.kind());
            segment.name_over().map_err(|fault| origin.error(&path, fault))?;
        }
        Ok(())
    }

    /// Returns the key of the first setting of stages and exits.
    pub fn stages_key(&self) -> Option<&'static str> {
        match &self.stages {
            _ if !self.exits.is_empty() => Some("exits[0].at_least"),
            Some(Stages::At(_)) => Some("stages[0]"),
            Some(_) => Some("stages"),
            None => None,
        }
    }
}

/// The padded axes of an input and the fill value. As text: `tokens`, `tokens=0`, `height,width=0`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// Names of the padded axes.
    pub symbols: Vec<String>,
    /// Fill value.
    pub value: f64,
}

impl fmt::Display for Pad {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.symbols.join(","), self.value)
    }
}

impl FromStr for Pad {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let (names, value) = text.rsplit_once('=').unwrap_or((text, "0"));
        let number = value.trim().parse();
        let value =
            number.map_err(|_| SettingError::expected("a number behind '='", format_args!("'{}'", value.trim())))?;
        let symbols: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
        match symbols.iter().find(|name| !Symbol::is(name)) {
            Some(bad) => {
                Err(format!("expected the name of an axis, as in 'tokens' or 'tokens=0', but found '{bad}'").into())
            }
            None => Ok(Self { symbols, value }),
        }
    }
}

/// The names of a tensor's dimensions, in order. As text, `-` stands for a dimension without a name: `tokens,-`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Axes(pub Vec<Option<String>>);

impl fmt::Display for Axes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|name| name.as_deref().unwrap_or("-")).collect();
        formatter.write_str(&names.join(","))
    }
}

impl FromStr for Axes {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let names = text.split(',').map(str::trim).map(|name| match name {
            "-" => Ok(None),
            name if Symbol::is(name) => Ok(Some(name.to_owned())),
            name => Err(format!("expected names of dimensions, '-' for one without, but found '{name}'").into()),
        });
        names.collect::<Result<_, _>>().map(Self)
    }
}
