//! Models that take texts: their tokenizer, and the steps around their program. `section` is what their configuration
//! says of that.

mod section;

use std::{cell::RefCell, collections::BTreeMap, path::Path, sync::Arc};

use paternoster_config::{
    SettingError,
    knobs::Whole,
    model::{PipelineStep, PoolStep, Side, Text, TextTask, TokenizeStep},
    model_config::datatype_to_pb,
    pb,
    values::{NonEmptyText, PartName, stays_inside},
};
use paternoster_executor::ModelHandle;
use paternoster_model::{DataType, ModelSpec, TensorSpec, text};
use paternoster_pipeline::{BuiltIn, Pipeline, PipelineGraph, PipelineOptions, PortBinding, Runs, Servable, Step};
use paternoster_text::{
    DEFAULT_MAX_BYTES, MAX_TOKENIZER_BYTES, Pooling, PoolingOptions, PoolingStep, STATES, TextModelLayout,
    TextModelTask, TextTokenizer, Tokenize, TokenizeOptions, TokenizerOptions, Truncate, hugging_face, output,
};

use self::section::{name_of, override_layout, pooling_of, truncate_of};
use super::{
    LoadError,
    bounded_file::read_up_to,
    directory::TOKENIZER,
    version::{MULTI_LABEL, PROBLEM_TYPE},
};

/// What exports call the states of tokens.
const TOKEN_STATES: [&str; 2] = ["last_hidden_state", "token_embeddings"];

/// Most tokens of a text in a pipeline that does not say so.
const DEFAULT_MAX_TOKENS: usize = 512;

/// Largest of the other files, in bytes.
const MAX_DESCRIPTION_BYTES: u64 = 4 << 20;

/// Most texts of a request. Each is batched by itself.
const MAX_TEXTS: u32 = 2048;

/// Default largest batch of the program, in texts.
pub(super) const DEFAULT_MAX_BATCH_SIZE: i32 = 32;

/// What the files of a model that takes texts say.
#[derive(Debug)]
pub(super) struct TextModel {
    layout: TextModelLayout,
    tokenizer: Arc<TextTokenizer>,
    output: Option<String>,
    /// The files that were read, by their paths from the model's directory.
    files: Vec<String>,
}

/// What a model of texts needs of its program.
struct Fitted {
    /// The inputs that the tokenizer gives.
    inputs: Vec<PortBinding>,
    /// The output that the task needs.
    states: TensorSpec,
    tokenize: Arc<Tokenize>,
}

impl TextModel {
    /// Reads the tokenizer and the descriptions in a directory. The section of the configuration goes before them.
    ///
    /// # Errors
    /// Names the file that is missing or cannot be followed.
    pub(super) fn read(directory: &Path, section: &Text) -> Result<Self, LoadError> {
        let files = RefCell::default();
        let file = |name: &str| {
            let path = directory.join(name);
            if !path.is_file() {
                return Ok(None);
            }
            Vec::push(&mut files.borrow_mut(), name.to_owned());
            read_up_to(&path, MAX_DESCRIPTION_BYTES).map(Some).map_err(|error| error.to_string())
        };
        let mut layout = hugging_face(&file).map_err(LoadError::files)?;
        override_layout(&mut layout, section)?;
        let options = TokenizerOptions {
            max_tokens: layout.max_tokens,
            truncate: layout.truncate,
            max_bytes: section.max_bytes.map_or(DEFAULT_MAX_BYTES, |bytes| bytes.0 as usize),
            offsets: matches!(layout.task, TextModelTask::ClassifyTokens { .. }),
            lowercase: layout.lowercase,
        };
        let tokenizer = tokenizer(directory, section.tokenizer.as_ref(), options)?;
        let output = section.output.as_ref().map(|name| name.0.clone());
        let mut files = files.into_inner();
        files.push(section.tokenizer.as_ref().map_or(TOKENIZER, |name| &name.0).to_owned());
        Ok(Self { layout, tokenizer, output, files })
    }

    /// Returns what the files and the configuration say.
    pub(super) fn layout(&self) -> &TextModelLayout {
        &self.layout
    }

    /// Returns the files that were read, by their paths from the model's directory.
    pub(super) fn files(&self) -> &[String] {
        &self.files
    }

    /// Returns the token that texts are padded with.
    pub(super) fn pad_token(&self) -> i64 {
        self.layout.pad_token
    }

