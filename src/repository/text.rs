//! Models that take texts: their tokenizer, and the steps around their program.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    bounded_file::read_up_to,
    config::{
        model::{PipelineStep, PoolStep, PoolingName, Side, Text, TextTask, TokenizeStep},
        model_config::datatype_to_pb,
        pb,
        values::{NonEmptyText, stays_inside},
    },
};
use crate::{
    executor::ModelHandle,
    model::{DataType, ModelSpec, TensorSpec, text},
    pipeline::{BuiltIn, Graph, Pipeline, PipelineOptions, Port, Runs, Servable, Step},
    text::{
        DEFAULT_MAX_BYTES, Layout, MAX_TOKENIZER_BYTES, Pool, PoolOptions, Pooling, STATES, Task, TextTokenizer,
        Tokenize, TokenizeOptions, TokenizerOptions, Truncate, hugging_face, output,
    },
};

/// The tokenizer's file, unless the configuration names another one.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Where exports put the program of a model that has no version directories.
const PROGRAMS: [&str; 2] = ["onnx/model.onnx", "model.onnx"];

/// Most tokens of a text in a pipeline that does not say so.
const DEFAULT_MAX_TOKENS: usize = 512;

/// Largest of the other files, in bytes.
const MAX_DESCRIPTION_BYTES: u64 = 4 << 20;

/// Most texts of a request. Each is batched by itself.
const MAX_TEXTS: u32 = 2048;

/// Default largest batch of the program, in texts.
pub(super) const DEFAULT_MAX_BATCH_SIZE: i32 = 32;

/// Returns the program of a directory that Hugging Face or sentence-transformers laid out, which has a tokenizer and no
/// version directories.
pub(super) fn laid_out(directory: &Path) -> Option<PathBuf> {
    let program = PROGRAMS.into_iter().map(PathBuf::from).find(|program| directory.join(program).is_file())?;
    let has_tokenizer = directory.join(TOKENIZER).is_file();
    // A directory that cannot be read has no versions that would be served instead.
    let has_versions = super::directory::versions(directory).is_ok_and(|versions| !versions.is_empty());
    (has_tokenizer && !has_versions).then_some(program)
}

/// What the files of a model that takes texts say.
#[derive(Debug)]
pub(super) struct TextModel {
    layout: Layout,
    tokenizer: Arc<TextTokenizer>,
    output: Option<String>,
}

impl TextModel {
    /// Reads the tokenizer and the descriptions in a directory. The section of the configuration goes before them.
    ///
    /// # Errors
    /// Names the file that is missing or cannot be followed.
    pub(super) fn read(directory: &Path, section: &Text) -> Result<Self, String> {
        let file = |name: &str| {
            let path = directory.join(name);
            path.is_file().then(|| read_up_to(&path, MAX_DESCRIPTION_BYTES)).transpose()
        };
        let mut layout = hugging_face(&file).map_err(|fault| fault.to_string())?;
        override_layout(&mut layout, section)?;
        let options = TokenizerOptions {
            max_tokens: layout.max_tokens,
            truncate: layout.truncate,
            max_bytes: section.max_bytes.map_or(DEFAULT_MAX_BYTES, |bytes| bytes.0 as usize),
            offsets: matches!(layout.task, Task::ClassifyTokens { .. }),
        };
        let tokenizer = tokenizer(directory, section.tokenizer.as_ref(), options)?;
        let output = section.output.as_ref().map(|name| name.0.clone());
        Ok(Self { layout, tokenizer, output })
    }

    /// Returns the token that texts are padded with.
    pub(super) fn pad_token(&self) -> i64 {
        self.layout.pad_token
    }

    /// Says in a line what the model does.
    pub(super) fn describe(&self) -> String {
        let Layout { task, max_tokens, .. } = &self.layout;
        let task = match task {
            Task::Embed { pooling, normalize } => {
                format!(
                    "embeds texts ({pooling:?} pooling, {})",
                    if *normalize { "normalized" } else { "not normalized" }
                )
            }
            Task::Classify { labels } => format!("classifies texts and pairs ({} classes)", labels.len().max(1)),
            Task::ClassifyTokens { labels } => format!("classifies tokens ({} classes)", labels.len().max(1)),
        };
        format!("{task}, at most {max_tokens} tokens")
    }

