//! The step `tokenize`: texts to the inputs of a model.

mod row;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use paternoster_model::{DataType, InputTensor, TensorSpec, text};
use paternoster_pipeline::{
    BuiltIn, BuiltInFault, InputRows, StepWork, Stop, TensorRows, WorkerGroup, Workers, only_string,
};

use self::row::Row;
pub use self::row::RowSize;
use super::{
    FirstText, TextTokenizer, TokenizerFault, TokenizerOptions, Tokens, Truncate,
    tensors::{Repeated, integers, row_of_integers, rows_of},
};

/// Usual texts of at most this many bytes together take well below a millisecond.
const SHORT_BYTES: usize = 2 << 10;

/// About how long each unit of work takes, in nanoseconds: a byte of usual text.
const WORK_NS: u64 = 1000;

/// Longest prompt, in bytes. It is tokenized again with each text, because the tokens of both are not always those of
/// each.
const MOST_PROMPT_BYTES: usize = 64 << 10;

/// Memory for a row beside its tokens: all tensors.
const ROW_BYTES: usize = 1 << 10;

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
    /// Whether tokens of single texts have types other than 0.
    has_types: bool,
}

impl Tokenize {
    /// Creates the step of a tokenizer.
    ///
    /// # Errors
    /// If a prompt is too long, or there is no default prompt of that name.
    pub fn new(tokenizer: Arc<TextTokenizer>, options: TokenizeOptions) -> Result<Self, String> {
        if let Some((name, prompt)) = options.prompts.iter().find(|(_, prompt)| prompt.len() > MOST_PROMPT_BYTES) {
            let found = prompt.len();
            return Err(format!(
                "expected prompts of at most {MOST_PROMPT_BYTES} bytes, but the prompt '{name}' has {found}"
            ));
        }
        if let Some(missing) = options.default_prompt.as_ref().filter(|name| !options.prompts.contains_key(*name)) {
            return Err(format!("there is no prompt '{missing}'"));
        }
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
        // The post-processor gives the same types to all texts.
        let sample = tokenizer.first("a").and_then(|first| tokenizer.complete(first, None, true));
        let has_types = sample.map_or(true, |tokens| tokens.types.iter().any(|&kind| kind != 0));
        Ok(Self { tokenizer, options, inputs, outputs, has_types })
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

    /// Returns an upper limit of the bytes that are built for rows of these sizes.
    pub fn built_bytes_of(&self, rows: impl Iterator<Item = RowSize>) -> usize {
        let of_id = self.outputs[0].datatype.size_bytes().unwrap_or(size_of::<i64>());
        let of_place = if self.tokenizer.options().offsets { 2 * size_of::<i32>() } else { 0 };
        // One row after the other is tokenized, and leaves its outputs.
        let (mut outputs, mut work, mut longest) = (0_usize, 0, 0_usize);
        for RowSize { text, pair, tokens } in rows {
            let made = match tokens {
                0 => self.tokenizer.most_tokens(text, pair),
                given => given.min(self.tokenizer.options().max_tokens),
            };
            let ids = if pair.is_some() || self.has_types { 2 } else { 1 };
            let of_token = ids * of_id + of_place;
            outputs = outputs.saturating_add(ROW_BYTES).saturating_add(made.saturating_mul(of_token));
            longest = longest.max(made);
            let of_row = match tokens {
                0 => self.tokenizer.most_bytes(text, pair),
                given => given.saturating_mul(2 * size_of::<i64>()),
            };
            work = of_row.max(work);
        }
        // Masks of all rows share their memory, and so do types that are zeros.
        outputs.saturating_add(work).saturating_add(longest.saturating_mul(4 * of_id))
    }

    /// Whether rows of this work together take well below a millisecond.
    pub fn is_short_work(work: usize) -> bool {
        work <= SHORT_BYTES
    }

    /// Returns about how long a row of this work takes.
    pub fn effort_of(work: usize) -> Duration {
        Duration::from_nanos((work as u64).saturating_mul(WORK_NS))
    }

    /// Reads tokens that come in place of a text, and returns those that stay. There are at most as many as a text may
    /// have bytes, whether or not it may lose some.
    ///
    /// # Errors
    /// If there are none or too many, or one is not in the vocabulary.
    pub fn tokens(&self, ids: &[i64], may_truncate: bool) -> Result<Vec<u32>, String> {
        let TokenizerOptions { max_tokens, max_bytes, truncate, .. } = *self.tokenizer.options();
        if ids.is_empty() {
            return Err("expected at least one token".to_owned());
        }
        let most = if may_truncate { max_bytes } else { max_tokens };
        if ids.len() > most {
            return Err(format!("expected at most {most} tokens, but found {}", ids.len()));
        }
        let most = ids.len().min(max_tokens);
        let ids = match truncate {
            Truncate::Right => &ids[..most],
            Truncate::Left => &ids[ids.len() - most..],
        };
        ids.iter().map(|&id| self.tokenizer.check_id(id)).collect()
    }

    /// Reads tokens that came with the request.
    fn given(&self, ids: &[i64], may_truncate: bool) -> Result<Tokens, String> {
        let ids = self.tokens(ids, may_truncate)?;
        Ok(Tokens { types: vec![0; ids.len()], ids, offsets: Vec::new(), is_of_first: Vec::new() })
    }
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

    fn is_short(&self, inputs: &[Option<TensorRows>]) -> bool {
        if !Self::is_short_work(inputs.iter().flatten().map(TensorRows::bytes).sum()) {
            return false;
        }
        let rows = rows_of(inputs);
        let Ok(given) = InputRows::new(inputs, &self.inputs, rows) else { return true };
        let mut work = 0;
        (0..rows).all(|row| {
            work += Row::of(&given, row).work(self, true);
            Self::is_short_work(work)
        })
    }

    fn workers<'a>(&self, all: &'a Workers) -> &'a WorkerGroup {
        &all.texts
    }

    fn built_bytes(&self, inputs: &[Option<TensorRows>]) -> usize {
        let rows = rows_of(inputs);
        let Ok(given) = InputRows::new(inputs, &self.inputs, rows) else { return 0 };
        self.built_bytes_of((0..rows).map(|row| Row::of(&given, row).size(self)))
    }

    fn begin(self: Arc<Self>, inputs: Vec<Option<TensorRows>>, rows: usize) -> Result<Box<dyn StepWork>, BuiltInFault> {
        let given = InputRows::new(&inputs, &self.inputs, rows)?;
        let may_skip = inputs.iter().flatten().any(|value| matches!(value, TensorRows::Rows(_)));
        let outputs = self.outputs.iter().map(|_| Vec::with_capacity(rows)).collect();
        let (ones, zeros) = (Repeated::default(), Repeated::default());
        Ok(Box::new(Tokenizing { step: self, given, rows, may_skip, shared: None, ones, zeros, outputs }))
    }
}

