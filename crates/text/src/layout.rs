//! How Hugging Face and sentence-transformers describe a model, in files beside its weights.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};

use super::{Pooling, Truncate};

/// Tokens of models that say no limit.
const DEFAULT_MAX_TOKENS: usize = 512;

/// Most classes with names.
const MOST_LABELS: usize = 1 << 16;

/// Pooling by the names that sentence-transformers gives its modes.
const POOLING_MODES: [(&str, Pooling); 6] = [
    ("cls", Pooling::Cls),
    ("max", Pooling::Max),
    ("mean", Pooling::Mean),
    ("mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("weightedmean", Pooling::WeightedMean),
    ("lasttoken", Pooling::Last),
];

/// Largest limit that is taken seriously: some files have 10^30 for none.
const MOST_TOKENS: f64 = 1e6;

/// What a model's files say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextModelLayout {
    /// What it does with a text.
    pub task: TextModelTask,
    /// The architecture, if it is named for another task than those of [`TextModelTask`]: then `task` is a guess.
    pub other_architecture: Option<String>,
    /// Most tokens of a text, those that the tokenizer adds included.
    pub max_tokens: usize,
    /// Most tokens that the model has positions for, if the files say so.
    pub positions: Option<usize>,
    /// Which end longer texts lose.
    pub truncate: Truncate,
    /// Whether texts are lowercased before they are tokenized.
    pub lowercase: bool,
    /// The token that texts are padded with.
    pub pad_token: i64,
    /// Prompts by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of texts that name none.
    pub default_prompt: Option<String>,
}

/// What a model does with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextModelTask {
    /// One vector for each text.
    Embed {
        /// How the states of tokens become the vector.
        pooling: Pooling,
        /// Whether the vector is divided by its length.
        normalize: bool,
    },
    /// One number for each class of a text, or of a pair of texts. With a single class, it scores pairs (reranking).
    Classify {
        /// The names of the classes.
        labels: Vec<String>,
        /// Whether several classes of a text may be true.
        multi_label: bool,
    },
    /// One number for each class of each token.
    ClassifyTokens {
        /// The names of the classes.
        labels: Vec<String>,
    },
}

