//! What the steps allocate stays below what they say beforehand, whatever the tokenizer, the prompts and the texts are.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_model::{DataType, Dims, InputTensor};
use paternoster_pipeline::{BuiltIn, Stop, TensorRows, run_here};
use paternoster_text::{
    Pooling, PoolingOptions, PoolingStep, TextTokenizer, Tokenize, TokenizeOptions, TokenizerFault, TokenizerOptions,
    Truncate,
};
use rand::{RngExt, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value as Json, json};

/// What a step may take beside what it says: the library's regular expressions keep a little on each thread.
const SLACK: u64 = 1 << 20;

fn strings(texts: &[String]) -> Option<TensorRows> {
    let data = texts.iter().map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat());
    let data = Bytes::from(data.collect::<Vec<_>>().concat());
    Some(TensorRows::Joint(InputTensor { shape: Dims::from_slice(&[texts.len() as i64, 1]), data }))
}

fn floats(shape: &[i64], bytes: usize) -> TensorRows {
    let elements = shape.iter().product::<i64>() as usize;
    TensorRows::Joint(InputTensor { shape: Dims::from_slice(shape), data: Bytes::from(vec![0; elements * bytes]) })
}

/// Runs a step; returns what it said, what it took, and whether it had a response.
fn measure(what: &str, step: Arc<dyn BuiltIn>, inputs: Vec<Option<TensorRows>>, rows: usize) -> (u64, u64, bool) {
    let said = step.built_bytes(&inputs) as u64;
    let mut answer = None;
    let taken = allocation_counter::measure(|| answer = Some(run_here(step, inputs.clone(), rows, &Stop::never())));
    let taken = taken.bytes_max;
    assert!(taken <= said + SLACK, "{what}: it took {taken} bytes, and said at most {said}");
    (said, taken, answer.is_some_and(|answer| answer.is_ok()))
}

fn one_of(draw: &mut ChaCha8Rng, all: &[Json]) -> Json {
    all.choose(draw).cloned().unwrap_or(Json::Null)
}

fn model(draw: &mut ChaCha8Rng) -> Json {
    let letters: Vec<String> = ('!'..='~').map(String::from).chain(["▁", "Ġ", "中"].map(String::from)).collect();
    let numbered = |names: Vec<String>| -> Json {
        names.into_iter().enumerate().map(|(id, name)| (name, json!(id))).collect::<serde_json::Map<_, _>>().into()
    };
    let unknown = "[UNK]".to_owned();
    match draw.random_range(0..4) {
        0 => {
            let names = ["a", "b", "["].map(String::from).into_iter().chain([unknown]).collect();
            json!({"type": "WordLevel", "vocab": numbered(names), "unk_token": "[UNK]"})
        }
        1 => {
            let parts = letters.iter().map(|letter| format!("##{letter}"));
            let names = letters.iter().cloned().chain(parts).chain([unknown]).collect();
            json!({"type": "WordPiece", "vocab": numbered(names), "unk_token": "[UNK]",
                   "continuing_subword_prefix": "##", "max_input_chars_per_word": 100})
        }
        2 => {
            let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
            let names = letters.into_iter().chain(bytes).chain([unknown]).collect();
            json!({"type": "BPE", "vocab": numbered(names), "merges": [], "unk_token": "[UNK]", "fuse_unk": false,
                   "byte_fallback": draw.random_bool(0.5), "dropout": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null})
        }
        _ => {
            let vocabulary: Vec<Json> = [unknown].into_iter().chain(letters).map(|name| json!([name, -1.0])).collect();
            json!({"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": false})
        }
    }
}

fn normalizer(draw: &mut ChaCha8Rng) -> Json {
    let bert = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                      "strip_accents": null, "lowercase": true});
    let replace = |content: &str| json!({"type": "Replace", "pattern": {"String": " "}, "content": content});
    let steps = [
        json!({"type": "NFKC"}),
        json!({"type": "NFD"}),
        json!({"type": "Lowercase"}),
        json!({"type": "ByteLevel"}),
        json!({"type": "Prepend", "prepend": "▁"}),
        replace("▁"),
        replace(" ab "),
        bert,
    ];
    let count = draw.random_range(0..4);
    let steps: Vec<Json> = (0..count).map(|_| one_of(draw, &steps)).collect();
    if steps.is_empty() { Json::Null } else { json!({"type": "Sequence", "normalizers": steps}) }
}

fn pre_tokenizer(draw: &mut ChaCha8Rng) -> Json {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": draw.random_bool(0.5)});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": draw.random_bool(0.7)});
    let each =
        json!({"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": draw.random_bool(0.2)});
    let steps = [
        json!({"type": "Whitespace"}),
        json!({"type": "WhitespaceSplit"}),
        json!({"type": "Punctuation", "behavior": "Isolated"}),
        json!({"type": "Digits", "individual_digits": true}),
        byte_level,
        metaspace,
        each,
    ];
    let count = draw.random_range(0..3);
    let steps: Vec<Json> = (0..count).map(|_| one_of(draw, &steps)).collect();
    if steps.is_empty() { Json::Null } else { json!({"type": "Sequence", "pretokenizers": steps}) }
}

