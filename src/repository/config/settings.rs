//! A model's configuration as it is worked with: Triton's `ModelConfig`, and beside it, typed, what that has no fields
//! for. All forms of a configuration are read into it once; completion, checks and conversion take it from here.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    model::{Batching, Cell, Exit, Segment, Stages},
    nearest::{alternatives, suggestion},
    parameters, pb,
    values::{Named, PartName, Symbol, Words},
};
use crate::{
    batching::{PolicyKind, knob::LengthList},
    engine::{OnnxEngine, Precision},
};

/// A model's configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// What `ModelConfig` has fields for. Its `parameters` are those that are not ours.
    pub config: pb::ModelConfig,
    /// The rest.
    pub own: Own,
}

impl Settings {
    /// The whole as one `ModelConfig`, with the rest among its `parameters`.
    pub fn shown(&self) -> pb::ModelConfig {
        let mut config = self.config.clone();
        let own = parameters::of(&self.own).into_iter();
        config.parameters.extend(own.map(|(key, string_value)| (key, pb::ModelParameter { string_value })));
        config
    }

    /// Whether the requests unfold into cells.
    pub fn has_cells(&self) -> bool {
        !self.own.cells.is_empty() || !self.own.unfold.is_empty()
    }

    /// Whether any number of responses comes to one request.
    pub fn is_decoupled(&self) -> bool {
        self.config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled)
    }

    /// The policy, where the configuration names one.
    pub fn policy(&self) -> Option<PolicyName> {
        self.own.batching.policy.map(|policy| policy.0)
    }
}

/// What a configuration says that `ModelConfig` has no fields for. Its paths are the keys of `parameters`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Own {
    /// What is padded, by input.
    pub pad: BTreeMap<String, Named<Pad>>,
    /// The names of dimensions, by tensor.
    pub axes: BTreeMap<String, Named<Axes>>,
    /// The lengths that cards are prepared for, by padded axis.
    pub lengths: BTreeMap<String, LengthList>,
    /// What runs the model on the CPU.
    pub engine: Option<Named<OnnxEngine>>,
    /// How the model runs on its devices.
    pub instance: OwnInstance,
    /// How requests share batches.
    pub batching: Batching,
    /// Where the model is cut.
    pub stages: Option<Stages>,
    /// Where rows leave the order of stages.
    pub exits: Vec<Exit>,
    /// Its cell types; empty: none.
    pub cells: BTreeMap<PartName, Cell>,
    /// The segments of each request; empty: none.
    pub unfold: Vec<Segment>,
}

/// How a model runs on its devices, as far as instance groups do not say it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnInstance {
    /// What products and convolutions are computed with.
    pub precision: Option<Named<Precision>>,
}

impl Own {
    /// The key of the first setting of stages and exits.
    pub fn stages_key(&self) -> Option<&'static str> {
        match &self.stages {
            _ if !self.exits.is_empty() => Some("exits.0.at_least"),
            Some(Stages::At(_)) => Some("stages.0"),
            Some(_) => Some("stages"),
            None => None,
        }
    }
}

/// What is padded of one input. As text: `tokens`, `tokens=0`, `height,width=0`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// Names of the padded axes.
    pub symbols: Vec<String>,
    /// What they are filled with.
    pub value: f64,
}

impl fmt::Display for Pad {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.symbols.join(","), self.value)
    }
}

impl FromStr for Pad {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (names, value) = text.rsplit_once('=').unwrap_or((text, "0"));
        let number = value.trim().parse();
        let value = number.map_err(|_| format!("expected a number behind '=', but found '{}'", value.trim()))?;
        let symbols: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
        match symbols.iter().find(|name| !Symbol::is(name)) {
            Some(bad) => Err(format!("expected the name of an axis, as in 'tokens' or 'tokens=0', but found '{bad}'")),
            None => Ok(Self { symbols, value }),
        }
    }
}

/// The names of a tensor's dimensions in order. As text: `-` for one without a name: `tokens,-`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Axes(pub Vec<Option<String>>);

impl fmt::Display for Axes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|name| name.as_deref().unwrap_or("-")).collect();
        formatter.write_str(&names.join(","))
    }
}

impl FromStr for Axes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = text.split(',').map(str::trim).map(|name| match name {
            "-" => Ok(None),
            name if Symbol::is(name) => Ok(Some(name.to_owned())),
            name => Err(format!("expected names of dimensions, '-' for one without, but found '{name}'")),
        });
        names.collect::<Result<_, _>>().map(Self)
    }
}

/// How batches are formed, as a configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// The server chooses.
    Auto,
    /// One policy.
    Of(PolicyKind),
}

impl PolicyName {
    /// All names.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Auto).chain(PolicyKind::ALL.iter().copied().map(Self::Of))
    }

    /// The name in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Of(kind) => kind.name(),
        }
    }

    /// Whether batches are formed by preferred sizes and a delay.
    pub const fn has_window(self) -> bool {
        matches!(self, Self::Auto | Self::Of(PolicyKind::Window))
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::all().find(|policy| policy.as_str() == name).ok_or_else(|| {
            let names = Self::words();
            let hint = suggestion(name, names.iter().copied());
            format!("expected {}, but found '{name}'{hint}", alternatives(&names))
        })
    }
}

impl Words for PolicyName {
    fn words() -> Vec<&'static str> {
        Self::all().map(Self::as_str).collect()
    }
}