    /// Puts the steps around a program, and shows the whole in its configuration.
    ///
    /// # Errors
    /// If the program has no output for the task, or an input that a tokenizer does not give.
    pub(super) fn around(
        &self,
        handle: Arc<ModelHandle>,
        config: &pb::ModelConfig,
        options: PipelineOptions,
    ) -> Result<(Pipeline, pb::ModelConfig), String> {
        let inner = Arc::clone(handle.spec());
        if !inner.has_batch_axis() {
            return Err("a model that takes texts needs a batch axis, and max_batch_size is 0".to_owned());
        }
        let states = self.states_of(&inner)?;
        let tokenize = self.tokenize(&inner)?;
        let mut steps = vec![
            step(Runs::BuiltIn(tokenize.clone()), same(tokenize.inputs()), same(tokenize.outputs())),
            step(Runs::Own(Servable::Model(handle)), ports_of(&inner)?, vec![port(&states.name, STATES)]),
        ];
        let mut inputs = tokenize.inputs().to_vec();
        let count = find(tokenize.outputs(), text::TOKEN_COUNT);
        let mut outputs = match &self.layout.task {
            Task::Embed { pooling, normalize } => {
                let pool = pool(&states, *pooling, *normalize)?;
                let mut from = same(pool.inputs());
                from.iter_mut().filter(|port| port.port == STATES).for_each(|port| {
                    STATES.clone_into(&mut port.tensor);
                });
                inputs.extend(pool.inputs().iter().filter(|spec| spec.name != STATES).cloned());
                let outputs = pool.outputs().to_vec();
                steps.push(step(Runs::BuiltIn(Arc::new(pool)), from, same(&outputs)));
                outputs
            }
            Task::Classify { labels } | Task::ClassifyTokens { labels } => {
                let is_by_token = matches!(self.layout.task, Task::ClassifyTokens { .. });
                if states.dims.len() != 1 + usize::from(is_by_token) {
                    let (name, dims) = (&states.name, &states.dims[..]);
                    let wanted = if is_by_token { "classes of each token" } else { "classes of a text" };
                    return Err(format!("expected {wanted} in output '{name}', but its dims are {dims:?}"));
                }
                if let Some(port) = steps[1].outputs.first_mut() {
                    text::LOGITS.clone_into(&mut port.tensor);
                }
                vec![TensorSpec {
                    name: text::LOGITS.to_owned(),
                    labels: labels.clone(),
                    symbols: Default::default(),
                    ..states
                }]
            }
        };
        outputs.extend(count);
        if matches!(self.layout.task, Task::ClassifyTokens { .. }) {
            outputs.extend(find(tokenize.outputs(), text::OFFSETS));
        }
        let names =
            |tensors: &'_ [TensorSpec]| -> Vec<String> { tensors.iter().map(|spec| spec.name.clone()).collect() };
        let (of_inputs, of_outputs) = (names(&inputs), names(&outputs));
        let graph = Graph::new(&of_inputs, &of_outputs, steps).map_err(|fault| fault.to_string())?;
        let spec = ModelSpec {
            name: inner.name.clone(),
            version: inner.version,
            max_batch_size: MAX_TEXTS,
            inputs,
            outputs,
            symbols: Vec::new(),
            decoupled: false,
        };
        let config = shown(config, &spec);
        let pipeline = Pipeline::new(spec, graph, options).map_err(|fault| fault.to_string())?;
        Ok((pipeline, config))
    }

    fn tokenize(&self, inner: &ModelSpec) -> Result<Arc<Tokenize>, String> {
        let ids = inner.inputs.iter().find(|spec| tensor_of(&spec.name) == Some(output::IDS));
        let ids = ids.ok_or_else(|| "the program has no input 'input_ids'".to_owned())?;
        let options = TokenizeOptions {
            int32: ids.datatype == DataType::Int32,
            prompts: self.layout.prompts.clone(),
            default_prompt: self.layout.default_prompt.clone(),
        };
        Ok(Arc::new(Tokenize::new(Arc::clone(&self.tokenizer), options)))
    }

    /// Returns the output of the program that the task needs.
    fn states_of(&self, inner: &ModelSpec) -> Result<TensorSpec, String> {
        let usual: &[&str] = match self.layout.task {
            Task::Embed { .. } => &["sentence_embedding", "last_hidden_state", "token_embeddings"],
            Task::Classify { .. } | Task::ClassifyTokens { .. } => &[text::LOGITS],
        };
        let named = match &self.output {
            Some(name) => inner.outputs.iter().find(|spec| spec.name == *name),
            None => {
                let usual = usual.iter().find_map(|name| inner.outputs.iter().find(|spec| spec.name == *name));
                usual.or(inner.outputs.first())
            }
        };
        let names: Vec<String> = inner.outputs.iter().map(|spec| format!("'{}'", spec.name)).collect();
        let missing = || {
            let wanted = self.output.as_deref().unwrap_or("states");
            format!("the program has no output '{wanted}'; its outputs are {}", names.join(", "))
        };
        named.cloned().ok_or_else(missing)
    }
}

