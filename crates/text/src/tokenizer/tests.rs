use serde_json::{Value, json};

use super::*;

fn options() -> TokenizerOptions {
    TokenizerOptions {
        max_tokens: 64,
        truncate: Truncate::Right,
        max_bytes: DEFAULT_MAX_BYTES,
        offsets: false,
        lowercase: false,
    }
}

/// A tokenizer of two words, with one part as given.
fn file(part: &str, value: Value) -> Vec<u8> {
    let mut file = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"},
    });
    file[part] = value;
    serde_json::to_vec(&file).expect("JSON")
}

fn read(part: &str, value: Value) -> Result<TextTokenizer, TokenizerFault> {
    TextTokenizer::read(&file(part, value), options())
}

fn refused(part: &str, value: Value) -> String {
    read(part, value).expect_err("it should be refused").to_string()
}

fn sequence(kind: &str, key: &str, count: usize, one: &Value) -> Value {
    json!({"type": kind, key: vec![one; count]})
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

/// A map of SentencePiece in which 'a' becomes a text of `bytes` bytes.
fn map_to(bytes: usize) -> Value {
    let mut tree = vec![0_u32; 512];
    // The root leads to 0 ^ 1 ^ 'a', whose leaf follows at that ^ 1.
    tree[0] = 1 << 10;
    tree[usize::from(b'a') ^ 1] = u32::from(b'a') | 1 << 8 | 1 << 10;
    let mut map = ((tree.len() * 4) as u32).to_le_bytes().to_vec();
    map.extend(tree.iter().flat_map(|unit| unit.to_le_bytes()));
    map.extend(vec![b'a'; bytes]);
    map.push(0);
    use base64::Engine;
    json!({"type": "Precompiled", "precompiled_charsmap": base64::engine::general_purpose::STANDARD.encode(map)})
}

#[test]
fn normalizers_that_multiply_texts_are_refused() {
    let step = "a step may make";
    let sixteen = replace("a", &"a".repeat(16));
    assert!(refused("normalizer", sequence("Sequence", "normalizers", 7, &sixteen)).contains(step));
    let nested = sequence("Sequence", "normalizers", 7, &sequence("Sequence", "normalizers", 1, &sixteen));
    assert!(refused("normalizer", nested).contains(step));
    let anywhere = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "a".repeat(60)});
    assert!(refused("normalizer", sequence("Sequence", "normalizers", 7, &anywhere)).contains(step));
    let prepend = json!({"type": "Prepend", "prepend": "a".repeat(3 << 20)});
    assert!(refused("normalizer", prepend).contains(step));
    let doubling = sequence("Sequence", "normalizers", 30, &json!({"type": "ByteLevel"}));
    let tokenizer = read("normalizer", doubling).expect("ASCII stays as it is");
    let fault = tokenizer.encode("ä", None, true).expect_err("each step doubles it").to_string();
    assert!(fault.contains(step), "{fault}");
    assert!(refused("normalizer", map_to(200_000)).contains(step));
    let tokenizer = read("normalizer", map_to(60)).expect("a short text may become 8 KiB");
    assert!(tokenizer.encode(&"b ".repeat(200_000), None, true).is_ok(), "the map has nothing for it");
    let fault = tokenizer.encode(&"a ".repeat(200_000), None, true).expect_err("31 times as much");
    assert!(matches!(fault, TokenizerFault::Grows { .. }) && fault.to_string().contains(step), "{fault}");
}

#[test]
fn a_map_whose_tree_is_larger_than_it_is_refused() {
    use base64::Engine;
    let map = base64::engine::general_purpose::STANDARD.encode(b"\xff\xff\xff\xffaaaa");
    let map = json!({"type": "Precompiled", "precompiled_charsmap": map});
    let nested = sequence("Sequence", "normalizers", 1, &map);
    for normalizer in [map, nested] {
        let fault = refused("normalizer", normalizer);
        assert!(fault.contains("'precompiled_charsmap' cannot be read"), "{fault}");
    }
}

#[test]
fn normalizers_of_real_files_work_on_long_texts() {
    let steps = json!([
        map_to(2),
        {"type": "NFKD"},
        {"type": "Prepend", "prepend": "▁"},
        replace(" ", "▁"),
        {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
         "lowercase": true},
    ]);
    let tokenizer = read("normalizer", json!({"type": "Sequence", "normalizers": steps})).expect("it is usual");
    let long = "b a 中 ".repeat(60_000);
    assert_eq!(tokenizer.encode(&long, None, true).map(|tokens| tokens.ids.len()), Ok(64));
    assert!(tokenizer.encode("a", Some("a"), false).is_ok());
}