fn post_processor(draw: &mut ChaCha8Rng) -> Json {
    let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    let mark = json!({"SpecialToken": {"id": "m", "type_id": 0}});
    let ids = *[1, 2, 40, 300].choose(draw).unwrap_or(&1);
    let name = "m".repeat(draw.random_range(1..20));
    let special = json!({"m": {"id": "m", "ids": vec![1; ids], "tokens": vec![name; ids]}});
    let template = json!({"type": "TemplateProcessing", "single": [mark, text("A", 0), mark],
                          "pair": [mark, text("A", 0), mark, text("B", 1), mark], "special_tokens": special});
    one_of(draw, &[template, Json::Null])
}

fn step(draw: &mut ChaCha8Rng) -> Option<(String, Arc<Tokenize>)> {
    let added = json!([{"id": 0, "content": "x", "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": draw.random_bool(0.5), "special": true}]);
    let added = one_of(draw, &[added, json!([])]);
    let file = json!({"version": "1.0", "added_tokens": added, "normalizer": normalizer(draw),
        "pre_tokenizer": pre_tokenizer(draw), "post_processor": post_processor(draw), "model": model(draw)});
    let options = TokenizerOptions {
        max_tokens: *[1000, 4096, 1 << 20].choose(draw).unwrap_or(&1000),
        truncate: if draw.random_bool(0.5) { Truncate::Left } else { Truncate::Right },
        max_bytes: 1 << 20,
        offsets: draw.random_bool(0.5),
        lowercase: draw.random_bool(0.2),
    };
    let mut shown = file.clone();
    shown["model"] = file["model"]["type"].clone();
    let file = serde_json::to_vec(&file).expect("JSON");
    // Some parts do not go together.
    let tokenizer = TextTokenizer::read(&file, options).map_err(|fault: TokenizerFault| fault).ok()?;
    let prompt = words(draw, 20_000);
    let default_prompt = draw.random_bool(0.3).then(|| "long".to_owned());
    let prompts = [("long".to_owned(), prompt), ("short".to_owned(), "a: ".to_owned())].into();
    let options = TokenizeOptions { int32: draw.random_bool(0.5), prompts, default_prompt };
    let step = Tokenize::new(Arc::new(tokenizer), options).expect("prompts of a usual length");
    Some((format!("{shown}"), Arc::new(step)))
}

/// Texts that become much, of up to about this many bytes.
fn words(draw: &mut ChaCha8Rng, most: usize) -> String {
    let parts =
        ["a", "a ", "!", "!a", "1", " ", "½", "ﷺ", "中", "é", "x", "ax", "\u{1f600}", "hello world, ", "zq", "가"];
    let bytes = draw.random_range(0..most);
    let (one, other) = (parts.choose(draw).unwrap_or(&"a"), parts.choose(draw).unwrap_or(&"a"));
    let part = if draw.random_bool(0.5) { (*one).to_owned() } else { format!("{one}{other}") };
    part.repeat(bytes.div_ceil(part.len()))
}

#[test]
fn any_tokenizer_prompt_and_text_takes_no_more_than_was_said() {
    random_steps_take_no_more_than_was_said(1, 25);
}

#[test]
#[ignore = "many cases: make nightly"]
fn many_tokenizers_prompts_and_texts_take_no_more_than_was_said() {
    for seed in 1..=10 {
        random_steps_take_no_more_than_was_said(seed, 100);
    }
}

fn random_steps_take_no_more_than_was_said(seed: u64, cases: u32) {
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    let (mut answered, mut refused) = (0, 0);
    while answered + refused < cases {
        let Some((what, step)) = step(&mut draw) else { continue };
        let (rows, most) = *[(1, 100_000), (1, 2000), (4, 20_000), (60, 2), (60, 300)].choose(&mut draw).expect("one");
        let texts: Vec<String> = (0..rows).map(|_| words(&mut draw, most)).collect();
        let shared = draw.random_bool(0.3);
        let texts = if shared { vec![texts[0].clone(); rows] } else { texts };
        let pairs: Option<Vec<String>> =
            draw.random_bool(0.4).then(|| (0..rows).map(|_| words(&mut draw, most)).collect());
        let prompts: Option<Vec<String>> = draw.random_bool(0.4).then(|| {
            (0..rows).map(|_| (*["long", "short", ""].choose(&mut draw).expect("a name")).to_owned()).collect()
        });
        let inputs = vec![
            strings(&texts),
            pairs.and_then(|pairs| strings(&pairs)),
            None,
            prompts.and_then(|prompts| strings(&prompts)),
            None,
        ];
        let first: String = texts[0].chars().take(8).collect();
        let (_, _, is_answered) = measure(&format!("{rows} rows of '{first}', {what}"), step, inputs, rows);
        *(if is_answered { &mut answered } else { &mut refused }) += 1;
    }
    assert!(2 * answered >= cases, "{answered} had tokens, and {refused} were refused");
}