/// The work of a request.
struct Tokenizing {
    step: Arc<Tokenize>,
    given: InputRows,
    rows: usize,
    /// Whether rows without a text skip the step.
    may_skip: bool,
    shared: Option<Shared>,
    ones: Repeated,
    zeros: Repeated,
    /// By output and row.
    outputs: Vec<Vec<Option<InputTensor>>>,
}

/// The first text of the last pair, which the next ones may share: a query has many documents.
struct Shared {
    text: Bytes,
    prompt: Option<Bytes>,
    first: FirstText,
}

impl Shared {
    fn is_of(&self, row: &Row<'_>) -> bool {
        let data = |tensor: Option<&InputTensor>| tensor.map(|tensor| tensor.data.clone());
        row.pair.is_some() && data(row.text).as_ref() == Some(&self.text) && data(row.prompt) == self.prompt
    }
}

/// Returns the only text of a row.
fn read<'a>(name: &str, tensor: &'a InputTensor) -> Result<&'a str, BuiltInFault> {
    let bytes = only_string(tensor).ok_or_else(|| BuiltInFault::Invalid(format!("{name} has no string")))?;
    std::str::from_utf8(bytes).map_err(|fault| {
        BuiltInFault::Invalid(format!("expected UTF-8 in {name}, but byte {} is not", fault.valid_up_to()))
    })
}