#[test]
fn pre_tokenizers_that_multiply_texts_are_refused() {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false});
    let of = |count| sequence("Sequence", "pretokenizers", count, &byte_level);
    assert!(read("pre_tokenizer", of(2)).is_ok());
    assert!(refused("pre_tokenizer", of(30)).contains("of the types ByteLevel and Metaspace, but found 30"));
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    assert!(refused("pre_tokenizer", sequence("Sequence", "pretokenizers", 3, &metaspace)).contains("found 3"));
}

#[test]
fn a_template_that_repeats_a_text_is_refused() {
    let (first, second) =
        (json!({"Sequence": {"id": "A", "type_id": 0}}), json!({"Sequence": {"id": "B", "type_id": 1}}));
    let of = |single: &[&Value]| {
        let pair = [&first, &second];
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {}})
    };
    assert!(read("post_processor", of(&[&first])).is_ok());
    assert!(refused("post_processor", of(&[&first, &first])).contains("repeats texts"));
    let many = refused("post_processor", of(&vec![&first; 5000]));
    assert!(many.contains("at most 256 objects in 'post_processor', but found 10006"), "{many}");
}

#[test]
fn decoders_that_multiply_texts_fail() {
    let decoder = sequence("Sequence", "decoders", 7, &replace("a", &"a".repeat(16)));
    let tokenizer = read("decoder", decoder).expect("its texts are bounded in use");
    let fault = tokenizer.decode(&[0], true).expect_err("16^7 bytes");
    assert!(matches!(fault, TokenizerFault::Grows { .. }), "{fault}");
    let tokenizer = read("decoder", replace("a", "b")).expect("it is usual");
    assert_eq!(tokenizer.decode(&[0, 0], true).as_deref(), Ok("bb"));
}

