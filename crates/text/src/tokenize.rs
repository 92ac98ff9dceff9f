//! The step `tokenize`: texts to the inputs of a model.

use std::{collections::BTreeMap, sync::Arc};

use paternoster_executor::InputTensor;
use paternoster_model::{DataType, TensorSpec, text};
use paternoster_pipeline::{BuiltIn, BuiltInFault, Effort, InputRows, Stop, Value, only_string};

use super::{
    TextTokenizer, TokenizerFault, TokenizerOptions, Tokens, Truncate,
    tensors::{integers, row_of_integers},
};

/// Texts of at most this many bytes together take well below a millisecond.
const SHORT_BYTES: usize = 2 << 10;

/// Texts of at most this many bytes together take a fraction of a second.
const USUAL_BYTES: usize = 256 << 10;

/// Bytes that are built for each byte of text, at most one token each: its id, mask and type.
const BUILT_FOR_EACH_BYTE: usize = 3 * size_of::<i64>();

/// Names of the step's outputs; for the number of tokens and their places, see [`text`].
pub mod output {
    /// The ids of the tokens.
    pub const IDS: &str = "ids";
    /// 1 for each token.
    pub const MASK: &str = "mask";
    /// 0 for tokens of the first text of a pair and 1 for those of the second.
    pub const TYPES: &str = "types";
}

/// What the step gives and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizeOptions {
    /// Whether the model's ids, masks and types are INT32 in place of INT64.
    pub int32: bool,
    /// Prompts by name, each put in front of a text.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of texts that name none.
    pub default_prompt: Option<String>,
}

/// The step.
#[derive(Debug)]
pub struct Tokenize {
    tokenizer: Arc<TextTokenizer>,
    options: TokenizeOptions,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

impl Tokenize {
    /// Creates the step of a tokenizer.
    pub fn new(tokenizer: Arc<TextTokenizer>, options: TokenizeOptions) -> Self {
        let optional =
            |name: &str, datatype, dims: &[i64]| TensorSpec { optional: true, ..TensorSpec::new(name, datatype, dims) };
        let inputs = vec![
            optional(text::TEXT, DataType::Bytes, &[1]),
            optional(text::PAIR, DataType::Bytes, &[1]),
            optional(text::TOKENS, DataType::Int64, &[-1]),
            optional(text::PROMPT, DataType::Bytes, &[1]),
            optional(text::TRUNCATE, DataType::Bool, &[1]),
        ];
        let datatype = if options.int32 { DataType::Int32 } else { DataType::Int64 };
        let outputs = vec![
            TensorSpec::new(output::IDS, datatype, &[-1]),
            TensorSpec::new(output::MASK, datatype, &[-1]),
            TensorSpec::new(output::TYPES, datatype, &[-1]),
            TensorSpec::new(text::TOKEN_COUNT, DataType::Int32, &[1]),
            TensorSpec::new(text::OFFSETS, DataType::Int32, &[-1, 2]),
        ];
        Self { tokenizer, options, inputs, outputs }
    }

    fn tokens(&self, row: &Row<'_>) -> Result<Tokens, BuiltInFault> {
        let invalid = |text: String| BuiltInFault::Invalid(text);
        if let Some(given) = row.tokens {
            if row.text.is_some() || row.pair.is_some() {
                return Err(invalid(format!("expected either {} or {}, but found both", text::TEXT, text::TOKENS)));
            }
            return self.given(&integers(&given.data, DataType::Int64), row.may_truncate).map_err(invalid);
        }
        let read = |name: &str, tensor: &InputTensor| {
            let bytes = only_string(tensor).ok_or_else(|| invalid(format!("{name} has no string")))?;
            let utf8 = std::str::from_utf8(bytes);
            utf8.map(str::to_owned)
                .map_err(|fault| invalid(format!("expected UTF-8 in {name}, but byte {} is not", fault.valid_up_to())))
        };
        let given = row.text.ok_or_else(|| invalid(format!("expected {} or {}", text::TEXT, text::TOKENS)))?;
        let mut first = read(text::TEXT, given)?;
        let pair = row.pair.map(|pair| read(text::PAIR, pair)).transpose()?;
        let named = row.prompt.map(|prompt| read(text::PROMPT, prompt)).transpose()?;
        let prompt = self.prompt(named.as_deref()).map_err(invalid)?;
        first.insert_str(0, prompt);
        match self.tokenizer.encode(&first, pair.as_deref(), row.may_truncate) {
            Ok(tokens) => Ok(tokens.behind(prompt.len())),
            Err(fault @ TokenizerFault::Failed(_)) => Err(BuiltInFault::Failed(fault.to_string())),
            Err(fault) => Err(invalid(fault.to_string())),
        }
    }

    /// Returns the prompt that is put in front of texts: the default one without a name, and none by an empty name.
    ///
    /// # Errors
    /// If there is no prompt of this name.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str, String> {
        let Some(name) = name.or(self.options.default_prompt.as_deref()).filter(|name| !name.is_empty()) else {
            return Ok("");
        };
        self.options.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let known: Vec<String> = self.options.prompts.keys().map(|name| format!("'{name}'")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("the model has no prompt '{name}'; its prompts are {known}")
        })
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Arc<TextTokenizer> {
        &self.tokenizer
    }