/// The largest differences between what short texts are and what they become.
#[test]
fn many_short_texts_with_a_long_prompt_or_a_long_template_take_no_more_than_was_said() {
    let mark = json!({"SpecialToken": {"id": "m", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let template = json!({"type": "TemplateProcessing", "single": [mark, text], "pair": [text, {"Sequence": {"id": "B",
        "type_id": 1}}], "special_tokens": {"m": {"id": "m", "ids": vec![0; 1000], "tokens": vec!["m"; 1000]}}});
    let words = json!({"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"});
    for (processor, prompt) in [(template, String::new()), (Json::Null, "a ".repeat(6_000))] {
        let file = json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
                          "post_processor": processor, "model": words});
        let file = serde_json::to_vec(&file).expect("JSON");
        let (truncate, max_bytes) = (Truncate::Right, 1 << 20);
        let options = TokenizerOptions { max_tokens: 1 << 20, truncate, max_bytes, offsets: true, lowercase: false };
        let tokenizer = TextTokenizer::read(&file, options).expect("a tokenizer");
        let prompts = [("p".to_owned(), prompt)].into();
        let options = TokenizeOptions { int32: false, prompts, default_prompt: Some("p".to_owned()) };
        let step = Arc::new(Tokenize::new(Arc::new(tokenizer), options).expect("a step"));
        let inputs = vec![strings(&vec!["a".to_owned(); 60]), None, None, None, None];
        assert!(!step.is_short(&inputs));
        let (_, taken, is_answered) = measure("60 texts of one byte", step, inputs, 60);
        assert!(is_answered && taken > 60 * 1000 * 16, "{taken}");
    }
}

#[test]
fn what_is_said_of_usual_texts_is_not_much_more_than_they_take() {
    let file = json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "normalizer": {"type": "Lowercase"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}});
    let file = serde_json::to_vec(&file).expect("JSON");
    let options = TokenizerOptions {
        max_tokens: 512,
        truncate: Truncate::Right,
        max_bytes: 1 << 20,
        offsets: false,
        lowercase: false,
    };
    let tokenizer = Arc::new(TextTokenizer::read(&file, options).expect("a tokenizer"));
    let step = Arc::new(Tokenize::new(tokenizer, TokenizeOptions::default()).expect("a step"));
    for (rows, bytes) in [(1, 40), (64, 40), (64, 400), (64, 2400), (2048, 400), (4, 100_000)] {
        let text: String = "The quick brown fox jumps over the lazy dog. ".chars().cycle().take(bytes).collect();
        let inputs = vec![strings(&vec![text; rows]), None, None, None, None];
        let (said, taken, _) = measure("usual texts", step.clone(), inputs, rows);
        // A single short text has what any may take however short it is.
        assert!(said <= 8 * taken + (128 << 10), "{rows} texts of {bytes} bytes take {taken} bytes, and said {said}");
    }
}

const FLOATS: [(DataType, usize); 3] = [(DataType::Fp16, 2), (DataType::Fp32, 4), (DataType::Fp64, 8)];
const POOLED: [(Pooling, &[i64]); 5] = [
    (Pooling::Done, &[1, 4_000_000]),
    (Pooling::Done, &[40_000, 1]),
    (Pooling::Mean, &[1, 1000, 4000]),
    (Pooling::Max, &[40_000, 2, 2]),
    (Pooling::Cls, &[32, 512, 384]),
];

fn takes_no_more_than_was_said((datatype, size): (DataType, usize), (pooling, shape): (Pooling, &[i64])) {
    let step = Arc::new(PoolingStep::new(PoolingOptions { pooling, normalize: true, datatype }));
    let inputs = vec![Some(floats(shape, size)), None, None];
    let (said, taken, _) = measure(&format!("{pooling:?} of {shape:?}"), step, inputs, shape[0] as usize);
    assert!(said <= 4 * taken, "{pooling:?} of {shape:?} takes {taken} bytes, and said {said}");
}

/// Each type and each pooling in turn.
#[test]
fn pooling_takes_no_more_than_was_said() {
    FLOATS.into_iter().cycle().zip(POOLED).for_each(|(floats, pooled)| takes_no_more_than_was_said(floats, pooled));
}

#[test]
#[ignore = "every pair: make nightly"]
fn pooling_of_every_type_takes_no_more_than_was_said() {
    for pooled in POOLED {
        FLOATS.into_iter().for_each(|floats| takes_no_more_than_was_said(floats, pooled));
    }
}