#[test]
fn parts_that_no_writer_makes_are_refused_before_they_are_built() {
    let long = "a".repeat(1 << 20);
    let tree = json!({"type": "Unigram", "unk_id": 0, "vocab": [[long, 0.0]], "byte_fallback": false});
    assert!(refused("model", tree).contains("tokens of at most 4096 bytes, but 'model' has 1048576"));
    let prefix = json!({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "continuing_subword_prefix": long,
                        "max_input_chars_per_word": 100});
    assert!(refused("model", prefix).contains("1048576"));
    let added = json!([{"id": 2, "content": long, "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": true, "special": false}]);
    assert!(refused("added_tokens", added).contains("'added_tokens' has 1048576"));
    let words = json!({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "continuing_subword_prefix": "##",
                       "max_input_chars_per_word": 1_000_000});
    assert!(refused("model", words).contains("max_input_chars_per_word to be at most 1000"));
    let junk = json!({"type": "Whitespace", "junk": vec![0; 1 << 20]});
    assert!(refused("pre_tokenizer", junk).contains("at most 524288 values in 'pre_tokenizer'"));
    // Trees are dropped by recursion.
    let deep = json!({"type": "Unigram", "unk_id": 0, "vocab": [["a".repeat(4 << 10), 0.0], ["a", -1.0], ["b", -1.0]]});
    assert!(read("model", deep).is_ok());
    let added: Vec<Value> = (2..50_002)
        .map(|id| {
            json!({"id": id, "content": format!("<{id}>"), "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    assert!(bounded::check(&file("added_tokens", json!(added))).is_ok());
    let empty = json!({"type": "Unigram", "unk_id": 0, "vocab": vec![json!(["", 0.0]); 3 << 20]});
    assert!(refused("model", empty).contains("at most 8388608 values in 'model'"));
    let steps = refused("normalizer", sequence("Sequence", "normalizers", 100_000, &json!({"type": "NFC"})));
    assert!(steps.contains("at most 256 objects in 'normalizer', but found 100001"), "{steps}");
    let fault = TextTokenizer::read(b"{", options()).expect_err("it ends early").to_string();
    assert!(fault.starts_with("not a tokenizer: "), "{fault}");
}

#[test]
fn texts_are_lowercased_before_the_steps_of_the_file() {
    let of = |normalizer: Value, lowercase: bool| {
        let tokenizer =
            TextTokenizer::read(&file("normalizer", normalizer), TokenizerOptions { lowercase, ..options() });
        tokenizer.expect("a tokenizer").encode("A B a", None, true).expect("tokens").ids
    };
    assert_eq!(of(Value::Null, false), [1, 1, 0]);
    assert_eq!(of(Value::Null, true), [0, 1, 0]);
    assert_eq!(of(replace("b", "a"), true), [0, 0, 0], "the file's steps see lower case");
    let after = sequence("Sequence", "normalizers", 1, &json!({"type": "Lowercase"}));
    assert_eq!(of(after, true), [0, 1, 0]);
}

/// A tokenizer that puts a mark around texts, as BERT's does.
fn marking(options: TokenizerOptions) -> TextTokenizer {
    let mark = |kind| json!({"SpecialToken": {"id": "?", "type_id": kind}});
    let of = |name: &str, kind| json!({"Sequence": {"id": name, "type_id": kind}});
    let template = json!({
        "type": "TemplateProcessing",
        "single": [mark(0), of("A", 0), mark(0)],
        "pair": [mark(0), of("A", 0), mark(0), of("B", 1), mark(1)],
        "special_tokens": {"?": {"id": "?", "ids": [1], "tokens": ["?"]}},
    });
    TextTokenizer::read(&file("post_processor", template), options).expect("a tokenizer")
}

#[test]
fn pairs_are_cut_as_the_library_does() {
    use tokenizers::utils::truncation::{TruncationParams, TruncationStrategy, truncate_encodings};
    let encoding =
        |length: usize| Encoding::from_tokens(vec![tokenizers::Token::new(0, "a".into(), (0, 1)); length], 0);
    for (first, second, most) in (0..9).flat_map(|a| (0..9).flat_map(move |b| (0..9).map(move |most| (a, b, most)))) {
        if first + second <= most {
            continue;
        }
        let params =
            TruncationParams { max_length: most, strategy: TruncationStrategy::LongestFirst, ..Default::default() };
        let cut = truncate_encodings(encoding(first), Some(encoding(second)), &params).expect("it cuts");
        let lengths = (cut.0.len(), cut.1.map_or(0, |second| second.len()));
        let (of_first, of_second) = kept(first, second, most);
        assert_eq!((of_first.min(first), of_second.min(second)), lengths, "{first} and {second} to {most}");
    }
}

#[test]
fn a_first_text_that_pairs_share_is_tokenized_once() {
    for truncate in [Truncate::Right, Truncate::Left] {
        let tokenizer = marking(TokenizerOptions { max_tokens: 8, truncate, offsets: true, ..options() });
        let long = format!("b {}", "a ".repeat(20));
        let first = tokenizer.first(&long).expect("tokens");
        for pair in ["a", "b a", "", &long, &"b ".repeat(30)] {
            let shared = tokenizer.complete(first.clone(), Some(pair), true);
            assert_eq!(shared, tokenizer.encode(&long, Some(pair), true), "'{pair}'");
            assert_eq!(shared.expect("tokens").ids.len(), 8);
        }
        let fault = tokenizer.complete(first, Some("a"), false).expect_err("it may lose none");
        assert_eq!(fault, TokenizerFault::TooManyTokens { most: 8, tokens: 25 });
    }
}

#[test]
fn an_empty_second_text_makes_a_pair() {
    let tokenizer = marking(options());
    assert_eq!(tokenizer.encode("a", None, true).expect("tokens").ids, [1, 0, 1]);
    let pair = tokenizer.encode("a", Some(""), true).expect("tokens");
    assert_eq!((pair.ids, pair.types), (vec![1, 0, 1, 1], vec![0, 0, 0, 1]));
}

#[test]
fn a_pair_without_a_post_processor_has_the_types_of_the_library() {
    let processors = [
        Value::Null,
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "BertProcessing", "sep": ["?", 1], "cls": ["?", 1]}),
        json!({"type": "RobertaProcessing", "sep": ["?", 1], "cls": ["?", 1], "trim_offsets": true,
               "add_prefix_space": true}),
    ];
    for processor in processors {
        let file = file("post_processor", processor.clone());
        let ours = TextTokenizer::read(&file, TokenizerOptions { max_tokens: 8, ..options() }).expect("a tokenizer");
        let mut library = tokenizers::Tokenizer::from_bytes(&file).expect("a tokenizer");
        let truncation = tokenizers::TruncationParams { max_length: 8, ..Default::default() };
        library.with_truncation(Some(truncation)).expect("it truncates");
        for (text, pair) in [("a b", "a"), ("a", "a b a"), ("", "a"), ("a", ""), ("a b a b a b", "a b a b a b a")] {
            let wanted = library.encode((text, pair), true).expect("tokens");
            let tokens = ours.encode(text, Some(pair), true).expect("tokens");
            assert_eq!((&tokens.ids[..], &tokens.types[..]), (wanted.get_ids(), wanted.get_type_ids()), "{processor}");
        }
    }
}

#[test]
fn a_post_processor_that_adds_many_tokens_is_refused() {
    let of = |ids: usize, names: usize, name: &str, times: usize| {
        let text = |id| json!({"Sequence": {"id": id, "type_id": 0}});
        let mark = json!({"SpecialToken": {"id": "?", "type_id": 0}});
        let pair: Vec<Value> = std::iter::repeat_n(mark, times).chain([text("A"), text("B")]).collect();
        let tokens = vec![name; names];
        let special = json!({"?": {"id": "?", "ids": vec![1; ids], "tokens": tokens}});
        json!({"type": "TemplateProcessing", "single": [text("A")], "pair": pair, "special_tokens": special})
    };
    let read = |value: Value| {
        let options = TokenizerOptions { max_tokens: 1 << 20, ..options() };
        TextTokenizer::read(&file("post_processor", value), options).map_err(|fault| fault.to_string())
    };
    assert!(read(of(512, 512, "?", 2)).is_ok());
    let fault = read(of(512, 512, "?", 3)).expect_err("it adds 1536 tokens");
    assert!(fault.contains("adds at most 1024 tokens, but it adds 1536"), "{fault}");
    let fault = read(of(200_000, 200_000, "", 1)).expect_err("it adds 200000 tokens");
    assert!(fault.contains("but it adds 200000"), "{fault}");
    let fault = read(of(1, 1, &"?".repeat(65 << 10), 1)).expect_err("a long name");
    assert!(fault.contains("at most 65536 bytes in 'post_processor'"), "{fault}");
    let fault = read(of(1, 2, "?", 1)).expect_err("two names of a token");
    assert!(fault.contains("another number of ids than of names"), "{fault}");
}

#[test]
fn all_parts_of_a_text_together_become_no_more_than_it_may() {
    let added = json!([{"id": 2, "content": "x", "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": true}]);
    let mut with_added: Value = serde_json::from_slice(&file("added_tokens", added)).expect("JSON");
    // A short text may become as much, and each part between added tokens is one.
    with_added["normalizer"] = json!({"type": "Prepend", "prepend": "a".repeat(40)});
    let json = serde_json::to_vec(&with_added).expect("JSON");
    let tokenizer = TextTokenizer::read(&json, options()).expect("a tokenizer");
    assert!(tokenizer.encode("axa", None, true).is_ok());
    let fault = tokenizer.encode(&"ax".repeat(10_000), None, true).expect_err("20 times as much");
    assert!(matches!(fault, TokenizerFault::Grows { what: "bytes", .. }), "{fault}");
    let doubled = read("normalizer", replace("a", "a a")).expect("a tokenizer");
    let fault = doubled.encode(&"a ".repeat(1000), None, true).expect_err("2000 tokens are fewer than 2 for a byte");
    assert!(matches!(fault, TokenizerFault::Grows { .. }), "{fault}");
}

#[test]
fn names_of_tokens_that_stand_for_any_text_are_short() {
    let name = "?".repeat(65);
    let model = json!({"type": "WordLevel", "vocab": {"a": 0, name.clone(): 1}, "unk_token": name});
    let fault = refused("model", model);
    assert!(fault.contains("at most 64 bytes, but found 65"), "{fault}");
}

#[test]
fn long_words_that_are_divided_are_more_work_than_short_ones() {
    let pieces = json!({"type": "WordPiece", "vocab": {"a": 0, "##a": 1, "?": 2}, "unk_token": "?",
                        "continuing_subword_prefix": "##", "max_input_chars_per_word": 100});
    let tokenizer = read("model", pieces).expect("a tokenizer");
    let (short, long) = ("aaa ".repeat(400), "a".repeat(1600));
    assert!(tokenizer.work(&[&short], false) < 2 * short.len());
    assert_eq!(tokenizer.work(&[&long], false), 16 + 1600 + 100 * 100 / 4, "longer words are not divided");
    assert_eq!(read("added_tokens", json!([])).expect("a tokenizer").work(&[&long], false), 16 + 1600);
}