    /// Says in a line what the model does.
    pub(super) fn describe(&self) -> String {
        let TextModelLayout { task, max_tokens, .. } = &self.layout;
        let task = match task {
            TextModelTask::Embed { pooling, normalize } => {
                format!(
                    "embeds texts ({pooling:?} pooling, {})",
                    if *normalize { "normalized" } else { "not normalized" }
                )
            }
            TextModelTask::Classify { labels, .. } => format!("classifies texts and pairs ({})", classes(labels)),
            TextModelTask::ClassifyTokens { labels } => format!("classifies tokens ({})", classes(labels)),
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
    ) -> Result<(Pipeline, pb::ModelConfig), LoadError> {
        let inner = Arc::clone(handle.spec());
        let Fitted { inputs: ports, states, tokenize } = self.fit(&inner)?;
        let mut steps = vec![
            step(Runs::BuiltIn(tokenize.clone()), same(tokenize.inputs()), same(tokenize.outputs())),
            step(Runs::Own(Servable::Model(handle)), ports, vec![port(&states.name, STATES)]),
        ];
        // Beside a vector of the whole text, for clients that ask for those of its tokens.
        let of_tokens = |spec: &&TensorSpec| TOKEN_STATES.contains(&&*spec.name) && spec.dims.len() == 2;
        if states.dims.len() == 1
            && let Some(spec) = inner.outputs.iter().find(of_tokens)
        {
            steps[1].outputs.push(port(&spec.name, text::TOKEN_EMBEDDINGS));
        }
        let mut inputs = tokenize.inputs().to_vec();
        let count = find(tokenize.outputs(), text::TOKEN_COUNT);
        let mut outputs = match &self.layout.task {
            TextModelTask::Embed { pooling, normalize } => {
                let pooling = pooling_over(&states, *pooling);
                let pool =
                    PoolingStep::new(PoolingOptions { pooling, normalize: *normalize, datatype: states.datatype });
                let mut from = same(pool.inputs());
                from.iter_mut().filter(|port| port.port == STATES).for_each(|port| {
                    STATES.clone_into(&mut port.tensor);
                });
                inputs.extend(pool.inputs().iter().filter(|spec| spec.name != STATES).cloned());
                let outputs = pool.outputs().to_vec();
                steps.push(step(Runs::BuiltIn(Arc::new(pool)), from, same(&outputs)));
                outputs
            }
            TextModelTask::Classify { labels, .. } | TextModelTask::ClassifyTokens { labels } => {
                if let Some(port) = steps[1].outputs.first_mut() {
                    text::LOGITS.clone_into(&mut port.tensor);
                }
                vec![TensorSpec {
                    name: text::LOGITS.to_owned(),
                    labels: labels.as_slice().into(),
                    reshape: None,
                    symbols: Default::default(),
                    ..states
                }]
            }
        };
        outputs.extend(count);
        if matches!(self.layout.task, TextModelTask::ClassifyTokens { .. }) {
            outputs.extend(find(tokenize.outputs(), text::OFFSETS));
        }
        let names =
            |tensors: &'_ [TensorSpec]| -> Vec<String> { tensors.iter().map(|spec| spec.name.clone()).collect() };
        let (of_inputs, of_outputs) = (names(&inputs), names(&outputs));
        let graph = PipelineGraph::new(&of_inputs, &of_outputs, steps).map_err(LoadError::graph)?;
        let spec = ModelSpec {
            name: inner.name.clone(),
            version: inner.version,
            max_batch_size: MAX_TEXTS,
            inputs,
            outputs,
            symbols: Vec::new(),
            decoupled: false,
        };
        let config = self.shown(config, &spec);
        let pipeline = Pipeline::new(spec, graph, options).map_err(LoadError::graph)?;
        Ok((pipeline, config))
    }

    /// Shows texts as inputs and the results as outputs.
    fn shown(&self, config: &pb::ModelConfig, spec: &ModelSpec) -> pb::ModelConfig {
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
        if matches!(self.layout.task, TextModelTask::Classify { multi_label: true, .. }) {
            let kind = pb::ModelParameter { string_value: MULTI_LABEL.to_owned() };
            config.parameters.insert(PROBLEM_TYPE.to_owned(), kind);
        }
        config.max_batch_size = i32::try_from(spec.max_batch_size).unwrap_or(i32::MAX);
        config
    }

    /// Finds what the task needs in a program.
    ///
    /// # Errors
    /// If the program has no output for the task, or an input that a tokenizer does not give.
    fn fit(&self, inner: &ModelSpec) -> Result<Fitted, LoadError> {
        if !inner.has_batch_axis() {
            return Err(LoadError::settings("a model that takes texts needs a batch axis, and max_batch_size is 0"));
        }
        let states = self.states_of(inner)?;
        let (name, dims) = (&states.name, &states.dims[..]);
        let expected = match &self.layout.task {
            TextModelTask::Embed { .. } if !matches!(dims, [_] | [_, _]) => "the states of tokens or a vector",
            TextModelTask::Embed { .. } if !is_float(states.datatype) => {
                let message = format!("expected floats in output '{name}', but found {}", states.datatype);
                return Err(LoadError::graph(message));
            }
            TextModelTask::Classify { .. } if dims.len() != 1 => "classes of a text",
            TextModelTask::ClassifyTokens { .. } if dims.len() != 2 => "classes of each token",
            _ => return Ok(Fitted { inputs: ports_of(inner)?, tokenize: self.tokenize(inner)?, states }),
        };
        Err(LoadError::graph(format!("expected {expected} in output '{name}', but its dims are {dims:?}")))
    }

    /// Returns the section of the configuration that says the same as the files, for a program.
    ///
    /// # Errors
    /// As [`Self::around`].
    pub(super) fn section(&self, inner: &ModelSpec) -> Result<Text, LoadError> {
        let TextModelLayout { task, max_tokens, truncate, prompts, default_prompt, .. } = &self.layout;
        let states = self.fit(inner)?.states;
        let (task, pooling, normalize) = match task {
            TextModelTask::Embed { pooling, normalize } => {
                (TextTask::Embed, Some(name_of(pooling_over(&states, *pooling))), Some(*normalize))
            }
            TextModelTask::Classify { .. } => (TextTask::Classify, None, None),
            TextModelTask::ClassifyTokens { .. } => (TextTask::ClassifyTokens, None, None),
        };
        let named = |name: &String| PartName::try_from(name.clone()).ok();
        let of_prompts = prompts.iter().map(|(name, prompt)| Some((named(name)?, prompt.clone())));
        // Names that the configuration cannot have stay in the file that has them.
        let of_prompts: Option<BTreeMap<PartName, String>> = of_prompts.collect();
        Ok(Text {
            task: Some(task),
            output: NonEmptyText::try_from(states.name).ok(),
            max_tokens: u32::try_from(*max_tokens).ok().map(Whole),
            truncate: Some(if *truncate == Truncate::Left { Side::Left } else { Side::Right }),
            pooling,
            normalize,
            default_prompt: default_prompt.as_ref().filter(|_| of_prompts.is_some()).and_then(named),
            prompts: of_prompts.filter(|prompts| !prompts.is_empty()),
            ..Text::default()
        })
    }

    fn tokenize(&self, inner: &ModelSpec) -> Result<Arc<Tokenize>, LoadError> {
        let ids = inner.inputs.iter().find(|spec| tensor_of(&spec.name) == Some(output::IDS));
        let ids = ids.ok_or_else(|| LoadError::graph("the program has no input 'input_ids'"))?;
        let options = TokenizeOptions {
            int32: ids.datatype == DataType::Int32,
            prompts: self.layout.prompts.clone(),
            default_prompt: self.layout.default_prompt.clone(),
        };
        Tokenize::new(Arc::clone(&self.tokenizer), options).map(Arc::new).map_err(LoadError::settings)
    }

    /// Returns the output of the program that the task needs.
    fn states_of(&self, inner: &ModelSpec) -> Result<TensorSpec, LoadError> {
        let usual: &[&str] = match self.layout.task {
            TextModelTask::Embed { .. } => &["sentence_embedding", TOKEN_STATES[0], TOKEN_STATES[1]],
            TextModelTask::Classify { .. } | TextModelTask::ClassifyTokens { .. } => &[text::LOGITS],
        };
        let names: Vec<String> = inner.outputs.iter().map(|spec| format!("'{}'", spec.name)).collect();
        let named = match &self.output {
            Some(name) => inner.outputs.iter().find(|spec| spec.name == *name),
            None => {
                let found = usual.iter().find_map(|name| inner.outputs.iter().find(|spec| spec.name == *name));
                if let (None, Some(architecture)) = (found, &self.layout.other_architecture) {
                    return Err(LoadError::graph(format!(
                        "the architecture '{architecture}' in config.json is neither for vectors nor for classes, and \
                         the program has no output '{}'; its outputs are {}; if it is for either, name its task and \
                         its output in the section text of model.yaml",
                        usual.join("' or '"),
                        names.join(", ")
                    )));
                }
                found.or(inner.outputs.first())
            }
        };
        let missing = || {
            let wanted = self.output.as_deref().unwrap_or("states");
            LoadError::graph(format!("the program has no output '{wanted}'; its outputs are {}", names.join(", ")))
        };
        named.cloned().ok_or_else(missing)
    }
}

/// Creates a built-in step of a pipeline, with its tokenizer from the pipeline's directory.
///
/// # Errors
/// Names the file that is missing or cannot be used.
pub(super) fn built_in(directory: &Path, step: &PipelineStep) -> Result<Arc<dyn BuiltIn>, SettingError> {
    match step {
        PipelineStep::Model(_) | PipelineStep::Image(_) => {
            Err(format!("'{}' is no step for texts", step.kind()).into())
        }
        PipelineStep::Pool(PoolStep { pooling, normalize, dtype, .. }) => {
            let datatype = dtype.map_or(DataType::Fp32, |dtype| dtype.0.0);
            if !is_float(datatype) {
                return Err(format!("expected a datatype of floats, but found {datatype}").into());
            }
            let pooling = pooling.map_or(Pooling::Mean, pooling_of);
            Ok(Arc::new(PoolingStep::new(PoolingOptions { pooling, normalize: normalize.unwrap_or(false), datatype })))
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
                lowercase: false,
            };
            let tokenizer = self::tokenizer(directory, tokenizer.as_ref(), options);
            let tokenizer = tokenizer.map_err(|error| error.to_string())?;
            let prompts = prompts.iter().flatten().map(|(name, prompt)| (name.0.clone(), prompt.clone())).collect();
            let default_prompt = default_prompt.as_ref().map(|name| name.0.clone());
            let options = TokenizeOptions { int32: int32.unwrap_or(false), prompts, default_prompt };
            Ok(Arc::new(Tokenize::new(tokenizer, options)?))
        }
    }
}

