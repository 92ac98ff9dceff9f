//! Our own knobs, which travel as strings in `parameters` because `model_config.proto` has no fields for them.

use super::{engine::ENGINE, knobs, lengths::LENGTHS, nearest::suggestion, pb, precision::PRECISION, stages, unfold};
use crate::batching::PolicyKind;

/// Key prefix: `pad.<input>` names the axes of an input that are padded within a batch, and the value they are filled
/// with: `tokens`, `tokens=0`, `height,width=0`.
pub const PAD: &str = "pad.";

/// Key prefix: `axes.<tensor>` names a tensor's dimensions in order, `-` for one without a name: `tokens,-`.
pub const AXES: &str = "axes.";

/// The batching policy, by its [`PolicyName`].
pub use crate::batching::knob::POLICY;

/// Path of the policy's name in a configuration.
pub fn policy_path() -> String {
    format!("parameters[{POLICY}]")
}

/// Path of a parameter in a configuration.
pub fn path(key: &str) -> String {
    format!("parameters[{key}]")
}

/// Begins the keys of the knobs of batching ([`knobs`]).
const BATCHING: &str = "batching.";

/// Begins the keys that say how a model runs on its devices.
const INSTANCE: &str = "instance.";

/// Parameters of the ONNX Runtime backend that Triton knows and we do not act on.
const ONNXRUNTIME: [&str; 17] = [
    "arena_extend_strategy",
    "cudnn_conv_algo_search",
    "cudnn_conv_use_max_workspace",
    "do_copy_in_default_stream",
    "enable_cuda_graph",
    "enable_mem_arena",
    "enable_mem_pattern",
    "execution_mode",
    "gpu_mem_limit",
    "inter_op_thread_count",
    "intra_op_thread_count",
    "memory.enable_memory_arena_shrinkage",
    "model_namespace",
    "optimization.graph_optimization_level",
    "use_device_allocator_for_initializers",
    "use_global_thread_pool",
    "use_ort_model_bytes_directly",
];

/// What is padded of one input.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// Names of the padded axes.
    pub symbols: Vec<String>,
    /// What they are filled with.
    pub value: f64,
}

impl Pad {
    /// The parameter's text, which [`pad`] reads back.
    pub fn text(&self) -> String {
        format!("{}={}", self.symbols.join(","), self.value)
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

    /// The policy of a name; the error says which there are.
    ///
    /// # Errors
    /// For any other name.
    pub fn from_name(name: &str) -> Result<Self, String> {
        if let Some(found) = Self::all().find(|policy| policy.as_str() == name) {
            return Ok(found);
        }
        let names: Vec<&str> = Self::all().map(Self::as_str).collect();
        let hint = suggestion(name, names.iter().copied());
        let (last, others) = names.split_last().expect("there is auto");
        Err(format!("expected {} or {last}, but found '{name}'{hint}", others.join(", ")))
    }
}

fn text<'a>(config: &'a pb::ModelConfig, key: &str) -> Option<&'a str> {
    config.parameters.get(key).map(|parameter| parameter.string_value.as_str())
}

/// The padding of an input, if it has any.
///
/// # Errors
/// When the parameter names no axis or its value is no number.
pub fn pad(config: &pb::ModelConfig, input: &str) -> Result<Option<Pad>, String> {
    let Some(given) = text(config, &format!("{PAD}{input}")) else { return Ok(None) };
    let (names, value) = match given.rsplit_once('=') {
        Some((names, value)) => {
            let number: Result<f64, _> = value.trim().parse();
            let number = number.map_err(|_| format!("expected a number behind '=', but found '{}'", value.trim()))?;
            (names, number)
        }
        None => (given, 0.0),
    };
    let symbols: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
    if let Some(bad) = symbols.iter().find(|name| !is_symbol(name)) {
        return Err(format!("expected the name of an axis, as in 'tokens' or 'tokens=0', but found '{bad}'"));
    }
    Ok(Some(Pad { symbols, value }))
}

/// The names of a tensor's dimensions, if the configuration gives them.
///
/// # Errors
/// When a name could not be one.
pub fn axes(config: &pb::ModelConfig, tensor: &str) -> Result<Option<Vec<Option<String>>>, String> {
    let Some(given) = text(config, &format!("{AXES}{tensor}")) else { return Ok(None) };
    let names = given.split(',').map(str::trim).map(|name| match name {
        "-" => Ok(None),
        name if is_symbol(name) => Ok(Some(name.to_owned())),
        name => Err(format!("expected names of dimensions, '-' for one without, but found '{name}'")),
    });
    names.collect::<Result<Vec<_>, _>>().map(Some)
}

