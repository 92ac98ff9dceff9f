use paternoster_model::Dims;
use paternoster_pipeline::run_here;

use super::*;

/// A tokenizer of two words.
fn step() -> Arc<Tokenize> {
    let file = br#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}}"#;
    let (max_tokens, truncate, max_bytes) = (64, Truncate::Right, 1 << 20);
    let options = TokenizerOptions { max_tokens, truncate, max_bytes, offsets: false, lowercase: false };
    let prompts = [("p".to_owned(), "? ".to_owned())].into();
    let tokenizer = Arc::new(TextTokenizer::read(file, options).expect("a tokenizer"));
    Arc::new(Tokenize::new(tokenizer, TokenizeOptions { prompts, ..TokenizeOptions::default() }).expect("a step"))
}

fn strings(texts: &[&str]) -> Option<TensorRows> {
    let data: Vec<u8> =
        texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()).collect();
    Some(TensorRows::Joint(InputTensor { shape: Dims::from_slice(&[texts.len() as i64, 1]), data: data.into() }))
}

#[test]
fn pairs_that_share_their_first_text_have_the_tokens_of_pairs_that_do_not() {
    let (texts, pairs) = (["a a", "a a", "? a", "a a", "a a"], ["?", "a", "", "a", "a"]);
    let prompts = ["", "", "p", "", "p"];
    let ids = |rows: std::ops::Range<usize>| -> Vec<Bytes> {
        let of = |all: &[&str]| strings(&all[rows.clone()]);
        let inputs = vec![of(&texts), of(&pairs), None, of(&prompts), None];
        let outputs = run_here(step(), inputs, rows.len(), &Stop::never()).expect("tokens");
        let TensorRows::Rows(ids) = &outputs[0] else { panic!("expected rows") };
        ids.iter().flatten().map(|ids| ids.data.clone()).collect()
    };
    let alone: Vec<Bytes> = (0..5).flat_map(|row| ids(row..row + 1)).collect();
    assert_eq!(ids(0..5), alone);
}

#[test]
fn only_the_first_of_pairs_that_share_a_long_text_is_long_work() {
    let long = "a ".repeat(64 << 10);
    let inputs = vec![strings(&[&long, &long, &long]), strings(&["a", "a", &long]), None, None, None];
    let mut work = step().begin(inputs, 3).expect("it begins");
    let mut efforts = Vec::new();
    for row in 0..3 {
        efforts.push(work.effort(row));
        work.run(row, &Stop::never()).expect("tokens");
    }
    assert!(efforts[1] * 1000 < efforts[0] && efforts[1] * 1000 < efforts[2], "{efforts:?}");
}

/// Whether texts of one byte with such a prompt or template run where they came in.
#[test]
fn what_a_row_becomes_says_whether_it_is_short_and_not_what_it_is() {
    let mark = r#"{"SpecialToken": {"id": "?", "type_id": 0}}"#;
    let ids = vec!["1"; 1000].join(",");
    let names = vec![r#""?""#; 1000].join(",");
    let template = format!(
        r#""post_processor": {{"type": "TemplateProcessing", "single": [{mark}, {{"Sequence": {{"id": "A", "type_id": 0}}}}],
            "pair": [{{"Sequence": {{"id": "A", "type_id": 0}}}}, {{"Sequence": {{"id": "B", "type_id": 0}}}}],
            "special_tokens": {{"?": {{"id": "?", "ids": [{ids}], "tokens": [{names}]}}}}}},"#
    );
    let of = |template: &str, prompt: usize, default: bool| {
        let file = format!(
            r#"{{"version": "1.0", "added_tokens": [], {template} "pre_tokenizer": {{"type": "Whitespace"}},
                "model": {{"type": "WordLevel", "vocab": {{"a": 0, "?": 1}}, "unk_token": "?"}}}}"#
        );
        let (max_tokens, truncate, max_bytes) = (1 << 20, Truncate::Right, 1 << 20);
        let options = TokenizerOptions { max_tokens, truncate, max_bytes, offsets: false, lowercase: false };
        let tokenizer = Arc::new(TextTokenizer::read(file.as_bytes(), options).expect("a tokenizer"));
        let prompts = [("p".to_owned(), "a".repeat(prompt))].into();
        let default_prompt = default.then(|| "p".to_owned());
        Tokenize::new(tokenizer, TokenizeOptions { int32: false, prompts, default_prompt })
    };
    let is_short = |step: &Tokenize, rows: usize, prompt: Option<&str>| {
        let prompts = prompt.and_then(|prompt| strings(&vec![prompt; rows]));
        step.is_short(&[strings(&vec!["a"; rows]), None, None, prompts, None])
    };
    let plain = of("", 1000, false).expect("a step");
    assert!(is_short(&plain, 60, None));
    assert!(!is_short(&plain, 400, None), "each row takes some time");
    assert!(is_short(&plain, 1, Some("p")) && !is_short(&plain, 3, Some("p")));
    assert!(is_short(&plain, 60, Some("")));
    let by_default = of("", 1000, true).expect("a step");
    assert!(is_short(&by_default, 1, None) && !is_short(&by_default, 3, None));
    assert!(is_short(&by_default, 60, Some("")), "they want no prompt");
    let long = of(&template, 0, false).expect("a step");
    assert!(is_short(&long, 1, None) && !is_short(&long, 3, None));
    let fault = of("", (64 << 10) + 1, false).expect_err("too long a prompt");
    assert_eq!(fault, "expected prompts of at most 65536 bytes, but the prompt 'p' has 65537");
}