/// Creates a built-in step of a pipeline, with its tokenizer from the pipeline's directory.
///
/// # Errors
/// Names the file that is missing or cannot be used.
pub(super) fn built_in(directory: &Path, step: &PipelineStep) -> Result<Arc<dyn BuiltIn>, String> {
    match step {
        PipelineStep::Model(step) => Err(format!("'{}' is a model", step.name.0)),
        PipelineStep::Pool(PoolStep { pooling, normalize, dtype, .. }) => {
            let datatype = dtype.map_or(DataType::Fp32, |dtype| dtype.0.0);
            if !is_float(datatype) {
                return Err(format!("expected a datatype of floats, but found {datatype}"));
            }
            let pooling = pooling.map_or(Pooling::Mean, pooling_of);
            Ok(Arc::new(Pool::new(PoolOptions { pooling, normalize: normalize.unwrap_or(false), datatype })))
        }
        PipelineStep::Tokenize(TokenizeStep {
            tokenizer,
            max_tokens,
            max_bytes,
            truncate,
            int32,
            prompts,
            default_prompt,
            outputs,
            ..
        }) => {
            let options = TokenizerOptions {
                max_tokens: max_tokens.map_or(DEFAULT_MAX_TOKENS, |tokens| tokens.0 as usize),
                truncate: truncate.map_or(Truncate::Right, truncate_of),
                max_bytes: max_bytes.map_or(DEFAULT_MAX_BYTES, |bytes| bytes.0 as usize),
                offsets: outputs.0.keys().any(|name| name.0 == text::OFFSETS),
            };
            let tokenizer = self::tokenizer(directory, tokenizer.as_ref(), options)?;
            let prompts = prompts.iter().flatten().map(|(name, prompt)| (name.0.clone(), prompt.clone())).collect();
            let default_prompt = default_prompt.as_ref().map(|name| name.0.clone());
            let options = TokenizeOptions { int32: int32.unwrap_or(false), prompts, default_prompt };
            if let Some(missing) = options.default_prompt.as_ref().filter(|name| !options.prompts.contains_key(*name)) {
                return Err(format!("there is no prompt '{missing}'"));
            }
            Ok(Arc::new(Tokenize::new(tokenizer, options)))
        }
    }
}

fn tokenizer(
    directory: &Path,
    name: Option<&NonEmptyText>,
    options: TokenizerOptions,
) -> Result<Arc<TextTokenizer>, String> {
    let name = name.map_or(TOKENIZER, |name| &name.0);
    if !stays_inside(name) {
        return Err(format!("expected a file in the model's directory, but found '{name}'"));
    }
    let path = directory.join(name);
    let json = read_up_to(&path, MAX_TOKENIZER_BYTES).map_err(|fault| format!("there is no tokenizer: {fault}"))?;
    let tokenizer = TextTokenizer::read(&json, options).map_err(|fault| format!("{}: {fault}", path.display()))?;
    Ok(Arc::new(tokenizer))
}

/// Puts what the configuration says in place of what the files say.
fn override_layout(layout: &mut Layout, section: &Text) -> Result<(), String> {
    let (mut labels, mut given) = (Vec::new(), (Pooling::Mean, false));
    match &layout.task {
        Task::Embed { pooling, normalize } => given = (*pooling, *normalize),
        Task::Classify { labels: known } | Task::ClassifyTokens { labels: known } => labels.clone_from(known),
    }
    match section.task {
        Some(TextTask::Embed) => layout.task = Task::Embed { pooling: given.0, normalize: given.1 },
        Some(TextTask::Classify) => layout.task = Task::Classify { labels },
        Some(TextTask::ClassifyTokens) => layout.task = Task::ClassifyTokens { labels },
        None => {}
    }
    match &mut layout.task {
        Task::Embed { pooling, normalize } => {
            *pooling = section.pooling.map_or(*pooling, pooling_of);
            *normalize = section.normalize.unwrap_or(*normalize);
        }
        Task::Classify { .. } | Task::ClassifyTokens { .. } => {
            if section.pooling.is_some() || section.normalize.is_some() {
                return Err("text: pooling and normalize go with the task embed".to_owned());
            }
        }
    }
    if let Some(tokens) = section.max_tokens {
        layout.max_tokens = tokens.0 as usize;
    }
    if let Some(side) = section.truncate {
        layout.truncate = truncate_of(side);
    }
    if let Some(prompts) = &section.prompts {
        layout.prompts = prompts.iter().map(|(name, prompt)| (name.0.clone(), prompt.clone())).collect();
        layout.default_prompt = None;
    }
    if let Some(name) = &section.default_prompt {
        if !layout.prompts.contains_key(&name.0) {
            return Err(format!("text.default_prompt: there is no prompt '{}'", name.0));
        }
        layout.default_prompt = Some(name.0.clone());
    }
    Ok(())
}