/// Why a model's files cannot be followed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutFault {
    /// A file cannot be read.
    #[error("{0}")]
    File(String),
    /// A file has another content than expected.
    #[error("{file}: {fault}")]
    Content {
        /// The file.
        file: String,
        /// What is wrong.
        fault: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    max_position_embeddings: Option<f64>,
    pad_token_id: Option<i64>,
    id2label: Option<BTreeMap<String, String>>,
    problem_type: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    model_max_length: Option<f64>,
    truncation_side: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SentenceConfig {
    max_seq_length: Option<f64>,
    do_lower_case: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptConfig {
    prompts: Option<BTreeMap<String, String>>,
    default_prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// As older versions of sentence-transformers write it, and as newer ones do: with `pooling_mode`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PoolingConfig {
    pooling_mode: Option<PoolingModes>,
    pooling_mode_cls_token: bool,
    pooling_mode_mean_tokens: bool,
    pooling_mode_max_tokens: bool,
    pooling_mode_mean_sqrt_len_tokens: bool,
    pooling_mode_weightedmean_tokens: bool,
    pooling_mode_lasttoken: bool,
    include_prompt: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected pooling_mode to be the name of a mode, or a list of names")]
enum PoolingModes {
    One(String),
    Several(Vec<String>),
}

/// Returns the content of a file by its path; `None` if there is none.
type Files<'a> = &'a dyn Fn(&str) -> Result<Option<Vec<u8>>, String>;

/// Reads what the files of a model say. `file` returns their contents by their paths from the model's directory.
///
/// # Errors
/// If a file cannot be read, or asks for a step that the server does not have.
pub fn hugging_face(file: Files<'_>) -> Result<TextModelLayout, LayoutFault> {
    let config: Config = read(file, "config.json")?;
    let tokenizer: TokenizerConfig = read(file, "tokenizer_config.json")?;
    let sentence: SentenceConfig = read(file, "sentence_bert_config.json")?;
    let prompts: PromptConfig = read(file, "config_sentence_transformers.json")?;
    let architectures = config.architectures.iter().flatten();
    let is_for = |what: &str| architectures.clone().any(|name| name.ends_with(what));
    let mut other_architecture = None;
    let task = if is_for("ForSequenceClassification") {
        let multi_label = config.problem_type.as_deref() == Some("multi_label_classification");
        TextModelTask::Classify { labels: labels(config.id2label.as_ref())?, multi_label }
    } else if is_for("ForTokenClassification") {
        TextModelTask::ClassifyTokens { labels: labels(config.id2label.as_ref())? }
    } else {
        other_architecture = architectures.clone().find(|name| name.contains("For")).cloned();
        embed(file)?
    };
    let pad_token = config.pad_token_id.unwrap_or(0);
    let limit =
        |limit: Option<f64>| limit.filter(|limit| (1.0..=MOST_TOKENS).contains(limit)).map(|limit| limit as usize);
    // RoBERTa's positions begin behind that of the padding.
    let offset = match config.model_type.as_deref().unwrap_or_default() {
        "roberta" | "xlm-roberta" | "camembert" | "mpnet" => usize::try_from(pad_token + 1).unwrap_or(0),
        _ => 0,
    };
    let positions = limit(config.max_position_embeddings).map(|positions| positions.saturating_sub(offset).max(1));
    let stated = limit(sentence.max_seq_length).or_else(|| limit(tokenizer.model_max_length));
    let max_tokens = match (stated, positions) {
        (Some(stated), Some(positions)) => stated.min(positions),
        (one, other) => one.or(other).unwrap_or(DEFAULT_MAX_TOKENS),
    };
    let truncate = if tokenizer.truncation_side.as_deref() == Some("left") { Truncate::Left } else { Truncate::Right };
    let PromptConfig { prompts, default_prompt_name: default_prompt } = prompts;
    let prompts = prompts.unwrap_or_default();
    if let Some(missing) = default_prompt.as_ref().filter(|name| !prompts.contains_key(*name)) {
        let fault = format!("there is no prompt '{missing}'");
        return Err(LayoutFault::Content { file: "config_sentence_transformers.json".to_owned(), fault });
    }
    let lowercase = sentence.do_lower_case.unwrap_or(false);
    Ok(TextModelLayout {
        task,
        other_architecture,
        max_tokens,
        positions,
        truncate,
        lowercase,
        pad_token,
        prompts,
        default_prompt,
    })
}

/// Reads the modules of sentence-transformers. Without them, the states are averaged, as that library does.
fn embed(file: Files<'_>) -> Result<TextModelTask, LayoutFault> {
    const MODULES: &str = "modules.json";
    let default = || "1_Pooling/config.json".to_owned();
    let Some(bytes) = file(MODULES).map_err(LayoutFault::File)? else {
        let pooling = pooling(file, &default())?;
        return Ok(TextModelTask::Embed { pooling: pooling.unwrap_or(Pooling::Mean), normalize: false });
    };
    let modules: Vec<Module> = parse(MODULES, &bytes)?;
    let (mut pooled, mut normalize) = (Pooling::Mean, false);
    for Module { path, kind } in modules {
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" if path.starts_with('/') || path.split('/').any(|part| part == "..") => {
                let fault = format!("expected a path in the model's directory, but found '{path}'");
                return Err(LayoutFault::Content { file: MODULES.to_owned(), fault });
            }
            "Pooling" => {
                let config = if path.is_empty() { default() } else { format!("{path}/config.json") };
                pooled = pooling(file, &config)?.unwrap_or(Pooling::Mean);
            }
            "Normalize" => normalize = true,
            _ => {
                let fault =
                    format!("the module '{kind}' is not supported; expected Transformer, Pooling and Normalize");
                return Err(LayoutFault::Content { file: MODULES.to_owned(), fault });
            }
        }
    }
    Ok(TextModelTask::Embed { pooling: pooled, normalize })
}

fn pooling(file: Files<'_>, name: &str) -> Result<Option<Pooling>, LayoutFault> {
    let Some(bytes) = file(name).map_err(LayoutFault::File)? else { return Ok(None) };
    let config: PoolingConfig = object(name, &bytes)?;
    let refused = |fault: String| Err(LayoutFault::Content { file: name.to_owned(), fault });
    if config.include_prompt == Some(false) {
        return refused("include_prompt: prompts that are left out of the pooling are not supported".to_owned());
    }
    let named = match config.pooling_mode {
        // As in sentence-transformers, this key goes before the others.
        Some(PoolingModes::One(mode)) => vec![mode],
        Some(PoolingModes::Several(modes)) => modes,
        None => {
            let flags = [
                (config.pooling_mode_cls_token, "cls"),
                (config.pooling_mode_mean_tokens, "mean"),
                (config.pooling_mode_max_tokens, "max"),
                (config.pooling_mode_mean_sqrt_len_tokens, "mean_sqrt_len_tokens"),
                (config.pooling_mode_weightedmean_tokens, "weightedmean"),
                (config.pooling_mode_lasttoken, "lasttoken"),
            ];
            flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, mode)| mode.to_owned()).collect()
        }
    };
    match &named[..] {
        [] => Ok(None),
        [mode] => match POOLING_MODES.iter().find(|(known, _)| known == mode) {
            Some((_, pooling)) => Ok(Some(*pooling)),
            None => {
                let known = POOLING_MODES.map(|(known, _)| known).join(", ");
                refused(format!("expected a pooling mode of {known}, but found '{mode}'"))
            }
        },
        several => refused(format!("expected one pooling mode, but found {}: {}", several.len(), several.join(", "))),
    }
}