    /// Checks the number of tokens that come in place of a text: a text of more would be too long, whether or not it
    /// may lose some.
    ///
    /// # Errors
    /// If there are more than a text may have bytes.
    pub fn check_count(&self, tokens: usize) -> Result<(), String> {
        let most = self.tokenizer.options().max_bytes;
        if tokens <= most {
            return Ok(());
        }
        Err(format!("expected at most {most} tokens in {}, but found {tokens}", text::TOKENS))
    }

    /// Checks tokens that came with the request.
    fn given(&self, ids: &[i64], may_truncate: bool) -> Result<Tokens, String> {
        let TokenizerOptions { max_tokens: most, truncate, .. } = *self.tokenizer.options();
        if ids.is_empty() {
            return Err("expected at least one token".to_owned());
        }
        self.check_count(ids.len())?;
        if ids.len() > most && !may_truncate {
            return Err(format!("expected at most {most} tokens, but found {}", ids.len()));
        }
        let most = ids.len().min(most);
        let ids = match truncate {
            Truncate::Right => &ids[..most],
            Truncate::Left => &ids[ids.len() - most..],
        };
        let read = ids.iter().map(|&id| u32::try_from(id).ok().filter(|&id| i32::try_from(id).is_ok()));
        let ids: Option<Vec<u32>> = read.collect();
        let ids = ids.ok_or_else(|| "expected ids of tokens from 0 to 2147483647".to_owned())?;
        Ok(Tokens { types: vec![0; ids.len()], ids, offsets: Vec::new(), is_of_first: Vec::new() })
    }
}

/// The inputs of one row.
struct Row<'a> {
    text: Option<&'a InputTensor>,
    pair: Option<&'a InputTensor>,
    tokens: Option<&'a InputTensor>,
    prompt: Option<&'a InputTensor>,
    may_truncate: bool,
}

impl BuiltIn for Tokenize {
    fn kind(&self) -> &'static str {
        "tokenize"
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn effort(&self, inputs: &[Option<Value>]) -> Effort {
        let bytes: usize = inputs.iter().flatten().map(Value::bytes).sum();
        if bytes <= SHORT_BYTES {
            Effort::Short
        } else if bytes <= USUAL_BYTES {
            Effort::Usual
        } else {
            Effort::Long
        }
    }

    fn built_bytes(&self, inputs: &[Option<Value>]) -> usize {
        let bytes = inputs.iter().flatten().map(Value::bytes).sum::<usize>();
        bytes.saturating_mul(BUILT_FOR_EACH_BYTE)
    }

    fn run(&self, inputs: &[Option<Value>], rows: usize, stop: &Stop) -> Result<Vec<Value>, BuiltInFault> {
        let given = InputRows::new(inputs, &self.inputs, rows)?;
        let mut outputs: Vec<Vec<Option<InputTensor>>> =
            self.outputs.iter().map(|_| Vec::with_capacity(rows)).collect();
        for number in 0..rows {
            stop.check()?;
            let row = Row {
                text: given.get(0, number),
                pair: given.get(1, number).filter(|pair| only_string(pair).is_some_and(|text| !text.is_empty())),
                tokens: given.get(2, number),
                prompt: given.get(3, number),
                may_truncate: given.get(4, number).is_none_or(|flag| flag.data.first() != Some(&0)),
            };
            if row.text.is_none()
                && row.tokens.is_none()
                && inputs.iter().flatten().any(|value| matches!(value, Value::Rows(_)))
            {
                // The row skips the step.
                outputs.iter_mut().for_each(|output| output.push(None));
                continue;
            }
            let tokens = self.tokens(&row).map_err(|fault| match (fault, rows) {
                (BuiltInFault::Invalid(text), 2..) => BuiltInFault::Invalid(format!("row {number}: {text}")),
                (fault, _) => fault,
            })?;
            let datatype = self.outputs[0].datatype;
            let length = tokens.ids.len();
            outputs[0].push(Some(row_of_integers(tokens.ids.iter().map(|&id| i64::from(id)), datatype)));
            outputs[1].push(Some(row_of_integers(std::iter::repeat_n(1, length), datatype)));
            outputs[2].push(Some(row_of_integers(tokens.types.iter().map(|&kind| i64::from(kind)), datatype)));
            outputs[3].push(Some(row_of_integers(std::iter::once(length as i64), DataType::Int32)));
            let places: Vec<i64> =
                tokens.offsets.iter().flat_map(|(start, end)| [*start as i64, *end as i64]).collect();
            let mut offsets = row_of_integers(places.into_iter(), DataType::Int32);
            offsets.shape = [1, tokens.offsets.len() as i64, 2].as_slice().into();
            outputs[4].push(Some(offsets));
        }
        Ok(outputs.into_iter().map(Value::Rows).collect())
    }
}