fn tokenizer(
    directory: &Path,
    name: Option<&NonEmptyText>,
    options: TokenizerOptions,
) -> Result<Arc<TextTokenizer>, LoadError> {
    let name = name.map_or(TOKENIZER, |name| &name.0);
    if !stays_inside(name) {
        let message = format!("expected a file in the model's directory, but found '{name}'");
        return Err(LoadError::settings(message));
    }
    let path = directory.join(name);
    let json = read_up_to(&path, MAX_TOKENIZER_BYTES)
        .map_err(|error| LoadError::files(format!("there is no tokenizer: {error}")))?;
    let tokenizer = TextTokenizer::read(&json, options)
        .map_err(|error| LoadError::files(format!("{}: {error}", path.display())))?;
    Ok(Arc::new(tokenizer))
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

fn ports_of(inner: &ModelSpec) -> Result<Vec<PortBinding>, LoadError> {
    let mut ports = Vec::with_capacity(inner.inputs.len());
    for spec in &inner.inputs {
        match tensor_of(&spec.name) {
            Some(tensor) => ports.push(port(&spec.name, tensor)),
            None if spec.optional => {}
            None => {
                let name = &spec.name;
                return Err(LoadError::graph(format!(
                    "the program's input '{name}' is none that a tokenizer gives; expected input_ids, attention_mask, \
                     token_type_ids, position_ids and past_key_values.*, each of a decoder's shape"
                )));
            }
        }
    }
    Ok(ports)
}

/// Says how many classes a model has.
fn classes(labels: &[String]) -> String {
    match labels.len() {
        0 | 1 => "1 class".to_owned(),
        several => format!("{several} classes"),
    }
}

/// Returns how an output becomes a vector: states of tokens are pooled, and a vector is one already.
fn pooling_over(states: &TensorSpec, pooling: Pooling) -> Pooling {
    if states.dims.len() == 1 { Pooling::Done } else { pooling }
}

fn is_float(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp32 | DataType::Fp16 | DataType::Bf16 | DataType::Fp64)
}

fn step(runs: Runs, inputs: Vec<PortBinding>, outputs: Vec<PortBinding>) -> Step {
    Step { runs, inputs, outputs, when: None }
}

fn port(port: &str, tensor: &str) -> PortBinding {
    PortBinding { port: port.to_owned(), tensor: tensor.to_owned() }
}

/// Connects ports with tensors of their names.
fn same(tensors: &[TensorSpec]) -> Vec<PortBinding> {
    tensors.iter().map(|spec| port(&spec.name, &spec.name)).collect()
}

fn find(tensors: &[TensorSpec], name: &str) -> Option<TensorSpec> {
    tensors.iter().find(|spec| spec.name == name).cloned()
}