/// The text of an `axes.<tensor>` parameter.
pub fn axes_text(names: &[Option<String>]) -> String {
    let names: Vec<&str> = names.iter().map(|name| name.as_deref().unwrap_or("-")).collect();
    names.join(",")
}

/// Whether a name can stand in `pad.` and `axes.` parameters: neither empty nor a number, without `,`, `=` and spaces
/// around it.
pub fn is_symbol(name: &str) -> bool {
    !name.is_empty() && name != "-" && name.trim() == name && !name.contains([',', '=']) && name.parse::<f64>().is_err()
}

/// The policy, where the parameter names one.
///
/// # Errors
/// When no policy has that name.
pub fn policy(config: &pb::ModelConfig) -> Result<Option<PolicyName>, String> {
    text(config, POLICY).map(|given| PolicyName::from_name(given.trim())).transpose()
}

/// What a key of `parameters` is to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// We act on it.
    Ours,
    /// A hint for ONNX Runtime that changes no results and is not acted on.
    OnnxRuntime,
    /// In our name space, but not a knob of this version; the text says so.
    Unknown(String),
    /// Anything else: shown in the configuration, without effect.
    Foreign,
}

/// Whether a key is in our name space.
pub fn is_ours(key: &str) -> bool {
    [PAD, AXES, LENGTHS, BATCHING, INSTANCE].iter().any(|prefix| key.starts_with(prefix))
        || key == ENGINE
        || stages::is_ours(key)
        || unfold::is_ours(key)
}

/// Sorts a key of `parameters`. `pad.` and `axes.` keys must name tensors of the configuration, `lengths.` keys padded
/// axes, or in a model of cells those of its programs, which are not known here.
pub fn meaning(config: &pb::ModelConfig, key: &str) -> Meaning {
    let inputs = config.input.iter().map(|tensor| tensor.name.as_str());
    let outputs = config.output.iter().map(|tensor| tensor.name.as_str());
    if let Some(name) = key.strip_prefix(PAD) {
        return of_tensor("input", name, inputs.collect());
    }
    if let Some(name) = key.strip_prefix(AXES) {
        return of_tensor("input or output", name, inputs.chain(outputs).collect());
    }
    if let Some(axis) = key.strip_prefix(LENGTHS) {
        // Which axes cells have their programs say.
        if unfold::is_given(config) {
            return Meaning::Ours;
        }
        let pads = config.input.iter().filter_map(|input| pad(config, &input.name).ok().flatten());
        let padded: Vec<String> = pads.flat_map(|pad| pad.symbols).collect();
        if padded.iter().any(|padded| padded == axis) {
            return Meaning::Ours;
        }
        let hint = suggestion(axis, padded.iter().map(String::as_str));
        return Meaning::Unknown(format!("the model has no padded axis '{axis}'{hint}"));
    }
    if let Some(name) = key.strip_prefix(INSTANCE) {
        if key == PRECISION {
            return Meaning::Ours;
        }
        let hint = suggestion(name, [&PRECISION[INSTANCE.len()..]]);
        return Meaning::Unknown(format!("there is no 'instance.{name}'{hint}"));
    }
    if key == ENGINE {
        return Meaning::Ours;
    }
    if key.starts_with(BATCHING) {
        return knobs::known(key).map_or_else(Meaning::Unknown, |()| Meaning::Ours);
    }
    if stages::is_ours(key) {
        return stages::known(key).map_or_else(Meaning::Unknown, |()| Meaning::Ours);
    }
    if unfold::is_ours(key) {
        return unfold::known(key).map_or_else(Meaning::Unknown, |()| Meaning::Ours);
    }
    if ONNXRUNTIME.contains(&key) {
        return Meaning::OnnxRuntime;
    }
    Meaning::Foreign
}