impl From<TokenizerFault> for BuiltInFault {
    fn from(fault: TokenizerFault) -> Self {
        match fault {
            TokenizerFault::Failed(_) => Self::Failed(fault.to_string()),
            fault => Self::Invalid(fault.to_string()),
        }
    }
}

impl Tokenizing {
    fn tokens(&mut self, number: usize) -> Result<Tokens, BuiltInFault> {
        let (row, step, invalid) = (Row::of(&self.given, number), &self.step, BuiltInFault::Invalid);
        if let Some(given) = row.tokens {
            if row.text.is_some() || row.pair.is_some() {
                return Err(invalid(format!("expected either {} or {}, but found both", text::TEXT, text::TOKENS)));
            }
            return step.given(&integers(&given.data, DataType::Int64), row.may_truncate).map_err(invalid);
        }
        let given = row.text.ok_or_else(|| invalid(format!("expected {} or {}", text::TEXT, text::TOKENS)))?;
        let pair = row.pair.map(|pair| read(text::PAIR, pair)).transpose()?;
        let named = row.prompt.map(|prompt| read(text::PROMPT, prompt)).transpose()?;
        let prompt = step.prompt(named).map_err(invalid)?;
        let first = match self.shared.take().filter(|shared| shared.is_of(&row)) {
            Some(shared) => shared,
            None => {
                let text = read(text::TEXT, given)?;
                step.tokenizer.check_bytes(prompt.len() + text.len())?;
                let first = step.tokenizer.first(&format!("{prompt}{text}"))?;
                Shared { text: given.data.clone(), prompt: row.prompt.map(|prompt| prompt.data.clone()), first }
            }
        };
        let tokens = if number + 1 < self.rows && pair.is_some() {
            self.shared.insert(first).first.clone()
        } else {
            first.first
        };
        Ok(step.tokenizer.complete(tokens, pair, row.may_truncate)?.behind(prompt.len()))
    }
}

impl StepWork for Tokenizing {
    fn effort(&self, row: usize) -> Duration {
        let row = Row::of(&self.given, row);
        let is_shared = self.shared.as_ref().is_some_and(|shared| shared.is_of(&row));
        Tokenize::effort_of(row.work(&self.step, !is_shared))
    }

    fn run(&mut self, row: usize, _stop: &Stop) -> Result<(), BuiltInFault> {
        let Row { text, tokens, .. } = Row::of(&self.given, row);
        if self.may_skip && text.is_none() && tokens.is_none() {
            self.outputs.iter_mut().for_each(|output| output.push(None));
            return Ok(());
        }
        let tokens = self.tokens(row).map_err(|fault| match (fault, self.rows) {
            (BuiltInFault::Invalid(text), 2..) => BuiltInFault::Invalid(format!("row {row}: {text}")),
            (fault, _) => fault,
        })?;
        let (datatype, length) = (self.step.outputs[0].datatype, tokens.ids.len());
        let places: Vec<i64> = tokens.offsets.iter().flat_map(|(start, end)| [*start as i64, *end as i64]).collect();
        let mut offsets = row_of_integers(places.into_iter(), DataType::Int32);
        offsets.shape = [1, tokens.offsets.len() as i64, 2].as_slice().into();
        let types = if tokens.types.iter().all(|&kind| kind == 0) {
            self.zeros.row(0, length, datatype)
        } else {
            row_of_integers(tokens.types.iter().map(|&kind| i64::from(kind)), datatype)
        };
        let made = [
            row_of_integers(tokens.ids.iter().map(|&id| i64::from(id)), datatype),
            self.ones.row(1, length, datatype),
            types,
            row_of_integers(std::iter::once(length as i64), DataType::Int32),
            offsets,
        ];
        self.outputs.iter_mut().zip(made).for_each(|(output, tensor)| output.push(Some(tensor)));
        Ok(())
    }

    fn outputs(&mut self) -> Vec<TensorRows> {
        std::mem::take(&mut self.outputs).into_iter().map(TensorRows::Rows).collect()
    }
}