/// Returns the names of classes, each at its number.
fn labels(by_number: Option<&BTreeMap<String, String>>) -> Result<Vec<String>, LayoutFault> {
    let mut names = Vec::new();
    for (number, name) in by_number.into_iter().flatten() {
        let at = number.parse::<usize>().ok().filter(|at| *at < MOST_LABELS).ok_or_else(|| {
            let fault = format!("id2label: expected numbers from 0 to {}, but found '{number}'", MOST_LABELS - 1);
            LayoutFault::Content { file: "config.json".to_owned(), fault }
        })?;
        while names.len() <= at {
            names.push(format!("LABEL_{}", names.len()));
        }
        names[at].clone_from(name);
    }
    Ok(names)
}

fn read<T: DeserializeOwned + Default>(file: Files<'_>, name: &str) -> Result<T, LayoutFault> {
    match file(name).map_err(LayoutFault::File)? {
        None => Ok(T::default()),
        Some(bytes) => object(name, &bytes),
    }
}

/// As [`parse`], of an object: a list would be read as the values of its keys in order.
fn object<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, LayoutFault> {
    if !bytes.trim_ascii_start().starts_with(b"{") {
        let fault = "expected a JSON object".to_owned();
        return Err(LayoutFault::Content { file: name.to_owned(), fault });
    }
    parse(name, bytes)
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, LayoutFault> {
    let content = |fault: serde_json::Error| LayoutFault::Content { file: name.to_owned(), fault: fault.to_string() };
    serde_json::from_slice(bytes).map_err(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(files: &[(&str, &str)]) -> Result<TextModelLayout, LayoutFault> {
        hugging_face(&|name| Ok(files.iter().find(|(own, _)| *own == name).map(|(_, text)| text.as_bytes().to_vec())))
    }

    #[test]
    fn a_sentence_encoder_is_read_from_its_modules() {
        let modules = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;
        let read = layout(&[
            ("config.json", r#"{"architectures": ["BertModel"], "max_position_embeddings": 512, "pad_token_id": 0}"#),
            ("modules.json", modules),
            ("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true, "word_embedding_dimension": 384}"#),
            ("sentence_bert_config.json", r#"{"max_seq_length": 256}"#),
            ("config_sentence_transformers.json", r#"{"prompts": {"query": "q: "}, "default_prompt_name": "query"}"#),
        ]);
        let read = read.expect("a layout");
        assert_eq!(read.task, TextModelTask::Embed { pooling: Pooling::Cls, normalize: true });
        assert_eq!((read.max_tokens, read.default_prompt.as_deref()), (256, Some("query")));
        assert_eq!(read.other_architecture, None);
        let other = layout(&[("config.json", r#"{"architectures": ["BertForMaskedLM"]}"#)]).expect("a layout");
        assert_eq!(other.other_architecture.as_deref(), Some("BertForMaskedLM"), "its kind is a guess");
    }

    #[test]
    fn pooling_is_read_as_older_and_as_newer_versions_write_it() {
        let of = |config: &str| layout(&[("1_Pooling/config.json", config)]).map(|layout| layout.task);
        for (mode, flag, pooling) in [
            ("cls", "cls_token", Pooling::Cls),
            ("max", "max_tokens", Pooling::Max),
            ("mean", "mean_tokens", Pooling::Mean),
            ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
            ("weightedmean", "weightedmean_tokens", Pooling::WeightedMean),
            ("lasttoken", "lasttoken", Pooling::Last),
        ] {
            let task = Ok(TextModelTask::Embed { pooling, normalize: false });
            for modes in [format!("\"{mode}\""), format!("[\"{mode}\"]")] {
                let new =
                    format!(r#"{{"embedding_dimension": 8, "pooling_mode": {modes}, "pooling_mode_cls_token": true}}"#);
                assert_eq!(of(&new), task, "{new}");
            }
            assert_eq!(of(&format!(r#"{{"word_embedding_dimension": 8, "pooling_mode_{flag}": true}}"#)), task);
        }
        let refusal = |config: &str| of(config).expect_err("it is refused").to_string();
        let several = refusal(r#"{"pooling_mode": ["cls", "mean"]}"#);
        assert_eq!(several, "1_Pooling/config.json: expected one pooling mode, but found 2: cls, mean");
        let unknown = refusal(r#"{"pooling_mode": "attention"}"#);
        assert!(unknown.ends_with("weightedmean, lasttoken, but found 'attention'"), "{unknown}");
        let number = refusal(r#"{"pooling_mode": 1}"#);
        assert!(number.contains("expected pooling_mode to be the name of a mode"), "{number}");
    }

    #[test]
    fn texts_are_lowercased_if_the_files_say_so() {
        let of = |config: &str| layout(&[("sentence_bert_config.json", config)]).map(|layout| layout.lowercase);
        assert_eq!(of(r#"{"do_lower_case": true}"#), Ok(true));
        assert_eq!((of(r#"{"do_lower_case": false}"#), of("{}")), (Ok(false), Ok(false)));
    }

    #[test]
    fn classifiers_have_the_labels_of_their_classes_by_number() {
        let config = r#"{"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta",
            "max_position_embeddings": 514, "pad_token_id": 1, "id2label": {"3": "d", "2": "c", "0": "a"}}"#;
        let limits = ("tokenizer_config.json", r#"{"model_max_length": 1e30, "truncation_side": "left"}"#);
        let read = layout(&[("config.json", config), limits]).expect("a layout");
        let labels = ["a", "LABEL_1", "c", "d"].map(str::to_owned).to_vec();
        assert_eq!(read.task, TextModelTask::Classify { labels, multi_label: false });
        assert_eq!((read.max_tokens, read.truncate, read.pad_token), (512, Truncate::Left, 1));
    }

    #[test]
    fn several_classes_may_be_true_if_the_problem_is_of_that_type() {
        let of = |kind: &str| {
            let config = format!(r#"{{"architectures": ["BertForSequenceClassification"], "problem_type": {kind}}}"#);
            layout(&[("config.json", &config)]).map(|layout| layout.task)
        };
        for (kind, multi_label) in
            [("null", false), ("\"single_label_classification\"", false), ("\"multi_label_classification\"", true)]
        {
            assert_eq!(of(kind), Ok(TextModelTask::Classify { labels: Vec::new(), multi_label }), "{kind}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        let dense = r#"[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
        let fault = layout(&[("modules.json", dense)]).expect_err("it is refused").to_string();
        assert!(fault.starts_with("modules.json: the module 'sentence_transformers.models.Dense' is not"), "{fault}");
        let two = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#;
        let fault = layout(&[("1_Pooling/config.json", two)]).expect_err("it is refused").to_string();
        assert_eq!(fault, "1_Pooling/config.json: expected one pooling mode, but found 2: cls, mean");
        let fault = layout(&[("config.json", "[")]).expect_err("it is refused").to_string();
        assert!(fault.starts_with("config.json: "), "{fault}");
        let outside = r#"[{"path": "../1_Pooling", "type": "sentence_transformers.models.Pooling"}]"#;
        let fault = layout(&[("modules.json", outside)]).expect_err("it is refused").to_string();
        assert_eq!(fault, "modules.json: expected a path in the model's directory, but found '../1_Pooling'");
        let without = r#"{"pooling_mode_mean_tokens": true, "include_prompt": false}"#;
        assert!(layout(&[("1_Pooling/config.json", without)]).is_err());
        assert!(layout(&[("config.json", r#"{"architectures": null, "id2label": null}"#)]).is_ok(), "null is nothing");
        for file in ["config.json", "tokenizer_config.json", "1_Pooling/config.json"] {
            let fault = layout(&[(file, "[]")]).expect_err("a list is no object").to_string();
            assert_eq!(fault, format!("{file}: expected a JSON object"));
        }
        let prompt = ("config_sentence_transformers.json", r#"{"default_prompt_name": "q"}"#);
        assert!(layout(&[prompt]).is_err());
    }
}