fn of_tensor(what: &str, name: &str, known: Vec<&str>) -> Meaning {
    if known.contains(&name) {
        return Meaning::Ours;
    }
    let hint = suggestion(name, known);
    Meaning::Unknown(format!("the model has no {what} '{name}'{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: &str, value: &str) -> pb::ModelConfig {
        let mut config = pb::ModelConfig {
            input: vec![pb::ModelInput { name: "ids".to_owned(), ..Default::default() }],
            ..Default::default()
        };
        config.parameters.insert(key.to_owned(), pb::ModelParameter { string_value: value.to_owned() });
        config
    }

    #[test]
    fn a_pad_names_its_axes_and_value() {
        let read = |text| pad(&with("pad.ids", text), "ids");
        let tokens = |value| Ok(Some(Pad { symbols: vec!["tokens".to_owned()], value }));
        assert_eq!(read("tokens"), tokens(0.0));
        assert_eq!(read("tokens = -1.5"), tokens(-1.5));
        assert_eq!(read("h, w=1").unwrap().unwrap().symbols, ["h", "w"]);
        assert_eq!(read("tokens=x").unwrap_err(), "expected a number behind '=', but found 'x'");
        assert!(read("").is_err(), "an axis without a name");
        assert!(read("1=0").is_err(), "an axis by number");
        assert_eq!(pad(&with("pad.other", "n"), "ids"), Ok(None));
    }

    #[test]
    fn what_a_pad_writes_it_reads() {
        let given = Pad { symbols: vec!["h".to_owned(), "w".to_owned()], value: -0.25 };
        assert_eq!(pad(&with("pad.ids", &given.text()), "ids"), Ok(Some(given)));
    }

    #[test]
    fn axes_may_be_unnamed() {
        let names = axes(&with("axes.ids", "tokens,-"), "ids").unwrap().unwrap();
        assert_eq!(names, [Some("tokens".to_owned()), None]);
        assert_eq!(axes_text(&names), "tokens,-");
        assert!(axes(&with("axes.ids", "a,,b"), "ids").is_err());
    }

    #[test]
    fn lengths_are_of_axes_that_are_padded() {
        let mut config = with("pad.ids", "tokens");
        config.parameters.insert("lengths.tokens".to_owned(), pb::ModelParameter::default());
        assert_eq!(meaning(&config, "lengths.tokens"), Meaning::Ours);
        let unknown = Meaning::Unknown("the model has no padded axis 'token'; did you mean 'tokens'?".to_owned());
        assert_eq!(meaning(&config, "lengths.token"), unknown);
    }

    #[test]
    fn policies_have_names() {
        for policy in PolicyName::all() {
            assert_eq!(PolicyName::from_name(policy.as_str()), Ok(policy));
        }
        let unknown = PolicyName::from_name("windw").unwrap_err();
        assert!(unknown.starts_with("expected auto, serial, window, adaptive, "), "{unknown}");
        assert!(unknown.ends_with(" or cellular, but found 'windw'; did you mean 'window'?"), "{unknown}");
    }

    #[test]
    fn keys_are_sorted_by_who_acts_on_them() {
        let config = with("x", "y");
        assert_eq!(meaning(&config, "pad.ids"), Meaning::Ours);
        assert_eq!(meaning(&config, "intra_op_thread_count"), Meaning::OnnxRuntime);
        assert_eq!(meaning(&config, "my_tag"), Meaning::Foreign);
        assert!(matches!(meaning(&config, "pad.idz"), Meaning::Unknown(text) if text.contains("did you mean 'ids'")));
        assert!(matches!(meaning(&config, "batching.bucket"), Meaning::Unknown(_)));
        assert_eq!(meaning(&config, "batching.lazy.max_depth"), Meaning::Ours);
        assert_eq!(meaning(&config, "exits.3.skip_to"), Meaning::Ours);
        assert_eq!(meaning(&config, "stages.0"), Meaning::Ours);
        assert_eq!(meaning(&config, "cells.step.program"), Meaning::Ours);
        assert_eq!(meaning(&config, "unfold.0.carry.h"), Meaning::Ours);
        assert!(matches!(meaning(&config, "cells.step"), Meaning::Unknown(_)));
        assert!(matches!(meaning(&config, "stage"), Meaning::Foreign), "a word of their own");
        let unknown = "expected stages, stages.<number> or exits.<number>.<key>; did you mean 'exits.3.skip_to'?";
        assert_eq!(meaning(&config, "exits.3.skip"), Meaning::Unknown(unknown.to_owned()));
    }
}