fn truncate_of(side: Side) -> Truncate {
    match side {
        Side::Left => Truncate::Left,
        Side::Right => Truncate::Right,
    }
}

fn pooling_of(name: PoolingName) -> Pooling {
    match name {
        PoolingName::Mean => Pooling::Mean,
        PoolingName::Cls => Pooling::Cls,
        PoolingName::Last => Pooling::Last,
        PoolingName::WeightedMean => Pooling::WeightedMean,
        PoolingName::Max => Pooling::Max,
        PoolingName::MeanSqrtLen => Pooling::MeanSqrtLen,
        PoolingName::Done => Pooling::Done,
    }
}

/// Returns the tokenizer's output for an input of a program, by the names that exports give them.
fn tensor_of(input: &str) -> Option<&'static str> {
    match input {
        "input_ids" => Some(output::IDS),
        "attention_mask" => Some(output::MASK),
        "token_type_ids" => Some(output::TYPES),
        _ => None,
    }
}

/// Returns whether the program has an input that tells padding from tokens.
pub(super) fn has_mask(inputs: &[pb::ModelInput]) -> bool {
    inputs.iter().any(|input| tensor_of(&input.name) == Some(output::MASK))
}

fn ports_of(inner: &ModelSpec) -> Result<Vec<Port>, String> {
    let mut ports = Vec::with_capacity(inner.inputs.len());
    for spec in &inner.inputs {
        match tensor_of(&spec.name) {
            Some(tensor) => ports.push(port(&spec.name, tensor)),
            None if spec.optional => {}
            None => {
                let name = &spec.name;
                return Err(format!(
                    "the program's input '{name}' is none that a tokenizer gives; expected input_ids, attention_mask \
                     and token_type_ids"
                ));
            }
        }
    }
    Ok(ports)
}

fn pool(states: &TensorSpec, pooling: Pooling, normalize: bool) -> Result<Pool, String> {
    let pooling = match states.dims[..] {
        [_] => Pooling::Done,
        [_, _] => pooling,
        _ => {
            let (name, dims) = (&states.name, &states.dims[..]);
            return Err(format!(
                "expected the states of tokens or a vector in output '{name}', but its dims are {dims:?}"
            ));
        }
    };
    if !is_float(states.datatype) {
        return Err(format!("expected floats in output '{}', but found {}", states.name, states.datatype));
    }
    Ok(Pool::new(PoolOptions { pooling, normalize, datatype: states.datatype }))
}

fn is_float(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp32 | DataType::Fp16 | DataType::Bf16 | DataType::Fp64)
}

fn step(runs: Runs, inputs: Vec<Port>, outputs: Vec<Port>) -> Step {
    Step { runs, inputs, outputs, when: None }
}

fn port(port: &str, tensor: &str) -> Port {
    Port { port: port.to_owned(), tensor: tensor.to_owned() }
}

/// Connects ports with tensors of their names.
fn same(tensors: &[TensorSpec]) -> Vec<Port> {
    tensors.iter().map(|spec| port(&spec.name, &spec.name)).collect()
}

fn find(tensors: &[TensorSpec], name: &str) -> Option<TensorSpec> {
    tensors.iter().find(|spec| spec.name == name).cloned()
}

/// Shows texts as inputs and the results as outputs.
fn shown(config: &pb::ModelConfig, spec: &ModelSpec) -> pb::ModelConfig {
    let mut config = config.clone();
    let dims = |tensor: &TensorSpec| tensor.dims.to_vec();
    let input = |tensor: &TensorSpec| pb::ModelInput {
        name: tensor.name.clone(),
        data_type: datatype_to_pb(tensor.datatype).into(),
        dims: dims(tensor),
        optional: tensor.optional,
        ..Default::default()
    };
    let output = |tensor: &TensorSpec| pb::ModelOutput {
        name: tensor.name.clone(),
        data_type: datatype_to_pb(tensor.datatype).into(),
        dims: dims(tensor),
        ..Default::default()
    };
    config.input = spec.inputs.iter().map(input).collect();
    config.output = spec.outputs.iter().map(output).collect();
    config.max_batch_size = i32::try_from(spec.max_batch_size).unwrap_or(i32::MAX);
    config
}
